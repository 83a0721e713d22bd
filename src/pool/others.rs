//! What other streams have freed, for a request that finds nothing of its own stream's: the ways to come by it, without a wait or with
//! one (`alloc::sharing` says which is when).

use super::miss::Request;
use super::order::NOTICE;
use super::sources::PAGE_MIN;
use super::{Growth, Named, Pool, index_for_alloc};
use crate::alloc::heap::Heap;
use crate::alloc::order::Clock;
use crate::backend::Backend;
use crate::base::error::Error;
use std::time::Duration;

/// To make a page of `PAGE_MIN` and map it takes so long on an H100's host.
const MADE: Duration = Duration::from_micros(45);

impl Pool {
    /// Where streams do not look at each other: what the stream itself has, what it may have more, and, if they wait for each other,
    /// what one after the other has.
    pub(super) fn serve_in_order(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        let mut heap = self.books()?;
        if heap.sharing.is_by_looks() {
            return Ok(None);
        }
        if heap.is_review_due() {
            // streams made for a request each, which nobody would see to have come to their end
            let stream = index_for_alloc(&mut heap, request.stream);
            drop(heap);
            self.poll(Some(stream), false, false);
            heap = self.books()?;
        }
        let by_waits = heap.sharing.is_by_waits();
        let stream = index_for_alloc(&mut heap, request.stream);
        // what the program has told of is known before each request of a round that comes again
        let known = by_waits && heap.absorb_known(stream);
        drop(heap);
        if known && let Some(at) = self.again(request)? {
            return Ok(Some(at));
        }
        if let Some(at) = self.as_before(request)? {
            return Ok(Some(at));
        }
        let need = Heap::need(request.bytes, request.align);
        self.flush_own(request.own, need, request.stream)?;
        if let Some(at) = self.again(request)? {
            return Ok(Some(at));
        }
        let heap = self.books()?;
        let by_threads = heap.sharing.is_by_threads();
        let mut loose = heap.ended_streams();
        if by_threads {
            loose.extend(heap.loose_streams(stream));
        }
        drop(heap);
        if self.absorb_from(&loose, NOTICE)?
            && let Some(at) = self.again(request)?
        {
            return Ok(Some(at));
        }
        match self.fill_within(grow, request, said)? {
            None if by_waits => self.take_over(grow, request, said),
            None if by_threads => self.take_excess(grow, request, said),
            got => Ok(got),
        }
    }

    /// Where memory is partitioned among threads, and the pool may not hold more: what one stream after the other has that is more
    /// than it needs. Not all at once: what each needs is where it needs it. Then the one that has most of it is waited for, as long as it
    /// would take to make that, since what is made stays (rent or buy: Karlin, Manasse, McGeoch, Owicki, 1990).
    fn take_excess(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        let others = heap.streams_with_more(stream);
        drop(heap);
        let longer = others.first().map(|&(excess, other)| {
            let pages = request.bytes.min(excess).div_ceil(PAGE_MIN);
            (other, NOTICE.max(MADE * pages as u32))
        });
        let all = others.iter().map(|&(_, other)| (other, NOTICE));
        for (other, notice) in all.chain(longer) {
            if !self.absorb_from(&[other], notice)? {
                continue;
            }
            if let Some(at) = self.again(request)? {
                return Ok(Some(at));
            }
            if let Some(at) = self.fill_within(grow, request, said)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// What is complete of what these streams have freed, or within such a moment, is everybody's. Gives whether anything was.
    fn absorb_from(&self, streams: &[u32], notice: Duration) -> Result<bool, Error> {
        if streams.is_empty() {
            return Ok(false);
        }
        self.cover(|other| streams.contains(&other));
        let done = self.wait_a_moment_for(streams, notice);
        let mut heap = self.books()?;
        heap.complete(&done, &mut self.stale.lock());
        let any = heap.absorb_complete_from(streams);
        drop(heap);
        self.forget_stale();
        Ok(any)
    }

    /// Where they do: the pool need not hold ever more because the host is ahead of its streams. Beyond a quarter more than they need apart
    /// the stream rather waits for others.
    pub(super) fn wait_early(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        let heap = self.books()?;
        let waits = heap.sharing.is_by_looks() && heap.has_several_streams() && self.may(&heap).wait;
        drop(heap);
        if !waits {
            return Ok(None);
        }
        match self.fill_within(grow, request, said)? {
            None => self.take_over(grow, request, said),
            got => Ok(got),
        }
    }

    /// Finds pages, and creates some as far as the pool may hold more that is not to look at streams.
    fn fill_within(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        let steps = self.steps(self.room_of_streams(request)?);
        self.fill_in_steps(grow, request, said, steps)
    }

    /// Has the stream wait for one after the other that has freed memory, and takes that.
    fn take_over(
        &self,
        grow: &mut Growth,
        request: Request,
        said: &mut String,
    ) -> Result<Option<u64>, Error> {
        for other in self.holders(request)? {
            self.cover(|stream| stream == other);
            if !self.wait_on(request, |stream| stream == other)? {
                continue;
            }
            if let Some(at) = self.again(request)? {
                return Ok(Some(at));
            }
            if let Some(at) = self.fill_within(grow, request, said)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Other streams that have freed memory, those with the longest extents first.
    fn holders(&self, request: Request) -> Result<Vec<u32>, Error> {
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        let longest = |other: u32| heap.arena(other).bins.largest(&heap.space.nodes);
        let mut holders: Vec<(u64, u32)> = heap
            .streams()
            .filter(|&other| other != stream)
            .map(|other| (longest(other), other))
            .filter(|holder| holder.0 > 0)
            .collect();
        holders.sort_unstable_by(|one, other| other.cmp(one));
        Ok(holders.into_iter().map(|holder| holder.1).collect())
    }

    /// Makes available to the stream what other streams freed, as far as nothing has to wait for it.
    /// Whether the stream's `own` work is complete only mappings that are in the way depend on.
    pub(super) fn learn_what_is_safe(&self, stream: Named, own: bool) -> Result<bool, Error> {
        let (ended, stream) = {
            let mut heap = self.books()?;
            let stream = index_for_alloc(&mut heap, stream);
            ((!heap.reuse.opportunistic).then(|| heap.ended_streams()), stream)
        };
        let mut any = match ended {
            None => {
                let recorded = self.cover(|other| own || other != stream);
                // growth, which is what comes next, costs more than to look again
                self.poll(Some(stream), own, own || recorded)
            }
            // what a stream had that has ended nobody would have again
            Some(ended) => self.absorb_from(&ended, NOTICE)? | self.confirm(&Clock::new(), Some(stream)),
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
        for other in heap.streams_now() {
            if other != stream {
                heap.want_event(other);
            }
        }
    }

    /// Makes the stream wait for those that hold freed memory, if that policy is on.
    pub(super) fn wait_on_streams(&self, request: Request) -> Result<bool, Error> {
        self.wait_on(request, |_| true)
    }

    /// Makes it wait for those of them `which` are asked for. Returns whether that brought any memory.
    fn wait_on(&self, request: Request, which: impl Fn(u32) -> bool) -> Result<bool, Error> {
        let mut heap = self.books()?;
        let stream = index_for_alloc(&mut heap, request.stream);
        // a graph cannot wait for work outside it
        let waits = request.stream.line.is_some_and(|line| line.capture.is_none());
        if !heap.reuse.internal_dependencies || !waits {
            return Ok(false);
        }
        let others: Vec<_> = heap
            .streams()
            .filter(|&other| other != stream && which(other) && !heap.arena(other).bins.is_empty())
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
        let stream = index_for_alloc(&mut heap, request.stream);
        heap.learn(stream, &clock);
        Ok(heap.absorb_known(stream))
    }
}
