//! How the books make up for what was replayed (`replay`): what is free counts as used, and blocks are live where nothing was.
//!
//! No lock of its own: the heap's.

use super::flush::Whose;
use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::note::{Done, Extent, Note};
use super::order::COMMON;
use super::replay::Way;
use super::size::class_of;
use super::space::Found;
use super::tape::{Progress, Step};
use std::collections::VecDeque;
use std::mem;

impl Heap {
    /// Ends the replay, if there is one: the books are right again.
    #[inline(never)]
    pub fn make_up(&mut self) {
        let Some(progress) = self.end_tape() else { return };
        let host = self.replay.host();
        let Done { calls, .. } = self.replay.recording.done(progress);
        let [gone, born] = self.replay.recording.difference(progress.steps);
        self.replay.way = Way::Watching;
        if progress != Progress::default() {
            let peak = self.stats.used_peak.max(self.replayed_peak(progress));
            let count = gone.len() as u64;
            match self.replay.company.is_several() {
                true => self.make_up_for_several(progress, &gone, &born),
                false => {
                    self.make_up_for_one(progress.steps, &gone, &born);
                    self.arena_mut(host).served += calls.allocs;
                }
            }
            let stats = &mut self.stats;
            stats.allocations = stats.allocations.wrapping_add(calls.allocs);
            stats.hits = stats.hits.wrapping_add(calls.allocs);
            stats.frees = stats.frees.wrapping_add(calls.frees - count);
            self.set_used_peak(peak);
        }
        let recording = mem::take(&mut self.replay.recording);
        self.cover_replayed(recording.notes(), progress);
        self.replay.recording = recording;
        self.learn_from_replay(progress);
        self.tune_caches();
    }

    /// Blocks that were in use when a round began are not any more, and others are.
    fn make_up_for_one(&mut self, steps: usize, gone: &[(u64, Extent)], born: &[(u64, Extent)]) {
        let stream = self.replay.host();
        // before anything can be joined with what guests have
        self.flush(Whose::Stream(stream), |_| false);
        self.use_all_free(stream);
        gone.iter().for_each(|&(at, _)| self.free_replayed(at, stream));
        self.flush_slabs();
        for &(at, block) in born {
            self.place(at, block, stream);
        }
        let recording = mem::take(&mut self.replay.recording);
        self.renew_blocks(recording.notes(), steps);
        self.replay.recording = recording;
    }

    /// The same where several streams made the round.
    fn make_up_for_several(&mut self, progress: Progress, gone: &[(u64, Extent)], born: &[(u64, Extent)]) {
        let recording = mem::take(&mut self.replay.recording);
        let (notes, steps) = (recording.notes(), progress.steps);
        for stream in self.replay.company.members().to_vec() {
            self.flush(Whose::Stream(stream), |_| false);
        }
        let freed = self.streams_of(notes, steps, gone, true);
        gone.iter()
            .for_each(|&(at, _)| self.free_replayed(at, freed[&at]));
        self.flush_slabs();
        self.use_by_last(notes, steps);
        let taken = self.streams_of(notes, steps, born, false);
        for &(at, block) in born {
            self.place(at, block, taken[&at]);
        }
        self.renew_blocks(notes, steps);
        self.count_replayed(notes, progress);
        self.replay.recording = recording;
    }

    /// Blocks that are live still, or again, were allocated anew in the replay, where work of their streams from before may not be over: for
    /// whoever frees one all use of which is over, or on a stream that is never at work.
    fn renew_blocks(&mut self, notes: &VecDeque<Note>, steps: usize) {
        let members = self.replay.company.members().to_vec();
        for note in notes.iter().skip(steps).chain(notes.iter().take(steps)) {
            let stream = members[note.part()];
            if let (Step::Alloc { at, .. }, None) = (note.step(), note.block().slab)
                && let Found::Start(id) = self.space.find(at)
                && self.space.nodes[id].kind == Kind::Live
            {
                let seq = self.arena(stream).seq;
                let node = &mut self.space.nodes[id];
                (node.owner, node.seq) = (stream, seq);
                self.directory.begin_anew(at, node.len, stream != COMMON);
            }
        }
    }

    fn free_replayed(&mut self, at: u64, stream: u32) {
        let block = self.find_block_to_free(at).expect("it was in use");
        let ended = self.end(block).expect("it was in use");
        self.free_ended(ended, stream, false);
    }

    /// All that is free may be in use by a stream's work up to now, in whatever mapping, but for what is known not to be.
    pub(super) fn use_all_free(&mut self, stream: u32) {
        if stream == COMMON {
            return; // nothing is ever at work
        }
        let free = [COMMON, stream].map(|arena| {
            self.arena(arena)
                .bins
                .descending(&self.space.nodes, 0)
                .collect::<Vec<_>>()
        });
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        for id in free.into_iter().flatten() {
            let parts = self.untouched(id, self.space.slot());
            self.pull_free(id);
            self.space.nodes[id].kind = Kind::Busy;
            let mut rest = id;
            for (from, to) in parts {
                let part = self.split_busy(rest, from);
                if part != rest {
                    used.push(rest);
                }
                rest = self.split_busy(part, to);
                unused.push(part);
            }
            if rest != NIL {
                used.push(rest);
            }
        }
        self.arena_mut(stream).advance();
        for id in used {
            self.put_free(id, stream);
        }
        // not before: a stream's extent takes in what is everybody's beside it
        for id in unused {
            self.put_free(id, COMMON);
        }
        let seq = self.arena(stream).seq;
        self.note_all_small(stream, seq);
        self.pages.used_everywhere(stream, seq);
    }

    /// The part of a node from an address on, which is in it or its end: then there is none.
    pub(super) fn split_busy(&mut self, id: NodeId, at: u64) -> NodeId {
        match &self.space.nodes[id] {
            node if at == node.start => id,
            node if at == node.end() => NIL,
            _ => self.space.split(id, at),
        }
    }

    /// A block is live where nothing is.
    pub(super) fn place(&mut self, at: u64, block: Extent, stream: u32) {
        let Extent { bytes, slab } = block;
        match slab {
            Some(base) => {
                let class = class_of(bytes, 0).expect("a slab's");
                self.place_small(at, base, class, stream);
            }
            None => {
                let node = self.claim(at, bytes);
                let seq = self.arena(stream).seq;
                let node = &mut self.space.nodes[node];
                (node.kind, node.owner, node.seq) = (Kind::Live, stream, seq);
                self.set_used(self.stats.used + bytes);
                self.directory.begin(at, bytes, stream != COMMON);
            }
        }
        self.took(stream, bytes);
    }
}
