//! The pool's address ranges: which node holds an address, and which mapping backs a slot.
//!
//! A range is reserved whole from the backend and tiled by nodes. It is divided into *slots* of the
//! backend's granularity, the unit of mapping, and into *windows* of 64 KiB, the unit of the page map: a
//! window's entry is the first node that starts in it. Blocks outside slabs are longer than half a window
//! and slab runs cover whole windows, so a block is found from its address in a bounded number of steps.
//!
//! Invariants:
//! - the nodes of a range, followed by `next`, start where the one before ends and end where the range ends;
//! - a window's entry is the lowest node that starts in it, NIL if none does;
//! - a `Void` node is whole slots, and neither a `Hole` nor a `Void` has a neighbour of its own kind.
//!
//! No lock of its own: the heap's.

use super::bins::Bins;
use super::node::{Kind, NIL, Node, NodeId, Nodes};
use super::size::{WINDOW, round_down, round_up};
use crate::base::bits::BitTree;
use std::collections::BTreeMap;

/// One reserved range.
#[derive(Debug)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its first node.
    pub first: NodeId,
    /// The complement of each slot's mapping: of one that none backs it is 0, memory from the system that is not there until it is written.
    slots: Vec<u32>,
    /// The entry of each window that has one; of another it is whatever it was, at first memory that is zero from the system and is
    /// not there until it is written.
    entries: Vec<NodeId>,
    /// Windows that have an entry: a cache line of them is 32 MiB of addresses, one of entries 1 MiB.
    named: BitTree,
}

/// All ranges of a pool.
#[derive(Debug)]
pub struct Space {
    /// The pieces.
    pub nodes: Nodes,
    /// Ranges by address.
    pub ranges: Vec<Range>,
    /// Address space with nothing mapped.
    pub voids: Bins,
    /// Address space with dormant mappings.
    pub holes: Bins,
    slot: u64,
}

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A node that starts exactly there.
    Start(NodeId),
    /// A node that the address is inside of.
    Inside(NodeId),
    /// Not an address of the pool.
    Outside,
}

impl Space {
    /// No ranges yet; slots of `slot` bytes.
    pub fn new(slot: u64) -> Space {
        Space {
            nodes: Nodes::default(),
            ranges: Vec::new(),
            voids: Bins::default(),
            holes: Bins::default(),
            slot,
        }
    }

    /// Bytes of a slot.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Adds a reserved range, all of it void.
    pub fn add_range(&mut self, base: u64, bytes: u64) {
        let first = self.insert_range(base, bytes, Kind::Void);
        self.voids.insert(&mut self.nodes, first);
    }

    /// Adds a segment: a range that comes with the page that backs it. It is one `Busy` node.
    pub fn add_segment(&mut self, base: u64, bytes: u64, mapping: u32) -> NodeId {
        let first = self.insert_range(base, bytes, Kind::Busy);
        self.set_mapping(base, bytes, mapping);
        first
    }

    /// Forgets a segment, all of it hole. Linear in the ranges behind it.
    pub fn remove_segment(&mut self, base: u64) {
        let index = self.range_of(base).expect("an address of the pool");
        let first = self.ranges.remove(index).first;
        debug_assert_eq!((self.nodes[first].start, self.nodes[first].next), (base, NIL));
        self.unlist_unbacked(first);
        self.nodes.remove(first);
    }

    fn insert_range(&mut self, base: u64, bytes: u64, kind: Kind) -> NodeId {
        let first = self.nodes.add(Node::new(base, bytes, kind));
        let windows = (round_up(base + bytes, WINDOW) - round_down(base, WINDOW)) / WINDOW;
        let windows = windows as usize;
        let at = self.ranges.partition_point(|range| range.base < base);
        self.ranges.insert(
            at,
            Range {
                base,
                bytes,
                first,
                slots: vec![!NIL; (bytes / self.slot) as usize],
                entries: vec![0; windows],
                named: BitTree::new(windows),
            },
        );
        self.range_mut(base).set_entry(0, first);
        first
    }

    /// Is there a void of at least `bytes`?
    pub fn has_void(&self, bytes: u64) -> bool {
        self.voids.best(&self.nodes, bytes) != NIL
    }

    /// The range that holds an address.
    #[inline(always)]
    pub fn range_of(&self, at: u64) -> Option<usize> {
        let index = match self.ranges.len() {
            1 => 0, // as in most pools
            _ => self
                .ranges
                .partition_point(|range| range.base <= at)
                .checked_sub(1)?,
        };
        let range = self.ranges.get(index)?;
        (at.wrapping_sub(range.base) < range.bytes).then_some(index)
    }

    /// The mapping that backs the slot at an address of the pool, NIL if none.
    pub fn mapping_at(&self, at: u64) -> u32 {
        let range = &self.ranges[self.range_of(at).expect("an address of the pool")];
        !range.slots[((at - range.base) / self.slot) as usize]
    }

    /// Slots of a range that some mapping backs.
    pub(super) fn mapped_slots(range: &Range) -> u64 {
        range.slots.iter().filter(|&&mapping| !mapping != NIL).count() as u64
    }

    /// Sets the mapping of the slots of `[at, at + bytes)`.
    pub fn set_mapping(&mut self, at: u64, bytes: u64, mapping: u32) {
        let slot = self.slot;
        let range = self.range_mut(at);
        let first = ((at - range.base) / slot) as usize;
        range.slots[first..first + (bytes / slot) as usize].fill(!mapping);
    }

    /// The node at an address, in a bounded number of steps.
    #[inline(always)]
    pub fn find(&self, at: u64) -> Found {
        let Some(index) = self.range_of(at) else {
            return Found::Outside;
        };
        let range = &self.ranges[index];
        let window = range.window(at);
        let first = range.entry(window);
        // as where most blocks begin
        if first != NIL && self.nodes[first].start == at {
            return Found::Start(first);
        }
        self.find_behind(range, window, first, at)
    }

    /// The same in a window whose `first` node, if there is one, does not begin there.
    fn find_behind(&self, range: &Range, window: usize, first: NodeId, at: u64) -> Found {
        let mut id = first;
        if id == NIL || self.nodes[id].start > at {
            // the node began before this window: it is the last that starts in the closest window with any
            id = range.entry_below(window);
        }
        while self.nodes[id].end() <= at {
            id = self.nodes[id].next;
        }
        if self.nodes[id].start == at {
            Found::Start(id)
        } else {
            Found::Inside(id)
        }
    }

    /// Cuts a node in two at an address inside it; the upper part is a new node of the same kind, owner and
    /// `seq`. Neither part is put on any list, and the caller has taken the node off those it was on.
    pub fn split(&mut self, id: NodeId, at: u64) -> NodeId {
        let node = &mut self.nodes[id];
        debug_assert!(node.start < at && at < node.end());
        let (start, next) = (node.start, node.next);
        let mut rest = Node::new(at, node.end() - at, node.kind);
        (rest.owner, rest.seq) = (node.owner, node.seq);
        (rest.prev, rest.next) = (id, next);
        node.len = at - start;
        let upper = self.nodes.add(rest);
        self.nodes[id].next = upper;
        if next != NIL {
            self.nodes[next].prev = upper;
        }
        self.range_mut(start).begins(at, start, upper);
        upper
    }

    /// The same, but the new node is the lower part. The upper one stays on what lists it was.
    #[inline(always)]
    pub fn split_front(&mut self, id: NodeId, at: u64) -> NodeId {
        let node = &mut self.nodes[id];
        debug_assert!(node.start < at && at < node.end());
        let (start, prev) = (node.start, node.prev);
        let mut rest = Node::new(start, at - start, node.kind);
        (rest.owner, rest.seq) = (node.owner, node.seq);
        (rest.prev, rest.next) = (prev, id);
        (node.start, node.len) = (at, node.end() - at);
        let lower = self.nodes.add(rest);
        self.nodes[id].prev = lower;
        self.follows(prev, start, lower);
        let range = self.range_mut(start);
        range.replace(start, id, lower);
        range.begins(at, start, id);
        lower
    }

    /// Joins a node with the one after it; the lower one stays. The upper one is on no list.
    pub fn merge(&mut self, lower: NodeId) {
        let &Node {
            start, next: upper, ..
        } = &self.nodes[lower];
        let &Node {
            start: at, len, next, ..
        } = &self.nodes[upper];
        let node = &mut self.nodes[lower];
        node.len += len;
        node.next = next;
        if next != NIL {
            self.nodes[next].prev = lower;
        }
        self.nodes.remove(upper);
        self.range_mut(start).begins_no_more(at, start, at + len, next);
    }

    /// The same, but the upper one stays, on what lists it was. The lower one is on none.
    #[inline(always)]
    pub fn merge_up(&mut self, lower: NodeId) {
        let &Node {
            start,
            len,
            prev,
            next: upper,
            ..
        } = &self.nodes[lower];
        let node = &mut self.nodes[upper];
        let (at, end, next) = (node.start, node.end(), node.next);
        (node.start, node.prev) = (start, prev);
        node.len += len;
        self.follows(prev, start, upper);
        self.nodes.remove(lower);
        let range = self.range_mut(start);
        range.replace(start, lower, upper);
        range.begins_no_more(at, start, end, next);
    }

    /// Behind a node comes this one now, or it is the first one of its range, at `start`.
    #[inline(always)]
    fn follows(&mut self, prev: NodeId, start: u64, id: NodeId) {
        match prev {
            NIL => self.range_mut(start).first = id,
            prev => self.nodes[prev].next = id,
        }
    }

    /// Makes a node, on no list, `Hole` or `Void` and joins it with neighbours of the same kind.
    pub fn set_unbacked(&mut self, mut id: NodeId, kind: Kind) {
        debug_assert!(matches!(kind, Kind::Hole | Kind::Void));
        self.nodes[id].kind = kind;
        let (prev, next) = (self.nodes[id].prev, self.nodes[id].next);
        if next != NIL && self.nodes[next].kind == kind {
            self.unlist_unbacked(next);
            self.merge(id);
        }
        if prev != NIL && self.nodes[prev].kind == kind {
            self.unlist_unbacked(prev);
            self.merge(prev);
            id = prev;
        }
        self.list_unbacked(id, kind);
    }

    fn list_unbacked(&mut self, id: NodeId, kind: Kind) {
        let bins = if kind == Kind::Void {
            &mut self.voids
        } else {
            &mut self.holes
        };
        bins.insert(&mut self.nodes, id);
    }

    fn unlist_unbacked(&mut self, id: NodeId) {
        let bins = if self.nodes[id].kind == Kind::Void {
            &mut self.voids
        } else {
            &mut self.holes
        };
        bins.remove(&mut self.nodes, id);
    }

    /// Cuts `[from, to)`, inside one `Hole` or `Void`, out of it and makes it a `Busy` node.
    pub fn carve_unbacked(&mut self, mut id: NodeId, from: u64, to: u64) -> NodeId {
        self.unlist_unbacked(id);
        let kind = self.nodes[id].kind;
        if self.nodes[id].end() > to {
            let upper = self.split(id, to);
            self.list_unbacked(upper, kind);
        }
        if self.nodes[id].start < from {
            let upper = self.split(id, from);
            self.list_unbacked(id, kind);
            id = upper;
        }
        self.nodes[id].kind = Kind::Busy;
        id
    }

    #[inline(always)]
    fn range_mut(&mut self, at: u64) -> &mut Range {
        let index = self.range_of(at).expect("an address of the pool");
        &mut self.ranges[index]
    }

    /// Checks the invariants that need no other module; panics on the first that does not hold.
    pub fn validate(&self) {
        let mut seen = 0;
        for range in &self.ranges {
            let (mut id, mut at, mut prev) = (range.first, range.base, NIL);
            let mut entries = BTreeMap::new();
            while id != NIL {
                let node = &self.nodes[id];
                assert_eq!((node.start, node.prev), (at, prev), "nodes tile the range");
                assert!(
                    node.len > 0 && node.kind != Kind::Spare && node.kind != Kind::Busy,
                    "{node:?}"
                );
                if matches!(node.kind, Kind::Hole | Kind::Void) {
                    let whole = node.start.is_multiple_of(self.slot) && node.len.is_multiple_of(self.slot);
                    assert!(whole || node.kind == Kind::Hole, "whole slots: {node:?}");
                    assert!(
                        prev == NIL || self.nodes[prev].kind != node.kind,
                        "joined: {node:?}"
                    );
                }
                entries.entry(range.window(at)).or_insert(id);
                seen += 1;
                at = node.end();
                prev = id;
                id = node.next;
            }
            assert_eq!(at, range.base + range.bytes, "nodes end with the range");
            let mut mapped = BTreeMap::new();
            let mut windows = range.entries.len();
            while let Some(window) = windows
                .checked_sub(1)
                .and_then(|below| range.named.at_or_below(below))
            {
                mapped.insert(window, range.entry(window));
                windows = window;
            }
            assert_eq!(
                mapped, entries,
                "the page map names the first node of each window"
            );
        }
        assert_eq!(seen, self.nodes.count(), "every node is part of a range");
    }
}

impl Range {
    /// Which window an address lies in. Windows are aligned in the address space, wherever the range begins: a slab's
    /// run covers whole ones.
    fn window(&self, at: u64) -> usize {
        (at / WINDOW - self.base / WINDOW) as usize
    }

    fn entry(&self, window: usize) -> NodeId {
        match self.named.contains(window) {
            true => self.entries[window],
            false => NIL,
        }
    }

    #[inline(always)]
    fn set_entry(&mut self, window: usize, id: NodeId) {
        self.entries[window] = id;
        self.named.insert(window);
    }

    /// What begins at an address is now another node.
    #[inline(always)]
    fn replace(&mut self, start: u64, was: NodeId, id: NodeId) {
        let window = self.window(start);
        let entry = &mut self.entries[window];
        if *entry == was {
            *entry = id;
        }
    }

    /// Behind the node at `before` one now begins, and no other in between: it is the first of its window, unless that is
    /// the window of the one before.
    #[inline(always)]
    fn begins(&mut self, at: u64, before: u64, id: NodeId) {
        let window = self.window(at);
        if window != self.window(before) {
            self.set_entry(window, id);
        }
    }

    /// The node behind the one at `before` begins there no more. At its end `next` does.
    #[inline(always)]
    fn begins_no_more(&mut self, at: u64, before: u64, end: u64, next: NodeId) {
        let window = self.window(at);
        if window == self.window(before) {
            return;
        }
        match next != NIL && self.window(end) == window {
            true => self.set_entry(window, next),
            false => self.named.remove(window),
        }
    }

    /// The entry of the closest window below that has one.
    fn entry_below(&self, window: usize) -> NodeId {
        let below = window
            .checked_sub(1)
            .and_then(|last| self.named.at_or_below(last));
        self.entries[below.expect("a node starts with the range")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = 2 << 20;

    #[test]
    fn finds_nodes_through_splits_and_merges() {
        let mut space = Space::new(SLOT);
        space.add_range(SLOT, 64 * SLOT);
        let first = space.ranges[0].first;
        let id = space.carve_unbacked(first, SLOT, 9 * SLOT);
        space.nodes[id].kind = Kind::Live;
        let upper = space.split(id, SLOT + 33 * 1024);
        assert_eq!(space.find(SLOT + 33 * 1024), Found::Start(upper));
        assert_eq!(space.find(SLOT + 33 * 1024 - 512), Found::Inside(id));
        assert_eq!(space.find(8 * SLOT), Found::Inside(upper));
        assert_eq!(space.find(SLOT - 1), Found::Outside);
        space.validate();
        space.merge(id);
        assert_eq!(space.find(SLOT + 33 * 1024), Found::Inside(id));
        space.set_unbacked(id, Kind::Void);
        space.validate();
        assert_eq!(space.nodes.count(), 1);
        assert!(space.has_void(64 * SLOT));
    }

    #[test]
    fn finds_what_an_ordered_map_finds() {
        let (base, bytes) = (SLOT + 512, 300 * SLOT);
        let mut space = Space::new(SLOT);
        let first = space.add_segment(base, bytes, 0);
        space.nodes[first].kind = Kind::Live;
        let mut model = BTreeMap::from([(base, first)]);
        let mut random = 1u64;
        let mut below = |most: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let node_at = |model: &BTreeMap<u64, NodeId>, at| *model.range(..=at).next_back().unwrap().1;
        for step in 0..20_000 {
            let at = base + below(bytes / 512) * 512;
            let id = node_at(&model, at);
            let (start, next) = (space.nodes[id].start, space.nodes[id].next);
            // pieces become many, then few again, so that some lie close and some are alone
            if start != at && (step / 2000 % 2 == 0 || below(8) == 0) {
                if below(2) == 0 {
                    model.insert(at, space.split(id, at));
                } else {
                    model.insert(start, space.split_front(id, at));
                    model.insert(at, id);
                }
            } else if next != NIL {
                model.remove(&space.nodes[next].start);
                if below(2) == 0 {
                    space.merge(id);
                } else {
                    model.insert(start, next);
                    space.merge_up(id);
                }
            }
            let ask = base + below(bytes);
            let id = node_at(&model, ask);
            let exact = space.nodes[id].start == ask;
            assert_eq!(
                space.find(ask),
                if exact {
                    Found::Start(id)
                } else {
                    Found::Inside(id)
                }
            );
            assert_eq!(space.find(space.nodes[id].start), Found::Start(id));
        }
        space.validate();
        assert_eq!(space.find(base - 1), Found::Outside);
        assert_eq!(space.find(base + bytes), Found::Outside);
    }
}
