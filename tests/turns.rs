//! Two threads that take turns on a stream, as the forward and the backward pass of a training step do: rounds settle as those of one thread.

mod common;

use common::random::Random;
use common::{K, M};
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
            ..common::config()
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
        for (number, &call) in calls.iter().enumerate() {
            let thread = number / each % 2;
            match call {
                Call::Alloc(block, bytes) => blocks[block] = threads.alloc(thread, bytes),
                Call::Free(block) => threads.free(thread, blocks[block]),
            }
        }
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
            .map(|number| threads.alloc(turn % 2, [M + number, 50 * K][number as usize % 2]))
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
