//! What no event covers yet, of streams on which the pool can record one only in a call that names them.
//!
//! Such a stream may never be named again: destroyed, or done with. What it freed after its latest event is then out of
//! other streams' reach until the host waits for all work, and so is every extent that took it in. Hence:
//!
//! - while other streams are known each free that is worth an event has one. A stream that is *alone* in the pool has one
//!   as soon as a 32nd of the pool, or all of it, would be out of others' reach;
//! - what a stream frees while it is alone, or what is freed for it after others came and before it is named again, joins
//!   no extents but those that are not covered either, until an allocation of the stream asks for memory. So what was
//!   covered, or everybody's, stays so as long as it may be of use to others.
//!
//! Invariant: `uncovered` is the sum of a stream's free extents with numbers above `counted_from`.
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::node::{Kind, NIL, Node, NodeId};
use super::order::{Arena, COMMON, EVENT_BYTES, EVENT_FREES};
use super::space::Found;

/// No stream asks for memory.
pub(super) const NOBODY: u32 = u32::MAX;
/// A stream that is alone may have this part of the pool free without an event.
const PART: u64 = 32;

impl Heap {
    /// A call that has just taken the lock asks for no stream's memory, as far as is known.
    #[inline(always)]
    pub fn serve_nobody(&mut self) {
        self.serving = NOBODY;
    }

    /// An allocation on a stream is under way: what the stream freed is joined with its neighbours.
    #[inline(always)]
    pub fn serve(&mut self, stream: u32) {
        self.serving = stream;
        if stream == COMMON {
            return;
        }
        let arena = self.arena(stream);
        let (newest, joined) = (arena.newest, arena.joined);
        if newest != NIL && self.space.nodes[newest].seq > joined && !self.is_enclosed(newest, joined) {
            self.join_late(stream, joined);
        }
        let arena = self.arena_mut(stream);
        (arena.joined, arena.left) = (arena.seq, false);
    }

    /// A free on a stream, or the like, which allocates nothing. While others are known what it frees has its event at once.
    pub fn hear_of(&mut self, stream: u32) {
        if stream != COMMON && !self.is_alone(stream) {
            self.serving = stream;
            self.arena_mut(stream).left = false;
        }
    }

    /// Is it the only late one, and none of its neighbours free?
    #[inline(always)]
    fn is_enclosed(&self, newest: NodeId, joined: u64) -> bool {
        let nodes = &self.space.nodes;
        let &Node {
            prev, next, age_prev, ..
        } = &nodes[newest];
        let is_free = |id: NodeId| id != NIL && nodes[id].kind == Kind::Free;
        (age_prev == NIL || nodes[age_prev].seq <= joined) && !is_free(prev) && !is_free(next)
    }

    fn join_late(&mut self, stream: u32, joined: u64) {
        let newest = self.arena(stream).newest;
        let before = self.space.nodes[newest].age_prev;
        match before == NIL || self.space.nodes[before].seq <= joined {
            true => self.join_now(newest, stream),
            false => self.join_several(newest, stream, joined),
        }
    }

    #[inline(never)]
    fn join_several(&mut self, newest: NodeId, stream: u32, joined: u64) {
        // an extent may be gone when its turn comes, part of another one
        let nodes = &self.space.nodes;
        let known = |id: NodeId| (id != NIL && nodes[id].seq > joined).then_some(id);
        let late = std::iter::successors(known(newest), |&id| known(nodes[id].age_prev));
        let starts: Vec<u64> = late.map(|id| nodes[id].start).collect();
        for start in starts.into_iter().rev() {
            if let Found::Start(id) = self.space.find(start)
                && (self.space.nodes[id].kind, self.space.nodes[id].owner) == (Kind::Free, stream)
            {
                self.join_now(id, stream);
            }
        }
    }

    #[inline(always)]
    fn join_now(&mut self, id: NodeId, stream: u32) {
        let node = &self.space.nodes[id];
        let (seq, prev, next) = (node.seq, node.prev, node.next);
        if self.joins(next, stream, None) || self.joins(prev, stream, None) {
            self.pull_free(id);
            self.put_free_since(id, stream, seq);
        }
    }

    /// A free extent with this number is put among `owner`'s: if it is to be joined with its like only, the number
    /// that divides what is covered from what is not.
    pub(super) fn divide(&self, owner: u32, seq: u64) -> Option<(u64, bool)> {
        if owner == COMMON || owner == self.serving {
            return None;
        }
        let arena = self.arena(owner);
        if arena.reach.is_some() || arena.id.capture.is_some() || !(arena.left || self.is_alone(owner)) {
            return None;
        }
        let covered = arena.recorded();
        Some((covered, seq > covered))
    }

    /// Is this the only stream that the pool knows?
    pub(super) fn is_alone(&self, stream: u32) -> bool {
        self.known == 1 && stream != COMMON
    }

    /// A stream has come to be known. One that was alone until now has freed what only it may use: it should have an event
    /// as soon as it is named.
    pub(super) fn stream_came(&mut self) {
        self.known += 1;
        if self.known == 2 {
            for other in 1..self.arenas.len() as u32 {
                if self.arenas[other as usize].is_some() {
                    self.arena_mut(other).left = true;
                    self.want_event(other);
                }
            }
            self.limit_caches();
        }
    }

    /// A stream was forgotten.
    pub(super) fn stream_went(&mut self) {
        self.known -= 1;
        if self.known == 1 {
            self.limit_caches();
        }
    }

    /// Is it worth recording an event on `stream` in this call? Gives the number to be covered. Never on one that
    /// is being captured: the event would be part of the graph.
    pub fn event_due(&mut self, stream: u32) -> Option<u64> {
        let crowded = self.is_crowded();
        let arena = self.arena(stream);
        // where the pool can record one at any time there will be one when somebody needs it
        if arena.id.capture.is_some()
            || arena.reach.is_some() && !crowded
            || arena.recorded() >= arena.seq
            || !(arena.wanted || self.is_worth_an_event(stream, crowded))
        {
            return None;
        }
        let arena = self.arena_mut(stream);
        arena.advance();
        Some(arena.seq)
    }

    fn is_worth_an_event(&mut self, stream: u32, crowded: bool) -> bool {
        let (frees, bytes) = self.arena(stream).unrecorded();
        if frees >= EVENT_FREES || bytes >= EVENT_BYTES && self.stats.used == 0 {
            return true;
        }
        match self.is_alone(stream) && !crowded {
            true => self.uncovered_bytes(stream) >= self.most_uncovered(),
            false => bytes >= EVENT_BYTES,
        }
    }

    /// What a stream that is alone may have free without an event.
    pub(super) fn most_uncovered(&self) -> u64 {
        EVENT_BYTES.max(self.stats.reserved / PART)
    }

    /// Bytes of the stream's free extents that no event covers.
    pub(super) fn uncovered_bytes(&mut self, stream: u32) -> u64 {
        let nodes = &self.space.nodes;
        let arena = self.arenas[stream as usize].as_mut().expect("a stream in use");
        let from = arena.recorded();
        if arena.counted_from != from {
            arena.counted_from = from;
            let known = |id: NodeId| (id != NIL && nodes[id].seq > from).then_some(id);
            let uncovered = std::iter::successors(known(arena.newest), |&id| known(nodes[id].age_prev));
            arena.uncovered = uncovered.map(|id| nodes[id].len).sum();
        }
        arena.uncovered
    }
}

impl Arena {
    /// A free extent of the stream's has come, or has got its length; or it goes, or is about to lose it.
    pub(super) fn count(&mut self, len: u64, seq: u64, comes: bool) {
        if seq > self.counted_from {
            match comes {
                true => self.uncovered += len,
                false => self.uncovered -= len,
            }
        }
    }
}
