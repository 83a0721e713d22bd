//! Threads that each make rounds of their own, on streams of their own, at the same time: memory is partitioned among them, no page moves
//! any more, and what one has freed is another's no sooner than it may be.

use crate::common::op::{Op, STREAMS, Setup, random_op};
use crate::common::player::{Player, Round, asked};
use crate::common::random::Random;
use crate::common::run::Run;
use crate::common::threads::{Call, Threads, cache, replacement, round};
use weir::base::units::StreamHandle;
use weir::config::{Config, MemoryKind};

const SEEDS: u64 = 600;

fn config(declared: bool) -> Config {
    Config {
        memory: MemoryKind::Host,
        declared_streams: declared,
        ..Config::default()
    }
}

/// So many threads, whose rounds have so many blocks each.
fn threads(count: usize, blocks: usize, (longest, work): (u64, u64), declared: bool, seed: u64) -> Threads {
    let mut threads = Threads::new(config(declared), longest, work, seed);
    for thread in 0..count as u64 {
        threads.add(round(blocks, 16, &mut Random(seed * 100 + thread)));
    }
    threads
}

/// Calls of so many rounds of each.
fn calls(threads: &Threads, rounds: usize) -> usize {
    threads
        .workers
        .iter()
        .map(|worker| worker.calls.len() * rounds)
        .sum()
}

#[test]
fn pages_stay_where_they_are() {
    let mut seed = 0;
    for (count, work) in [(2, 0), (3, 0), (4, 0), (4, 20_000), (8, 20_000)] {
        for (longest, declared) in [(8, true), (8, false), (200, true)] {
            seed += 1;
            let name = format!("{count} threads, {work} ns, turns of {longest}, declared: {declared}");
            let mut threads = threads(count, 40, (longest, work), declared, seed);
            threads.run(calls(&threads, 160));
            assert!(threads.pool.is_partitioned(), "{name}");
            let (before, pages) = (threads.pool.stats().expect("stats"), threads.page_calls());
            threads.run(calls(&threads, 40));
            let after = threads.pool.stats().expect("stats");
            assert_eq!(threads.page_calls(), pages, "{name}");
            assert!(!declared || after.event_calls == before.event_calls, "{name}");
            assert!(after.reserved <= threads.apart() / 8 * 9 + (64 << 20), "{name}");
            threads.pool.validate();
        }
    }
}

/// Before memory is partitioned one stream gets what another one freed, where that is complete, and then has more than it needs. The other one waits a
/// moment for that rather than have the pool hold ever more: until 2026-11-27 up to 1.65 times what they need apart, for good.
#[test]
fn what_a_busy_stream_has_too_much_is_not_made_again() {
    let mut sum = 0.0;
    for seed in 1..=40 {
        let mut threads = threads(2, 40, (8, 20_000), true, seed);
        threads.run(calls(&threads, 40));
        assert!(threads.pool.is_partitioned(), "seed {seed}");
        let held = threads.pool.stats().expect("stats").reserved_peak;
        let part = held as f64 / threads.apart() as f64;
        assert!(part < 1.27, "seed {seed}: {part}");
        sum += part;
        threads.pool.validate();
    }
    assert!(sum / 40.0 < 1.15, "{}", sum / 40.0);
}

/// Many threads seldom have their most at the same time: on streams without work sharing costs little, and saves a third.
#[test]
fn idle_streams_share_what_they_would_need_apart() {
    let mut threads = threads(16, 40, (8, 0), true, 1);
    threads.run(calls(&threads, 60));
    assert!(!threads.pool.is_partitioned());
    let held = threads.pool.stats().expect("stats").reserved;
    assert!(held < threads.apart() / 10 * 9, "{held} of {}", threads.apart());
}

/// Blocks of a stream that are freed on another one would never come back to it.
#[test]
fn what_streams_pass_on_is_not_kept_from_them() {
    for (seed, part) in [(0, 3), (1, 3), (2, 10), (3, 10), (4, 20), (5, 20)] {
        let mut threads = threads(4, 40, (8, 0), true, seed);
        for worker in &mut threads.workers {
            for call in &mut worker.calls {
                if let Call::Free { block, on } = call {
                    *on = usize::from(*block % part == 0);
                }
            }
        }
        let mut partitioned = 0;
        for _ in 0..200 {
            threads.run(calls(&threads, 1));
            partitioned += usize::from(threads.pool.is_partitioned());
        }
        assert!(
            partitioned <= 10,
            "{partitioned} of 200 rounds, one block in {part}"
        );
        let held = threads.pool.stats().expect("stats").reserved_peak;
        assert!(held <= threads.peak / 4 * 5, "{held} for {}", threads.peak);
    }
}

#[test]
fn what_comes_in_no_order_is_shared() {
    let mut threads = threads(4, 3000, (8, 0), true, 1);
    threads.run(calls(&threads, 1));
    assert!(!threads.pool.is_partitioned());
}

/// Each thread replaces blocks one by one, in the same order again and again, so that it always has many. Where they lie does not come back, and
/// pages would move for ever: it is given up for good, and what is free is everybody's.
#[test]
fn it_ends_where_pages_move_on_and_on() {
    for (seed, declared) in [(1, true), (2, false)] {
        let mut threads = Threads::new(config(declared), 8, 0, seed);
        for thread in 0..2 {
            let mut random = Random(seed * 100 + thread);
            threads.add(replacement(16, 500, 1 << 20..64 << 20, &mut random));
        }
        let mut partitioned = 0;
        for round in 0..400 {
            threads.run(calls(&threads, 1));
            partitioned += usize::from(threads.pool.is_partitioned());
            assert!(round != 20 || threads.pool.is_partitioned(), "seed {seed}");
        }
        assert!(
            !threads.pool.is_partitioned(),
            "seed {seed}: {partitioned} of 400 rounds"
        );
        let (before, pages) = (threads.pool.stats().expect("stats"), threads.page_calls());
        threads.run(calls(&threads, 10));
        let requests = threads.pool.stats().expect("stats").allocations - before.allocations;
        let moved = threads.page_calls() - pages;
        assert!(
            moved < requests / 8,
            "seed {seed}: {moved} page calls for {requests} requests"
        );
        threads.pool.validate();
    }
}

/// One that has ended leaves its memory to one that comes, on another stream.
#[test]
fn a_thread_that_ends_leaves_its_memory_to_others() {
    for declared in [true, false] {
        let mut threads = threads(4, 40, (8, 0), declared, 5);
        threads.run(calls(&threads, 80));
        assert!(threads.pool.is_partitioned());
        let held = threads.pool.stats().expect("stats").reserved;
        for turn in 0..12 {
            // between two rounds
            while threads.workers[0].next > 0 {
                threads.step(0);
            }
            let stream = StreamHandle(100 + turn);
            let new = cache(&threads.pool, stream);
            let worker = &mut threads.workers[0];
            let old = std::mem::replace(&mut worker.cache, new);
            worker.stream = stream;
            threads.pool.close_cache(&old);
            threads.run(calls(&threads, 30));
            assert!(threads.pool.is_partitioned());
        }
        let after = threads.pool.stats().expect("stats").reserved;
        assert!(after <= held + held / 4, "{held} and then {after}");
        threads.pool.validate();
    }
}

/// As soon as one thread uses another one's stream they are no threads of their own.
#[test]
fn it_ends_when_a_stream_is_two_threads() {
    let mut threads = threads(3, 40, (8, 0), true, 9);
    threads.run(calls(&threads, 60));
    assert!(threads.pool.is_partitioned());
    let more = cache(&threads.pool, threads.workers[0].stream);
    threads.run(calls(&threads, 10));
    assert!(!threads.pool.is_partitioned());
    threads.pool.close_cache(&more);
    threads.run(calls(&threads, 60));
    assert!(threads.pool.is_partitioned(), "again");
    threads.pool.trim(0).expect("a pool");
    assert!(!threads.pool.is_partitioned(), "the program wants memory back");
}

/// Each stream is one of two threads', has its own round, and gets on when it likes; all else happens, too.
#[test]
fn whatever_comes_between_no_work_overlaps() {
    let (mut partitioned, mut disturbed) = (0, 0);
    for seed in 0..SEEDS {
        let random = &mut Random(seed + 1);
        let setup = Setup {
            declared: random.one_in(2),
            first_has_cache: false,
            max_bytes: if random.one_in(3) {
                (200 + random.below(1200)) << 20
            } else {
                0
            },
            ..Setup::default()
        };
        let mut run = Run::new(&setup);
        run.exact_peaks = false;
        let streams = 2 + random.below(3) as usize;
        let mut rounds = Vec::new();
        for stream in 0..streams {
            let (blocks, most) = (20 + random.below(40) as usize, 4 + random.below(8) as usize);
            let mut round = Round::new(random, blocks, most);
            // most are long, as those are whose places are remembered
            for asked in &mut round.asked {
                *asked += if random.one_in(4) { 0 } else { 300 << 10 };
            }
            round.on.fill((stream as u8, stream as u8));
            let mut player = Player::new(&round);
            player.thread = stream;
            player.batches = random.one_in(8).then_some(Random(seed + 1));
            player.synced = random.one_in(8).then_some(Random(seed + 2));
            rounds.push((round, player, 0));
        }
        let busy = [0, 400, 100, 30][random.below(4) as usize];
        let mut behind = [0u64; STREAMS];
        let longest = 1 + random.below(16);
        for _ in 0..600 {
            let (round, player, next) = &mut rounds[random.below(streams as u64) as usize];
            for _ in 0..1 + random.below(longest) {
                player.play(&mut run, round, *next..*next + 1);
                *next = (*next + 1) % round.calls.len();
                if busy > 0 && random.one_in(busy) {
                    behind[random.below(STREAMS as u64) as usize] = random.below(60);
                }
                for (stream, calls) in behind.iter_mut().enumerate() {
                    match *calls {
                        0 => run.get_on_with(stream as u8),
                        _ => *calls -= 1,
                    }
                }
            }
            partitioned += usize::from(run.pool.is_partitioned());
            if random.one_in(if run.pool.is_partitioned() { 60 } else { 200 }) {
                disturbed += usize::from(run.pool.is_partitioned());
                let op = match random.below(3) {
                    0 => Op::Alloc {
                        bytes: asked(random),
                        align: 0,
                        stream: random.below(STREAMS as u64) as u8,
                        touch: true,
                    },
                    1 => Op::FreeOn {
                        pick: random.next() as u16,
                        stream: random.below(2) as u8,
                        hooks: random.one_in(2),
                    },
                    _ => random_op(random, run.blocks(), 30),
                };
                run.step(&op);
            }
            if random.one_in(40) {
                run.check_now();
            }
        }
        run.end();
    }
    let least = SEEDS as usize;
    assert!(
        partitioned >= 60 * least && disturbed >= least,
        "{partitioned} and {disturbed}"
    );
}
