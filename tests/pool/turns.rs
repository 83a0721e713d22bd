//! Two threads that take turns on a stream, as the forward and the backward pass of a training step do: rounds settle, and
//! are known by heart, as those of one thread.

use crate::common::cached::{replay_alloc_quick, replay_free_quick};
use crate::common::random::Random;
use crate::common::{K, M};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const STREAM: StreamHandle = StreamHandle(1);
const ROUNDS: usize = 50;

#[derive(Clone, Copy)]
enum Call {
    Alloc(usize, u64),
    Free(usize),
}

fn asked(random: &mut Random) -> u64 {
    match random.below(8) {
        0..4 => 1 + random.below(200 * K),
        4..7 => 1 + random.below(6 * M),
        _ => 1 + random.below(60 * M),
    }
}

/// A round in which all is freed again.
fn round(seed: u64) -> Vec<Call> {
    let mut random = Random(seed);
    let (mut calls, mut live) = (Vec::new(), Vec::new());
    for block in 0..1500 {
        while live.len() > 60 || live.len() > 1 && random.one_in(3) {
            let at = random.below(live.len() as u64) as usize;
            calls.push(Call::Free(live.swap_remove(at)));
        }
        calls.push(Call::Alloc(block, asked(&mut random)));
        live.push(block);
    }
    calls.extend(live.into_iter().map(Call::Free));
    calls
}

/// A cache of a thread that has ended: nobody else uses it, so the test may.
fn cache(pool: &Pool) -> ThreadCache {
    let opened = thread::scope(|scope| scope.spawn(|| pool.open_cache(STREAM)).join());
    opened.expect("no panic").expect("a cache")
}

/// A pool and two threads' caches, which a test uses in turn.
struct Threads {
    pool: Pool,
    caches: [ThreadCache; 2],
}

impl Threads {
    fn new() -> Threads {
        let config = Config {
            declared_streams: true,
            ..crate::common::config()
        };
        let pool = Pool::new(config, Counting::new(true)).expect("a pool");
        let caches = [cache(&pool), cache(&pool)];
        Threads { pool, caches }
    }

    fn alloc(&self, thread: usize, bytes: u64) -> Addr {
        let own = &self.caches[thread];
        own.alloc(bytes, 0).unwrap_or_else(|| {
            let at = self.pool.alloc_beside(Some(own), bytes, 0, STREAM);
            at.expect("memory")
        })
    }

    fn free(&self, thread: usize, at: Addr) {
        let own = &self.caches[thread];
        if own.free(at).is_none() {
            self.pool.free_beside(Some(own), at, STREAM).expect("live");
        }
    }

    fn page_calls(&self) -> u64 {
        let stats = self.pool.stats().expect("stats");
        stats.maps + stats.unmaps + stats.page_creates + stats.page_releases
    }

    fn end(self) {
        self.caches.iter().for_each(|cache| self.pool.close_cache(cache));
        assert_eq!(self.pool.end().blocks, 0);
    }

    /// Plays a round, whose calls are the threads' in turns of so many.
    fn play(&self, calls: &[Call], each: usize, blocks: &mut [Addr]) {
        for (number, &call) in calls.iter().enumerate() {
            let thread = number / each % 2;
            match call {
                Call::Alloc(block, bytes) => blocks[block] = self.alloc(thread, bytes),
                Call::Free(block) => self.free(thread, blocks[block]),
            }
        }
    }
}

/// Page calls of each round, whose calls are two threads' in so many turns.
fn page_calls(seed: u64, turns: usize) -> Vec<u64> {
    let threads = Threads::new();
    let calls = round(seed);
    let each = calls.len().div_ceil(turns);
    let mut blocks = vec![Addr(0); calls.len()];
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let before = threads.page_calls();
        threads.play(&calls, each, &mut blocks);
        threads.pool.validate();
        threads.pool.synchronized(threads.pool.mark_all());
        seen.push(threads.page_calls() - before);
    }
    threads.end();
    seen
}

#[test]
fn what_a_thread_keeps_comes_back_when_another_ones_turn_begins() {
    let threads = Threads::new();
    let last = threads.alloc(0, 64 * M); // so that the pool is never at rest
    for turn in 0..40 {
        // blocks that no cache keeps, and some that one does
        let blocks: Vec<Addr> = (0..100)
            .map(|number| {
                threads.alloc(
                    turn % 2,
                    [M + 100 * turn as u64 + number, 50 * K][number as usize % 2],
                )
            })
            .collect();
        let before = threads.pool.stats().expect("stats").cached;
        assert!(
            turn < 20 || before <= 2 * M,
            "turn {turn} began with {before} B of the last one's"
        );
        blocks.into_iter().for_each(|at| threads.free(turn % 2, at));
        assert!(threads.pool.stats().expect("stats").cached >= 50 * 50 * K);
    }
    threads.free(0, last);
    threads.end();
}

#[test]
fn rounds_of_threads_that_take_turns_settle() {
    for seed in 1..=12 {
        for turns in [2, 5] {
            let seen = page_calls(seed, turns);
            let late: u64 = seen[ROUNDS - 10..].iter().sum();
            assert_eq!(late, 0, "seed {seed}, {turns} turns: {seen:?}");
        }
    }
}

#[test]
fn rounds_of_threads_that_take_turns_are_by_heart() {
    for seed in 1..=12 {
        for turns in [2, 5] {
            let threads = Threads::new();
            let calls = round(seed);
            let each = calls.len().div_ceil(turns);
            let mut blocks = vec![Addr(0); calls.len()];
            let rounds = (0..ROUNDS).position(|_| {
                threads.play(&calls, each, &mut blocks);
                threads.pool.synchronized(threads.pool.mark_all());
                threads.pool.is_replaying()
            });
            assert!(rounds.is_some(), "seed {seed}, {turns} turns");
            // whose turn it is may change from round to round
            let before = threads.pool.stats().expect("stats");
            for turns in 2..12 {
                threads.play(&calls, calls.len().div_ceil(turns), &mut blocks);
                assert!(threads.pool.is_replaying(), "seed {seed}, {turns} turns");
            }
            let after = threads.pool.stats().expect("stats");
            assert_eq!(after.driver_calls, before.driver_calls);
            assert_eq!(after.misses, before.misses);
            // who comes in between is too short there to read the tape
            threads.play(&calls, 3, &mut blocks);
            assert!(!threads.pool.is_replaying(), "seed {seed}");
            threads.pool.validate();
            threads.end();
        }
    }
}

/// Says that a thread has panicked.
struct Gone<'a>(&'a AtomicBool);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads that are there at the same time, and take turns or do not: no block is anybody else's.
#[test]
fn turns_may_end_at_any_call() {
    let config = Config {
        declared_streams: true,
        ..crate::common::config()
    };
    let pool = Pool::new(config, Counting::new(true)).expect("a pool");
    let calls = round(7);
    let (turn, replayed, gone) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let blocks: Vec<AtomicU64> = calls.iter().map(|_| AtomicU64::new(0)).collect();
    let live = Mutex::new(BTreeMap::new());
    let made = |thread: usize| {
        let cache = pool.open_cache(STREAM).expect("a cache");
        let mut random = Random(thread as u64 + 1);
        for round in 0..3 * ROUNDS {
            // a turn of half a round each
            while turn.load(Ordering::Acquire) != 2 * round + thread {
                assert!(!gone.load(Ordering::Relaxed), "the other one has panicked");
                // now and then one does not wait for its turn
                if random.one_in(1 << 16) {
                    let at = pool.alloc_beside(Some(&cache), 5 * M, 0, STREAM).expect("memory");
                    pool.free_beside(Some(&cache), at, STREAM).expect("live");
                }
                thread::yield_now();
            }
            let half = calls.len() / 2;
            for call in &calls[thread * half..][..half] {
                match *call {
                    Call::Alloc(block, bytes) => {
                        let quick = cache.quick().and_then(|quick| replay_alloc_quick(quick, bytes));
                        let kept = quick.map(Addr).or_else(|| cache.alloc(bytes, 0));
                        let at = kept.unwrap_or_else(|| {
                            pool.alloc_beside(Some(&cache), bytes, 0, STREAM).expect("memory")
                        });
                        let mut live = live.lock().expect("no panic");
                        let before: Option<(&u64, &u64)> = live.range(..at.0 + bytes).next_back();
                        assert!(
                            before.is_none_or(|(&other, &len)| other + len <= at.0),
                            "they overlap"
                        );
                        live.insert(at.0, bytes);
                        blocks[block].store(at.0, Ordering::Relaxed);
                    }
                    Call::Free(block) => {
                        let at = Addr(blocks[block].load(Ordering::Relaxed));
                        live.lock().expect("no panic").remove(&at.0);
                        let quick = cache.quick().and_then(|quick| replay_free_quick(quick, at));
                        let kept = quick.or_else(|| cache.free(at));
                        if kept.is_none() {
                            pool.free_beside(Some(&cache), at, STREAM).expect("live");
                        }
                    }
                }
            }
            replayed.fetch_add(usize::from(pool.is_replaying()), Ordering::Relaxed);
            turn.fetch_add(1, Ordering::Release);
        }
        pool.close_cache(&cache);
    };
    thread::scope(|scope| {
        for number in 0..2 {
            let (made, gone) = (&made, &gone);
            scope.spawn(move || {
                let guard = Gone(gone);
                made(number);
                std::mem::forget(guard);
            });
        }
    });
    assert!(replayed.into_inner() > 0);
    pool.validate();
    assert_eq!(pool.end().blocks, 0);
}
