//! What a pair of calls asks the driver where the stream is alone in its pool and nobody has declared it, and that a
//! recycled handle is found out. On the stand-in driver: each test in a process of its own.

#![allow(unsafe_code)] // The driver is called as C calls it.

mod common;

use common::cuda::{Gate, backend, fill, handle};
use common::standin::{Device, alone, calls, ok, stream};
use common::{K, M};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

fn pool() -> Pool {
    Pool::new(Config::default(), backend()).expect("a pool")
}

fn alloc(pool: &Pool, cache: &ThreadCache, bytes: u64, stream: StreamHandle) -> Addr {
    match cache.alloc(bytes, 0) {
        Some(at) => at,
        None => pool.alloc_beside(Some(cache), bytes, 0, stream).expect("memory"),
    }
}

fn free(pool: &Pool, cache: &ThreadCache, at: Addr, stream: StreamHandle) {
    if cache.free(at).is_none() {
        pool.free_beside(Some(cache), at, stream).expect("a live block");
    }
}

#[test]
fn a_pair_asks_two_questions_for_each_call() {
    alone("a_pair_asks_two_questions_for_each_call", &[], || {
        let device = Device::open(0);
        let one = stream();
        let pool = pool();
        let cache = pool.open_cache(handle(one)).expect("a cache");
        // what lasts, so that no block is all that there is
        alloc(&pool, &cache, 200 * M, handle(one));
        let names = [
            "cuStreamIsCapturing",
            "cuStreamGetId",
            "cuStreamGetCtx",
            "cuEventRecord",
            "cuEventQuery",
        ];
        // the last is longer than what a thread may keep: it is for others, too, and has an event
        for (bytes, asked) in [
            (4 * K, [2, 2, 0, 0, 0]),
            (64 * K, [2, 2, 0, 0, 0]),
            (M, [2, 2, 0, 0, 0]),
            (16 * M, [2, 2, 0, 0, 0]),
            (100 * M, [3, 2, 1, 1, 0]),
        ] {
            let pair = || {
                let at = alloc(&pool, &cache, bytes, handle(one));
                free(&pool, &cache, at, handle(one));
            };
            pair();
            let before = names.map(calls);
            (0..100).for_each(|_| pair());
            let now = names.map(calls);
            let each: Vec<u64> = before.iter().zip(now).map(|(before, now)| now - before).collect();
            assert_eq!(each, asked.map(|times| times * 100), "{bytes} B: {names:?}");
        }
        assert_eq!(pool.end().blocks, 1);
        drop((cache, pool));
        ok!(stream_destroy(one));
        drop(device);
    });
}

#[test]
fn a_recycled_handle_is_not_given_what_its_predecessor_may_still_use() {
    let name = "a_recycled_handle_is_not_given_what_its_predecessor_may_still_use";
    alone(name, &[], || {
        let device = Device::open(0);
        let pool = pool();
        let one = stream();
        let cache = pool.open_cache(handle(one)).expect("a cache");
        let sizes = [K, 40 * K, 200 * K, 3 * M];
        let blocks = sizes.map(|bytes| alloc(&pool, &cache, bytes, handle(one)));
        let gate = Gate::on(one);
        for (at, bytes) in blocks.into_iter().zip(sizes) {
            fill(at, 1, bytes, one);
            assert!(cache.free(at).is_some(), "it is alone");
        }
        ok!(stream_destroy(one));
        let two = stream();
        assert_eq!(one, two, "the stand-in recycles handles");
        for (old, bytes) in blocks.into_iter().zip(sizes) {
            let at = alloc(&pool, &cache, bytes, handle(two));
            assert_ne!(at, old);
            // the stand-in ends the process if nothing orders this behind the other stream's work
            fill(at, 2, bytes, two);
        }
        assert!(cache.is_ended());
        drop(gate);
        ok!(stream_destroy(two));
        assert_eq!(pool.end().blocks, 4);
        drop((cache, pool));
        drop(device);
    });
}
