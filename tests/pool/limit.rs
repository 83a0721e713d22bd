//! Pools with a limit: what comes again costs no more than without one, and little more than a program needs is enough.
//!
//! `data/crops.trace.gz`: blocks of 1 MiB and more of the first two steps of a vision transformer that learns from crops of two sizes, with
//! AdamW, bf16 autocast and a teacher without gradients (PyTorch 2.11, one H100, 2026-11-27). What it keeps for the backward pass has twelve
//! lengths, from 1.3 to 28 MiB, between others that go soon.
//!
//! `data/policies.trace.gz`: blocks of 256 KiB and more of six rounds of a learner by proximal policies (the same, one H100, the same day). In
//! each, 128 observations are gathered and put together into one block of 750 MB, and then small batches of it are learned, all alike.

use crate::common::random::Random;
use crate::common::real::{Stream, Wrong, alone, end, synchronize};
use crate::common::recorded::{Call, recorded};
use crate::common::{K, M, cached, limited};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use weir::backend::counting::Counting;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::pool::{Pool, ThreadCache};

/// The most that is in use at a time.
fn need(calls: &[Call]) -> u64 {
    let (mut bytes, mut used, mut most) = (Vec::new(), 0, 0);
    for &(block, asked) in calls {
        bytes.resize(bytes.len().max(block + 1), 0);
        match asked {
            Some(asked) => used += std::mem::replace(&mut bytes[block], asked) + asked,
            None => used -= bytes[block],
        }
        most = most.max(used);
    }
    most
}

/// Makes the calls, and frees what they leave. Gives how many failed.
fn play(pool: &Pool, cache: &ThreadCache, calls: &[Call]) -> usize {
    let (mut blocks, mut failed) = (Vec::new(), 0);
    let free = |at: Addr| {
        cached::free(pool, cache, at).expect("a live block");
    };
    for &(block, bytes) in calls {
        blocks.resize(blocks.len().max(block + 1), None);
        match bytes.map(|bytes| cached::alloc(pool, cache, bytes)) {
            Some(Ok(at)) => blocks[block] = Some(at),
            Some(Err(Error::OutOfMemory(_))) => failed += 1,
            Some(Err(error)) => panic!("{error}"),
            None => blocks[block].take().into_iter().for_each(free),
        }
    }
    blocks.into_iter().flatten().for_each(free);
    failed
}

/// A pool with so many times that as its limit, and a cache.
fn pool_of(need: u64, times: f64) -> (Pool, ThreadCache) {
    let limit = (need as f64 * times) as u64;
    let pool = Pool::new(limited(limit), Counting::new(true)).expect("a pool");
    let cache = cached::cache(&pool);
    (pool, cache)
}

/// The page calls of each of eight rounds of such calls, of which none fails.
fn pages_of_rounds(pool: &Pool, cache: &ThreadCache, calls: &[Call]) -> Vec<u64> {
    let pages = || {
        let stats = pool.stats().expect("stats");
        stats.page_creates + stats.maps + stats.unmaps
    };
    let round = |_| {
        let before = pages();
        assert_eq!(play(pool, cache, calls), 0);
        pages() - before
    };
    (0..8).map(round).collect()
}

/// Recorded calls that come again move no page after a few rounds, with so many times what they need as the limit, and are answered by heart.
fn are_known_by_heart(path: &str, limits: &[f64]) {
    let calls = recorded(path);
    let need = need(&calls);
    for &times in limits {
        let (pool, cache) = pool_of(need, times);
        let made = pages_of_rounds(&pool, &cache, &calls);
        assert_eq!(made[5..], [0; 3], "{times}: {made:?}");
        assert!(pool.is_replaying(), "{times}");
        pool.validate();
    }
}

#[test]
fn what_comes_again_is_known_by_heart_below_a_limit() {
    are_known_by_heart("traces/gpt-train-fixed.trace.gz", &[1.05, 1.25, 1.9, 4.0]);
}

/// Until a state was told by what is free a window was looked for by the number of the allocation in its round: of rounds within rounds
/// many have the same.
#[test]
fn rounds_within_rounds_come_to_move_no_page() {
    are_known_by_heart("tests/data/policies.trace.gz", &[1.25, 1.9]);
}

#[test]
fn little_more_than_a_program_needs_is_enough() {
    let calls = recorded("tests/data/crops.trace.gz");
    let need = need(&calls);
    for (times, most) in [(1.03, 4), (1.04, 0)] {
        let (pool, cache) = pool_of(need, times);
        let failed: Vec<_> = (0..4).map(|_| play(&pool, &cache, &calls)).collect();
        assert!(failed.iter().sum::<usize>() <= most, "{times}: {failed:?}");
        pool.validate();
    }
}

/// A 16th of a page.
const U: u64 = 128 << 10;

/// Two pages, in 16ths. What was joined of the end of one and the beginning of the other is in use in the midst, and the rest of each is
/// free in two parts, neither of which would do. Gives the block in use. `freeing` comes before the last frees.
fn in_parts(pool: &Pool, stream: StreamHandle, freeing: impl FnOnce([(Addr, u64); 2])) -> Addr {
    let alloc = |sixteenths: u64| {
        let at = pool.alloc(sixteenths * U, 0, stream).expect("room");
        pool.validate();
        at
    };
    let free = |at: Addr| {
        pool.free(at, stream).expect("a live block");
    };
    let [first, across, last] = [10, 12, 10].map(alloc);
    assert_eq!([across.0, last.0].map(|at| at - first.0), [10 * U, 22 * U]);
    free(first);
    free(last);
    let joined = alloc(16);
    assert!(
        joined.0 > last.0,
        "the end of the second page, and the beginning of the first"
    );
    free(joined);
    let [front, midst] = [4, 12].map(alloc);
    assert_eq!([front.0, midst.0].map(|at| at - joined.0), [0, 4 * U]);
    freeing([(front, 4 * U), (across, 12 * U)]);
    free(front);
    free(across);
    midst
}

#[test]
fn free_parts_of_a_page_are_one_where_nothing_else_is_left() {
    let pool = Pool::new(limited(32 * U), Counting::new(true)).expect("a pool");
    let midst = in_parts(&pool, StreamHandle(0), |_| ());
    // 10 from each page: 6 and 4
    let got = pool.alloc(19 * U, 0, StreamHandle(0)).expect("room");
    pool.validate();
    for block in [midst, got] {
        pool.free(block, StreamHandle(0)).expect("a live block");
    }
}

/// They are the stream's that has work there, and nobody else's before that is done.
#[test]
fn parts_that_come_together_are_whose_they_were() {
    let _alone = alone();
    let (pool, faulty) = crate::common::real::pool(limited(32 * U));
    let [stream, other] = [(); 2].map(|()| Stream::new());
    let (mut gate, done) = (None, Arc::new(AtomicBool::new(false)));
    let ran = done.clone();
    let midst = in_parts(&pool, stream.0, |blocks| {
        synchronize(&pool, &stream); // what is left of what was joined is everybody's
        gate = Some(stream.gate());
        for (at, bytes) in blocks {
            stream.write(at, bytes, 1);
        }
        stream.enqueue(move || ran.store(true, Ordering::Relaxed));
    });
    let got = pool.alloc(19 * U, 0, stream.0).expect("its own");
    assert!(!done.load(Ordering::Relaxed), "without a wait");
    pool.validate();
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(gate);
    });
    let rest = pool.alloc(U, 0, other.0).expect("what is left, later");
    other.write(rest, U, 2);
    stream.synchronize();
    let wrong = Wrong::default();
    other.expect(rest, U, 2, &wrong);
    other.synchronize();
    assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
    opener.join().expect("no panic");
    for block in [midst, got, rest] {
        pool.free_synced(block).expect("a live block");
    }
    end(pool, &faulty);
}

/// Blocks of 16 KiB to 4 MiB, 256 at a time, of which the oldest is replaced. Gives how many of a million requests failed, and the most
/// that was in use at once.
fn replace_oldest(limit: u64, seed: u64) -> (u32, u64) {
    let pool = Pool::new(limited(limit), Counting::new(true)).expect("a pool");
    let (cache, mut random, mut failed) = (cached::cache(&pool), Random(seed), 0);
    let mut blocks = VecDeque::new();
    for _ in 0..1_000_000 {
        if blocks.len() == 256
            && let Some(at) = blocks.pop_front().expect("one of many")
        {
            cached::free(&pool, &cache, at).expect("a live block");
        }
        let shortest = (16 * K) << random.below(8);
        let at = cached::alloc(&pool, &cache, shortest + random.below(shortest)).ok();
        failed += u32::from(at.is_none());
        blocks.push_back(at);
    }
    pool.validate();
    (failed, pool.stats().expect("stats").used_peak)
}

/// What a thread keeps is joined with nothing that is free beside it, and where little of a limit is left that is missed.
#[test]
fn a_thread_keeps_less_where_a_limit_leaves_little() {
    let lives = [1, 2, 3, 4].map(|seed| replace_oldest(300 * M, seed));
    assert!(lives.iter().all(|life| life.1 > 250 * M), "{lives:?}");
    assert!(lives.iter().map(|life| life.0).sum::<u32>() < 10, "{lives:?}");
}
