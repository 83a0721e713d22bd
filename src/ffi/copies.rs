//! Copies whose ends may go away, calls deferred until work is complete, and memory page-locked for copies.

use super::args;
use super::guard::{InChild, guard};
use super::options;
use super::pool::{addr, stream};
use super::status::weir_status;
use super::types::{WEIR_COPY_HOLD, WEIR_COPY_STAGED, weir_callback, weir_stream};
use super::valgrind;
use crate::base::error::Error;
use crate::lifecycle::copies::{self, Copy};
use crate::lifecycle::{order, pinning};
use std::ffi::c_void;

fn ends(dst: *mut c_void, src: *const c_void, bytes: usize) -> Result<Copy, Error> {
    for (pointer, what) in [(dst.cast_const(), "dst"), (src, "src")] {
        if pointer.is_null() && bytes > 0 {
            return Err(Error::NullPointer {
                what,
                hint: "pass where the copy begins",
            });
        }
    }
    // the memory is C's, and nobody here has a reference to it
    dst.expose_provenance();
    src.expose_provenance();
    Ok(Copy {
        to: addr(dst),
        from: addr(src.cast_mut()),
        bytes: bytes as u64,
    })
}

/// Valgrind must not take a block for gone that a queued copy uses after its free.
fn announce(stream: weir_stream) {
    if valgrind::active() && order::is_host_stream(self::stream(stream)) {
        valgrind::shared();
    }
}

fn function(
    call: weir_callback,
    arg: *mut c_void,
    what: &'static str,
) -> Result<Box<dyn FnOnce() + Send>, Error> {
    let Some(call) = call else {
        return Err(Error::NullPointer {
            what,
            hint: "pass the function to call",
        });
    };
    // An integer because work for another thread may not hold a pointer; its provenance is C's.
    let arg = arg.expose_provenance();
    // SAFETY: the caller gave this function for this use, with its argument.
    Ok(Box::new(move || unsafe {
        call(std::ptr::with_exposed_provenance_mut(arg))
    }))
}

/// Queues a copy of `bytes` from `src` to `dst` on `stream`. Either end may be memory of a GPU or of the host, of a pool or
/// of anybody else. On a driver's stream it is the driver's copy (cuMemcpyAsync), on a host stream the stream's thread makes
/// it, and on a stream with nothing in flight it is made at once. The two ends do not overlap. A driver makes a copy between two
/// places of the host's memory before the call returns, when the stream has done all before it.
///
/// Blocks of pinned pools, and on host streams of host pools, may be freed as soon as the call has returned, on any stream,
/// by weir_pool_free_synced too: their memory serves nobody before the copy is complete, so that the next owner may write it
/// without asking. Any other memory must stay until then, and blocks of device pools follow the order of streams. In a
/// capture the block belongs to the graph, as by weir_pool_record_stream.
///
/// WEIR_COPY_STAGED: the source may change, or go, when the call returns. Host memory is copied in pieces to page-locked
/// memory of the default pinned pool of the stream's GPU (weir_default_pinned_pool; on a host stream, of a host pool of
/// weir's own), by several threads if it is much, while the stream copies the pieces before; where all pieces are on their way
/// behind a slow stream the call waits for it. To pageable memory the copy is complete when the call returns. If there is
/// no memory for pieces, and for a copy between two places of pageable memory, or of GPUs, it is a copy without the flag
/// that the call waits for. On a host stream blocks of host pools are what a GPU's memory is elsewhere; between two places of other
/// memory the source is read at once, and the target written in the order of the stream. A staged copy that failed may have been made in part. Copies of at most 64 KiB share blocks of
/// 512 KiB of that pool, one for each stream at a time, which are kept for the next ones until the pool is asked for memory
/// that it has not at hand, is trimmed, or is asked for its figures.
///
/// Any thread may call it. Errors: WEIR_ERROR_NULL_POINTER (unless `bytes` is 0); WEIR_ERROR_INVALID_ARGUMENT for flags that
/// do not exist, and for WEIR_COPY_HOLD, which is weir_copy_async_hold's; WEIR_ERROR_DOUBLE_FREE if an end lies in memory
/// of a host or pinned pool that is no live block's; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for a staged copy on a
/// stream that is captured; WEIR_ERROR_BACKEND, also for a staged copy that would have to wait for the host stream whose
/// function asks for it, and of which nothing is made; WEIR_ERROR_DEVICE_LOST, also if that happened while the call waited;
/// WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_copy_async(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: weir_stream,
    flags: u32,
) -> weir_status {
    guard("weir_copy_async", InChild::Refuse, || {
        let copy = ends(dst, src, bytes)?;
        announce(stream);
        match flags {
            0 => copies::copy(copy, self::stream(stream)),
            WEIR_COPY_STAGED => copies::copy_staged(copy, self::stream(stream), options::defaults),
            WEIR_COPY_HOLD => Err(Error::InvalidArgument(
                "WEIR_COPY_HOLD needs a function to call when the copy is complete: call weir_copy_async_hold".into(),
            )),
            _ => Err(Error::InvalidArgument(format!(
                "flags is {flags:#x}; pass 0 or WEIR_COPY_STAGED ({WEIR_COPY_STAGED})"
            ))),
        }
    })
}

/// Like weir_copy_async, for an end that somebody else owns, such as memory that another library has page-locked:
/// `release(arg)` is called when the copy is complete. `flags` is 0 or WEIR_COPY_HOLD, which mean the same.
///
/// `release` is called once if the call succeeds, and never if it fails; then the copy may have been queued all the same
/// (WEIR_ERROR_BACKEND, WEIR_ERROR_DEVICE_LOST), so wait for the stream before the memory goes. How it is called
/// weir_stream_defer says.
///
/// Errors: those of weir_copy_async; WEIR_ERROR_NULL_POINTER for `release`; WEIR_ERROR_CAPTURE for a stream that is
/// captured; WEIR_ERROR_UNLOADED also while weir_finalize waits for the functions deferred before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_copy_async_hold(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: weir_stream,
    flags: u32,
    release: weir_callback,
    arg: *mut c_void,
) -> weir_status {
    guard("weir_copy_async_hold", InChild::Refuse, || {
        let copy = ends(dst, src, bytes)?;
        if flags & !WEIR_COPY_HOLD != 0 {
            return Err(Error::InvalidArgument(format!(
                "flags is {flags:#x}; pass 0 or WEIR_COPY_HOLD ({WEIR_COPY_HOLD}): a staged copy holds nothing"
            )));
        }
        announce(stream);
        copies::copy_hold(copy, self::stream(stream), function(release, arg, "release")?)
    })
}

/// Has `callback(arg)` called once the work queued on `stream` until now is complete, for what must outlive it.
///
/// It is called by a thread of weir's own, with no lock held and outside of the driver's callbacks, so it may call weir and
/// the driver; it must not call weir_finalize nor exit, and should be short, because one thread calls all. Functions of one
/// stream are called in the order in which they were deferred; a slow stream holds back no other's. The stream may be
/// destroyed at once. If the device is lost they are called, since nothing runs any more. All have been called when
/// weir_finalize returns, and at exit before the driver goes; both wait for the work. A forked child calls none.
///
/// Any thread may call it. Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for a stream that
/// is captured; WEIR_ERROR_BACKEND, also if there is no thread; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED, also while
/// weir_finalize waits for those deferred before; WEIR_ERROR_FORKED. `callback` is then never called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stream_defer(
    stream: weir_stream,
    callback: weir_callback,
    arg: *mut c_void,
) -> weir_status {
    guard("weir_stream_defer", InChild::Refuse, || {
        copies::defer(self::stream(stream), function(callback, arg, "callback")?)
    })
}

/// Page-locks memory that the program owns, so that copies from and to it are asynchronous and GPUs reach it, by
/// cuMemHostRegister; memory that is page-locked already is only noted. The memory must stay until weir_host_unregister or
/// weir_finalize. It takes about 40 ms for a GiB of memory that was touched before. The driver is opened if nobody has.
///
/// Any thread may call it. Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for memory that overlaps with what is
/// registered, or of which a part is page-locked already; WEIR_ERROR_NOT_SUPPORTED for a GPU's memory; WEIR_ERROR_DRIVER_UNAVAILABLE; WEIR_ERROR_BACKEND;
/// WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_register(ptr: *mut c_void, bytes: usize) -> weir_status {
    guard("weir_host_register", InChild::Refuse, || {
        pinning::register(memory(ptr)?, bytes as u64)
    })
}

/// Ends what weir_host_register began, after all work queued on the GPUs that pools use. The memory is the program's as
/// before. NULL is fine; in a forked child it does nothing. While another thread registers that memory, or ends its
/// registration, the call waits for that.
///
/// Errors: WEIR_ERROR_INVALID_ARGUMENT if nothing is registered that begins at `ptr`; WEIR_ERROR_BACKEND;
/// WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_host_unregister(ptr: *mut c_void) -> weir_status {
    guard("weir_host_unregister", InChild::Ignore, || match ptr.is_null() {
        true => Ok(()),
        false => pinning::unregister(memory(ptr)?),
    })
}

fn memory(ptr: *mut c_void) -> Result<crate::base::units::Addr, Error> {
    args::not_null(ptr, "ptr", "pass where the memory begins")?;
    ptr.expose_provenance();
    Ok(addr(ptr))
}
