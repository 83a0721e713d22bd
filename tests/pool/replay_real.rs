//! Rounds by heart on real streams and real memory, while other threads and streams do what they like.

use crate::common::M;
use crate::common::cached::{replay_alloc_quick, replay_free_quick};
use crate::common::player::{Call, Round, asked};
use crate::common::random::Random;
use crate::common::real::{Recorded, Stream, Wrong, alone, end, pool, synchronize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use weir::base::error::Error;
use weir::base::units::Addr;
use weir::config::Config;
use weir::pool::{Attribute, Pool, ThreadCache};

const ROUNDS: u64 = 300;

/// A thread that uses a stream by way of its cache.
struct User<'a> {
    pool: &'a Pool,
    stream: &'a Stream,
    cache: ThreadCache,
    wrong: &'a Wrong,
    value: u64,
}

/// A block, its bytes, and what is written there.
type Written = (Addr, u64, u64);

impl<'a> User<'a> {
    fn new(pool: &'a Pool, stream: &'a Stream, wrong: &'a Wrong, seed: u64) -> User<'a> {
        let cache = pool.open_cache(stream.0).expect("a cache");
        let value = seed << 40;
        User {
            pool,
            stream,
            cache,
            wrong,
            value,
        }
    }

    fn alloc(&mut self, bytes: u64) -> Option<Written> {
        let quick = self.cache.quick();
        let kept = quick
            .and_then(|quick| replay_alloc_quick(quick, bytes).map(Addr))
            .or_else(|| self.cache.alloc(bytes, 0));
        let at = match kept {
            Some(at) => at,
            None => match self.pool.alloc_beside(Some(&self.cache), bytes, 0, self.stream.0) {
                Ok(at) => at,
                Err(Error::OutOfMemory(_)) => return None,
                Err(error) => panic!("{error:?}"),
            },
        };
        self.value += 1;
        self.stream.write(at, bytes, self.value);
        Some((at, bytes, self.value))
    }

    /// What is written there is still there, and then the block is freed.
    fn free(&mut self, (at, bytes, value): Written) {
        self.stream.expect(at, bytes, value, self.wrong);
        let quick = self.cache.quick();
        let kept = quick.and_then(|quick| replay_free_quick(quick, at));
        if kept.or_else(|| self.cache.free(at)).is_none() {
            self.pool
                .free_beside(Some(&self.cache), at, self.stream.0)
                .expect("live");
        }
    }

    fn play(&mut self, round: &Round) {
        let mut blocks: Vec<Option<Written>> = vec![None; round.asked.len()];
        for &call in &round.calls {
            match call {
                Call::Alloc(block) => blocks[block] = self.alloc(round.asked[block]),
                Call::Free(block) | Call::FreeLast(block) => {
                    if let Some(block) = blocks[block].take() {
                        self.free(block);
                    }
                }
            }
        }
    }

    /// A block that the other stream uses, too, in one of several ways.
    fn pass(&mut self, other: &Stream, random: &mut Random) {
        let Some(block) = self.alloc(asked(random)) else {
            return;
        };
        let (at, bytes, value) = block;
        match random.below(4) {
            0 => {}
            // used there, told of by an event, and freed here
            1 => {
                Recorded::on(self.pool, self.stream).waited_for_by(self.pool, other);
                other.expect(at, bytes, value, self.wrong);
                self.pool.record_stream(at, other.0).expect("live");
            }
            // freed there
            2 => {
                Recorded::on(self.pool, self.stream).waited_for_by(self.pool, other);
                other.expect(at, bytes, value, self.wrong);
                self.pool.free(at, other.0).expect("live");
                return;
            }
            _ => {
                synchronize(self.pool, self.stream);
                self.pool.free_synced(at).expect("live");
                return;
            }
        }
        if random.one_in(2) {
            thread::sleep(Duration::from_micros(random.below(100)));
        }
        self.free(block);
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.stream.synchronize();
        self.pool.close_cache(&self.cache);
    }
}

/// Does one of the things that concern the whole pool.
fn disturb(pool: &Pool, random: &mut Random) {
    match random.below(8) {
        0 => pool.trim(random.log_uniform(26)).expect("a trim"),
        1 => drop(pool.squeeze()),
        2 => pool.validate(),
        3 => pool.reset_peaks().expect("peaks"),
        4 => pool
            .set_attribute(
                Attribute::ReleaseThreshold,
                match random.below(3) {
                    0 => random.log_uniform(28),
                    _ => u64::MAX,
                },
            )
            .expect("a threshold"),
        _ => drop(pool.stats().expect("stats")),
    }
}

/// A thread that does the same again and again, up to two guests, and maybe one that looks and takes memory back.
fn life(seed: u64, replayed: &AtomicU64) {
    let random = &mut Random(seed + 1);
    let config = Config {
        declared_streams: random.one_in(2),
        growth_ahead: if random.one_in(4) { 16 * M } else { 0 },
        max_bytes: if random.one_in(4) { 96 * M } else { 0 },
        ..crate::common::config()
    };
    let (pool, faulty) = pool(config);
    let pool = Arc::new(pool);
    pool.employ();
    let (wrong, done) = (Wrong::default(), AtomicBool::new(false));
    let own = Stream::new();
    let quiet = 1 << (6 + random.below(9));
    thread::scope(|scope| {
        let (pool, wrong, done, own) = (&*pool, &wrong, &done, &own);
        let program = scope.spawn(move || {
            let mut user = User::new(pool, own, wrong, 1);
            let round = Round::new(&mut Random(seed + 2), 60, 10);
            for number in 0..ROUNDS {
                user.play(&round);
                replayed.fetch_add(u64::from(pool.is_replaying()), Ordering::Relaxed);
                match number % 8 {
                    3 => synchronize(pool, own),
                    _ => own.synchronize(),
                }
            }
        });
        for guest in 0..random.below(3) {
            scope.spawn(move || {
                let mut random = Random(seed + 100 * guest + 3);
                let stream = Stream::new();
                let mut user = User::new(pool, &stream, wrong, guest + 2);
                while !done.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_micros(random.below(quiet)));
                    user.pass(own, &mut random);
                }
            });
        }
        if random.one_in(2) {
            scope.spawn(move || {
                let mut random = Random(seed + 4);
                while !done.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_micros(random.below(4 * quiet)));
                    disturb(pool, &mut random);
                }
            });
        }
        let outcome = program.join();
        done.store(true, Ordering::Relaxed);
        outcome.expect("no panic");
    });
    own.synchronize();
    assert_eq!(
        wrong.count(),
        0,
        "seed {seed}: memory was handed out while it was in use"
    );
    pool.dismiss();
    let pool = Arc::into_inner(pool).expect("nobody else has it");
    end(pool, &faulty);
}

#[test]
fn whoever_comes_finds_their_memory_as_they_left_it() {
    let _alone = alone();
    let replayed = AtomicU64::new(0);
    for seed in 0..30 {
        life(seed, &replayed);
    }
    assert!(replayed.load(Ordering::Relaxed) > 0);
}
