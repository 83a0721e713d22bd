//! What threads that use one stream give each other of what they keep.

use crate::common::cached::{STREAM, alloc, cache, free, pool};
use crate::common::random::Random;
use crate::common::{K, M, config};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use weir::base::units::Addr;
use weir::pool::{Pool, ThreadCache};

/// One that another thread has opened, which uses it no more.
fn cache_of_another(pool: &Pool) -> ThreadCache {
    thread::scope(|scope| scope.spawn(|| cache(pool)).join().unwrap())
}

/// One cache allocates so many blocks, and one frees them.
fn pass(pool: &Pool, from: &ThreadCache, to: &ThreadCache, blocks: usize, bytes: u64) {
    let blocks: Vec<_> = (0..blocks).map(|_| alloc(pool, from, bytes).unwrap()).collect();
    assert!(blocks.into_iter().all(|at| free(pool, to, at).is_ok()));
}

/// What a cache consists of is longer than such a stack.
#[test]
fn a_thread_with_a_short_stack_has_a_cache() {
    let pool = pool(config());
    let calls = || {
        let own = cache(&pool);
        let at = alloc(&pool, &own, 300).expect("a block");
        assert!(free(&pool, &own, at).is_ok());
    };
    thread::scope(|scope| {
        let short = thread::Builder::new().stack_size(64 << 10);
        short.spawn_scoped(scope, calls).expect("a thread");
    });
    pool.validate();
}

/// What one thread frees serves another one that allocates on the same stream, many blocks at a time.
#[test]
fn what_a_consumer_keeps_comes_back_to_the_producer() {
    let pool = pool(config());
    let producer = cache(&pool);
    let sizes = [300, 5000, 40 * K, 100 * K];
    let size_of = |number: usize| sizes[number % 4];
    let blocks: Vec<Addr> = (0..400)
        .map(|number| alloc(&pool, &producer, size_of(number)).expect("a block"))
        .collect();
    thread::scope(|scope| {
        scope
            .spawn(|| {
                let consumer = cache(&pool);
                for &at in &blocks {
                    assert!(free(&pool, &consumer, at).is_ok());
                }
            })
            .join()
            .unwrap();
    });
    let mut beside = 0;
    for number in 0..350 {
        let at = producer.alloc(size_of(number), 0).unwrap_or_else(|| {
            beside += 1;
            pool.validate();
            alloc(&pool, &producer, size_of(number)).expect("a block")
        });
        assert!(blocks.contains(&at), "{at} is none of them");
    }
    assert!((1..=60).contains(&beside), "{beside} of 350 calls");
    pool.validate();
}

/// A thread that allocates as well gives nothing away unless it keeps twice as much: what threads keep differs by chance.
#[test]
fn who_allocates_too_gives_only_of_a_good_deal_more() {
    let pool = pool(config());
    let (mine, other) = (cache(&pool), cache_of_another(&pool));
    pass(&pool, &mine, &mine, 50, 40 * K);
    (0..20).for_each(|_| pass(&pool, &other, &other, 150, 5000));
    assert!(alloc(&pool, &mine, 5000).is_ok() && mine.alloc(5000, 0).is_none());
    pass(&pool, &other, &other, 230, 5000);
    assert!(alloc(&pool, &mine, 5000).is_ok() && mine.alloc(5000, 0).is_some());
    pool.validate();
}

/// One that only frees gives of what is a little more: nobody else will ask it.
#[test]
fn who_only_frees_gives_of_a_little_more() {
    let pool = pool(config());
    let (mine, other) = (cache(&pool), cache_of_another(&pool));
    pass(&pool, &mine, &mine, 50, 40 * K);
    pass(&pool, &mine, &other, 150, 5000);
    assert!(alloc(&pool, &mine, 5000).is_ok() && mine.alloc(5000, 0).is_some());
    pool.validate();
}

/// It learns to hand over by itself. However often blocks go round the pool needs no more memory for it, and has all of it back in the end.
#[test]
fn what_goes_round_is_neither_lost_nor_held_twice() {
    let pool = pool(config());
    let (mine, other) = (cache(&pool), cache_of_another(&pool));
    for round in 0..300 {
        let bytes = [300, 5000, 40 * K][round % 3];
        pass(&pool, &mine, &other, 150, bytes);
        pool.validate();
        let stats = pool.stats().expect("stats");
        assert_eq!(stats.used, 0);
        assert!(stats.reserved <= 40 << 20, "{} B", stats.reserved);
    }
    assert!(pool.stats().expect("stats").cached > 0);
    pool.trim(0).expect("a trim");
    assert_eq!(pool.stats().expect("stats").reserved, 0, "from outside");
    pass(&pool, &mine, &other, 1000, 5000);
    pool.close_cache(&other);
    pool.validate();
    pass(&pool, &mine, &mine, 150, 5000);
    pool.close_cache(&mine);
    pool.trim(0).expect("a trim");
    assert_eq!(pool.stats().expect("stats").reserved, 0);
}

/// A producer that asks for batches gets what was handed over, too: not the pool's memory, however often blocks go round.
#[test]
fn batches_are_served_from_what_was_handed_over() {
    let pool = pool(config());
    let (mine, other) = (cache(&pool), cache_of_another(&pool));
    (0..20).for_each(|_| pass(&pool, &mine, &other, 150, 5000));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..40 {
        let mut blocks = [Addr(0); 64];
        let sizes = [5000; 64];
        if !mine.alloc_batch(&sizes, &mut blocks) {
            pool.alloc_batch_beside(Some(&mine), &sizes, STREAM, &mut blocks)
                .expect("memory");
        }
        seen.extend(blocks.map(|at| at.0));
        assert!(blocks.into_iter().all(|at| free(&pool, &other, at).is_ok()));
        pool.validate();
    }
    assert!(seen.len() < 600, "{} places for 64 blocks at a time", seen.len());
}

/// Blocks come and go in all caches while others read the figures: nobody ever sees more frees than allocations.
#[test]
fn no_block_is_freed_before_it_is_allocated_whenever_one_looks() {
    const OPEN: usize = 8;
    let pool = pool(config());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let caches: Vec<_> = (0..OPEN).map(|_| cache(&pool)).collect();
                for call in 0.. {
                    let from = call % OPEN;
                    let at = alloc(&pool, &caches[from], 1000).expect("memory");
                    free(&pool, &caches[(from + 1) % OPEN], at).expect("a live block");
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let read = (0..20_000).map(|_| pool.stats().expect("stats"));
        let wrong: Vec<_> = read.filter(|stats| stats.frees > stats.allocations).collect();
        done.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{} of 20,000: {:?}", wrong.len(), wrong[0]);
    });
    pool.validate();
}

/// Producers and consumers on one stream, threads that end and others that come, while memory is taken back and all equations are checked:
/// no two blocks overlap, and nothing is left.
#[test]
fn handing_over_may_be_disturbed_at_any_moment() {
    const PAIRS: u64 = 2;
    let pool = pool(config());
    let live = Mutex::new(BTreeMap::new());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (pool, live) = (&pool, &live);
        let mut workers = Vec::new();
        for number in 0..PAIRS {
            let (sender, receiver) = sync_channel::<Vec<Addr>>(4);
            workers.push(scope.spawn(move || {
                let mut random = Random(number + 1);
                for _ in 0..30 {
                    let cache = cache(pool);
                    for _ in 0..100 {
                        let block = |_| {
                            let most = if random.one_in(3) { 200 * K } else { 20 * K };
                            let bytes = 1 + random.below(most);
                            let at = alloc(pool, &cache, bytes).expect("memory");
                            let mut live = live.lock().expect("no panic");
                            let before = live.range(..at.0 + bytes).next_back();
                            let apart = before.is_none_or(|(&other, &len)| other + len <= at.0);
                            assert!(apart, "{bytes} B at {at:?} overlap {before:?}");
                            live.insert(at.0, bytes);
                            at
                        };
                        sender.send((0..16).map(block).collect()).expect("a consumer");
                    }
                    pool.close_cache(&cache);
                }
            }));
            workers.push(scope.spawn(move || {
                let mut cache = cache(pool);
                for (step, blocks) in receiver.into_iter().enumerate() {
                    for at in blocks {
                        live.lock().expect("no panic").remove(&at.0);
                        free(pool, &cache, at).expect("a live block");
                    }
                    if step % 700 == 699 {
                        pool.close_cache(&cache);
                        cache = crate::common::cached::cache(pool);
                    }
                }
                pool.close_cache(&cache);
            }));
        }
        let disturber = scope.spawn(|| {
            let mut random = Random(77);
            while !done.load(Ordering::Relaxed) {
                thread::sleep(std::time::Duration::from_micros(random.below(3000)));
                match random.below(4) {
                    0 => pool.trim(0).expect("a trim"),
                    1 => drop(pool.stats().expect("stats")),
                    _ => pool.validate(),
                }
            }
        });
        workers
            .into_iter()
            .for_each(|worker| worker.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
        disturber.join().expect("no panic");
    });
    pool.validate();
    pool.trim(0).expect("a trim");
    let stats = pool.stats().expect("stats");
    assert_eq!((stats.used, stats.cached, stats.reserved), (0, 0, 0));
}

/// What one keeps the others can have: the pool needs no more for many threads that take turns than for a few.
#[test]
fn threads_that_take_turns_do_not_each_have_memory_of_their_own() {
    let pool = pool(config());
    let caches = [(); 40].map(|()| cache(&pool));
    for round in 0..3 {
        for cache in &caches {
            let blocks = [(); 64].map(|()| alloc(&pool, cache, 256 * K).expect("memory"));
            for at in blocks {
                free(&pool, cache, at).expect("a live block");
            }
        }
        let held = pool.stats().expect("stats").reserved;
        assert!(held <= 192 * M, "round {round}: {} MiB for 16 in use", held / M);
    }
    pool.validate();
    caches.iter().for_each(|cache| pool.close_cache(cache));
}
