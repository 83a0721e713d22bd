//! A decorator for tests: makes chosen calls of a backend fail, plays a device that is full, and keeps the
//! books, so that a test can show that everything was given back and no limit was ever exceeded.
//!
//! Invariants: the books change exactly when the inner backend's state does; a call that is made to fail
//! never reaches the inner backend. An inner backend that accepts a call which breaks the contract causes
//! a panic.
//!
//! Locks: `memory` is held across memory calls, so the books are exact at every moment; it is not held
//! across stream calls, which may block. `plans` is taken alone, for a few instructions.

use super::call::{Call, Calls};
use super::ledger::Ledger;
use super::process;
use super::{Backend, BackendError, Event};
use crate::base::units::{Addr, CaptureId, PageHandle, StreamHandle, StreamId, Timeline};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug)]
struct Plan {
    /// `None`: any kind.
    kind: Option<Call>,
    /// Matching calls that still succeed.
    spared: u64,
    /// Fail once, or from then on.
    for_good: bool,
    error: BackendError,
}

#[derive(Debug)]
struct Memory {
    books: Ledger,
    capacity: u64,
}

/// A backend whose calls can be made to fail.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Backend>,
    calls: Calls,
    failed: AtomicU64,
    gone: AtomicBool,
    calls_when_gone: AtomicU64,
    plans: Mutex<Vec<Plan>>,
    memory: Mutex<Memory>,
    events: Mutex<HashSet<Event>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters into the books what the inner backend has accepted.
fn enter<T>(entry: Result<T, String>) -> T {
    entry.unwrap_or_else(|why| panic!("the backend accepted a call that breaks the contract: {why}"))
}

impl Faulty {
    /// A decorator that lets every call through.
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Faulty> {
        let mut books = Ledger::new(inner.granularity());
        books.limit_mappings_of_a_page(inner.mappings_of_a_page());
        Arc::new(Faulty {
            inner,
            calls: Calls::default(),
            failed: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            calls_when_gone: AtomicU64::new(0),
            plans: Mutex::default(),
            memory: Mutex::new(Memory {
                books,
                capacity: u64::MAX,
            }),
            events: Mutex::default(),
        })
    }

    fn plan(&self, kind: Option<Call>, n: u64, for_good: bool, error: BackendError) {
        assert!(n > 0, "the next call is number 1");
        lock(&self.plans).push(Plan {
            kind,
            spared: n - 1,
            for_good,
            error,
        });
    }

    /// The `n`-th call from now on (1: the next), of whatever kind, fails.
    pub fn fail_nth(&self, n: u64, error: BackendError) {
        self.plan(None, n, false, error);
    }

    /// The `n`-th call of this kind from now on (1: the next) fails.
    pub fn fail_nth_of(&self, kind: Call, n: u64, error: BackendError) {
        self.plan(Some(kind), n, false, error);
    }

    /// Every call from the `n`-th from now on fails, until [`Faulty::heal`].
    pub fn fail_from(&self, n: u64, error: BackendError) {
        self.plan(None, n, true, error);
    }

    /// Every call of this kind from the `n`-th from now on fails, until [`Faulty::heal`].
    pub fn fail_from_of(&self, kind: Call, n: u64, error: BackendError) {
        self.plan(Some(kind), n, true, error);
    }

    /// Drops all failures that were planned. The capacity stays.
    pub fn heal(&self) {
        lock(&self.plans).clear();
    }

    /// The device has this much physical memory: a `create` beyond it fails with `OutOfMemory`.
    /// `u64::MAX`: no limit.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.memory).capacity = bytes;
    }

    /// The driver goes away: `usable` is false, and every call returns `Unloaded` and is counted in
    /// [`Faulty::calls_when_gone`].
    pub fn unload(&self) {
        self.gone.store(true, Ordering::SeqCst);
        process::disturb();
    }

    /// Calls made after [`Faulty::unload`], `forget` included. A pool makes none.
    pub fn calls_when_gone(&self) -> u64 {
        self.calls_when_gone.load(Ordering::Relaxed)
    }

    /// Calls of one kind so far, failed ones included.
    pub fn calls(&self, kind: Call) -> u64 {
        self.calls.of(kind)
    }

    /// Calls of all kinds so far, failed ones included.
    pub fn total_calls(&self) -> u64 {
        self.calls.total()
    }

    /// Calls that were made to fail by a plan or the capacity.
    pub fn failed_calls(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Physical bytes that exist.
    pub fn created_bytes(&self) -> u64 {
        lock(&self.memory).books.created_bytes()
    }

    /// The most physical bytes that ever existed at once.
    pub fn peak_created_bytes(&self) -> u64 {
        lock(&self.memory).books.peak_created_bytes()
    }

    /// Pages that exist.
    pub fn pages(&self) -> u64 {
        lock(&self.memory).books.pages()
    }

    /// Mappings that exist.
    pub fn mappings(&self) -> u64 {
        lock(&self.memory).books.mappings()
    }

    /// Reservations that exist.
    pub fn reservations(&self) -> u64 {
        lock(&self.memory).books.reservations()
    }

    /// Bytes of address space reserved.
    pub fn reserved_bytes(&self) -> u64 {
        lock(&self.memory).books.reserved_bytes()
    }

    /// Events recorded and not yet forgotten; [`Event::COMPLETE`] is none.
    pub fn events(&self) -> u64 {
        lock(&self.events).len() as u64
    }

    /// Checks that nothing is left: no reservation, page, mapping or event.
    ///
    /// # Panics
    /// When something is left, naming what.
    pub fn assert_empty(&self) {
        let memory = lock(&self.memory);
        memory.books.validate();
        let left = (
            memory.books.reservations(),
            memory.books.pages(),
            memory.books.mappings(),
        );
        assert_eq!(left, (0, 0, 0), "reservations, pages, mappings left behind");
        drop(memory);
        assert_eq!(self.events(), 0, "events left behind");
    }

    /// Counts a call and decides whether it fails.
    fn call(&self, kind: Call) -> Result<(), BackendError> {
        self.calls.add(kind);
        if self.gone.load(Ordering::SeqCst) {
            self.calls_when_gone.fetch_add(1, Ordering::Relaxed);
            return Err(BackendError::Unloaded);
        }
        let mut plans = lock(&self.plans);
        let mut failure = None;
        plans.retain_mut(|plan| {
            if plan.kind.is_some_and(|wanted| wanted != kind) {
                return true;
            }
            if plan.spared > 0 {
                plan.spared -= 1;
                return true;
            }
            failure.get_or_insert_with(|| plan.error.clone());
            plan.for_good
        });
        drop(plans);
        failure.map_or(Ok(()), |error| self.fail(error))
    }

    fn has_room(&self, memory: &Memory, bytes: u64) -> Result<(), BackendError> {
        let (held, capacity) = (memory.books.created_bytes(), memory.capacity);
        if held.saturating_add(bytes) > capacity {
            return self.fail(BackendError::OutOfMemory(format!(
                "create of {bytes} B: {held} B of a capacity of {capacity} B are taken"
            )));
        }
        Ok(())
    }

    fn fail<T>(&self, error: BackendError) -> Result<T, BackendError> {
        self.failed.fetch_add(1, Ordering::Relaxed);
        Err(error)
    }
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn mapping_limit(&self) -> u64 {
        self.inner.mapping_limit()
    }

    fn mappings_of_a_page(&self) -> usize {
        self.inner.mappings_of_a_page()
    }

    fn usable(&self) -> bool {
        !self.gone.load(Ordering::SeqCst) && self.inner.usable()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.call(Call::Reserve)?;
        let mut memory = lock(&self.memory);
        let at = self.inner.reserve(bytes)?;
        enter(memory.books.reserve(at, bytes));
        Ok(at)
    }

    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.call(Call::Unreserve)?;
        let mut memory = lock(&self.memory);
        self.inner.unreserve(at, bytes)?;
        enter(memory.books.unreserve(at, bytes));
        Ok(())
    }

    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.call(Call::Create)?;
        let mut memory = lock(&self.memory);
        self.has_room(&memory, bytes)?;
        let page = self.inner.create(bytes)?;
        enter(memory.books.create(page, bytes));
        Ok(page)
    }

    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.call(Call::Release)?;
        let mut memory = lock(&self.memory);
        self.inner.release(page, bytes)?;
        enter(memory.books.release(page, bytes));
        Ok(())
    }

    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.call(Call::Map)?;
        let mut memory = lock(&self.memory);
        self.inner.map(at, page, bytes)?;
        enter(memory.books.map(at, page, bytes));
        Ok(())
    }

    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.call(Call::Unmap)?;
        let mut memory = lock(&self.memory);
        self.inner.unmap(at, bytes)?;
        enter(memory.books.unmap(at, bytes));
        Ok(())
    }

    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.call(Call::Timeline)?;
        self.inner.timeline(stream)
    }

    fn is_inert(&self, stream: StreamId) -> bool {
        self.inner.is_inert(stream)
    }

    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        self.call(Call::Query).ok()?;
        self.inner.has_work(stream, line)
    }

    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        self.call(Call::Record)?;
        let event = self.inner.record(stream)?;
        if event != Event::COMPLETE {
            lock(&self.events).insert(event);
        }
        Ok(event)
    }

    fn query(&self, event: Event) -> Result<bool, BackendError> {
        self.call(Call::Query)?;
        self.inner.query(event)
    }

    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        self.call(Call::Wait)?;
        self.inner.wait(stream, event)
    }

    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        self.call(Call::Synchronize)?;
        self.inner.synchronize(event)
    }

    fn forget(&self, event: Event) {
        if self.gone.load(Ordering::SeqCst) {
            self.calls_when_gone.fetch_add(1, Ordering::Relaxed);
            return;
        }
        lock(&self.events).remove(&event);
        self.inner.forget(event);
    }

    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.call(Call::SynchronizeAll)?;
        self.inner.synchronize_all()
    }

    fn close(&self) {
        self.inner.close();
    }

    fn watch_graph(&self, stream: StreamHandle, capture: CaptureId) -> Result<(), BackendError> {
        self.inner.watch_graph(stream, capture)
    }

    fn graphs_gone(&self, each: &mut dyn FnMut(CaptureId)) {
        self.inner.graphs_gone(each);
    }

    fn blocks_in_one_page(&self) -> bool {
        self.inner.blocks_in_one_page()
    }

    fn pages_have_addresses(&self) -> bool {
        self.inner.pages_have_addresses()
    }

    fn device_number(&self) -> Result<[u64; 2], BackendError> {
        self.call(Call::DeviceNumber)?;
        self.inner.device_number()
    }

    fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        self.call(Call::Export)?;
        self.inner.export(page)
    }

    fn import(&self, file: OwnedFd, bytes: u64) -> Result<PageHandle, BackendError> {
        self.call(Call::Import)?;
        let mut memory = lock(&self.memory);
        let page = self.inner.import(file, bytes)?;
        enter(memory.books.create(page, bytes));
        Ok(page)
    }

    fn watches_blocks(&self) -> bool {
        self.inner.watches_blocks()
    }

    fn block_allocated(&self, at: Addr, bytes: u64) {
        self.inner.block_allocated(at, bytes);
    }

    fn block_freed(&self, at: Addr) {
        self.inner.block_freed(at);
    }

    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        self.call(Call::Create)?;
        let mut memory = lock(&self.memory);
        self.has_room(&memory, bytes)?;
        let (at, page) = self.inner.create_at(bytes)?;
        enter(memory.books.create_at(at, page, bytes));
        Ok((at, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::counting::Counting;

    const G: u64 = 2 << 20;

    fn faulty() -> Arc<Faulty> {
        Faulty::new(Counting::new(true))
    }

    fn boom() -> BackendError {
        BackendError::Other("boom".into())
    }

    #[test]
    fn fails_the_nth_call_once_and_changes_nothing() {
        let b = faulty();
        b.fail_nth(3, boom());
        let at = b.reserve(4 * G).unwrap();
        let page = b.create(G).unwrap();
        assert_eq!(b.map(at, page, G), Err(boom()));
        assert_eq!((b.mappings(), b.calls(Call::Map), b.failed_calls()), (0, 1, 1));
        b.map(at, page, G).unwrap();
        b.fail_nth_of(Call::Unmap, 2, boom());
        b.map(Addr(at.0 + G), page, G).unwrap();
        b.unmap(at, G).unwrap();
        assert_eq!(b.unmap(Addr(at.0 + G), G), Err(boom()));
        assert_eq!(b.mappings(), 1);
        b.unmap(Addr(at.0 + G), G).unwrap();
        b.release(page, G).unwrap();
        b.unreserve(at, 4 * G).unwrap();
        b.assert_empty();
        assert_eq!(b.total_calls(), 10);
    }

    #[test]
    fn fails_from_a_call_on_until_healed() {
        let b = faulty();
        b.fail_from_of(Call::Create, 2, boom());
        let first = b.create(G).unwrap();
        assert_eq!(b.create(G), Err(boom()));
        assert_eq!(b.create(G), Err(boom()));
        b.reserve(G).unwrap();
        b.heal();
        b.create(G).unwrap();
        b.fail_from(1, BackendError::Lost("gone".into()));
        assert_eq!(b.release(first, G), Err(BackendError::Lost("gone".into())));
        assert_eq!(b.synchronize_all(), Err(BackendError::Lost("gone".into())));
    }

    #[test]
    fn a_full_device_refuses_and_the_peak_is_remembered() {
        let b = faulty();
        b.set_capacity(3 * G);
        let two = b.create(2 * G).unwrap();
        assert!(matches!(b.create(2 * G), Err(BackendError::OutOfMemory(_))));
        let one = b.create(G).unwrap();
        b.release(two, 2 * G).unwrap();
        assert_eq!(
            (b.created_bytes(), b.peak_created_bytes(), b.pages()),
            (G, 3 * G, 1)
        );
        b.release(one, G).unwrap();
        assert_eq!((b.created_bytes(), b.peak_created_bytes()), (0, 3 * G));
    }

    #[test]
    fn calls_after_unload_are_counted() {
        let b = faulty();
        assert!(b.usable());
        b.unload();
        assert!(!b.usable());
        assert_eq!(b.calls_when_gone(), 0);
        assert_eq!(b.reserve(G), Err(BackendError::Unloaded));
        b.forget(Event(7));
        assert_eq!(b.calls_when_gone(), 2);
    }

    #[test]
    #[should_panic(expected = "reservations, pages, mappings left behind")]
    fn notices_what_was_not_given_back() {
        let b = faulty();
        b.create(G).unwrap();
        b.assert_empty();
    }
}
