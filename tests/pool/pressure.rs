//! A device that runs short: pools ask it less often, serve from what they have, and give back what they do not need.

use crate::common::random::Random;
use crate::common::{K, M, Pages, config, limited};
use std::sync::Arc;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const HOST: StreamHandle = StreamHandle(0);

/// A device of so many bytes.
fn device(pages: Pages, bytes: u64) -> Arc<Faulty> {
    let faulty = Faulty::new(pages.memory());
    faulty.set_capacity(bytes);
    faulty
}

/// One of the pools of a device.
fn pool_on(faulty: &Arc<Faulty>, pages: Pages) -> Pool {
    let config = Config {
        blocks_in_one_page: pages == Pages::Apart,
        ..config()
    };
    Pool::new(config, Arc::clone(faulty) as _).expect("a pool")
}

fn free(pool: &Pool, at: Addr) {
    pool.free(at, HOST).expect("a live block");
}

fn alloc(pool: &Pool, bytes: u64) -> Addr {
    pool.alloc(bytes, 0, HOST).expect("memory")
}

/// Ends a pool that holds no blocks any more; it is the last one of its device.
fn end(pool: Pool, faulty: &Faulty) {
    pool.validate();
    assert_eq!(pool.end().blocks, 0);
    drop(pool);
    faulty.assert_empty();
}

fn reserved(pool: &Pool) -> u64 {
    pool.stats().expect("stats").reserved
}

/// Blocks come and go at random, `live` bytes of them at most. Returns how many requests failed.
fn churn(pool: &Pool, steps: u64, live: u64, seed: u64) -> u64 {
    let (mut random, mut failed, mut used) = (Random(seed), 0, 0);
    let mut blocks: Vec<(Addr, u64)> = Vec::new();
    for _ in 0..steps {
        let bytes = 1 + random.log_uniform(24);
        while used + bytes > live {
            let (at, bytes) = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            free(pool, at);
            used -= bytes;
        }
        match pool.alloc(bytes, 0, HOST) {
            Ok(at) => {
                blocks.push((at, bytes));
                used += bytes;
            }
            Err(Error::OutOfMemory(_)) => failed += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    blocks.into_iter().for_each(|(at, _)| free(pool, at));
    failed
}

#[test]
fn a_driver_that_refuses_is_asked_once_for_each_request_that_fails() {
    for pages in Pages::ALL {
        let faulty = device(pages, 256 * M);
        let pool = pool_on(&faulty, pages);
        let kept = pool.alloc(150 * M, 0, HOST).expect("a block");
        for _ in 0..100 {
            assert!(pool.alloc(120 * M, 0, HOST).is_err());
            pool.validate();
        }
        assert!(
            faulty.failed_calls() <= 110,
            "{pages:?}: {}",
            faulty.failed_calls()
        );
        // and each of them does ask
        faulty.set_capacity(512 * M);
        let second = pool
            .alloc(120 * M, 0, HOST)
            .expect("what another process gave back");
        free(&pool, kept);
        free(&pool, second);
        // many sizes at once, in a pool that has no room to spare
        faulty.set_capacity(256 * M);
        let refused = faulty.failed_calls();
        let failed = churn(&pool, 5000, 200 * M, 1);
        let refused = faulty.failed_calls() - refused;
        assert!(
            refused <= failed + 60,
            "{pages:?}: {refused} times for {failed} requests"
        );
        end(pool, &faulty);
    }
}

/// A page as large as usual is too much for it.
#[test]
fn a_request_that_just_fits_is_served() {
    for (capacity, bytes) in [(14, 13), (6, 5), (30, 30), (74, 65)] {
        let faulty = device(Pages::Movable, capacity * M);
        let pool = pool_on(&faulty, Pages::Movable);
        free(&pool, alloc(&pool, bytes * M));
        end(pool, &faulty);
    }
}

#[test]
fn a_pool_serves_from_what_it_has_and_hardly_asks() {
    let faulty = device(Pages::Movable, 256 * M);
    let pool = pool_on(&faulty, Pages::Movable);
    // all the device has, and one page asked for in vain
    let blocks: Vec<Addr> = (0..32).map(|_| alloc(&pool, 8 * M)).collect();
    assert!(pool.alloc(8 * M, 0, HOST).is_err());
    let (refused, moved) = (faulty.failed_calls(), pool.stats().expect("stats").pages_moved);
    let mut blocks: Vec<Addr> = blocks;
    let mut misses = pool.stats().expect("stats").misses;
    for round in 0..200usize {
        // two that do not lie side by side make place for one twice as long
        let (first, second) = (blocks.remove(round * 7 % 20), blocks.remove(round * 5 % 20 + 3));
        free(&pool, first);
        free(&pool, second);
        let long = alloc(&pool, 16 * M);
        free(&pool, long);
        blocks.extend([alloc(&pool, 8 * M), alloc(&pool, 8 * M)]);
    }
    misses = pool.stats().expect("stats").misses - misses;
    assert!(
        pool.stats().expect("stats").pages_moved > moved && misses > 50,
        "{misses}"
    );
    let refused = faulty.failed_calls() - refused;
    assert!(refused <= 5 + misses / 64, "{refused} times in {misses} misses");
    blocks.into_iter().for_each(|at| free(&pool, at));
    end(pool, &faulty);
}

#[test]
fn what_one_pool_gives_back_another_one_has_at_its_next_request() {
    for pages in Pages::ALL {
        let faulty = device(pages, 256 * M);
        let (one, two) = (pool_on(&faulty, pages), pool_on(&faulty, pages));
        // each in turn needs three quarters of the device, and finds the other one in possession first
        let creates = faulty.calls(Call::Create);
        let rounds = 8;
        for round in 0..rounds {
            let (needs, has) = if round % 2 == 0 {
                (&one, &two)
            } else {
                (&two, &one)
            };
            let mut blocks: Vec<Addr> = (0..6).filter_map(|_| needs.alloc(32 * M, 0, HOST).ok()).collect();
            let taken = blocks.len();
            assert!(round == 0 || taken < 6, "{pages:?}: both had it");
            has.squeeze().expect("a squeeze");
            blocks.extend((taken..6).map(|_| alloc(needs, 32 * M)));
            assert_eq!(reserved(has), 0);
            blocks.into_iter().for_each(|at| free(needs, at));
            assert!(faulty.peak_created_bytes() <= 256 * M);
        }
        // a page is made once where it is needed: no more than what each takes over, and what was refused
        let creates = faulty.calls(Call::Create) - creates;
        let most = rounds * 192 * M / (2 * M) + 8 * rounds;
        assert!(creates <= most, "{pages:?}: {creates} pages made");
        end(two, &Faulty::new(pages.memory()));
        end(one, &faulty);
    }
}

#[test]
fn what_is_not_needed_for_long_goes_back_by_itself_while_the_device_is_short() {
    for pages in [Pages::Movable, Pages::Apart] {
        let faulty = device(pages, 256 * M);
        let (one, two) = (pool_on(&faulty, pages), pool_on(&faulty, pages));
        // one has been refused something, and then needs little
        let mut blocks: Vec<Addr> = (0..60).map(|_| alloc(&one, 4 * M)).collect();
        assert!(one.alloc(64 * M, 0, HOST).is_err());
        blocks.drain(6..).for_each(|at| free(&one, at));
        let held = reserved(&one);
        let live = |pool: &Pool, times: u64| {
            for _ in 0..times {
                let at = alloc(pool, 4 * M);
                free(pool, at);
            }
        };
        live(&one, 1000);
        assert_eq!(reserved(&one), held, "{pages:?}: not at once");
        assert!(two.alloc(128 * M, 0, HOST).is_err());
        live(&one, 2_000_000 / 8);
        assert!(reserved(&one) < 64 * M, "{pages:?}: {} B held", reserved(&one));
        let other = alloc(&two, 128 * M);
        free(&two, other);
        blocks.into_iter().for_each(|at| free(&one, at));
        end(two, &Faulty::new(pages.memory()));
        end(one, &faulty);
    }
}

#[test]
fn a_program_whose_need_comes_and_goes_keeps_its_memory() {
    for pages in [Pages::Movable, Pages::Apart] {
        let faulty = device(pages, 256 * M);
        let pool = pool_on(&faulty, pages);
        let round = || {
            let blocks: Vec<Addr> = (0..60).map(|_| alloc(&pool, 4 * M)).collect();
            blocks.into_iter().for_each(|at| free(&pool, at));
            for _ in 0..500 {
                let at = alloc(&pool, 4 * M);
                free(&pool, at);
            }
        };
        round();
        let whole = alloc(&pool, 200 * M);
        assert!(pool.alloc(100 * M, 0, HOST).is_err());
        free(&pool, whole);
        (0..4).for_each(|_| round());
        let calls = faulty.calls(Call::Create) + faulty.calls(Call::Release);
        (0..300).for_each(|_| round());
        let calls = faulty.calls(Call::Create) + faulty.calls(Call::Release) - calls;
        assert_eq!(calls, 0, "{pages:?}");
        end(pool, &faulty);
    }
}

#[test]
fn threads_keep_less_while_the_device_is_short() {
    let faulty = device(Pages::Movable, 64 * M);
    let pool = pool_on(&faulty, Pages::Movable);
    let cache = pool.open_cache(HOST).expect("a cache");
    let fill = || {
        let blocks: Vec<Addr> = (0..100)
            .map(|_| pool.alloc_beside(Some(&cache), 100 * K, 0, HOST).expect("memory"))
            .collect();
        for at in blocks {
            if cache.free(at).is_none() {
                pool.free_beside(Some(&cache), at, HOST).expect("a live block");
            }
        }
        pool.stats().expect("stats").cached
    };
    assert!(fill() > 8 * M);
    assert!(pool.alloc(100 * M, 0, HOST).is_err());
    let kept = fill();
    assert!(kept > 0 && kept < 2 * M, "{kept}");
    // until it has clearly more again
    faulty.set_capacity(u64::MAX);
    let large = alloc(&pool, 300 * M);
    assert!(fill() > 8 * M);
    pool.close_cache(&cache);
    free(&pool, large);
    end(pool, &faulty);
}

#[test]
fn a_small_request_takes_what_is_too_short_for_a_slab() {
    let pool = Pool::new(limited(2 * M), Counting::new(true)).expect("a pool");
    let most = pool.alloc(2 * M - 65_024, 0, HOST).expect("a block");
    let small = pool.alloc(1, 0, HOST).expect("63.5 KiB are free");
    assert_eq!(pool.block_size(small), Some(33_280));
    assert_eq!(small.0 % 256, 0);
    pool.alloc(1, 0, HOST).expect_err("30 KiB are left");
    pool.validate();
    assert_eq!(pool.free(small, HOST), Ok(33_280));
    pool.free(most, HOST).expect("a live block");
    // a slab for eight blocks of 30,000 B, and hardly anything else
    let one = pool.alloc(30_000, 0, HOST).expect("a block");
    let mut others = Vec::new();
    while let Ok(at) = pool.alloc(33 * K, 0, HOST) {
        others.push(at);
    }
    let beside = pool.alloc(1000, 0, HOST).expect("the slab has room");
    assert_eq!(pool.block_size(beside), pool.block_size(one));
    let aligned = pool.alloc(1000, 8 * K, HOST).expect("the slab has room");
    assert_eq!(aligned.0 % (8 * K), 0);
    pool.validate();
    for at in others.into_iter().chain([one, beside, aligned]) {
        pool.free(at, HOST).expect("a live block");
    }
    assert_eq!(pool.stats().expect("stats").used, 0);
}
