//! What a pair of calls asks the driver where the stream is alone in its pool and nobody has declared it, that a
//! recycled handle is found out, and that threads which end leave nothing behind that nobody can have. On the stand-in driver: each test in a process of its own.

use crate::common::cuda::{Gate, PER_THREAD, backend, fill, handle};
use crate::common::standin::{Device, alone, calls, ok, stream};
use crate::common::{K, M};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Asked, Pool, ThreadCache};

/// Its first calls were on this stream, and not a cache's: so the program's are not recorded.
fn pool(stream: StreamHandle) -> Pool {
    let pool = Pool::new(Config::default(), backend()).expect("a pool");
    let at = pool.alloc(1, 0, stream).expect("a block");
    pool.free(at, stream).expect("a live block");
    pool
}

/// As the exported functions do.
fn alloc(pool: &Pool, cache: &ThreadCache, bytes: u64, stream: StreamHandle) -> Addr {
    cache.alloc_rest(bytes, 0).unwrap_or_else(|asked| {
        let at = pool.alloc_asked(Some(cache), asked, (bytes, 0), stream);
        at.expect("memory")
    })
}

fn free(pool: &Pool, cache: &ThreadCache, at: Addr, stream: StreamHandle) {
    if let Err(asked) = cache.free_rest(at) {
        let freed = pool.free_asked(Some(cache), asked, at, stream);
        freed.expect("a live block");
    }
}

#[test]
fn a_pair_asks_two_questions_for_each_call() {
    alone("a_pair_asks_two_questions_for_each_call", &[], || {
        let device = Device::open(0);
        let one = stream();
        let pool = pool(handle(one));
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
        let one = stream();
        let pool = pool(handle(one));
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

/// A program may be wrong and call a pool that is no more, by a thread that had a cache there, when the stream is gone as well.
#[test]
fn a_cache_whose_pool_has_ended_asks_nothing_of_a_stream() {
    alone(
        "a_cache_whose_pool_has_ended_asks_nothing_of_a_stream",
        &[],
        || {
            let device = Device::open(0);
            let one = stream();
            let pool = pool(handle(one));
            let cache = pool.open_cache(handle(one)).expect("a cache");
            let blocks = [K, M].map(|bytes| alloc(&pool, &cache, bytes, handle(one)));
            assert_eq!(pool.end().blocks, 2);
            ok!(stream_destroy(one));
            // the stand-in ends the process at a handle that was given back
            for (at, bytes) in blocks.into_iter().zip([K, M]) {
                assert_eq!(cache.alloc_rest(bytes, 0), Err(Asked::No));
                assert_eq!(cache.free_rest(at), Err(Asked::No));
                assert!(!cache.alloc_batch(&[bytes], &mut [Addr(0)]) && !cache.free_batch(&[at]));
            }
            drop((cache, pool));
            drop(device);
        },
    );
}

#[test]
fn what_threads_leave_on_their_default_streams_is_for_others() {
    let name = "what_threads_leave_on_their_default_streams_is_for_others";
    alone(name, &[], || {
        let device = Device::open(0);
        for declared_streams in [false, true] {
            let config = Config {
                declared_streams,
                ..Config::default()
            };
            let pool = Pool::new(config, backend()).expect("a pool");
            for bytes in [100 * K, 64 * M] {
                for _ in 0..12 {
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            let _current = Device::open(0);
                            let blocks = [(); 4].map(|()| pool.alloc(bytes, 0, PER_THREAD).expect("memory"));
                            for at in blocks {
                                pool.free(at, PER_THREAD).expect("a live block");
                            }
                            ok!(stream_synchronize(std::ptr::without_provenance_mut(PER_THREAD.0)));
                        });
                    });
                }
            }
            let reserved = pool.stats().expect("stats").reserved;
            assert!(reserved < 600 * M, "{reserved} B, declared: {declared_streams}");
            pool.trim(0).expect("a trim");
            let left = pool.stats().expect("stats").reserved;
            assert!(
                left <= 64 * M,
                "{left} B after a trim, declared: {declared_streams}"
            );
            assert_eq!(pool.end().blocks, 0);
        }
        drop(device);
    });
}
