//! The books of one pool: which extents are free, for whom, and how blocks are cut from them and joined
//! again. Best fit with immediate coalescing (Knuth, TAOCP 2.5).
//!
//! Invariants (`check::validate` has them as equations):
//! - free extents are backed by active mappings throughout and no two joinable ones are neighbours;
//! - reserved = used + cached + free + pending + idle.
//!
//! Lock: the pool's `Heap` lock covers all of this module and those it uses. What concerns pages, mappings
//! and unbacked nodes changes only under the pool's `Grow` lock as well.

use super::ahead::Ahead;
use super::capture::WATCHED;
use super::coverage::NOBODY;
use super::directory::{Directory, State};
use super::flush::Caches;
use super::leeway::Leeway;
use super::limbo::{Limbo, Users};
use super::node::{Kind, NIL, NodeId};
use super::order::{Arena, COMMON, Clock, Reuse};
use super::page::Pages;
use super::rest::Rest;
use super::size::{GRAIN, WINDOW, class_of, round_up};
use super::slab::Slabs;
use super::space::{Found, Space};
use super::spare::Spare;
use super::windows::Windows;
use crate::base::error::Error;
use crate::base::units::{Addr, CaptureId, EventHandle, StreamId, Timeline};
use crate::observe::stats::Stats;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// The books of one pool.
#[derive(Debug)]
pub struct Heap {
    /// Address ranges.
    pub space: Space,
    /// Physical memory.
    pub pages: Pages,
    /// Windows that requests were given.
    pub windows: Windows,
    /// When pages go back to where they were first.
    pub rest: Rest,
    /// The most in use since the pool was made, trimmed or squeezed. A reset of the peaks does not lower it.
    pub needed: u64,
    /// How much it may hold so that pages need not move.
    pub leeway: Leeway,
    /// When memory is to be made ahead of use.
    pub ahead: Ahead,
    /// What was needed while the device is short.
    pub(super) spare: Spare,
    /// Slabs of small blocks.
    pub slabs: Slabs,
    /// What all threads know of the blocks.
    pub directory: Arc<Directory>,
    /// Caches of threads.
    pub(super) caches: Caches,
    /// Arenas by index; `COMMON` first. An index is never used again.
    pub arenas: Vec<Option<Box<Arena>>>,
    /// Arenas by timeline.
    pub ids: FxHashMap<Timeline, u32>,
    /// The arena asked for last: most calls name the same stream as the one before.
    pub(super) latest: u32,
    /// How many there are, but for the common one.
    pub(super) known: u32,
    /// The one for which an allocation is under way.
    pub(super) serving: u32,
    /// Bytes of free extents that no event covers, of all streams on which one can be recorded only in calls that name them.
    pub(super) uncovered: u64,
    /// Captures that were released, the latest last.
    pub released: VecDeque<CaptureId>,
    /// Captures whose graphs the backend was asked to watch, the latest last; as many as are likely to be in progress.
    pub(super) watched: VecDeque<CaptureId>,
    /// An arena for the next stream.
    pub spare_arena: Option<Box<Arena>>,
    /// Blocks that further streams use, by address.
    pub also_used: FxHashMap<u64, Users>,
    /// Freed blocks that further streams may still use.
    pub limbo: VecDeque<Limbo>,
    /// The latest number under which a block was offered to other processes.
    pub(super) offers: u64,
    /// Blocks lent, each as often as it is.
    pub(super) lent: u64,
    /// Nodes of borrowed blocks that begin in the middle of the node's first grain.
    pub(super) set_back: FxHashSet<u64>,
    /// Moments that users' events stand for.
    pub user_events: FxHashMap<EventHandle, Clock>,
    /// Counters.
    pub stats: Stats,
    /// Reuse policies.
    pub reuse: Reuse,
    /// Free memory above this is given back.
    pub release_threshold: u64,
    /// A pool that needed more than this is near its limit: memory matters more than time, so threads keep nothing, and
    /// each free that is worth one has its event.
    pub crowded: u64,
    /// No extent, and so no block, crosses from one page to another (`apart`).
    pub apart: bool,
    /// Pages come with their addresses; they are apart then.
    pub placed: bool,
}

/// A block as a pointer names it.
#[derive(Clone, Copy, Debug)]
pub enum Block {
    /// A node of its own.
    Large(NodeId),
    /// Block `1` of slab `0`.
    Small(u32, u16),
}

impl Heap {
    /// The books of an empty pool whose slots have `slot` bytes.
    pub fn new(slot: u64, reuse: Reuse, release_threshold: u64, directory: Arc<Directory>) -> Heap {
        Heap {
            directory,
            caches: Caches::default(),
            space: Space::new(slot),
            pages: Pages::default(),
            windows: Windows::default(),
            rest: Rest::default(),
            needed: 0,
            leeway: Leeway::default(),
            ahead: Ahead::default(),
            spare: Spare::default(),
            slabs: Slabs::default(),
            arenas: vec![Some(Box::new(Arena::new(Timeline::of(StreamId(u64::MAX)))))],
            ids: FxHashMap::default(),
            latest: COMMON,
            known: 0,
            serving: NOBODY,
            uncovered: 0,
            released: VecDeque::new(),
            watched: VecDeque::with_capacity(WATCHED),
            spare_arena: None,
            also_used: FxHashMap::default(),
            limbo: VecDeque::new(),
            offers: 0,
            lent: 0,
            set_back: FxHashSet::default(),
            user_events: FxHashMap::default(),
            stats: Stats::default(),
            reuse,
            release_threshold,
            crowded: u64::MAX,
            apart: false,
            placed: false,
        }
    }

    /// Allocates from what is free for `stream`.
    pub fn alloc(&mut self, bytes: u64, align: u64, stream: u32) -> Option<u64> {
        let at = match class_of(bytes, align) {
            Some(class) => self.alloc_small(class, stream)?,
            None => self.alloc_large(bytes, align, stream)?,
        };
        self.stats.allocations += 1;
        self.expect_stream();
        self.born(at, stream);
        Some(at)
    }

    /// The length and alignment of the extent that a request needs when nothing is free for it.
    pub fn need(bytes: u64, align: u64) -> (u64, u64) {
        match class_of(bytes, align) {
            Some(class) => (super::size::run_bytes(class), WINDOW),
            None => (round_up(bytes.max(WINDOW / 2 + GRAIN), GRAIN), align.max(GRAIN)),
        }
    }

    fn alloc_large(&mut self, bytes: u64, align: u64, stream: u32) -> Option<u64> {
        let (len, align) = Heap::need(bytes, align);
        let id = self.fit(len, align, stream)?;
        let id = self.take(id, len, align);
        self.space.nodes[id].kind = Kind::Live;
        self.set_used(self.stats.used + len);
        let start = self.space.nodes[id].start;
        self.directory.begin(start, len);
        Some(start)
    }

    /// The tightest extent free for `stream` that holds `len` bytes aligned to `align`.
    pub fn fit(&self, len: u64, align: u64, stream: u32) -> Option<NodeId> {
        let found = self.fit_len(len, stream)?;
        let start = self.space.nodes[found].start;
        if round_up(start, align) + len <= self.space.nodes[found].end() {
            return Some(found);
        }
        // no extent may be as long as that, and yet one begin at the right place
        self.fit_len(len + align - GRAIN, stream)
            .or_else(|| self.fit_aligned(len, align, stream))
    }

    /// Any extent free for `stream` that holds `len` bytes aligned to `align`.
    fn fit_aligned(&self, len: u64, align: u64, stream: u32) -> Option<NodeId> {
        let nodes = &self.space.nodes;
        let fits = |&id: &NodeId| round_up(nodes[id].start, align) + len <= nodes[id].end();
        let find = |arena: u32| self.arena(arena).bins.ascending(nodes, len).find(fits);
        find(stream).or_else(|| find(COMMON))
    }

    fn fit_len(&self, len: u64, stream: u32) -> Option<NodeId> {
        let nodes = &self.space.nodes;
        let own = if stream == COMMON {
            NIL
        } else {
            self.arena(stream).bins.best(nodes, len)
        };
        let common = self.arena(COMMON).bins.best(nodes, len);
        match (own, common) {
            (NIL, NIL) => None,
            (own, NIL) => Some(own),
            (NIL, common) => Some(common),
            (own, common) => Some(if nodes[common].len < nodes[own].len {
                common
            } else {
                own
            }),
        }
    }

    /// Cuts `len` bytes aligned to `align` out of a free extent that holds them.
    pub fn take(&mut self, id: NodeId, len: u64, align: u64) -> NodeId {
        let from = round_up(self.space.nodes[id].start, align);
        self.cut_free(id, from, from + len)
    }

    /// Frees a block that `find_block` gave. Returns its bytes. The memory is `stream`'s at once. An error if another
    /// thread has freed it meanwhile.
    pub fn free(&mut self, block: Block, stream: u32, complete: bool) -> Result<u64, Error> {
        let start = self.block_start(block);
        let from_cache = self
            .directory
            .end(start)
            .map_err(|_| Error::DoubleFree(Addr(start)))?;
        self.note_need();
        self.stats.frees += 1;
        let bytes = self.block_bytes(block);
        self.set_used(self.stats.used - bytes);
        if let Some(users) = self.users_at_free(block, stream, complete) {
            let before = match block {
                Block::Large(id) if complete => Some(self.owner_before(id, from_cache)),
                _ => None,
            };
            let stream = if complete {
                before.filter(|&owner| owner != COMMON)
            } else {
                Some(stream)
            };
            self.hold_back(block, bytes, stream, users);
            return Ok(bytes);
        }
        match block {
            Block::Large(id) if complete || stream == COMMON => {
                self.put_free(id, self.owner_before(id, from_cache))
            }
            Block::Large(id) => self.put_free(id, stream),
            Block::Small(slab, index) => self.free_small(slab, index, stream, complete),
        }
        Ok(bytes)
    }

    /// Whose a block's memory is once the block's own use is over: it may have been cut from an extent whose
    /// stream still has work of an earlier block queued, or have come from the cache for such a stream.
    fn owner_before(&self, id: NodeId, from_cache: Option<u32>) -> u32 {
        if let Some(arena) = from_cache.filter(|&arena| self.arenas[arena as usize].is_some()) {
            return arena;
        }
        let node = &self.space.nodes[id];
        if self.is_complete(node.owner, node.seq) {
            COMMON
        } else {
            node.owner
        }
    }

    /// The live block that starts at an address, or what is wrong with the address.
    #[inline(always)]
    pub fn find_block(&self, at: u64) -> Result<Block, Error> {
        let (id, exact) = match self.space.find(at) {
            Found::Outside => return Err(Error::UnknownPointer(Addr(at))),
            Found::Start(id) => (id, true),
            Found::Inside(id) => (id, false),
        };
        let node = &self.space.nodes[id];
        match node.kind {
            Kind::Live if exact && self.directory.state(at) == State::Kept => {
                Err(Error::DoubleFree(Addr(at)))
            }
            Kind::Live if exact || self.is_set_back(at, node.start) => Ok(Block::Large(id)),
            Kind::Live => Err(Error::InteriorPointer {
                at: Addr(at),
                block: Addr(node.start),
                bytes: node.len,
            }),
            Kind::Slab => {
                let block = self.slabs.find(node.slab, at)?;
                match self.directory.state(at) {
                    State::Kept => Err(Error::DoubleFree(Addr(at))),
                    _ => Ok(block),
                }
            }
            _ => Err(Error::DoubleFree(Addr(at))),
        }
    }

    /// Finds every block of a batch, or says what is wrong with the first that is not a live block, or comes
    /// twice. Allocates nothing.
    pub fn check_batch(&mut self, blocks: impl Iterator<Item = u64> + Clone) -> Result<(), Error> {
        let mut marked = 0;
        let mut result = Ok(());
        for at in blocks.clone() {
            // a block that is marked is no longer found
            match self.find_block(at) {
                Ok(block) => self.mark(block, true),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            marked += 1;
        }
        for at in blocks.take(marked) {
            match self.space.find(at) {
                Found::Start(id) | Found::Inside(id) if self.space.nodes[id].kind == Kind::Limbo => {
                    self.mark(Block::Large(id), false)
                }
                Found::Start(id) | Found::Inside(id) => {
                    let slab = self.space.nodes[id].slab;
                    self.mark(Block::Small(slab, self.slabs.index_of(slab, at)), false);
                }
                Found::Outside => unreachable!("found before"),
            }
        }
        result
    }

    fn mark(&mut self, block: Block, marked: bool) {
        match block {
            Block::Large(id) => self.space.nodes[id].kind = if marked { Kind::Limbo } else { Kind::Live },
            Block::Small(slab, index) if marked => self.slabs.set_limbo(slab, index),
            Block::Small(slab, index) => self.slabs.clear_limbo(slab, index),
        }
    }

    /// Bytes of a block, as rounded up.
    pub fn block_bytes(&self, block: Block) -> u64 {
        match block {
            Block::Large(id) => self.space.nodes[id].len,
            Block::Small(slab, _) => self.slabs.block_bytes(slab),
        }
    }

    /// A block's address.
    pub fn block_start(&self, block: Block) -> u64 {
        match block {
            Block::Large(id) => self.space.nodes[id].start,
            Block::Small(slab, index) => self.slabs.block_start(slab, index),
        }
    }

    /// Makes a node on no list free for `owner`, under a fresh number, and joins it with its neighbours. Those
    /// that everybody may use become the owner's; the other way round they stay apart. (`coverage`: not always at once.)
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
    pub(super) fn put_free_since(&mut self, id: NodeId, owner: u32, seq: u64) {
        let newest = self.arena(owner).newest;
        // a stream's free extents are in the order of their numbers
        let seq = if newest == NIL {
            seq
        } else {
            seq.max(self.space.nodes[newest].seq)
        };
        let arena = self.arena_mut(owner);
        if arena.seq < seq {
            arena.advance();
        }
        self.put_free_numbered(id, owner, seq);
    }

    fn put_free_numbered(&mut self, mut id: NodeId, owner: u32, seq: u64) {
        let like = self.divide(owner, seq);
        // behind a neighbour that was everybody's may lie another extent of the owner's
        while self.joins(self.space.nodes[id].next, owner, like)
            && !self.are_apart(self.space.nodes[id].end())
        {
            self.pull_free(self.space.nodes[id].next);
            self.space.merge(id);
        }
        while self.joins(self.space.nodes[id].prev, owner, like)
            && !self.are_apart(self.space.nodes[id].start)
        {
            let prev = self.space.nodes[id].prev;
            self.pull_free(prev);
            self.space.merge(prev);
            id = prev;
        }
        let node = &mut self.space.nodes[id];
        (node.kind, node.owner, node.seq) = (Kind::Free, owner, seq);
        self.stats.free += node.len;
        self.count_extent(id, true);
        self.age_push(id);
        self.bins_insert(id, owner);
    }

    /// May an extent of the owner's be joined with this neighbour? `like`: which of its numbers an event covers, and
    /// whether it is on the far side of that.
    pub(super) fn joins(&self, id: NodeId, owner: u32, like: Option<(u64, bool)>) -> bool {
        id != NIL && {
            let node = &self.space.nodes[id];
            // a capture would keep what it took in
            let takes_in = |other| other == COMMON && like.is_none() && self.capture_of(owner).is_none();
            let is_like = || like.is_none_or(|(covered, beyond)| (node.seq > covered) == beyond);
            node.kind == Kind::Free && (node.owner == owner && is_like() || takes_in(node.owner))
        }
    }

    /// Takes a free extent off its lists.
    pub fn pull_free(&mut self, id: NodeId) {
        self.stats.free -= self.space.nodes[id].len;
        self.count_extent(id, false);
        self.bins_remove(id);
        self.age_remove(id);
    }

    /// Cuts the bytes `[from, to)` out of a free extent, as a node of its own on no list. What is left keeps
    /// its owner, number and place among the owner's extents.
    pub fn cut_free(&mut self, id: NodeId, from: u64, to: u64) -> NodeId {
        debug_assert!(self.space.nodes[id].start <= from && to <= self.space.nodes[id].end());
        let owner = self.space.nodes[id].owner;
        self.stats.free -= to - from;
        self.count_extent(id, false);
        self.bins_remove(id);
        if to < self.space.nodes[id].end() {
            let upper = self.space.split(id, to);
            self.age_insert_after(upper, id);
            self.count_extent(upper, true);
            self.bins_insert(upper, owner);
        }
        if self.space.nodes[id].start < from {
            let middle = self.space.split(id, from);
            self.count_extent(id, true);
            self.bins_insert(id, owner);
            middle
        } else {
            self.age_remove(id);
            id
        }
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

    fn bins_insert(&mut self, id: NodeId, owner: u32) {
        let arena = self.arenas[owner as usize].as_mut().expect("a stream in use");
        arena.bins.insert(&mut self.space.nodes, id);
    }

    fn bins_remove(&mut self, id: NodeId) {
        let owner = self.space.nodes[id].owner;
        let arena = self.arenas[owner as usize].as_mut().expect("a stream in use");
        arena.bins.remove(&mut self.space.nodes, id);
    }

    fn age_push(&mut self, id: NodeId) {
        let owner = self.space.nodes[id].owner;
        if owner != COMMON {
            let last = self.arena(owner).newest;
            self.age_link(last, id, NIL);
        }
    }

    fn age_insert_after(&mut self, id: NodeId, before: NodeId) {
        if self.space.nodes[id].owner != COMMON {
            let next = self.space.nodes[before].age_next;
            self.age_link(before, id, next);
        }
    }

    fn age_link(&mut self, prev: NodeId, id: NodeId, next: NodeId) {
        let nodes = &mut self.space.nodes;
        (nodes[id].age_prev, nodes[id].age_next) = (prev, next);
        let arena = self.arenas[nodes[id].owner as usize]
            .as_mut()
            .expect("a stream in use");
        if prev == NIL {
            arena.oldest = id
        } else {
            nodes[prev].age_next = id
        }
        if next == NIL {
            arena.newest = id
        } else {
            nodes[next].age_prev = id
        }
    }

    fn age_remove(&mut self, id: NodeId) {
        let nodes = &mut self.space.nodes;
        let (owner, prev, next) = (nodes[id].owner, nodes[id].age_prev, nodes[id].age_next);
        if owner == COMMON {
            return;
        }
        let arena = self.arenas[owner as usize].as_mut().expect("a stream in use");
        if prev == NIL {
            arena.oldest = next
        } else {
            nodes[prev].age_next = next
        }
        if next == NIL {
            arena.newest = prev
        } else {
            nodes[next].age_prev = prev
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
