//! Runs of phases, each of which begins and ends with nothing in use: how many calls lie between two such moments says nothing of where the run
//! begins again.

use crate::common::cached::{STREAM, alloc, free};
use crate::common::random::Random;
use crate::common::{K, M, config};
use weir::backend::counting::Counting;
use weir::base::units::Addr;
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

/// Blocks of these lengths come one after the other, and go in another order.
#[derive(Clone)]
struct Phase(Vec<u64>);

impl Phase {
    /// Of so many blocks of up to so many bytes, and a long one, so that all phases need about as much.
    fn of(random: &mut Random, blocks: usize, most: u64) -> Phase {
        let bytes = (1..blocks).map(|_| 100 * K + random.below(most));
        Phase(std::iter::once(100 * M).chain(bytes).collect())
    }

    /// Gives how many of its calls were not answered by heart.
    fn play(&self, pool: &Pool, cache: &ThreadCache) -> usize {
        let mut not = 0;
        let mut called = || not += usize::from(!pool.is_replaying());
        let mut blocks: Vec<Addr> = Vec::new();
        for &bytes in &self.0 {
            blocks.push(alloc(pool, cache, bytes).expect("memory"));
            called();
        }
        let (even, odd): (Vec<_>, Vec<_>) =
            blocks.iter().enumerate().partition(|(number, _)| number % 2 == 0);
        for (_, &at) in even.into_iter().rev().chain(odd) {
            free(pool, cache, at).expect("a live block");
            called();
        }
        not
    }
}

/// Calls of each of four runs that were not answered by heart, and page calls.
fn runs(run: &[Phase]) -> [(usize, u64); 4] {
    let config = Config {
        slack: 0.3, // no page moves
        ..config()
    };
    let pool = Pool::new(config, Counting::new(true)).expect("a pool");
    let cache = pool.open_cache(STREAM).expect("a cache");
    let pages = || {
        let stats = pool.stats().expect("stats");
        stats.maps + stats.unmaps + stats.page_creates + stats.page_releases
    };
    let runs = [(); 4].map(|()| {
        let before = pages();
        let not = run.iter().map(|phase| phase.play(&pool, &cache)).sum();
        (not, pages() - before)
    });
    pool.close_cache(&cache);
    pool.validate();
    runs
}

/// No two phases are the same, and the run is no power of two times as long as one of them.
#[test]
fn a_run_of_phases_that_all_differ_is_known_by_heart_when_it_came_twice() {
    let mut came_twice = 0;
    for seed in 1..6 {
        let random = &mut Random(seed);
        let count = 40 + random.below(50) as usize;
        let run: Vec<Phase> = (0..count).map(|_| Phase::of(random, 60, M)).collect();
        let [first, second, third, fourth] = runs(&run);
        assert!(
            first.0 > count * 118,
            "seed {seed}: wrong guesses answer a few calls"
        );
        came_twice += usize::from(second.0 > 0);
        assert_eq!([third, fourth], [(0, 0); 2], "seed {seed}");
    }
    assert!(came_twice > 0, "each was guessed when it came once");
}

/// Each phase comes again and again, and is known by heart soon; then come others of as many calls.
#[test]
fn a_run_of_phases_that_each_come_often_is_known_by_heart_as_a_whole() {
    for seed in 1..6 {
        let random = &mut Random(seed);
        let blocks = 110 + random.below(80) as usize;
        let phases = [(); 3].map(|()| Phase::of(random, blocks, 2 * M));
        let run: Vec<Phase> = phases.iter().flat_map(|phase| vec![phase.clone(); 7]).collect();
        let all = run.len() * 2 * blocks;
        let [first, .., third, fourth] = runs(&run);
        assert!((1..all).contains(&first.0), "seed {seed}: {} of {all}", first.0);
        assert_eq!([third, fourth], [(0, 0); 2], "seed {seed}");
    }
}
