//! The invariants of the books, as equations. Tests call `validate` after every step.

use super::directory::State;
use super::gate::Shut;
use super::heap::Heap;
use super::node::{Kind, NIL};
use super::order::COMMON;
use super::page::Mapping;
use super::shape::Shape;
use super::size::{WINDOW, round_down};
use super::space::Space;
use std::collections::{HashMap, HashSet};

impl Heap {
    /// Checks everything, in time linear in all there is; panics on the first equation that does not hold.
    /// Call it between operations only. Threads may be at work in their caches: they are kept out.
    pub fn validate(&mut self) {
        self.keep_out(Shut::Visit);
        self.figures(); // which keep the peak
        self.space.validate();
        self.validate_nodes();
        self.validate_pages();
        self.validate_arenas();
        self.validate_directory();
        self.validate_loans();
        self.validate_sole();
        self.let_in(Shut::Visit);
    }

    /// The directory has as live what the nodes and slabs have, and as kept what the caches have.
    fn validate_directory(&self) {
        let mut kept = HashSet::new();
        let mut look = |at: u64, live: bool| {
            let state = self.directory.state(at);
            assert_eq!(state != State::Gone, live, "{at:#x} is {state:?}");
            if state == State::Kept {
                kept.insert(at);
            }
        };
        for range in &self.space.ranges {
            let mut id = range.first;
            while id != NIL {
                let node = &self.space.nodes[id];
                if node.kind == Kind::Slab {
                    let blocks = self.slabs.get(node.slab).blocks;
                    for index in 0..blocks {
                        let live = self.slabs.is_live(node.slab, index);
                        look(self.slabs.block_start(node.slab, index), live);
                    }
                } else {
                    look(node.start, node.kind == Kind::Live);
                }
                id = node.next;
            }
        }
        for cache in self.caches() {
            let (mut bytes, mut count) = (0, 0);
            for block in cache.blocks() {
                assert!(kept.remove(&block.at), "kept once: {block:?}");
                assert!(cache.arena != COMMON || block.seq == 0, "{block:?}");
                bytes += block.piece.bytes();
                count += 1;
            }
            assert_eq!((bytes, count), (cache.bytes(), cache.count()));
            let arena = self.arenas[cache.arena as usize].as_ref();
            assert!(arena.is_some_and(|arena| arena.caches > 0), "its stream is there");
        }
        for (stream, depot) in self.depots() {
            let blocks = depot.blocks();
            assert!(
                blocks.iter().all(|block| kept.remove(&block.at)),
                "handed over once"
            );
            let bytes: u64 = blocks.iter().map(|block| block.piece.bytes()).sum();
            assert_eq!(bytes, depot.bytes());
            assert!(self.caches().iter().any(|cache| cache.arena == *stream));
        }
        assert!(kept.is_empty(), "kept by nobody: {kept:x?}");
        for arena in self.arenas.iter().flatten() {
            assert_eq!(arena.clock.load(std::sync::atomic::Ordering::Relaxed), arena.seq);
        }
    }

    fn validate_nodes(&self) {
        let slot = self.space.slot();
        let (mut used, mut cached, mut free, mut pending) = (0, 0, 0, 0);
        let mut blocks = 0;
        let (mut homes, mut parts) = (HashMap::new(), HashMap::new());
        for range in &self.space.ranges {
            // a segment begins anywhere
            let slot_of = |at: u64| range.base + round_down(at - range.base, slot);
            if self.placed {
                let page = self.pages.span(self.space.mapping_at(range.base));
                assert_eq!(page, (range.base, range.bytes), "a range is one page");
            }
            let mut id = range.first;
            let (mut backed, mut counted) = (0, u64::MAX);
            while id != NIL {
                let node = &self.space.nodes[id];
                let mut at = if node.kind == Kind::Void {
                    node.end()
                } else {
                    node.start
                };
                while at < node.end() {
                    // nodes may share a slot
                    if slot_of(at) != counted {
                        counted = slot_of(at);
                        backed += 1;
                    }
                    let mapping = self.space.mapping_at(at);
                    let to = (slot_of(at) + slot).min(node.end());
                    assert_eq!(
                        mapping == NIL,
                        node.kind == Kind::Void,
                        "void is what is unmapped: {node:?}"
                    );
                    if !matches!(node.kind, Kind::Void | Kind::Hole) {
                        let Mapping { at: from, page, .. } = *self.pages.mapping(mapping);
                        *homes.entry(mapping).or_insert(0) += to - at;
                        parts
                            .entry(page)
                            .or_insert_with(Vec::new)
                            .push((at - from, to - from));
                    }
                    at = slot_of(at) + slot;
                }
                assert!(
                    !self.placed || !matches!(node.kind, Kind::Void | Kind::Hole),
                    "all of a page is in use or free: {node:?}"
                );
                if self.apart && !matches!(node.kind, Kind::Void | Kind::Hole) {
                    assert_eq!(
                        self.space.mapping_at(node.start),
                        self.space.mapping_at(node.end() - 1),
                        "it lies in one page: {node:?}"
                    );
                }
                match node.kind {
                    Kind::Live => {
                        used += node.len;
                        blocks += 1;
                    }
                    Kind::Limbo => pending += node.len,
                    Kind::Free => {
                        free += node.len;
                        let next = node.next;
                        if next != NIL && self.space.nodes[next].kind == Kind::Free {
                            let other = &self.space.nodes[next];
                            let late = node.seq.max(other.seq) > self.arena(node.owner).joined;
                            assert!(
                                node.owner != other.owner || self.are_apart(other.start) || late,
                                "neighbours are joined: {node:?} {other:?}"
                            );
                        }
                    }
                    Kind::Slab => {
                        assert!(
                            node.start.is_multiple_of(WINDOW) && node.len.is_multiple_of(WINDOW),
                            "whole windows: {node:?}"
                        );
                        self.slabs.validate(node.slab);
                        let slab = self.slabs.get(node.slab);
                        let size = self.slabs.block_bytes(node.slab);
                        assert_eq!((slab.base, slab.node), (node.start, id), "a slab knows its run");
                        assert!(
                            slab.owner == COMMON || slab.seq <= self.arena(slab.owner).seq,
                            "numbers of the past: {slab:?}"
                        );
                        let live = u64::from(slab.blocks - slab.free - slab.limbo);
                        used += live * size;
                        blocks += live;
                        pending += u64::from(slab.limbo) * size;
                        cached += node.len - (live + u64::from(slab.limbo)) * size;
                    }
                    _ => {}
                }
                id = node.next;
            }
            // all the others are backed, as was just seen
            assert_eq!(
                Space::mapped_slots(range),
                backed,
                "voids of the range at {:#x} are unmapped",
                range.base
            );
        }
        let stats = &self.stats;
        assert_eq!(
            (used, cached, free, pending),
            (stats.used, stats.cached, stats.free, stats.pending)
        );
        let loose = self
            .pages
            .loose
            .iter()
            .map(|&page| self.pages.page(page).bytes)
            .sum::<u64>();
        assert_eq!(stats.idle, loose, "only loose pages are idle between operations");
        assert_eq!(stats.reserved, used + cached + free + pending + stats.idle);
        assert_eq!(stats.allocations - stats.frees, blocks, "live blocks");
        // what was in use when a round began that is replayed may be more than since the peaks were reset
        assert!(self.replay.is_on() || self.used_now() <= stats.used_peak);
        assert!(stats.reserved <= stats.reserved_peak);
    }

    fn validate_pages(&self) {
        let (mut bytes, mut mapped, mut resting) = (0, 0, 0);
        for (id, page) in self.pages.iter() {
            bytes += page.bytes;
            mapped += page.mappings.len() as u64;
            let most = self.pages.most_mappings();
            assert!(page.mappings.len() <= most, "{most} mappings at most: {page:?}");
            let listed = self.pages.full.iter().filter(|&&full| full == id).count();
            assert_eq!(listed, usize::from(page.mappings.len() == most), "{page:?}");
            assert!(!page.taken, "{page:?}");
            assert!(!self.apart || page.mappings.len() <= 1, "in one place: {page:?}");
            let home: u64 = page
                .mappings
                .iter()
                .map(|&mapping| self.pages.mapping(mapping).home)
                .sum();
            assert_eq!(
                home,
                if self.pages.loose.contains(&id) {
                    0
                } else {
                    page.bytes
                },
                "{page:?}"
            );
            for &mapping in &page.mappings {
                assert_eq!(self.pages.mapping(mapping).page, id);
                let at = self.pages.mapping(mapping).at;
                for part in (at..at + page.bytes).step_by(self.space.slot() as usize) {
                    assert_eq!(self.space.mapping_at(part), mapping, "slots name their mapping");
                }
                resting += u64::from(self.pages.is_dormant(mapping));
            }
        }
        assert_eq!((bytes, mapped), (self.pages.bytes, self.pages.mapped));
        assert_eq!(bytes, self.stats.reserved);
        assert_eq!(
            self.pages.dormant().count() as u64,
            resting,
            "dormant mappings are listed"
        );
    }

    fn validate_arenas(&self) {
        let (mut free, mut shape) = (0, Shape::default());
        assert_eq!(self.known as usize, self.streams().count());
        let captured = |&index: &u32| self.arena(index).id.capture.is_some();
        assert_eq!(self.captured as usize, self.streams().filter(captured).count());
        let mut vacant: Vec<usize> = self.vacant.iter().map(|&(index, _)| index as usize).collect();
        vacant.sort_unstable();
        let empty = (0..self.arenas.len()).filter(|&index| self.arenas[index].is_none());
        assert!(vacant.into_iter().eq(empty), "indices that nobody has, each once");
        let beyond_reach = self.arenas.iter().flatten().map(|arena| arena.beyond_reach());
        assert_eq!(self.uncovered, beyond_reach.sum());
        for (index, arena) in self.arenas.iter().enumerate() {
            let Some(arena) = arena else { continue };
            let (index, nodes) = (index as u32, &self.space.nodes);
            let mut binned = HashMap::new();
            let before = free;
            for id in arena.bins.descending(nodes, 0) {
                let node = &nodes[id];
                assert_eq!((node.kind, node.owner), (Kind::Free, index), "{node:?}");
                assert!(binned.insert(id, node.seq).is_none(), "binned once: {node:?}");
                free += node.len;
                shape.add(node.start, node.end());
            }
            assert_eq!(arena.bins.bytes(), free - before);
            assert!(arena.completed <= arena.seq || index == COMMON);
            if index == COMMON {
                continue;
            }
            let (mut id, mut prev, mut seq) = (arena.oldest, NIL, 0);
            let mut uncovered = 0;
            while id != NIL {
                let node = &nodes[id];
                uncovered += if node.seq > arena.counted_from {
                    node.len
                } else {
                    0
                };
                assert_eq!(node.age_prev, prev);
                assert!(
                    node.seq >= seq && node.seq <= arena.seq,
                    "in the order of their numbers: {node:?}"
                );
                assert!(binned.remove(&id).is_some(), "in both lists: {node:?}");
                (seq, prev, id) = (node.seq, id, node.age_next);
            }
            assert_eq!((arena.newest, arena.uncovered), (prev, uncovered));
            assert!(binned.is_empty(), "in both lists: {binned:?}");
            let events: Vec<u64> = arena.events.iter().map(|event| event.1).collect();
            assert!(events.is_sorted() && events.last().is_none_or(|&last| last <= arena.seq));
        }
        assert_eq!((free, shape), (self.stats.free, self.shape));
        for (id, slab) in self.slabs.iter() {
            let listed = self.slab_is_listed(id);
            assert_eq!(
                listed,
                slab.free > 0,
                "a slab is listed while it has a free block: {slab:?}"
            );
        }
    }
}
