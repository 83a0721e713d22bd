//! The way of a request for which nothing is free at hand, in the order of the design: what is safe to use
//! already, pages at hand, growth within the slack, pages moved, growth up to the limit, other streams'
//! memory with a wait, and at last everything given back and taken anew.
//!
//! One request at a time does this, under `grow`; whoever waited for it looks again before doing more. One that waits for
//! queued work lets others have their turn meanwhile.

use super::sources::{PAGE_MAX, PAGE_MIN};
use super::turn::Turn;
use super::{Growth, Named, Pool, ThreadCache, index, index_for_alloc, translate};
use crate::alloc::flush::Whose;
use crate::alloc::heap::Heap;
use crate::alloc::plan::Sources;
use crate::alloc::size::{CLASS_BYTES, GRAIN, SMALL_MAX, class_of, round_up};
use crate::alloc::transit::Plan;
use crate::backend::{Backend, BackendError};
use crate::base::error::{Error, Shortage};
use crate::base::lock::RankedGuard;
use crate::base::units::{Addr, StreamHandle};
use std::mem;

/// The first address range; each further one is twice as long.
const FIRST_RANGE: u64 = 64 << 30;
/// The longest address range reserved beyond what a request needs.
const LAST_RANGE: u64 = 1 << 40;

/// A request on its way.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) own: Option<&'a ThreadCache>,
    pub(super) bytes: u64,
    pub(super) align: u64,
    pub(super) stream: Named,
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
        let mut chunks = true;
        loop {
            self.catch_up();
            self.give_back_chunks(false);
            let mut grow = Turn::take(self);
            let made = grow.made;
            self.hear_of_graphs();
            let served = match self.serve(&mut grow, request, &mut said) {
                Ok(None) => self.serve_longer(request),
                served => served,
            };
            self.after_miss(grow, made);
            match served {
                Ok(Some(at)) => {
                    // what was left of the window came to the stream like a free
                    let mut heap = self.books()?;
                    heap.note_miss();
                    heap.tune_caches();
                    let index = index(&mut heap, stream);
                    let due = heap.event_due(index);
                    drop(heap);
                    self.record_if(due, &stream, index);
                    return Ok(Addr(at));
                }
                Ok(None) => {}
                Err(error) => {
                    self.books()?.stats.failures += 1;
                    return Err(error);
                }
            }
            // once each: one that always says yes must not keep its caller for ever
            if mem::take(&mut chunks) && self.give_back_chunks(true) {
                continue;
            }
            if !ask.take().is_some_and(|ask| ask(bytes)) {
                break;
            }
        }
        Err(self.shortage(bytes, stream.handle, said)?)
    }

    /// Creates `bytes` of free memory.
    pub(super) fn grow_by(&self, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let mut grow = Turn::take(self);
        let sources = Sources {
            wake: false,
            alias: false,
            join: false,
            create: self.below_limit()?,
            page_min: self.backend.granularity(),
            page_max: PAGE_MAX,
            page_whole: 0,
            aside: false,
            exact: false,
        };
        let bytes = round_up(bytes, self.backend.granularity());
        let none = Named {
            handle: StreamHandle(0),
            line: None,
            reach: false,
        };
        match self.attempt(&mut grow, bytes, GRAIN, none, sources, |_, _| ()) {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(self.shortage(bytes, none.handle, String::new())?),
            Err(BackendError::OutOfMemory(why)) => Err(self.shortage(bytes, none.handle, why)?),
            Err(error) => Err(translate(error, none.handle)),
        }
    }

    /// That many bytes cannot be had, for all that the backend `said`.
    pub(super) fn shortage(&self, asked: u64, stream: StreamHandle, said: String) -> Result<Error, Error> {
        let mut heap = self.books()?;
        heap.stats.failures += 1;
        Ok(Error::OutOfMemory(Box::new(Shortage {
            asked,
            stream,
            used: heap.used_now(),
            reserved: heap.stats.reserved,
            largest_free: heap.largest_free(),
            limit: self.config.max_bytes,
            pending: heap.stats.pending,
            backend: said,
        })))
    }

    fn serve(&self, grow: &mut Turn, request: Request, said: &mut String) -> Result<Option<u64>, Error> {
        self.books()?.stats.misses += 1;
        self.pressure.begin_miss();
        if let Some(at) = self.again(request)? {
            return Ok(Some(at)); // whoever held `grow` made room for this one, too
        }
        let need = Heap::need(request.bytes, request.align);
        if let Some(at) = self.serve_in_order(grow, request, said)? {
            return Ok(Some(at));
        }
        if self.learn_what_is_safe(request.stream, false)?
            && let Some(at) = self.again(request)?
        {
            return Ok(Some(at));
        }
        // not before: whose memory is whose would not be as it was then, and each later window another one
        if let Some(at) = self.as_before(request)? {
            return Ok(Some(at));
        }
        if let Some(at) = self.grow_a_little(grow, request)? {
            return Ok(Some(at));
        }
        self.flush_own(request.own, need, request.stream)?;
        self.flush_others(need, request.stream)?;
        self.learn_what_is_safe(request.stream, true)?;
        if let Some(at) = self.again(request)? {
            return Ok(Some(at));
        }
        if let Some(at) = self.wait_early(grow, request, said)? {
            return Ok(Some(at));
        }
        self.books()?.part_if_far_above();
        if let Some(at) = self.fill(grow, request, said)? {
            return Ok(Some(at));
        }
        if self.books()?.part_no_more()
            && let Some(at) = self.again_or_fill(grow, request, said)?
        {
            return Ok(Some(at));
        }
        self.books()?.freeze();
        let got = self.serve_by_waiting(grow, request, said);
        self.heap.lock().thaw();
        got
    }

    /// What is left: to wait for what was freed, on the device and on the host, and to give everything back and take it anew.
    fn serve_by_waiting(
        &self,
        grow: &mut Turn,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        self.books()?.let_guests_share();
        if self.wait_on_streams(request)?
            && let Some(at) = self.again_or_fill(grow, request, said)?
        {
            return Ok(Some(at));
        }
        if self.pressure.ask_again()
            && let Some(at) = self.fill(grow, request, said)?
        {
            return Ok(Some(at));
        }
        if grow.wait_for_all()
            && let Some(at) = self.again_or_fill(grow, request, said)?
        {
            return Ok(Some(at));
        }
        // pages of the wrong size may be all that is left: give them back and make others. Where none was wholly
        // free, slabs that were may now be part of an extent that is long enough
        self.give_back_all(grow);
        let got = self.again_or_fill(grow, request, said)?;
        if got.is_none() {
            // what was created in vain is of no use here, and others may need it
            self.give_back_all(grow);
        }
        Ok(got)
    }

    /// What is left may be too short for a slab's run: then a small request gets a block of a longer class, or one of no slab.
    fn serve_longer(&self, request: Request) -> Result<Option<u64>, Error> {
        let Some(class) = class_of(request.bytes, request.align) else {
            return Ok(None);
        };
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        let classes = CLASS_BYTES[class + 1..].iter().map(|&bytes| u64::from(bytes));
        let mut longer = classes.chain([SMALL_MAX + 1]);
        Ok(longer.find_map(|bytes| heap.alloc(bytes, request.align, stream)))
    }

    /// A state that comes again needs what it needed before: what the thread keeps, and pages that wake, without a call.
    pub(super) fn as_before(&self, request: Request) -> Result<Option<u64>, Error> {
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        let (len, align) = Heap::need(request.bytes, request.align);
        if !heap.has_been_given(len) {
            return Ok(None);
        }
        if let Some(own) = request.own {
            heap.flush(Whose::Thread(own.cache.owner), |heap| {
                heap.fit(len, align, stream).is_some()
            });
        }
        if heap.fit(len, align, stream).is_none() {
            let Some(plan) = heap.plan_as_before(len, align, stream) else {
                return Ok(None);
            };
            heap.count_moves(&plan);
            heap.settle(plan, stream);
        }
        Ok(heap.alloc(request.bytes, request.align, stream))
    }

    /// A pool that hardly holds anything grows before it takes from threads what they keep.
    fn grow_a_little(&self, grow: &mut Growth, request: Request) -> Result<Option<u64>, Error> {
        let (len, align) = Heap::need(request.bytes, request.align);
        let heap = self.books()?;
        let room = heap.room_while_little();
        if self.apart || room < len + align || heap.bytes_of_kept() == 0 {
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
            page_whole: 0,
            aside: false,
            exact: false,
        };
        let serve = |heap: &mut Heap, stream| heap.alloc(request.bytes, request.align, stream);
        match self.attempt(grow, len, align, request.stream, sources, serve) {
            Ok(at) => Ok(at.flatten()),
            Err(BackendError::OutOfMemory(_)) => Ok(None),
            Err(error) => Err(translate(error, request.stream.handle)),
        }
    }

    /// Looks whether the request can be served by now.
    pub(super) fn again(&self, request: Request) -> Result<Option<u64>, Error> {
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        Ok(heap.alloc(request.bytes, request.align, stream))
    }

    /// Where memory may have come free since the last look.
    fn again_or_fill(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        match self.again(request)? {
            Some(at) => Ok(Some(at)),
            None => self.fill(grow, request, said),
        }
    }

    /// Finds pages for the request: at hand, created within the slack, moved, created up to the limit; and once more if free parts of
    /// pages come together, and as long as the device refuses pages that smaller ones may do for.
    fn fill(&self, grow: &mut Growth, request: Request, said: &mut String) -> Result<Option<u64>, Error> {
        let mut united = false;
        loop {
            let refusals = self.pressure.refusals();
            let (len, _) = Heap::need(request.bytes, request.align);
            let steps = match self.apart {
                true => {
                    self.make_way(len)?;
                    self.steps_apart(len)?
                }
                false => self.steps(self.room(len)?),
            };
            let got = self.fill_in_steps(grow, request, said, steps)?;
            if got.is_some() {
                return Ok(got);
            }
            // plans that were refused counted on more than the device has: the next ones count on less, so there is an end to this
            let refused = self.pressure.refusals() != refusals;
            if !refused && (mem::replace(&mut united, true) || !self.unite(request)?) {
                return Ok(None);
            }
            if let Some(at) = self.again(request)? {
                return Ok(Some(at));
            }
        }
    }

    /// Brings free parts of pages together.
    fn unite(&self, request: Request) -> Result<bool, Error> {
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        Ok(heap.unite(stream))
    }

    pub(super) fn fill_in_steps(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
        steps: Vec<Sources>,
    ) -> Result<Option<u64>, Error> {
        let (len, align) = Heap::need(request.bytes, request.align);
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
        self.thin_out(grow, len)?;
        let Ok(mut heap) = self.books() else {
            return Err(BackendError::Unloaded);
        };
        let index_now = index_for_alloc(&mut heap, stream);
        heap.reunite(index_now);
        let Some(mut plan) = heap.plan(len, align, index_now, sources) else {
            return Ok(None);
        };
        drop(heap);
        let outcome = self.carry_out(&mut plan);
        let mut heap = self.heap.lock();
        let index_now = index_for_alloc(&mut heap, stream);
        if outcome.is_ok() {
            heap.count_moves(&plan);
            grow.made += u64::from(!plan.create.is_empty());
        }
        let aside = plan
            .aside
            .then(|| plan.create.iter().map(|&(_, bytes)| bytes).sum::<u64>());
        heap.settle(plan, index_now);
        if let Some(made) = aside
            && outcome.is_ok()
        {
            drop(heap);
            let sources = Sources {
                create: sources.create.saturating_sub(made),
                aside: false,
                ..sources
            };
            return self.attempt(grow, len, align, stream, sources, serve);
        }
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
        let Some(_grow) = Turn::try_take(self) else {
            return Ok(());
        };
        let mut heap = self.books()?;
        let near = self.is_near(&heap);
        let ample = self.ample_for(&heap);
        let may = self.may(&heap);
        heap.flush(Whose::All, |_| false);
        let rests = heap.begin_rest(!near, ample);
        if rests && heap.has_several_streams() && heap.reuse.opportunistic && !heap.sharing.is_apart() {
            // what is complete becomes everybody's first: extents of two owners are not joined, pages that are partly another
            // stream's do not come home, and who freed what is chance
            // (which of it is complete, too, where not all is; where requests have no order no round is like another anyway)
            let by_waits = heap.sharing.is_by_waits() && !heap.leeway.is_any();
            drop(heap);
            if by_waits {
                self.poll_whole();
            } else {
                self.cover(|_| true);
                self.poll(None, true, true);
            }
            heap = self.books()?;
        }
        let mut sheds = false;
        if rests {
            let index = index_for_alloc(&mut heap, stream);
            sheds = heap.come_to_rest(index, ample, may);
        }
        let largest = self.page_sizes(heap.needed, &heap).1;
        drop(heap);
        if sheds {
            self.cover(|_| true);
        }
        if near || sheds {
            // pages that were made before memory mattered lose too much at the ends of blocks
            self.poll(None, true, sheds);
            let _ = self.give_back(0, largest + 1);
        }
        if sheds {
            let _ = self.give_back(ample, 0);
        }
        Ok(())
    }
}
