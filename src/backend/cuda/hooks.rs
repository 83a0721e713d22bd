//! The driver's own ordering calls, for a program's streams and events. They are made as the program would make them:
//! in its current context, and an error says what the driver says. `InvalidStream` means that the driver does not know
//! a handle; which one, where there are two, it does not say.
//!
//! No call here ends a capture, as the driver's own would: what cannot be done during one is refused before (the facts
//! are those of `captures` and `Context::drain`), and waiting is done in relaxed mode.

use super::captures::{self, Capturing};
use super::context;
use super::driver::{self, Driver, SUCCESS};
use super::streams::{self, handle};
use super::symbols::{Code, Symbols};
use crate::backend::BackendError;
use crate::base::units::{CaptureId, EventHandle, StreamHandle};
use cuda_driver_sys::CUevent;
use std::ptr;

/// The driver, if somebody has opened it and it is not gone. It is never opened for an ordering call: a program that has
/// streams and events to order has pools, or it has nothing to tell.
fn driver() -> Option<&'static Driver> {
    driver::opened().filter(|_| driver::usable())
}

/// Is there a driver that knows events and streams?
pub fn present() -> bool {
    driver().is_some()
}

fn event_handle(event: EventHandle) -> CUevent {
    ptr::with_exposed_provenance_mut(event.0)
}

fn with(call: &str, make: impl FnOnce(&Symbols) -> Code) -> Result<(), BackendError> {
    let driver = driver().ok_or(BackendError::Unloaded)?;
    match make(&driver.symbols) {
        SUCCESS => Ok(()),
        code => Err(driver.stream_error(call, code)),
    }
}

/// Has `stream` be what it is on a device, whatever device is current on this thread, until the result is dropped. Only
/// the built-in streams depend on that, and only a device with pools has a context to enter.
pub fn on_device(ordinal: i32, stream: StreamHandle) -> Result<Option<context::Entered>, BackendError> {
    if !streams::is_built_in(stream) || driver().is_none() {
        return Ok(None);
    }
    context::of(ordinal).map(|context| context.enter()).transpose()
}

/// The capture that work queued on a program's stream goes into.
pub fn capture_of(stream: StreamHandle) -> Result<Option<CaptureId>, BackendError> {
    if stream == StreamHandle::HOST {
        return Ok(None);
    }
    let driver = driver().ok_or(BackendError::Unloaded)?;
    if stream.0 <= streams::PER_THREAD && context::current(driver)? == 0 {
        return Ok(None); // nothing can be captured on the default stream of no context
    }
    match captures::capturing(driver, stream)? {
        Capturing::Into(capture) => Ok(Some(capture)),
        Capturing::No | Capturing::ByOther => Ok(None),
    }
}

/// Refuses what is no stream of the driver's, and the legacy stream while a blocking stream is captured.
fn check_queue(stream: StreamHandle) -> Result<(), BackendError> {
    streams::check_handle(stream)?;
    if stream.0 > streams::LEGACY {
        return Ok(());
    }
    let driver = driver().ok_or(BackendError::Unloaded)?;
    if context::current(driver)? == 0 {
        return Ok(());
    }
    match captures::capturing(driver, stream)? {
        Capturing::ByOther => Err(BackendError::Capturing(
            "a blocking stream is being captured, which the default stream would have to wait for".into(),
        )),
        Capturing::No | Capturing::Into(_) => Ok(()),
    }
}

/// Records a program's event on its stream.
pub fn event_record(event: EventHandle, stream: StreamHandle) -> Result<(), BackendError> {
    check_queue(stream)?;
    // SAFETY: the program's event and stream; that they are such is the precondition of its call.
    with("cuEventRecord", |symbols| unsafe {
        (symbols.event_record)(event_handle(event), handle(stream))
    })
}

/// Makes a program's stream wait for its event.
pub fn stream_wait_event(stream: StreamHandle, event: EventHandle) -> Result<(), BackendError> {
    check_queue(stream)?;
    // SAFETY: as for event_record.
    with("cuStreamWaitEvent", |symbols| unsafe {
        (symbols.stream_wait_event)(handle(stream), event_handle(event), 0)
    })
}

/// Waits for a program's stream. If no context is current, the default streams are those of every device with a pool,
/// as they are for the calls of these pools.
pub fn stream_synchronize(stream: StreamHandle) -> Result<(), BackendError> {
    if stream == StreamHandle::HOST {
        return Ok(());
    }
    if stream.0 <= streams::PER_THREAD {
        let driver = driver().ok_or(BackendError::Unloaded)?;
        if context::current(driver)? == 0 {
            for context in context::joined() {
                let _current = context.enter()?;
                synchronize_one(stream)?;
            }
            return Ok(());
        }
    }
    synchronize_one(stream)
}

fn synchronize_one(stream: StreamHandle) -> Result<(), BackendError> {
    let driver = driver().ok_or(BackendError::Unloaded)?;
    check_queue(stream)?;
    if let Capturing::Into(capture) = captures::capturing(driver, stream)? {
        return Err(BackendError::Capturing(format!(
            "work captured into a graph (capture {}) cannot be waited for",
            capture.0
        )));
    }
    let _mode = context::relax(driver)?;
    // SAFETY: as for event_record.
    with("cuStreamSynchronize", |symbols| unsafe {
        (symbols.stream_synchronize)(handle(stream))
    })
}

/// Waits for a program's event.
pub fn event_synchronize(event: EventHandle) -> Result<(), BackendError> {
    let _mode = context::relax(driver().ok_or(BackendError::Unloaded)?)?;
    // SAFETY: as for event_record.
    with("cuEventSynchronize", |symbols| unsafe {
        (symbols.event_synchronize)(event_handle(event))
    })
}

/// Waits for all work in the current context, if there is one, and in those that pools know. A context that no pool knows
/// is waited for as the program would: while a stream of it is captured, that ends the capture.
pub fn synchronize_all() -> Result<(), BackendError> {
    let driver = driver().ok_or(BackendError::Unloaded)?;
    let current = context::current(driver)?;
    let joined = context::joined();
    if current != 0 && joined.iter().all(|context| context.handle != current) {
        // SAFETY: no precondition.
        with("cuCtxSynchronize", |symbols| unsafe {
            (symbols.ctx_synchronize)()
        })?;
    }
    joined.iter().try_for_each(|context| context.drain())
}
