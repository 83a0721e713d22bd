//! Host streams and events, and the ordering hooks: the backend's call, and every pool of that backend learns of it.
//!
//! A pool may believe less than what the backend has ordered, never more: a record and a synchronise stand for
//! marks taken before the backend's call, and a wait is told after it. What other threads queue or free meanwhile
//! is then never taken for covered.
//!
//! A handle is a host stream's or event's if it is one that lives; any other is the driver's if a driver has been
//! opened. It is never opened for a hook, because without a device pool there is nobody to learn anything.
//!
//! Locks: none; pools and the backend lock for themselves.

use super::backends::error as backend_error;
use super::end;
use super::registry::POOLS;
use crate::backend::cuda::hooks;
use crate::backend::{BackendError, host};
use crate::base::error::Error;
use crate::base::units::{CaptureId, EventHandle, StreamHandle, is_own_handle};
use crate::config::MemoryKind;
use crate::pool::{Mark, Pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Records of events: how many have begun, and how many have ended, the pools told. Events whose handles have these bits in common are
/// taken for each other: then the pools hear less.
static RECORDS: [(AtomicU32, AtomicU32); 4096] = [const { (AtomicU32::new(0), AtomicU32::new(0)) }; 4096];

fn records(event: EventHandle) -> &'static (AtomicU32, AtomicU32) {
    // handles are addresses
    &RECORDS[(event.0 ^ event.0 >> 12) >> 4 & (RECORDS.len() - 1)]
}

/// A record of an event, which another thread may record, too: nobody knows then which was the last.
struct Record {
    records: &'static (AtomicU32, AtomicU32),
    number: u32,
    first: bool,
}

impl Record {
    fn begin(event: EventHandle) -> Record {
        let records = records(event);
        let before = records.0.fetch_add(1, SeqCst);
        Record {
            records,
            number: before.wrapping_add(1),
            first: records.1.load(SeqCst) == before,
        }
    }

    /// No other one was under way.
    fn is_alone(&self) -> bool {
        self.first && self.records.0.load(SeqCst) == self.number
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.records.1.fetch_add(1, SeqCst);
    }
}

/// A wait for an event, which another thread may record meanwhile: what is waited for then is not what the pools know of it.
struct Wait(&'static (AtomicU32, AtomicU32), Option<u32>);

impl Wait {
    fn begin(event: EventHandle) -> Wait {
        let records = records(event);
        let begun = records.0.load(SeqCst);
        Wait(records, (records.1.load(SeqCst) == begun).then_some(begun))
    }

    /// The event was not recorded since.
    fn is_for_the_same(&self) -> bool {
        self.1 == Some(self.0.0.load(SeqCst))
    }
}

/// Runs what is queued on host streams to the end, joins their workers, and ends all host streams and events.
pub fn shutdown() {
    // It fails only on a worker, which cannot join itself; its stream then stays.
    let _ = host::shutdown();
}

/// The handle of a stream comes to mean something else: no thread keeps anything for it any more.
pub fn stream_changed(stream: StreamHandle) {
    POOLS.pools().for_each(|pool| pool.stream_changed(stream));
}

/// Whose streams and events a call is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Host,
    Driver,
}

impl Whose {
    /// The pools that know such streams.
    fn pools(self) -> impl Iterator<Item = Arc<Pool>> {
        POOLS
            .pools()
            .filter(move |pool| (pool.config().memory == MemoryKind::Host) == (self == Whose::Host))
    }

    /// Marks the pools, makes the backend's call, and tells the pools of it.
    fn around(
        self,
        mark: impl Fn(&Pool) -> Mark,
        call: impl FnOnce() -> Result<(), Error>,
        tell: impl Fn(&Pool, Mark),
    ) -> Result<(), Error> {
        let marks: Vec<(Arc<Pool>, Mark)> = self.pools().map(|pool| (pool.clone(), mark(&pool))).collect();
        call()?;
        marks.into_iter().for_each(|(pool, mark)| tell(&pool, mark));
        Ok(())
    }

    fn synchronized(
        self,
        mark: impl Fn(&Pool) -> Mark,
        wait: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.around(mark, wait, Pool::synchronized)
    }

    fn of_event(event: EventHandle) -> Result<Whose, Error> {
        if host::events::is_event(event) {
            return Ok(Whose::Host);
        }
        if hooks::present() {
            return drivers_event(event).map(|()| Whose::Driver);
        }
        known_event(event).map(|()| Whose::Host)
    }

    /// The driver's event says nothing to a host stream.
    fn of_both(event: EventHandle, stream: StreamHandle) -> Result<Whose, Error> {
        match Whose::of_event(event)? {
            Whose::Driver if stream != StreamHandle::HOST && is_own_handle(stream.0) => {
                Err(Error::InvalidStream(
                    stream,
                    "it is a host stream, destroyed or alive, and the event is not a host event".into(),
                ))
            }
            whose => Ok(whose),
        }
    }
}

fn stream_error(stream: StreamHandle) -> impl Fn(BackendError) -> Error {
    move |error| match error {
        BackendError::InvalidStream(why) => Error::InvalidStream(stream, why),
        error => backend_error(error),
    }
}

/// The driver does not say which of the two handles it does not know.
fn event_error(event: EventHandle) -> impl Fn(BackendError) -> Error {
    move |error| match error {
        BackendError::InvalidStream(why) => Error::InvalidEvent(event.0, format!("it, or the stream: {why}")),
        error => backend_error(error),
    }
}

pub(super) fn known_event(event: EventHandle) -> Result<(), Error> {
    if host::events::is_event(event) {
        return Ok(());
    }
    match host::events::query(event) {
        Err(BackendError::Unloaded) => Err(Error::Unloaded),
        _ => Err(Error::InvalidEvent(
            event.0,
            "it is not a live host event (weir_host_event_create makes one), and no CUDA driver is in use"
                .into(),
        )),
    }
}

/// Refuses a host event, at whose handle the driver would look for one of its own.
pub(super) fn drivers_event(event: EventHandle) -> Result<(), Error> {
    match is_own_handle(event.0) {
        false => Ok(()),
        true => Err(Error::InvalidEvent(
            event.0,
            "it is a handle of weir_host_event_create, which the driver does not know: its event was destroyed, or lives and is \
             for host streams; pass an event of the driver's"
                .into(),
        )),
    }
}

/// Does a worker run what is queued on this stream?
pub fn is_host_stream(stream: StreamHandle) -> bool {
    host::streams::is_stream(stream)
}

/// Makes a call for which `stream` is what it is on `device`, whatever device is current on this thread.
pub fn on_device<R>(
    device: i32,
    stream: StreamHandle,
    call: impl FnOnce() -> Result<R, Error>,
) -> Result<R, Error> {
    let _current = hooks::on_device(device, stream).map_err(backend_error)?;
    call()
}

/// After the exit handler nobody would end what is created.
fn prepare() -> Result<(), Error> {
    match end::exiting() {
        true => Err(Error::Unloaded),
        false => end::prepare(),
    }
}

/// Creates a host stream.
pub fn stream_create() -> Result<StreamHandle, Error> {
    prepare()?;
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

/// The capture that work queued on a stream goes into.
pub fn capture_of(stream: StreamHandle) -> Result<Option<CaptureId>, Error> {
    if is_host_stream(stream) || !hooks::present() {
        return Ok(None);
    }
    hooks::capture_of(stream).map_err(stream_error(stream))
}

/// Waits for a stream: a host stream, or the driver's. Without a driver, any other has nothing in flight.
pub fn stream_synchronize(stream: StreamHandle) -> Result<(), Error> {
    if is_host_stream(stream) || !hooks::present() {
        return Whose::Host.synchronized(
            |pool| pool.mark_stream(stream),
            || match is_host_stream(stream) {
                true => host::streams::synchronize(stream).map_err(stream_error(stream)),
                false => Ok(()),
            },
        );
    }
    Whose::Driver.synchronized(
        |pool| pool.mark_stream(stream),
        || hooks::stream_synchronize(stream).map_err(stream_error(stream)),
    )
}

/// Waits for a stream that must be a live host stream.
pub fn host_stream_synchronize(stream: StreamHandle) -> Result<(), Error> {
    Whose::Host.synchronized(
        |pool| pool.mark_stream(stream),
        || host::streams::synchronize(stream).map_err(stream_error(stream)),
    )
}

/// Makes a stream wait for an event.
pub fn stream_wait_event(stream: StreamHandle, event: EventHandle) -> Result<(), Error> {
    let whose = Whose::of_both(event, stream)?;
    let wait = Wait::begin(event);
    whose.around(
        |pool| pool.mark_event(event),
        || match whose {
            Whose::Host => host::events::stream_wait(stream, event).map_err(stream_error(stream)),
            Whose::Driver => hooks::stream_wait_event(stream, event).map_err(event_error(event)),
        },
        |pool, mark| {
            if wait.is_for_the_same() {
                pool.stream_waits(stream, mark);
            }
        },
    )
}

/// Creates a host event.
pub fn event_create() -> Result<EventHandle, Error> {
    prepare()?;
    host::events::create().map_err(backend_error)
}

/// Ends a host event.
pub fn event_destroy(event: EventHandle) -> Result<(), Error> {
    or_exiting(known_event(event))?;
    or_exiting(host::events::destroy(event).map_err(backend_error))?;
    Whose::Host.pools().for_each(|pool| pool.event_destroyed(event));
    Ok(())
}

/// Records an event behind the work queued on a stream.
pub fn event_record(event: EventHandle, stream: StreamHandle) -> Result<(), Error> {
    let whose = Whose::of_both(event, stream)?;
    let record = Record::begin(event);
    whose.around(
        |pool| pool.mark_stream(stream),
        || match whose {
            Whose::Host => host::events::record(event, stream).map_err(stream_error(stream)),
            Whose::Driver => hooks::event_record(event, stream).map_err(event_error(event)),
        },
        |pool, mark| match record.is_alone() {
            true => pool.event_recorded(event, mark),
            false => pool.event_destroyed(event),
        },
    )
}

/// Is the work before an event's last record complete?
pub fn event_query(event: EventHandle) -> Result<bool, Error> {
    known_event(event)?;
    host::events::query(event).map_err(backend_error)
}

/// Waits for an event's last record.
pub fn event_synchronize(event: EventHandle) -> Result<(), Error> {
    let whose = Whose::of_event(event)?;
    let wait = Wait::begin(event);
    whose.around(
        |pool| pool.mark_event(event),
        || match whose {
            Whose::Host => host::events::synchronize(event).map_err(backend_error),
            Whose::Driver => hooks::event_synchronize(event).map_err(event_error(event)),
        },
        |pool, mark| {
            if wait.is_for_the_same() {
                pool.synchronized(mark);
            }
        },
    )
}

/// May the caller wait for all work that uses the pool's memory? Not on a host stream, which would wait for itself.
pub fn may_wait_for(pool: &Pool) -> Result<(), Error> {
    match pool.config().memory == MemoryKind::Host && host::on_worker() {
        true => Err(Error::Backend(
            "it waits for all host streams, which a function that runs on one may not; call it elsewhere"
                .into(),
        )),
        false => Ok(()),
    }
}

/// Waits for all work on all streams.
pub fn device_synchronize() -> Result<(), Error> {
    Whose::Host.synchronized(Pool::mark_all, || {
        host::streams::synchronize_all().map_err(backend_error)
    })?;
    if !hooks::present() {
        return Ok(());
    }
    Whose::Driver.synchronized(Pool::mark_all, || hooks::synchronize_all().map_err(backend_error))
}
