//! Streams that do not look at each other, because rounds would differ by chance: what one frees is handed to another one only behind the
//! work that may still use it. The device (`sim`) knows the truth, and panics where that is not so.

use crate::common::random::Random;
use crate::common::sim::{FIRST_STREAM, Sim};
use crate::common::{K, M, config};
use std::collections::VecDeque;
use std::sync::Arc;
use weir::alloc::order::Reuse;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAMS: usize = 3;
const REQUESTS: usize = 400;
const LIVE: usize = 24;

/// A block: where, its bytes and number, and the stream that frees it.
type Block = (Addr, u64, u64, StreamHandle);

struct Rig {
    sim: Arc<Sim>,
    pool: Pool,
    blocks: u64,
}

impl Rig {
    fn new(declared: bool) -> Rig {
        let sim = Sim::new(STREAMS);
        if declared {
            sim.declare_streams();
        }
        let config = Config {
            declared_streams: declared,
            ..config()
        };
        let pool = Pool::new(config, sim.clone()).expect("a pool");
        Rig { sim, pool, blocks: 0 }
    }

    /// Does `pass` hand each block to the next stream, which frees it? Else each stream frees its own.
    fn round(&mut self, pass: bool, seed: u64, pace: &mut Random) {
        let streams = [0, 1, 2].map(|number| StreamHandle(FIRST_STREAM + number));
        let mut random = Random(seed);
        let mut live: VecDeque<Block> = VecDeque::new();
        for _ in 0..REQUESTS {
            if live.len() == LIVE {
                let turn = if pass { 0 } else { random.below(LIVE as u64) };
                let block = live.remove(turn as usize).expect("one of many");
                self.free(block);
            }
            let number = random.below(STREAMS as u64) as usize;
            let bytes = M * random.log_uniform(7) + random.below(512 * K);
            let stream = streams[number];
            let at = self
                .sim
                .naming(&[stream], || self.pool.alloc(bytes, 0, stream))
                .expect("memory");
            self.blocks += 1;
            self.sim.touch(stream, self.blocks, at.0, bytes);
            let freed_on = match pass {
                true => streams[(number + 1) % STREAMS],
                false => stream,
            };
            if pass {
                // the program's own order, of which the pool hears nothing
                let now = self.sim.now(stream);
                self.sim.wait_for(freed_on, &now);
                self.sim.touch(freed_on, self.blocks, at.0, bytes);
            }
            live.push_back((at, bytes, self.blocks, freed_on));
            if pace.one_in(4) {
                self.sim
                    .advance(streams[pace.below(3) as usize], 1 + pace.below(3));
            }
            self.pool.validate();
        }
        live.into_iter().for_each(|block| self.free(block));
        for stream in streams {
            let mark = self.sim.naming(&[stream], || self.pool.mark_stream(stream));
            self.sim.synchronize_with(&self.sim.now(stream));
            self.pool.synchronized(mark);
        }
    }

    fn free(&self, (at, _, _, stream): Block) {
        self.sim
            .naming(&[stream], || self.pool.free(at, stream))
            .expect("a live block");
    }
}

/// What the last of some rounds asked of events, and waited for; page calls of all, and what was held at most for what was in use.
struct Outcome {
    events: u64,
    waits: u64,
    page_calls: Vec<u64>,
    held: f64,
}

fn rounds(declared: bool, pass: bool, seed: u64) -> Outcome {
    let mut rig = Rig::new(declared);
    let mut pace = Random(seed + 100);
    let mut outcome = Outcome {
        events: 0,
        waits: 0,
        page_calls: Vec::new(),
        held: 0.0,
    };
    for _ in 0..18 {
        let (before, waits) = (rig.pool.stats().expect("stats"), rig.sim.waits());
        rig.round(pass, seed, &mut pace);
        let after = rig.pool.stats().expect("stats");
        outcome.events = after.event_calls - before.event_calls;
        outcome.waits = rig.sim.waits() - waits;
        let pages = (after.maps + after.page_creates) - (before.maps + before.page_creates);
        outcome.page_calls.push(pages);
        let held = after.reserved as f64 / after.used_peak as f64;
        outcome.held = outcome.held.max(held);
    }
    outcome
}

/// Of work that hardly ever ends no pool can wait to see the end. What one stream hands to the next is waited for on the device, once the
/// pool holds what streams would need that share nothing.
#[test]
fn what_is_passed_on_is_waited_for() {
    for declared in [true, false] {
        for seed in 1..=2 {
            let Outcome {
                waits,
                page_calls,
                held,
                ..
            } = rounds(declared, true, seed);
            let what =
                format!("declared {declared}, seed {seed}: {waits} waits, held {held}, {page_calls:?}");
            assert!(page_calls[0] > 0 && waits > 0 && held < 5.0, "{what}");
        }
    }
}

/// Streams that keep to themselves in the end ask for nothing, however far the host is ahead.
#[test]
fn what_is_kept_is_neither_waited_for_nor_looked_at() {
    for declared in [true, false] {
        for seed in 1..=2 {
            let Outcome {
                events,
                waits,
                page_calls,
                held,
            } = rounds(declared, false, seed);
            let what = format!(
                "declared {declared}, seed {seed}: {events} events, {waits} waits, held {held}, {page_calls:?}"
            );
            assert!(page_calls[0] > 0 && page_calls.ends_with(&[0, 0]), "{what}");
            assert!(waits == 0 && (!declared || events == 0) && held < 2.3, "{what}");
        }
    }
}

/// Nobody can wait for a stream that has ended: what it had is used again once its work is seen to be complete, whatever else may be.
#[test]
fn what_an_ended_stream_had_is_used_again() {
    for [opportunistic, internal_dependencies] in [[true, true], [true, false], [false, true], [false, false]]
    {
        let sim = Sim::new(1);
        sim.declare_streams();
        let mut config = Config {
            declared_streams: true,
            ..config()
        };
        config.reuse.opportunistic = opportunistic;
        config.reuse.internal_dependencies = internal_dependencies;
        let pool = Pool::new(config, sim.clone()).expect("a pool");
        let stream = StreamHandle(FIRST_STREAM);
        for number in 1..20 {
            let at = sim
                .naming(&[stream], || pool.alloc(64 * M, 0, stream))
                .expect("memory");
            sim.touch(stream, number, at.0, 64 * M);
            sim.naming(&[stream], || pool.free(at, stream))
                .expect("a live block");
            let work = sim.now(stream);
            pool.stream_changed(stream);
            sim.destroy_stream(stream);
            sim.create_stream(stream);
            sim.synchronize_with(&work);
        }
        let held = pool.stats().expect("stats").reserved_peak;
        assert!(held <= 66 * M, "{opportunistic} {internal_dependencies}: {held}");
    }
}

/// Nor is one that has ended asked for an event when a block is freed that it used: it had one before.
#[test]
fn what_an_ended_stream_used_is_used_again() {
    let sim = Sim::new(2);
    sim.declare_streams();
    let config = Config {
        declared_streams: true,
        ..config()
    };
    let pool = Pool::new(config, sim.clone()).expect("a pool");
    let [stream, other] = [0, 1].map(|number| StreamHandle(FIRST_STREAM + number));
    for number in 1..20 {
        let at = sim
            .naming(&[stream], || pool.alloc(64 * M, 0, stream))
            .expect("memory");
        sim.naming(&[other], || pool.record_stream(at, other))
            .expect("a live block");
        sim.touch(other, number, at.0, 64 * M);
        let work = sim.now(other);
        pool.stream_changed(other);
        sim.destroy_stream(other);
        sim.create_stream(other);
        sim.naming(&[stream], || pool.free(at, stream))
            .expect("a live block");
        let next = sim
            .naming(&[stream], || pool.alloc(64 * M, 0, stream))
            .expect("memory");
        assert_ne!(next, at, "its work is not over");
        sim.naming(&[stream], || pool.free(next, stream))
            .expect("a live block");
        sim.synchronize_with(&work);
        pool.validate();
    }
    let held = pool.stats().expect("stats").reserved_peak;
    assert!(held <= 130 * M, "{held}");
}

/// Page calls and blocks of the last of some rounds in which six streams are filled, and emptied in no order, while the host is ahead of
/// them.
fn fills(seed: u64) -> (u64, u64) {
    const STREAMS: usize = 6;
    const LEAD: usize = 150;
    let sim = Sim::new(STREAMS);
    let config = Config {
        max_bytes: 1700 * M,
        ..config()
    };
    let pool = Pool::new(config, sim.clone()).expect("a pool");
    let mut random = Random(seed);
    let (mut live, mut queued): (Vec<(Addr, StreamHandle)>, _) = (Vec::new(), VecDeque::new());
    let (mut blocks, mut last) = (0, pool.stats().expect("stats"));
    for round in 0..40 {
        if round == 20 {
            last = pool.stats().expect("stats");
        }
        let mut filled = 0;
        while filled < 1200 * M {
            let stream = StreamHandle(FIRST_STREAM + random.below(STREAMS as u64) as usize);
            let bytes = M * random.log_uniform(5) + random.below(512 * K);
            let at = sim
                .naming(&[stream], || pool.alloc(bytes, 0, stream))
                .expect("memory");
            blocks += 1;
            filled += bytes;
            live.push((at, stream));
            sim.touch(stream, blocks, at.0, bytes);
            queued.push_back(stream);
            if queued.len() > LEAD {
                sim.advance(queued.pop_front().expect("work"), 2);
            }
        }
        while !live.is_empty() {
            let (at, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
            sim.naming(&[stream], || pool.free(at, stream))
                .expect("a live block");
        }
        pool.validate();
    }
    let now = pool.stats().expect("stats");
    (
        now.maps + now.page_creates - last.maps - last.page_creates,
        now.allocations - last.allocations,
    )
}

/// Not all is complete at a rest, and which of it is, is chance; but where requests have no order, no round is like another anyway.
#[test]
fn what_is_complete_at_a_rest_is_everybodys_where_there_is_no_order() {
    let outcomes: Vec<_> = (1..7).map(fills).collect();
    let pages: u64 = outcomes.iter().map(|outcome| outcome.0).sum();
    let blocks: u64 = outcomes.iter().map(|outcome| outcome.1).sum();
    assert!(2 * pages < blocks, "{pages} page calls, {blocks} blocks");
}

/// What is held at most for four blocks at a time on six streams, where one in ten is freed on another stream, behind work there, while
/// the host is ahead of the streams. The program sees to the order, and the pool hears nothing of it.
fn passes_now_and_then(internal: bool, caches: bool, limit: u64) -> u64 {
    const STREAMS: usize = 6;
    let sim = Sim::new(STREAMS);
    let config = Config {
        thread_caches: caches,
        max_bytes: limit,
        reuse: Reuse {
            internal_dependencies: internal,
            ..config().reuse
        },
        ..config()
    };
    let pool = Pool::new(config, sim.clone()).expect("a pool");
    let mut random = Random(5);
    let mut any = |count: u64| random.below(count);
    let mut stream = || StreamHandle(FIRST_STREAM + any(STREAMS as u64) as usize);
    let (mut live, mut queued): (VecDeque<(Addr, u64, u64, StreamHandle)>, _) =
        (VecDeque::new(), VecDeque::new());
    for block in 0..60_000 {
        if live.len() == 4 {
            let (at, bytes, number, home) = live.pop_front().expect("one of four");
            let mut freed_on = home;
            if number % 10 == 0 {
                freed_on = stream();
                sim.wait_for(freed_on, &sim.now(home));
                sim.touch(freed_on, number, at.0, bytes);
                queued.push_back(freed_on);
            }
            sim.naming(&[freed_on], || pool.free(at, freed_on))
                .expect("a live block");
        }
        let (home, bytes) = (stream(), [6 * K, K, 640 * K][block as usize % 3]);
        let at = sim
            .naming(&[home], || pool.alloc(bytes, 0, home))
            .expect("memory");
        sim.touch(home, block, at.0, bytes);
        queued.push_back(home);
        live.push_back((at, bytes, block, home));
        if queued.len() > 24 {
            sim.advance(queued.pop_front().expect("work"), 2);
        }
    }
    pool.validate();
    pool.stats().expect("stats").reserved_peak
}

/// A stream that goes on freeing keeps no more and more of what others need.
#[test]
fn what_is_passed_on_now_and_then_does_not_pile_up() {
    for (caches, limit) in [(true, 0), (false, 0), (true, 2048 * M)] {
        let held = passes_now_and_then(true, caches, limit) / M;
        assert!(held <= 32, "{held} MiB");
        // where streams may not wait for each other the pool grows to what is little
        let held = passes_now_and_then(false, caches, limit) / M;
        assert!(held <= 160, "{held} MiB");
    }
}

/// The most events that were open at once while requests, each on a stream of its own, 32 at a time after the first few, were waited for
/// by the program in the order in which they came, without a word to the pool; and how many waited for others.
fn requests(seed: u64) -> (usize, u64) {
    let sim = Sim::new(0);
    let pool = Pool::new(config(), sim.clone()).expect("a pool");
    let (mut random, mut under_way, mut most) = (Random(seed), VecDeque::new(), 0);
    for number in 0..3000 {
        let at_once = if number < 20 { 4 } else { 32 };
        while under_way.len() >= at_once {
            let stream = under_way.pop_front().expect("one of many");
            sim.synchronize_with(&sim.now(stream));
            sim.destroy_stream(stream);
        }
        let stream = StreamHandle(FIRST_STREAM + number % 33);
        sim.create_stream(stream);
        let blocks = [0, 1].map(|nth| {
            let bytes = M + random.log_uniform(25);
            let at = sim
                .naming(&[stream], || pool.alloc(bytes, 0, stream))
                .expect("memory");
            sim.touch(stream, 2 * number as u64 + nth, at.0, bytes);
            at
        });
        for at in blocks {
            sim.naming(&[stream], || pool.free(at, stream))
                .expect("a live block");
        }
        under_way.push_back(stream);
        most = most.max(sim.events());
    }
    pool.validate();
    (most, sim.waits())
}

/// Where streams wait for each other nobody looks at them; yet those that are no more are found to be.
#[test]
fn streams_of_requests_that_are_over_are_forgotten() {
    let lives = [6, 9, 3].map(requests);
    assert!(lives.iter().any(|life| life.1 > 2900), "some wait: {lives:?}");
    assert!(lives.iter().all(|life| life.0 < 400), "{lives:?}");
}
