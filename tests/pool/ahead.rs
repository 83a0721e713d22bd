//! Memory made ahead of use: requests of a program that grows find it, it stays within its bounds, and its worker is in
//! nobody's way, to the end.

use crate::common::hook::Hooked;
use crate::common::random::Random;
use crate::common::real::eventually;
use crate::common::{K, M, Pages, SLOT, config};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use weir::backend::BackendError;
use weir::backend::call::Call;
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const HOST: StreamHandle = StreamHandle(0);
const AHEAD: u64 = 64 * M;
/// Pages of pools that hold little.
const PAGE: u64 = 8 * M;

fn ahead(growth_ahead: u64) -> Config {
    Config {
        growth_ahead,
        ..config()
    }
}

/// A pool that has a worker, with its books and a hook in front of them.
fn pool_with(pages: Pages, config: Config) -> (Arc<Pool>, Arc<Hooked>, Arc<Faulty>) {
    let faulty = Faulty::new(pages.memory());
    let hooked = Hooked::new(Arc::clone(&faulty) as _);
    let config = Config {
        blocks_in_one_page: pages == Pages::Apart,
        ..config
    };
    let pool = Arc::new(Pool::new(config, Arc::clone(&hooked) as _).expect("a pool"));
    pool.employ();
    (pool, hooked, faulty)
}

fn alloc(pool: &Pool, bytes: u64) -> Addr {
    pool.alloc(bytes, 0, HOST).expect("memory")
}

fn free(pool: &Pool, at: Addr) {
    pool.free(at, HOST).expect("a live block");
}

fn reserved(pool: &Pool) -> u64 {
    pool.stats().expect("stats").reserved
}

/// Waits until most of what the worker keeps ahead is there. It makes no more where a page is too much, and comes a page
/// later where a test was at work when it was called.
fn settle(pool: &Pool, bytes: u64) {
    eventually("the worker is done", || {
        pool.stats().expect("stats").free > bytes / 4 * 3 - PAGE
    });
}

/// Waits until the worker has not done anything for a while.
fn rest(faulty: &Faulty) {
    let mut calls = u64::MAX;
    while calls != faulty.calls(Call::Create) {
        calls = faulty.calls(Call::Create);
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn end(pool: Arc<Pool>, faulty: &Faulty) {
    pool.validate();
    assert_eq!(pool.end().blocks, 0);
    drop(pool);
    faulty.assert_empty();
}

/// Which threads create pages.
fn watch_creates(hooked: &Hooked, calls: usize) -> Arc<Mutex<Vec<ThreadId>>> {
    let threads = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..calls {
        let threads = Arc::clone(&threads);
        hooked.before(Call::Create, move || {
            threads.lock().expect("no panic").push(thread::current().id());
        });
    }
    threads
}

#[test]
fn after_its_first_request_a_growing_program_makes_no_page_call() {
    for pages in Pages::ALL {
        let (pool, hooked, faulty) = pool_with(pages, ahead(AHEAD));
        let threads = watch_creates(&hooked, 200);
        let mut blocks = Vec::new();
        let mut random = Random(7);
        for _ in 0..200 {
            blocks.push(alloc(&pool, 1 + random.below(4 * M)));
            settle(&pool, AHEAD);
        }
        let here = thread::current().id();
        let threads = threads.lock().expect("no panic").clone();
        let own = threads.iter().filter(|&&thread| thread == here).count();
        assert_eq!(own, 1, "{pages:?}: of {}", threads.len());
        assert!(threads.len() > 30, "{pages:?}: {}", threads.len());
        assert_eq!(pool.stats().expect("stats").misses, 1);
        blocks.into_iter().for_each(|at| free(&pool, at));
        end(pool, &faulty);
    }
}

#[test]
fn a_request_as_long_as_what_is_ahead_is_served_from_it() {
    let (pool, _, faulty) = pool_with(Pages::Movable, ahead(AHEAD));
    let first = alloc(&pool, PAGE);
    settle(&pool, AHEAD);
    rest(&faulty);
    // its pages lie one behind the other
    let misses = pool.stats().expect("stats").misses;
    let whole = alloc(&pool, AHEAD);
    assert_eq!(pool.stats().expect("stats").misses, misses);
    free(&pool, whole);
    free(&pool, first);
    end(pool, &faulty);
}

#[test]
fn a_pool_holds_more_by_what_is_ahead_and_no_more() {
    for pages in Pages::ALL {
        // the same program twice, with pages ahead and without
        let run = |growth_ahead: u64| {
            let (pool, _, faulty) = pool_with(pages, ahead(growth_ahead));
            let (mut random, mut blocks, mut most) = (Random(3), Vec::new(), 0);
            for step in 0..600u64 {
                if blocks.len() > 20 && random.one_in(3) {
                    free(
                        &pool,
                        blocks.swap_remove(random.below(blocks.len() as u64) as usize),
                    );
                } else {
                    let bytes = if random.one_in(4) { 6 * M } else { 200 * K };
                    blocks.push(alloc(&pool, 1 + random.below(bytes)));
                }
                if step % 8 == 0 && growth_ahead > 0 {
                    settle(&pool, growth_ahead);
                }
                most = most.max(reserved(&pool));
                if step % 100 == 0 {
                    pool.validate();
                }
            }
            let misses = pool.stats().expect("stats").misses;
            blocks.into_iter().for_each(|at| free(&pool, at));
            end(pool, &faulty);
            (most, misses)
        };
        let ((without, misses), (with, misses_left)) = (run(0), run(AHEAD));
        assert!(misses_left < misses, "{pages:?}: nothing was made ahead");
        assert!(
            with <= without + AHEAD,
            "{pages:?}: {with} B held, {without} B without pages ahead"
        );
    }
}

#[test]
fn rounds_that_repeat_themselves_make_no_page_and_none_goes() {
    let (pool, _, faulty) = pool_with(Pages::Movable, ahead(AHEAD));
    let round = || {
        let blocks: Vec<Addr> = (1..100).map(|n| alloc(&pool, n * 50_000)).collect();
        blocks.into_iter().for_each(|at| free(&pool, at));
    };
    for _ in 0..3 {
        round();
        rest(&faulty);
    }
    let calls = faulty.calls(Call::Create) + faulty.calls(Call::Release);
    (0..100).for_each(|_| round());
    rest(&faulty);
    assert_eq!(faulty.calls(Call::Create) + faulty.calls(Call::Release), calls);
    end(pool, &faulty);
}

#[test]
fn what_the_program_gave_back_is_not_taken_again_before_it_grows() {
    let (pool, _, faulty) = pool_with(Pages::Movable, ahead(AHEAD));
    let first = alloc(&pool, PAGE);
    settle(&pool, AHEAD);
    rest(&faulty);
    pool.trim(0).expect("a trim");
    let small = reserved(&pool);
    assert_eq!(small, PAGE);
    free(&pool, first);
    let again = alloc(&pool, PAGE);
    rest(&faulty);
    assert_eq!(reserved(&pool), small);
    let more = alloc(&pool, PAGE);
    settle(&pool, AHEAD);
    free(&pool, again);
    free(&pool, more);
    end(pool, &faulty);
}

#[test]
fn neither_limit_nor_threshold_is_exceeded() {
    for pages in Pages::ALL {
        let limit = 100 * M;
        let (pool, _, faulty) = pool_with(
            pages,
            Config {
                max_bytes: limit,
                ..ahead(AHEAD)
            },
        );
        let blocks: Vec<Addr> = (0..60).map(|_| alloc(&pool, M)).collect();
        rest(&faulty);
        assert!(faulty.peak_created_bytes() <= limit);
        // what was made ahead is in no request's way
        let rest_of_it = (0..38).map(|_| alloc(&pool, M));
        rest_of_it.chain(blocks).for_each(|at| free(&pool, at));
        end(pool, &faulty);

        let threshold = 40 * M;
        let (pool, _, faulty) = pool_with(
            pages,
            Config {
                release_threshold: threshold,
                ..ahead(AHEAD)
            },
        );
        let blocks: Vec<Addr> = (0..20).map(|_| alloc(&pool, M)).collect();
        rest(&faulty);
        assert!(reserved(&pool) > 24 * M && faulty.peak_created_bytes() <= threshold);
        blocks.into_iter().for_each(|at| free(&pool, at));
        end(pool, &faulty);
    }
}

#[test]
fn a_page_that_cannot_be_had_is_asked_for_once_until_a_request_has_grown() {
    for pages in Pages::ALL {
        let (pool, _, faulty) = pool_with(pages, ahead(AHEAD));
        faulty.set_capacity(5 * PAGE);
        let mut blocks = vec![alloc(&pool, M)];
        rest(&faulty);
        assert_eq!((faulty.failed_calls(), reserved(&pool)), (1, 5 * PAGE));
        // hits, as far as what is there reaches
        for _ in 0..5 * PAGE / M - 2 {
            blocks.push(alloc(&pool, M));
        }
        rest(&faulty);
        assert_eq!(faulty.failed_calls(), 1);
        faulty.set_capacity(u64::MAX);
        blocks.push(alloc(&pool, M));
        rest(&faulty);
        assert_eq!(reserved(&pool), 5 * PAGE, "nobody has grown yet");
        // not at the first request: a page may be less than what was refused
        blocks.extend((0..PAGE / M).map(|_| alloc(&pool, M)));
        settle(&pool, AHEAD);
        blocks.into_iter().for_each(|at| free(&pool, at));
        end(pool, &faulty);
    }
}

#[test]
fn whatever_fails_in_the_worker_is_no_request_s_concern() {
    let errors = [
        BackendError::OutOfMemory("none left, on purpose".into()),
        BackendError::Other("broken, on purpose".into()),
        BackendError::Lost("lost, on purpose".into()),
    ];
    for pages in Pages::ALL {
        for error in &errors {
            for nth in [1, 2, 3, 6, 9] {
                let (pool, _, faulty) = pool_with(pages, ahead(AHEAD));
                let calls = Arc::clone(&faulty);
                let first = alloc(&pool, M);
                rest(&faulty);
                // from now on the worker alone makes page calls
                pool.trim(0).expect("a trim");
                let more = alloc(&pool, 20 * M);
                rest(&faulty);
                free(&pool, more);
                pool.squeeze().expect("a squeeze");
                calls.fail_nth(nth, error.clone());
                let (mut failed, mut blocks) = (0, Vec::new());
                for _ in 0..40 {
                    match pool.alloc(M, 0, HOST) {
                        Ok(at) => blocks.push(at),
                        Err(Error::OutOfMemory(_) | Error::Backend(_) | Error::DeviceLost(_)) => failed += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                    pool.validate();
                }
                rest(&faulty);
                // at most the request that met the failing call
                assert!(failed <= 1);
                let stats = pool.stats().expect("stats");
                assert_eq!(stats.reserved, faulty.created_bytes(), "memory was lost");
                faulty.heal();
                blocks.push(alloc(&pool, 100 * M));
                blocks.push(first);
                blocks.into_iter().for_each(|at| free(&pool, at));
                end(pool, &faulty);
            }
        }
    }
}

/// The worker stands still in its next call of a kind, until what is returned is dropped.
fn hold_worker(hooked: &Hooked, pool: &Arc<Pool>) -> std::sync::mpsc::Sender<()> {
    let (entered_sender, entered) = channel();
    let (sender, gate) = channel::<()>();
    // the first page is the request's own
    hooked.before(Call::Create, || ());
    hooked.before(Call::Create, move || {
        entered_sender.send(thread::current().id()).expect("a receiver");
        let _ = gate.recv();
    });
    let first = alloc(pool, M);
    assert_ne!(entered.recv().expect("a page ahead"), thread::current().id());
    free(pool, first);
    sender
}

#[test]
fn nobody_waits_for_more_than_the_page_that_is_being_made() {
    for pages in Pages::ALL {
        let (pool, hooked, faulty) = pool_with(pages, ahead(1 << 30));
        let gate = hold_worker(&hooked, &pool);
        // what is at hand is served at once
        let hit = alloc(&pool, M);
        free(&pool, hit);
        // what is not waits for the one page, and then comes before the others
        let threads = watch_creates(&hooked, 4);
        let missing = thread::scope(|scope| {
            let request = scope.spawn(|| (alloc(&pool, 60 * M), thread::current().id()));
            thread::sleep(std::time::Duration::from_millis(100));
            assert!(!request.is_finished());
            drop(gate);
            request.join().expect("no panic")
        });
        assert_eq!(threads.lock().expect("no panic")[0], missing.1, "{pages:?}");
        // and the worker is back at work by itself
        eventually("the rest is made", || {
            pool.stats().expect("stats").free + 2 * PAGE > 1 << 30
        });
        free(&pool, missing.0);
        end(pool, &faulty);
    }
}

/// The worker leaves where somebody makes room or gives it back, and comes again when that is over, whether anything is asked for or not.
#[test]
fn who_has_kept_the_worker_from_its_work_calls_it_again() {
    let (pool, hooked, faulty) = pool_with(Pages::Movable, ahead(AHEAD));
    let first = alloc(&pool, PAGE);
    settle(&pool, AHEAD);
    rest(&faulty);
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (inside, blocks) = (Arc::clone(&pool), Arc::clone(&taken));
    hooked.before(Call::Release, move || {
        let more = (0..4).map(|_| alloc(&inside, PAGE));
        blocks.lock().expect("no panic").extend(more);
        thread::sleep(std::time::Duration::from_millis(100)); // for the worker to come and go
    });
    pool.trim(reserved(&pool) - PAGE).expect("a trim");
    settle(&pool, AHEAD);
    let taken = std::mem::take(&mut *taken.lock().expect("no panic"));
    taken.into_iter().chain([first]).for_each(|at| free(&pool, at));
    end(pool, &faulty);
}

#[test]
fn the_end_waits_for_the_page_that_is_being_made() {
    for pages in Pages::ALL {
        let (pool, hooked, faulty) = pool_with(pages, ahead(1 << 30));
        let gate = hold_worker(&hooked, &pool);
        let opener = thread::spawn(move || {
            thread::sleep(std::time::Duration::from_millis(50));
            drop(gate);
        });
        assert_eq!(pool.end().blocks, 0);
        faulty.assert_empty();
        assert_eq!(pool.end().blocks, 0, "and a second time");
        opener.join().expect("no panic");
        // no worker comes again
        let calls = faulty.total_calls();
        assert!(pool.alloc(M, 0, HOST).is_err());
        drop(pool);
        assert_eq!(faulty.calls(Call::Create), faulty.calls(Call::Release));
        assert!(
            faulty.total_calls() <= calls + 1,
            "the stream was looked up at most"
        );
    }
}

#[test]
fn a_worker_may_be_the_last_to_let_go_of_its_pool() {
    let (pool, hooked, faulty) = pool_with(Pages::Movable, ahead(1 << 30));
    let gate = hold_worker(&hooked, &pool);
    drop(pool);
    drop(gate);
    eventually("the pool ends", || faulty.reservations() == 0);
    faulty.assert_empty();
}

#[test]
fn a_pool_without_a_worker_serves_all_the_same() {
    let faulty = Faulty::new(Pages::Movable.memory());
    let pool = Arc::new(Pool::new(ahead(AHEAD), Arc::clone(&faulty) as _).expect("a pool"));
    let blocks: Vec<Addr> = (0..50).map(|_| alloc(&pool, M)).collect();
    assert!(reserved(&pool) < 50 * M + AHEAD / 2);
    pool.employ();
    pool.dismiss();
    let more = alloc(&pool, AHEAD);
    assert!(reserved(&pool) < 50 * M + AHEAD + AHEAD / 2, "dismissed for good");
    blocks.into_iter().chain([more]).for_each(|at| free(&pool, at));
    end(pool, &faulty);
}

#[test]
fn a_driver_that_is_gone_is_not_called() {
    for pages in Pages::ALL {
        let (pool, _, faulty) = pool_with(pages, ahead(AHEAD));
        let first = alloc(&pool, M);
        settle(&pool, AHEAD);
        rest(&faulty);
        faulty.unload();
        assert_eq!(pool.alloc(AHEAD, 0, HOST), Err(Error::Unloaded));
        free(&pool, first);
        assert_eq!(pool.end().blocks, 0);
        drop(pool);
        assert_eq!(faulty.calls_when_gone(), 0);
    }
}

#[test]
fn what_cannot_be_kept_ahead_is_refused() {
    let refused = |config: Config| match Pool::new(config, Pages::Movable.memory()) {
        Err(Error::InvalidArgument(why)) => assert!(why.contains("growth_ahead"), "{why}"),
        other => panic!("{other:?}"),
    };
    refused(ahead(1));
    refused(ahead(SLOT - 1));
    refused(Config {
        max_bytes: 16 * M,
        ..ahead(16 * M + 1)
    });
    for growth_ahead in [SLOT, 3 * M, 16 * M] {
        let (pool, _, faulty) = pool_with(
            Pages::Movable,
            Config {
                max_bytes: 16 * M,
                ..ahead(growth_ahead)
            },
        );
        let block = alloc(&pool, M);
        rest(&faulty);
        free(&pool, block);
        end(pool, &faulty);
    }
}
