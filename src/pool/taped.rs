//! Calls that are recorded, or answered as in the round before (`alloc::replay`): what of that concerns the pool.
//!
//! Lock: the caller holds `heap`.

use super::order::NOTICE;
use super::turn::Turn;
use super::{Named, Pool, ThreadCache};
use crate::alloc::cache::Cache;
use crate::alloc::heap::Heap;
use crate::alloc::look::Few;
use crate::alloc::order::Uncovered;
use crate::alloc::waited::WaitFor;
use crate::backend::Backend;
use crate::base::lock::RankedGuard;
use crate::base::units::Addr;
use crate::config::MemoryKind;
use std::sync::atomic::Ordering;

impl Pool {
    /// Does the pool answer the program's calls as in the round before?
    pub fn is_replaying(&self) -> bool {
        self.tape.is_on()
    }

    /// Does it keep apart what threads have freed that each make their own rounds (`alloc::partition`)?
    pub fn is_partitioned(&self) -> bool {
        self.books_to_read()
            .is_ok_and(|heap| heap.sharing.is_by_threads())
    }

    /// May calls be recorded, to be answered like that?
    #[inline(always)]
    pub(super) fn may_tape(&self) -> bool {
        self.importer.is_none() && self.config.memory != MemoryKind::Pinned
    }

    /// An allocation while calls are recorded or replayed.
    #[cold]
    pub(super) fn alloc_taped<'a>(
        &'a self,
        mut heap: RankedGuard<'a, Heap>,
        own: Option<&ThreadCache>,
        (bytes, align): (u64, u64),
        stream: &Named,
    ) -> (RankedGuard<'a, Heap>, Option<Addr>) {
        if self.ended.load(Ordering::Relaxed) {
            return (heap, None);
        }
        if let Some(guest) = self.guest(&mut heap, own, stream) {
            return self.alloc_as_guest(heap, guest, (bytes, align), stream);
        }
        let own = own.filter(|own| align == 0 && own.is_of(stream) && !own.is_ended());
        let own = own.map(|own| &own.cache);
        if let Some(own) = own
            && heap.replay.is_on()
        {
            heap = self.see_idle(heap, own, bytes);
        }
        let ample = |heap: &Heap| self.ample_for(heap);
        let settled = || !self.grow.is_taken();
        let call = |heap: &mut Heap| heap.alloc_taped(own, bytes, &ample, &settled);
        let mut at = call(&mut heap);
        if at.is_none() && heap.replay.is_on() {
            // it may have begun just now
            if let Some(own) = own {
                heap = self.see_takeover(heap, own, bytes, stream);
            }
            at = Pool::taped(&mut heap, call);
        }
        (heap, at.map(Addr))
    }

    /// The next call of a replay may take memory over from streams that are not known to be done with it. One that has no work need not be
    /// given an event to say so.
    fn see_idle<'a>(
        &'a self,
        mut heap: RankedGuard<'a, Heap>,
        own: &Cache,
        bytes: u64,
    ) -> RankedGuard<'a, Heap> {
        if heap.replays_by_waits() || !heap.reuse.opportunistic {
            return heap;
        }
        let awaited = heap.awaited(own, bytes);
        if awaited.is_empty() {
            return heap;
        }
        // which keeps a stream from being given up meanwhile
        let Some(_grow) = Turn::try_take(self) else {
            return heap;
        };
        let uncovered = heap.cover_for_takeover(&awaited);
        let start = heap.was_at_work_before_takeover().then(|| self.backend.now());
        drop(heap);
        let work = |&(_, line, name, _): &Uncovered| self.backend.has_work(name, line);
        let answers: Few<Option<bool>> = uncovered.iter().map(work).collect();
        let idle = uncovered
            .iter()
            .zip(&answers)
            .filter(|&(_, &answer)| answer == Some(false));
        let done: Few<(u32, u64)> = idle.map(|(&(index, _, _, covers), _)| (index, covers)).collect();
        heap = self.books_as_they_are();
        heap.complete(&done, &mut self.stale.lock());
        if done.len() == awaited.len() {
            heap.looked_for_takeover(false);
        }
        if answers.contains(&Some(true)) {
            heap.is_at_work_before_takeover(start.unwrap_or_else(|| self.backend.now()));
        }
        heap
    }

    /// The next call of a replay may take memory over from streams that are not known to be done with it: looks whether they are, or has this
    /// one wait for them.
    fn see_takeover<'a>(
        &'a self,
        mut heap: RankedGuard<'a, Heap>,
        own: &Cache,
        bytes: u64,
        stream: &Named,
    ) -> RankedGuard<'a, Heap> {
        let by_waits = heap.replays_by_waits();
        let may = by_waits || heap.reuse.opportunistic;
        if !may || heap.awaited(own, bytes).is_empty() || heap.waits_too_much() {
            return heap;
        }
        drop(heap);
        let _grow = Turn::take(self);
        heap = self.books_as_they_are();
        // another thread may have had its turn
        let awaited = heap.awaited(own, bytes);
        let uncovered = heap.cover_for_takeover(&awaited);
        let times = heap.patience_for_takeover();
        drop(heap);
        for stream in uncovered {
            self.record_on(stream);
        }
        if !by_waits {
            self.look_for_takeover(&awaited, times);
        }
        self.wait_for_takeover(own, bytes, stream);
        self.forget_stale();
        self.books_as_they_are()
    }

    /// Are these streams done with it? So many times as long as usual that may take. The caller holds `grow`.
    fn look_for_takeover(&self, awaited: &[u32], times: u32) {
        let start = self.backend.now();
        let done = self.wait_a_moment_for(awaited, NOTICE * times);
        let end = self.backend.now();
        let mut heap = self.books_as_they_are();
        heap.looked_for_takeover(times > 1 && end - start > NOTICE);
        heap.waited_for_takeover(end);
        heap.complete(&done, &mut self.stale.lock());
    }

    /// For those that are not this one's stream waits, if it may. The caller holds `grow`.
    fn wait_for_takeover(&self, own: &Cache, bytes: u64, stream: &Named) {
        let mut heap = self.books_as_they_are();
        let late = heap.awaited(own, bytes);
        if late.is_empty() {
            return;
        }
        if !heap.may_wait_in_replay() {
            heap.replay.recording.looked_in_vain();
            return;
        }
        let events = heap.events_for_takeover(&late);
        drop(heap);
        let waits = |wait: &WaitFor| self.backend.wait(stream.handle, wait.event).is_ok();
        let events: Vec<WaitFor> = events.into_iter().filter(waits).collect();
        let mut heap = self.books_as_they_are();
        for wait in events {
            heap.waits_in_replay(own, wait);
        }
    }

    /// Makes a call that may be answered from the tape. If it is not the books make up for what was, and it may be recorded instead.
    pub(super) fn taped<R>(heap: &mut Heap, call: impl Fn(&mut Heap) -> Option<R>) -> Option<R> {
        loop {
            let answer = call(heap);
            if answer.is_some() || !heap.replay.is_on() {
                return answer;
            }
            heap.make_up();
            if heap.replay.is_watching() {
                return None;
            }
        }
    }

    /// One that is recorded, and that no cache served, may get the block of the round before.
    #[inline(always)]
    pub(super) fn alloc_before(
        &self,
        heap: &mut Heap,
        own: Option<&ThreadCache>,
        bytes: u64,
        align: u64,
    ) -> Option<u64> {
        let own = own.filter(|_| !heap.replay.is_watching() && align == 0)?;
        heap.alloc_before(&own.cache, bytes)
    }

    /// One was served that may have been recorded.
    #[inline(always)]
    pub(super) fn note_alloc(
        &self,
        heap: &mut Heap,
        own: Option<&ThreadCache>,
        index: u32,
        at: u64,
        bytes: u64,
    ) {
        if heap.replay.is_watching() {
            return;
        }
        match own {
            _ if heap.is_guest(index) => heap.note_guest_alloc(),
            Some(own) => heap.note_alloc(&own.cache, at, bytes),
            None => {}
        }
    }

    /// A free while calls are recorded or replayed: the block's bytes if that is all there is to do, but for an event that covers this
    /// number of the stream's.
    #[cold]
    pub(super) fn free_taped(
        &self,
        heap: &mut Heap,
        own: Option<&ThreadCache>,
        at: Addr,
        stream: &Named,
    ) -> Option<(u64, Option<(u64, u32)>)> {
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(guest) = self.guest(heap, own, stream) {
            let (bytes, due) = self.free_as_guest(heap, guest, at)?;
            return Some((bytes, due.map(|number| (number, guest))));
        }
        let own = own.filter(|own| own.is_of(stream) && !own.is_ended());
        let own = own.map(|own| &own.cache);
        let (bytes, due) = Pool::taped(heap, |heap| heap.free_taped(own, at.0))?;
        Some((bytes, own.and_then(|own| Some((due?, own.arena)))))
    }

    /// The same for the frees of a batch while calls are replayed: all of them, or none.
    #[cold]
    pub(super) fn free_batch_taped(
        &self,
        heap: &mut Heap,
        own: Option<&ThreadCache>,
        blocks: &[Addr],
        stream: &Named,
    ) -> Option<Option<u64>> {
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        let own = own.filter(|own| own.is_of(stream) && !own.is_ended());
        let own = own.map(|own| &own.cache);
        // recorded they are one by one, by who called this
        Pool::taped(heap, |heap| heap.free_batch_taped(own, blocks))
    }
}
