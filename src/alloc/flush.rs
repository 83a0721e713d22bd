//! The heap and the caches of threads: opening and closing them, taking back what they keep, and what of the pool's
//! figures is theirs.
//!
//! For the heap a kept block is live, so `used` of its own books counts it; `used_now` does not.
//!
//! No lock of its own: the heap's. Other threads' caches are visited behind their shut gates.

use super::cache::{Cache, Counts, ThreadId};
use super::depot::Depot;
use super::directory::{ARENAS, Piece};
use super::gate::{Gate, Shut};
use super::heap::{Block, Heap};
use super::kept::Kept;
use super::limits::Limits;
use super::node::NodeId;
use super::order::COMMON;
use super::rounds::Calls;
use super::space::Found;
use super::turns::Turns;
use crate::base::units::StreamHandle;
use crate::observe::stats::Stats;
use std::iter;
use std::sync::Arc;

/// A cache shares what it keeps with one that has so many blocks less: to look into it from outside costs as much as some
/// hundred blocks that are at hand.
const HANDFUL: u64 = 64;
/// Where several threads have caches, what is in use is found out anew when what the heap has as live has changed by this
/// part of the peak, and once in so many allocations of the heap.
const NEAR: u64 = 256;
const SELDOM: u64 = 64;

/// The caches of a pool.
#[derive(Debug, Default)]
pub struct Caches {
    all: Vec<Arc<Cache>>,
    /// What threads hand over, where several have one for a stream: whose, and where.
    depots: Vec<(u32, Arc<Depot>)>,
    /// One for whoever comes next: a free cannot make one.
    spare: Option<Arc<Cache>>,
    /// What the closed ones had done.
    closed: Counts,
    /// Kept blocks that the heap took back.
    flushed: u64,
    /// What they may keep.
    pub(super) limits: Limits,
    /// Which of the threads call.
    pub(super) turns: Turns,
    /// Several threads have one, and do not take turns.
    shared: bool,
    /// The most that the heap had as live since `set_used` last looked into the caches, and what it had then.
    high: u64,
    seen: u64,
}

/// Which caches to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The calling thread's, which is not inside any.
    Thread(ThreadId),
    /// Those of all threads but this one.
    Others(ThreadId),
    /// Those of a stream.
    Stream(u32),
    /// All.
    All,
}

impl PartialEq for Cache {
    fn eq(&self, other: &Cache) -> bool {
        std::ptr::eq(self, other)
    }
}
impl Eq for Cache {}

impl Heap {
    /// A cache for a thread and a stream; None if the stream can have none. A free, which allocates nothing, can only have
    /// one that was made before, and needs none unless another thread that has one would get what it keeps.
    pub fn open_cache(
        &mut self,
        owner: ThreadId,
        name: StreamHandle,
        arena: u32,
        in_free: bool,
    ) -> Option<Arc<Cache>> {
        if arena >= ARENAS || self.capture_of(arena).is_some() {
            return None;
        }
        if !in_free {
            self.prepare_spare();
        } else if self.caches.all.iter().all(|other| other.arena != arena) {
            return None;
        }
        let mut cache = self.caches.spare.take()?;
        if !in_free {
            self.prepare_spare();
            self.prepare_depot(arena);
        }
        let stream = self.arena_mut(arena);
        // before anything is kept with its number
        stream.caches += 1;
        let shared = (stream.clock.clone(), stream.depot.clone());
        let blank = Arc::get_mut(&mut cache).expect("nobody has seen it");
        blank.assign(owner, name, arena, shared);
        if self.keeps_nothing() {
            cache.gate.shut(Shut::Idle);
        }
        self.caches.all.push(cache.clone());
        self.see_sole(&cache);
        self.count_caches();
        Some(cache)
    }

    #[inline(always)]
    fn prepare_spare(&mut self) {
        if self.caches.spare.is_none() {
            self.make_spare();
        }
    }

    #[cold]
    fn make_spare(&mut self) {
        let (directory, tape) = ((*self.directory).clone(), self.replay.tape.clone());
        self.caches.spare = Some(Arc::new(Cache::new(directory, tape)));
        self.caches.all.reserve(1);
    }

    /// Threads that have caches for a stream, of which one may be yet to come, can hand over to each other once that has limits. False:
    /// they could before, or there is none that has one.
    fn prepare_depot(&mut self, arena: u32) -> bool {
        let known = self.caches.depots.iter().any(|depot| depot.0 == arena);
        let wanted = !known && self.caches.all.iter().any(|cache| cache.arena == arena);
        if wanted {
            let depot = self.arena(arena).depot.clone();
            depot.prepare();
            self.caches.depots.push((arena, depot));
        }
        wanted
    }

    /// A cache for a stream goes: one alone has nobody to hand over to.
    fn close_depot(&mut self, arena: u32) {
        let caches = self.caches.all.iter().filter(|cache| cache.arena == arena);
        let depot = self.caches.depots.iter().position(|depot| depot.0 == arena);
        let Some(index) = depot.filter(|_| caches.count() <= 2) else {
            return;
        };
        let depot = self.caches.depots[index].1.clone();
        // first, so that nobody puts anything there behind it
        depot.set_limit(0);
        self.flush_depot(arena, &depot, &mut |_| false);
        self.caches.depots.swap_remove(index);
    }

    /// A thread's cache had nothing for a request, and may get what was handed over, or what another thread keeps that hardly allocates, if that is a good deal
    /// more than it has, and than that one hands over by itself. Of one that does both it may get half of what it has more, if that has
    /// twice as much: what they keep differs by chance, too. Returns whether it got something.
    #[inline]
    pub fn even_out(&mut self, cache: &Arc<Cache>) -> bool {
        let may = self.caches.shared && !self.keeps_nothing();
        may && (cache.collect() || self.even_out_with_another(cache))
    }

    fn even_out_with_another(&mut self, cache: &Arc<Cache>) -> bool {
        self.prepare_spare();
        let others = self.caches.all.iter();
        let others = others.filter(|other| other.arena == cache.arena);
        let Some(other) = others.max_by_key(|other| other.count()).cloned() else {
            return false;
        };
        let more = other.count().saturating_sub(cache.count());
        let gives = match other.hardly_allocates() {
            true => more >= HANDFUL + other.hands_over_at(),
            false => more >= HANDFUL + cache.count(),
        };
        if !gives {
            return false;
        }
        Gate::shut_out(iter::once(&other.gate), Shut::Visit);
        match other.hardly_allocates() {
            true => other.give_all(cache),
            false => other.share(cache),
        }
        other.gate.open(Shut::Visit);
        if self.prepare_depot(cache.arena) {
            self.limit_caches(); // the other one came in a free
        }
        true
    }

    /// Gives back what a cache keeps, for good.
    pub fn close_cache(&mut self, cache: &Arc<Cache>) {
        let Some(index) = self.caches.all.iter().position(|other| other == cache) else {
            return;
        };
        Gate::shut_out(iter::once(&cache.gate), Shut::Ended);
        self.flush_cache(cache, &mut |_| false);
        self.close_depot(cache.arena);
        let closed = &mut self.caches.closed;
        closed.taken = closed.taken.wrapping_add(cache.taken());
        closed.kept = closed.kept.wrapping_add(cache.kept());
        let unnumbered = self.kept_for(cache.arena) != self.arena(cache.arena).kept;
        let stream = self.arena_mut(cache.arena);
        if unnumbered {
            // what it has handed out again was freed at the number to come
            stream.advance();
        }
        stream.caches -= 1;
        stream.kept = stream.kept.wrapping_sub(cache.kept());
        self.caches.all.swap_remove(index);
        self.count_caches();
    }

    /// Closes the caches for a stream of that name.
    pub fn close_caches_of(&mut self, name: StreamHandle) {
        let caches = self.caches.all.iter().filter(|cache| cache.stream == name);
        for cache in caches.cloned().collect::<Vec<_>>() {
            self.close_cache(&cache);
        }
    }

    /// The pool ends: nobody uses a cache any more.
    pub fn end_caches(&mut self) {
        self.keep_out(Shut::Ended);
    }

    /// Shuts all gates, and waits until the owners are outside.
    pub(super) fn keep_out(&self, why: Shut) {
        Gate::shut_out(self.caches.all.iter().map(|cache| &cache.gate), why);
    }

    /// Opens them again.
    pub(super) fn let_in(&self, why: Shut) {
        self.caches.all.iter().for_each(|cache| cache.gate.open(why));
    }

    /// All caches.
    pub(super) fn caches(&self) -> &[Arc<Cache>] {
        &self.caches.all
    }

    /// Have several threads one that do not take turns?
    pub(super) fn has_several_owners(&self) -> bool {
        self.caches.shared
    }

    pub(super) fn count_caches(&mut self) {
        let mut owners = self.caches.all.iter().map(|cache| cache.owner);
        let first = owners.next();
        self.caches.shared = !self.caches.turns.are_taken() && owners.any(|owner| Some(owner) != first);
        self.see_threads();
        self.see_owners();
        self.renew_limits();
    }

    /// The owners of a stream's caches should come to the pool at their next call.
    pub(super) fn call_owners(&self, arena: u32) {
        for cache in self.caches.all.iter().filter(|cache| cache.arena == arena) {
            cache.call(true);
        }
    }

    /// Takes back what caches keep, the longest blocks first, until there is enough. Returns whether anything came.
    pub fn flush(&mut self, whose: Whose, mut enough: impl FnMut(&Heap) -> bool) -> bool {
        let chosen: Vec<Arc<Cache>> = match whose {
            Whose::Thread(owner) => {
                let mut any = false;
                for cache in self.of_interest(|cache| cache.owner == owner) {
                    any |= self.flush_cache(&cache, &mut enough);
                }
                return any;
            }
            Whose::Others(owner) => self.of_interest(|cache| cache.owner != owner),
            Whose::Stream(arena) => self.of_interest(|cache| cache.arena == arena),
            Whose::All => self.of_interest(|_| true),
        };
        let mut any = self.flush_depots(whose, &mut enough);
        if chosen.is_empty() || any && enough(self) {
            return any;
        }
        for cache in &chosen {
            cache.gate.shut(Shut::Visit);
        }
        Gate::announce();
        for cache in &chosen {
            cache.gate.wait();
            any |= self.flush_cache(cache, &mut enough);
        }
        for cache in &chosen {
            cache.gate.open(Shut::Visit);
        }
        any
    }

    /// Takes back the long blocks that a cache's thread keeps, one on each of its streams.
    #[inline(always)]
    pub fn flush_long(&mut self, own: &Arc<Cache>) {
        if own.long_bytes() > 0 || self.caches.all.len() > 1 {
            self.flush_long_of(own);
        }
    }

    #[inline(never)]
    fn flush_long_of(&mut self, own: &Arc<Cache>) {
        let mut next = 0;
        while let Some(cache) = self.caches.all.get(next) {
            next += 1;
            let bytes = cache.long_bytes();
            if bytes == 0 || cache.owner != own.owner {
                continue;
            }
            match cache == own {
                true => self.take_back(own, bytes),
                false => {
                    let cache = cache.clone();
                    self.take_back(&cache, bytes);
                }
            }
        }
    }

    /// Blocks that the caches for a stream have kept since they were opened. One that a batch took and put back is not counted.
    pub(super) fn kept_for(&self, arena: u32) -> u64 {
        let caches = self.caches.all.iter().filter(|cache| cache.arena == arena);
        caches.map(|cache| cache.kept()).fold(0, u64::wrapping_add)
    }

    fn of_interest(&self, wanted: impl Fn(&Cache) -> bool) -> Vec<Arc<Cache>> {
        let caches = self.caches.all.iter();
        let filled = caches.filter(|cache| cache.bytes() > 0 && wanted(cache));
        filled.cloned().collect()
    }

    fn flush_cache(&mut self, cache: &Arc<Cache>, enough: &mut dyn FnMut(&Heap) -> bool) -> bool {
        let mut any = false;
        while let Some(bytes) = cache.longest() {
            if any && enough(self) {
                break;
            }
            any = true;
            self.take_back(cache, bytes);
        }
        any
    }

    /// The same of what threads hand over, the latest first.
    fn flush_depots(&mut self, whose: Whose, enough: &mut dyn FnMut(&Heap) -> bool) -> bool {
        let depots = self.caches.depots.iter();
        let filled = depots.filter(|depot| {
            depot.1.bytes() > 0 && !matches!(whose, Whose::Stream(arena) if arena != depot.0)
        });
        let filled: Vec<(u32, Arc<Depot>)> = filled.cloned().collect();
        let mut any = false;
        for (arena, depot) in filled {
            if any && enough(self) {
                break;
            }
            any |= self.flush_depot(arena, &depot, enough);
        }
        any
    }

    fn flush_depot(&mut self, arena: u32, depot: &Depot, enough: &mut dyn FnMut(&Heap) -> bool) -> bool {
        let mut any = false;
        while !(any && enough(self)) {
            let Some(kept) = depot.pop(|bytes| self.set_used(self.stats.used - bytes)) else {
                break;
            };
            any = true;
            self.take_back_kept(kept, arena);
        }
        any
    }

    /// The cache's longest block, of so many bytes, is the heap's again.
    #[inline]
    fn take_back(&mut self, cache: &Cache, bytes: u64) {
        // while it is still kept, so that the peak is right
        self.set_used(self.stats.used - bytes);
        let kept = cache.withdraw().expect("looked at just now");
        self.take_back_kept(kept, cache.arena);
    }

    #[inline]
    fn take_back_kept(&mut self, kept: Kept, arena: u32) {
        self.got_back(arena, kept.piece.bytes());
        self.directory.end_kept(kept.at, kept.piece);
        self.stats.frees += 1;
        self.caches.flushed += 1;
        self.return_kept(kept, arena);
    }

    #[inline]
    fn return_kept(&mut self, kept: Kept, arena: u32) {
        // whether it is complete by now is chance, on which the layout of a stream that is alone should not depend
        let complete = !self.is_alone(arena) && !self.sharing.is_apart() && self.is_complete(arena, kept.seq);
        match kept.piece {
            Piece::Large { .. } => {
                let id = self.node_of(kept.at);
                match complete {
                    true => self.put_free(id, COMMON),
                    false => self.put_free_since(id, arena, kept.seq),
                }
            }
            Piece::Small { .. } => {
                let (slab, index) = self.small_of(kept.at);
                // no event covers it that does not cover this number
                let stream = self.arena_mut(arena);
                if stream.seq < kept.seq {
                    stream.advance();
                }
                self.note_small(slab, kept.seq);
                self.return_block(slab, index);
            }
        }
    }

    fn node_of(&self, at: u64) -> NodeId {
        match self.space.find(at) {
            Found::Start(id) => id,
            _ => unreachable!("a kept block is the pool's"),
        }
    }

    fn small_of(&self, at: u64) -> (u32, u16) {
        if let Found::Start(run) | Found::Inside(run) = self.space.find(at)
            && let Ok(Block::Small(slab, index)) = self.slabs.find(self.space.nodes[run].slab, at)
        {
            return (slab, index);
        }
        unreachable!("a kept block is the pool's")
    }

    /// Makes room in a cache that is full, for its owner.
    pub fn relieve(&mut self, cache: &Arc<Cache>) {
        /// Blocks that go at a time: their owner waits for it.
        const BLOCKS: usize = 128;
        // or it has a handful, and nobody takes it
        let handful = cache.hands_over_at() > 0 && !cache.has_room();
        if cache.is_full() {
            self.note_full();
        }
        for _ in 0..BLOCKS {
            if !handful && !cache.is_full() {
                return;
            }
            let Some(bytes) = cache.longest() else { return };
            self.take_back(cache, bytes);
        }
    }

    /// In blocks that threads keep.
    pub fn bytes_of_kept(&self) -> u64 {
        let caches: u64 = self.caches.all.iter().map(|cache| cache.bytes()).sum();
        caches + self.bytes_handed_over()
    }

    fn bytes_handed_over(&self) -> u64 {
        self.caches.depots.iter().map(|depot| depot.1.bytes()).sum()
    }

    /// What threads hand over, of which streams.
    pub(super) fn depots(&self) -> &[(u32, Arc<Depot>)] {
        &self.caches.depots
    }

    /// In blocks that the program has.
    pub fn used_now(&self) -> u64 {
        self.stats.used.saturating_sub(self.bytes_of_kept())
    }

    /// Is it worth finding out what is in use, for the heap's next allocation? Where several threads have caches, looking
    /// into them takes their memory from the processors that work on it.
    pub(super) fn may_look(&self) -> bool {
        !self.caches.shared || self.stats.allocations.is_multiple_of(SELDOM)
    }

    /// What the heap has as live changes. Keeps the peak of what the program has: between two changes that was what the
    /// heap had, less the least that caches kept. Where several threads have caches, whose least was at different times, it
    /// is what was in use when somebody looked.
    #[inline]
    pub(super) fn set_used(&mut self, used: u64) {
        let was = std::mem::replace(&mut self.stats.used, used);
        self.caches.high = self.caches.high.max(was);
        if was.max(used) <= self.stats.used_peak.min(self.needed)
            || self.caches.shared && used.abs_diff(self.caches.seen) < self.stats.used_peak / NEAR
        {
            return;
        }
        self.find_peak();
    }

    #[inline(never)]
    fn find_peak(&mut self) {
        let used = self.stats.used;
        let high = std::mem::replace(&mut self.caches.high, used);
        self.caches.seen = used;
        let (mut low, mut now) = (0, self.bytes_handed_over());
        for cache in &self.caches.all {
            low += cache.take_low();
            now += cache.bytes();
        }
        let before = match self.caches.shared {
            true => 0,
            false => high.saturating_sub(low),
        };
        let peak = before.max(used.saturating_sub(now));
        self.stats.used_peak = self.stats.used_peak.max(peak);
        self.needed = self.needed.max(peak);
    }

    /// Less may be needed from now on: the program wants memory back.
    pub fn forget_need(&mut self) {
        // so that no peak from before is found later
        self.find_peak();
        self.needed = self.used_now();
        self.leeway.end();
        self.sharing.end();
        self.part_no_more();
        self.set_caching();
    }

    /// The peak becomes what is in use now.
    pub fn reset_used_peak(&mut self) {
        let used = self.reset_replayed_peak();
        self.set_used_peak(used);
        if !self.replay.is_on() {
            self.tune_caches();
        }
    }

    /// This is the peak until now, whatever was in use.
    pub(super) fn set_used_peak(&mut self, peak: u64) {
        for cache in &self.caches.all {
            cache.take_low();
        }
        self.stats.used_peak = peak;
        (self.caches.high, self.caches.seen) = (self.stats.used, self.stats.used);
    }

    /// Of all caches, with those that were closed.
    fn count(&self, closed: u64, of: impl Fn(&Cache) -> u64) -> u64 {
        let each = self.caches.all.iter().map(|cache| of(cache));
        each.fold(closed, u64::wrapping_add)
    }

    /// What caches have done. What all kept is read before what any handed out: a block may come and go meanwhile, and none was freed that
    /// was not allocated before, be it from another cache.
    fn counts(&self) -> Counts {
        let kept = self.count(self.caches.closed.kept, Cache::kept);
        let taken = self.count(self.caches.closed.taken, Cache::taken);
        Counts { taken, kept }
    }

    fn calls_with(&self, caches: Counts) -> Calls {
        let freed = self.stats.frees.wrapping_add(caches.kept);
        Calls {
            allocs: self.stats.allocations.wrapping_add(caches.taken),
            frees: freed.wrapping_sub(self.caches.flushed),
        }
    }

    /// Allocations and frees that the program has made.
    pub fn calls(&self) -> Calls {
        self.calls_with(self.counts())
    }

    /// The figures as the program sees them.
    pub fn figures(&mut self) -> Stats {
        if !self.replay.is_on() {
            self.look_for_peak();
        }
        let mut stats = self.stats;
        let counts = self.counts();
        let kept = self.bytes_of_kept().min(stats.used);
        stats.used -= kept;
        stats.cached += kept;
        // a batch that is taken back may take back more than was taken
        stats.hits = stats.hits.wrapping_add(counts.taken);
        let Calls { allocs, frees } = self.calls_with(counts);
        (stats.allocations, stats.frees) = (allocs, frees);
        if self.replay.is_on() {
            self.add_replayed(&mut stats);
        }
        stats.used_peak = stats.used_peak.max(stats.used);
        stats
    }

    /// Is what the program has, or had since that was last found, the most?
    pub(super) fn look_for_peak(&mut self) {
        self.caches.high = self.caches.high.max(self.stats.used);
        self.find_peak();
    }

    /// Is this block, which the heap has as live, kept by a cache?
    pub fn is_kept(&self, block: Block) -> bool {
        self.directory.state(self.block_start(block)) == super::directory::State::Kept
    }
}
