//! Pages that stay apart: every block lies in one of them. And memory that comes with its address, where they must.

use crate::common::random::Random;
use crate::common::real::end;
use crate::common::sim::Sim;
use crate::common::{K, M, SLOT, config};
use std::sync::Arc;
use weir::backend::BackendError;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const HOST: StreamHandle = StreamHandle(0);

/// A pool of pages that stay apart, without streams or memory, and its books.
fn apart(max_bytes: u64, initial_bytes: u64) -> (Pool, Arc<Faulty>) {
    apart_over(Counting::new(true), max_bytes, initial_bytes)
}

/// The same of memory that comes with its address.
fn placed(max_bytes: u64) -> (Pool, Arc<Faulty>) {
    apart_over(Counting::with_addresses(true), max_bytes, 0)
}

fn apart_over(memory: Arc<Counting>, max_bytes: u64, initial_bytes: u64) -> (Pool, Arc<Faulty>) {
    let faulty = Faulty::new(memory);
    let config = Config {
        max_bytes,
        initial_bytes,
        blocks_in_one_page: true,
        ..config()
    };
    let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
    (pool, faulty)
}

fn alloc(pool: &Pool, bytes: u64) -> Addr {
    let at = pool.alloc(bytes, 0, HOST).expect("a block");
    pool.validate();
    at
}

fn free(pool: &Pool, blocks: impl IntoIterator<Item = Addr>) {
    for at in blocks {
        pool.free(at, HOST).expect("a live block");
        pool.validate();
    }
}

fn alloc_from(sim: &Sim, pool: &Pool) -> Result<Addr, Error> {
    sim.naming(&[HOST], || pool.alloc(64 * M, 0, HOST))
}

fn free_to(sim: &Sim, pool: &Pool, blocks: impl IntoIterator<Item = Addr>) {
    sim.naming(&[HOST], || free(pool, blocks));
}

fn reserved(pool: &Pool) -> u64 {
    pool.stats().expect("stats").reserved
}

#[test]
fn a_page_is_a_quarter_of_the_need_or_all_of_it() {
    let (pool, faulty) = apart(0, 0);
    let small = alloc(&pool, 100);
    assert_eq!(reserved(&pool), 8 * M);
    let large = alloc(&pool, 100 * M + 5);
    assert_eq!(reserved(&pool), 8 * M + 102 * M);
    // 110 MiB are needed now
    let more = alloc(&pool, 9 * M);
    assert_eq!(reserved(&pool), 8 * M + 102 * M + 26 * M);
    let largest = alloc(&pool, 1024 * M);
    let next = alloc(&pool, 30 * M);
    assert_eq!(reserved(&pool), 8 * M + 102 * M + 26 * M + 1024 * M + 64 * M);
    free(&pool, [small, large, more, largest, next]);
    end(pool, &faulty);
}

#[test]
fn at_the_limit_a_page_is_no_larger_than_needed() {
    let (pool, faulty) = apart(16 * M, 0);
    let first = alloc(&pool, 5 * M);
    assert_eq!(reserved(&pool), 8 * M);
    let second = alloc(&pool, 4 * M);
    assert_eq!(reserved(&pool), 12 * M);
    let third = alloc(&pool, 3 * M + 1);
    assert_eq!(reserved(&pool), 16 * M);
    free(&pool, [first, second, third]);
    end(pool, &faulty);
}

#[test]
fn free_ends_of_neighbours_make_no_block() {
    // the pages lie side by side, so addresses alone would do
    let (pool, faulty) = apart(0, 0);
    let first: Vec<Addr> = (0..2).map(|_| alloc(&pool, 4 * M)).collect();
    let second: Vec<Addr> = (0..2).map(|_| alloc(&pool, 4 * M)).collect();
    assert_eq!((reserved(&pool), second[0].0), (16 * M, first[0].0 + 8 * M));
    free(&pool, [first[1], second[0]]);
    assert_eq!(pool.stats().expect("stats").largest_free, 4 * M);
    let across = alloc(&pool, 8 * M);
    assert_eq!(reserved(&pool), 24 * M);
    free(&pool, [first[0], second[1], across]);
    end(pool, &faulty);
}

#[test]
fn pages_of_the_wrong_size_are_given_back_before_a_request_fails() {
    let (pool, faulty) = apart(64 * M, 0);
    let blocks: Vec<Addr> = (0..8).map(|_| alloc(&pool, 8 * M)).collect();
    free(&pool, blocks);
    let maps = faulty.calls(Call::Map);
    let all = alloc(&pool, 64 * M);
    assert_eq!(
        (faulty.pages(), faulty.calls(Call::Map)),
        (1, maps + 1),
        "one page for all of it"
    );
    assert_eq!(faulty.peak_created_bytes(), 64 * M);
    free(&pool, [all]);
    end(pool, &faulty);
}

/// Pages of the lengths of these blocks, all of which were in use at once, and now are free.
fn pages_of(pool: &Pool, blocks: &[u64]) {
    let blocks: Vec<Addr> = blocks.iter().map(|&bytes| alloc(pool, bytes)).collect();
    free(pool, blocks);
}

#[test]
fn short_pages_make_way_for_a_long_one() {
    for (pool, faulty) in [apart(0, 0), placed(0)] {
        pages_of(&pool, &[100 * M; 5]);
        assert_eq!(reserved(&pool), 500 * M);
        // as much as was needed before, and less than a page beyond
        let long = alloc(&pool, 450 * M);
        assert_eq!(reserved(&pool), 550 * M);
        // the one that is left does for what fits into it
        let short = alloc(&pool, 50 * M);
        assert_eq!((reserved(&pool), faulty.pages()), (550 * M, 2));
        free(&pool, [long, short]);
        end(pool, &faulty);
    }
}

#[test]
fn pages_in_use_make_no_way() {
    for (pool, faulty) in [apart(0, 0), placed(0)] {
        let kept: Vec<Addr> = (0..5)
            .flat_map(|_| [alloc(&pool, 99 * M), alloc(&pool, M)])
            .collect();
        assert_eq!(reserved(&pool), 500 * M);
        free(&pool, kept.iter().copied().step_by(2));
        let long = alloc(&pool, 450 * M);
        assert_eq!(reserved(&pool), 950 * M, "a block lies in each of the others");
        free(&pool, kept.into_iter().skip(1).step_by(2).chain([long]));
        end(pool, &faulty);
    }
}

#[test]
fn below_a_limit_that_may_come_near_nothing_makes_way() {
    let (pool, faulty) = apart(1400 * M, 0);
    pages_of(&pool, &[100 * M; 5]);
    let long = alloc(&pool, 450 * M);
    assert_eq!(reserved(&pool), 950 * M, "which it may hold");
    free(&pool, [long]);
    end(pool, &faulty);
}

/// Blocks come and go in no order, in phases of short ones, longer ones and long ones: before long the pool holds enough for all of them.
#[test]
fn there_is_an_end_to_exchanges() {
    const LIVE: u64 = 8192 * M;
    let phases = [(1, 16), (32, 128), (200, 512)];
    for (pool, faulty) in [apart(0, 0), placed(0)] {
        let (random, mut live, mut used) = (&mut Random(1), Vec::new(), 0);
        let mut exchanges = Vec::new();
        for round in 0..60 {
            let (least, most) = phases[round % phases.len()];
            for _ in 0..700 {
                let bytes = (least + random.below(most - least)) * M;
                while used + bytes > LIVE {
                    let (at, bytes) = live.swap_remove(random.below(live.len() as u64) as usize);
                    pool.free(at, HOST).expect("a live block");
                    used -= bytes;
                }
                live.push((pool.alloc(bytes, 0, HOST).expect("a block"), bytes));
                used += bytes;
            }
            pool.validate();
            exchanges.push(pool.stats().expect("stats").page_releases);
        }
        let (first, half, last) = (exchanges[5], exchanges[29], exchanges[59]);
        assert!(first > 100 && last - half < 30, "{exchanges:?}");
        let held = pool.stats().expect("stats").reserved_peak;
        assert!(held < LIVE / 4 * 9, "{} MiB for 8 GiB", held / M);
        free(&pool, live.into_iter().map(|block| block.0));
        end(pool, &faulty);
    }
}

#[test]
fn initial_bytes_are_one_page() {
    let (pool, faulty) = apart(0, 100 * M);
    let creates = faulty.calls(Call::Create);
    let all = alloc(&pool, 100 * M);
    assert_eq!((creates, faulty.calls(Call::Create)), (1, 1));
    free(&pool, [all]);
    end(pool, &faulty);
}

#[test]
fn alignment_beyond_a_page_is_honoured() {
    for (pool, faulty) in [apart(0, 0), placed(0)] {
        let mut blocks = Vec::new();
        for shift in 8..=30 {
            for bytes in [1, 40 * K, 3 * M] {
                let at = pool.alloc(bytes, 1 << shift, HOST).expect("a block");
                assert_eq!(at.0 % (1 << shift), 0);
                pool.validate();
                blocks.push(at);
            }
        }
        free(&pool, blocks);
        end(pool, &faulty);
    }
}

#[test]
fn a_page_that_could_not_be_mapped_is_the_next_requests() {
    let (pool, faulty) = apart(0, 0);
    let small = alloc(&pool, 100);
    faulty.fail_nth_of(Call::Map, 1, BackendError::Other("on purpose".into()));
    pool.alloc(20 * M, 0, HOST)
        .expect_err("the page is mapped nowhere");
    pool.validate();
    assert_eq!(pool.stats().expect("stats").idle, 20 * M);
    let creates = faulty.calls(Call::Create);
    let fits = alloc(&pool, 18 * M);
    assert_eq!(faulty.calls(Call::Create), creates);
    assert_eq!((pool.stats().expect("stats").idle, reserved(&pool)), (0, 28 * M));
    let least = alloc(&pool, SLOT);
    assert_eq!(reserved(&pool), 28 * M, "the rest of that page");
    free(&pool, [small, fits, least]);
    end(pool, &faulty);
}

// Memory that comes with its address.

#[test]
fn such_memory_is_neither_reserved_nor_mapped() {
    let (pool, faulty) = placed(0);
    let blocks: Vec<Addr> = [100, 50 * M, 3 * M, 200 * M]
        .iter()
        .map(|&bytes| alloc(&pool, bytes))
        .collect();
    free(&pool, blocks);
    pool.squeeze().expect("a squeeze");
    let stats = pool.stats().expect("stats");
    assert_eq!((stats.maps, stats.unmaps, stats.reserved), (0, 0, 0));
    assert_eq!(stats.page_creates, stats.page_releases);
    assert_eq!(
        (faulty.calls(Call::Reserve), faulty.calls(Call::Unreserve)),
        (0, 0)
    );
    end(pool, &faulty);
}

#[test]
fn an_address_may_come_again_with_another_page() {
    let (pool, faulty) = placed(0);
    let kept = alloc(&pool, 100 * M);
    let mut seen = Vec::new();
    for round in 1..20 {
        let at = alloc(&pool, round * 10 * M);
        assert!(pool.contains(at) && pool.contains(Addr(at.0 + round * 10 * M - 1)));
        seen.push(at.0 / (16 * M));
        free(&pool, [at]);
        pool.trim(100 * M).expect("a trim");
        pool.validate();
        assert_eq!(reserved(&pool), 100 * M);
        assert!(!pool.contains(at));
        assert_eq!(pool.free(at, HOST), Err(Error::UnknownPointer(at)));
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "the same place each time");
    free(&pool, [kept]);
    end(pool, &faulty);
}

#[test]
fn many_segments_are_found_and_given_back_in_any_order() {
    let (pool, faulty) = placed(0);
    let count = 2000u64;
    let blocks: Vec<Addr> = (0..count)
        .map(|_| pool.alloc(64 * M, 0, HOST).expect("a block"))
        .collect();
    assert_eq!(faulty.pages(), count);
    // 7 has no factor in common with their number
    for round in 0..count {
        let at = blocks[(round * 7 % count) as usize];
        assert_eq!(pool.block_size(at), Some(64 * M));
        pool.free(at, HOST).expect("a live block");
        if round % 500 == 250 {
            pool.trim(0).expect("a trim");
            pool.validate();
            assert_eq!(faulty.pages(), count - round - 1);
        }
    }
    end(pool, &faulty);
}

#[test]
fn memory_at_an_odd_address_is_refused() {
    let sim = Sim::over(Counting::with_addresses(true), 0);
    let pool = Pool::new(config(), Arc::clone(&sim) as _).expect("a pool");
    let fine = alloc_from(&sim, &pool).expect("a block");
    sim.displace(256);
    assert!(matches!(
        alloc_from(&sim, &pool),
        Err(Error::Backend(why)) if why.contains("not aligned to 512 B")
    ));
    pool.validate();
    sim.displace(0);
    let next = alloc_from(&sim, &pool).expect("a block");
    assert_eq!(pool.stats().expect("stats").page_releases, 1, "it was given back");
    free_to(&sim, &pool, [fine, next]);
    assert_eq!(pool.end().blocks, 0);
}

#[test]
fn a_round_that_comes_again_joins_no_pages() {
    let (pool, faulty) = apart(100 * M, 0);
    let alloc = |bytes| pool.alloc(bytes, 0, HOST).expect("a block");
    let kept = alloc(7 * M);
    // the sixteen MiB have a page, and the turn is taken back
    let mut blocks = [Addr(0); 4];
    pool.alloc_batch(&[100 * K, 100 * K, 16 * M, 90 * M], HOST, &mut blocks)
        .expect_err("too much");
    pool.trim(0).expect("a trim");
    // pages of half that length lie side by side where it lay
    let halves = [alloc(8 * M), alloc(8 * M)];
    for at in halves {
        pool.free(at, HOST).expect("a live block");
    }
    let again = alloc(16 * M);
    pool.validate();
    for at in [kept, again] {
        pool.free(at, HOST).expect("a live block");
    }
    end(pool, &faulty);
}
