//! Every backend call of some programs is made to fail in turn. After each failure the books are right,
//! nothing is lost, and the same operation succeeds once the backend is well again.

use crate::common::op::STREAMS;
use crate::common::sim::{FIRST_STREAM, Sim};
use crate::common::work::Moment;
use crate::common::{M, Pages, SLOT, config, limited};
use std::sync::Arc;
use weir::backend::BackendError;
use weir::backend::call::Call;
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::Config;
use weir::pool::{Attribute, Pool};

/// What a pool of this size creates and moves whole.
const U: u64 = 8 * M;

/// One step; streams and blocks by number. Blocks keep their number when others are freed.
#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, usize),
    Aligned(u64, u64, usize),
    Free(usize),
    FreeOn(usize, usize),
    FreeSynced(usize),
    Share(usize, usize),
    Batch(Vec<u64>, usize),
    FreeBatch(Vec<usize>, usize),
    Warmup(u64, u64, usize),
    /// The second stream waits for the first, as the hooks tell.
    Order(usize, usize),
    Advance(usize, u64),
    SyncAll,
    Threshold(u64),
    Trim(u64),
    Squeeze,
}

use Step::{
    Advance, Aligned, Alloc, Batch, Free, FreeBatch, FreeOn, FreeSynced, Order, Share, Squeeze, SyncAll,
    Threshold, Trim, Warmup,
};

struct Block {
    name: u64,
    at: Addr,
    bytes: u64,
    stream: usize,
    after: Moment,
}

struct World {
    sim: Arc<Sim>,
    faulty: Arc<Faulty>,
    pool: Pool,
    blocks: Vec<Option<Block>>,
    last_name: u64,
}

fn handle(stream: usize) -> StreamHandle {
    StreamHandle(FIRST_STREAM + stream)
}

impl World {
    fn new(pages: Pages, config: Config, mapping_limit: u64) -> World {
        let sim = Sim::over(pages.memory(), STREAMS);
        sim.set_mapping_limit(mapping_limit);
        let faulty = Faulty::new(Arc::clone(&sim) as _);
        let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
        World {
            sim,
            faulty,
            pool,
            blocks: Vec::new(),
            last_name: 0,
        }
    }

    fn enter(&mut self, at: Addr, bytes: u64, stream: usize) {
        self.last_name += 1;
        self.sim.touch(handle(stream), self.last_name, at.0, bytes);
        self.blocks.push(Some(Block {
            name: self.last_name,
            at,
            bytes,
            stream,
            after: self.sim.now(handle(stream)),
        }));
    }

    fn at(&self, block: usize) -> Addr {
        self.blocks[block].as_ref().expect("a live block").at
    }

    fn naming<T>(&self, stream: usize, call: impl FnOnce(&Pool) -> T) -> T {
        self.sim.naming(&[handle(stream)], || call(&self.pool))
    }

    fn apply(&mut self, step: &Step) -> Result<(), Error> {
        match *step {
            Alloc(bytes, stream) => self.apply(&Aligned(bytes, 0, stream))?,
            Aligned(bytes, align, stream) => {
                let at = self.naming(stream, |pool| pool.alloc(bytes, align, handle(stream)))?;
                self.enter(at, bytes, stream);
            }
            Free(block) => {
                let stream = self.blocks[block].as_ref().expect("a live block").stream;
                self.apply(&FreeOn(block, stream))?;
            }
            FreeOn(block, stream) => {
                let it = self.blocks[block].as_ref().expect("a live block");
                if it.stream != stream {
                    self.sim.wait_for(handle(stream), &it.after);
                }
                self.naming(stream, |pool| pool.free(it.at, handle(stream)))?;
                self.blocks[block] = None;
            }
            FreeSynced(block) => {
                let it = self.blocks[block].as_ref().expect("a live block");
                self.sim.synchronize_with(&it.after);
                self.pool.free_synced(it.at)?;
                self.blocks[block] = None;
            }
            Share(block, stream) => {
                let it = self.blocks[block].as_ref().expect("a live block");
                self.sim.wait_for(handle(stream), &it.after);
                self.naming(stream, |pool| pool.record_stream(it.at, handle(stream)))?;
                self.sim.touch(handle(stream), it.name, it.at.0, it.bytes);
            }
            Batch(ref sizes, stream) => {
                let mut out = vec![Addr(0); sizes.len()];
                self.naming(stream, |pool| pool.alloc_batch(sizes, handle(stream), &mut out))?;
                for (at, &bytes) in out.into_iter().zip(sizes) {
                    self.enter(at, bytes, stream);
                }
            }
            FreeBatch(ref blocks, stream) => {
                let places: Vec<Addr> = blocks.iter().map(|&block| self.at(block)).collect();
                self.naming(stream, |pool| pool.free_batch(&places, handle(stream)))?;
                for &block in blocks {
                    self.blocks[block] = None;
                }
            }
            Warmup(bytes, count, stream) => {
                self.naming(stream, |pool| pool.warmup(&[bytes], &[count], handle(stream)))?;
            }
            Order(from, to) => {
                let event = EventHandle(1);
                let mark = self.naming(from, |pool| pool.mark_stream(handle(from)));
                self.pool.event_recorded(event, mark);
                let mark = self.pool.mark_event(event);
                self.sim.wait_for(handle(to), &self.sim.now(handle(from)));
                self.naming(to, |pool| pool.stream_waits(handle(to), mark));
            }
            Advance(stream, items) => self.sim.advance(handle(stream), items),
            SyncAll => {
                let mark = self.pool.mark_all();
                weir::backend::Backend::synchronize_all(&*self.sim).expect("books");
                self.pool.synchronized(mark);
            }
            Threshold(bytes) => self.pool.set_attribute(Attribute::ReleaseThreshold, bytes)?,
            Trim(keep) => self.pool.trim(keep)?,
            Squeeze => drop(self.pool.squeeze()?),
        }
        Ok(())
    }

    fn check(&self) {
        self.pool.validate();
        let stats = self.pool.stats().expect("stats");
        assert_eq!(stats.reserved, self.faulty.created_bytes(), "memory was lost");
        assert_eq!(
            stats.reserved,
            stats.used + stats.cached + stats.free + stats.pending + stats.idle,
            "{stats:?}"
        );
        let live = self.blocks.iter().flatten();
        let used: u64 = live
            .clone()
            .map(|block| self.pool.block_size(block.at).expect("a live block"))
            .sum();
        assert_eq!(
            (stats.used, stats.allocations - stats.frees),
            (used, live.count() as u64)
        );
        let limit = self.pool.config().max_bytes;
        assert!(limit == 0 || self.faulty.peak_created_bytes() <= limit);
    }

    fn end(self) {
        self.faulty.heal();
        let blocks = self.blocks.iter().flatten().count() as u64;
        assert_eq!(self.pool.end().blocks, blocks);
        self.faulty.assert_empty();
    }
}

/// Runs a program while some call fails. True if one did.
fn run(program: &Program, plan: impl FnOnce(&Faulty)) -> bool {
    let mut world = World::new(program.pages, program.config.clone(), program.mapping_limit);
    plan(&world.faulty);
    for step in &program.steps {
        if let Err(error) = world.apply(step) {
            let known = matches!(
                error,
                Error::OutOfMemory(_) | Error::Backend(_) | Error::DeviceLost(_)
            );
            assert!(known, "{step:?}: {error:?}");
            world.check();
            world.faulty.heal();
            let again = world.apply(step);
            assert_eq!(again, Ok(()), "{step:?} once the backend is well, after {error}");
        }
        world.check();
    }
    let failed = world.faulty.failed_calls() > 0;
    world.end();
    failed
}

struct Program {
    name: &'static str,
    pages: Pages,
    config: Config,
    mapping_limit: u64,
    steps: Vec<Step>,
}

fn program(name: &'static str, steps: Vec<Step>) -> Program {
    Program {
        name,
        pages: Pages::Movable,
        config: config(),
        mapping_limit: 1 << 20,
        steps,
    }
}

/// The same programs with each kind of pages.
fn programs() -> Vec<Program> {
    let with = |pages| {
        programs_for_any_pages().into_iter().map(move |mut program| {
            program.pages = pages;
            program.config.blocks_in_one_page = pages == Pages::Apart;
            if pages != Pages::Movable && program.config.max_bytes > 0 {
                // a failure may put a block elsewhere, and what is free must be whole pages
                let last = program.steps.len() - 1;
                program.steps.splice(last..last, [Free(3), Free(4)]);
            }
            program
        })
    };
    Pages::ALL.into_iter().flat_map(with).collect()
}

fn programs_for_any_pages() -> Vec<Program> {
    let small = program(
        "small blocks, batches, a warm-up",
        vec![
            Batch(vec![0, 100, 3000, 20_000, 32_768], 0),
            Warmup(512, 200, 1),
            Alloc(512, 1),
            FreeBatch(vec![0, 2, 4], 0),
            FreeOn(1, 1),
            Share(3, 2),
            Free(3),
            SyncAll,
            Free(5),
            Trim(0),
            Alloc(100, 0),
            Squeeze,
        ],
    );
    let moving = program(
        "pages move, and are given back",
        vec![
            Alloc(2 * U, 0),
            Alloc(4 * U, 0),
            Alloc(2 * U, 0),
            Alloc(6 * U, 0),
            Alloc(2 * U, 0),
            Free(1),
            Free(3),
            // does not fit in either gap
            Alloc(9 * U, 0),
            Free(5),
            Alloc(4 * U, 0),
            Alloc(6 * U, 0),
            Free(6),
            Free(7),
            Alloc(10 * U, 0),
            Free(8),
            SyncAll,
            Trim(8 * U),
            Alloc(12 * U, 0),
            Aligned(300, 8 * U, 0),
            Squeeze,
        ],
    );
    let mut limit = program(
        "at the limit, with other streams' memory",
        vec![
            Alloc(16 * U, 0),
            Alloc(8 * U, 1),
            Alloc(8 * U, 2),
            Free(0),
            Alloc(6 * U, 3),
            Free(1),
            Order(1, 2),
            Alloc(8 * U, 2),
            Share(2, 3),
            Free(2),
            Alloc(10 * U, 1),
            Free(5),
            Alloc(18 * U, 0),
        ],
    );
    limit.config.max_bytes = 32 * U;
    let mut threshold = program(
        "a threshold",
        vec![
            Alloc(16 * U, 0),
            Alloc(16 * U, 1),
            Threshold(8 * U),
            Free(0),
            Advance(0, 10),
            Free(1),
            SyncAll,
            Alloc(4 * U, 1),
            FreeSynced(2),
            Alloc(4 * U, 2),
            Threshold(u64::MAX),
            Free(3),
        ],
    );
    threshold.config.initial_bytes = 4 * U;
    let mut crowded = program("hardly any mappings", Vec::new());
    for round in 0..6 {
        let first = round * 4;
        let size = 4 * U + round as u64 * 2 * U;
        crowded.steps.extend([
            Alloc(size, 0),
            Alloc(2 * U, 0),
            Alloc(size, 0),
            Free(first),
            Free(first + 2),
            Alloc(2 * size, 0),
            SyncAll,
            Free(first + 3),
        ]);
    }
    crowded.mapping_limit = 40;
    vec![small, moving, limit, threshold, crowded]
}

fn errors() -> [BackendError; 3] {
    [
        BackendError::OutOfMemory("none left, on purpose".into()),
        BackendError::Other("broken, on purpose".into()),
        BackendError::Lost("lost, on purpose".into()),
    ]
}

#[test]
fn programs_run_without_faults() {
    for program in programs() {
        println!("{}, {:?}", program.name, program.pages);
        assert!(!run(&program, |_| ()));
    }
}

#[test]
fn each_call_fails_once() {
    for program in programs() {
        for error in errors() {
            let mut n = 1;
            while run(&program, |faulty| faulty.fail_nth(n, error.clone())) {
                n += 1;
            }
            println!("{}, {:?}: {} calls, {error}", program.name, program.pages, n - 1);
            assert!(n > 10);
        }
    }
}

#[test]
fn each_call_and_all_after_it_fail() {
    for program in programs() {
        for error in errors() {
            let mut n = 1;
            while run(&program, |faulty| faulty.fail_from(n, error.clone())) {
                n += 1;
            }
            assert!(n > 10);
        }
    }
}

/// It is free, though it lies nowhere.
#[test]
fn a_page_that_could_not_be_mapped_is_room_at_the_limit() {
    let faulty = Faulty::new(Pages::Movable.memory());
    let pool = Pool::new(limited(SLOT), Arc::clone(&faulty) as _).expect("a pool");
    let alloc = || pool.alloc(SLOT, 0, StreamHandle(0));
    faulty.fail_nth_of(Call::Map, 1, BackendError::Other("on purpose".into()));
    alloc().expect_err("the page is mapped nowhere");
    pool.validate();
    assert_eq!(pool.stats().expect("stats").idle, SLOT);
    let at = alloc().expect("the page");
    assert_eq!((faulty.calls(Call::Create), faulty.calls(Call::Release)), (1, 0));
    pool.free(at, StreamHandle(0)).expect("a live block");
    assert_eq!(pool.end().blocks, 0);
    drop(pool);
    faulty.assert_empty();
}
