//! Functions with the signatures that PyTorch and CuPy call allocators by
//! (`torch/csrc/cuda/CUDAPluggableAllocator.h`, `cupy/cuda/memory.pyx`).
//!
//! Blocks are of the current pool of the device that is named, and are freed to the pool that they came from. The
//! built-in streams are those of that device, whatever device is current; what is current stays so. These interfaces have
//! no place for an error: it is in `weir_last_error`, and NULL where a block was asked for.
//!
//! Locks: none of its own.

use super::args;
use super::blocks::alloc;
use super::frees::{free_beside, free_synced};
use super::guard::{InChild, guard};
use super::options;
use super::pool::addr;
use super::status::weir_status;
use super::text;
use super::types::weir_stream;
use crate::backend::process;
use crate::base::error::Error;
use crate::base::units::StreamHandle;
use crate::lifecycle::registry::POOLS;
use crate::lifecycle::{defaults, end, order, threads};
use crate::pool::Asked;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

/// Tells on which stream a program works now; it is asked on the thread that allocates or frees. It must not throw or
/// unwind.
pub type weir_current_stream = Option<unsafe extern "C" fn() -> weir_stream>;

/// A block of a device's current pool. With `used`, its free on another stream waits for this one, too. An error has left
/// its message.
fn block_of(
    name: &str,
    bytes: usize,
    device: c_int,
    stream: weir_stream,
    used: bool,
) -> Result<*mut c_void, weir_status> {
    let on = StreamHandle(stream.addr());
    let mut block = ptr::null_mut();
    let mut status = weir_status::WEIR_OK;
    let prepared = guard(name, InChild::Refuse, || {
        let handle = defaults::current_pool(device, options::defaults)?;
        order::on_device(device, on, || {
            // SAFETY: the variable is ours.
            status = unsafe { alloc(name, args::pool(handle), bytes, 0, stream, &raw mut block) };
            if used && status == weir_status::WEIR_OK {
                let recorded = POOLS
                    .get(handle)
                    .and_then(|pool| pool.record_stream(addr(block), on));
                if let Err(error) = recorded {
                    let unused = std::mem::replace(&mut block, ptr::null_mut());
                    let _ = free_beside(handle, unused, on, None, Asked::No);
                    return Err(error);
                }
            }
            Ok(())
        })
    });
    match (prepared, status) {
        (weir_status::WEIR_OK, weir_status::WEIR_OK) => Ok(block),
        (weir_status::WEIR_OK, failed) | (failed, _) => Err(failed),
    }
}

/// Frees a block, to the device's pool or else to whose it is, on a stream of the device.
fn give_back(name: &str, block: *mut c_void, device: c_int, stream: weir_stream) {
    let on = StreamHandle(stream.addr());
    guard(name, InChild::Ignore, || {
        if block.is_null() {
            return Ok(());
        }
        let at = addr(block);
        order::on_device(device, on, || {
            if let Some(handle) = defaults::known_pool(device) {
                let kept =
                    !process::disturbed() && threads::cached(handle, on, |cache| cache.free(at)).is_some();
                if kept {
                    return Ok(());
                }
                match free_beside(handle, block, on, None, Asked::No) {
                    Err(Error::WrongPool { .. }) => {}
                    result => return result,
                }
            }
            match end::owner(at) {
                Some((handle, _)) => free_beside(handle, block, on, None, Asked::No),
                None if end::exiting() => Ok(()), // the pool has ended
                None => Err(Error::UnknownPointer(at)),
            }
        })
    });
}

/// For torch.cuda.memory.CUDAPluggableAllocator in a torch.cuda.MemPool: `bytes` of the current pool of `device` for use
/// on `stream`, a stream of that device, aligned to 256 bytes. The current device stays as it is. 0 bytes give a pointer
/// of their own. The caller frees the block with weir_torch_free. Any thread may call it.
///
/// Errors: NULL, for every error of weir_device_get_pool and weir_pool_alloc; weir_last_error has the message. A MemPool
/// makes torch.OutOfMemoryError of it, but as the allocator of all of PyTorch take weir_torch_alloc_or_throw, because
/// there PyTorch does not look.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_torch_alloc(bytes: usize, device: c_int, stream: weir_stream) -> *mut c_void {
    block_of("weir_torch_alloc", bytes, device, stream, false).unwrap_or(ptr::null_mut())
}

/// For torch.cuda.memory.CUDAPluggableAllocator and torch.cuda.memory.change_current_allocator: as weir_torch_alloc, but it
/// never returns NULL in a program that has loaded the C++ library libstdc++.so.6, as PyTorch has: it throws
/// std::runtime_error, which PyTorch makes a RuntimeError with weir's message; that of a lack of memory begins with "CUDA
/// out of memory". Where there is no such library it returns NULL. Call it from C++ only.
///
/// Errors: the exception.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn weir_torch_alloc_or_throw(
    bytes: usize,
    device: c_int,
    stream: weir_stream,
) -> *mut c_void {
    match block_of("weir_torch_alloc_or_throw", bytes, device, stream, false) {
        Ok(block) => block,
        Err(status) => {
            if matches!(
                status,
                weir_status::WEIR_ERROR_OUT_OF_MEMORY | weir_status::WEIR_ERROR_SIZE_TOO_LARGE
            ) {
                speak_as_pytorch();
            }
            throw();
            ptr::null_mut()
        }
    }
}

/// For torch.cuda.memory.CUDAPluggableAllocator: frees a block of weir_torch_alloc or weir_torch_alloc_or_throw, in the
/// order of `stream`, a stream of `device`. `bytes` is not looked at. NULL is fine. The current device stays as it is. Any
/// thread may call it, at any time: once the pool has ended, and in a forked child, it does nothing.
///
/// Errors: those of weir_pool_free; weir_last_error has the message, and the block stays allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_torch_free(
    block: *mut c_void,
    bytes: usize,
    device: c_int,
    stream: weir_stream,
) {
    let _ = bytes;
    give_back("weir_torch_free", block, device, stream);
}

/// For CUDAPluggableAllocator's set_record_stream_fn, without which PyTorch's Tensor.record_stream does nothing: once
/// freed, the block also waits for the work queued on `stream` until then. A built-in stream is that of the block's device.
/// NULL and pointers that are not weir's are fine. Any thread may call it.
///
/// Errors: those of weir_pool_record_stream; weir_last_error has the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_torch_record_stream(block: *mut c_void, stream: weir_stream) {
    let on = StreamHandle(stream.addr());
    guard("weir_torch_record_stream", InChild::Ignore, || {
        match end::owner(addr(block)) {
            Some((_, pool)) => {
                order::on_device(pool.config().device, on, || pool.record_stream(addr(block), on))
            }
            None => Ok(()),
        }
    });
}

/// For CUDAPluggableAllocator's set_reset_fn, which is torch.cuda.empty_cache: gives everything back that is free in the
/// current pools of the GPUs, after the work that freed blocks still wait for. Any thread may call it.
///
/// Errors: those of weir_pool_squeeze; weir_last_error has the message.
#[unsafe(no_mangle)]
pub extern "C" fn weir_torch_empty_cache() {
    guard("weir_torch_empty_cache", InChild::Ignore, || {
        let pools = defaults::gpus().filter_map(defaults::known_pool);
        pools
            .filter_map(|handle| POOLS.get(handle).ok())
            .try_for_each(|pool| pool.squeeze().map(drop))
    });
}

/// For cupy.cuda.memory.CFunctionAllocator: `bytes` of the current pool of `device`, aligned to 256 bytes. The current
/// device stays as it is. The caller frees the block with weir_cupy_free and the same `param`. Any thread may call it.
///
/// CuPy names no stream. `param` is NULL, or a weir_current_stream that tells CuPy's current one (python/weir.py passes
/// it): the block is for that stream, and wherever it is freed, its memory then waits for the work queued there. With NULL
/// it is for the legacy default stream and what waits for that, which non-blocking streams do not.
///
/// Errors: NULL, for every error of weir_device_get_pool and weir_pool_alloc; weir_last_error has the message. CuPy does
/// not look: check MemoryPointer.ptr, as python/weir.py does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_cupy_malloc(param: *mut c_void, bytes: usize, device: c_int) -> *mut c_void {
    // SAFETY: the caller's promise, passed on.
    let stream = unsafe { current(param) };
    let on = stream.unwrap_or(ptr::null_mut());
    block_of("weir_cupy_malloc", bytes, device, on, stream.is_some()).unwrap_or(ptr::null_mut())
}

/// For cupy.cuda.memory.CFunctionAllocator: frees a block of weir_cupy_malloc. NULL is fine. With a weir_current_stream
/// in `param` it is freed in the order of the stream that this tells now, and after the work on the stream that it was
/// allocated on. With NULL the call waits for all queued work, as cudaFree does. The current device stays as it is. Any
/// thread may call it, at any time: once the pool has ended, and in a forked child, it does nothing.
///
/// Errors: those of weir_pool_free and weir_device_synchronize; weir_last_error has the message, and the block stays
/// allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_cupy_free(param: *mut c_void, block: *mut c_void, device: c_int) {
    // SAFETY: the caller's promise, passed on.
    if let Some(on) = unsafe { current(param) } {
        give_back("weir_cupy_free", block, device, on);
        return;
    }
    guard("weir_cupy_free", InChild::Ignore, || {
        let Some((handle, _)) = end::owner(addr(block)) else {
            return match block.is_null() || end::exiting() {
                true => Ok(()),
                false => Err(Error::UnknownPointer(addr(block))),
            };
        };
        match order::device_synchronize() {
            // nothing runs any more
            Ok(()) | Err(Error::Unloaded | Error::DeviceLost(_)) => free_synced(handle, block),
            Err(error) => Err(error),
        }
    });
}

/// The stream that `param` tells, if it is a function.
///
/// # Safety
/// `param` is NULL or a `weir_current_stream`.
unsafe fn current(param: *mut c_void) -> Option<weir_stream> {
    // SAFETY: a function's address, or NULL, which is None.
    let tell: weir_current_stream = unsafe { std::mem::transmute(param) };
    // SAFETY: the caller's function, which has no precondition.
    tell.map(|tell| unsafe { tell() })
}

/// Begins the last error with the words by which Python programs recognise PyTorch's own error, to try with less.
fn speak_as_pytorch() {
    // SAFETY: the text always ends with a NUL, and stays as it is until the next error.
    let said = unsafe { CStr::from_ptr(text::weir_last_error()) }
        .to_string_lossy()
        .into_owned();
    text::set_last_error(format_args!("CUDA out of memory. {said}"));
}

/// Throws the last error as a C++ exception, if the process has the library that makes one.
fn throw() {
    type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;
    const LIBRARY: &CStr = c"libstdc++.so.6";
    /// `std::__throw_runtime_error(char const*)`, which libstdc++ exports since GCC 3.4.
    const FUNCTION: &CStr = c"_ZSt21__throw_runtime_errorPKc";
    // SAFETY: C strings; NOLOAD opens nothing that is not there, and what is there stays, as this never closes it.
    let function = unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        // without it, a program that contains the C++ library
        let library = if library.is_null() {
            libc::RTLD_DEFAULT
        } else {
            library
        };
        libc::dlsym(library, FUNCTION.as_ptr())
    };
    // SAFETY: NULL, or the function of that name, whose type this is.
    if let Some(function) = unsafe { std::mem::transmute::<*mut c_void, Option<Throw>>(function) } {
        // SAFETY: a C string; nothing in this frame and its callers' has a destructor that must run.
        unsafe { function(text::weir_last_error()) };
    }
}
