//! The CPU backend: memory that really is mapped and moved, streams that really are asynchronous.
//!
//! Memory belongs to a [`HostBackend`]. Streams ([`streams`]) and events ([`events`]) belong to the process,
//! as a driver's do. Any other value used as a stream is a stream with nothing in flight: its events are
//! complete, and since it has no queue that could be held back, a wait on it blocks the caller.
//!
//! After [`shutdown`] no thread and no heap memory is left behind, and the next use starts anew. In a forked
//! child every call returns `BackendError::Unloaded` and looks at no lock. The child shares the parent's
//! pages (they are mapped `MAP_SHARED`); it sees the parent's writes, and the parent its own.
//!
//! Locks, in the order in which they may nest: `memory` of one backend; `ENDING`; the table of streams; a
//! stream's queue. The tables of events and tokens are taken alone. Memory calls hold `memory` across the
//! system call: the kernel has one lock for a process's mappings anyway.

mod board;
mod budget;
mod claim;
mod gate;
mod memory;
mod os;
mod slots;
mod store;
mod stream;
mod tokens;

pub mod copies;
pub mod events;
pub mod streams;

pub use stream::{Function, on_worker};

use super::{Backend, BackendError, Event};
use crate::base::units::{Addr, EventHandle, PageHandle, StreamHandle, StreamId, Timeline};
use memory::{GRANULARITY, Memory};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Store;
use stream::Point;

/// Takes a lock whose data no panic can leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has later work of `stream` wait for `point`.
fn order(stream: StreamHandle, point: Point) -> Result<(), BackendError> {
    let Some(target) = streams::find(stream) else {
        return point.wait();
    };
    if target.id() == point.stream_id() || target.wait_for(point) {
        return Ok(());
    }
    Err(BackendError::InvalidStream(format!(
        "{stream} was destroyed during the call"
    )))
}

/// Runs everything queued on any stream to the end, joins all worker threads, destroys all streams and events
/// and frees what the process holds for them. May be called any number of times, also after the driver was
/// "unloaded"; an error from a function that runs on a stream.
pub fn shutdown() -> Result<(), BackendError> {
    if super::process::forked() {
        return Err(BackendError::Unloaded);
    }
    streams::shutdown()?;
    events::shutdown();
    tokens::purge();
    Ok(())
}

/// Host memory. Everything is given back on drop.
#[derive(Debug)]
pub struct HostBackend {
    memory: Mutex<Memory>,
}

impl HostBackend {
    /// A backend with memory of its own.
    pub fn new() -> Result<Arc<HostBackend>, BackendError> {
        gate::first_use()?;
        Ok(HostBackend::with(Store::own()?))
    }

    /// The same, whose pages other processes can import, and which can import theirs.
    pub fn shared() -> Result<Arc<HostBackend>, BackendError> {
        gate::first_use()?;
        Ok(HostBackend::with(Store::shared()))
    }

    fn with(store: Store) -> Arc<HostBackend> {
        Arc::new(HostBackend {
            memory: Mutex::new(Memory::new(store)),
        })
    }

    /// Bytes of memory that the pages of this backend really occupy: those that were touched.
    pub fn resident_bytes(&self) -> Result<u64, BackendError> {
        gate::for_program()?;
        lock(&self.memory).resident()
    }
}

impl Backend for HostBackend {
    fn name(&self) -> &'static str {
        "host"
    }

    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn mappings_of_a_page(&self) -> usize {
        usize::MAX
    }

    fn mapping_limit(&self) -> u64 {
        if !gate::usable() {
            return budget::limit();
        }
        budget::limit_beside(lock(&self.memory).mappings())
    }

    fn usable(&self) -> bool {
        gate::usable()
    }

    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        gate::for_pool("reserve")?;
        lock(&self.memory).reserve(bytes)
    }

    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        gate::for_pool("unreserve")?;
        lock(&self.memory).unreserve(at, bytes)
    }

    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        gate::for_pool("create")?;
        lock(&self.memory).create(bytes)
    }

    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        gate::for_pool("release")?;
        lock(&self.memory).release(page, bytes)
    }

    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        gate::for_pool("map")?;
        lock(&self.memory).map(at, page, bytes)
    }

    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        gate::for_pool("unmap")?;
        lock(&self.memory).unmap(at, bytes)
    }

    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        gate::for_pool("timeline")?;
        Ok(Timeline::of(streams::id_of(stream)))
    }

    fn is_inert(&self, stream: StreamId) -> bool {
        !streams::is_ours(stream)
    }

    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        gate::for_pool("record")?;
        streams::find(stream).map_or(Ok(Event::COMPLETE), |stream| tokens::record(stream.point()))
    }

    fn query(&self, event: Event) -> Result<bool, BackendError> {
        gate::for_pool("query")?;
        Ok(tokens::pending(event)?.is_none())
    }

    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        gate::for_pool("wait")?;
        tokens::pending(event)?.map_or(Ok(()), |point| order(stream, point))
    }

    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        gate::for_pool("synchronize")?;
        tokens::pending(event)?.map_or(Ok(()), |point| point.wait())
    }

    fn forget(&self, event: Event) {
        if event != Event::COMPLETE && gate::for_pool("forget").is_ok() {
            tokens::forget(event);
        }
    }

    fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        gate::for_pool("export")?;
        lock(&self.memory).export(page)
    }

    fn import(&self, file: OwnedFd, bytes: u64) -> Result<PageHandle, BackendError> {
        gate::for_pool("import")?;
        lock(&self.memory).import(file, bytes)
    }

    fn export_event(&self, event: EventHandle) -> Result<(u64, [u64; 8]), BackendError> {
        gate::for_pool("export_event")?;
        events::offer(event).map(|number| (number, [0; 8]))
    }

    fn event_file(&self, event: EventHandle, number: u64) -> Result<Option<Option<OwnedFd>>, BackendError> {
        gate::for_pool("event_file")?;
        events::file(event, number).map(|file| file.map(Some))
    }

    fn import_event(&self, file: Option<OwnedFd>, _driver: [u64; 8]) -> Result<EventHandle, BackendError> {
        gate::for_pool("import_event")?;
        let file = file.ok_or_else(|| BackendError::Other("the event came without its file".into()))?;
        events::adopt(file)
    }

    fn synchronize_all(&self) -> Result<(), BackendError> {
        gate::for_pool("synchronize_all")?;
        streams::wait_for_all()
    }
}
