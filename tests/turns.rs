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

/// Page calls of each round, whose calls are two threads' in so many turns.
fn page_calls(seed: u64, turns: usize) -> Vec<u64> {
    let config = Config {
        declared_streams: true,
        ..common::config()
    };
    let pool = Pool::new(config, Counting::new(true)).expect("a pool");
    let caches = [cache(&pool), cache(&pool)];
    let calls = round(seed);
    let each = calls.len().div_ceil(turns);
    let mut blocks = vec![Addr(0); calls.len()];
    let mut before = 0;
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        for (number, &call) in calls.iter().enumerate() {
            let own = &caches[number / each % 2];
            match call {
                Call::Alloc(block, bytes) => {
                    blocks[block] = own
                        .alloc(bytes, 0)
                        .unwrap_or_else(|| pool.alloc_beside(Some(own), bytes, 0, STREAM).expect("memory"));
                }
                Call::Free(block) => {
                    if own.free(blocks[block]).is_none() {
                        pool.free_beside(Some(own), blocks[block], STREAM).expect("live");
                    }
                }
            }
        }
        pool.validate();
        pool.synchronized(pool.mark_all());
        let stats = pool.stats().expect("stats");
        let now = stats.maps + stats.unmaps + stats.page_creates + stats.page_releases;
        seen.push(now - before);
        before = now;
    }
    caches.iter().for_each(|cache| pool.close_cache(cache));
    assert_eq!(pool.end().blocks, 0);
    seen
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
