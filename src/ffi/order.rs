//! The ordering hooks.

use super::guard::{InChild, guard};
use super::status::weir_status;
use super::types::{weir_event, weir_stream};
use crate::base::units::{EventHandle, StreamHandle};
use crate::lifecycle::order;

/// Records `event` behind the work queued on `stream`, and every pool learns of it: blocks freed on `stream` before
/// this call are for any stream that waits for the event.
///
/// Errors: WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for the default stream while a
/// blocking stream is captured; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_event_record(event: weir_event, stream: weir_stream) -> weir_status {
    guard("weir_event_record", InChild::Refuse, || {
        order::event_record(EventHandle(event.addr()), StreamHandle(stream.addr()))
    })
}

/// Makes `stream` wait for `event` before any work queued on it later, without blocking the caller, and every pool
/// learns of it. An event that was never recorded is complete.
///
/// Errors: as weir_event_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stream_wait_event(stream: weir_stream, event: weir_event) -> weir_status {
    guard("weir_stream_wait_event", InChild::Refuse, || {
        order::stream_wait_event(StreamHandle(stream.addr()), EventHandle(event.addr()))
    })
}

/// Blocks until the work queued on `stream` is complete, and every pool learns of it: blocks freed on `stream`
/// before this call are for any stream. A stream that is not a live host stream has nothing in flight. The release
/// threshold is applied.
///
/// Errors: WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for a stream that is captured, and as weir_event_record: the
/// capture goes on; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stream_synchronize(stream: weir_stream) -> weir_status {
    guard("weir_stream_synchronize", InChild::Refuse, || {
        order::stream_synchronize(StreamHandle(stream.addr()))
    })
}

/// Blocks until the work before the last record of `event` is complete, and every pool learns of it. The release
/// threshold is applied.
///
/// Errors: WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_CAPTURE for an event that was recorded in a capture, which the driver
/// may end for it; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_event_synchronize(event: weir_event) -> weir_status {
    guard("weir_event_synchronize", InChild::Refuse, || {
        order::event_synchronize(EventHandle(event.addr()))
    })
}

/// Blocks until all work queued on any stream is complete, and every pool learns of it. The release threshold is
/// applied.
///
/// Errors: WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn weir_device_synchronize() -> weir_status {
    guard(
        "weir_device_synchronize",
        InChild::Refuse,
        order::device_synchronize,
    )
}
