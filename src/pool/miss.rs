//! The way of a request for which nothing is free at hand, in the order of the design: what is safe to use
//! already, pages at hand, growth within the slack, pages moved, growth up to the limit, other streams'
//! memory with a wait, and at last everything given back and taken anew.
//!
//! One request at a time does this, under `grow`; whoever waited for it looks again before doing more.

use super::{Growth, Named, Pool, ThreadCache, index, translate};
use crate::alloc::flush::Whose;
use crate::alloc::heap::Heap;
use crate::alloc::order::Clock;
use crate::alloc::plan::Sources;
use crate::alloc::size::{GRAIN, round_up};
use crate::alloc::transit::Plan;
use crate::backend::{Backend, BackendError};
use crate::base::error::{Error, Shortage};
use crate::base::lock::RankedGuard;
use crate::base::units::{Addr, StreamHandle};

/// The first address range; each further one is twice as long.
const FIRST_RANGE: u64 = 64 << 30;
/// The longest address range reserved beyond what a request needs.
const LAST_RANGE: u64 = 1 << 40;
/// Dormant mappings removed at a time when there are too many.
const EVICT: usize = 256;
/// Pages are created no smaller than this where they may be, since a mapping costs the same whatever its size...
pub(super) const PAGE_MIN: u64 = 8 << 20;
/// ...and no larger than this, or this share of what the pool needs: what is lost at the ends of blocks grows
/// with the page.
pub(super) const PAGE_MAX: u64 = 64 << 20;
const PAGE_SHARE: u64 = 576;
/// A pool without a limit that holds less grows before it takes from threads what they keep.
const LITTLE: u64 = 128 << 20;
/// The share for a pool near its limit, where memory matters more than time, and the slack there.
const PAGE_SHARE_NEAR: u64 = 2048;
const SLACK_NEAR: f64 = 0.005;

/// A request on its way.
#[derive(Clone, Copy)]
struct Request<'a> {
    own: Option<&'a ThreadCache>,
    bytes: u64,
    align: u64,
    stream: Named,
}

/// Bytes that may be created, and in what pages.
struct Room {
    /// Before any page is moved: a quarter of the slack.
    early: u64,
    /// Before pages are joined: the slack.
    slack: u64,
    /// At all.
    limit: u64,
    page_min: u64,
    page_max: u64,
}

impl Pool {
    pub(super) fn miss(
        &self,
        own: Option<&ThreadCache>,
        bytes: u64,
        align: u64,
        stream: Named,
    ) -> Result<Addr, Error> {
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        let request = Request {
            own,
            bytes,
            align,
            stream,
        };
        let mut said = String::new();
        let mut ask = self.config.on_oom.as_ref();
        loop {
            let mut grow = self.lock_to_grow();
            let made = grow.made;
            let served = self.serve(&mut grow, request, &mut said);
            self.after_miss(grow, made);
            match served {
                Ok(Some(at)) => {
                    // what was left of the window came to the stream like a free
                    let mut heap = self.books()?;
                    heap.tune_caches();
                    let index = index(&mut heap, stream);
                    let due = heap.event_due(index);
                    drop(heap);
                    self.record_if(due, stream, index);
                    return Ok(Addr(at));
                }
                Ok(None) => {}
                Err(error) => {
                    self.books()?.stats.failures += 1;
                    return Err(error);
                }
            }
            // asked once: one that always says yes must not keep its caller for ever
            if !ask.take().is_some_and(|ask| ask(bytes)) {
                break;
            }
        }
        let mut heap = self.books()?;
        heap.stats.failures += 1;
        Err(Error::OutOfMemory(Box::new(Shortage {
            asked: bytes,
            stream: stream.handle,
            used: heap.used_now(),
            reserved: heap.stats.reserved,
            largest_free: heap.largest_free(),
            limit: self.config.max_bytes,
            pending: heap.stats.pending,
            backend: said,
        })))
    }

    /// Creates `bytes` of free memory.
    pub(super) fn grow_by(&self, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let mut grow = self.grow.lock();
        let sources = Sources {
            wake: false,
            alias: false,
            join: false,
            create: self.below_limit()?,
            page_min: self.backend.granularity(),
            page_max: PAGE_MAX,
        };
        let bytes = round_up(bytes, self.backend.granularity());
        let none = Named {
            handle: StreamHandle(0),
            line: None,
            reach: false,
        };
        self.attempt(&mut grow, bytes, GRAIN, none, sources, |_, _| ())
            .map_err(|error| translate(error, StreamHandle(0)))?;
        Ok(())
    }

    fn serve(&self, grow: &mut Growth, request: Request, said: &mut String) -> Result<Option<u64>, Error> {
        self.books()?.stats.misses += 1;
        self.pressure.begin_miss();
        if let Some(at) = self.again(request)? {
            return Ok(Some(at)); // whoever held `grow` made room for this one, too
        }
        let need = Heap::need(request.bytes, request.align);
        let flushed = self.flush_own(request.own, need, request.stream)?;
        if (self.learn_what_is_safe(request)? || flushed)
            && let Some(at) = self.again(request)?
        {
            return Ok(Some(at));
        }
        if let Some(at) = self.grow_a_little(grow, request)? {
            return Ok(Some(at));
        }
        if self.flush_others(need, request.stream)? {
            self.learn_what_is_safe(request)?;
        }
        if let Some(at) = self.again(request)? {
            return Ok(Some(at));
        }
        if let Some(at) = self.fill(grow, request, said)? {
            return Ok(Some(at));
        }
        if self.wait_on_streams(request)?
            && let Some(at) = self
                .again(request)?
                .map_or_else(|| self.fill(grow, request, said), |at| Ok(Some(at)))?
        {
            return Ok(Some(at));
        }
        if self.pressure.ask_again()
            && let Some(at) = self.fill(grow, request, said)?
        {
            return Ok(Some(at));
        }
        if self.wait_for_all()
            && let Some(at) = self
                .again(request)?
                .map_or_else(|| self.fill(grow, request, said), |at| Ok(Some(at)))?
        {
            return Ok(Some(at));
        }
        // pages of the wrong size may be all that is left: give them back and make others. Where none was wholly
        // free, slabs that were may now be part of an extent that is long enough
        self.give_back_all();
        let got = self
            .again(request)?
            .map_or_else(|| self.fill(grow, request, said), |at| Ok(Some(at)))?;
        if got.is_none() {
            // what was created in vain is of no use here, and others may need it
            self.give_back_all();
        }
        Ok(got)
    }

    /// A pool that hardly holds anything grows before it takes from threads what they keep.
    fn grow_a_little(&self, grow: &mut Growth, request: Request) -> Result<Option<u64>, Error> {
        let (len, align) = Heap::need(request.bytes, request.align);
        let heap = self.books()?;
        let room = LITTLE.saturating_sub(heap.stats.reserved);
        let most = self.config.max_bytes;
        if most != 0
            || self.apart
            || self.pressure.is_short()
            || room < len + align
            || heap.bytes_of_kept() == 0
        {
            return Ok(None);
        }
        drop(heap);
        let page = PAGE_MIN.max(self.backend.granularity());
        let sources = Sources {
            wake: false,
            alias: false,
            join: false,
            create: room,
            page_min: page,
            page_max: page,
        };
        let serve = |heap: &mut Heap, stream| heap.alloc(request.bytes, request.align, stream);
        match self.attempt(grow, len, align, request.stream, sources, serve) {
            Ok(at) => Ok(at.flatten()),
            Err(BackendError::OutOfMemory(_)) => Ok(None),
            Err(error) => Err(translate(error, request.stream.handle)),
        }
    }

    /// Looks whether the request can be served by now.
    fn again(&self, request: Request) -> Result<Option<u64>, Error> {
        let mut heap = self.books()?;
        let stream = index(&mut heap, request.stream);
        Ok(heap.alloc(request.bytes, request.align, stream))
    }

    /// Makes available to the stream what other streams freed, as far as nothing has to wait for it.
    fn learn_what_is_safe(&self, request: Request) -> Result<bool, Error> {
        let (opportunistic, stream) = {
            let mut heap = self.books()?;
            let stream = index(&mut heap, request.stream);
            (heap.reuse.opportunistic, stream)
        };
        let mut any = if opportunistic {
            self.cover();
            self.poll()
        } else {
            self.confirm(&Clock::new())
        };
        let mut heap = self.books()?;
        if heap.arenas[stream as usize].is_some() {
            any |= heap.absorb_known(stream);
        }
        self.want_events(&mut heap, stream);
        Ok(any)
    }

    /// What this stream could not get should be covered by an event soon.
    fn want_events(&self, heap: &mut Heap, stream: u32) {
        for other in heap.streams() {
            if other != stream {
                heap.want_event(other);
            }
        }
    }

    /// Finds pages for the request: at hand, created within the slack, moved, created up to the limit.
    fn fill(&self, grow: &mut Growth, request: Request, said: &mut String) -> Result<Option<u64>, Error> {
        let refused = self.pressure.is_refused();
        let got = self.fill_in_steps(grow, request, said)?;
        if got.is_none() && !refused && self.pressure.is_refused() {
            // the plans that failed had counted on more than the device has
            return self.fill_in_steps(grow, request, said);
        }
        Ok(got)
    }

    fn fill_in_steps(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        let (len, align) = Heap::need(request.bytes, request.align);
        let steps = match self.apart {
            true => self.steps_apart(len)?,
            false => self.steps(self.room(len)?),
        };
        for mut sources in steps {
            // an earlier step may have created pages, and failed or lost them to another thread
            sources.create = sources.create.min(self.below_limit()?);
            let serve = |heap: &mut Heap, stream| heap.alloc(request.bytes, request.align, stream);
            match self.attempt(grow, len, align, request.stream, sources, serve) {
                Ok(None | Some(None)) => {}
                Ok(Some(Some(at))) => return Ok(Some(at)),
                Err(BackendError::OutOfMemory(why)) => *said = why,
                Err(error) => return Err(translate(error, request.stream.handle)),
            }
        }
        Ok(None)
    }

    /// The ways to back a window, each with more than the one before.
    fn steps(&self, room: Room) -> Vec<Sources> {
        let wake = Sources {
            wake: true,
            alias: false,
            join: false,
            create: 0,
            page_min: room.page_min,
            page_max: room.page_max,
        };
        let steps = [
            wake,
            Sources {
                wake: false,
                create: room.early,
                ..wake
            },
            Sources { alias: true, ..wake },
            Sources {
                alias: true,
                create: room.slack,
                ..wake
            },
            Sources {
                join: true,
                create: room.limit,
                ..wake
            },
            Sources {
                alias: true,
                create: room.limit,
                ..wake
            },
            // the device may have room for small pages only
            Sources {
                alias: true,
                create: room.limit,
                page_min: self.backend.granularity(),
                ..wake
            },
        ];
        // without bytes for them, the second and fourth step are the third, and the first is part of it
        let slot = self.backend.granularity();
        let skip = [
            room.early < slot,
            room.early < slot,
            false,
            room.slack < slot,
            false,
            false,
            false,
        ];
        let each = steps.into_iter().zip(skip);
        each.filter(|step| !step.1).map(|step| step.0).collect()
    }

    /// Bytes that may be created now.
    fn below_limit(&self) -> Result<u64, Error> {
        Ok(self.left(self.books()?.stats.reserved))
    }

    pub(super) fn left(&self, reserved: u64) -> u64 {
        let below_own = match self.config.max_bytes {
            0 => u64::MAX,
            most => most.saturating_sub(reserved),
        };
        below_own.min(self.pressure.left(reserved))
    }

    /// Does a pool that needs so much have to mind memory rather than time?
    pub(super) fn near_limit(&self, peak: u64) -> bool {
        let most = self.config.max_bytes;
        self.pressure.is_short() || most != 0 && peak > most / 2
    }

    /// May it come near its limit? Its pages are small long before, because blocks that stay keep the pages in which they
    /// lie, and what large ones lose at the ends of blocks is missing in the end.
    fn may_come_near(&self, peak: u64) -> bool {
        let most = self.config.max_bytes;
        most != 0 && peak > most / 8
    }

    /// Has it to mind memory rather than time when it makes pages? A device that is short of mappings, too, is no place for
    /// small ones.
    fn is_tight(&self, peak: u64) -> bool {
        let pages = peak / self.backend.granularity();
        self.may_come_near(peak) || self.pressure.is_short() && pages <= self.backend.mapping_limit() / 4
    }

    /// The smallest and the largest page that a pool creates that needs so much, if it has the choice.
    pub(super) fn page_sizes(&self, peak: u64) -> (u64, u64) {
        let slot = self.backend.granularity();
        let (share, least) = match self.is_tight(peak) {
            true => (PAGE_SHARE_NEAR, slot),
            false => (PAGE_SHARE, PAGE_MIN.max(slot)),
        };
        let largest = (peak / share).clamp(least, PAGE_MAX.max(least));
        (least, 1 << (63 - largest.leading_zeros()))
    }

    fn room(&self, len: u64) -> Result<Room, Error> {
        let heap = self.books()?;
        let stats = &heap.stats;
        let limit = self.left(stats.reserved);
        let peak = stats.used_peak.max(heap.used_now() + len);
        let (least, largest) = self.page_sizes(peak);
        let slack = match self.is_tight(peak) {
            true => self.config.slack.min(SLACK_NEAR),
            false => self.config.slack,
        };
        let within = |slack: f64| {
            ((peak as f64 * (1.0 + slack)) as u64)
                .saturating_sub(stats.reserved)
                .min(limit)
        };
        Ok(Room {
            // a small pool takes whole pages from the start
            early: within(slack / 4.0).max(if peak < 32 * least { least.min(limit) } else { 0 }),
            slack: within(slack),
            limit,
            page_min: least,
            page_max: largest,
        })
    }

    /// Plans and carries out one window, and serves from it before anybody else can. None: the sources do not
    /// suffice.
    fn attempt<T>(
        &self,
        grow: &mut Growth,
        len: u64,
        align: u64,
        stream: Named,
        sources: Sources,
        serve: impl FnOnce(&mut Heap, u32) -> T,
    ) -> Result<Option<T>, BackendError> {
        if self.placed {
            let got = self.attempt_placed(len, align, stream, sources, serve)?;
            grow.made += u64::from(got.is_some());
            return Ok(got);
        }
        self.make_room(grow, len + align)?;
        let Ok(mut heap) = self.books() else {
            return Err(BackendError::Unloaded);
        };
        // before there is a plan, which may count on any dormant mapping
        let most = heap.pages.mapped + len / self.backend.granularity() + 4;
        let budget = self.backend.mapping_limit().min(heap.pages.mapping_budget());
        if most > budget {
            drop(heap);
            self.evict((most - budget) as usize + EVICT)?;
            heap = self.heap.lock();
        }
        let index_now = index(&mut heap, stream);
        heap.reunite(index_now);
        let Some(mut plan) = heap.plan(len, align, index_now, sources) else {
            return Ok(None);
        };
        drop(heap);
        let outcome = self.carry_out(&mut plan);
        let mut heap = self.heap.lock();
        let index_now = index(&mut heap, stream);
        if outcome.is_ok() {
            heap.count_moves(&plan);
            grow.made += u64::from(!plan.create.is_empty());
        }
        heap.settle(plan, index_now);
        outcome.map(|()| Some(serve(&mut heap, index_now)))
    }

    pub(super) fn carry_out(&self, plan: &mut Plan) -> Result<(), BackendError> {
        for &(at, bytes, mapping) in &plan.clear {
            self.backend.unmap(Addr(at), bytes)?;
            self.heap.lock().cleared(mapping);
        }
        for index in 0..plan.alias.len() {
            let alias = plan.alias[index];
            self.backend.map(Addr(alias.at), alias.handle, alias.bytes)?;
            self.heap.lock().aliased(plan, index);
        }
        for index in 0..plan.create.len() {
            let (at, bytes) = plan.create[index];
            let handle = self.heard(bytes, self.backend.create(bytes))?;
            let page = self.heap.lock().created(handle, bytes);
            if let Err(error) = self.backend.map(Addr(at), handle, bytes) {
                self.heap.lock().pages.loose.push(page);
                return Err(error);
            }
            self.heap.lock().mapped(plan, page, at, 0, bytes);
        }
        Ok(())
    }

    /// Makes sure that some range has room for a window of `bytes` and a page beyond.
    pub(super) fn make_room(&self, grow: &mut Growth, bytes: u64) -> Result<(), BackendError> {
        let need = round_up(bytes, self.backend.granularity()) + 2 * PAGE_MAX;
        let heap: RankedGuard<'_, Heap> = self.heap.lock();
        if heap.space.has_void(need) {
            return Ok(());
        }
        drop(heap);
        let least = round_up(need, PAGE_MAX);
        let mut want = grow.next_range.max(FIRST_RANGE).max(least);
        let at = loop {
            match self.backend.reserve(want) {
                Ok(at) => break at,
                // addresses may be scarce: `ulimit -v`, valgrind
                Err(BackendError::OutOfMemory(_)) if want > least => {
                    want = round_up(want / 2, PAGE_MAX).max(least)
                }
                Err(error) => return Err(error),
            }
        };
        if let Err(error) = self.directory.cover(at.0, want) {
            self.backend.unreserve(at, want)?;
            return Err(error);
        }
        grow.next_range = (want * 2).min(LAST_RANGE);
        self.heap.lock().space.add_range(at.0, want);
        Ok(())
    }

    /// Brings pages home, if no miss is at work just then.
    pub(super) fn come_to_rest(&self, stream: Named) -> Result<(), Error> {
        let Some(_grow) = self.grow.try_lock() else {
            return Ok(());
        };
        let mut heap = self.books()?;
        let index = index(&mut heap, stream);
        let peak = heap.stats.used_peak;
        let near = self.is_tight(peak);
        heap.flush(Whose::All, |_| false);
        heap.come_to_rest(index, !near);
        drop(heap);
        if near {
            // pages that were made before the pool came near its limit lose too much at the ends of blocks
            let largest = self.page_sizes(peak).1;
            self.poll();
            let _ = self.give_back(0, largest + 1);
        }
        Ok(())
    }

    /// Removes dormant mappings whose use is over.
    fn evict(&self, count: usize) -> Result<(), BackendError> {
        let chosen = self.heap.lock().choose_evicted(count);
        for (at, bytes, mapping) in chosen {
            self.backend.unmap(Addr(at), bytes)?;
            self.heap.lock().unmapped(mapping);
        }
        Ok(())
    }

    /// Makes the stream wait for others that hold freed memory, if that policy is on.
    fn wait_on_streams(&self, request: Request) -> Result<bool, Error> {
        let mut heap = self.books()?;
        let stream = index(&mut heap, request.stream);
        // a graph cannot wait for work outside it
        let waits = request.stream.line.is_some_and(|line| line.capture.is_none());
        if !heap.reuse.internal_dependencies || !waits {
            return Ok(false);
        }
        let others: Vec<_> = heap
            .streams()
            .filter(|&other| other != stream && !heap.arena(other).bins.is_empty())
            .filter_map(|other| {
                heap.arena(other)
                    .events
                    .back()
                    .map(|&(event, covers)| (other, event, covers))
            })
            .collect();
        drop(heap);
        let mut clock = Clock::new();
        for (other, event, covers) in others {
            if self.backend.wait(request.stream.handle, event).is_ok() {
                clock.push((other, covers));
            }
        }
        let mut heap = self.books()?;
        let stream = index(&mut heap, request.stream);
        heap.learn(stream, &clock);
        Ok(heap.absorb_known(stream))
    }
}
