//! What threads keep: it is found by whoever needs it, freed once, and never in two hands.

use crate::common::cached::{STREAM, alloc, cache, free, keep_quick, pool, take_quick};
use crate::common::random::Random;
use crate::common::{K, M, config, limited};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weir::backend::fence::is_one_sided;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Attribute, Pool, ThreadCache};

/// Blocks of all kinds of length, freed into the cache. Gives their bytes.
fn fill(pool: &Pool, cache: &ThreadCache) -> u64 {
    let sizes = [100, 3 * K, 30 * K, 40 * K, 200 * K, 256 * K];
    let blocks = sizes.map(|bytes| alloc(pool, cache, bytes).expect("a block"));
    let kept = blocks.map(|at| cache.free(at).expect("it keeps such blocks"));
    kept.iter().sum()
}

#[test]
fn a_kept_block_serves_the_next_request_of_its_length() {
    let pool = pool(config());
    let cache = cache(&pool);
    for bytes in [0, 1, 256, 5000, 32 * K, 33 * K, 100 * K, 256 * K, M, 100 * M] {
        let at = alloc(&pool, &cache, bytes).expect("a block");
        let size = pool.block_size(at).expect("it is live");
        let before = pool.stats().expect("stats");
        assert_eq!(cache.free(at), Some(size), "{bytes}");
        let kept = pool.stats().expect("stats");
        assert_eq!((kept.used, kept.frees), (before.used - size, before.frees + 1));
        assert_eq!(kept.cached, before.cached + size);
        assert_eq!(pool.block_size(at), None, "it is not live");
        assert_eq!(cache.alloc(bytes, 0), Some(at), "{bytes}");
        let again = pool.stats().expect("stats");
        assert_eq!((again.used, again.hits), (before.used, before.hits + 1));
        pool.validate();
        assert_eq!(free(&pool, &cache, at), Ok(size));
    }
}

/// The calls that ask nobody whose the stream is are for those that the program has promised to tell of.
#[test]
fn who_has_to_ask_is_not_served_without() {
    for declared in [true, false] {
        let pool = pool(Config {
            declared_streams: declared,
            ..config()
        });
        let cache = cache(&pool);
        let quick = declared && is_one_sided();
        for bytes in [5000, 40 * K, M] {
            let at = alloc(&pool, &cache, bytes).expect("a block");
            let asked = cache.quick();
            let kept = asked.and_then(|cache| keep_quick(cache, at));
            assert_eq!(kept.is_some(), quick, "{bytes}");
            if !quick {
                cache.free(at).expect("it is kept");
            }
            let taken = asked.and_then(|cache| take_quick(cache, bytes));
            assert_eq!(taken, quick.then_some(at.0), "{bytes}");
            let left = cache.alloc_rest(bytes, 0).ok();
            assert_eq!(left, (!quick).then_some(at), "{bytes}");
            free(&pool, &cache, at).expect("a live block");
            pool.validate();
        }
    }
}

#[test]
fn a_kept_block_is_not_freed_again() {
    let pool = pool(config());
    let cache = cache(&pool);
    for bytes in [1000, 50 * K, 5 * M] {
        let at = alloc(&pool, &cache, bytes).expect("a block");
        assert!(cache.free(at).is_some());
        let twice = Err(Error::DoubleFree(at));
        assert_eq!(free(&pool, &cache, at), twice);
        assert_eq!(pool.free_synced(at), twice);
        assert_eq!(pool.record_stream(at, STREAM), Err(Error::DoubleFree(at)));
        assert_eq!(pool.free_batch(&[at], STREAM), Err(Error::DoubleFree(at)));
        assert!(cache.free(Addr(at.0 + 256)).is_none(), "nor is its middle");
        pool.validate();
    }
}

#[test]
fn what_is_kept_is_no_leak_and_comes_back_when_it_is_needed() {
    let pool = pool(limited(64 * M));
    let cache = cache(&pool);
    assert!(fill(&pool, &cache) > 500 * K);
    let whole = alloc(&pool, &cache, 64 * M).expect("all of the memory, what was kept included");
    assert!(free(&pool, &cache, whole).is_ok());
    assert!(
        cache.alloc(100, 0).is_none(),
        "near its limit a pool keeps nothing"
    );
    assert_eq!(pool.reset_peaks(), Ok(()));
    let at = alloc(&pool, &cache, 100).expect("a block");
    assert!(cache.free(at).is_none(), "a reset of the peaks changes nothing");
    assert!(free(&pool, &cache, at).is_ok());
    assert_eq!(pool.trim(64 * M), Ok(()), "it may need less from now on");
    let kept = fill(&pool, &cache);
    assert_eq!(pool.squeeze(), Ok(64 * M), "{kept} B that were kept went, too");
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    fill(&pool, &cache);
    assert_eq!(pool.trim(0), Ok(()));
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    fill(&pool, &cache);
    assert_eq!(pool.end().blocks, 0);
    assert!(cache.is_ended() && cache.alloc(100, 0).is_none() && cache.free(Addr(4096)).is_none());
}

#[test]
fn memory_comes_from_another_threads_cache() {
    let pool = pool(limited(64 * M));
    let theirs = cache(&pool);
    fill(&pool, &theirs);
    let long = alloc(&pool, &theirs, 20 * M).expect("a block");
    assert!(theirs.free(long).is_some());
    thread::scope(|scope| {
        scope.spawn(|| {
            let own = cache(&pool);
            let whole = alloc(&pool, &own, 64 * M).expect("all of the memory");
            assert!(free(&pool, &own, whole).is_ok());
        });
    });
    pool.validate();
}

#[test]
fn above_the_release_threshold_nothing_is_kept() {
    let pool = pool(config());
    let cache = cache(&pool);
    fill(&pool, &cache);
    assert_eq!(pool.set_attribute(Attribute::ReleaseThreshold, 0), Ok(()));
    let at = alloc(&pool, &cache, 5000).expect("a block");
    assert!(cache.free(at).is_none(), "it is for the heap");
    assert!(free(&pool, &cache, at).is_ok());
    assert!(cache.alloc(5000, 0).is_none() && cache.alloc(40 * K, 0).is_none());
    assert_eq!(pool.set_attribute(Attribute::ReleaseThreshold, u64::MAX), Ok(()));
    fill(&pool, &cache);
    pool.validate();
}

#[test]
fn a_stream_that_changes_keeps_nothing() {
    let pool = pool(config());
    let cache = cache(&pool);
    fill(&pool, &cache);
    pool.stream_changed(StreamHandle(2));
    assert!(
        cache.alloc(100, 0).is_some(),
        "another stream's change is no concern"
    );
    pool.stream_changed(STREAM);
    assert!(cache.is_ended() && cache.alloc(3 * K, 0).is_none());
    let stats = pool.stats().expect("stats");
    assert_eq!(stats.allocations - stats.frees, 1);
    pool.validate();
}

#[test]
fn a_full_cache_makes_room_and_keeps_on() {
    let pool = pool(config());
    let cache = cache(&pool);
    let blocks: Vec<Addr> = (0..10_000)
        .map(|_| alloc(&pool, &cache, 256).expect("a block"))
        .collect();
    for at in blocks {
        assert!(free(&pool, &cache, at).is_ok());
    }
    pool.validate();
    let stats = pool.stats().expect("stats");
    assert_eq!((stats.used, stats.allocations), (0, stats.frees));
    for _ in 0..1000 {
        assert!(cache.alloc(256, 0).is_some());
    }
}

#[test]
fn a_batch_is_served_by_what_is_kept() {
    let pool = pool(config());
    let cache = cache(&pool);
    let sizes = [5000, 100 * K, 300, 5000, M];
    let blocks = sizes.map(|bytes| pool.alloc(bytes, 0, STREAM).expect("a block"));
    assert!(cache.free_batch(&blocks));
    let before = pool.stats().expect("stats");
    let mut served = [Addr(0); 5];
    assert!(
        !cache.alloc_batch(&[M, 100 * K, 200 * K], &mut served[2..]),
        "it has none of 200 KiB"
    );
    assert_eq!(served, [Addr(0), Addr(0), blocks[4], blocks[1], Addr(0)]);
    assert!(cache.free_batch(&served), "places without a block are none");
    served = [Addr(0); 5];
    // a place that has its block is left as it is
    served[1] = Addr(7);
    assert!(cache.alloc_batch(&[5000, 64, 300], &mut served[..3]));
    assert_eq!((served[1], served[2]), (Addr(7), blocks[2]));
    served[1] = Addr(0);
    assert!(cache.free_batch(&served));
    assert_eq!(pool.stats().expect("stats").used, before.used);
    pool.validate();
    let before = pool.stats().expect("stats");
    served = [Addr(0); 5];
    assert!(cache.alloc_batch(&sizes, &mut served), "it has all of them");
    let live: HashSet<Addr> = served.into_iter().collect();
    assert_eq!(live, blocks.into_iter().collect());
    let after = pool.stats().expect("stats");
    assert_eq!(
        (after.hits, after.used),
        (before.hits + 5, before.reserved - after.cached - after.free)
    );
    served = [Addr(0); 5];
    assert!(
        !cache.alloc_batch(&[300], &mut served[..1]),
        "there is nothing left"
    );
    assert_eq!(served[0], Addr(0));
    pool.validate();
}

#[test]
fn a_batch_is_kept_or_not_at_all() {
    let pool = pool(config());
    let cache = cache(&pool);
    let sizes = [5000, 100 * K, 300, M, 5000];
    let blocks = sizes.map(|bytes| alloc(&pool, &cache, bytes).expect("a block"));
    // of two long blocks one is kept
    let long = alloc(&pool, &cache, 2 * M).expect("a block");
    let before = pool.stats().expect("stats");
    for wrong in [blocks[0], blocks[1], blocks[3], Addr(12345), long] {
        let batch: Vec<Addr> = blocks.into_iter().chain([Addr(0), wrong]).collect();
        assert!(!cache.free_batch(&batch), "{wrong}");
        assert_eq!(pool.stats().expect("stats"), before, "{wrong}");
        pool.validate();
        if wrong != long {
            assert!(pool.free_batch_beside(Some(&cache), &batch, STREAM).is_err());
            assert_eq!(pool.stats().expect("stats"), before, "{wrong}");
            pool.validate();
        }
    }
    assert!(cache.free_batch(&blocks));
    let after = pool.stats().expect("stats");
    assert_eq!(after.frees, before.frees + 5);
    for at in blocks {
        assert_eq!(free(&pool, &cache, at), Err(Error::DoubleFree(at)));
    }
    for bytes in sizes {
        assert!(cache.alloc(bytes, 0).is_some_and(|at| blocks.contains(&at)));
    }
    assert_eq!(pool.free_batch_beside(Some(&cache), &[long], STREAM), Ok(()));
    pool.validate();
}

/// A thread replaces blocks at random, of as many lengths as there are: what it keeps soon has one for each request, and
/// the pool is hardly called any more.
#[test]
fn random_replacement_comes_to_need_the_pool_no_more() {
    let pool = pool(config());
    let cache = cache(&pool);
    let mut random = Random(7);
    let mut live: Vec<Addr> = (0..32)
        .map(|_| alloc(&pool, &cache, K).expect("a block"))
        .collect();
    let mut beside = 0;
    for round in 0..60_000 {
        let place = random.below(32) as usize;
        let at = live[place];
        if cache.free(at).is_none() {
            assert!(pool.free_beside(Some(&cache), at, STREAM).is_ok());
            beside += 1;
        }
        let bytes = 256 + random.below(256 * K - 255);
        live[place] = cache.alloc(bytes, 0).unwrap_or_else(|| {
            beside += 1;
            pool.alloc_beside(Some(&cache), bytes, 0, STREAM)
                .expect("a block")
        });
        if round == 30_000 {
            beside = 0;
        }
    }
    assert!(beside < 30, "{beside} of 60,000 calls");
    let stats = pool.stats().expect("stats");
    assert!(stats.reserved <= 32 * M, "{} B for 4 MiB", stats.reserved);
    pool.validate();
}

/// The same with blocks of up to 1 MiB, of which the thread comes to keep as much as is in use, once it is known that nothing comes again.
#[test]
fn random_replacement_of_longer_blocks_does_where_little_is_needed() {
    let pool = pool(config());
    let cache = cache(&pool);
    let mut random = Random(11);
    let mut length = || (256 << random.below(12)) + random.below(256);
    let mut live: Vec<Addr> = (0..256)
        .map(|_| alloc(&pool, &cache, length()).expect("a block"))
        .collect();
    let mut place = Random(13);
    let mut beside = 0;
    const CALLS: u32 = 1_200_000;
    for call in 0..CALLS {
        let at = &mut live[place.below(256) as usize];
        if cache.free(*at).is_none() {
            assert!(pool.free_beside(Some(&cache), *at, STREAM).is_ok());
        }
        let bytes = length();
        *at = cache.alloc(bytes, 0).unwrap_or_else(|| {
            beside += u32::from(call > CALLS / 10 * 9);
            pool.alloc_beside(Some(&cache), bytes, 0, STREAM)
                .expect("a block")
        });
    }
    assert!(beside < CALLS / 1000, "{beside} of {} requests", CALLS / 10);
    let stats = pool.stats().expect("stats");
    assert!(stats.reserved <= 128 * M, "{} B", stats.reserved);
    pool.validate();
}

/// Threads free each other's blocks, while another one looks into the caches: no block is in two hands.
#[test]
fn threads_free_each_others_blocks_while_caches_are_looked_into() {
    let pool = pool(config());
    let before = pool.stats().expect("stats").frees;
    let handed: [Mutex<Vec<Addr>>; 2] = Default::default();
    let (stop, live) = (AtomicBool::new(false), Mutex::new(HashSet::new()));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2u64)
            .map(|me| {
                let (pool, handed, live) = (&pool, &handed, &live);
                scope.spawn(move || {
                    let cache = cache(pool);
                    let mut random = Random(me + 1);
                    let mut freed = 0u64;
                    for _ in 0..30_000 {
                        let bytes = random.log_uniform(19);
                        let at = alloc(pool, &cache, bytes).expect("a block");
                        assert!(live.lock().unwrap().insert(at), "{at} is in two hands");
                        for list in handed {
                            list.lock().unwrap().push(at);
                        }
                        let next = |random: &mut Random| {
                            let mut mine = handed[me as usize].lock().unwrap();
                            (mine.len() > 20).then(|| {
                                let index = random.below(mine.len() as u64) as usize;
                                mine.swap_remove(index)
                            })
                        };
                        while let Some(at) = next(&mut random) {
                            // each block is on both lists; whoever takes it out of the set frees it
                            if live.lock().unwrap().remove(&at) {
                                assert!(free(pool, &cache, at).is_ok());
                                freed += 1;
                            }
                        }
                    }
                    pool.close_cache(&cache);
                    freed
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pool.trim(64 * M).expect("a trim");
                let stats = pool.stats().expect("stats");
                assert_eq!(
                    stats.reserved,
                    stats.used + stats.cached + stats.free + stats.pending + stats.idle
                );
            }
        });
        let freed: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(freed, pool.stats().expect("stats").frees - before);
    });
    pool.validate();
    let stats = pool.stats().expect("stats");
    assert_eq!(
        stats.allocations - stats.frees,
        live.into_inner().unwrap().len() as u64
    );
}

/// The same block is freed by two threads at once, thousands of times.
#[test]
fn a_race_to_free_a_block_has_one_winner() {
    let pool = pool(config());
    let barrier = std::sync::Barrier::new(2);
    let target = Mutex::new(Addr(0));
    let wins: Vec<u64> = thread::scope(|scope| {
        let racers: Vec<_> = (0..2)
            .map(|me| {
                let (pool, barrier, target) = (&pool, &barrier, &target);
                scope.spawn(move || {
                    let cache = cache(pool);
                    let mut wins = 0;
                    for round in 0..5000 {
                        if me == 0 {
                            let bytes = [700, 40 * K, 2 * M][round % 3];
                            *target.lock().unwrap() = alloc(pool, &cache, bytes).expect("a block");
                        }
                        barrier.wait();
                        let at = *target.lock().unwrap();
                        match free(pool, &cache, at) {
                            Ok(_) => wins += 1,
                            Err(error) => assert_eq!(error, Error::DoubleFree(at)),
                        }
                        barrier.wait();
                    }
                    pool.close_cache(&cache);
                    wins
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(wins.iter().sum::<u64>(), 5000, "{wins:?}");
    pool.validate();
    assert_eq!(pool.stats().expect("stats").used, 0);
}

#[test]
fn a_batch_is_kept_and_served_in_part_but_freed_and_allocated_as_a_whole() {
    let pool = pool(limited(64 * M));
    let cache = cache(&pool);
    let sizes = [2 * M, 5000, 100 * K, M, 300, 3 * M];
    for round in 0..4 {
        let mut blocks = [Addr(0); 6];
        // what the cache has may have been taken before the pool is asked for the rest, unless the last batch was kept in part
        if round % 2 == 1 {
            assert!(!cache.alloc_batch(&sizes, &mut blocks), "{round}");
            assert_ne!(blocks, [Addr(0); 6], "{round}");
        }
        pool.alloc_batch_beside(Some(&cache), &sizes, STREAM, &mut blocks)
            .expect("blocks");
        let live: HashSet<Addr> = blocks.into_iter().collect();
        assert_eq!(live.len(), 6, "{round}");
        let before = pool.stats().expect("stats");
        // the last is free already when it comes again
        let wrong: Vec<Addr> = blocks.into_iter().chain([blocks[5]]).collect();
        pool.free_batch_beside(Some(&cache), &wrong, STREAM)
            .expect_err("one is there twice");
        assert_eq!(pool.stats().expect("stats"), before, "{round}");
        assert!(!cache.free_batch(&blocks), "of three long blocks one is kept");
        pool.free_batch_beside(Some(&cache), &blocks, STREAM)
            .expect("live blocks");
        assert!(
            !cache.alloc_batch(&[300], &mut blocks[..1]),
            "the pool is asked first"
        );
        pool.validate();
        let mut free = pool.stats().expect("stats");
        assert_eq!((free.used, free.frees), (0, before.frees + 6), "{round}");
        // what the cache had for it is kept again when the rest cannot be had
        let mut none = [Addr(0); 4];
        let too_much = [5000, 100 * K, 300, 65 * M];
        if round % 2 == 0 {
            let short = alloc(&pool, &cache, 300).expect("a block");
            pool.free_batch_beside(Some(&cache), &[short], STREAM)
                .expect("it is kept as a whole");
            free.allocations += 1;
            free.frees += 1;
            assert!(!cache.alloc_batch(&too_much, &mut none), "{round}");
            assert_ne!(none[0], Addr(0), "{round}");
        }
        pool.alloc_batch_beside(Some(&cache), &too_much, STREAM, &mut none)
            .expect_err("more than there may be");
        let after = pool.stats().expect("stats");
        assert_eq!((none, after.used), ([Addr(0); 4], 0), "{round}");
        assert_eq!((after.allocations, after.frees), (free.allocations, free.frees));
        pool.validate();
    }
}

#[test]
fn a_batch_that_can_be_kept_is_kept_after_one_that_was() {
    let pool = pool(config());
    let cache = cache(&pool);
    let long = [M, 2 * M].map(|bytes| alloc(&pool, &cache, bytes).expect("a block"));
    pool.free_batch_beside(Some(&cache), &long, STREAM)
        .expect("of two long blocks one is kept");
    let short = [5000, 300].map(|bytes| alloc(&pool, &cache, bytes).expect("a block"));
    pool.free_batch_beside(Some(&cache), &short, STREAM)
        .expect("live blocks");
    let mut served = [Addr(0); 2];
    assert!(cache.alloc_batch(&[5000, 300], &mut served), "it has both");
    assert!(cache.free_batch(&served));
    assert!(!cache.free_batch(&served), "twice");
}

#[test]
fn a_batch_of_more_blocks_than_a_cache_can_keep_is_freed_whole() {
    let pool = pool(config());
    let cache = cache(&pool);
    let sizes: Vec<u64> = (0..10_000u64).map(|n| 1 + n % 7 * 300).collect();
    for round in 0..3 {
        let mut blocks = vec![Addr(0); sizes.len()];
        cache.alloc_batch(&sizes, &mut blocks);
        pool.alloc_batch_beside(Some(&cache), &sizes, STREAM, &mut blocks)
            .expect("blocks");
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), sizes.len());
        // one that is wrong far behind what is marked, and places without a block
        let mut wrong = blocks.clone();
        (wrong[17], wrong[5000], wrong[9999]) = (Addr(0), Addr(0), blocks[3]);
        let before = pool.stats().expect("stats");
        assert!(!cache.free_batch(&wrong), "{round}");
        assert_eq!(
            pool.free_batch_beside(Some(&cache), &wrong, STREAM),
            Err(Error::DoubleFree(blocks[3])),
            "{round}"
        );
        assert_eq!(pool.stats().expect("stats"), before, "{round}");
        pool.validate();
        wrong.pop();
        let left = [blocks[17], blocks[5000], blocks[9999]];
        pool.free_batch_beside(Some(&cache), &wrong, STREAM)
            .expect("live blocks");
        pool.validate();
        assert_eq!(pool.stats().expect("stats").frees, before.frees + 9997);
        pool.free_batch(&left, STREAM).expect("live blocks");
        let after = pool.stats().expect("stats");
        assert_eq!((after.used, after.frees), (0, after.allocations), "{round}");
        assert!(after.cached > 0, "{round}");
    }
}

fn an_ended_cache_is_given_nothing(batch: bool) {
    let pool = pool(config());
    let mine = cache(&pool);
    // it was captured for a while
    pool.stream_changed(STREAM);
    assert!(mine.is_ended());
    thread::scope(|scope| {
        let another = || {
            let theirs = cache(&pool);
            let blocks: Vec<Addr> = (0..200)
                .map(|_| alloc(&pool, &theirs, 5000).expect("a block"))
                .collect();
            for at in blocks {
                theirs.free(at).expect("kept");
            }
        };
        scope.spawn(another).join().expect("no panic");
        // caches are shared from two on
        let third = || drop(pool.open_cache(StreamHandle(2)).expect("a cache"));
        scope.spawn(third).join().expect("no panic");
    });
    assert_eq!(pool.stats().expect("stats").used, 0);
    let mut at = [Addr(0)];
    if batch {
        pool.alloc_batch_beside(Some(&mine), &[300], STREAM, &mut at)
            .expect("a block");
    } else {
        at[0] = pool.alloc_beside(Some(&mine), 300, 0, STREAM).expect("a block");
    }
    assert_eq!(pool.stats().expect("stats").used, 512, "of 300 bytes");
    pool.validate();
    assert_eq!(pool.free(at[0], STREAM), Ok(512));
}

#[test]
fn what_another_keeps_does_not_go_to_a_cache_that_has_ended() {
    an_ended_cache_is_given_nothing(false);
    an_ended_cache_is_given_nothing(true);
}
