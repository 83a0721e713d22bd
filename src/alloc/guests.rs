//! Guests: other streams' calls while one stream's are recorded or replayed (`replay`), as those of a stream that copies what the next step
//! reads. They are no part of the round, and may come at any step of it.
//!
//! While a round is recorded guests do as they always do: whether the round is whole its own calls tell. It is replayed if nothing that
//! it touches is theirs when it begins: what is touched is found page by page, since a page may be mapped at several addresses.
//!
//! While it is replayed they get what their stream has freed itself, where that lies, or else what is everybody's and the round does not touch,
//! and free what it does not touch: so what is theirs and what the round touches stay apart, and the books are right about them, though not about
//! the round. All else ends the replay first.
//!
//! A program with two streams that are as busy has no guests: they make rounds together, if they may (`company`).
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::heap::{Block, Heap};
use super::limbo::Limbo;
use super::node::{Kind, NIL, Node, NodeId};
use super::note::{Extent, Note};
use super::order::COMMON;
use super::page::PageId;
use super::rounds::Calls;
use super::size::{GRAIN, class_of, run_bytes};
use super::space::Found;
use super::takeover::Touches;
use super::tape::{Progress, Step};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::sync::Arc;

/// Guests make so small a part of all calls...
const PART: u64 = 16;
/// ...but for so many.
const FEW: u64 = 64;
/// So small a part of what is needed is little.
const LITTLE: u64 = 32;
/// So many extents that may be everybody's are looked at for one request.
const LOOKS: usize = 64;
/// Until they have memory enough the books are needed for them. Once in so many rounds is seldom...
const SELDOM: u64 = 8;
/// ...and more often is too often if that was so so many times.
const OFTEN: u32 = 16;

/// Bytes of pages that a round touches, in order, none of which overlap.
#[derive(Debug, Default)]
pub struct Touched(Vec<(PageId, u64, u64)>);

/// What guests did.
#[derive(Debug, Default)]
pub struct Guests {
    /// Calls while others' were recorded or replayed.
    pub calls: Calls,
    /// How many there had been when that began.
    before: u64,
    /// They were too many for a replay.
    too_many: bool,
    /// So many replays in a row have ended for them, too early.
    early: u32,
    /// It is ended because the books are needed for one.
    ends: bool,
    /// What they may not touch. None: nothing of what there is.
    touched: Option<Touched>,
}

impl Touched {
    /// These parts, which may overlap.
    fn of(mut parts: Vec<(PageId, u64, u64)>) -> Touched {
        parts.sort_unstable();
        parts.dedup_by(|next, last| {
            let joins = next.0 == last.0 && next.1 <= last.2;
            if joins {
                last.2 = last.2.max(next.2);
            }
            joins
        });
        Touched(parts)
    }

    /// Those of them in this part, from where to where.
    fn within(&self, (page, from, to): (PageId, u64, u64)) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.0.partition_point(|part| (part.0, part.2) <= (page, from));
        let here = self.0[first..]
            .iter()
            .take_while(move |part| part.0 == page && part.1 < to);
        here.map(move |part| (part.1.max(from), part.2.min(to)))
    }

    /// Is any byte of this part among them?
    fn overlaps(&self, part: (PageId, u64, u64)) -> bool {
        self.within(part).next().is_some()
    }

    /// Where at least so many bytes in a row are none of them, in parts that follow each other: from and to where, counted from the first one.
    fn gaps(&self, parts: impl Iterator<Item = (PageId, u64, u64)>, least: u64) -> Vec<(u64, u64)> {
        let (mut gaps, mut begun, mut at) = (Vec::new(), 0, 0);
        for (page, from, to) in parts {
            for (lo, hi) in self.within((page, from, to)) {
                gaps.push((begun, at + (lo - from)));
                begun = at + (hi - from);
            }
            at += to - from;
        }
        gaps.push((begun, at));
        gaps.retain(|gap| gap.1 - gap.0 >= least);
        gaps
    }
}

impl Guests {
    /// Others' calls are recorded, or replayed, from now on.
    pub fn begin(&mut self) {
        (self.before, self.too_many, self.ends) = (self.calls.all(), false, false);
    }

    /// May one more come, after so many calls of the others?
    fn may_come(&mut self, calls: u64) -> bool {
        self.too_many = self.calls.all() - self.before >= FEW + calls / PART;
        !self.too_many
    }

    /// A replay has ended that came so far. Because the books were needed for a guest? What it knew holds still.
    pub fn have_ended(&mut self, progress: Progress) -> bool {
        self.early = match progress.rounds >= SELDOM {
            true => 0,
            false => self.early + u32::from(self.ends),
        };
        self.ends && !self.too_many && self.early <= OFTEN
    }

    /// Were they too many for a replay?
    pub fn are_too_many(&self) -> bool {
        self.too_many
    }
}

impl Heap {
    /// Is this stream a guest? Not where the others' calls are those of no stream.
    pub fn is_guest(&self, stream: u32) -> bool {
        let apart = || self.replay.host() != COMMON && stream != COMMON && !self.is_member(stream);
        !self.replay.is_watching() && apart()
    }

    /// Calls that are no guests'.
    pub(super) fn own_calls(&self) -> Calls {
        self.calls().since(self.replay.guests.calls)
    }

    /// Have nearly all of the heap's allocations been this stream's?
    pub(super) fn is_main(&self, stream: u32) -> bool {
        let all = self.stats.allocations;
        self.is_alone(stream) || self.arena(stream).served > all - all / PART
    }

    /// What the heap has as live of the stream whose rounds are looked for, if this is a call of its: of all, where there is no other one, or all make
    /// them together.
    pub(super) fn had_by_main(&self, own: Option<&Arc<Cache>>) -> Option<u64> {
        match own {
            Some(own) if self.has_several_streams() => match self.is_main(own.arena) {
                true => Some(self.arena(own.arena).holds.max(0) as u64),
                false => self.replay.several.then_some(self.stats.used),
            },
            _ => Some(self.stats.used),
        }
    }

    /// What caches keep of that.
    pub(super) fn bytes_kept_beside(&self, own: Option<&Arc<Cache>>) -> u64 {
        match own {
            Some(own) if self.has_several_streams() && self.is_main(own.arena) => {
                let same = self.caches().iter().filter(|cache| cache.arena == own.arena);
                same.map(|cache| cache.bytes()).sum()
            }
            _ => self.bytes_of_kept(),
        }
    }

    /// Does a guest keep what it has freed while a round is recorded? What is little: so it comes to have memory that the round does not touch.
    pub(super) fn keeps_to_itself(&self, stream: u32) -> bool {
        self.is_guest(stream) && !self.is_crowded() && {
            let bins = &self.arena(stream).bins;
            let lengths = bins
                .descending(&self.space.nodes, 0)
                .map(|id| self.space.nodes[id].len);
            lengths.sum::<u64>() <= self.needed / LITTLE
        }
    }

    /// Memory is short, or is to go back: what guests have freed is everybody's from now on.
    pub fn let_guests_share(&mut self) {
        if self.has_several_streams() {
            self.spoil_tape();
        }
    }

    /// A guest calls while others' calls are recorded.
    pub fn admit_guest(&mut self) {
        let calls = self.own_calls().since(self.replay.begun).all();
        if !self.replay.guests.may_come(calls) {
            self.spoil_tape();
        }
    }

    /// It got a block.
    pub fn note_guest_alloc(&mut self) {
        self.replay.guests.calls.allocs += 1;
    }

    /// It frees a block.
    pub fn note_guest_free(&mut self, at: u64) {
        // whoever frees what is no block will hear of it
        self.replay.guests.calls.frees += u64::from(self.find_block(at).is_ok());
    }

    /// A guest's request while others' calls are replayed: a block of what its stream has freed, or else, if it may be, of what is everybody's
    /// and the round does not touch.
    pub fn alloc_as_guest(&mut self, stream: u32, bytes: u64, align: u64, everybodys: bool) -> Option<u64> {
        self.serve(stream);
        // all that is everybody's may be the round's (`fit`)
        let at = self.beside_replay(|heap| {
            let own = heap.alloc(bytes, align, stream);
            own.or_else(|| {
                let given = everybodys && heap.give_untouched(Heap::need(bytes, align), stream);
                given.then(|| heap.alloc(bytes, align, stream))?
            })
        })?;
        self.note_guest_alloc();
        self.stats.hits += 1;
        Some(at)
    }

    /// Makes so much of what is everybody's, and the round does not touch, the guest's. Gives whether there was so much.
    fn give_untouched(&mut self, (bytes, align): (u64, u64), stream: u32) -> bool {
        let bytes = bytes + align - GRAIN;
        let long = |arena: u32| self.arena(arena).bins.ascending(&self.space.nodes, bytes);
        let members = self.replay.company.members().iter().copied();
        let all = std::iter::once(COMMON).chain(members).flat_map(long);
        let gap = |id: NodeId| Some((id, self.untouched(id, bytes).first()?.0));
        let found = all.take(LOOKS).find_map(gap);
        let Some((id, from)) = found else { return false };
        let completed = self.arena(stream).completed;
        let piece = self.cut_free(id, from, from + bytes);
        self.put_free_since(piece, stream, completed);
        true
    }

    /// Where at least so many bytes of a free extent in a row are known not to be the replayed round's, and nobody else's: what the host
    /// has freed is everybody's once that is complete.
    pub(super) fn untouched(&self, id: NodeId, least: u64) -> Vec<(u64, u64)> {
        let &Node {
            start,
            len,
            owner,
            seq,
            ..
        } = &self.space.nodes[id];
        let complete = owner == COMMON || self.reuse.opportunistic && self.is_complete(owner, seq);
        let touched = self.replay.guests.touched.as_ref().filter(|_| complete);
        let Some(touched) = touched else {
            return Vec::new();
        };
        let gaps = touched.gaps(self.parts(start, len), least);
        gaps.into_iter()
            .map(|(from, to)| (start + from, start + to))
            .collect()
    }

    /// A block that the guest frees meanwhile: its bytes. None: that is for the books.
    pub fn free_as_guest(&mut self, stream: u32, at: u64) -> Option<u64> {
        let block = self.guests_block(at)?;
        let ended = self.end(block).ok()?;
        self.replay.guests.calls.frees += 1;
        self.hear_of(stream);
        Some(self.beside_replay(|heap| heap.free_ended(ended, stream, false)))
    }

    /// The books are needed for a guest.
    pub fn end_replay_for_guest(&mut self) {
        self.replay.guests.ends = true;
        self.make_up();
    }

    /// Work of a stream uses a guest's block. If it is the host's, no event that was recorded in its replay covers that.
    pub(super) fn host_has_used(&mut self, stream: u32) {
        if self.replay.is_on() && stream == self.replay.host() {
            self.replay.company.forget_heard(stream);
        }
    }

    /// May a guest call while others' calls are replayed?
    pub fn may_guest_call(&mut self) -> bool {
        let calls = self.replayed_calls();
        self.replay.guests.may_come(calls)
    }

    /// The live block at an address that the replayed round does not touch, if one is there.
    pub fn guests_block(&self, at: u64) -> Option<Block> {
        let block = self.find_block(at).ok()?;
        let apart = match block {
            Block::Small(slab, _) => self.is_foreign(self.slabs.get(slab).owner),
            Block::Large(_) => self.is_block_untouched(at),
        };
        apart.then_some(block)
    }

    /// Is what this stream frees neither the round's nor everybody's?
    fn is_foreign(&self, stream: u32) -> bool {
        stream != COMMON && !self.is_member(stream)
    }

    /// Is nothing of it the replayed round's, as far as that is known?
    fn is_untouched(&self, at: u64, bytes: u64) -> bool {
        let touched = self.replay.guests.touched.as_ref();
        touched.is_some_and(|touched| self.parts(at, bytes).all(|part| !touched.overlaps(part)))
    }

    /// The same of a block, live or held back, that begins there.
    fn is_block_untouched(&self, at: u64) -> bool {
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
            return false;
        };
        let node = &self.space.nodes[id];
        match node.kind {
            Kind::Slab => self.is_untouched(at, self.slabs.block_bytes(node.slab)),
            _ => self.is_untouched(node.start, node.len),
        }
    }

    /// The parts of pages behind these addresses, all of which are mapped.
    pub(super) fn parts(&self, at: u64, bytes: u64) -> impl Iterator<Item = (PageId, u64, u64)> + '_ {
        let mut from = at;
        std::iter::from_fn(move || {
            (from < at + bytes).then(|| {
                let id = self.space.mapping_at(from);
                let (start, len) = self.pages.span(id);
                let to = (start + len).min(at + bytes);
                let part = (self.pages.mapping(id).page, from - start, to - start);
                from = to;
                part
            })
        })
    }

    /// A round of these calls may be replayed: what it touches, unless something of that is another stream's. Then guests may come.
    pub(super) fn touches_apart(&mut self, notes: &VecDeque<Note>) -> Option<Touches> {
        self.replay.guests.touched = None;
        if !self.has_several_streams() {
            return Some(Touches::default()); // who comes to be known ends the replay
        }
        let touches = self.touches(notes);
        let touched = Touched::of(touches.parts.clone());
        let mut lasting = FxHashSet::default();
        for note in notes {
            match note.step() {
                Step::Alloc { at, .. } => lasting.insert(at),
                Step::Free { at, .. } => lasting.remove(&at),
            };
        }
        self.replay.guests.touched = Some(touched);
        let (mut kept, mut others) = (FxHashSet::default(), Vec::new());
        self.each_kept(|arena, at| match self.is_member(arena) {
            true => drop(kept.insert(at)),
            false => others.push(at),
        });
        others.extend(self.also_used.keys().copied());
        others.extend(self.limbo.iter().map(|held| held.at));
        let apart = others.into_iter().all(|at| self.is_block_untouched(at))
            && self.all_nodes().into_iter().all(|node| {
                let may_touch = match node.kind {
                    Kind::Live => lasting.contains(&node.start) || kept.contains(&node.start),
                    Kind::Slab => !self.is_foreign(self.slabs.get(node.slab).owner),
                    Kind::Free => !self.is_foreign(node.owner),
                    Kind::Limbo => false,
                    _ => true,
                };
                may_touch || self.is_untouched(node.start, node.len)
            });
        apart.then_some(touches)
    }

    /// Blocks that threads keep, and of which stream's.
    fn each_kept(&self, mut what: impl FnMut(u32, u64)) {
        for cache in self.caches() {
            cache.blocks().for_each(|block| what(cache.arena, block.at));
        }
        for (arena, depot) in self.depots() {
            depot.blocks().iter().for_each(|block| what(*arena, block.at));
        }
    }

    fn all_nodes(&self) -> Vec<&Node> {
        let mut all = Vec::new();
        for range in &self.space.ranges {
            let mut id = range.first;
            while id != NIL {
                let node = &self.space.nodes[id];
                all.push(node);
                id = node.next;
            }
        }
        all
    }

    /// A held-back block that is complete while calls are replayed: whose it is. None: it is to be held back still.
    pub(super) fn guest_of_held(&self, held: &Limbo) -> Option<u32> {
        let is_guests = |&stream: &u32| self.is_foreign(stream) && self.arenas[stream as usize].is_some();
        // the last one has freed it
        let stream = held.needs.iter().rev().map(|need| need.0).find(is_guests)?;
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(held.at) else {
            return None;
        };
        let node = &self.space.nodes[id];
        let apart = match node.kind {
            Kind::Slab => self.is_foreign(self.slabs.get(node.slab).owner),
            _ => self.is_untouched(node.start, node.len),
        };
        apart.then_some(stream)
    }
}

/// What a block takes: all of its slab, which may have to be made anew for it.
pub(super) fn reach(block: Extent, at: u64) -> (u64, u64) {
    match block.slab {
        Some(base) => (base, run_bytes(class_of(block.bytes, 0).expect("a slab's"))),
        None => (at, block.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_told_from_what_lies_beside_it() {
        let touched = Touched::of(vec![(2, 50, 60), (1, 0, 10), (1, 8, 20), (1, 30, 40), (1, 2, 4)]);
        assert_eq!(touched.0, [(1, 0, 20), (1, 30, 40), (2, 50, 60)]);
        for part in [
            (1, 20, 30),
            (1, 40, 50),
            (2, 0, 50),
            (2, 60, 70),
            (0, 0, 99),
            (3, 50, 60),
        ] {
            assert!(!touched.overlaps(part), "{part:?}");
        }
        for part in [(1, 0, 1), (1, 19, 30), (1, 20, 31), (1, 0, 99), (2, 55, 56)] {
            assert!(touched.overlaps(part), "{part:?}");
        }
        assert!(!Touched::default().overlaps((0, 0, 1)));
    }

    /// Of two pages that follow each other, and of a part of one.
    #[test]
    fn gaps_go_from_page_to_page() {
        let touched = Touched::of(vec![(1, 10, 20), (1, 50, 60), (2, 30, 40), (2, 90, 100)]);
        let gaps = |parts: &[(PageId, u64, u64)], least| touched.gaps(parts.iter().copied(), least);
        let whole = [(1, 0, 100), (2, 0, 100)];
        assert_eq!(gaps(&whole, 1), [(0, 10), (20, 50), (60, 130), (140, 190)]);
        assert_eq!(gaps(&whole, 50), [(60, 130), (140, 190)]);
        assert_eq!(gaps(&[(1, 15, 55)], 1), [(5, 35)]);
        assert_eq!(gaps(&[(1, 12, 20)], 1), []);
        assert_eq!(gaps(&[(3, 0, 7)], 1), [(0, 7)]);
        assert_eq!(gaps(&[(3, 0, 7)], 8), []);
    }

    #[test]
    fn guests_make_a_small_part_of_all_calls() {
        let mut guests = Guests::default();
        guests.begin();
        let come = |guests: &mut Guests, calls: u64| {
            (0..1000)
                .take_while(|_| {
                    let may = guests.may_come(calls);
                    guests.calls.allocs += u64::from(may);
                    may
                })
                .count() as u64
        };
        assert_eq!(come(&mut guests, 0), FEW);
        assert!(guests.are_too_many());
        assert_eq!(come(&mut guests, 100 * PART), 100);
        guests.begin();
        assert_eq!(come(&mut guests, 0), FEW, "those of another time do not count");
    }

    #[test]
    fn a_replay_that_ends_for_guests_too_often_is_not_taken_up_again() {
        let mut guests = Guests::default();
        let mut ended = |rounds| {
            guests.begin();
            guests.ends = true;
            guests.have_ended(Progress { rounds, steps: 1 })
        };
        assert!((0..OFTEN).all(|_| ended(1)));
        assert!(!ended(1), "too often");
        assert!(ended(SELDOM) && ended(1), "it was worth it again");
    }
}
