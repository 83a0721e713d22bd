//! Rounds of programs on several streams, with what their thread keeps: each comes to one that makes no page call.

mod common;

use common::random::Random;
use common::{K, M, config};
use std::collections::VecDeque;
use weir::alloc::order::Reuse;
use weir::backend::host::{HostBackend, streams};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

/// A block, its bytes, and the stream that will free it.
type Block = (Addr, u64, usize);

/// A pool with some streams of the host, on which nothing is at work, and the thread's cache for each.
struct Rig {
    pool: Pool,
    streams: Vec<(StreamHandle, ThreadCache)>,
    live: u64,
    peak: u64,
}

impl Rig {
    fn new(count: usize, declared: bool) -> Rig {
        let mut config = config();
        config.declared_streams = declared;
        Rig::with(config, count)
    }

    fn with(config: Config, count: usize) -> Rig {
        let pool = Pool::new(config, HostBackend::new().expect("host memory")).expect("a pool");
        let stream = |_| {
            let stream = streams::create().expect("a stream");
            (stream, pool.open_cache(stream).expect("a cache"))
        };
        let streams = (0..count).map(stream).collect();
        Rig {
            pool,
            streams,
            live: 0,
            peak: 0,
        }
    }

    fn alloc(&mut self, bytes: u64, on: usize, freed_on: usize) -> Block {
        let (stream, cache) = &self.streams[on];
        let at = cache.alloc(bytes, 0);
        let at = at.unwrap_or_else(|| {
            self.pool
                .alloc_beside(Some(cache), bytes, 0, *stream)
                .expect("memory")
        });
        self.live += bytes;
        self.peak = self.peak.max(self.live);
        (at, bytes, freed_on)
    }

    fn free(&mut self, (at, bytes, on): Block) {
        let (stream, cache) = &self.streams[on];
        if cache.free(at).is_none() {
            self.pool
                .free_beside(Some(cache), at, *stream)
                .expect("a live block");
        }
        self.live -= bytes;
    }

    /// Page calls of each round of a program that waits for its streams after each, and what is held at last for the peak of what
    /// was live.
    fn rounds(
        &mut self,
        count: usize,
        program: impl Fn(&mut Rig, &mut Random),
        seed: u64,
    ) -> (Vec<u64>, f64) {
        let calls = |rig: &Rig| {
            let stats = rig.pool.stats().expect("stats");
            stats.page_creates + stats.maps + stats.unmaps
        };
        let mut counts = Vec::new();
        for _ in 0..count {
            let before = calls(self);
            program(self, &mut Random(seed));
            assert_eq!(self.live, 0);
            for &(stream, _) in &self.streams {
                let mark = self.pool.mark_stream(stream);
                streams::synchronize(stream).expect("no work");
                self.pool.synchronized(mark);
            }
            self.pool.validate();
            counts.push(calls(self) - before);
        }
        let held = self.pool.stats().expect("stats").reserved;
        (counts, held as f64 / self.peak as f64)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for (stream, cache) in &self.streams {
            self.pool.close_cache(cache);
            streams::destroy(*stream).expect("its end");
        }
    }
}

const STEPS: usize = 1500;

/// Blocks of one byte more than a power of two, up to 256 MiB, on any stream: one that is live goes for each that comes.
fn powers(rig: &mut Rig, random: &mut Random) {
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..STEPS {
        if blocks.len() == 24 {
            let block = blocks.swap_remove(random.below(24) as usize);
            rig.free(block);
        }
        let stream = random.below(rig.streams.len() as u64) as usize;
        blocks.push(rig.alloc((1 << (8 + random.below(21))) + 1, stream, stream));
    }
    blocks.into_iter().for_each(|block| rig.free(block));
}

/// Vectors that grow by half until they are long, on the stream of each. The first ones are short: threads keep such blocks.
fn vectors(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let begin = |random: &mut Random| 20_000 + (1 << random.below(7)) * random.below(30_000);
    let mut vectors: Vec<Block> = Vec::new();
    for number in 0..40 {
        let bytes = begin(random);
        vectors.push(rig.alloc(bytes, number % count, number % count));
    }
    for _ in 0..STEPS {
        let vector = &mut vectors[random.below(40) as usize];
        let old = *vector;
        let grown = old.1 * 3 / 2;
        if grown > 300_000_000 {
            rig.free(old);
            *vector = rig.alloc(begin(random), old.2, old.2);
        } else {
            *vector = rig.alloc(grown, old.2, old.2);
            rig.free(old);
        }
    }
    vectors.into_iter().for_each(|block| rig.free(block));
}

/// Each block is freed on the stream after the one that it was allocated on, in the order in which they came.
fn pipeline(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut blocks: VecDeque<Block> = VecDeque::new();
    for _ in 0..STEPS {
        let stream = random.below(count as u64) as usize;
        let bytes = 64 * K * random.log_uniform(10);
        blocks.push_back(rig.alloc(bytes, stream, (stream + 1) % count));
        if blocks.len() > 24 {
            let block = blocks.pop_front().expect("one of many");
            rig.free(block);
        }
    }
    blocks.into_iter().for_each(|block| rig.free(block));
}

/// Each stream frees the oldest of its eight blocks.
fn rings(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut rings = vec![VecDeque::new(); count];
    for number in 0..STEPS {
        let stream = number % count;
        let block = rig.alloc(M * random.log_uniform(6), stream, stream);
        rings[stream].push_back(block);
        if rings[stream].len() > 8 {
            let block = rings[stream].pop_front().expect("one of many");
            rig.free(block);
        }
    }
    rings.into_iter().flatten().for_each(|block| rig.free(block));
}

/// The same, with small blocks that come first and go last: more than threads keep, and more than is in use when the pool comes to
/// rest.
fn tails(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut small = Vec::new();
    for number in 0..300 {
        let bytes = 50_000 + random.below(100_000);
        small.push(rig.alloc(bytes, number % count, number % count));
    }
    rings(rig, random);
    small.into_iter().for_each(|block| rig.free(block));
}

#[test]
fn programs_that_do_the_same_again_come_to_rounds_without_page_calls() {
    type Program = fn(&mut Rig, &mut Random);
    let programs: [(&str, Program, f64); 5] = [
        ("powers", powers, 1.03),
        ("vectors", vectors, 1.03),
        // of fewer than 600 MiB what is lost at the ends of the driver's smallest pages is more
        ("pipeline", pipeline, 1.05),
        ("rings", rings, 1.03),
        ("tails", tails, 1.03),
    ];
    for (name, program, most) in programs {
        for (count, declared, seed) in [
            (1, true, 12),
            (1, true, 14),
            (2, true, 5),
            (2, false, 2),
            (4, true, 8),
            (4, false, 5),
            (5, true, 6),
        ] {
            let mut rig = Rig::new(count, declared);
            let (counts, held) = rig.rounds(18, program, seed);
            let what = || format!("{name}, {count} streams, declared: {declared}, held {held}: {counts:?}");
            assert!(counts[0] > 0, "{}", what());
            assert_eq!(counts[14..], [0; 4], "{}", what());
            assert!(held < most, "{}", what());
        }
    }
}

/// What one stream frees another one gets by an event, or not at all: so where the peaks of streams add up to more than the peak of
/// all, rounds without any call hold more than that. A program may choose them.
#[test]
fn streams_that_share_nothing_come_to_rounds_without_any_call() {
    for program in [rings, vectors, powers] {
        let mut config = config();
        config.declared_streams = true;
        config.reuse = Reuse {
            opportunistic: false,
            internal_dependencies: false,
            ..config.reuse
        };
        let mut rig = Rig::with(config, 3);
        let (counts, _) = rig.rounds(24, program, 4);
        let before = rig.pool.stats().expect("stats");
        rig.rounds(2, program, 4);
        let after = rig.pool.stats().expect("stats");
        assert!(
            counts[0] > 0 && after.allocations > before.allocations,
            "{counts:?}"
        );
        assert_eq!(after.driver_calls, before.driver_calls, "{counts:?}");
    }
}

/// What the thread keeps at the end of a round lies wherever that left it, so it keeps nothing there until the pool has been at rest,
/// and serves requests again afterwards.
#[test]
fn caches_make_way_for_a_rest_and_no_longer() {
    let mut rig = Rig::new(1, true);
    let (counts, _) = rig.rounds(14, vectors, 2);
    assert_eq!(counts[10..], [0; 4], "{counts:?}");
    let block = rig.alloc(4 * K, 0, 0);
    let at = block.0;
    rig.free(block);
    let allocations = rig.pool.stats().expect("stats").hits;
    let (_, cache) = &rig.streams[0];
    let kept = cache.alloc(4 * K, 0);
    assert_eq!(kept, Some(at), "kept for the next request");
    assert_eq!(rig.pool.stats().expect("stats").hits, allocations + 1);
    assert!(cache.free(at).is_some());
}
