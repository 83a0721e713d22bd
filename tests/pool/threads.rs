//! Many threads in one pool: each has its say at the end in patterns and books.

use crate::common::random::Random;
use crate::common::real::{Stream, Wrong, alone, end, pool};
use crate::common::{K, M, config, limited};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const THREADS: usize = 8;

/// A pool without streams or memory: the threads meet in the books more often.
fn bare(config: Config) -> (Pool, Arc<Faulty>) {
    let faulty = Faulty::new(Counting::new(true));
    let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
    (pool, faulty)
}

fn size(random: &mut Random) -> u64 {
    match random.below(8) {
        0..5 => random.log_uniform(15),
        5..7 => random.log_uniform(20),
        _ => random.log_uniform(23),
    }
}

/// Blocks come and go on a stream; each is written when it comes and looked at when it goes.
fn come_and_go(pool: &Pool, stream: &Stream, steps: u64, seed: u64, wrong: &Wrong) {
    let mut random = Random(seed);
    let mut blocks: Vec<(Addr, u64, u64)> = Vec::new();
    for step in 0..steps {
        if blocks.len() < 30 && !random.one_in(3) {
            let bytes = size(&mut random);
            match pool.alloc(bytes, 0, stream.0) {
                Ok(at) => {
                    let value = seed << 32 | step;
                    stream.write(at, bytes, value);
                    blocks.push((at, bytes, value));
                    continue;
                }
                Err(Error::OutOfMemory(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        if !blocks.is_empty() {
            let (at, bytes, value) = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            stream.expect(at, bytes, value, wrong);
            pool.free(at, stream.0).expect("a live block");
        }
        if random.one_in(64) {
            stream.delay(Duration::from_micros(50));
        }
    }
    for (at, bytes, value) in blocks {
        stream.expect(at, bytes, value, wrong);
        pool.free(at, stream.0).expect("a live block");
    }
}

/// Trims, squeezes and looks, until told to stop.
fn disturb(pool: &Pool, done: &AtomicBool, seed: u64) {
    let mut random = Random(seed);
    while !done.load(Ordering::Relaxed) {
        match random.below(4) {
            0 => pool.trim(random.log_uniform(26)).expect("a trim"),
            1 => drop(pool.squeeze().expect("a squeeze")),
            2 => pool.validate(),
            _ => drop(pool.stats().expect("stats")),
        }
        thread::sleep(Duration::from_micros(300));
    }
}

/// Threads on streams of their own, and one that disturbs them.
fn crowd(pool: &Pool, steps: u64, seed: u64) {
    let (wrong, done) = (Wrong::default(), AtomicBool::new(false));
    let streams: Vec<Stream> = (0..THREADS).map(|_| Stream::new()).collect();
    thread::scope(|scope| {
        let workers: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(number, stream)| {
                let wrong = &wrong;
                scope.spawn(move || come_and_go(pool, stream, steps, number as u64 + 1, wrong))
            })
            .collect();
        scope.spawn(|| disturb(pool, &done, seed));
        for worker in workers {
            worker.join().expect("no panic");
        }
        done.store(true, Ordering::Relaxed);
    });
    streams.iter().for_each(Stream::synchronize);
    assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
}

#[test]
fn threads_on_streams_of_their_own() {
    let _alone = alone();
    for limit in [0, 48 * M] {
        let (pool, faulty) = pool(limited(limit));
        crowd(&pool, 1500, 99);
        assert!(limit == 0 || faulty.peak_created_bytes() <= limit);
        end(pool, &faulty);
    }
}

#[test]
fn threads_beside_a_worker_that_makes_memory_ahead() {
    let _alone = alone();
    for limit in [0, 48 * M] {
        let config = Config {
            growth_ahead: 32 * M,
            ..limited(limit)
        };
        let (pool, faulty) = pool(config);
        let pool = Arc::new(pool);
        pool.employ();
        // what is given back has to be made anew
        crowd(&pool, 1000, 33);
        assert!(limit == 0 || faulty.peak_created_bytes() <= limit);
        pool.validate();
        assert_eq!(pool.end().blocks, 0);
        drop(pool);
        faulty.assert_empty();
    }
}

#[test]
fn threads_on_one_stream() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (wrong, done) = (Wrong::default(), AtomicBool::new(false));
    let stream = Stream::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS as u64)
            .map(|number| {
                let (pool, wrong, stream) = (&pool, &wrong, &stream);
                // each block is written and looked at on the one stream, in whatever order that is
                scope.spawn(move || come_and_go(pool, stream, 1000, number + 1, wrong))
            })
            .collect();
        scope.spawn(|| disturb(&pool, &done, 77));
        for worker in workers {
            worker.join().expect("no panic");
        }
        done.store(true, Ordering::Relaxed);
    });
    stream.synchronize();
    assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
    end(pool, &faulty);
}

#[test]
fn producers_allocate_and_consumers_free() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (wrong, done) = (Wrong::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 0..THREADS as u64 / 2 {
            let (sender, receiver) = channel::<(Addr, u64, u64)>();
            let (pool, wrong) = (&pool, &wrong);
            workers.push(scope.spawn(move || {
                let (stream, mut random) = (Stream::new(), Random(number));
                for step in 0..1000 {
                    let bytes = size(&mut random);
                    let at = pool.alloc(bytes, 0, stream.0).expect("a block");
                    stream.write(at, bytes, number << 32 | step);
                    stream.synchronize();
                    sender.send((at, bytes, number << 32 | step)).expect("a consumer");
                }
            }));
            workers.push(scope.spawn(move || {
                let stream = Stream::new();
                for (step, (at, bytes, value)) in receiver.into_iter().enumerate() {
                    stream.expect(at, bytes, value, wrong);
                    if step % 3 == 0 {
                        stream.synchronize();
                        pool.free_synced(at).expect("a live block");
                    } else {
                        pool.free(at, stream.0).expect("a live block");
                    }
                }
                stream.synchronize();
            }));
        }
        scope.spawn(|| disturb(&pool, &done, 55));
        for worker in workers {
            worker.join().expect("no panic");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
    end(pool, &faulty);
}

#[test]
fn no_thread_sees_more_than_the_limit() {
    let limit = 64 * M;
    let (pool, faulty) = bare(limited(limit));
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS as u64 {
            let (pool, faulty, refused) = (&pool, &faulty, &refused);
            scope.spawn(move || {
                let mut random = Random(number);
                let mut blocks: Vec<Addr> = Vec::new();
                for _ in 0..3000 {
                    let bytes = if random.one_in(3) {
                        random.below(16 * M)
                    } else {
                        random.below(64 * K)
                    };
                    if random.one_in(2) {
                        match pool.alloc(bytes, 0, StreamHandle(number as usize)) {
                            Ok(at) => blocks.push(at),
                            Err(Error::OutOfMemory(_)) => _ = refused.fetch_add(1, Ordering::Relaxed),
                            Err(error) => panic!("{error:?}"),
                        }
                    } else if !blocks.is_empty() {
                        let index = random.below(blocks.len() as u64) as usize;
                        pool.free_synced(blocks.swap_remove(index)).expect("a live block");
                    }
                    assert!(faulty.created_bytes() <= limit);
                }
                for at in blocks {
                    pool.free_synced(at).expect("a live block");
                }
            });
        }
    });
    assert!(
        faulty.peak_created_bytes() <= limit,
        "{} B",
        faulty.peak_created_bytes()
    );
    assert!(refused.load(Ordering::Relaxed) > 0, "the limit was reached");
    assert_eq!(pool.stats().expect("stats").used, 0);
    end(pool, &faulty);
}

#[test]
fn memory_that_another_thread_snatched_counts_against_the_limit() {
    // each request creates its pages, and then another may have them before it
    let limit = 64 * M;
    let (pool, faulty) = bare(limited(limit));
    thread::scope(|scope| {
        for number in 0..THREADS as u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random(number);
                for _ in 0..2000 {
                    let bytes = if number % 2 == 0 {
                        22 * M
                    } else {
                        random.below(4 * M)
                    };
                    if let Ok(at) = pool.alloc(bytes, 0, StreamHandle(0)) {
                        pool.free(at, StreamHandle(0)).expect("a live block");
                    }
                    if random.one_in(4) {
                        pool.trim(0).expect("a trim");
                    }
                }
            });
        }
    });
    assert!(
        faulty.peak_created_bytes() <= limit,
        "{} B",
        faulty.peak_created_bytes()
    );
    end(pool, &faulty);
}

#[test]
fn a_block_is_freed_once_however_many_try() {
    let (pool, faulty) = bare(config());
    for round in 0..200 {
        let at = pool
            .alloc(if round % 2 == 0 { 100 } else { M }, 0, StreamHandle(0))
            .expect("a block");
        let (barrier, freed) = (Barrier::new(4), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    match pool.free(at, StreamHandle(0)) {
                        Ok(_) => _ = freed.fetch_add(1, Ordering::Relaxed),
                        Err(error) => assert_eq!(error, Error::DoubleFree(at)),
                    }
                });
            }
        });
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    }
    end(pool, &faulty);
}

#[test]
fn pools_end_while_others_allocate() {
    for round in 0..40 {
        let (pool, faulty) = bare(config());
        let barrier = Barrier::new(THREADS + 1);
        let leaked = thread::scope(|scope| {
            for number in 0..THREADS as u64 {
                let (pool, barrier) = (&pool, &barrier);
                scope.spawn(move || {
                    let mut random = Random(round << 8 | number);
                    let mut blocks = Vec::new();
                    barrier.wait();
                    loop {
                        let answer = match blocks.pop() {
                            Some(at) if random.one_in(2) => pool.free(at, StreamHandle(0)).map(drop),
                            _ => pool
                                .alloc(size(&mut random), 0, StreamHandle(0))
                                .map(|at| blocks.push(at)),
                        };
                        match answer {
                            Ok(()) => {}
                            Err(Error::PoolDestroyed { .. }) => return,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                });
            }
            barrier.wait();
            thread::sleep(Duration::from_micros(round * 50));
            pool.end()
        });
        assert!(leaked.largest.len() as u64 == leaked.blocks.min(8));
        drop(pool);
        faulty.assert_empty();
    }
}

#[test]
fn pools_with_streams_end_while_others_allocate() {
    let _alone = alone();
    for round in 0..10 {
        let (pool, faulty) = pool(config());
        let streams: Vec<Stream> = (0..4).map(|_| Stream::new()).collect();
        let barrier = Barrier::new(5);
        thread::scope(|scope| {
            for (number, stream) in streams.iter().enumerate() {
                let (pool, barrier) = (&pool, &barrier);
                scope.spawn(move || {
                    let mut random = Random(round << 8 | number as u64);
                    barrier.wait();
                    loop {
                        let bytes = size(&mut random) + 2 * M;
                        let Ok(at) = pool.alloc(bytes, 0, stream.0) else {
                            return;
                        };
                        stream.delay(Duration::from_micros(20));
                        if pool.free(at, stream.0).is_err() {
                            return;
                        }
                    }
                });
            }
            barrier.wait();
            thread::sleep(Duration::from_micros(500 * round));
            pool.end();
        });
        drop(pool);
        faulty.assert_empty();
    }
}
