//! Streams with work on them, in virtual time, over the counting backend: a host that is ahead of its device. What things take is by
//! chance, as on a machine, and the same each time.

use super::random::Random;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir::backend::counting::Counting;
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{Addr, PageHandle, StreamHandle, StreamId, Timeline};

/// What calls take, in nanoseconds (docs/design.md, section 7).
const CREATE: u64 = 7_000;
const RELEASE: u64 = 8_000;
const MAP: u64 = 19_500;
const UNMAP: u64 = 13_000;
const RECORD: u64 = 500;
const QUERY: u64 = 150;

#[derive(Debug)]
struct Time {
    now: u64,
    chance: Random,
    /// When what is queued on a stream will be over.
    over: HashMap<StreamHandle, u64>,
}

/// Such a device.
#[derive(Debug)]
pub struct Device {
    pages: Arc<Counting>,
    time: Mutex<Time>,
    /// Streams can be asked for their work.
    tells: AtomicBool,
    /// When its time began on the machine's clock.
    start: Instant,
}

impl Device {
    pub fn new(chance: u64) -> Arc<Device> {
        Arc::new(Device {
            pages: Counting::new(true),
            time: Mutex::new(Time {
                now: 0,
                chance: Random(chance),
                over: HashMap::new(),
            }),
            tells: AtomicBool::new(false),
            start: Instant::now(),
        })
    }

    fn time(&self) -> MutexGuard<'_, Time> {
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on streams can be asked for their work, as those that wait for no other one by themselves.
    #[allow(dead_code)] // of threads
    pub fn tell(&self) {
        self.tells.store(true, Ordering::Relaxed);
    }

    /// The host does something for so long on average.
    pub fn host(&self, nanos: u64) -> u64 {
        let mut time = self.time();
        time.now += time.chance.about(nanos);
        time.now
    }

    /// Work of that length, on average, is queued on a stream.
    pub fn queue(&self, stream: StreamHandle, nanos: u64) {
        let mut time = self.time();
        let (now, takes) = (time.now, time.chance.about(nanos));
        let over = time.over.entry(stream).or_default();
        *over = now.max(*over) + takes;
    }

    /// The host waits for what is queued on a stream.
    #[allow(dead_code)] // of threads
    pub fn wait_for(&self, stream: StreamHandle) {
        let mut time = self.time();
        let over = time.over.get(&stream).copied().unwrap_or(0);
        time.now = time.now.max(over);
    }

    /// The host waits for all that is queued.
    pub fn wait_for_all(&self) {
        let mut time = self.time();
        let last = time.over.values().copied().max().unwrap_or(0);
        time.now = time.now.max(last);
    }
}

impl Backend for Device {
    fn name(&self) -> &'static str {
        "device"
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
        self.start + Duration::from_nanos(self.time().now)
    }
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.pages.reserve(bytes)
    }
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.pages.unreserve(at, bytes)
    }
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.host(CREATE);
        self.pages.create(bytes)
    }
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.host(RELEASE);
        self.pages.release(page, bytes)
    }
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.host(MAP);
        self.pages.map(at, page, bytes)
    }
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.host(UNMAP);
        self.pages.unmap(at, bytes)
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        Ok(Timeline::of(StreamId(stream.0 as u64)))
    }
    fn is_built_in(&self, stream: StreamHandle) -> bool {
        stream.0 == 0
    }
    fn has_work(&self, stream: StreamHandle, _line: Timeline) -> Option<bool> {
        let tells = self.tells.load(Ordering::Relaxed);
        tells.then(|| self.host(QUERY) < self.time().over.get(&stream).copied().unwrap_or(0))
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        let now = self.host(RECORD);
        let over = self.time().over.get(&stream).copied().unwrap_or(0);
        Ok(Event(over.max(now) + 1))
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        Ok(self.host(QUERY) >= event.0)
    }
    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        self.host(RECORD);
        let mut time = self.time();
        let over = time.over.entry(stream).or_default();
        *over = event.0.max(*over);
        Ok(())
    }
    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        let mut time = self.time();
        time.now = time.now.max(event.0);
        Ok(())
    }
    fn forget(&self, _event: Event) {}
    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.wait_for_all();
        Ok(())
    }
}
