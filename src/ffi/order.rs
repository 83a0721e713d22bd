//! The ordering hooks. Handles that are not host streams or host events are the CUDA driver's, once a pool has opened it.

use super::guard::{InChild, guard};
use super::status::weir_status;
use super::types::{weir_event, weir_stream};
use crate::base::units::{EventHandle, StreamHandle};
use crate::lifecycle::order;

/// Records `event` behind the work queued on `stream`, and every pool learns of it: blocks freed on `stream` before
/// this call are for any stream that waits for the event. For the driver's handles it makes the driver's call, on the
/// calling thread and in its current context. Pools know of an event what this function told them last, so record it by
/// this function always, or by the driver's always. One of the driver's that was destroyed and made anew with the old handle has to be
/// recorded by this function before it is waited for by weir's: they cannot tell it from the old one. Of an event that two threads record at
/// the same time, or one while another waits for it, pools know nothing until it is recorded again.
///
/// Errors: WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for the default stream while a
/// blocking stream is captured; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_event_record(event: weir_event, stream: weir_stream) -> weir_status {
    guard("weir_event_record", InChild::Refuse, || {
        order::event_record(EventHandle(event.addr()), StreamHandle(stream.addr()))
    })
}

/// Makes `stream` wait for `event` before any work queued on it later, without blocking the caller, and every pool
/// learns of it. An event that was never recorded is complete. For the driver's handles it makes the driver's call.
///
/// Errors: as weir_event_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stream_wait_event(stream: weir_stream, event: weir_event) -> weir_status {
    guard("weir_stream_wait_event", InChild::Refuse, || {
        order::stream_wait_event(StreamHandle(stream.addr()), EventHandle(event.addr()))
    })
}

/// Says that a stream is about to be destroyed, or to be captured (also by waiting for an event of a capture). A pool
/// with `declared_streams` then no longer touches the stream, and keeps nothing for it, until a call names it again; no
/// call may name it between this one and what it announces. Other pools find out by themselves. A stream that no pool
/// knows is fine.
///
/// Errors: WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stream_changed(stream: weir_stream) -> weir_status {
    guard("weir_stream_changed", InChild::Refuse, || {
        order::stream_changed(StreamHandle(stream.addr()));
        Ok(())
    })
}

/// Blocks until the work queued on `stream` is complete, and every pool learns of it: blocks freed on `stream`
/// before this call are for any stream. It waits for the driver's streams by the driver's call; if no context is current
/// the default streams are those of each GPU that has a pool. While no pool has opened a driver, a stream that is not a
/// live host stream has nothing in flight. The release threshold is applied.
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

/// Blocks until all work queued on any stream is complete, and every pool learns of it: on host streams, on each GPU that
/// has a pool, and in the context that is current. The release threshold is applied. In a current context that no pool
/// knows the driver's call ends the captures there.
///
/// Errors: WEIR_ERROR_CAPTURE if it did; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED;
/// WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn weir_device_synchronize() -> weir_status {
    guard(
        "weir_device_synchronize",
        InChild::Refuse,
        order::device_synchronize,
    )
}
