//! Memory of stream captures, on the device that knows the truth: a graph's work stands still until the graph
//! is gone, so any part of its memory that is handed to somebody else meanwhile is seen at once.

use crate::common::random::Random;
use crate::common::sim::{FIRST_STREAM, Sim};
use std::sync::Arc;
use weir::backend::Backend;
use weir::base::error::Error;
use weir::base::units::{Addr, CaptureId, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const A: StreamHandle = StreamHandle(FIRST_STREAM);
const B: StreamHandle = StreamHandle(FIRST_STREAM + 1);
const MIB: u64 = 1 << 20;
const FIRST: CaptureId = CaptureId(1);

struct World {
    sim: Arc<Sim>,
    pool: Pool,
    blocks: u64,
    /// The driver tells when a graph is gone.
    told: bool,
}

impl Drop for World {
    fn drop(&mut self) {
        self.sim.end_graphs();
    }
}

impl World {
    fn new(config: Config) -> World {
        let sim = Sim::new(4);
        World {
            pool: Pool::new(config, sim.clone()).unwrap(),
            sim,
            blocks: 0,
            told: true,
        }
    }

    /// A block, used at once on the stream it was asked for.
    fn alloc(&mut self, bytes: u64, stream: StreamHandle) -> (Addr, u64) {
        self.blocks += 1;
        let at = self
            .sim
            .naming(&[stream], || self.pool.alloc(bytes, 0, stream))
            .unwrap();
        self.sim.touch(stream, self.blocks, at.0, bytes);
        self.pool.validate();
        (at, self.blocks)
    }

    fn free(&self, at: Addr, stream: StreamHandle) {
        self.sim.naming(&[stream], || self.pool.free(at, stream)).unwrap();
        self.pool.validate();
    }

    fn release(&self, capture: CaptureId) {
        self.sim.destroy_graph(capture);
        self.pool.release_capture(capture).unwrap();
        self.pool.validate();
    }

    /// The graph goes, and whoever has to say so does.
    fn end_graph(&self, capture: CaptureId) {
        match self.told {
            true => self.sim.destroy_graph(capture),
            false => self.release(capture),
        }
    }

    fn free_bytes(&self) -> u64 {
        let stats = self.pool.stats().unwrap();
        stats.reserved - stats.used
    }
}

#[test]
fn what_is_freed_in_a_capture_serves_the_capture_and_nobody_else() {
    for bytes in [1000, 3 * MIB] {
        let mut world = World::new(Config::default());
        world.sim.begin_capture(A, FIRST);
        let (first, _) = world.alloc(bytes, A);
        world.free(first, A);
        let (again, _) = world.alloc(bytes, A);
        assert_eq!(again, first, "in the order of the graph the block is free");
        world.free(again, A);
        world.sim.end_capture(A);
        for stream in [A, B] {
            let (other, _) = world.alloc(bytes, stream);
            assert_ne!(other, first, "each launch uses the block");
            world.free(other, stream);
        }
        world.pool.squeeze().unwrap();
        assert!(
            world.free_bytes() >= bytes,
            "a squeeze leaves the graph its memory"
        );
        world.release(FIRST);
        let given = world.pool.squeeze().unwrap();
        assert!(given >= bytes);
        assert_eq!(world.free_bytes(), 0);
    }
}

#[test]
fn memory_of_a_graph_comes_back_when_the_driver_says_that_it_is_gone() {
    for bytes in [1000, 3 * MIB] {
        let mut world = World::new(Config {
            max_bytes: 4 * MIB,
            ..Config::default()
        });
        let (outside, _) = world.alloc(512, A);
        world.sim.begin_capture(A, FIRST);
        world.sim.begin_capture(B, FIRST);
        world.free(outside, A); // the first that the pool hears of the capture
        let (scratch, _) = world.alloc(bytes, B);
        world.free(scratch, B);
        world.sim.end_capture(A);
        world.sim.end_capture(B);
        let all = |world: &World| world.sim.naming(&[A], || world.pool.alloc(4 * MIB, 0, A));
        assert!(matches!(all(&world), Err(Error::OutOfMemory(_))));
        world.sim.destroy_graph(FIRST);
        let at = all(&world).expect("the graph's memory");
        world.pool.release_capture(FIRST).unwrap(); // it is known already
        world.free(at, A);
        world.pool.squeeze().unwrap();
        assert_eq!(world.pool.stats().unwrap().reserved, 0);
    }
}

#[test]
fn trim_and_stats_hear_of_it_and_live_blocks_stay() {
    let mut world = World::new(Config::default());
    world.sim.begin_capture(A, FIRST);
    let (live, _) = world.alloc(MIB, A);
    let (scratch, _) = world.alloc(32 * MIB, A);
    world.free(scratch, A);
    world.sim.end_capture(A);
    let (kept, _) = world.alloc(MIB, B);
    world.sim.naming(&[A], || world.pool.free(live, A)).unwrap();
    assert_eq!(world.pool.stats().unwrap().pending, MIB, "the graph's");
    world.sim.destroy_graph(FIRST);
    assert_eq!(world.pool.stats().unwrap().pending, 0);
    world.sim.begin_capture(A, CaptureId(2));
    let (scratch, _) = world.alloc(32 * MIB, A);
    world.free(scratch, A);
    world.sim.end_capture(A);
    world.sim.destroy_graph(CaptureId(2));
    world.pool.trim(0).unwrap();
    let stats = world.pool.stats().unwrap();
    assert_eq!((stats.pending, stats.used), (0, MIB));
    assert!(stats.reserved < 32 * MIB, "{stats:?}");
    world.free(kept, B);
}

#[test]
fn where_nobody_tells_the_graph_keeps_its_memory_until_the_release() {
    let mut world = World::new(Config::default());
    world.sim.never_tell();
    world.sim.begin_capture(A, FIRST);
    let (scratch, _) = world.alloc(MIB, A);
    world.free(scratch, A);
    world.sim.end_capture(A);
    world.sim.destroy_graph(FIRST);
    world.pool.squeeze().unwrap();
    assert!(world.free_bytes() >= MIB);
    world.pool.release_capture(FIRST).unwrap();
    world.pool.squeeze().unwrap();
    assert_eq!(world.free_bytes(), 0);
}

#[test]
fn another_part_of_the_capture_gets_it_only_when_ordered() {
    let mut world = World::new(Config {
        max_bytes: 8 * MIB,
        ..Config::default()
    });
    world.sim.begin_capture(A, FIRST);
    world.sim.begin_capture(B, FIRST);
    let (block, _) = world.alloc(8 * MIB, A);
    world.free(block, A);
    let refused = world.sim.naming(&[B], || world.pool.alloc(8 * MIB, 0, B));
    assert!(matches!(refused, Err(Error::OutOfMemory(_))));
    // the program joins the two parts, and the pool is told
    let event = weir::base::units::EventHandle(77);
    let mark = world.sim.naming(&[A], || world.pool.mark_stream(A));
    let moment = world.sim.now(A);
    world.pool.event_recorded(event, mark);
    let mark = world.pool.mark_event(event);
    world.sim.wait_for(B, &moment);
    world.sim.naming(&[B], || world.pool.stream_waits(B, mark));
    assert_eq!(world.alloc(8 * MIB, B).0, block);
}

#[test]
fn a_block_of_the_graph_that_is_freed_outside_waits_for_the_release_and_for_its_stream() {
    for bytes in [1000, 3 * MIB] {
        let mut world = World::new(Config::default());
        world.sim.begin_capture(A, FIRST);
        let (output, name) = world.alloc(bytes, A);
        world.sim.end_capture(A);
        world.sim.touch(B, name, output.0, bytes); // what a launch wrote is used on B
        world.free(output, B);
        let pending = world.pool.stats().unwrap().pending;
        assert!(pending >= bytes);
        world.sim.destroy_graph(FIRST);
        world.pool.release_capture(FIRST).unwrap();
        assert_eq!(
            world.pool.stats().unwrap().pending,
            pending,
            "B is not done with it"
        );
        world.sim.advance(B, 1);
        // an event of B's is asked for in the next call that names it
        let (other, _) = world.alloc(64 * MIB, B);
        world.free(other, B);
        world.pool.squeeze().unwrap();
        assert_eq!(world.free_bytes(), 0);
    }
}

#[test]
fn a_block_from_outside_that_a_capture_frees_stays_with_the_graph() {
    for bytes in [1000, 3 * MIB] {
        let mut world = World::new(Config::default());
        let (input, name) = world.alloc(bytes, A);
        world.sim.begin_capture(A, FIRST);
        world.sim.touch(A, name, input.0, bytes);
        world.free(input, A);
        let (other, _) = world.alloc(bytes, A);
        assert_ne!(other, input, "work queued on the stream before may still use it");
        world.sim.end_capture(A);
        let (other, _) = world.alloc(bytes, A);
        assert_ne!(other, input);
        world.release(FIRST);
        world.sim.advance(A, 9);
        world.pool.squeeze().unwrap();
        assert_eq!(world.pool.stats().unwrap().pending, 0);
    }
}

#[test]
fn a_synced_free_does_not_take_a_block_from_its_graph() {
    let mut world = World::new(Config::default());
    world.sim.begin_capture(A, FIRST);
    let (block, _) = world.alloc(MIB, A);
    world.sim.end_capture(A);
    world.pool.free_synced(block).unwrap();
    let (other, _) = world.alloc(MIB, B);
    assert_ne!(other, block);
    world.free(other, B);
    world.release(FIRST);
    world.sim.advance(B, 9);
    world.pool.squeeze().unwrap();
    assert_eq!(world.free_bytes(), 0);
}

#[test]
fn a_capture_takes_nothing_that_its_stream_only_may_use() {
    let mut world = World::new(Config {
        max_bytes: 64 * MIB,
        ..Config::default()
    });
    let (eager, _) = world.alloc(MIB, A);
    world.free(eager, A);
    world.sim.begin_capture(A, FIRST);
    // a launch may come on any stream: the sim panics if this is memory that A's queued work uses
    for _ in 0..40 {
        world.alloc(MIB, A);
    }
    world.sim.end_capture(A);
}

#[test]
fn a_capture_does_not_keep_what_lies_beside_its_blocks() {
    let mut world = World::new(Config {
        initial_bytes: 256 * MIB,
        ..Config::default()
    });
    world.sim.begin_capture(A, FIRST);
    for _ in 0..4 {
        let (block, _) = world.alloc(MIB, A);
        world.free(block, A);
    }
    world.sim.end_capture(A);
    let before = world.pool.stats().unwrap().reserved;
    world.alloc(200 * MIB, B);
    assert_eq!(world.pool.stats().unwrap().reserved, before, "there was room");
}

#[test]
fn waiting_and_ending_are_refused_while_a_capture_runs() {
    let mut world = World::new(Config::default());
    let (block, _) = world.alloc(MIB, B);
    world.free(block, B);
    world.sim.begin_capture(A, FIRST);
    world.alloc(MIB, A);
    assert!(matches!(world.pool.may_end(), Err(Error::Capture(_))));
    // what an event covers can be waited for and given back all the same
    world.pool.squeeze().unwrap();
    world.sim.end_capture(A);
    world.pool.may_end().unwrap();
}

#[test]
fn a_capture_that_was_released_too_early_is_refused_from_then_on() {
    let mut world = World::new(Config::default());
    world.sim.begin_capture(A, FIRST);
    let (block, _) = world.alloc(MIB, A);
    world.pool.release_capture(FIRST).unwrap();
    let used = world.pool.stats().unwrap().used;
    let refused = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Capture(text)) if text.contains("capture 1")));
    };
    world.sim.naming(&[A], || {
        refused(world.pool.alloc(MIB, 0, A).map(drop));
        refused(world.pool.free(block, A).map(drop));
        refused(world.pool.record_stream(block, A));
    });
    world.sim.end_capture(A);
    assert_eq!(world.pool.stats().unwrap().used, used, "nothing was changed");
    world.free(block, A);
}

/// Programs of everything: captures on several streams, graphs that live for a while, and ordinary work beside.
#[test]
fn random_programs_never_share_a_graphs_memory() {
    for seed in 1..=300 {
        program(seed);
    }
}

fn program(seed: u64) {
    let mut random = Random(seed);
    let mut world = World::new(Config {
        max_bytes: if random.below(2) == 0 { 0 } else { 96 * MIB },
        ..Config::default()
    });
    world.told = random.below(2) == 0;
    if !world.told {
        world.sim.never_tell();
    }
    let streams: Vec<StreamHandle> = (0..4).map(|n| StreamHandle(FIRST_STREAM + n)).collect();
    let mut live: Vec<(Addr, u64, Option<u64>, StreamHandle)> = Vec::new();
    let mut running: Vec<(StreamHandle, CaptureId)> = Vec::new();
    let mut parts = Vec::new();
    let mut graphs: Vec<CaptureId> = Vec::new();
    let mut next = 0;
    for _ in 0..400 {
        let stream = streams[random.below(4) as usize];
        match random.below(20) {
            0 if !running.iter().any(|part| part.0 == stream) => {
                // a new capture, or a further part of one
                let capture = match running.last() {
                    // a stream stays in a capture until that ends
                    Some(&(_, capture)) if !parts.contains(&(stream, capture)) => capture,
                    _ => {
                        next += 1;
                        CaptureId(next)
                    }
                };
                world.sim.begin_capture(stream, capture);
                running.push((stream, capture));
                parts.push((stream, capture));
            }
            1 | 2 if !running.is_empty() => {
                let (stream, capture) = running.swap_remove(random.below(running.len() as u64) as usize);
                world.sim.end_capture(stream);
                if !running.iter().any(|part| part.1 == capture) {
                    graphs.push(capture);
                }
            }
            3 if !graphs.is_empty() => {
                let capture = graphs.swap_remove(random.below(graphs.len() as u64) as usize);
                world.end_graph(capture);
            }
            4 => world.sim.advance(stream, 1 + random.below(8)),
            5 => drop(world.pool.squeeze().unwrap()),
            6 => world.pool.trim(random.below(64 * MIB)).unwrap(),
            7..=12 => {
                let bytes = match random.below(3) {
                    0 => 1 + random.below(4096),
                    1 => 1 + random.below(MIB),
                    _ => 1 + random.below(12 * MIB),
                };
                let got = world.sim.naming(&[stream], || world.pool.alloc(bytes, 0, stream));
                match got {
                    Ok(at) => {
                        world.blocks += 1;
                        world.sim.touch(stream, world.blocks, at.0, bytes);
                        // later work may use a graph's block only behind a launch, which this program does not make
                        let outside = !running.iter().any(|part| part.0 == stream);
                        live.push((at, bytes, outside.then_some(world.blocks), stream));
                    }
                    Err(Error::OutOfMemory(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            13 if !live.is_empty() => {
                let (at, bytes, name, owner) = live[random.below(live.len() as u64) as usize];
                world
                    .sim
                    .naming(&[stream], || world.pool.record_stream(at, stream))
                    .unwrap();
                if let Some(name) = name {
                    // the program orders its use behind where the block came from
                    for moment in [world.sim.now(owner), world.sim.now_uncaptured(owner)] {
                        world.sim.wait_for(stream, &moment);
                    }
                    world.sim.touch(stream, name, at.0, bytes);
                }
            }
            14 if !live.is_empty() => {
                let (at, _, _, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
                // the program's promise: nothing on any stream uses it any more
                if running.is_empty() {
                    world.sim.synchronize_all().unwrap();
                    world.pool.free_synced(at).unwrap();
                } else {
                    world.free(at, stream);
                }
            }
            _ if !live.is_empty() => {
                let (at, _, _, stream) = live.swap_remove(random.below(live.len() as u64) as usize);
                world.free(at, stream);
            }
            _ => {}
        }
        world.pool.validate();
    }
    for (stream, capture) in std::mem::take(&mut running) {
        world.sim.end_capture(stream);
        graphs.push(capture);
    }
    for (at, _, _, stream) in live {
        world.free(at, stream);
    }
    graphs.dedup();
    for capture in graphs {
        world.end_graph(capture);
    }
    world.pool.squeeze().unwrap();
    assert_eq!(world.free_bytes(), 0, "seed {seed}");
}
