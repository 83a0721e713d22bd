//! Streams and events of the host backend.

use super::args::Out;
use super::guard::{InChild, guard};
use super::status::weir_status;
use super::types::{weir_event, weir_host_function, weir_stream};
use crate::base::error::Error;
use crate::base::units::{EventHandle, StreamHandle};
use crate::lifecycle::order;
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

/// Creates a host stream: work queued on it runs in order, on a thread of its own. The caller destroys it.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_stream_create(stream: *mut weir_stream) -> weir_status {
    guard("weir_host_stream_create", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(stream, "stream") }?;
        out.set(without_provenance_mut(order::stream_create()?.0));
        Ok(())
    })
}

/// Destroys a host stream. What was queued on it still runs; pools may hold blocks that were freed on it. In a
/// forked child it does nothing.
///
/// Errors: WEIR_ERROR_INVALID_STREAM if it is not a live host stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_stream_destroy(stream: weir_stream) -> weir_status {
    guard("weir_host_stream_destroy", InChild::Ignore, || {
        order::stream_destroy(StreamHandle(stream.addr()))
    })
}

/// Queues `function(arg)` on a host stream. Whatever `arg` points to must live until the function has returned. The
/// function runs on another thread and may call weir, but must not wait for its own stream, nor call weir_finalize or exit.
///
/// Errors: WEIR_ERROR_NULL_POINTER for the function; WEIR_ERROR_INVALID_STREAM if it is not a live host stream;
/// WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_stream_enqueue(
    stream: weir_stream,
    function: weir_host_function,
    arg: *mut c_void,
) -> weir_status {
    guard("weir_host_stream_enqueue", InChild::Refuse, || {
        let Some(function) = function else {
            return Err(Error::NullPointer {
                what: "function",
                hint: "pass the function to run",
            });
        };
        // An integer because work for another thread may not hold a pointer; its provenance is C's.
        let arg = arg.expose_provenance();
        // SAFETY: the caller gave this function for this use, with its argument.
        let work = move || unsafe { function(std::ptr::with_exposed_provenance_mut(arg)) };
        order::stream_enqueue(StreamHandle(stream.addr()), Box::new(work))
    })
}

/// Blocks until the work queued on a host stream is complete; every pool learns of it, as by
/// weir_stream_synchronize.
///
/// Errors: WEIR_ERROR_INVALID_STREAM if it is not a live host stream; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_stream_synchronize(stream: weir_stream) -> weir_status {
    guard("weir_host_stream_synchronize", InChild::Refuse, || {
        order::host_stream_synchronize(StreamHandle(stream.addr()))
    })
}

/// Creates a host event. It is complete until weir_event_record records it. The caller destroys it.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_event_create(event: *mut weir_event) -> weir_status {
    guard("weir_host_event_create", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(event, "event") }?;
        out.set(without_provenance_mut(order::event_create()?.0));
        Ok(())
    })
}

/// Destroys a host event; streams that wait for it still do. In a forked child it does nothing.
///
/// Errors: WEIR_ERROR_INVALID_EVENT if it is not a live host event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_event_destroy(event: weir_event) -> weir_status {
    guard("weir_host_event_destroy", InChild::Ignore, || {
        order::event_destroy(EventHandle(event.addr()))
    })
}

/// Tells without blocking whether the work before the last record of a host event is complete: WEIR_OK if it is,
/// WEIR_ERROR_NOT_READY if it is not, which leaves no message.
///
/// Errors: WEIR_ERROR_INVALID_EVENT if it is not a live host event; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_event_query(event: weir_event) -> weir_status {
    let mut complete = true;
    let status = guard("weir_host_event_query", InChild::Refuse, || {
        complete = order::event_query(EventHandle(event.addr()))?;
        Ok(())
    });
    if complete {
        status
    } else {
        weir_status::WEIR_ERROR_NOT_READY
    }
}
