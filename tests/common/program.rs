//! Programs of operations, carried out on a pool and on the model beside it (`run`).

use super::op::{EVENTS, Op, PLACES, STREAMS, Setup};
use super::run::Run;
use super::{M, Pages};
use std::sync::Arc;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::pool::{Attribute, ThreadCache};

impl Run {
    fn alloc(&mut self, bytes: u64, align: u64, place: u8, touch: bool) {
        let handle = Run::handle(place);
        let sim = Arc::clone(&self.sim);
        let served = sim.naming(&[handle], || self.served(bytes, align, handle, place));
        match served {
            Ok(at) => self.enter(at.0, bytes, align, place, touch),
            Err(error) => self.refused(error, self.need(bytes, align)),
        }
    }

    /// What `ffi` does: the first call has a cache.
    fn open_first(&mut self, handle: StreamHandle, place: u8) {
        if self.first_has_cache && self.pool.is_new() {
            self.open_cache(handle, place);
        }
    }

    /// What `ffi` does: the cache, then the pool, then a cache for the next time.
    fn served(&mut self, bytes: u64, align: u64, handle: StreamHandle, place: u8) -> Result<Addr, Error> {
        self.open_first(handle, place);
        let cache = self.caches[self.cache_at(place)].as_ref();
        if let Some(at) = cache.and_then(|cache| cache.alloc(bytes, align)) {
            return Ok(at);
        }
        let at = self.pool.alloc_beside(cache, bytes, align, handle);
        if cache.is_none_or(ThreadCache::is_ended) {
            self.open_cache(handle, place);
        }
        at
    }

    fn taken_back(&self, at: u64, handle: StreamHandle, place: u8) -> Result<u64, Error> {
        let cache = self.caches[self.cache_at(place)].as_ref();
        match cache.and_then(|cache| cache.free(Addr(at))) {
            Some(bytes) => Ok(bytes),
            None => self.pool.free_beside(cache, Addr(at), handle),
        }
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

    fn share(&mut self, at: u64, place: u8, hooks: bool) {
        self.order(at, place, hooks);
        let handle = Run::handle(place);
        let answer = self
            .sim
            .naming(&[handle], || self.pool.record_stream(Addr(at), handle));
        assert_eq!(answer, Ok(()));
        let block = self.live.get_mut(&at).expect("a live block");
        self.sim.touch(handle, block.name, at, block.asked);
        block.shared.push(self.sim.now(handle));
    }

    /// One of weir's copies uses the block.
    fn copy(&mut self, at: u64, place: u8, hooks: bool) {
        self.order(at, place, hooks);
        let (handle, block) = (Run::handle(place), &self.live[&at]);
        self.sim.touch_held(handle, block.name, at, block.asked);
        let answer = self
            .sim
            .naming(&[handle], || self.pool.copy_queued(Addr(at), handle));
        assert_eq!(answer, Ok(()));
    }

    /// When the host has waited for all use but that by copies.
    fn free_synced(&mut self, at: u64) {
        self.settle(at);
        // what `ffi` does
        let mut caches = self.caches[self.cache_at(0)..][..PLACES as usize]
            .iter()
            .flatten();
        let freed = match caches.find_map(|cache| cache.free_synced(Addr(at))) {
            Some(bytes) => Ok(bytes),
            None => self.pool.free_synced(Addr(at)),
        };
        assert_eq!(freed, Ok(self.live[&at].bytes));
        self.leave(at);
    }

    /// What `ffi` does.
    fn served_batch(&mut self, sizes: &[u64], place: u8, out: &mut [Addr]) -> Result<(), Error> {
        let handle = Run::handle(place);
        self.open_first(handle, place);
        let cache = self.caches[self.cache_at(place)].as_ref();
        if cache.is_some_and(|cache| cache.alloc_batch(sizes, out)) {
            return Ok(());
        }
        let answer = self.pool.alloc_batch_beside(cache, sizes, handle, out);
        if cache.is_none_or(ThreadCache::is_ended) {
            self.open_cache(handle, place);
        }
        answer
    }

    fn batch(&mut self, sizes: &[u64], place: u8) {
        let handle = Run::handle(place);
        let mut out = vec![Addr(0); sizes.len()];
        let sim = Arc::clone(&self.sim);
        let answer = sim.naming(&[handle], || self.served_batch(sizes, place, &mut out));
        match answer {
            Ok(()) => {
                for (at, &bytes) in out.iter().zip(sizes) {
                    self.enter(at.0, bytes, 0, place, true);
                }
            }
            Err(error) => {
                assert!(out.iter().all(|at| at.0 == 0), "all or nothing");
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

    fn taken_back_all(&self, blocks: &[Addr], place: u8) -> Result<(), Error> {
        let cache = self.caches[self.cache_at(place)].as_ref();
        match cache.is_some_and(|cache| cache.free_batch(blocks)) {
            true => Ok(()),
            false => self.pool.free_batch_beside(cache, blocks, Run::handle(place)),
        }
    }

    fn free_batch_on(&mut self, blocks: &[Addr], place: u8) {
        let handle = Run::handle(place);
        for at in blocks {
            self.order(at.0, place, false);
            let block = &self.live[&at.0];
            self.sim.touch(handle, block.name, at.0, block.asked);
        }
        let answer = self.sim.naming(&[handle], || self.taken_back_all(blocks, place));
        assert_eq!(answer, Ok(()));
        for at in blocks {
            self.leave(at.0);
        }
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
                    .naming(&[stream], || self.taken_back_all(&batch, pick as u8));
                assert_eq!(answer, Err(Error::DoubleFree(Addr(at))));
            }
            _ => {
                let Some(at) = self.pick(pick) else { return };
                let batch = [Addr(at), Addr(16)];
                let answer = self
                    .sim
                    .naming(&[stream], || self.pool.free_batch(&batch, stream));
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
                self.touch_quietly(at);
            }
            Op::Share { pick, stream } => {
                let Some(at) = self.pick(pick) else { return };
                self.share(at, stream, pick % 2 == 0);
            }
            Op::Copy { pick, stream, free } => {
                let Some(at) = self.pick(pick) else { return };
                self.copy(at, stream, pick % 2 == 0);
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
                self.free_batch_on(&blocks, stream);
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

    /// One call of a round that may be replayed, on the first stream. (To ask how long the block is does not end that.)
    #[allow(dead_code)] // of rounds
    pub fn alloc_quietly(&mut self, asked: u64) -> u64 {
        self.alloc_quietly_on(asked, 0)
    }

    /// The same on another one.
    #[allow(dead_code)]
    pub fn alloc_quietly_on(&mut self, asked: u64, place: u8) -> u64 {
        self.alloc_quietly_for(asked, place, true)
    }

    /// The same, and no work uses the block, or some does.
    #[allow(dead_code)]
    pub fn alloc_quietly_for(&mut self, asked: u64, place: u8, touch: bool) -> u64 {
        let handle = Run::handle(place);
        let sim = Arc::clone(&self.sim);
        let at = sim.naming(&[handle], || self.served(asked, 0, handle, place));
        let at = at.expect("memory").0;
        let bytes = self.pool.block_size(Addr(at)).expect("a live block");
        self.enter_of(at, asked, bytes, place, touch);
        at
    }

    /// Work of the stream that a live block was allocated on uses it, unless that is another stream by now.
    pub fn touch_quietly(&mut self, at: u64) {
        let block = &self.live[&at];
        if block.age != self.age(block.place) {
            return;
        }
        let handle = Run::handle(block.place);
        self.sim.touch(handle, block.name, at, block.asked);
        let after = self.sim.now(handle);
        let block = self.live.get_mut(&at).expect("a live block");
        (block.after, block.used) = (after, true);
    }

    /// A block that may be live still is freed on the stream that it was allocated on.
    #[allow(dead_code)]
    pub fn free_quietly_on(&mut self, at: u64, place: u8) {
        if self.live.get(&at).is_some_and(|block| block.place == place) {
            self.free_on(at, place, false);
        }
    }

    /// The same of one that may be freed on another stream than it was allocated on, which waits for its use.
    #[allow(dead_code)]
    pub fn free_quietly_elsewhere(&mut self, at: u64, (from, to): (u8, u8)) {
        if self.live.get(&at).is_some_and(|block| block.place == from) {
            self.free_on(at, to, false);
        }
    }

    /// Such a block is used on another stream, too, which waits for what was queued for it: by weir's hooks, or the pool does not hear of that.
    #[allow(dead_code)]
    pub fn share_quietly(&mut self, at: u64, place: u8, hooks: bool) {
        if self.live.contains_key(&at) {
            self.share(at, place, hooks);
        }
    }

    /// One of weir's copies uses such a block, on its stream.
    #[allow(dead_code)]
    pub fn copy_quietly(&mut self, at: u64, place: u8) {
        if self.live.get(&at).is_some_and(|block| block.place == place) {
            self.copy(at, place, false);
        }
    }

    /// The same of several, as a batch.
    #[allow(dead_code)]
    pub fn alloc_batch_quietly(&mut self, asked: &[u64], place: u8) -> Vec<u64> {
        let handle = Run::handle(place);
        let mut out = vec![Addr(0); asked.len()];
        let sim = Arc::clone(&self.sim);
        let answer = sim.naming(&[handle], || self.served_batch(asked, place, &mut out));
        answer.expect("memory");
        for (&at, &asked) in out.iter().zip(asked) {
            let bytes = self.pool.block_size(at).expect("a live block");
            self.enter_of(at.0, asked, bytes, place, true);
        }
        out.into_iter().map(|at| at.0).collect()
    }

    /// The same of frees: of those blocks that are live still.
    #[allow(dead_code)]
    pub fn free_batch_quietly(&mut self, blocks: &[u64], place: u8) {
        let own = |at: &u64| self.live.get(at).is_some_and(|block| block.place == place);
        let blocks: Vec<Addr> = blocks.iter().copied().filter(own).map(Addr).collect();
        self.free_batch_on(&blocks, place);
    }

    /// The same of a free, of a block that is live still.
    #[allow(dead_code)]
    pub fn free_quietly(&mut self, at: u64) {
        self.free_quietly_on(at, 0);
    }

    /// The same when the host has waited for all its use.
    #[allow(dead_code)]
    pub fn free_synced_quietly(&mut self, at: u64, place: u8) {
        if self.live.get(&at).is_some_and(|block| block.place == place) {
            self.free_synced(at);
        }
    }

    /// The device gets on with all its work of the first stream, and the pool hears nothing of it.
    #[allow(dead_code)]
    pub fn get_on(&self) {
        self.get_on_with(0);
    }

    /// The same with that of one stream, and what that waits for.
    #[allow(dead_code)]
    pub fn get_on_with(&self, place: u8) {
        self.sim.synchronize_with(&self.sim.now(Run::handle(place)));
    }

    /// Is a block of that many bytes live there?
    #[allow(dead_code)]
    pub fn has(&self, at: u64, asked: u64) -> bool {
        self.live.get(&at).is_some_and(|block| block.asked == asked)
    }

    /// Checks everything.
    #[allow(dead_code)]
    pub fn check_now(&self) {
        self.check();
    }

    /// Runs one step and checks everything.
    pub fn step(&mut self, op: &Op) {
        self.do_step(op);
        self.check();
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
