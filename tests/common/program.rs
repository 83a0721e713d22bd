//! Programs of operations, run against a pool on the simulated device and against a model: a map of live
//! blocks. After each step the pool must agree with the model, the equations of its statistics and the
//! backend's books must hold, and the device (`sim`) has seen no rule of stream order broken.

use super::op::{EVENTS, Op, PLACES, STREAMS, Setup};
use super::sim::{FIRST_STREAM, Moment, Sim};
use super::{M, Pages, SLOT};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir::alloc::heap::Heap;
use weir::alloc::size::{GRAIN, WINDOW, class_of, round_down, round_up, run_bytes};
use weir::backend::fault::Faulty;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::{Config, Reuse};
use weir::pool::{Attribute, Pool, ThreadCache};

fn policies(bits: u8) -> Reuse {
    Reuse {
        event_dependencies: bits & 1 != 0,
        opportunistic: bits & 2 != 0,
        internal_dependencies: bits & 4 != 0,
    }
}

#[derive(Clone, Debug)]
struct Live {
    name: u64,
    asked: u64,
    bytes: u64,
    place: u8,
    /// Which stream of that place.
    age: u64,
    /// Behind all its use on the stream that it was allocated on.
    after: Moment,
    /// Behind its use on others.
    shared: Vec<Moment>,
    used: bool,
}

/// A pool, its device and its model.
pub struct Run {
    pub sim: Arc<Sim>,
    pub faulty: Arc<Faulty>,
    pub pool: Pool,
    /// This thread's, by place.
    caches: Vec<Option<ThreadCache>>,
    /// Are invariants checked after each step?
    pub validate: bool,
    pages: Pages,
    limit: u64,
    live: BTreeMap<u64, Live>,
    last_name: u64,
    ages: [u64; STREAMS],
    events: Vec<Moment>,
    used: u64,
    used_peak: u64,
    /// Failures of requests so far.
    pub refused: u64,
}

impl Run {
    /// A new pool.
    pub fn new(setup: &Setup) -> Run {
        let sim = Sim::over(setup.pages.memory(), STREAMS);
        sim.set_mapping_limit(setup.mappings);
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
            caches: vec![None; PLACES as usize],
            validate: true,
            pages: setup.pages,
            limit: limit.min(setup.capacity),
            live: BTreeMap::new(),
            last_name: 0,
            ages: [0; STREAMS],
            events: vec![Moment::default(); EVENTS as usize],
            used: 0,
            used_peak: 0,
            refused: 0,
        }
    }

    fn handle(place: u8) -> StreamHandle {
        match place % PLACES {
            place if (place as usize) < STREAMS => StreamHandle(FIRST_STREAM + place as usize),
            place => StreamHandle(place as usize - STREAMS),
        }
    }

    fn age(&self, place: u8) -> u64 {
        self.ages.get((place % PLACES) as usize).copied().unwrap_or(0)
    }

    fn pick(&self, pick: u16) -> Option<u64> {
        let index = pick as usize % self.live.len().max(1);
        self.live.keys().nth(index).copied()
    }

    /// Live blocks.
    pub fn blocks(&self) -> usize {
        self.live.len()
    }

    /// Bytes of the pages that live blocks keep: at least, and at most, since a small block keeps the run that
    /// it was cut from, wherever in it the block lies.
    fn busy(&self) -> (u64, u64) {
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

    fn enter(&mut self, at: u64, asked: u64, align: u64, place: u8, touch: bool) {
        let align = align.max(256);
        assert_eq!(at % align, 0, "{at:#x} is not aligned to {align}");
        let bytes = self.pool.block_size(Addr(at)).expect("a live block");
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

    fn leave(&mut self, at: u64) {
        self.used -= self.live.remove(&at).expect("a live block").bytes;
    }

    fn alloc(&mut self, bytes: u64, align: u64, place: u8, touch: bool) {
        let handle = Run::handle(place);
        let sim = Arc::clone(&self.sim);
        let served = sim.naming(&[handle], || self.served(bytes, align, handle, place));
        match served {
            Ok(at) => self.enter(at.0, bytes, align, place, touch),
            Err(error) => self.refused(error, self.need(bytes, align)),
        }
    }

    /// What `ffi` does: the cache, then the pool, then a cache for the next time.
    fn served(&mut self, bytes: u64, align: u64, handle: StreamHandle, place: u8) -> Result<Addr, Error> {
        let cache = &mut self.caches[(place % PLACES) as usize];
        if let Some(at) = cache.as_ref().and_then(|cache| cache.alloc(bytes, align)) {
            return Ok(at);
        }
        let at = self.pool.alloc_beside(cache.as_ref(), bytes, align, handle);
        if cache.as_ref().is_none_or(ThreadCache::is_ended) {
            *cache = self.pool.open_cache(handle);
        }
        at
    }

    fn taken_back(&self, at: u64, handle: StreamHandle, place: u8) -> Result<u64, Error> {
        let cache = self.caches[(place % PLACES) as usize].as_ref();
        match cache.and_then(|cache| cache.free(Addr(at))) {
            Some(bytes) => Ok(bytes),
            None => self.pool.free_beside(cache, Addr(at), handle),
        }
    }

    /// Bytes of pages that a request needs at most.
    fn need(&self, bytes: u64, align: u64) -> u64 {
        let (len, align) = Heap::need(bytes, align);
        let before = if self.pages == Pages::Placed {
            align - GRAIN
        } else {
            0
        };
        round_up(len + before, SLOT)
    }

    /// A request may fail only if it does not fit beside the pages that hold live blocks.
    fn refused(&mut self, error: Error, need: u64) {
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

    /// Has work of `place` wait for the block, and for use recorded on other streams if `all`.
    fn order(&mut self, at: u64, place: u8, hooks: bool) {
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

    fn record(&mut self, event: u8, place: u8) {
        let handle = Run::handle(place);
        let mark = self.sim.naming(&[handle], || self.pool.mark_stream(handle));
        self.events[event as usize] = self.sim.now(handle);
        self.pool.event_recorded(EventHandle(event as usize), mark);
    }

    fn wait(&mut self, event: u8, place: u8) {
        let handle = Run::handle(place);
        let mark = self.pool.mark_event(EventHandle(event as usize));
        self.sim.wait_for(handle, &self.events[event as usize]);
        self.sim
            .naming(&[handle], || self.pool.stream_waits(handle, mark));
    }

    fn free_on(&mut self, at: u64, place: u8, hooks: bool) {
        self.order(at, place, hooks);
        let handle = Run::handle(place);
        let block = &self.live[&at];
        if block.used && block.place != place % PLACES {
            self.sim.touch(handle, block.name, at, block.asked);
        }
        let freed = self.sim.naming(&[handle], || self.taken_back(at, handle, place));
        assert_eq!(freed, Ok(self.live[&at].bytes));
        self.leave(at);
    }

    /// When the host has waited for all use but that by copies.
    fn free_synced(&mut self, at: u64) {
        self.settle(at);
        assert_eq!(self.pool.free_synced(Addr(at)), Ok(self.live[&at].bytes));
        self.leave(at);
    }

    /// The host waits until all use of a block is over, but for weir's copies.
    fn settle(&self, at: u64) {
        let block = &self.live[&at];
        if block.used {
            self.sim.synchronize_with(&block.after);
        }
        for moment in &block.shared {
            self.sim.synchronize_with(moment);
        }
    }

    fn batch(&mut self, sizes: &[u64], place: u8) {
        let handle = Run::handle(place);
        let mut out = vec![Addr(0); sizes.len()];
        let answer = self
            .sim
            .naming(&[handle], || self.pool.alloc_batch(sizes, handle, &mut out));
        match answer {
            Ok(()) => {
                for (at, &bytes) in out.iter().zip(sizes) {
                    self.enter(at.0, bytes, 0, place, true);
                }
            }
            Err(error) => {
                // the batch's own blocks may keep pages that are much larger than they are
                let page = 64 * M;
                let need = sizes.iter().map(|&bytes| self.need(bytes, 0) + page).sum();
                let Error::OutOfMemory(mut shortage) = error else {
                    panic!("{error:?}")
                };
                shortage.used = self.used; // those of the batch are counted in it
                self.refused(Error::OutOfMemory(shortage), need);
                self.forgive_peak();
            }
        }
    }

    /// A batch that failed had blocks for a while; the model cannot know how many.
    pub fn forgive_peak(&mut self) {
        let peak = self.pool.stats().expect("stats").used_peak;
        assert!(peak >= self.used_peak);
        self.used_peak = peak;
    }

    fn wrong(&mut self, pick: u16, kind: u8) {
        let stream = Run::handle(pick as u8);
        let free = |run: &Run, at| {
            run.sim
                .naming(&[stream], || run.taken_back(at, stream, pick as u8))
        };
        match kind % 5 {
            0 => assert!(matches!(
                free(self, 4096 + u64::from(pick)),
                Err(Error::UnknownPointer(_))
            )),
            1 => {
                let Some(at) = self.pick(pick) else { return };
                let inside = at + 1 + u64::from(pick) % (self.live[&at].bytes - 1);
                let wanted = Error::InteriorPointer {
                    at: Addr(inside),
                    block: Addr(at),
                    bytes: self.live[&at].bytes,
                };
                assert_eq!(free(self, inside), Err(wanted.clone()));
                assert_eq!(self.pool.free_synced(Addr(inside)), Err(wanted));
            }
            2 => {
                let Some(at) = self.pick(pick) else { return };
                self.free_on(at, pick as u8, false);
                let wanted = match self.pool.contains(Addr(at)) {
                    true => Error::DoubleFree(Addr(at)),
                    // the page went back, and its address with it
                    false => Error::UnknownPointer(Addr(at)),
                };
                assert!(self.pages == Pages::Placed || self.pool.contains(Addr(at)));
                assert_eq!(free(self, at), Err(wanted.clone()));
                assert_eq!(self.pool.free_synced(Addr(at)), Err(wanted));
            }
            3 => {
                let Some(at) = self.pick(pick) else { return };
                let batch = [Addr(at), Addr(at)];
                let answer = self
                    .sim
                    .naming(&[stream], || self.pool.free_batch(batch.into_iter(), stream));
                assert_eq!(answer, Err(Error::DoubleFree(Addr(at))));
            }
            _ => {
                let Some(at) = self.pick(pick) else { return };
                let batch = [Addr(at), Addr(16)];
                let answer = self
                    .sim
                    .naming(&[stream], || self.pool.free_batch(batch.into_iter(), stream));
                assert_eq!(answer, Err(Error::UnknownPointer(Addr(16))));
            }
        }
    }

    fn do_step(&mut self, op: &Op) {
        match *op {
            Op::Alloc {
                bytes,
                align,
                stream,
                touch,
            } => self.alloc(bytes, align, stream, touch),
            Op::Free { pick } => {
                let Some(at) = self.pick(pick) else { return };
                let place = self.live[&at].place;
                self.free_on(at, place, false);
            }
            Op::FreeOn { pick, stream, hooks } => {
                let Some(at) = self.pick(pick) else { return };
                self.free_on(at, stream, hooks);
            }
            Op::FreeSynced { pick } => {
                let Some(at) = self.pick(pick) else { return };
                self.free_synced(at);
            }
            Op::Touch { pick } => {
                let Some(at) = self.pick(pick) else { return };
                let block = &self.live[&at];
                if block.age != self.age(block.place) {
                    return;
                }
                let handle = Run::handle(block.place);
                self.sim.touch(handle, block.name, at, block.asked);
                let after = self.sim.now(handle);
                let block = self.live.get_mut(&at).expect("picked");
                (block.after, block.used) = (after, true);
            }
            Op::Share { pick, stream } => {
                let Some(at) = self.pick(pick) else { return };
                self.order(at, stream, pick % 2 == 0);
                let handle = Run::handle(stream);
                let answer = self
                    .sim
                    .naming(&[handle], || self.pool.record_stream(Addr(at), handle));
                assert_eq!(answer, Ok(()));
                let block = self.live.get_mut(&at).expect("picked");
                self.sim.touch(handle, block.name, at, block.asked);
                block.shared.push(self.sim.now(handle));
            }
            Op::Copy { pick, stream, free } => {
                let Some(at) = self.pick(pick) else { return };
                self.order(at, stream, pick % 2 == 0);
                let (handle, block) = (Run::handle(stream), &self.live[&at]);
                self.sim.touch_held(handle, block.name, at, block.asked);
                let answer = self
                    .sim
                    .naming(&[handle], || self.pool.copy_queued(Addr(at), handle));
                assert_eq!(answer, Ok(()));
                match free % 4 {
                    0 => self.free_on(at, stream, false),
                    1 => self.free_on(at, self.live[&at].place, false),
                    2 => self.free_synced(at),
                    _ => {}
                }
            }
            Op::Batch { ref sizes, stream } => self.batch(sizes, stream),
            Op::FreeBatch { pick, count, stream } => {
                let first = pick as usize % self.live.len().max(1);
                let blocks: Vec<Addr> = self
                    .live
                    .keys()
                    .skip(first)
                    .take(count.into())
                    .map(|&at| Addr(at))
                    .collect();
                let handle = Run::handle(stream);
                for at in &blocks {
                    self.order(at.0, stream, false);
                    let block = &self.live[&at.0];
                    self.sim.touch(handle, block.name, at.0, block.asked);
                }
                let answer = self
                    .sim
                    .naming(&[handle], || self.pool.free_batch(blocks.iter().copied(), handle));
                assert_eq!(answer, Ok(()));
                for at in blocks {
                    self.leave(at.0);
                }
            }
            Op::Warmup { bytes, count, stream } => {
                let handle = Run::handle(stream);
                let answer = self
                    .sim
                    .naming(&[handle], || self.pool.warmup(&[bytes], &[count.into()], handle));
                assert!(
                    matches!(answer, Ok(()) | Err(Error::OutOfMemory(_))),
                    "{answer:?}"
                );
                self.forgive_peak();
            }
            Op::Trim { keep } => {
                let before = self.pool.stats().expect("stats").reserved;
                assert_eq!(self.pool.trim(keep), Ok(()));
                let after = self.pool.stats().expect("stats").reserved;
                assert!(after >= before.min(keep), "{after} kept of {before}, not {keep}");
            }
            Op::Squeeze => {
                let before = self.pool.stats().expect("stats").reserved;
                let given = self.pool.squeeze().expect("a squeeze");
                let after = self.pool.stats().expect("stats");
                assert_eq!(before - after.reserved, given);
                let (least, most) = self.busy();
                assert!(
                    (least..=most).contains(&after.reserved),
                    "what is free is kept, {least} to {most} B are in use: {after:?}"
                );
                assert_eq!(after.pending, 0);
            }
            Op::Record { event, stream } => self.record(event % EVENTS, stream),
            Op::Wait { event, stream } => self.wait(event % EVENTS, stream),
            Op::SyncEvent { event } => {
                let event = event % EVENTS;
                let mark = self.pool.mark_event(EventHandle(event as usize));
                self.sim.synchronize_with(&self.events[event as usize]);
                self.pool.synchronized(mark);
            }
            Op::SyncStream { stream } => {
                let handle = Run::handle(stream);
                let mark = self.sim.naming(&[handle], || self.pool.mark_stream(handle));
                self.sim.synchronize_with(&self.sim.now(handle));
                self.pool.synchronized(mark);
            }
            Op::SyncAll => {
                let mark = self.pool.mark_all();
                weir::backend::Backend::synchronize_all(&*self.sim).expect("books");
                self.pool.synchronized(mark);
            }
            Op::Delay { stream } => self.sim.delay(Run::handle(stream)),
            Op::Advance { stream, items } => self.sim.advance(Run::handle(stream), items.into()),
            Op::Recreate { stream } => {
                let place = stream % STREAMS as u8;
                if self.pool.config().declared_streams {
                    self.pool.stream_changed(Run::handle(place));
                }
                self.sim.destroy_stream(Run::handle(place));
                self.sim.create_stream(Run::handle(place));
                self.ages[place as usize] += 1;
            }
            Op::Threshold { bytes } => {
                let answer = self.pool.set_attribute(Attribute::ReleaseThreshold, bytes);
                assert_eq!(answer, Ok(()));
            }
            Op::Policies { bits } => {
                let switches = [
                    Attribute::ReuseFollowEventDependencies,
                    Attribute::ReuseAllowOpportunistic,
                    Attribute::ReuseAllowInternalDependencies,
                ];
                for (bit, switch) in switches.into_iter().enumerate() {
                    let value = u64::from(bits >> bit & 1);
                    assert_eq!(self.pool.set_attribute(switch, value), Ok(()));
                    assert_eq!(self.pool.attribute(switch), Ok(value));
                    assert!(self.pool.set_attribute(switch, 2).is_err());
                }
            }
            Op::ResetPeaks => {
                assert_eq!(self.pool.reset_peaks(), Ok(()));
                self.sim.reset_peak();
                self.used_peak = self.used;
            }
            Op::Wrong { pick, kind } => self.wrong(pick, kind),
        }
    }

    /// Runs one step and checks everything.
    pub fn step(&mut self, op: &Op) {
        self.do_step(op);
        let stats = self.pool.stats().expect("stats");
        assert_eq!(stats.used, self.used, "used");
        assert_eq!(stats.used_peak, self.used_peak, "used_peak");
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

/// Runs a whole program.
pub fn run(setup: &Setup, ops: &[Op]) {
    let mut run = Run::new(setup);
    for op in ops {
        run.step(op);
    }
    run.end();
}
