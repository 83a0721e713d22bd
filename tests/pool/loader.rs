//! A thread that loads what the next step of a program reads, on a stream of its own, while another one makes the steps, as programs in C++
//! do it. The host is ahead of the device by some steps, so what was loaded is in use long after it was freed.

use crate::common::M;
use crate::common::device::Device;
use crate::common::player::{Call, Round};
use crate::common::random::Random;
use std::thread;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const STEPS: StreamHandle = StreamHandle(65);
const LOADS: StreamHandle = StreamHandle(66);
const BATCH: u64 = 3 * M + 512;
/// So many steps ahead is the host.
const AHEAD: usize = 4;
/// What is held where no step is like another is chance: so many are drawn.
const DRAWS: u64 = 8;
/// Nanoseconds.
const STEP_TAKES: u64 = 1_000_000;

/// What became of it.
struct Life {
    /// Page calls of each step.
    pages: Vec<u64>,
    /// The first step that ended by heart.
    by_heart: Option<usize>,
    reserved: u64,
    peak: u64,
}

struct User<'a> {
    pool: &'a Pool,
    cache: ThreadCache,
    stream: StreamHandle,
}

impl User<'_> {
    fn alloc(&self, bytes: u64) -> Addr {
        self.cache.alloc(bytes, 0).unwrap_or_else(|| {
            let at = self.pool.alloc_beside(Some(&self.cache), bytes, 0, self.stream);
            at.expect("memory")
        })
    }

    fn free(&self, at: Addr) {
        if self.cache.free(at).is_none() {
            let freed = self.pool.free_beside(Some(&self.cache), at, self.stream);
            freed.expect("live");
        }
    }
}

/// So many steps, which are all the same, or none is like another: those of a draw.
fn life(declared_streams: bool, steps: usize, (same, draw): (bool, u64)) -> Life {
    let config = Config {
        declared_streams,
        ..crate::common::config()
    };
    let device = Device::new(1);
    let pool = Pool::new(config, device.clone()).expect("a pool");
    let user = |stream| User {
        pool: &pool,
        cache: pool.open_cache(stream).expect("a cache"),
        stream,
    };
    let program = user(STEPS);
    let loader = thread::scope(|scope| scope.spawn(|| user(LOADS)).join()).expect("no panic");
    let pages_so_far = || {
        let stats = pool.stats().expect("stats");
        stats.maps + stats.unmaps + stats.page_creates + stats.page_releases
    };
    let (mut pages, mut by_heart) = (Vec::new(), None);
    for step in 0..steps {
        let before = pages_so_far();
        let batch = loader.alloc(BATCH);
        device.queue(LOADS, STEP_TAKES / 8);
        pool.record_stream(batch, STEPS).expect("live");
        let round = Round::new(
            &mut Random(if same { 7 } else { (draw << 32) + step as u64 }),
            120,
            20,
        );
        let mut blocks = vec![Addr(0); round.asked.len()];
        for &call in &round.calls {
            match call {
                Call::Alloc(block) => blocks[block] = program.alloc(round.asked[block]),
                Call::Free(block) | Call::FreeLast(block) => program.free(blocks[block]),
            }
        }
        device.queue(STEPS, STEP_TAKES);
        loader.free(batch);
        if step % AHEAD == 0 {
            device.wait_for_all();
        }
        pages.push(pages_so_far() - before);
        if by_heart.is_none() && pool.is_replaying() {
            by_heart = Some(step);
        }
    }
    pool.validate();
    let stats = pool.stats().expect("stats");
    for user in [program, loader] {
        pool.close_cache(&user.cache);
    }
    assert_eq!(pool.end().blocks, 0);
    Life {
        pages,
        by_heart,
        reserved: stats.reserved,
        peak: stats.used_peak,
    }
}

/// The threads do not take turns, but all calls of the one are the other's guests'.
#[test]
fn steps_are_by_heart_beside_a_thread_that_loads() {
    for declared in [true, false] {
        let Life { pages, by_heart, .. } = life(declared, 60, (true, 0));
        let soon = by_heart.is_some_and(|step| step <= 8);
        assert!(soon, "declared {declared}: by heart in step {by_heart:?}");
        assert!(
            pages[8..].iter().all(|&made| made == 0),
            "declared {declared}: {pages:?}"
        );
    }
}

/// What was loaded is freed while steps use it. It comes back for the next loads, whether the steps are known or not, rather than go to the
/// stream of the steps for good, while the pool grows for each load.
#[test]
fn what_is_loaded_does_not_add_up() {
    for declared in [true, false] {
        for (same, draws) in [(true, 1), (false, DRAWS)] {
            let lives = (0..draws).map(|draw| life(declared, 1000, (same, draw)));
            let share = |life: Life| {
                // besides what is live, what is in use still, and what each stream has for itself, which is chance
                let most = (life.peak + (AHEAD as u64 + 1) * BATCH) / 2 * 3 + 8 * M;
                life.reserved as f64 / most as f64
            };
            let mean = lives.map(share).sum::<f64>() / draws as f64;
            assert!(
                mean <= 1.0,
                "declared {declared}, the same {same}: {mean} of what may be held"
            );
        }
    }
}
