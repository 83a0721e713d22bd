//! Stream captures.

use super::args::{self, Out};
use super::guard::{InChild, guard};
use super::status::weir_status;
use super::types::{weir_pool, weir_stream};
use crate::base::units::{CaptureId, StreamHandle};
use crate::lifecycle::{order, threads};

/// Tells which capture the work queued on `stream` goes into now: the driver's id of it (as cuStreamGetCaptureInfo
/// gives it), which no other capture ever has, or 0 if the stream is not being captured. Host streams never are, and
/// without a CUDA driver in use nothing is. Any thread may ask; no capture is harmed.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_CAPTURE if the capture was invalidated; WEIR_ERROR_INVALID_STREAM;
/// WEIR_ERROR_NOT_SUPPORTED for a capture with a driver before CUDA 10.1; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST;
/// WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stream_get_capture(stream: weir_stream, capture: *mut u64) -> weir_status {
    guard("weir_stream_get_capture", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(capture, "capture") }?;
        let into = order::capture_of(StreamHandle(stream.addr()))?;
        out.set(into.map_or(0, |capture| capture.0));
        Ok(())
    })
}

/// Says that the graph of a capture is gone: it and every executable graph made from it are destroyed, and their
/// launches are complete. `capture` is the id that weir_stream_get_capture gave while the stream was captured. A driver for CUDA
/// 11.3 or later says so by itself, on a thread of its own, and the pool hears of it in requests that need memory and in trim,
/// squeeze and statistics: with it this call is for those who want the memory back at once.
///
/// A block allocated on a stream that is being captured belongs to the graph, which uses it anew on each launch.
/// Freed on a stream of the same capture, its memory serves later requests of that stream in that capture, and
/// nobody else; freed elsewhere, it serves nobody. This call gives all such memory back to the pool: what was freed
/// is then for any stream, as soon as the stream it was freed on has done its work. Blocks still allocated stay so.
/// A capture that took nothing from the pool, or is known to be gone, is fine. Until the graph is gone the pool keeps its memory
/// mapped; trim and squeeze leave it alone.
///
/// Too early a call cannot be seen here, but the pool refuses every later call that names a stream which still is
/// being captured so (WEIR_ERROR_CAPTURE). The release threshold is applied.
///
/// Errors: the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_release_capture(pool: *mut weir_pool, capture: u64) -> weir_status {
    guard("weir_pool_release_capture", InChild::Ignore, || {
        threads::with(args::handle(pool)?, |pool| {
            pool.release_capture(CaptureId(capture))
        })
    })
}
