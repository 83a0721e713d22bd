//! Free extents: which of them serves a request, how a block is cut out of one, and how what is freed is joined with
//! its neighbours. Best fit with immediate coalescing (Knuth, TAOCP 2.5).
//!
//! A free extent is in a bin of its owner's, by its length, and, but for everybody's, on the owner's list in the order of
//! numbers. Where the end of one becomes a block, or a block becomes part of one, the extent stays what it is and its
//! lists are told of its new length: mostly it stands there already where it would be put.
//!
//! Invariants: free extents are backed by active mappings throughout and no two joinable ones are neighbours; each is the
//! first of its bin when it has come or its length has changed.
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::node::{Kind, NIL, Node, NodeId, Nodes};
use super::order::{Arena, COMMON};
use super::size::{GRAIN, round_up};
use super::space::Found;

/// Extents looked at for one that begins at the right place.
const LOOK: usize = 64;

impl Heap {
    /// The tightest extent free for `stream` that holds `len` bytes aligned to `align`.
    #[inline(always)]
    pub fn fit(&self, len: u64, align: u64, stream: u32) -> Option<NodeId> {
        let found = self.fit_len(len, stream)?;
        // every extent begins at a grain
        match align <= GRAIN {
            true => Some(found),
            false => self.fit_near(found, len, align, stream),
        }
    }

    /// The same where this is the tightest one that is long enough.
    fn fit_near(&self, found: NodeId, len: u64, align: u64, stream: u32) -> Option<NodeId> {
        let node = &self.space.nodes[found];
        if round_up(node.start, align) + len <= node.end() {
            return Some(found);
        }
        // no extent may be as long as that, and yet one begin at the right place
        self.fit_len(len + align - GRAIN, stream)
            .or_else(|| self.fit_aligned(len, align, stream))
    }

    /// One that holds them because of where it begins, of those that are not as long as to hold them wherever they begin. The longest come
    /// first: each is the likelier to. Not all are looked at: where everything is full there may be one for each block.
    fn fit_aligned(&self, len: u64, align: u64, stream: u32) -> Option<NodeId> {
        let nodes = &self.space.nodes;
        let fits = |&id: &NodeId| round_up(nodes[id].start, align) + len <= nodes[id].end();
        let find = |arena: u32| {
            self.arena(arena)
                .bins
                .descending(nodes, len)
                .take(LOOK)
                .find(fits)
        };
        let common = || find(COMMON).filter(|_| !self.replay.is_on());
        find(stream).or_else(common)
    }

    #[inline(always)]
    fn fit_len(&self, len: u64, stream: u32) -> Option<NodeId> {
        let nodes = &self.space.nodes;
        let own = if stream == COMMON {
            NIL
        } else {
            self.arena(stream).bins.best(nodes, len)
        };
        let common = match self.replay.is_on() {
            true => NIL, // a guest's request: what is everybody's may be the round's
            false => self.arena(COMMON).bins.best(nodes, len),
        };
        match (own, common) {
            (NIL, NIL) => None,
            (own, NIL) => Some(own),
            (NIL, common) => Some(common),
            (own, _) if self.sharing.is_apart() || self.is_guest(stream) => Some(own),
            (own, common) => Some(if nodes[common].len < nodes[own].len {
                common
            } else {
                own
            }),
        }
    }

    /// Cuts these very bytes out of an extent, if all of them are in one that is free for `stream`.
    pub fn cut_at(&mut self, at: u64, len: u64, stream: u32) -> Option<NodeId> {
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
            return None;
        };
        let free = self.usable(id, stream) && at + len <= self.space.nodes[id].end();
        free.then(|| self.cut_free(id, at, at + len))
    }

    /// Cuts `len` bytes aligned to `align` out of a free extent that holds them.
    pub fn take(&mut self, id: NodeId, len: u64, align: u64) -> NodeId {
        let from = round_up(self.space.nodes[id].start, align);
        self.cut_free(id, from, from + len)
    }

    /// Makes a node on no list free for `owner`, under a fresh number, and joins it with its neighbours. Those
    /// that everybody may use become the owner's; the other way round they stay apart. (`coverage`: not always at once.)
    #[inline(always)]
    pub fn put_free(&mut self, id: NodeId, owner: u32) {
        let len = self.space.nodes[id].len;
        let seq = if owner == COMMON {
            0
        } else {
            self.arena_mut(owner).tick(len)
        };
        self.put_free_numbered(id, owner, seq);
    }

    /// The same for a block that was freed on a stream some time ago, under the number `seq`.
    #[inline(always)]
    pub(super) fn put_free_since(&mut self, id: NodeId, owner: u32, seq: u64) {
        let nodes = &self.space.nodes;
        let arena = self.arenas[owner as usize].as_mut().expect("a stream in use");
        // a stream's free extents are in the order of their numbers
        let seq = match arena.newest {
            NIL => seq,
            newest => seq.max(nodes[newest].seq),
        };
        if arena.seq < seq {
            arena.advance();
        }
        // until an allocation of the stream asks, it may have neighbours that it could be joined with
        arena.joined = arena.joined.min(seq.saturating_sub(1));
        self.put_free_numbered(id, owner, seq);
    }

    fn put_free_numbered(&mut self, mut id: NodeId, owner: u32, seq: u64) {
        let like = self.divide(owner, seq);
        let &Node {
            start,
            len,
            prev,
            next,
            ..
        } = &self.space.nodes[id];
        self.stats.free += len;
        self.shape.add(start, start + len);
        let above = self.joins_above(id, owner, like);
        let below = self.joins_below(id, owner, like);
        // an extent that is the owner's takes in what lies beside it, and stays on its lists
        let grows = if below && self.space.nodes[prev].owner == owner && !self.joins_below(prev, owner, like)
        {
            if above {
                self.take_in_above(id, owner, like);
            }
            let was = self.space.nodes[prev].len;
            self.space.merge(prev);
            Some((prev, was))
        } else if above
            && !below
            && self.space.nodes[next].owner == owner
            && !self.joins_above(next, owner, like)
        {
            let was = self.space.nodes[next].len;
            self.space.merge_up(id);
            Some((next, was))
        } else {
            None
        };
        if let Some((id, was)) = grows {
            return self.has_grown(id, was, seq);
        }
        if above {
            self.take_in_above(id, owner, like);
        }
        while self.joins_below(id, owner, like) {
            let prev = self.space.nodes[id].prev;
            self.unlist(prev);
            self.space.merge(prev);
            id = prev;
        }
        let node = &mut self.space.nodes[id];
        (node.kind, node.owner, node.seq) = (Kind::Free, owner, seq);
        self.list(id);
    }

    /// Joins a node with the extents above it. Behind one that was everybody's may lie another one of the owner's.
    #[inline(never)]
    fn take_in_above(&mut self, id: NodeId, owner: u32, like: Option<(u64, bool)>) {
        while self.joins_above(id, owner, like) {
            self.unlist(self.space.nodes[id].next);
            self.space.merge(id);
        }
    }

    #[inline(always)]
    fn joins_above(&self, id: NodeId, owner: u32, like: Option<(u64, bool)>) -> bool {
        let node = &self.space.nodes[id];
        self.joins(node.next, owner, like) && !self.are_apart(node.end())
    }

    #[inline(always)]
    fn joins_below(&self, id: NodeId, owner: u32, like: Option<(u64, bool)>) -> bool {
        let node = &self.space.nodes[id];
        self.joins(node.prev, owner, like) && !self.are_apart(node.start)
    }

    /// May an extent of the owner's be joined with this neighbour? `like`: which of its numbers an event covers, and
    /// whether it is on the far side of that.
    #[inline(always)]
    pub(super) fn joins(&self, id: NodeId, owner: u32, like: Option<(u64, bool)>) -> bool {
        id != NIL && {
            let node = &self.space.nodes[id];
            // a capture would keep what it took in, and a replayed round may use it
            let may = || like.is_none() && self.capture_of(owner).is_none() && !self.replay.is_on();
            let takes_in = |other| other == COMMON && may();
            let is_like = || like.is_none_or(|(covered, beyond)| (node.seq > covered) == beyond);
            node.kind == Kind::Free && (node.owner == owner && is_like() || takes_in(node.owner))
        }
    }

    /// Takes a free extent off its lists.
    pub fn pull_free(&mut self, id: NodeId) {
        let &Node { start, len, .. } = &self.space.nodes[id];
        self.stats.free -= len;
        self.shape.remove(start, start + len);
        self.unlist(id);
    }

    /// Cuts the bytes `[from, to)` out of a free extent, as a node of its own on no list. What is left keeps
    /// its owner, number and place among the owner's extents.
    pub fn cut_free(&mut self, id: NodeId, from: u64, to: u64) -> NodeId {
        let node = &self.space.nodes[id];
        let (start, end) = (node.start, node.end());
        debug_assert!(start <= from && to <= end);
        self.stats.free -= to - from;
        self.shape.remove(from, to);
        if from == start && to < end {
            let piece = self.space.split_front(id, to);
            self.has_shrunk(id, end - start);
            return piece;
        }
        if from == start {
            self.unlist(id);
            return id;
        }
        let piece = self.space.split(id, from);
        let upper = (to < end).then(|| self.space.split(piece, to));
        // the one that comes last is the first of its bin
        if let Some(upper) = upper {
            self.list_after(upper, id);
        }
        self.has_shrunk(id, end - start);
        piece
    }

    /// A free extent has become shorter. Its place among the owner's is the same.
    #[inline(always)]
    fn has_shrunk(&mut self, id: NodeId, was: u64) {
        let (nodes, arenas, all) = (&mut self.space.nodes, &mut self.arenas, &mut self.uncovered);
        let &Node { owner, len, seq, .. } = &nodes[id];
        let arena = owned(arenas, owner);
        arena.count(all, was, seq, false);
        arena.count(all, len, seq, true);
        arena.bins.resized(nodes, id, was);
    }

    /// A free extent has become longer, by what was freed under the number `seq`.
    #[inline(always)]
    fn has_grown(&mut self, id: NodeId, was: u64, seq: u64) {
        let (nodes, arenas, all) = (&mut self.space.nodes, &mut self.arenas, &mut self.uncovered);
        let &Node {
            owner,
            len,
            seq: before,
            ..
        } = &nodes[id];
        let arena = owned(arenas, owner);
        arena.count(all, was, before, false);
        arena.count(all, len, seq, true);
        nodes[id].seq = seq;
        if owner != COMMON && arena.newest != id {
            arena.age_remove(nodes, id);
            arena.age_insert(nodes, id, arena.newest);
        }
        arena.bins.resized(nodes, id, was);
    }

    /// Puts a free extent on its owner's lists, as the newest.
    #[inline(always)]
    fn list(&mut self, id: NodeId) {
        let newest = self.arena(self.space.nodes[id].owner).newest;
        self.list_after(id, newest);
    }

    /// The same, behind another one.
    #[inline(always)]
    fn list_after(&mut self, id: NodeId, before: NodeId) {
        let (nodes, arenas, all) = (&mut self.space.nodes, &mut self.arenas, &mut self.uncovered);
        let &Node { owner, len, seq, .. } = &nodes[id];
        let arena = owned(arenas, owner);
        arena.count(all, len, seq, true);
        if owner != COMMON {
            arena.age_insert(nodes, id, before);
        }
        arena.bins.insert(nodes, id);
    }

    #[inline(always)]
    fn unlist(&mut self, id: NodeId) {
        let (nodes, arenas, all) = (&mut self.space.nodes, &mut self.arenas, &mut self.uncovered);
        let &Node { owner, len, seq, .. } = &nodes[id];
        let arena = owned(arenas, owner);
        arena.count(all, len, seq, false);
        if owner != COMMON {
            arena.age_remove(nodes, id);
        }
        arena.bins.remove(nodes, id);
    }

    /// Puts free extents of the same bin into the order of their addresses.
    pub fn sort_bins(&mut self) {
        for arena in self.arenas.iter_mut().flatten() {
            let mut free: Vec<NodeId> = arena.bins.descending(&self.space.nodes, 0).collect();
            free.sort_unstable_by_key(|&id| std::cmp::Reverse(self.space.nodes[id].start));
            for &id in &free {
                arena.bins.remove(&mut self.space.nodes, id);
            }
            for &id in &free {
                arena.bins.insert(&mut self.space.nodes, id);
            }
        }
    }

    /// The longest free extent of any arena.
    pub fn largest_free(&self) -> u64 {
        let nodes = &self.space.nodes;
        self.arenas
            .iter()
            .flatten()
            .map(|arena| arena.bins.largest(nodes))
            .max()
            .unwrap_or(0)
    }
}

fn owned(arenas: &mut [Option<Box<Arena>>], owner: u32) -> &mut Arena {
    arenas[owner as usize].as_mut().expect("a stream in use")
}

impl Arena {
    /// Puts an extent behind another one in the order of numbers, or first.
    fn age_insert(&mut self, nodes: &mut Nodes, id: NodeId, before: NodeId) {
        let next = match before {
            NIL => std::mem::replace(&mut self.oldest, id),
            before => std::mem::replace(&mut nodes[before].age_next, id),
        };
        match next {
            NIL => self.newest = id,
            next => nodes[next].age_prev = id,
        }
        let node = &mut nodes[id];
        (node.age_prev, node.age_next) = (before, next);
    }

    fn age_remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        let &Node {
            age_prev: prev,
            age_next: next,
            ..
        } = &nodes[id];
        match prev {
            NIL => self.oldest = next,
            prev => nodes[prev].age_next = next,
        }
        match next {
            NIL => self.newest = prev,
            next => nodes[next].age_prev = prev,
        }
    }
}
