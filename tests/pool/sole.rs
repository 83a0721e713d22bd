//! A thread that alone calls a pool, and others that come while it is at work: each block is freed once.

use crate::common::cached::{STREAM, alloc, cache, free, keep_quick, pool};
use crate::common::random::Random;
use crate::common::{K, M, config};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

fn declared() -> Config {
    Config {
        declared_streams: true,
        ..config()
    }
}

/// Blocks of slabs and others, in no order.
fn blocks(pool: &Pool, cache: &ThreadCache, random: &mut Random) -> Vec<Addr> {
    let lengths = [300, 5000, 30 * K, 40 * K, 200 * K];
    let any = |random: &mut Random| lengths[random.below(lengths.len() as u64) as usize];
    (0..40)
        .map(|_| alloc(pool, cache, any(random)).expect("a block"))
        .collect()
}

#[test]
fn whoever_comes_later_finds_what_was_freed_before() {
    for bytes in [1000, 50 * K, 5 * M] {
        for other_first in [false, true] {
            let pool = pool(declared());
            assert!(!pool.is_sole(), "there is nothing to know it");
            let cache = cache(&pool);
            assert!(pool.is_sole());
            let at = alloc(&pool, &cache, bytes).expect("a block");
            let own = || match cache.quick().and_then(|cache| keep_quick(cache, at)) {
                Some(bytes) => Ok(bytes),
                None => free(&pool, &cache, at),
            };
            let other = || thread::scope(|scope| scope.spawn(|| pool.free(at, STREAM)).join().unwrap());
            let (first, second) = match other_first {
                true => (other(), own()),
                false => (own(), other()),
            };
            assert!(first.is_ok(), "{first:?}");
            assert!(!pool.is_sole(), "another thread came");
            assert!(
                matches!(second, Err(Error::DoubleFree(_) | Error::UnknownPointer(_))),
                "{second:?}"
            );
            pool.validate();
        }
    }
}

/// Two threads free the same blocks at the same time, and one of them calls the pool for the first time: of each block one free is right.
#[test]
fn of_two_frees_at_once_one_is_right_when_the_second_thread_comes() {
    let random = &mut Random(1);
    let mut met = 0;
    for _ in 0..400 {
        let pool = pool(declared());
        let cache = cache(&pool);
        let all = blocks(&pool, &cache, random);
        let from = random.below(all.len() as u64) as usize;
        let arrived = AtomicU32::new(0);
        // within nanoseconds, which a barrier that sleeps is not
        let together = || {
            arrived.fetch_add(1, Ordering::AcqRel);
            while arrived.load(Ordering::Acquire) < 2 {
                thread::yield_now();
            }
        };
        let (own, other) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                together();
                all[from..]
                    .iter()
                    .map(|&at| pool.free(at, STREAM).is_ok())
                    .collect::<Vec<_>>()
            });
            together();
            let quick = |at| cache.quick().and_then(|cache| keep_quick(cache, at)).is_some();
            let own: Vec<_> = all
                .iter()
                .map(|&at| quick(at) || free(&pool, &cache, at).is_ok())
                .collect();
            (own, other.join().unwrap())
        });
        for (number, &own) in own.iter().enumerate() {
            let other = number >= from && other[number - from];
            assert!(own != other, "block {number}: {own} and {other}");
            met += usize::from(other);
        }
        pool.validate();
        let stats = pool.stats().expect("stats");
        assert_eq!((stats.used, stats.allocations), (0, stats.frees));
    }
    assert!(met > 0, "the second thread never came in time");
}

/// The one that is alone may be another one later, when the first has gone.
#[test]
fn threads_that_come_one_after_the_other() {
    let pool = pool(declared());
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let cache = cache(&pool);
                assert!(pool.is_sole());
                let random = &mut Random(2);
                for _ in 0..10 {
                    for at in blocks(&pool, &cache, random) {
                        assert!(free(&pool, &cache, at).is_ok());
                    }
                    pool.validate();
                }
                // a call of another one, and a cache: it is not alone as long as that is open
                let beside = thread::scope(|scope| {
                    scope
                        .spawn(|| crate::common::cached::cache(&pool))
                        .join()
                        .unwrap()
                });
                assert!(!pool.is_sole());
                let again = pool.open_cache(StreamHandle(2)).expect("a cache");
                assert!(!pool.is_sole());
                pool.close_cache(&beside);
                pool.close_cache(&again);
                let again = pool.open_cache(StreamHandle(2)).expect("a cache");
                assert!(pool.is_sole());
                pool.validate();
                pool.close_cache(&again);
                pool.close_cache(&cache);
            });
        });
    }
    let stats = pool.stats().expect("stats");
    assert_eq!((stats.used, stats.allocations), (0, stats.frees));
}
