//! Programs of single calls and batches with a thread's cache, against a map of what is live: batches are whole or not at all,
//! nothing overlaps, all is counted once, and the pool's books agree after every step.

use crate::common::random::Random;
use crate::common::{K, M, limited};
use std::collections::BTreeMap;
use weir::backend::counting::Counting;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const STREAM: StreamHandle = StreamHandle(1);
const LIMIT: u64 = 48 * M;

struct Run {
    pool: Pool,
    cache: ThreadCache,
    /// Address and bytes asked for.
    live: BTreeMap<u64, u64>,
    random: Random,
    failed: u32,
}

impl Run {
    fn new(seed: u64) -> Run {
        let pool = Pool::new(limited(LIMIT), Counting::new(true)).expect("a pool");
        let cache = pool.open_cache(STREAM).expect("a cache");
        Run {
            pool,
            cache,
            live: BTreeMap::new(),
            random: Random(seed),
            failed: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    fn size(&mut self) -> u64 {
        let most = [300, 3 * K, 40 * K, 300 * K, 3 * M][self.random.below(5) as usize];
        self.below(most)
    }

    fn enter(&mut self, at: Addr, bytes: u64) {
        let before = self.live.range(..=at.0).next_back();
        assert!(before.is_none_or(|(&start, &len)| start + len.max(1) <= at.0));
        let after = self.live.range(at.0..).next();
        assert!(after.is_none_or(|(&start, _)| at.0 + bytes.max(1) <= start));
        self.live.insert(at.0, bytes);
    }

    fn pick(&mut self, count: u64) -> Vec<Addr> {
        let mut left: Vec<Addr> = self.live.keys().map(|&at| Addr(at)).collect();
        let count = count.min(left.len() as u64);
        (0..count)
            .map(|_| left.swap_remove(self.random.below(left.len() as u64) as usize))
            .collect()
    }

    fn alloc_batch(&mut self) {
        let count = self.below(40);
        let same = self.below(3) == 0;
        let first = self.size();
        let sizes: Vec<u64> = (0..count)
            .map(|_| if same { first } else { self.size() })
            .collect();
        let mut blocks = vec![Addr(0); sizes.len()];
        let before = self.pool.stats().expect("stats");
        let served = self.cache.alloc_batch(&sizes, &mut blocks);
        if !served {
            let rest = self
                .pool
                .alloc_batch_beside(Some(&self.cache), &sizes, STREAM, &mut blocks);
            if let Err(error) = rest {
                assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
                let after = self.pool.stats().expect("stats");
                assert_eq!((after.used, after.allocations), (before.used, before.allocations));
                assert_eq!(after.frees, before.frees);
                assert!(blocks.iter().all(|at| at.0 == 0));
                self.failed += 1;
                return;
            }
        }
        let after = self.pool.stats().expect("stats");
        assert_eq!(after.allocations, before.allocations + count);
        for (at, bytes) in blocks.into_iter().zip(sizes) {
            self.enter(at, bytes);
        }
    }

    fn free_batch(&mut self) {
        let count = self.below(60);
        let mut blocks = self.pick(count);
        for _ in 0..self.below(3) {
            let place = self.below(blocks.len() as u64 + 1) as usize;
            blocks.insert(place, Addr(0));
        }
        let before = self.pool.stats().expect("stats");
        // a mistake somewhere: nothing is freed
        if self.below(4) == 0 && !blocks.is_empty() {
            let wrong = match self.below(3) {
                0 => Addr(8),
                1 => Addr(blocks.iter().map(|at| at.0).max().unwrap_or(0) + 1),
                _ => blocks[self.below(blocks.len() as u64) as usize],
            };
            if wrong.0 != 0 {
                let mut batch = blocks.clone();
                batch.insert(self.below(blocks.len() as u64 + 1) as usize, wrong);
                assert!(!self.cache.free_batch(&batch), "{wrong}");
                let answer = self.pool.free_batch_beside(Some(&self.cache), &batch, STREAM);
                answer.expect_err("a mistake");
                assert_eq!(self.pool.stats().expect("stats"), before, "{wrong}");
                self.pool.validate();
            }
        }
        if !self.cache.free_batch(&blocks) {
            let freed = self.pool.free_batch_beside(Some(&self.cache), &blocks, STREAM);
            freed.expect("live blocks");
        }
        blocks.retain(|at| at.0 != 0);
        let after = self.pool.stats().expect("stats");
        assert_eq!(after.frees, before.frees + blocks.len() as u64);
        blocks
            .iter()
            .for_each(|at| assert!(self.live.remove(&at.0).is_some()));
    }

    fn single(&mut self) {
        let bytes = self.size();
        let at = match self.cache.alloc(bytes, 0) {
            Some(at) => Ok(at),
            None => self.pool.alloc_beside(Some(&self.cache), bytes, 0, STREAM),
        };
        match at {
            Ok(at) => self.enter(at, bytes),
            Err(_) => self.failed += 1,
        }
        for at in self.pick(1) {
            if self.cache.free(at).is_none() {
                let freed = self.pool.free_beside(Some(&self.cache), at, STREAM);
                freed.expect("a live block");
            }
            self.live.remove(&at.0);
        }
    }

    fn step(&mut self) {
        match self.below(16) {
            0..5 => self.alloc_batch(),
            5..10 => self.free_batch(),
            10..15 => self.single(),
            _ => self.pool.trim(0).expect("a trim"),
        }
        self.pool.validate();
        let used = self.pool.stats().expect("stats").used;
        assert!(used >= self.live.values().sum::<u64>(), "{used}");
    }
}

#[test]
fn batches_beside_single_calls_are_whole_and_nobody_elses() {
    let mut failed = 0;
    for seed in 0..40 {
        let mut run = Run::new(seed);
        (0..400).for_each(|_| run.step());
        let rest: Vec<Addr> = run.live.keys().map(|&at| Addr(at)).collect();
        let freed = run.pool.free_batch_beside(Some(&run.cache), &rest, STREAM);
        freed.expect("live blocks");
        let stats = run.pool.stats().expect("stats");
        assert_eq!((stats.used, stats.allocations), (0, stats.frees), "{seed}");
        run.pool.close_cache(&run.cache);
        run.pool.validate();
        failed += run.failed;
    }
    assert!(failed > 100, "the limit was met {failed} times");
}

/// A program of batches alone, the same ones again and again: in the end each is answered as a whole, without the books. One that
/// cannot be had, and one with a mistake in it, change nothing.
#[test]
fn batches_that_come_again_are_answered_by_heart() {
    for declared_streams in [true, false] {
        let config = Config {
            declared_streams,
            ..limited(8 * LIMIT)
        };
        let pool = Pool::new(config, Counting::new(true)).expect("a pool");
        let cache = pool.open_cache(STREAM).expect("a cache");
        let sizes: Vec<u64> = (0..64).map(|n| [300, 5 * K, 100 * K, M][n % 4]).collect();
        let alloc = |sizes: &[u64]| {
            let mut blocks = vec![Addr(0); sizes.len()];
            match cache.alloc_batch(sizes, &mut blocks) {
                true => Ok(blocks),
                false => pool
                    .alloc_batch_beside(Some(&cache), sizes, STREAM, &mut blocks)
                    .map(|()| blocks),
            }
        };
        let free = |blocks: &[Addr]| {
            let kept = cache.free_batch(blocks);
            let freed = kept
                .then_some(())
                .map_or_else(|| pool.free_batch_beside(Some(&cache), blocks, STREAM), Ok);
            freed.expect("live blocks");
        };
        let learn = || {
            (0..40).any(|_| {
                free(&alloc(&sizes).expect("memory"));
                pool.is_replaying()
            })
        };
        assert!(learn(), "declared: {declared_streams}");
        let before = pool.stats().expect("stats");
        for _ in 0..5 {
            let mut blocks = vec![Addr(0); sizes.len()];
            assert!(cache.alloc_batch(&sizes, &mut blocks));
            // NULL is fine anywhere
            blocks.insert(7, Addr(0));
            free(&blocks);
        }
        let after = pool.stats().expect("stats");
        assert!(pool.is_replaying());
        assert_eq!(after.allocations, before.allocations + 5 * 64);
        assert_eq!((after.frees, after.used), (after.allocations, before.used));
        assert_eq!(after.driver_calls, before.driver_calls);

        // the first ones are as before, and then there is one that cannot be had
        let mut too_much = sizes.clone();
        too_much[63] = 9 * LIMIT;
        assert!(matches!(alloc(&too_much), Err(Error::OutOfMemory { .. })));
        let now = pool.stats().expect("stats");
        assert_eq!((now.used, now.allocations), (after.used, after.allocations));
        assert_eq!(now.frees, after.frees);
        pool.validate();

        assert!(learn(), "again");
        let blocks = alloc(&sizes).expect("memory");
        for wrong in [vec![blocks[0], blocks[0]], vec![blocks[0], Addr(8)]] {
            assert!(!cache.free_batch(&wrong));
            let answer = pool.free_batch_beside(Some(&cache), &wrong, STREAM);
            assert!(answer.is_err(), "{wrong:?}");
            pool.validate();
        }
        free(&blocks);
        let now = pool.stats().expect("stats");
        assert_eq!((now.used, now.frees), (0, now.allocations));
        assert!(learn(), "once more");
        pool.close_cache(&cache);
        assert_eq!(pool.end().blocks, 0);
    }
}
