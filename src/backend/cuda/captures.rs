//! What work queued on a stream goes into: the one thing that may be asked of any stream at any time.

use super::driver::{Driver, SUCCESS};
use super::streams::{check_handle, handle};
use super::symbols::Code;
use crate::backend::BackendError;
use crate::base::units::{CaptureId, StreamHandle};
use cuda_driver_sys::{CUresult, CUstreamCaptureStatus};
use std::ffi::c_uint;

const NONE: c_uint = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint;

/// What work queued on a stream goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capturing {
    No,
    /// The legacy stream, which cannot be used while another stream is captured.
    ByOther,
    Into(CaptureId),
}

/// What the driver says of a stream. None: no capture is older than the call that asks.
#[inline]
fn status(driver: &Driver, stream: StreamHandle) -> Option<(Code, c_uint)> {
    let is_capturing = driver.symbols.stream_is_capturing?;
    let mut status = NONE;
    // SAFETY: the caller's stream, which is the driver's; the variable is ours.
    let code = unsafe { is_capturing(handle(stream), &raw mut status) };
    Some((code, status))
}

/// Is it certain that a stream of the driver's is not being captured?
#[inline]
pub(super) fn is_none(driver: &Driver, stream: StreamHandle) -> bool {
    status(driver, stream).is_none_or(|status| status == (SUCCESS, NONE))
}

/// Asks a stream for its capture.
pub(super) fn capturing(driver: &Driver, stream: StreamHandle) -> Result<Capturing, BackendError> {
    const IMPLICIT: Code = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as Code;
    const ACTIVE: c_uint = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE as c_uint;
    check_handle(stream)?;
    let Some((code, mut status)) = status(driver, stream) else {
        return Ok(Capturing::No);
    };
    match code {
        SUCCESS => {}
        IMPLICIT => return Ok(Capturing::ByOther),
        code => return Err(driver.stream_error("cuStreamIsCapturing", code)),
    }
    let mut capture = 0;
    if status == ACTIVE {
        let Some(get_info) = driver.symbols.stream_get_capture_info else {
            return Err(BackendError::NotSupported(format!(
                "memory for a stream that is being captured needs CUDA 10.1; this driver is for {}",
                driver.version()
            )));
        };
        // SAFETY: as above.
        let code = unsafe { get_info(handle(stream), &raw mut status, &raw mut capture) };
        if code != SUCCESS {
            return Err(driver.stream_error("cuStreamGetCaptureInfo", code));
        }
    }
    match status {
        NONE => Ok(Capturing::No),
        ACTIVE => Ok(Capturing::Into(CaptureId(capture))),
        _ => Err(BackendError::Capturing(
            "its capture was invalidated; end it before the stream is used again".into(),
        )),
    }
}
