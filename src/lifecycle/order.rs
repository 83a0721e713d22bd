//! Host streams and events, and the ordering hooks: the backend's call, and every pool of that backend learns of it.
//!
//! A pool may believe less than what the backend has ordered, never more: a record and a synchronise stand for
//! marks taken before the backend's call, and a wait is told after it. What other threads queue or free meanwhile
//! is then never taken for covered.
//!
//! Locks: none; pools and the backend lock for themselves.

use super::end;
use super::registry::POOLS;
use crate::backend::{Backend, BackendError, host};
use crate::base::error::Error;
use crate::base::units::{EventHandle, StreamHandle};
use crate::config::MemoryKind;
use crate::pool::{Mark, Pool};
use std::sync::Arc;

/// Memory for a host pool.
pub fn host_backend() -> Result<Arc<dyn Backend>, Error> {
    Ok(host::HostBackend::new().map_err(backend_error)?)
}

/// Runs what is queued on host streams to the end, joins their workers, and ends all host streams and events.
pub fn shutdown() {
    // It fails only on a worker, which cannot join itself; its stream then stays.
    let _ = host::shutdown();
}

fn host_pools() -> impl Iterator<Item = Arc<Pool>> {
    POOLS
        .pools()
        .filter(|pool| pool.config().memory == MemoryKind::Host)
}

/// Marks every pool, makes the backend's call, and tells every pool of it.
fn around(
    mark: impl Fn(&Pool) -> Mark,
    call: impl FnOnce() -> Result<(), Error>,
    tell: impl Fn(&Pool, Mark),
) -> Result<(), Error> {
    let marks: Vec<(Arc<Pool>, Mark)> = host_pools().map(|pool| (pool.clone(), mark(&pool))).collect();
    call()?;
    marks.into_iter().for_each(|(pool, mark)| tell(&pool, mark));
    Ok(())
}

fn synchronized(mark: impl Fn(&Pool) -> Mark, wait: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    around(mark, wait, Pool::synchronized)
}

fn stream_error(stream: StreamHandle) -> impl Fn(BackendError) -> Error {
    move |error| match error {
        BackendError::InvalidStream(why) => Error::InvalidStream(stream, why),
        error => backend_error(error),
    }
}

fn backend_error(error: BackendError) -> Error {
    match error {
        BackendError::Unloaded => Error::Unloaded,
        BackendError::Lost(why) => Error::DeviceLost(why),
        BackendError::Capturing(why) => Error::Capture(why),
        BackendError::NotSupported(why) => Error::NotSupported(why),
        BackendError::InvalidStream(why) | BackendError::OutOfMemory(why) | BackendError::Other(why) => {
            Error::Backend(why)
        }
    }
}

fn known_event(event: EventHandle) -> Result<(), Error> {
    if host::events::is_event(event) {
        return Ok(());
    }
    match host::events::query(event) {
        Err(BackendError::Unloaded) => Err(Error::Unloaded),
        _ => Err(Error::InvalidEvent(
            event.0,
            "it is not a live host event; weir_host_event_create makes one".into(),
        )),
    }
}

/// Does a worker run what is queued on this stream?
pub fn is_host_stream(stream: StreamHandle) -> bool {
    host::streams::is_stream(stream)
}

/// Creates a host stream.
pub fn stream_create() -> Result<StreamHandle, Error> {
    end::prepare()?;
    host::streams::create().map_err(backend_error)
}

/// Ends a host stream; what was queued on it still runs.
pub fn stream_destroy(stream: StreamHandle) -> Result<(), Error> {
    or_exiting(host::streams::destroy(stream).map_err(stream_error(stream)))
}

/// Nothing is left to destroy once the exit handler has ended all streams and events.
fn or_exiting(result: Result<(), Error>) -> Result<(), Error> {
    if end::exiting() { Ok(()) } else { result }
}

/// Queues work on a host stream.
pub fn stream_enqueue(stream: StreamHandle, work: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
    host::streams::enqueue(stream, work).map_err(stream_error(stream))
}

/// Waits for a stream. One that is not a live host stream has nothing in flight.
pub fn stream_synchronize(stream: StreamHandle) -> Result<(), Error> {
    synchronized(
        |pool| pool.mark_stream(stream),
        || match is_host_stream(stream) {
            true => host::streams::synchronize(stream).map_err(stream_error(stream)),
            false => Ok(()),
        },
    )
}

/// Waits for a stream that must be a live host stream.
pub fn host_stream_synchronize(stream: StreamHandle) -> Result<(), Error> {
    synchronized(
        |pool| pool.mark_stream(stream),
        || host::streams::synchronize(stream).map_err(stream_error(stream)),
    )
}

/// Makes a stream wait for an event.
pub fn stream_wait_event(stream: StreamHandle, event: EventHandle) -> Result<(), Error> {
    known_event(event)?;
    around(
        |pool| pool.mark_event(event),
        || host::events::stream_wait(stream, event).map_err(stream_error(stream)),
        |pool, mark| pool.stream_waits(stream, mark),
    )
}

/// Creates a host event.
pub fn event_create() -> Result<EventHandle, Error> {
    end::prepare()?;
    host::events::create().map_err(backend_error)
}

/// Ends a host event.
pub fn event_destroy(event: EventHandle) -> Result<(), Error> {
    or_exiting(known_event(event))?;
    or_exiting(host::events::destroy(event).map_err(backend_error))?;
    host_pools().for_each(|pool| pool.event_destroyed(event));
    Ok(())
}

/// Records an event behind the work queued on a stream.
pub fn event_record(event: EventHandle, stream: StreamHandle) -> Result<(), Error> {
    known_event(event)?;
    around(
        |pool| pool.mark_stream(stream),
        || host::events::record(event, stream).map_err(stream_error(stream)),
        |pool, mark| pool.event_recorded(event, mark),
    )
}

/// Is the work before an event's last record complete?
pub fn event_query(event: EventHandle) -> Result<bool, Error> {
    known_event(event)?;
    host::events::query(event).map_err(backend_error)
}

/// Waits for an event's last record.
pub fn event_synchronize(event: EventHandle) -> Result<(), Error> {
    known_event(event)?;
    synchronized(
        |pool| pool.mark_event(event),
        || host::events::synchronize(event).map_err(backend_error),
    )
}

/// Waits for all work on all streams.
pub fn device_synchronize() -> Result<(), Error> {
    synchronized(Pool::mark_all, || {
        host::streams::synchronize_all().map_err(backend_error)
    })
}
