//! A program that repeats itself comes to a round without any page call; one without any order to rounds with few.

use crate::common::random::Random;
use crate::common::{K, M, cached, config};
use flate2::read::GzDecoder;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::host::{HostBackend, streams};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAM: StreamHandle = StreamHandle(0);

/// What a program does in each round, after its lasting blocks were allocated.
struct Program {
    lasting: Vec<u64>,
    /// Sizes to allocate; after each so many of the round's blocks are freed, picked by the second number.
    steps: Vec<(u64, Vec<u64>)>,
}

/// Steps that make blocks of all sizes, and some so large that hardly anything but all free pages will do.
fn program(seed: u64, lasting: bool) -> Program {
    let mut random = Random(seed);
    let mut sizes = |count: u64| -> Vec<u64> { (0..count).map(|_| 64 * K * random.log_uniform(9)).collect() };
    let lasting = sizes(if lasting { 60 } else { 0 });
    let mut steps = Vec::new();
    for number in 0..400 {
        let bytes = match number % 40 {
            0..4 => 256 + random.below(32 * K),
            39 => (256 + random.below(64)) * M,
            _ => 64 * K * random.log_uniform(9),
        };
        let frees = if random.one_in(20) { 20 } else { random.below(2) };
        steps.push((bytes, (0..frees).map(|_| random.next()).collect()));
    }
    Program { lasting, steps }
}

/// Page calls of each round.
fn rounds(program: &Program, count: usize) -> Vec<u64> {
    let memory = Counting::new(true);
    let pool = Pool::new(config(), memory.clone()).expect("a pool");
    let calls = || memory.calls(Call::Create) + memory.calls(Call::Map) + memory.calls(Call::Unmap);
    run(&pool, STREAM, program, count, calls)
}

/// Calls of each round.
fn run(
    pool: &Pool,
    stream: StreamHandle,
    program: &Program,
    count: usize,
    calls: impl Fn() -> u64,
) -> Vec<u64> {
    for &bytes in &program.lasting {
        pool.alloc(bytes, 0, stream).expect("memory");
    }
    let mut counts = Vec::new();
    for _ in 0..count {
        let before = calls();
        let mut blocks: Vec<Addr> = Vec::new();
        for (bytes, frees) in &program.steps {
            blocks.push(pool.alloc(*bytes, 0, stream).expect("memory"));
            for pick in frees {
                if !blocks.is_empty() {
                    let at = blocks.swap_remove(*pick as usize % blocks.len());
                    pool.free(at, stream).expect("a block");
                }
            }
            // few of the large ones at a time
            if blocks.len() > 60 {
                pool.free(blocks.remove(0), stream).expect("a block");
            }
        }
        for at in blocks {
            pool.free(at, stream).expect("a block");
        }
        pool.validate();
        counts.push(calls() - before);
    }
    counts
}

#[test]
fn a_round_that_comes_again_needs_no_page_call() {
    for seed in 0..6 {
        for lasting in [false, true] {
            let counts = rounds(&program(seed, lasting), 12);
            assert!(counts[0] > 0);
            assert_eq!(counts[8..], [0; 4], "seed {seed}, lasting {lasting}: {counts:?}");
        }
    }
}

/// Blocks that are replaced one by one, the same in each round, none of which begins with few. No layout comes back by itself, and to hold
/// hardly more than what is in use pages would move at every other request, for ever.
#[test]
fn blocks_that_are_replaced_in_turn_come_to_need_hardly_any_page_call() {
    for (seed, replaced) in [(1, 200), (2, 500), (3, 700), (4, 1000)] {
        let pool = cached::pool(config());
        let cache = cached::cache(&pool);
        let mut random = Random(seed);
        let draw = |_| (random.below(32) as usize, M + random.below(63 * M));
        let round: Vec<(usize, u64)> = (0..replaced).map(draw).collect();
        let mut blocks = [None; 32];
        let mut calls = Vec::new();
        for _ in 0..100_000 / replaced {
            let before = pool.stats().expect("stats");
            for &(place, bytes) in &round {
                if let Some(at) = blocks[place].take() {
                    cached::free(&pool, &cache, at).expect("a live block");
                }
                blocks[place] = Some(cached::alloc(&pool, &cache, bytes).expect("memory"));
            }
            let after = pool.stats().expect("stats");
            calls.push(after.driver_calls - before.driver_calls);
        }
        pool.validate();
        let latest: u64 = calls.iter().rev().take(20).sum();
        assert!(
            latest <= 20 * replaced / 16,
            "seed {seed}: {latest} in 20 of {replaced}"
        );
        let stats = pool.stats().expect("stats");
        let held = stats.reserved_peak as f64 / stats.used_peak as f64;
        assert!(held <= 1.53, "seed {seed}: {held}");
    }
}

/// What a large request lacks, but for pages that move, does not lie in its window when the request comes again. (Created there it
/// cost 37 and 40 calls in the fourth of these rounds.)
#[test]
fn pages_that_were_lacking_do_not_spoil_a_window() {
    for seed in [1, 83] {
        let counts = rounds(&program(seed, true), 6);
        assert!(counts[3] <= 8, "seed {seed}: {counts:?}");
        assert_eq!(counts[4..], [0; 2], "seed {seed}: {counts:?}");
    }
}

#[test]
fn a_round_that_comes_again_makes_no_call_at_all() {
    let mut config = config();
    config.declared_streams = true;
    for seed in 0..4 {
        let pool = Pool::new(config.clone(), HostBackend::new().expect("host memory")).expect("a pool");
        let stream = streams::create().expect("a stream");
        let calls = || pool.stats().expect("stats").driver_calls;
        let counts = run(&pool, stream, &program(seed, true), 14, calls);
        assert!(counts[0] > 0);
        assert_eq!(counts[10..], [0; 4], "seed {seed}: {counts:?}");
        drop(pool);
        streams::destroy(stream).expect("its end");
    }
}

/// A recorded training step.
fn training_step() -> String {
    let file = File::open("traces/gpt-train-fixed.trace.gz").expect("a recorded trace");
    let mut trace = String::new();
    GzDecoder::new(file).read_to_string(&mut trace).expect("text");
    trace
}

fn replay(pool: &Pool, trace: &str, stream: StreamHandle) {
    let mut blocks = HashMap::new();
    for line in trace.lines() {
        let mut words = line.split_whitespace();
        let (what, block) = (words.next().expect("an event"), words.next().expect("a block"));
        if what == "a" {
            let bytes = words.next().and_then(|bytes| bytes.parse().ok()).expect("bytes");
            blocks.insert(block, pool.alloc(bytes, 0, stream).expect("memory"));
        } else {
            let at = blocks.remove(block).expect("a live block");
            pool.free(at, stream).expect("a live block");
        }
    }
    assert!(blocks.is_empty());
}

/// What programs do between two rounds.
#[test]
fn a_synchronise_and_a_reset_of_the_peaks_do_not_keep_a_pool_from_coming_to_rest() {
    let trace = training_step();
    let pool = Pool::new(config(), HostBackend::new().expect("host memory")).expect("a pool");
    let stream = streams::create().expect("a stream");
    let mut counts = Vec::new();
    for _ in 0..6 {
        let calls = || {
            let stats = pool.stats().expect("stats");
            stats.page_creates + stats.maps + stats.unmaps
        };
        let before = calls();
        replay(&pool, &trace, stream);
        let mark = pool.mark_stream(stream);
        streams::synchronize(stream).expect("no work");
        pool.synchronized(mark);
        assert_eq!(pool.reset_peaks(), Ok(()));
        counts.push(calls() - before);
    }
    assert_eq!(counts[4..], [0, 0], "{counts:?}");
    drop(pool);
    streams::destroy(stream).expect("its end");
}

/// What cannot be done without is not shed again and again.
#[test]
fn a_pool_with_little_slack_comes_to_rest() {
    let trace = training_step();
    for slack in [0.0, 0.005, 0.01] {
        let memory = Counting::new(true);
        let pool = Pool::new(Config { slack, ..config() }, memory.clone()).expect("a pool");
        let calls = || memory.calls(Call::Create) + memory.calls(Call::Map) + memory.calls(Call::Unmap);
        let mut counts = Vec::new();
        for _ in 0..9 {
            let before = calls();
            replay(&pool, &trace, STREAM);
            counts.push(calls() - before);
        }
        assert_eq!(counts[6..], [0; 3], "{slack}: {counts:?}");
    }
}

/// Replaces blocks at random. Page calls of each round, and the peak of what is held for what is live.
fn disorder(seed: u64, mut size: impl FnMut(&mut Random) -> u64) -> (Vec<u64>, f64) {
    let memory = Counting::new(true);
    let pool = Pool::new(config(), memory.clone()).expect("a pool");
    let calls = || memory.calls(Call::Create) + memory.calls(Call::Map) + memory.calls(Call::Unmap);
    let mut random = Random(seed);
    let mut blocks: Vec<Addr> = (0..48)
        .map(|_| pool.alloc(size(&mut random), 0, STREAM).expect("memory"))
        .collect();
    let mut counts = Vec::new();
    for _ in 0..8 {
        let before = calls();
        for _ in 0..4000 {
            let at = &mut blocks[random.below(48) as usize];
            pool.free(*at, STREAM).expect("a block");
            *at = pool.alloc(size(&mut random), 0, STREAM).expect("memory");
        }
        pool.validate();
        counts.push(calls() - before);
    }
    let stats = pool.stats().expect("stats");
    (counts, stats.reserved_peak as f64 / stats.used_peak as f64)
}

#[test]
fn requests_in_no_order_hardly_move_pages_in_the_end() {
    for seed in 1..4 {
        let sizes: Vec<u64> = (0..20)
            .map(|number| (1 << (number % 8)) * M + number * 100 * K)
            .collect();
        let any = disorder(seed, |random| random.log_uniform(8) * M + random.below(M));
        let few = disorder(seed, |random| sizes[random.below(20) as usize]);
        assert!(
            any.0[7] < 400,
            "seed {seed}: {:?} page calls for 4,000 requests",
            any.0
        );
        for (counts, held) in [any, few] {
            // the first rounds are dear only for what the program needs, not because low points seem to be rounds
            assert!(counts.iter().sum::<u64>() < 12_000, "seed {seed}: {counts:?}");
            assert!(held < 1.3, "seed {seed}: {held} times what was live");
        }
    }
}

/// Vectors that grow by half until they are long, one picked at random at a time: no two requests are alike in a round, and each
/// round is like the one before.
fn growing_vectors(pool: &Pool, random: &mut Random) {
    let begin = |random: &mut Random| 20_000 + (1 << random.below(7)) * random.below(30_000);
    let alloc = |bytes: u64| pool.alloc(bytes, 0, STREAM).expect("memory");
    let mut vectors: Vec<(Addr, u64)> = (0..40)
        .map(|_| begin(random))
        .map(|bytes| (alloc(bytes), bytes))
        .collect();
    for _ in 0..4000 {
        let (at, bytes) = vectors[random.below(40) as usize];
        let vector = vectors.iter_mut().find(|vector| vector.0 == at).expect("it");
        let grown = bytes * 3 / 2;
        if grown > 900_000_000 {
            pool.free(at, STREAM).expect("a live block");
            vector.1 = begin(random);
            vector.0 = alloc(vector.1);
        } else {
            *vector = (alloc(grown), grown);
            pool.free(at, STREAM).expect("a live block");
        }
    }
    for (at, _) in vectors {
        pool.free(at, STREAM).expect("a live block");
    }
}

#[test]
fn a_round_that_came_to_rest_with_more_memory_stays_there() {
    for seed in 1..4 {
        let memory = Counting::new(true);
        let pool = Pool::new(config(), memory.clone()).expect("a pool");
        let calls = || memory.calls(Call::Create) + memory.calls(Call::Map) + memory.calls(Call::Unmap);
        let mut counts = Vec::new();
        for _ in 0..40 {
            let before = calls();
            growing_vectors(&pool, &mut Random(seed));
            counts.push(calls() - before);
        }
        let first = counts
            .iter()
            .position(|&calls| calls == 0)
            .expect("a quiet round");
        assert_eq!(counts[first + 3..].iter().sum::<u64>(), 0, "{seed}: {counts:?}");
    }
}

/// 48 blocks of 1 to 256 MiB, replaced at random: the first round moves so many pages that there seems to be no order. What it may
/// hold for that must not be made bit by bit in later rounds, each of which would find another layout.
#[test]
fn requests_without_order_that_come_again_find_their_layouts() {
    for seed in [1, 2, 3, 6, 7, 8] {
        let memory = Counting::new(true);
        let pool = Pool::new(config(), memory.clone()).expect("a pool");
        let calls = || memory.calls(Call::Create) + memory.calls(Call::Map) + memory.calls(Call::Unmap);
        let mut counts = Vec::new();
        for _ in 0..6 {
            let before = calls();
            let mut random = Random(seed);
            let mut blocks: Vec<Addr> = Vec::new();
            for _ in 0..20_000 {
                if blocks.len() == 48 {
                    let block = blocks.swap_remove(random.below(48) as usize);
                    pool.free(block, STREAM).expect("a block");
                }
                let bytes = random.log_uniform(8) * M + random.below(M);
                blocks.push(pool.alloc(bytes, 0, STREAM).expect("memory"));
            }
            for block in blocks {
                pool.free(block, STREAM).expect("a block");
            }
            counts.push(calls() - before);
        }
        assert!(counts[0] > 5000, "{seed}: {counts:?}");
        assert_eq!(counts[3..], [0; 3], "{seed}: {counts:?}");
    }
}
