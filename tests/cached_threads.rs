//! What threads that use one stream give each other of what they keep.

mod common;

use common::cached::{alloc, cache, free, pool};
use common::{K, config};
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
    assert!((2..=60).contains(&beside), "{beside} of 350 calls");
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
