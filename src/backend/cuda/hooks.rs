//! The driver's own ordering calls, for a program's streams and events. They are made as the program would make them:
//! in its current context and capture mode, and an error says what the driver says.

use super::context;
use super::driver::{self, Driver};
use super::streams::{self, handle};
use super::symbols::Code;
use crate::backend::BackendError;
use crate::base::units::{EventHandle, StreamHandle};
use cuda_driver_sys::{CUevent, CUresult};
use std::ptr;

/// Why an ordering call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookError {
    /// One of the two handles is not one, or they do not fit together.
    Handle(String),
    /// Anything else.
    Backend(BackendError),
}

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

fn made(driver: &Driver, call: &str, code: Code) -> Result<(), HookError> {
    const INVALID_VALUE: Code = CUresult::CUDA_ERROR_INVALID_VALUE as Code;
    const INVALID_HANDLE: Code = CUresult::CUDA_ERROR_INVALID_HANDLE as Code;
    driver.check(call, code).map_err(|error| match (error, code) {
        (BackendError::Other(why), INVALID_VALUE | INVALID_HANDLE) => HookError::Handle(why),
        (error, _) => HookError::Backend(error),
    })
}

fn with(call: &str, make: impl FnOnce(&super::symbols::Symbols) -> Code) -> Result<(), HookError> {
    let driver = driver().ok_or(HookError::Backend(BackendError::Unloaded))?;
    made(driver, call, make(&driver.symbols))
}

/// Records a program's event on its stream.
pub fn event_record(event: EventHandle, stream: StreamHandle) -> Result<(), HookError> {
    // SAFETY: the program's event and stream; that they are such is the precondition of its call.
    with("cuEventRecord", |symbols| unsafe {
        (symbols.event_record)(event_handle(event), handle(stream))
    })
}

/// Makes a program's stream wait for its event.
pub fn stream_wait_event(stream: StreamHandle, event: EventHandle) -> Result<(), HookError> {
    // SAFETY: as for event_record.
    with("cuStreamWaitEvent", |symbols| unsafe {
        (symbols.stream_wait_event)(handle(stream), event_handle(event), 0)
    })
}

/// Waits for a program's stream. If no context is current, the default streams are those of every device with a pool,
/// as they are for the calls of these pools.
pub fn stream_synchronize(stream: StreamHandle) -> Result<(), HookError> {
    if stream.0 <= streams::PER_THREAD {
        let driver = driver().ok_or(HookError::Backend(BackendError::Unloaded))?;
        if context::current(driver).map_err(HookError::Backend)? == 0 {
            for context in context::joined() {
                let _current = context.enter().map_err(HookError::Backend)?;
                synchronize_one(stream)?;
            }
            return Ok(());
        }
    }
    synchronize_one(stream)
}

fn synchronize_one(stream: StreamHandle) -> Result<(), HookError> {
    // SAFETY: as for event_record.
    with("cuStreamSynchronize", |symbols| unsafe {
        (symbols.stream_synchronize)(handle(stream))
    })
}

/// Waits for a program's event.
pub fn event_synchronize(event: EventHandle) -> Result<(), HookError> {
    // SAFETY: as for event_record.
    with("cuEventSynchronize", |symbols| unsafe {
        (symbols.event_synchronize)(event_handle(event))
    })
}

/// Waits for all work in the current context, if there is one, and in those that pools know. The former as the program
/// would: while it captures, that is an error and ends the capture.
pub fn synchronize_all() -> Result<(), HookError> {
    let driver = driver().ok_or(HookError::Backend(BackendError::Unloaded))?;
    let current = context::current(driver).map_err(HookError::Backend)?;
    if current != 0 {
        // SAFETY: no precondition.
        made(driver, "cuCtxSynchronize", unsafe {
            (driver.symbols.ctx_synchronize)()
        })?;
    }
    let mut others = context::joined()
        .into_iter()
        .filter(|context| context.handle != current);
    others
        .try_for_each(|context| context.drain())
        .map_err(HookError::Backend)
}
