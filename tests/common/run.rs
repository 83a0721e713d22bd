//! A pool on the simulated device beside a model of it: a map of live blocks. After each step the pool must agree with the
//! model, the equations of its statistics and the backend's books must hold, and the device (`sim`) has seen no rule of
//! stream order broken. `program` has the steps.

use super::op::{EVENTS, PLACES, STREAMS, Setup};
use super::sim::{FIRST_STREAM, Sim};
use super::work::Moment;
use super::{Pages, SLOT};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use weir::alloc::heap::Heap;
use weir::alloc::size::{GRAIN, WINDOW, class_of, round_down, round_up, run_bytes};
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::{Config, Reuse};
use weir::pool::{Pool, ThreadCache};

fn policies(bits: u8) -> Reuse {
    Reuse {
        event_dependencies: bits & 1 != 0,
        opportunistic: bits & 2 != 0,
        internal_dependencies: bits & 4 != 0,
    }
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) name: u64,
    pub(super) asked: u64,
    pub(super) bytes: u64,
    pub(super) place: u8,
    /// Which stream of that place.
    pub(super) age: u64,
    /// Behind all its use on the stream that it was allocated on.
    pub(super) after: Moment,
    /// Behind its use on others.
    pub(super) shared: Vec<Moment>,
    pub(super) used: bool,
}

/// So many threads take turns at most.
const THREADS: usize = 4;

/// A pool, its device and its model.
pub struct Run {
    pub sim: Arc<Sim>,
    pub faulty: Arc<Faulty>,
    pub pool: Pool,
    /// Those of threads that take turns, one after the other, by place.
    pub(super) caches: Vec<Option<ThreadCache>>,
    /// Whose turn it is: 0 is this thread, all others are gone since they opened theirs.
    pub thread: usize,
    pub(super) first_has_cache: bool,
    /// Are invariants checked after each step?
    pub validate: bool,
    pub(super) pages: Pages,
    pub(super) limit: u64,
    pub(super) live: BTreeMap<u64, Live>,
    pub(super) last_name: u64,
    pub(super) ages: [u64; STREAMS],
    pub(super) events: Vec<Moment>,
    pub(super) used: u64,
    pub(super) used_peak: u64,
    /// Is it that to the byte? Where several caches keep blocks it is what is found now and then.
    pub exact_peaks: bool,
    /// Failures of requests so far.
    pub refused: u64,
}

impl Run {
    /// A new pool.
    pub fn new(setup: &Setup) -> Run {
        let sim = Sim::over(setup.pages.memory(), STREAMS);
        sim.set_mapping_limit(setup.mappings);
        sim.limit_mappings_of_a_page(setup.mappings_of_a_page);
        if setup.watched {
            sim.watch();
        }
        if setup.declared {
            sim.declare_streams();
        }
        if setup.always_events {
            sim.always_give_events();
        }
        let faulty = Faulty::new(Arc::clone(&sim) as _);
        faulty.set_capacity(setup.capacity);
        let config = Config {
            max_bytes: setup.max_bytes,
            initial_bytes: setup.initial_bytes,
            release_threshold: setup.release_threshold,
            slack: setup.slack,
            reuse: policies(setup.policies),
            declared_streams: setup.declared,
            blocks_in_one_page: setup.pages == Pages::Apart,
            ..super::config()
        };
        let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
        let limit = if setup.max_bytes == 0 {
            u64::MAX
        } else {
            setup.max_bytes
        };
        Run {
            sim,
            faulty,
            pool,
            caches: vec![None; THREADS * PLACES as usize],
            thread: 0,
            first_has_cache: setup.first_has_cache,
            validate: true,
            pages: setup.pages,
            limit: limit.min(setup.capacity),
            live: BTreeMap::new(),
            last_name: 0,
            ages: [0; STREAMS],
            events: vec![Moment::default(); EVENTS as usize],
            used: 0,
            used_peak: 0,
            exact_peaks: true,
            refused: 0,
        }
    }

    pub(super) fn handle(place: u8) -> StreamHandle {
        match place % PLACES {
            place if (place as usize) < STREAMS => StreamHandle(FIRST_STREAM + place as usize),
            place => StreamHandle(place as usize - STREAMS),
        }
    }

    /// Where the cache is of the thread whose turn it is.
    pub(super) fn cache_at(&self, place: u8) -> usize {
        self.thread * PLACES as usize + (place % PLACES) as usize
    }

    /// Opens that.
    pub(super) fn open_cache(&mut self, handle: StreamHandle, place: u8) {
        let pool = &self.pool;
        let opened = match self.thread {
            0 => pool.open_cache(handle),
            _ => thread::scope(|scope| scope.spawn(|| pool.open_cache(handle)).join()).expect("no panic"),
        };
        let at = self.cache_at(place);
        self.caches[at] = opened;
    }

    pub(super) fn age(&self, place: u8) -> u64 {
        self.ages.get((place % PLACES) as usize).copied().unwrap_or(0)
    }

    pub(super) fn pick(&self, pick: u16) -> Option<u64> {
        let index = pick as usize % self.live.len().max(1);
        self.live.keys().nth(index).copied()
    }

    /// Live blocks.
    pub fn blocks(&self) -> usize {
        self.live.len()
    }

    /// Bytes of the pages that live blocks keep: at least, and at most, since a small block keeps the run that
    /// it was cut from, wherever in it the block lies.
    pub(super) fn busy(&self) -> (u64, u64) {
        let blocks = self.live.iter().map(|(&at, block)| (at, block.bytes));
        let runs = blocks.clone().map(|(at, bytes)| match class_of(bytes, 0) {
            Some(class) => {
                let start = round_down((at + bytes).saturating_sub(run_bytes(class)), WINDOW);
                (start, at + run_bytes(class) - start)
            }
            None => (at, bytes),
        });
        (self.sim.bytes_under(blocks), self.sim.bytes_under(runs))
    }

    pub(super) fn enter(&mut self, at: u64, asked: u64, align: u64, place: u8, touch: bool) {
        let align = align.max(256);
        assert_eq!(at % align, 0, "{at:#x} is not aligned to {align}");
        let bytes = self.pool.block_size(Addr(at)).expect("a live block");
        self.enter_of(at, asked, bytes, place, touch);
    }

    /// The same for a block of so many bytes.
    pub(super) fn enter_of(&mut self, at: u64, asked: u64, bytes: u64, place: u8, touch: bool) {
        assert!(bytes >= asked.max(1), "{asked} B asked for, {bytes} B given");
        let before = self.live.range(..at + bytes).next_back();
        assert!(
            before.is_none_or(|(&other, block)| other + block.bytes <= at),
            "{bytes} B at {at:#x} overlap {before:x?}"
        );
        if self.pages != Pages::Movable {
            let pages = self.sim.pages_under([(at, bytes)].into_iter());
            assert_eq!(pages.len(), 1, "{bytes} B at {at:#x} lie in {pages:?}");
        }
        self.sim.hand_out(at, asked);
        self.last_name += 1;
        let handle = Run::handle(place);
        if touch {
            self.sim.touch(handle, self.last_name, at, asked);
        }
        self.used += bytes;
        self.used_peak = self.used_peak.max(self.used);
        self.live.insert(
            at,
            Live {
                name: self.last_name,
                asked,
                bytes,
                place: place % PLACES,
                age: self.age(place),
                after: self.sim.now(handle),
                shared: Vec::new(),
                used: touch,
            },
        );
    }

    pub(super) fn leave(&mut self, at: u64) {
        self.used -= self.live.remove(&at).expect("a live block").bytes;
    }

    /// Bytes of pages that a request needs at most.
    pub(super) fn need(&self, bytes: u64, align: u64) -> u64 {
        let (len, align) = Heap::need(bytes, align);
        let before = if self.pages == Pages::Placed {
            align - GRAIN
        } else {
            0
        };
        round_up(len + before, SLOT)
    }

    /// A request may fail only if it does not fit beside the pages that hold live blocks.
    pub(super) fn refused(&mut self, error: Error, need: u64) {
        let Error::OutOfMemory(shortage) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(shortage.used, self.used);
        self.refused += 1;
        if shortage.backend.contains("mappings") {
            return;
        }
        let busy = self.busy().1;
        assert!(
            busy.saturating_add(need) > self.limit,
            "{need} B needed, pages in use {busy} of {}: {error}",
            self.limit
        );
    }

    /// Has work of `place` wait for the block's: by weir's hooks, or so that the pool does not hear of it.
    pub(super) fn order(&mut self, at: u64, place: u8, hooks: bool) {
        let block = &self.live[&at];
        let (from, to) = (Run::handle(block.place), Run::handle(place));
        if from == to && block.age == self.age(place) {
            return;
        }
        if hooks && block.age == self.age(block.place) {
            self.record(0, block.place);
            self.wait(0, place);
        } else {
            let after = block.after.clone();
            self.sim.wait_for(to, &after);
        }
    }

    pub(super) fn record(&mut self, event: u8, place: u8) {
        let handle = Run::handle(place);
        let mark = self.sim.naming(&[handle], || self.pool.mark_stream(handle));
        self.events[event as usize] = self.sim.now(handle);
        self.pool.event_recorded(EventHandle(event as usize), mark);
    }

    pub(super) fn wait(&mut self, event: u8, place: u8) {
        let handle = Run::handle(place);
        let mark = self.pool.mark_event(EventHandle(event as usize));
        self.sim.wait_for(handle, &self.events[event as usize]);
        self.sim
            .naming(&[handle], || self.pool.stream_waits(handle, mark));
    }

    /// The host waits until all use of a block is over, but for weir's copies.
    pub(super) fn settle(&self, at: u64) {
        let block = &self.live[&at];
        if block.used {
            self.sim.synchronize_with(&block.after);
        }
        for moment in &block.shared {
            self.sim.synchronize_with(moment);
        }
    }

    /// A batch that failed had blocks for a while; the model cannot know how many.
    pub fn forgive_peak(&mut self) {
        let peak = self.pool.stats().expect("stats").used_peak;
        assert!(!self.exact_peaks || peak >= self.used_peak);
        self.used_peak = peak;
    }

    /// Checks everything.
    pub(super) fn check(&self) {
        let stats = self.pool.stats().expect("stats");
        assert_eq!(stats.used, self.used, "used");
        assert!(
            !self.exact_peaks || stats.used_peak == self.used_peak,
            "used_peak"
        );
        assert_eq!(
            stats.reserved,
            stats.used + stats.cached + stats.free + stats.pending + stats.idle,
            "{stats:?}"
        );
        assert_eq!(stats.reserved, self.faulty.created_bytes());
        assert_eq!(stats.reserved_peak, self.sim.peak(), "reserved_peak");
        assert!(
            self.faulty.peak_created_bytes() <= self.limit,
            "the limit was exceeded"
        );
        assert_eq!(stats.allocations - stats.frees, self.live.len() as u64);
        assert_eq!(stats.failures, self.refused.max(stats.failures));
        if let Some(announced) = self.sim.blocks() {
            let live = self.live.iter().map(|(&at, block)| (at, block.asked.max(1)));
            assert!(
                announced.into_iter().eq(live),
                "exactly the live blocks are announced"
            );
        }
        if self.validate {
            self.pool.validate();
        }
    }

    /// Ends the pool: exactly the live blocks are reported, and nothing is left on the device.
    pub fn end(self) {
        let leaked = self.pool.end();
        assert_eq!((leaked.blocks, leaked.bytes), (self.live.len() as u64, self.used));
        drop(self.pool);
        self.faulty.assert_empty();
    }
}
