//! The books of one pool: what there is of it, and the way of a block through it, from a request to its free.
//!
//! Invariant (`check::validate` has it, and those of the others): reserved = used + cached + free + pending + idle.
//!
//! Lock: the pool's `Heap` lock covers all of this module and those it uses. What concerns pages, mappings
//! and unbacked nodes changes only under the pool's `Grow` lock as well.

use super::ahead::Ahead;
use super::capture::WATCHED;
use super::coverage::{NOBODY, Part};
use super::directory::{Directory, State};
use super::flush::Caches;
use super::leeway::Leeway;
use super::limbo::{Limbo, Users};
use super::node::{Kind, Node, NodeId};
use super::note::Extent;
use super::order::{Arena, COMMON, Clock, Reuse};
use super::page::Pages;
use super::partition::Partition;
use super::replay::Replay;
use super::rest::Rest;
use super::shape::Shape;
use super::sharing::Sharing;
use super::size::{GRAIN, WINDOW, class_of, round_up};
use super::slab::Slabs;
use super::sole::Soles;
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
    /// How streams come by what others have freed.
    pub sharing: Sharing,
    /// Whether threads share nothing.
    pub(super) partition: Partition,
    /// Rounds that are known by heart.
    pub replay: Replay,
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
    /// Threads that are alone.
    pub(super) soles: Soles,
    /// Arenas by index; `COMMON` first.
    pub arenas: Vec<Option<Box<Arena>>>,
    /// Indices of streams that were forgotten, and how far each had counted: whoever has it next counts on from there.
    pub(super) vacant: Vec<(u32, u64)>,
    /// Arenas by timeline.
    pub ids: FxHashMap<Timeline, u32>,
    /// The arena asked for last: most calls name the same stream as the one before.
    pub(super) latest: u32,
    /// How many there are, but for the common one.
    pub(super) known: u32,
    /// How many of these are parts of captures.
    pub(super) captured: u32,
    /// How many there have been that are none.
    pub(super) came: u64,
    /// How many had when all were last looked at because so many came.
    pub(super) seen: u64,
    /// The one for which an allocation is under way.
    pub(super) serving: u32,
    /// Requests that wait for what was freed.
    pub(super) frozen: u32,
    /// One more, as long as the pool holds far more than it needs.
    pub(super) parted: bool,
    /// Bytes of free extents that no event covers, of all streams on which one can be recorded only in calls that name them.
    pub(super) uncovered: u64,
    /// How much of the pool that may be.
    pub(super) part: Part,
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
    /// Bytes held back since events were recorded for that.
    pub(super) held: u64,
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
    /// The most that the pool may hold; all there is without a limit.
    pub limit: u64,
    /// There has been a miss while more than half of that was held: where pages stay apart it is near its limit, too.
    pub(super) cramped: bool,
    /// Number of the allocation from which on extents may be spared again (`apart`).
    pub(super) look_from: u64,
    /// No extent, and so no block, crosses from one page to another (`apart`).
    pub apart: bool,
    /// Pages come with their addresses; they are apart then.
    pub placed: bool,
    /// Which bytes are free.
    pub(super) shape: Shape,
}

/// A block as a pointer names it.
#[derive(Clone, Copy, Debug)]
pub enum Block {
    /// A node of its own.
    Large(NodeId),
    /// Block `1` of slab `0`.
    Small(u32, u16),
}

/// A block whose free is decided: for every thread it is live no more.
#[derive(Debug)]
#[must_use]
pub struct Ended {
    block: Block,
    /// The arena whose cache handed it out, if one did.
    from_cache: Option<u32>,
}

impl Heap {
    /// The books of an empty pool whose slots have `slot` bytes.
    pub fn new(slot: u64, reuse: Reuse, release_threshold: u64, directory: Arc<Directory>) -> Heap {
        Heap {
            directory,
            caches: Caches::default(),
            soles: Soles::default(),
            space: Space::new(slot),
            pages: Pages::default(),
            windows: Windows::default(),
            rest: Rest::default(),
            needed: 0,
            leeway: Leeway::default(),
            sharing: Sharing::default(),
            partition: Partition::default(),
            replay: Replay::default(),
            ahead: Ahead::default(),
            spare: Spare::default(),
            slabs: Slabs::default(),
            arenas: vec![Some(Box::new(Arena::new(Timeline::of(StreamId(u64::MAX)))))],
            vacant: Vec::new(),
            ids: FxHashMap::default(),
            latest: COMMON,
            known: 0,
            captured: 0,
            came: 0,
            seen: 0,
            serving: NOBODY,
            frozen: 0,
            parted: false,
            uncovered: 0,
            part: Part::default(),
            released: VecDeque::new(),
            watched: VecDeque::with_capacity(WATCHED),
            spare_arena: None,
            also_used: FxHashMap::default(),
            limbo: VecDeque::new(),
            held: 0,
            offers: 0,
            lent: 0,
            set_back: FxHashSet::default(),
            user_events: FxHashMap::default(),
            stats: Stats::default(),
            reuse,
            release_threshold,
            limit: u64::MAX,
            cramped: false,
            look_from: 0,
            apart: false,
            placed: false,
            shape: Shape::default(),
        }
    }

    /// Allocates from what is free for `stream`.
    pub fn alloc(&mut self, bytes: u64, align: u64, stream: u32) -> Option<u64> {
        let before = self.stats.used;
        let at = match class_of(bytes, align) {
            Some(class) => self.alloc_small(class, stream)?,
            None => self.alloc_large(bytes, align, stream)?,
        };
        self.count_alloc(at, before, stream);
        Some(at)
    }

    /// The same if this very place is free for `stream`.
    pub fn alloc_at(&mut self, at: u64, block: Extent, stream: u32) -> Option<u64> {
        let before = self.stats.used;
        match block.slab {
            Some(base) => self.alloc_small_at(at, base, block.bytes, stream)?,
            None => {
                let id = self.wake_at(at, block.bytes, stream)?;
                self.begin_large(id)
            }
        };
        self.count_alloc(at, before, stream);
        Some(at)
    }

    /// A block at an address was handed out, when so much was in use.
    #[inline(always)]
    fn count_alloc(&mut self, at: u64, before: u64, stream: u32) {
        self.stats.allocations += 1;
        self.took(stream, self.stats.used - before);
        self.expect_stream();
        self.born(at, stream);
    }

    /// The length and alignment of the extent that a request needs when nothing is free for it.
    pub fn need(bytes: u64, align: u64) -> (u64, u64) {
        match class_of(bytes, align) {
            Some(class) => (super::size::run_bytes(class), WINDOW),
            None => (round_up(bytes.max(WINDOW / 2 + GRAIN), GRAIN), align.max(GRAIN)),
        }
    }

    #[inline(always)]
    fn alloc_large(&mut self, bytes: u64, align: u64, stream: u32) -> Option<u64> {
        let (len, align) = Heap::need(bytes, align);
        let id = self.fit(len, align, stream)?;
        let id = self.take(id, len, align);
        Some(self.begin_large(id))
    }

    /// A node on no list is a live block. Gives its address.
    #[inline(always)]
    fn begin_large(&mut self, id: NodeId) -> u64 {
        self.space.nodes[id].kind = Kind::Live;
        let &Node {
            start,
            len,
            owner,
            seq,
            ..
        } = &self.space.nodes[id];
        self.set_used(self.stats.used + len);
        let owed = !self.is_complete(owner, seq);
        self.directory.begin(start, len, owed);
        start
    }

    /// Frees a block that `find_block` gave. Returns its bytes. The memory is `stream`'s at once. An error if another
    /// thread has freed it meanwhile.
    pub fn free(&mut self, block: Block, stream: u32, complete: bool) -> Result<u64, Error> {
        let ended = self.end(block)?;
        Ok(self.free_ended(ended, stream, complete))
    }

    /// Decides that a block is freed, for `free_ended`. An error if another thread has freed it; then nothing has changed.
    #[inline(always)]
    pub fn end(&mut self, block: Block) -> Result<Ended, Error> {
        let start = self.block_start(block);
        self.see_change(start);
        match self.directory.end(start) {
            Ok(from_cache) => Ok(Ended { block, from_cache }),
            Err(_) => Err(Error::DoubleFree(Addr(start))),
        }
    }

    /// The rest of a free, which cannot fail. Returns the block's bytes.
    pub fn free_ended(&mut self, ended: Ended, stream: u32, complete: bool) -> u64 {
        let Ended { block, from_cache } = ended;
        self.note_need();
        self.stats.frees += 1;
        if let Some(arena) = from_cache
            && arena != stream
            && !complete
        {
            self.see_free_elsewhere(arena);
        }
        let bytes = self.block_bytes(block);
        self.set_used(self.stats.used - bytes);
        self.got_back(stream, bytes);
        self.expect_rest();
        if let Block::Small(slab, _) = block
            && complete
        {
            // a cache may have kept it before, at the number to come
            let owner = self.slabs.get(slab).owner;
            let arena = self.arena_mut(owner);
            arena.advance();
            let seq = arena.seq;
            self.note_small(slab, seq);
        }
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
            return bytes;
        }
        match block {
            Block::Large(id) if complete || stream == COMMON => {
                self.put_free(id, self.owner_before(id, from_cache))
            }
            Block::Large(id) => self.put_free(id, stream),
            Block::Small(slab, index) => self.free_small(slab, index, stream, complete),
        }
        bytes
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
    pub fn find_block(&self, at: u64) -> Result<Block, Error> {
        let block = self.find_block_to_free(at)?;
        match self.directory.state(at) {
            State::Kept => Err(Error::DoubleFree(Addr(at))),
            _ => Ok(block),
        }
    }

    /// The same for `free`, which finds out whether a cache keeps it.
    #[inline(always)]
    pub fn find_block_to_free(&self, at: u64) -> Result<Block, Error> {
        let (id, exact) = match self.space.find(at) {
            Found::Outside => return Err(Error::UnknownPointer(Addr(at))),
            Found::Start(id) => (id, true),
            Found::Inside(id) => (id, false),
        };
        let node = &self.space.nodes[id];
        match node.kind {
            Kind::Live if exact || self.is_set_back(at, node.start) => Ok(Block::Large(id)),
            Kind::Live => Err(Error::InteriorPointer {
                at: Addr(at),
                block: Addr(node.start),
                bytes: node.len,
            }),
            Kind::Slab => self.slabs.find(node.slab, at),
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
    #[inline]
    pub fn block_bytes(&self, block: Block) -> u64 {
        match block {
            Block::Large(id) => self.space.nodes[id].len,
            Block::Small(slab, _) => self.slabs.block_bytes(slab),
        }
    }

    /// A block's address.
    #[inline]
    pub fn block_start(&self, block: Block) -> u64 {
        match block {
            Block::Large(id) => self.space.nodes[id].start,
            Block::Small(slab, index) => self.slabs.block_start(slab, index),
        }
    }
}
