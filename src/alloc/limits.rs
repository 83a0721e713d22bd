//! What the caches of threads may keep: how much, which blocks, whether anything, and how well a kept block has to fit a request.
//!
//! No lock of its own: the heap's.

use super::first;
use super::gate::Shut;
use super::heap::Heap;
use super::lists::{Excess, LONG, LONG_AT_MOST};
use super::order::COMMON;
use std::mem;

/// A pool is near its limit once it needs all but this part of it, if its pages move.
const NEAR: u64 = 32;
/// What each may keep in any case...
const LEAST: u64 = 16 << 20;
/// ...or such a part of what a limit leaves beyond what is needed, if that is less.
const UNNEEDED: u64 = 8;
/// Where less than half of what is little is needed they may keep longer blocks, too, once one could not keep a block so often while requests
/// found none that fit...
const LACKS: u32 = 64;
/// ...and each time that it was so often all of them together as much more as one in any case: as much as is needed, and no more than this.
const MANY_LACKS: u32 = 256;
const MOST_OF_LITTLE: u64 = 64 << 20;
/// It is this part of that while the device is short of memory.
const SHORT: u64 = 16;
/// Beyond that all of them together keep no more than this part of the pool.
const PART: u64 = 64;
/// A program that does not make ever new streams has no more of them without a cache.
pub(super) const MANY_STREAMS: u64 = 64;
/// Nor do more than so many come while more is left without an event than may be.
const FEW_STREAMS: u64 = 4;
/// Little is what is less than this...
const LITTLE: u64 = 128 << 20;
/// ...or less than this for each cache: room for what one may keep, and for what comes and goes beside it.
const LITTLE_EACH: u64 = 24 << 20;
/// But threads that take turns have caches enough, and need hardly anything: the pool does not grow for what these keep beyond so many times
/// that.
const LITTLE_TIMES: u64 = 2;
/// So often somebody waits for the heap before that is looked into...
const WAITS: u64 = 256;
/// ...and then one of so many calls of the heap was to be waited for.
const OFTEN: u64 = 16;

/// What was found out.
#[derive(Debug, Default)]
pub struct Limits {
    /// Nothing is to be kept just now.
    idle: bool,
    /// Nothing is to be kept before the pool has come to rest.
    resting: bool,
    /// No cache is to keep more than this: it may be what brings the pool to rest.
    room: Option<u64>,
    /// Threads wait for each other, at every few calls of the heap.
    contended: bool,
    /// How often somebody waited since that was looked into, and the calls of the heap until then.
    waits: u64,
    since: u64,
    /// How often one could not keep a block while requests found none, and the allocations of the heap until then.
    lacks: u32,
    until: u64,
    /// Streams never call again, and how many had come when they last left no more than they may.
    left: bool,
    came: u64,
}

impl Heap {
    /// What caches may do follows what the pool holds.
    pub fn tune_caches(&mut self) {
        self.limit_caches();
        self.set_caching();
    }

    /// Each may keep its share of what the pool holds. It loses it as soon as the pool is short of memory.
    pub(super) fn limit_caches(&self) {
        let lacks = if self.may_keep_more() {
            self.caches.limits.lacks
        } else {
            0
        };
        let more = u64::from(lacks / MANY_LACKS) * LEAST;
        // kept blocks are not joined with what is free beside them: the less of a limit is left, the more that is missed
        let least = LEAST.min(self.limit.saturating_sub(self.needed) / UNNEEDED);
        let all = (self.stats.reserved / PART).max((least + more).min(self.needed).min(MOST_OF_LITTLE));
        let most = match self.is_short() {
            true => LEAST / SHORT,
            false => (all / self.caches().len().max(1) as u64).max(least),
        };
        // longer ones are in the way where pages move
        let long_from = if lacks >= LACKS { LONG_AT_MOST } else { LONG };
        // it costs memory where all blocks are short, but less than to keep more of them, and nearly every request then finds one
        let excess = match self.needed < self.little() {
            true => Excess::Free,
            false if self.caches.limits.contended => Excess::Rare,
            false => Excess::None,
        };
        let room = self.caches.limits.room.unwrap_or(u64::MAX);
        // where hardly anything is in use at a rest it is short blocks that lead there
        let most = match self.leeway.is_any() {
            true => most.min(room),
            false => most,
        };
        let open = self.has_several_owners() && !self.caches.limits.idle;
        for (_, depot) in self.depots() {
            depot.set_limit(if open { most } else { 0 });
        }
        let left = self.caches.limits.left;
        for cache in self.caches() {
            let longest = self.longest_to_keep(cache.arena).min(room.max(long_from));
            let most = match left && self.is_beyond_reach(cache.arena) {
                true => 0,
                false => most,
            };
            cache.set_limits(most, longest);
            cache.set_long_from(long_from);
            cache.set_excess(excess);
        }
    }

    /// Are there streams that never call again, as those made for a request each? What such a stream frees has its event at once then, and
    /// none of it is kept. It is so if there are many streams without a cache, or if more is free without an event than may be, and than all
    /// caches together could have given back, and goes on to be while others come: a few leave no more than they did, and what calls frees
    /// may be much until it has its event.
    pub(super) fn is_left_by_streams(&mut self) -> bool {
        let kept = (self.stats.reserved / PART).max(LEAST * self.caches().len() as u64);
        let many = self.streams_without_cache() as u64 > MANY_STREAMS;
        if self.uncovered <= self.most_without_event() + kept {
            self.caches.limits.came = self.came;
        }
        let left = many || self.came - self.caches.limits.came > FEW_STREAMS;
        if left != mem::replace(&mut self.caches.limits.left, left) {
            self.limit_caches();
        }
        left
    }

    /// Somebody had to wait for the heap. Threads that do at every few calls are better off with blocks that are a good deal longer than
    /// asked for: what they keep then serves nearly every request. Where they take turns, rounds may be alike, which they are not if
    /// that depends on what was asked for before.
    #[cold]
    pub fn note_wait(&mut self) {
        self.meet_in_turn();
        let limits = &mut self.caches.limits;
        limits.waits += 1;
        if limits.waits < WAITS {
            return;
        }
        let calls = self.stats.allocations + self.stats.frees;
        let contended = calls.saturating_sub(mem::replace(&mut limits.since, calls)) < WAITS * OFTEN;
        limits.waits = 0;
        if contended && !mem::replace(&mut limits.contended, true) {
            self.limit_caches();
        }
    }

    /// A cache cannot keep a block, because it is full or that is long. If requests have found none that fit since the last time, it is better
    /// off with more of them.
    #[cold]
    pub fn note_full(&mut self) {
        let may_keep_more = self.may_keep_more() && self.is_without_rounds();
        let limits = &mut self.caches.limits;
        let lacking = mem::replace(&mut limits.until, self.stats.allocations) != self.stats.allocations;
        if lacking && may_keep_more {
            limits.lacks = limits.lacks.saturating_add(1);
            if limits.lacks == LACKS || limits.lacks.is_multiple_of(MANY_LACKS) {
                self.limit_caches();
            }
        }
    }

    /// Is it likely that nothing comes again? Nothing is recorded, and what was did not, or it would have been by now.
    fn is_without_rounds(&self) -> bool {
        let long_since = self.calls().all() > first::MOST as u64;
        let vain = self.replay.failures > 0 || self.replay.wasted > 0;
        self.replay.is_watching() && (vain || long_since)
    }

    /// Is so little needed that threads may keep as much?
    fn may_keep_more(&self) -> bool {
        self.needed <= self.little() / 2
    }

    /// Other threads have caches now: whether they wait for each other is yet to be seen.
    pub(super) fn renew_limits(&mut self) {
        self.caches.limits.contended = false;
        self.is_left_by_streams();
        self.limit_caches();
    }

    /// Is nothing to be kept just now?
    #[inline]
    pub(super) fn keeps_nothing(&self) -> bool {
        self.caches.limits.idle
    }

    /// A long block, which others may need, is kept only if an event can be had for it at any time. A stream that is alone keeps
    /// as much as it may have free without one.
    fn longest_to_keep(&self, arena: u32) -> u64 {
        match arena == COMMON || self.arena(arena).reach.is_some() {
            true => u64::MAX,
            false if self.is_alone(arena) => LEAST.max(self.most_uncovered()),
            false => LONG,
        }
    }

    /// Bytes by which the pool may grow before it minds what threads keep.
    pub fn room_while_little(&self) -> u64 {
        let most = self.little().min(LITTLE + LITTLE_TIMES * self.needed);
        most.saturating_sub(self.stats.reserved)
    }

    /// Bytes that are little: none if the pool has a limit, or its device is short.
    fn little(&self) -> u64 {
        match self.limit {
            u64::MAX if !self.is_short() => self.little_for_threads(),
            _ => 0,
        }
    }

    /// Bytes that are little for so many threads and streams.
    pub(super) fn little_for_threads(&self) -> u64 {
        LITTLE.max(self.caches().len() as u64 * LITTLE_EACH)
    }

    /// Is more held than the release threshold allows?
    #[inline]
    pub fn is_above_threshold(&self) -> bool {
        self.stats.reserved > self.release_threshold
    }

    /// Is the pool near its limit? Then memory matters more than time: threads keep nothing, each free that is worth one has its event, and
    /// no layout is kept for what comes again.
    pub fn is_crowded(&self) -> bool {
        self.needed > self.ample_below() || self.cramped && self.stats.reserved > self.ample_below()
    }

    /// A pool that needs no more than this is not near its limit. Where pages stay apart, what is left over in one page is missing for the
    /// next long before.
    fn ample_below(&self) -> u64 {
        match self.limit {
            u64::MAX => u64::MAX,
            limit if self.apart => limit / 2,
            limit => limit - limit / NEAR,
        }
    }

    /// Is more than half of a limit needed? What the pool may hold is given then, so that requests without order may have all of it.
    pub(super) fn may_fill_up(&self) -> bool {
        self.needed > self.limit / 2
    }

    /// A request found nothing free. What is held of pages that stay apart, and is not in use, is of no use to such requests.
    pub fn note_miss(&mut self) {
        self.cramped = self.apart && self.stats.reserved > self.ample_below();
    }

    /// The pool comes to rest when so many `bytes` less are in use. Who has kept what brings it there would not say so: that is
    /// for the heap to see. Where several threads have caches no two rounds are alike anyway.
    pub(super) fn approach_rest(&mut self, bytes: u64) {
        if self.has_several_threads() {
            return;
        }
        let room = bytes / self.caches().len().max(1) as u64;
        let limits = &mut self.caches.limits;
        if limits.room.is_none_or(|last| room < last || room / 4 > last) {
            limits.room = Some(room / 2);
            self.limit_caches();
        }
    }

    /// The pool will come to rest at the next allocation, which is to be the heap's, or may.
    pub(super) fn still_caches(&mut self) {
        if !self.has_several_threads() && !self.caches.limits.resting {
            self.caches.limits.resting = true;
            self.set_caching();
        }
    }

    /// Is that so?
    #[inline(always)]
    pub(super) fn is_resting(&self) -> bool {
        self.caches.limits.resting
    }

    /// The pool has been at rest, or will not be.
    pub(super) fn wake_caches(&mut self) {
        (self.caches.limits.resting, self.caches.limits.room) = (false, None);
        self.tune_caches();
    }

    /// Whether caches may keep anything: not while more is held than the release threshold allows, nor near the limit, nor just before a rest.
    pub(super) fn set_caching(&mut self) {
        let idle = self.is_above_threshold() || self.is_crowded() || self.caches.limits.resting;
        if idle != self.caches.limits.idle {
            self.caches.limits.idle = idle;
            for cache in self.caches() {
                match idle {
                    true => cache.gate.shut(Shut::Idle),
                    false => cache.gate.open(Shut::Idle),
                }
            }
            self.limit_caches();
        }
    }

    /// What threads keep is hardly more.
    pub(super) fn most_kept(&self) -> u64 {
        self.caches().len() as u64 * LEAST + self.stats.reserved / PART
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::ThreadId;
    use super::super::directory::Directory;
    use super::super::order::Reuse;
    use super::*;
    use crate::base::units::{CaptureId, StreamHandle, StreamId, Timeline};
    use std::sync::Arc;

    const STREAM: Timeline = Timeline::of(StreamId(1));
    const REUSE: Reuse = Reuse {
        event_dependencies: true,
        opportunistic: true,
        internal_dependencies: true,
    };

    /// A heap that needs a lot, and has threads with caches.
    fn heap(threads: u64) -> Heap {
        let directory = Arc::new(Directory::new().expect("addresses"));
        let mut heap = Heap::new(2 << 20, REUSE, u64::MAX, directory);
        heap.needed = 1 << 40;
        let arena = heap.stream(STREAM);
        (0..threads).for_each(|thread| open(&mut heap, thread, arena));
        heap
    }

    fn open(heap: &mut Heap, thread: u64, arena: u32) {
        let cache = heap.open_cache(ThreadId(thread), StreamHandle(1), arena, false);
        cache.expect("a stream that is not captured");
    }

    /// What all caches may do after so many waits, with so many calls of the heap to each.
    fn after(heap: &mut Heap, waits: u64, calls: u64) -> Excess {
        for _ in 0..waits {
            heap.stats.allocations += calls;
            heap.note_wait();
        }
        let excess = heap.caches()[0].excess();
        assert!(heap.caches().iter().all(|cache| cache.excess() == excess));
        excess
    }

    #[test]
    fn who_waits_for_others_at_every_few_calls_takes_longer_blocks() {
        let mut heap = heap(2);
        assert_eq!(after(&mut heap, 0, 0), Excess::None);
        assert_eq!(after(&mut heap, 10 * WAITS, OFTEN), Excess::None);
        assert_eq!(after(&mut heap, WAITS - 1, OFTEN - 1), Excess::None);
        assert_eq!(after(&mut heap, 1, OFTEN - 1), Excess::Rare);
        // nobody has to wait from now on
        assert_eq!(after(&mut heap, 10 * WAITS, OFTEN), Excess::Rare);
        let arena = heap.stream(STREAM);
        open(&mut heap, 7, arena);
        assert_eq!(after(&mut heap, 0, 0), Excess::None);
    }

    #[test]
    fn streams_that_come_and_leave_more_than_their_caches_gave_back_never_call_again() {
        let mut heap = heap(2);
        let limit = |heap: &Heap| heap.caches()[0].limit();
        heap.uncovered = 2 * LEAST;
        let begin = |heap: &mut Heap, from: u64, count: u64| {
            for number in 0..count {
                heap.stream(Timeline::of(StreamId(from + number)));
                assert!(!heap.is_left_by_streams() && limit(heap) == LEAST);
            }
        };
        begin(&mut heap, 100, 2 * FEW_STREAMS); // two caches kept as much
        heap.uncovered = 3 * LEAST;
        begin(&mut heap, 200, FEW_STREAMS);
        heap.stream(Timeline::of(StreamId(300)));
        assert!(heap.is_left_by_streams() && limit(&heap) == 0);
        heap.limit_caches();
        assert_eq!(limit(&heap), 0, "it is looked at where it can be known");
        heap.uncovered = LEAST;
        assert!(!heap.is_left_by_streams() && limit(&heap) == LEAST);
        heap.uncovered = 3 * LEAST;
        begin(&mut heap, 400, FEW_STREAMS);
    }

    /// Streams that threads call have caches, and a program with many graphs has as many parts of captures.
    #[test]
    fn many_streams_without_a_cache_are_those_that_never_call_again() {
        let mut heap = heap(2 * MANY_STREAMS);
        let mut add = |of: u64, capture: Option<CaptureId>| {
            for number in 0..MANY_STREAMS {
                let stream = StreamId(of + number);
                heap.stream(Timeline { stream, capture });
            }
            heap.is_left_by_streams()
        };
        assert!(!add(1000, Some(CaptureId(1))) && !add(1000, Some(CaptureId(2))));
        assert!(!add(2000, None) && !add(3000, None));
        assert!(add(4000, None));
    }

    #[test]
    fn who_needs_little_takes_longer_blocks_whatever_is_held() {
        let mut heap = heap(1);
        (heap.needed, heap.stats.reserved) = (LITTLE - 1, 1 << 40);
        heap.tune_caches();
        assert_eq!(after(&mut heap, 0, 0), Excess::Free);
        heap.needed = LITTLE;
        heap.tune_caches();
        assert_eq!(after(&mut heap, 0, 0), Excess::None);
    }

    /// What a cache may keep, and from which length on of blocks only one, after it was full so often, with so many requests that found
    /// nothing since the time before.
    fn after_full(heap: &mut Heap, times: u32, missed: u64) -> (u64, u64) {
        for _ in 0..times {
            heap.stats.allocations += missed;
            heap.note_full();
        }
        let cache = &heap.caches()[0];
        (cache.limit(), cache.long_from())
    }

    #[test]
    fn who_needs_little_keeps_more_and_longer_ones_if_it_lacks_them() {
        let mut heap = heap(1);
        heap.needed = LITTLE / 2 - 1;
        heap.replay.wasted = 1;
        heap.tune_caches();
        assert_eq!(
            after_full(&mut heap, 2 * MANY_LACKS, 0),
            (LEAST, LONG),
            "it frees only"
        );
        assert_eq!(after_full(&mut heap, LACKS - 1, 1), (LEAST, LONG));
        assert_eq!(after_full(&mut heap, 1, 1), (LEAST, LONG_AT_MOST));
        assert_eq!(
            after_full(&mut heap, MANY_LACKS - LACKS, 1),
            (2 * LEAST, LONG_AT_MOST)
        );
        // as much as is needed, or for all of them together
        assert_eq!(
            after_full(&mut heap, 10 * MANY_LACKS, 1),
            (heap.needed, LONG_AT_MOST)
        );
        let arena = heap.stream(STREAM);
        open(&mut heap, 7, arena);
        heap.tune_caches();
        assert_eq!(after_full(&mut heap, 0, 0), (heap.needed / 2, LONG_AT_MOST));
        heap.needed = LITTLE / 2 + 1;
        heap.tune_caches();
        assert_eq!(after_full(&mut heap, 10 * MANY_LACKS, 1), (LEAST, LONG));
    }

    /// What comes again is known by heart before long.
    #[test]
    fn nothing_more_is_kept_before_rounds_were_recorded_in_vain() {
        let mut heap = heap(1);
        heap.needed = LITTLE / 2 - 1;
        heap.tune_caches();
        assert_eq!(after_full(&mut heap, 10 * MANY_LACKS, 1), (LEAST, LONG));
    }
}
