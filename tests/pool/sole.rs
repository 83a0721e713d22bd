//! A thread that alone calls a pool, and others that come while it is at work: each block is freed once.

use crate::common::cached::{STREAM, alloc, cache, free, keep_quick, pool};
use crate::common::device::Device;
use crate::common::random::Random;
use crate::common::{K, M, config};
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const OTHER: StreamHandle = StreamHandle(9);

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

/// A pool whose streams may be at work, so that each has what it freed.
fn with_streams() -> Pool {
    let pool = Pool::new(declared(), Device::new(1)).expect("a pool");
    let at = pool.alloc(1, 0, STREAM).expect("a block");
    pool.free(at, STREAM).expect("a live block");
    pool
}

/// Another thread, with a stream and a cache of its own, which frees each block that it is given, and says whether it could: until there
/// are no more to come.
fn beside<'s>(scope: &'s thread::Scope<'s, '_>, pool: &'s Pool) -> (Sender<Addr>, Receiver<bool>) {
    let ((give, given), (tell, told)) = (channel(), channel());
    let (ready, is_ready) = channel();
    scope.spawn(move || {
        let own = pool.open_cache(OTHER).expect("a cache");
        assert!(own.is_sole());
        ready.send(()).expect("somebody waits");
        for at in given {
            let quick = own.quick().and_then(|own| keep_quick(own, at)).is_some();
            let freed = quick || pool.free_beside(Some(&own), at, OTHER).is_ok();
            tell.send(freed).expect("somebody waits");
        }
        pool.close_cache(&own);
    });
    is_ready.recv().expect("a cache");
    (give, told)
}

/// Blocks of a cache, as it hands them out: they were kept before.
fn kept(pool: &Pool, cache: &ThreadCache, bytes: u64) -> Addr {
    let at = alloc(pool, cache, bytes).expect("a block");
    free(pool, cache, at).expect("a live block");
    let again = cache.alloc(bytes, 0).expect("what was kept");
    assert_eq!(again, at);
    at
}

#[test]
fn whoever_frees_anothers_block_finds_what_its_owner_freed_before() {
    for bytes in [1000, 50 * K, 5 * M] {
        for other_first in [false, true] {
            let pool = with_streams();
            thread::scope(|scope| {
                let cache = cache(&pool);
                let (give, told) = beside(scope, &pool);
                assert!(!pool.is_sole() && cache.is_sole(), "each on its own stream");
                let at = kept(&pool, &cache, bytes);
                let quick = || cache.quick().and_then(|cache| keep_quick(cache, at)).is_some();
                assert!(other_first || quick());
                give.send(at).expect("the thread");
                assert_eq!(told.recv(), Ok(other_first));
                if other_first {
                    assert!(!cache.is_sole(), "it was told");
                    assert!(!quick());
                    let freed = free(&pool, &cache, at);
                    assert!(
                        matches!(freed, Err(Error::DoubleFree(_) | Error::UnknownPointer(_))),
                        "{freed:?}"
                    );
                }
                pool.validate();
            });
        }
    }
}

fn flag() -> AtomicBool {
    AtomicBool::new(false)
}

fn raise(flag: &AtomicBool) {
    flag.store(true, Ordering::Release);
}

/// Goes on within nanoseconds, if it has a processor.
fn await_flag(flag: &AtomicBool) {
    for turn in 0.. {
        match flag.load(Ordering::Acquire) {
            true => return,
            false if turn < 10_000 => spin_loop(),
            false => thread::yield_now(),
        }
    }
}

/// Two threads, each alone on its stream, free the same blocks at the same time: of each block one free is right.
#[test]
fn of_two_frees_at_once_one_is_right_where_each_has_its_stream() {
    let random = &mut Random(3);
    let mut met = [0, 0];
    for _ in 0..400 {
        let pool = &with_streams();
        let cache = &cache(pool);
        let (opened, ready, begun) = (&flag(), &flag(), &flag());
        let all = OnceLock::<Vec<Addr>>::new();
        let (all, from) = (&all, random.below(40) as usize);
        // the second one comes as soon as it sees that
        let other_first = random.below(2) == 0;
        let take_turn = move |first: bool| if first { raise(begun) } else { await_flag(begun) };
        let (own, other) = thread::scope(|scope| {
            let other = scope.spawn(move || {
                let mine = pool.open_cache(OTHER).expect("a cache");
                raise(opened);
                await_flag(ready);
                take_turn(other_first);
                let freed = all.get().expect("blocks")[from..].iter().map(|&at| {
                    let quick = mine.quick().and_then(|mine| keep_quick(mine, at));
                    quick.is_some() || pool.free_beside(Some(&mine), at, OTHER).is_ok()
                });
                freed.collect::<Vec<_>>()
            });
            await_flag(opened);
            // handed out by the cache, so that the other one has to tell it first
            for at in blocks(pool, cache, random) {
                free(pool, cache, at).expect("a live block");
            }
            assert!(cache.is_sole());
            all.set(blocks(pool, cache, random)).expect("nothing was there");
            raise(ready);
            take_turn(!other_first);
            let quick = |at| cache.quick().and_then(|cache| keep_quick(cache, at)).is_some();
            let own = all.get().expect("blocks").iter();
            let own: Vec<_> = own
                .map(|&at| quick(at) || free(pool, cache, at).is_ok())
                .collect();
            (own, other.join().unwrap())
        });
        for (number, &own) in own.iter().enumerate() {
            let other = number >= from && other[number - from];
            assert!(own != other, "block {number}: {own} and {other}");
            met[usize::from(other)] += 1;
        }
        pool.validate();
        let stats = pool.stats().expect("stats");
        assert_eq!((stats.used, stats.allocations), (0, stats.frees));
    }
    assert!(met[0] > 0 && met[1] > 0, "{met:?}");
}

/// A thread that frees on one of its streams what it had for another one is not alone on that any more: from then on its caches keep such
/// blocks.
#[test]
fn blocks_that_go_from_stream_to_stream_are_kept_again() {
    let pool = with_streams();
    thread::scope(|scope| {
        let (cache, second) = (cache(&pool), pool.open_cache(StreamHandle(2)).expect("a cache"));
        let _other = beside(scope, &pool);
        assert!(cache.is_sole() && second.is_sole());
        let at = kept(&pool, &cache, 50 * K);
        assert!(second.free(at).is_none(), "the books are to hear of it");
        let freed = pool.free_beside(Some(&second), at, StreamHandle(2));
        freed.expect("a live block");
        assert!(!cache.is_sole() && second.is_sole());
        pool.validate();
        let at = kept(&pool, &cache, 50 * K);
        assert!(second.free(at).is_some(), "as if there were one stream");
        pool.validate();
    });
}

/// What another thread says of a block that is used elsewhere, too, its owner hears of.
#[test]
fn who_records_a_use_tells_the_owner() {
    for bytes in [1000, 50 * K] {
        let pool = &with_streams();
        thread::scope(|scope| {
            let cache = cache(pool);
            let at = kept(pool, &cache, bytes);
            scope
                .spawn(move || pool.record_stream(at, OTHER).expect("a live block"))
                .join()
                .unwrap();
            assert!(!cache.is_sole());
            assert!(cache.free(at).is_none(), "its free concerns the heap");
            pool.free_beside(Some(&cache), at, STREAM).expect("a live block");
            pool.validate();
        });
    }
}

/// A stray free of another thread is no habit: whoever has freed many blocks of its own since is alone again.
#[test]
fn who_was_disturbed_once_is_alone_again() {
    for bytes in [1000, 50 * K] {
        let pool = &with_streams();
        thread::scope(|scope| {
            let cache = cache(pool);
            let (give, told) = beside(scope, pool);
            give.send(kept(pool, &cache, bytes)).expect("the thread");
            assert_eq!(told.recv(), Ok(true));
            assert!(!cache.is_sole());
            // handed out while it was not alone
            let before = kept(pool, &cache, bytes);
            let mut pairs = 0;
            while !cache.is_sole() {
                let at = alloc(pool, &cache, bytes).expect("a block");
                free(pool, &cache, at).expect("a live block");
                pairs += 1;
                if pairs % 1000 == 0 {
                    // the books are asked now and then
                    let at = alloc(pool, &cache, 30 * M + pairs * K).expect("a block");
                    free(pool, &cache, at).expect("a live block");
                    pool.validate();
                }
                assert!(pairs < 30_000);
            }
            assert!(pairs > 10_000, "{pairs}: at once");
            // nobody frees either twice
            let after = kept(pool, &cache, bytes);
            for at in [before, after] {
                let quick = || cache.quick().and_then(|cache| keep_quick(cache, at)).is_some();
                assert!(quick() || free(pool, &cache, at).is_ok());
                give.send(at).expect("the thread");
                assert_eq!(told.recv(), Ok(false));
                pool.validate();
            }
        });
    }
}

/// Not where another thread has a cache for the stream as well.
#[test]
fn who_shares_a_stream_is_not_alone_again() {
    let pool = &with_streams();
    let cache = cache(pool);
    let also = thread::scope(|scope| scope.spawn(|| crate::common::cached::cache(pool)).join().unwrap());
    assert!(!cache.is_sole() && !also.is_sole());
    for pairs in 0..30_000 {
        let at = alloc(pool, &cache, 1000).expect("a block");
        free(pool, &cache, at).expect("a live block");
        if pairs % 1000 == 0 {
            let at = alloc(pool, &cache, 30 * M + pairs * K).expect("a block");
            free(pool, &cache, at).expect("a live block");
        }
    }
    assert!(!cache.is_sole());
    pool.close_cache(&also);
    pool.validate();
}
