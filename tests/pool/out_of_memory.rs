//! The way of a request that does not fit, and giving memory back.

use crate::common::real::{Recorded, Stream, alone, end, eventually, pool, synchronize};
use crate::common::sim::{FIRST_STREAM, Sim};
use crate::common::{K, M, Pages, SLOT, config, limited};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;
use weir::alloc::size::MAX_REQUEST;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::base::error::{Error, Shortage};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Attribute, Pool};

const HOST: StreamHandle = StreamHandle(0);

/// A pool without streams or memory, and its books.
fn bare(config: Config) -> (Pool, Arc<Faulty>) {
    bare_with(Pages::Movable, config)
}

/// The same with these pages.
fn bare_with(pages: Pages, config: Config) -> (Pool, Arc<Faulty>) {
    let faulty = Faulty::new(pages.memory());
    let config = Config {
        blocks_in_one_page: pages == Pages::Apart,
        ..config
    };
    let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
    (pool, faulty)
}

fn shortage(error: Error) -> Shortage {
    match error {
        Error::OutOfMemory(shortage) => *shortage,
        error => panic!("{error:?}"),
    }
}

#[test]
fn the_limit_is_a_limit_at_every_moment() {
    for pages in Pages::ALL {
        // blocks of every size come and go just below the limit: no transient page above it
        for limit in [2 * M, 6 * M + 123, 100 * M, 1 << 30] {
            let (pool, faulty) = bare_with(pages, limited(limit));
            let mut blocks = Vec::new();
            for round in 0..400u64 {
                let bytes = (round * 0x9E37_79B9 % (limit / 3)).max(1);
                match pool.alloc(bytes, 0, HOST) {
                    Ok(at) => blocks.push(at),
                    Err(error) => {
                        assert_eq!(shortage(error).limit, limit);
                        pool.free(blocks.remove(blocks.len() / 2), HOST)
                            .expect("a live block");
                    }
                }
                assert!(faulty.peak_created_bytes() <= limit);
            }
            for at in blocks {
                pool.free(at, HOST).expect("a live block");
            }
            end(pool, &faulty);
        }
    }
}

#[test]
fn free_slabs_are_room_even_if_no_page_can_go() {
    for pages in Pages::ALL {
        let (pool, faulty) = bare_with(pages, limited(8 * M));
        let whole = pool.alloc(8 * M, 0, HOST).expect("the only page");
        pool.free(whole, HOST).expect("a live block");
        // a free slab of each class is kept, and the page is never wholly free
        let small: Vec<Addr> = (1..=128)
            .map(|n| pool.alloc(n * 256, 0, HOST).expect("a small block"))
            .collect();
        let pin = pool.alloc(M, 0, HOST).expect("a block");
        for at in small {
            pool.free(at, HOST).expect("a live block");
        }
        let behind = pool.stats().expect("a pool").largest_free;
        let tail = pool.alloc(behind, 0, HOST).expect("what lies behind");
        assert!(pool.stats().expect("a pool").cached > M);
        let rest = pool
            .alloc(M, 0, HOST)
            .expect("room that only slabs are in the way of");
        pool.validate();
        for at in [rest, pin, tail] {
            pool.free(at, HOST).expect("a live block");
        }
        end(pool, &faulty);
    }
}

#[test]
fn initial_bytes_count_against_the_limit() {
    let faulty = Faulty::new(Counting::new(true));
    let config = |initial_bytes, max_bytes| Config {
        initial_bytes,
        ..limited(max_bytes)
    };
    let refused = Pool::new(config(3 * M, 3 * M), Arc::clone(&faulty) as _);
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "3 MiB are two pages of 2 MiB"
    );
    let pool = Pool::new(config(3 * M, 5 * M), Arc::clone(&faulty) as _).expect("a pool");
    assert_eq!(pool.stats().expect("stats").reserved, 4 * M);
    let creates = faulty.calls(Call::Create);
    pool.alloc(4 * M, 0, HOST).expect("taken already");
    assert_eq!(faulty.calls(Call::Create), creates);
    drop(pool);
    faulty.assert_empty();
    // a device that has not as much
    faulty.set_capacity(16 * M);
    let refused = Pool::new(config(64 * M, 0), Arc::clone(&faulty) as _);
    assert_eq!(shortage(refused.expect_err("too much")).asked, 64 * M);
    faulty.assert_empty();
    // what no device has
    let creates = faulty.calls(Call::Create);
    for bytes in [MAX_REQUEST + 1, u64::MAX - 4 * M, u64::MAX] {
        for max_bytes in [0, 1 << 30] {
            let refused = Pool::new(config(bytes, max_bytes), Arc::clone(&faulty) as _);
            assert!(matches!(refused, Err(Error::SizeTooLarge { .. })), "{refused:?}");
        }
    }
    assert_eq!(faulty.calls(Call::Create), creates);
}

#[test]
fn a_failure_names_the_numbers_and_changes_nothing() {
    for pages in Pages::ALL {
        let (pool, faulty) = bare_with(pages, limited(64 * M));
        let kept = pool.alloc(20 * M, 0, HOST).expect("a block");
        let error = pool.alloc(60 * M, 0, HOST).expect_err("too much");
        let text = error.to_string();
        for part in [
            "60.00 MiB (62914560 B)",
            "used 20.00 MiB",
            "limit 64.00 MiB",
            "stream 0x0",
            "raise max_bytes",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        let numbers = shortage(error);
        assert_eq!(
            (numbers.asked, numbers.used, numbers.limit),
            (60 * M, 20 * M, 64 * M)
        );
        assert_eq!(numbers.backend, "", "the limit stopped it");
        let stats = pool.stats().expect("stats");
        assert_eq!((stats.used, stats.failures), (20 * M, 1));
        pool.validate();
        // the next smaller one succeeds
        let next = pool.alloc(44 * M, 0, HOST).expect("44 MiB are left");
        assert_eq!(pool.stats().expect("stats").reserved, 64 * M);
        pool.free(next, HOST).expect("a live block");
        pool.free(kept, HOST).expect("a live block");
        end(pool, &faulty);
    }
}

#[test]
fn what_can_never_be_served_is_refused_without_a_call() {
    let (pool, faulty) = bare(config());
    let calls = faulty.total_calls();
    let most = 1 << 46;
    assert_eq!(
        pool.alloc(u64::MAX, 0, HOST),
        Err(Error::SizeTooLarge {
            asked: u64::MAX,
            most
        })
    );
    assert!(matches!(
        pool.alloc(most + 1, 0, HOST),
        Err(Error::SizeTooLarge { .. })
    ));
    assert!(matches!(
        pool.alloc(1, 3, HOST),
        Err(Error::InvalidAlignment { .. })
    ));
    assert!(matches!(
        pool.alloc(1, 1 << 31, HOST),
        Err(Error::InvalidAlignment { .. })
    ));
    let mut out = [Addr(0); 2];
    assert!(matches!(
        pool.alloc_batch(&[1, most + 1], HOST, &mut out),
        Err(Error::SizeTooLarge { .. })
    ));
    assert!(matches!(
        pool.warmup(&[1, 1], &[1 << 32, 1], HOST),
        Err(Error::InvalidArgument(_))
    ));
    assert_eq!(faulty.total_calls(), calls);
    end(pool, &faulty);
}

#[test]
fn a_full_device_is_like_a_limit() {
    for pages in Pages::ALL {
        let (pool, faulty) = bare_with(pages, config());
        faulty.set_capacity(70 * M);
        let kept = pool.alloc(20 * M, 0, HOST).expect("a block");
        let before = pool.stats().expect("stats").reserved;
        let numbers = shortage(pool.alloc(60 * M, 0, HOST).expect_err("too much"));
        assert!(numbers.backend.contains("capacity"), "{numbers:?}");
        let after = pool.stats().expect("stats").reserved;
        assert!(
            after <= before,
            "{after} B kept of a device that others need, {before} B before"
        );
        // to the last page
        let mut blocks = vec![kept];
        while let Ok(at) = pool.alloc(SLOT, 0, HOST) {
            blocks.push(at);
        }
        assert_eq!(pool.stats().expect("stats").used, 70 * M);
        for at in blocks {
            pool.free(at, HOST).expect("a live block");
        }
        // what is free is found whatever its pages
        let all = pool.alloc(70 * M, 0, HOST).expect("all of it");
        pool.free(all, HOST).expect("a live block");
        end(pool, &faulty);
    }
}

#[test]
fn a_batch_is_all_or_nothing() {
    for pages in Pages::ALL {
        let (pool, faulty) = bare_with(pages, limited(64 * M));
        let mut out = [Addr(0); 4];
        let sizes = [100, 30 * M, 200 * K, 60 * M];
        shortage(pool.alloc_batch(&sizes, HOST, &mut out).expect_err("too much"));
        assert_eq!(out, [Addr(0); 4]);
        let stats = pool.stats().expect("stats");
        assert_eq!((stats.used, stats.allocations, stats.frees), (0, 0, 0));
        pool.validate();
        pool.alloc_batch(&sizes[..3], HOST, &mut out[..3]).expect("fits");
        for at in &out[..3] {
            pool.free(*at, HOST).expect("a live block");
        }
        end(pool, &faulty);
    }
}

// The order of a miss.

#[test]
fn free_memory_comes_before_pages_and_pages_before_growth_at_the_limit() {
    let (pool, faulty) = bare(limited(512 * M));
    let blocks: Vec<Addr> = (0..32)
        .map(|_| pool.alloc(16 * M, 0, HOST).expect("a block"))
        .collect();
    let pages = faulty.calls(Call::Create);
    let maps = faulty.calls(Call::Map);
    // what is free: no call at all
    pool.free(blocks[7], HOST).expect("a live block");
    let calls = faulty.total_calls();
    let again = pool.alloc(16 * M, 0, HOST).expect("free");
    assert_eq!(
        (again, faulty.total_calls()),
        (blocks[7], calls + 1),
        "stream_id alone"
    );
    // no two neighbours: pages are moved, none created
    for index in (0..32).step_by(2) {
        pool.free(blocks[index], HOST).expect("a live block");
    }
    let large = pool.alloc(256 * M, 0, HOST).expect("half of it is free");
    assert_eq!(faulty.calls(Call::Create), pages);
    assert!(faulty.calls(Call::Map) > maps);
    assert_eq!(faulty.calls(Call::SynchronizeAll), 0, "nobody had to wait");
    pool.free(large, HOST).expect("a live block");
    for index in (1..32).step_by(2) {
        pool.free(blocks[index], HOST).expect("a live block");
    }
    end(pool, &faulty);
}

#[test]
fn waiting_comes_last() {
    let sim = Sim::new(2);
    let faulty = Faulty::new(Arc::clone(&sim) as _);
    let pool = Pool::new(limited(64 * M), Arc::clone(&faulty) as _).expect("a pool");
    let (one, two) = (StreamHandle(FIRST_STREAM), StreamHandle(FIRST_STREAM + 1));
    let alloc = |bytes, stream, name| {
        let at = sim.naming(&[stream], || pool.alloc(bytes, 0, stream));
        at.inspect(|at| sim.touch(stream, name, at.0, bytes))
    };
    let free = |at, stream| {
        sim.naming(&[stream], || pool.free(at, stream))
            .expect("a live block")
    };
    let first = alloc(32 * M, one, 1).expect("a block");
    free(first, one);
    // room to grow: neither a stream nor the host waits
    let second = alloc(32 * M, two, 2).expect("a block");
    assert_eq!((sim.waits(), faulty.calls(Call::SynchronizeAll)), (0, 0));
    // none: the stream waits, the host does not
    let third = alloc(32 * M, two, 3).expect("a block");
    assert_eq!((sim.waits() > 0, faulty.calls(Call::SynchronizeAll)), (true, 0));
    free(third, two);
    free(second, two);
    // pages of both streams, at the end of the way
    let all = alloc(64 * M, one, 4).expect("a block");
    free(all, one);
    assert!(faulty.peak_created_bytes() <= 64 * M);
    pool.validate();
    assert_eq!(pool.end().blocks, 0);
    drop(pool);
    faulty.assert_empty();
}

// The callback.

/// A pool whose callback is told what to do.
type Task = Box<dyn FnMut(&Pool) -> bool + Send>;

fn with_callback(max_bytes: u64, task: Task) -> (Arc<Pool>, Arc<Faulty>, Arc<AtomicU64>) {
    let faulty = Faulty::new(Counting::new(true));
    let (asked, task) = (Arc::new(AtomicU64::new(0)), Mutex::new(task));
    let count = Arc::clone(&asked);
    let pool = Arc::new_cyclic(|weak: &Weak<Pool>| {
        let weak = weak.clone();
        let config = Config {
            on_oom: Some(Arc::new(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                let pool = weak.upgrade().expect("a pool in use");
                (task.lock().expect("no panic"))(&pool)
            })),
            ..limited(max_bytes)
        };
        Pool::new(config, Arc::clone(&faulty) as _).expect("a pool")
    });
    (pool, faulty, asked)
}

#[test]
fn the_callback_may_free_and_the_request_is_tried_again() {
    let cached = Arc::new(Mutex::new(Vec::new()));
    let shelf = Arc::clone(&cached);
    let task = move |pool: &Pool| {
        // no lock is held: everything may be called
        pool.trim(0).expect("a trim");
        pool.squeeze().expect("a squeeze");
        pool.validate();
        let mut blocks = shelf.lock().expect("no panic");
        let last: Vec<Addr> = blocks.pop().into_iter().chain(blocks.pop()).collect();
        !last.is_empty() && last.into_iter().all(|at| pool.free(at, HOST).is_ok())
    };
    let (pool, faulty, asked) = with_callback(64 * M, Box::new(task));
    for _ in 0..4 {
        let at = pool.alloc(16 * M, 0, HOST).expect("a block");
        cached.lock().expect("no panic").push(at);
    }
    let large = pool
        .alloc(30 * M, 0, HOST)
        .expect("two blocks of the cache make room");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(pool.stats().expect("stats").failures, 0);
    // asked once a request, whatever it says
    shortage(pool.alloc(64 * M, 0, HOST).expect_err("too much"));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    // and it may give up
    shortage(pool.alloc(64 * M, 0, HOST).expect_err("too much"));
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    assert_eq!(pool.stats().expect("stats").failures, 2);
    pool.free(large, HOST).expect("a live block");
    end(Arc::into_inner(pool).expect("the only owner"), &faulty);
}

#[test]
fn the_callback_holds_nobody_up() {
    let (pool, faulty, _) = with_callback(
        16 * M,
        Box::new(|pool| {
            thread::scope(|scope| {
                // another thread can do all that this one can
                let other = scope.spawn(|| {
                    let at = pool.alloc(100, 0, HOST).expect("a block");
                    pool.free(at, HOST).expect("a live block");
                    pool.squeeze().expect("a squeeze");
                });
                other.join().expect("no panic");
            });
            false
        }),
    );
    let small = pool.alloc(100, 0, HOST).expect("a block");
    shortage(pool.alloc(64 * M, 0, HOST).expect_err("too much"));
    pool.free(small, HOST).expect("a live block");
    end(Arc::into_inner(pool).expect("the only owner"), &faulty);
}

// Giving back.

#[test]
fn squeeze_waits_for_pending_frees_and_trim_does_not() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let shared = pool.alloc(16 * M, 0, one.0).expect("a block");
    let plain = pool.alloc(16 * M, 0, two.0).expect("a block");
    let gate = one.gate();
    one.write(shared, 16 * M, 1);
    pool.record_stream(shared, two.0).expect("a live block");
    pool.free(shared, one.0).expect("a live block");
    two.synchronize();
    pool.free(plain, two.0).expect("a live block");
    pool.trim(0).expect("a trim");
    let stats = pool.stats().expect("stats");
    assert!(stats.pending >= 16 * M && stats.reserved >= 16 * M, "{stats:?}");
    assert!(stats.reserved < 32 * M, "what is complete went: {stats:?}");
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        gate.open();
    });
    assert_eq!(pool.squeeze(), Ok(stats.reserved));
    opener.join().expect("no panic");
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    end(pool, &faulty);
}

#[test]
fn trim_keeps_what_it_was_told() {
    let (pool, faulty) = bare(config());
    let at = pool.alloc(256 * M, 0, HOST).expect("a block");
    pool.free(at, HOST).expect("a live block");
    for keep in [u64::MAX, 200 * M, 100 * M, 50 * M, 0] {
        pool.trim(keep).expect("a trim");
        let reserved = pool.stats().expect("stats").reserved;
        // to within a page
        let most = keep.min(256 * M);
        assert!(
            reserved >= most && reserved < most + 64 * M,
            "{reserved} of {keep}"
        );
        pool.validate();
    }
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    end(pool, &faulty);
}

#[test]
fn trim_gives_back_what_a_lone_stream_is_done_with() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let one = Stream::new();
    let at = pool.alloc(64 * M, 0, one.0).expect("a block");
    one.write(at, 64 * M, 1);
    pool.free(at, one.0).expect("a live block");
    // the program synchronised by itself; the pool's own event tells
    one.synchronize();
    pool.trim(0).expect("a trim");
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    end(pool, &faulty);
}

#[test]
fn an_event_that_is_synchronised_with_releases_too() {
    let _alone = alone();
    let (pool, faulty) = pool(Config {
        release_threshold: 0,
        ..config()
    });
    let one = Stream::new();
    let at = pool.alloc(64 * M, 0, one.0).expect("a block");
    let gate = one.gate();
    pool.free(at, one.0).expect("a live block");
    let event = Recorded::on(&pool, &one);
    assert!(pool.stats().expect("stats").reserved >= 64 * M);
    gate.open();
    event.synchronize(&pool);
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    synchronize(&pool, &one);
    end(pool, &faulty);
}

#[test]
fn squeeze_makes_one_call_or_two_a_page() {
    for pages in Pages::ALL {
        // however many there are: the way through the free pages is linear
        for count in [100u64, 1000, 10_000] {
            let (pool, faulty) = bare_with(pages, limited(2 * count * SLOT));
            let mut blocks: Vec<Addr> = (0..count)
                .map(|_| pool.alloc(SLOT, 0, HOST).expect("a block"))
                .collect();
            let kept: Vec<Addr> = blocks.iter().copied().step_by(2).collect();
            for at in blocks.drain(..).skip(1).step_by(2) {
                pool.free(at, HOST).expect("a live block");
            }
            let (calls, reserved) = (faulty.total_calls(), pool.stats().expect("stats").reserved);
            pool.squeeze().expect("a squeeze");
            let made = faulty.total_calls() - calls;
            let released = faulty.calls(Call::Release);
            assert!(
                made <= 2 * released + 8,
                "{made} calls for {released} pages of {reserved} B"
            );
            for at in kept {
                pool.free(at, HOST).expect("a live block");
            }
            end(pool, &faulty);
        }
    }
}

#[test]
fn a_request_waits_out_one_that_is_on_its_way() {
    for pages in Pages::ALL {
        // two requests for all there is: one is served, the other fails, and neither hangs
        let (pool, faulty) = bare_with(pages, limited(64 * M));
        let served = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    if let Ok(at) = pool.alloc(64 * M, 0, HOST) {
                        served.fetch_add(1, Ordering::Relaxed);
                        eventually("the others have failed", || {
                            pool.stats().expect("stats").failures == 3
                        });
                        pool.free(at, HOST).expect("a live block");
                    }
                });
            }
        });
        assert_eq!(served.load(Ordering::Relaxed), 1);
        end(pool, &faulty);
    }
}

#[test]
fn a_function_may_miss_while_somebody_waits_for_it() {
    let _alone = alone();
    let squeeze: fn(&Pool, StreamHandle) = |pool, _| assert!(pool.squeeze().expect("a squeeze") > 0);
    let request: fn(&Pool, StreamHandle) = |pool, stream| {
        let at = pool
            .alloc(50 * M, 0, stream)
            .expect("room, once the function is over");
        pool.free(at, stream).expect("a live block");
    };
    for wait in [squeeze, request] {
        let (pool, faulty) = pool(limited(64 * M));
        pool.set_attribute(Attribute::ReuseAllowInternalDependencies, 0)
            .expect("a switch"); // the host is to wait
        let pool = Arc::new(pool);
        let streams = [(); 3].map(|()| Stream::new());
        let [busy, idle, own] = [0, 1, 2].map(|index| streams[index].0);
        let pending = pool.alloc(30 * M, 0, busy).expect("a block");
        let (sender, receiver) = channel();
        let (inner, calls) = (Arc::clone(&pool), Arc::clone(&faulty));
        streams[0].enqueue(move || {
            eventually("somebody waits", || calls.calls(Call::SynchronizeAll) > 0);
            let at = inner.alloc(20 * M, 0, own).expect("room below the limit");
            inner.free(at, own).expect("a live block");
            sender.send(()).expect("the test");
        });
        pool.free(pending, busy).expect("a live block");
        let waiting = Arc::clone(&pool);
        let waiter = thread::spawn(move || wait(&waiting, idle));
        let answer = receiver.recv_timeout(Duration::from_secs(30));
        answer.expect("the function waits for who waits for it");
        waiter.join().expect("no failure");
        end(Arc::into_inner(pool).expect("the last"), &faulty);
    }
}
