//! Counts the calls that reach a backend. Relaxed counters: each is exact, together they are a snapshot.

use super::{Access, Backend, BackendError, Event, process};
use crate::base::units::{Addr, CaptureId, EventHandle, PageHandle, StreamHandle, StreamId, Timeline};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A backend whose calls are counted.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Backend>,
    /// `reserve` and `unreserve`.
    pub ranges: AtomicU64,
    /// `create`.
    pub creates: AtomicU64,
    /// `release`.
    pub releases: AtomicU64,
    /// `map`.
    pub maps: AtomicU64,
    /// `unmap`.
    pub unmaps: AtomicU64,
    /// `record`, `query`, `wait`, `synchronize` and `synchronize_all`.
    pub events: AtomicU64,
    /// `export`.
    pub exports: AtomicU64,
}

impl Metered {
    /// Counts the calls to `inner` from now on.
    pub fn new(inner: Arc<dyn Backend>) -> Metered {
        let zero = || AtomicU64::new(0);
        Metered {
            inner,
            ranges: zero(),
            creates: zero(),
            releases: zero(),
            maps: zero(),
            unmaps: zero(),
            events: zero(),
            exports: zero(),
        }
    }

    /// The backend whose calls are counted.
    pub fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    /// All calls.
    pub fn total(&self) -> u64 {
        [
            &self.ranges,
            &self.creates,
            &self.releases,
            &self.maps,
            &self.unmaps,
            &self.events,
            &self.exports,
        ]
        .iter()
        .map(|count| count.load(Relaxed))
        .sum()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Backend for Metered {
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
    #[inline]
    fn usable(&self) -> bool {
        // where that can change, the process was disturbed then
        !process::disturbed() || self.inner.usable()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        count(&self.ranges);
        self.inner.reserve(bytes)
    }
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        count(&self.ranges);
        self.inner.unreserve(at, bytes)
    }
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        count(&self.creates);
        self.inner.create(bytes)
    }
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        count(&self.releases);
        self.inner.release(page, bytes)
    }
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        count(&self.maps);
        self.inner.map(at, page, bytes)
    }
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        count(&self.unmaps);
        self.inner.unmap(at, bytes)
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.inner.timeline(stream)
    }
    fn is_still(&self, stream: StreamHandle, line: Timeline) -> bool {
        self.inner.is_still(stream, line)
    }
    fn is_inert(&self, stream: StreamId) -> bool {
        self.inner.is_inert(stream)
    }
    fn is_built_in(&self, stream: StreamHandle) -> bool {
        self.inner.is_built_in(stream)
    }
    fn is_of_thread(&self, stream: StreamHandle) -> bool {
        self.inner.is_of_thread(stream)
    }
    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        count(&self.events);
        self.inner.has_work(stream, line)
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        count(&self.events);
        self.inner.record(stream)
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        count(&self.events);
        self.inner.query(event)
    }
    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        count(&self.events);
        self.inner.wait(stream, event)
    }
    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        count(&self.events);
        self.inner.synchronize(event)
    }
    fn forget(&self, event: Event) {
        self.inner.forget(event);
    }
    fn synchronize_all(&self) -> Result<(), BackendError> {
        count(&self.events);
        self.inner.synchronize_all()
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
    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        count(&self.creates);
        self.inner.create_at(bytes)
    }
    fn set_access(&self, device: i32, access: Access) -> Result<(), BackendError> {
        self.inner.set_access(device, access)
    }
    fn access(&self, device: i32) -> Result<Access, BackendError> {
        self.inner.access(device)
    }
    fn device_number(&self) -> Result<[u64; 2], BackendError> {
        self.inner.device_number()
    }
    fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        count(&self.exports);
        self.inner.export(page)
    }
    fn export_event(&self, event: EventHandle) -> Result<(u64, [u64; 8]), BackendError> {
        count(&self.events);
        self.inner.export_event(event)
    }
    fn event_file(&self, event: EventHandle, number: u64) -> Result<Option<Option<OwnedFd>>, BackendError> {
        self.inner.event_file(event, number)
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
    fn abandon(&self) {
        self.inner.abandon();
    }
    fn close(&self) {
        self.inner.close();
    }
}
