//! Streams whose events are complete only some time after they were recorded, over the counting backend. Nothing else is queued
//! on them. Time is that of the machine, and for each call what it took on an H100 (docs/design.md, section 7) more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir::backend::call::{Call, Calls};
use weir::backend::counting::Counting;
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{Addr, PageHandle, StreamHandle, StreamId, Timeline};

/// Streams that are told apart.
const STREAMS: usize = 64;

/// Such a backend.
#[derive(Debug)]
pub struct Late {
    pages: Arc<Counting>,
    /// How long after its record an event is complete, in nanoseconds.
    delay: u64,
    start: Instant,
    /// What calls took, in nanoseconds.
    taken: AtomicU64,
    /// When the latest event of a stream is complete, by the stream's low bits.
    latest: [AtomicU64; STREAMS],
    calls: Calls,
}

impl Late {
    /// Of so many nanoseconds.
    pub fn new(pages: Arc<Counting>, delay: u64) -> Arc<Late> {
        Arc::new(Late {
            pages,
            delay,
            start: Instant::now(),
            taken: AtomicU64::new(1),
            latest: [const { AtomicU64::new(0) }; STREAMS],
            calls: Calls::default(),
        })
    }

    /// Calls of this kind so far.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls.of(call)
    }

    /// A call has taken so long. Gives the time.
    fn took(&self, call: Call, nanos: u64) -> u64 {
        self.calls.add(call);
        self.taken.fetch_add(nanos, Relaxed) + nanos + self.start.elapsed().as_nanos() as u64
    }
}

impl Backend for Late {
    fn name(&self) -> &'static str {
        "late"
    }
    fn granularity(&self) -> u64 {
        self.pages.granularity()
    }
    fn mapping_limit(&self) -> u64 {
        self.pages.mapping_limit()
    }
    fn mappings_of_a_page(&self) -> usize {
        self.pages.mappings_of_a_page()
    }
    fn usable(&self) -> bool {
        true
    }
    fn now(&self) -> Instant {
        Instant::now() + Duration::from_nanos(self.taken.load(Relaxed))
    }
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.pages.reserve(bytes)
    }
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.pages.unreserve(at, bytes)
    }
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.took(Call::Create, 16_000);
        self.pages.create(bytes)
    }
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.took(Call::Release, 8_000);
        self.pages.release(page, bytes)
    }
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.took(Call::Map, 33_000);
        self.pages.map(at, page, bytes)
    }
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.took(Call::Unmap, 13_000);
        self.pages.unmap(at, bytes)
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.took(Call::Timeline, 60);
        Ok(Timeline::of(StreamId(stream.0 as u64)))
    }
    fn is_built_in(&self, stream: StreamHandle) -> bool {
        stream.0 == 0
    }
    fn has_work(&self, stream: StreamHandle, _line: Timeline) -> Option<bool> {
        Some(self.took(Call::Query, 350) < self.latest[stream.0 % STREAMS].load(Relaxed))
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        let complete = self.took(Call::Record, 230) + self.delay;
        self.latest[stream.0 % STREAMS].fetch_max(complete, Relaxed);
        Ok(Event(complete))
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        Ok(self.took(Call::Query, 230) >= event.0)
    }
    fn wait(&self, _stream: StreamHandle, _event: Event) -> Result<(), BackendError> {
        self.took(Call::Wait, 250);
        Ok(())
    }
    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        let now = self.took(Call::Synchronize, 1_000);
        self.taken.fetch_add(event.0.saturating_sub(now), Relaxed);
        Ok(())
    }
    fn forget(&self, _event: Event) {}
    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.took(Call::SynchronizeAll, 40_000 + self.delay);
        Ok(())
    }
}
