//! What the pool hears of the order between streams: its own events, the user's events and synchronises.
//!
//! Every number is read *before* the driver's call that it is to be true of: an event, or a synchronise,
//! covers the frees that were published before it began.

use super::turn::Turn;
use super::{Named, Pool, index};
use crate::alloc::company::Replayed;
use crate::alloc::flush::Whose;
use crate::alloc::order::{Clock, Uncovered};
use crate::backend::{Backend, BackendError, Event};
use crate::base::units::{EventHandle, StreamHandle};
use std::time::{Duration, Instant};

/// Events to forget that are kept before somebody takes the time.
pub(super) const STALE: usize = 64;
/// How long events on idle streams may take to be complete. Growth, which is what comes next, costs more.
pub(super) const NOTICE: Duration = Duration::from_micros(20);

/// A moment on the streams a pool knows, taken before a driver's call and confirmed after it.
#[derive(Clone, Debug, Default)]
pub struct Mark {
    pub(super) clock: Clock,
    /// All streams are in it.
    whole: bool,
    /// How far a replay had come, for the stream that the mark is of, or for all.
    replayed: Option<Replayed>,
    stream: Option<u32>,
}

impl Mark {
    fn of(clock: Clock) -> Mark {
        Mark {
            clock,
            ..Mark::default()
        }
    }
}

impl Pool {
    /// Takes a mark before an event is recorded on `stream`, or before the host synchronises with it.
    pub fn mark_stream(&self, stream: StreamHandle) -> Mark {
        let Ok(Named { line: Some(line), .. }) = self.name(stream) else {
            return Mark::default();
        };
        let Ok(mut heap) = self.books_to_read() else {
            return Mark::default();
        };
        let Some(index) = heap.known_stream(line) else {
            return Mark::default();
        };
        Mark {
            replayed: heap.replayed(),
            stream: Some(index),
            ..Mark::of(heap.clock(index))
        }
    }

    /// Takes a mark before the host synchronises with `event`.
    pub fn mark_event(&self, event: EventHandle) -> Mark {
        self.books_to_read()
            .map(|heap| Mark::of(heap.event_clock(event)))
            .unwrap_or_default()
    }

    /// Takes a mark before the host synchronises with the whole device.
    pub fn mark_all(&self) -> Mark {
        self.books_to_read()
            .map(|mut heap| Mark {
                replayed: heap.replayed(),
                whole: true,
                ..Mark::of(heap.clock_of_all())
            })
            .unwrap_or_default()
    }

    /// The user recorded `event` on the stream that `mark` was taken of before.
    pub fn event_recorded(&self, event: EventHandle, mark: Mark) {
        if let Ok(mut heap) = self.books_to_read() {
            heap.remember_event(event, mark.clock);
        }
    }

    /// The user made `stream` wait for the event that `mark` was taken of before.
    pub fn stream_waits(&self, stream: StreamHandle, mark: Mark) {
        let Ok(stream @ Named { line: Some(_), .. }) = self.name(stream) else {
            return;
        };
        // what a stream waits for is no reason to end a replay
        let Ok(mut heap) = self.books_to_read() else {
            return;
        };
        if heap.reuse.event_dependencies && !mark.clock.is_empty() {
            if heap.replay.is_on() && stream.line.is_some_and(|line| heap.known_stream(line).is_none()) {
                heap.make_up(); // one that comes to be known is no guest of it
            }
            let index = index(&mut heap, stream);
            heap.learn(index, &mark.clock);
        }
    }

    /// The event handle is no longer one, or nobody knows what its last record was behind.
    pub fn event_destroyed(&self, event: EventHandle) {
        if let Ok(mut heap) = self.books_to_read() {
            heap.forget_event(event);
        }
    }

    /// The synchronise that `mark` was taken for has returned. Applies the release threshold.
    pub fn synchronized(&self, mark: Mark) {
        if self.is_replaying() {
            // the books have nothing of what the stream has freed since
            if let (Ok(mut heap), Some(replayed)) = (self.books_to_read(), mark.replayed) {
                heap.synchronized_with(mark.stream, replayed);
            }
            return;
        }
        let Ok(mut heap) = self.books() else { return };
        let tidies = mark.whole && heap.has_several_streams();
        heap.complete(&mark.clock, &mut self.stale.lock());
        heap.absorb_synchronized();
        if tidies {
            heap.tidy();
        } else if heap.is_above_threshold() {
            // not at frees, which would go through all slabs, and after which a stream's next small block would need a page
            heap.flush(Whose::All, |_| false);
            heap.share_slabs();
        }
        self.keep_to_threshold(heap);
    }

    /// Records an event if one is due, in a call that names the stream. `due` was read under the heap's lock,
    /// so the event covers it.
    #[inline]
    pub(super) fn record_if(&self, due: Option<u64>, stream: &Named, index: u32) {
        if let (Some(covers), Some(_)) = (due, stream.line) {
            self.record(covers, stream, index);
        }
    }

    #[cold]
    fn record(&self, covers: u64, stream: &Named, index: u32) {
        match self.backend.record(stream.handle) {
            Ok(event) => self.add_event(event, covers, index),
            // the frees wait for the next one, or for a synchronise: nothing is lost
            Err(_) => {
                if let Ok(mut heap) = self.books_to_read() {
                    heap.event_failed(index, covers);
                }
            }
        }
    }

    /// Adds an event that was recorded after `covers` was read of a stream.
    pub(super) fn add_event(&self, event: Event, covers: u64, index: u32) {
        if self.note_event(event, covers, index)
            && let Some(_grow) = Turn::try_take(self)
        {
            self.forget_stale();
        }
    }

    /// The same, without forgetting any. Are there many to forget?
    fn note_event(&self, event: Event, covers: u64, index: u32) -> bool {
        // it may be a replay's
        let Ok(mut heap) = self.books_to_read() else {
            // nobody has heard of the event, and the end has been through with the others
            if event != Event::COMPLETE && self.backend.usable() {
                self.backend.forget(event);
            }
            return false;
        };
        let mut stale = self.stale.lock();
        heap.add_event(index, event, covers, &mut stale);
        stale.len() >= STALE
    }

    /// Forgets the events kept for that. The caller holds `grow`.
    pub(super) fn forget_stale(&self) {
        // one at a time, so that nobody waits for the driver here
        while let Some(event) = { self.stale.lock().pop() } {
            if event != Event::COMPLETE {
                self.backend.forget(event);
            }
        }
    }

    /// Records an event on each stream within reach, of those `which` are asked for, that has freed something no event covers. Returns
    /// whether anything was recorded. The caller holds `grow`, which keeps a stream from being given up meanwhile.
    pub(super) fn cover(&self, which: impl Fn(u32) -> bool) -> bool {
        let Ok(heap) = self.books() else { return false };
        drop(heap);
        self.cover_but_replayed(which)
    }

    /// The same, though a replay may have freed what the books know nothing of: that is not covered.
    pub(super) fn cover_but_replayed(&self, which: impl Fn(u32) -> bool) -> bool {
        let Ok(mut heap) = self.books_to_read() else {
            return false;
        };
        let uncovered = heap.uncovered(which);
        drop(heap);
        let recorded = uncovered.into_iter().filter(|&stream| self.record_on(stream));
        recorded.count() > 0
    }

    /// Records an event on a stream within reach. The caller holds `grow`.
    pub(super) fn record_on(&self, (index, line, name, covers): Uncovered) -> bool {
        // the context that makes a built-in stream this one may not be current
        if self.backend.timeline(name) != Ok(line) {
            return false;
        }
        let Ok(event) = self.backend.record(name) else {
            return false;
        };
        if self.note_event(event, covers, index) {
            self.forget_stale();
        }
        true
    }

    /// Looks which events are complete, and makes what they cover everybody's, but for what the stream that `asks` has
    /// freed; at its events only if its `own` matter. If it is `patient` it gives the streams the moment that it takes to
    /// notice that there was no work. The caller holds `grow`.
    pub(super) fn poll(&self, asks: Option<u32>, own: bool, patient: bool) -> bool {
        let notice = if patient { NOTICE } else { Duration::ZERO };
        let (done, _) = self.look(asks, own, notice);
        self.confirm(&done, asks)
    }

    /// Covers all that was freed, and makes what is complete everybody's. The caller holds `grow`.
    pub(super) fn poll_all(&self) {
        let recorded = self.cover(|_| true);
        self.poll(None, true, recorded);
    }

    /// The same at a rest, where streams wait for each other: covers all that was freed, and makes it everybody's if all of it is complete.
    /// Which of it is, where not all is, is chance. The caller holds `grow`.
    pub(super) fn poll_whole(&self) -> bool {
        let patience = self.books().map(|heap| heap.sharing.patience_at_rest());
        let Ok(Some(times)) = patience else { return false };
        self.cover(|_| true);
        let (done, whole) = self.look(None, true, NOTICE * times);
        if !whole && let Ok(mut heap) = self.books() {
            heap.sharing.late_at_rest();
        }
        whole && self.confirm(&done, None)
    }

    /// What is complete by now, or so long from now, and whether that is all that was recorded on the streams looked at.
    fn look(&self, asks: Option<u32>, own: bool, notice: Duration) -> (Clock, bool) {
        let mut done = Clock::new();
        let Ok(heap) = self.books_to_read() else {
            return (done, false);
        };
        let streams = heap.streams().filter(|&stream| own || asks != Some(stream));
        let waiting: Vec<(u32, bool, Vec<_>)> = streams
            .map(|stream| {
                let arena = heap.arena(stream);
                // the stream that asks has likely got work by now, unless the event was recorded just for this
                let patient = !notice.is_zero()
                    && (asks != Some(stream) || arena.reach.is_some())
                    && (asks.is_none() || arena.patience.waits());
                (stream, patient, arena.events.iter().copied().collect())
            })
            .collect();
        drop(heap);
        let start = self.backend.now();
        let mut whole = true;
        let mut looks = Vec::new();
        for (stream, patient, events) in waiting {
            let Some((&(event, newest), older)) = events.split_last() else {
                continue;
            };
            let notice = if patient { notice } else { Duration::ZERO };
            let answer = self.query_until(event, start + notice);
            if asks.is_some() {
                looks.push((stream, answer != Ok(true)));
            }
            if answer == Ok(true) {
                done.push((stream, newest)); // when the newest is complete, all are
                continue;
            }
            whole = false;
            let complete = |event: &(Event, u64)| self.backend.query(event.0) == Ok(true);
            // where the oldest is not complete none is, and that is the rule where the host is ahead
            if let Some((oldest, between)) = older.split_first()
                && complete(oldest)
            {
                let more = between.partition_point(complete);
                done.push((stream, older[more].1));
            }
        }
        if !looks.is_empty()
            && let Ok(mut heap) = self.books()
        {
            for (stream, in_vain) in looks {
                heap.looked(stream, in_vain);
            }
        }
        (done, whole)
    }

    /// Is the event complete now, or so soon? It is looked at once more when the time is over: the thread may not have run meanwhile, and
    /// a stream without work not be taken for one with work because of that.
    fn query_until(&self, event: Event, time: Instant) -> Result<bool, BackendError> {
        loop {
            let over = self.backend.now() >= time;
            match self.backend.query(event) {
                Ok(false) if !over => std::hint::spin_loop(),
                answer => return answer,
            }
        }
    }

    /// How far these streams have come, if what was recorded on them last, or for a replay, is complete within the moment that it takes to
    /// notice that there was no work. The caller holds `grow`, which keeps the events.
    pub(super) fn wait_a_moment_for(&self, streams: &[u32], notice: Duration) -> Clock {
        let Ok(heap) = self.books_to_read() else {
            return Clock::new();
        };
        let event = |&stream: &u32| Some((stream, heap.awaited_event(stream)?));
        let events: Vec<_> = streams.iter().filter_map(event).collect();
        drop(heap);
        let start = self.backend.now();
        let is_complete = |event: Event| self.query_until(event, start + notice) == Ok(true);
        events
            .into_iter()
            .filter(|&(_, (event, _))| is_complete(event))
            .map(|(stream, (_, covers))| (stream, covers))
            .collect()
    }

    /// The host knows that this moment has passed. The caller holds `grow`.
    pub(super) fn confirm(&self, done: &Clock, asks: Option<u32>) -> bool {
        let Ok(mut heap) = self.books() else { return false };
        heap.complete(done, &mut self.stale.lock());
        let any = heap.absorb_complete(asks);
        drop(heap);
        self.forget_stale();
        any
    }

    /// Beside a replay: looks what held-back blocks are complete, and lets guests have theirs. The caller holds `grow`.
    pub(super) fn confirm_for_guests(&self) {
        let (done, _) = self.look(None, true, Duration::ZERO);
        let Ok(mut heap) = self.books_to_read() else {
            return;
        };
        heap.complete(&done, &mut self.stale.lock());
        if heap.replay.is_on() {
            heap.release_limbo();
        }
        drop(heap);
        self.forget_stale();
    }

    /// Waits for the newest event of each stream: all that can be waited for while a capture runs. The caller holds `grow`,
    /// which keeps the events.
    pub(super) fn wait_for_events(&self) -> bool {
        let Ok(heap) = self.books() else { return false };
        let newest = heap.streams().filter_map(|stream| {
            let &(event, covers) = heap.arena(stream).events.back()?;
            Some((event, (stream, covers)))
        });
        let newest: Vec<_> = newest.collect();
        drop(heap);
        let done = newest
            .into_iter()
            .filter(|(event, _)| *event == Event::COMPLETE || self.backend.synchronize(*event).is_ok());
        let done = done.map(|(_, moment)| moment).collect();
        self.confirm(&done, None)
    }
}
