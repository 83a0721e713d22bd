//! Pools.

use super::args::{self, Out, slice, widen};
use super::guard::{InChild, guard};
use super::options::{self, weir_pool_options};
use super::status::weir_status;
use super::types::{self, weir_pool, weir_stream};
use super::valgrind;
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::config::MemoryKind;
use crate::lifecycle::{defaults, end, order, registry, threads};
use crate::pool::Pool;
use std::ffi::{c_int, c_void};

/// Calls a pool for a request that needs it alive.
#[inline]
pub(super) fn serve<R>(handle: usize, f: impl FnOnce(&Pool) -> Result<R, Error>) -> Result<R, Error> {
    threads::with(handle, f).map_err(|error| match error {
        Error::Finalized { .. } if end::exiting() => Error::Unloaded,
        error => error,
    })
}

/// Calls a pool to give `blocks` back. Once the process is exiting there may be nothing left to give them to, which
/// is fine.
#[inline]
pub(super) fn give_back(
    handle: usize,
    blocks: &[*mut c_void],
    f: impl FnOnce(&Pool) -> Result<(), Error>,
) -> Result<(), Error> {
    match threads::with(handle, f) {
        Ok(()) => Ok(()),
        Err(error) => {
            let result = forgive(Err(end::find_owner(error)));
            if result.is_ok() && valgrind::active() {
                for ptr in blocks {
                    valgrind::freed(addr(*ptr), false);
                }
            }
            result
        }
    }
}

fn forgive(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Finalized { .. }) if end::exiting() => Ok(()),
        Err(Error::Unloaded) => Ok(()),
        result => result,
    }
}

/// Does valgrind want to know about this pool's blocks?
#[inline]
pub(super) fn watched(pool: &Pool) -> bool {
    valgrind::active() && pool.config().memory == MemoryKind::Host
}

/// Frees blocks, 0 among them being none, of which valgrind hears if it wants to: before, because with the pool's lock the next
/// owner may have them, and tell of them, before this thread goes on. If the pool does not take them it hears that they are still there.
#[inline]
pub(super) fn freeing<R>(
    pool: &Pool,
    handle: usize,
    blocks: &[Addr],
    in_flight: bool,
    free: impl FnOnce() -> Result<R, Error>,
) -> Result<R, Error> {
    if !watched(pool) {
        return free();
    }
    let all = || blocks.iter().filter(|at| at.0 != 0);
    if all().any(|&at| pool.block_size(at).is_none()) {
        return free(); // which takes none
    }
    // how long each was; a free of one block allocates no memory
    let (mut one, mut many) = ([None], Vec::new());
    let told = match blocks.len() {
        0 | 1 => &mut one[..],
        count => {
            many.resize(count, None);
            &mut many[..]
        }
    };
    for (&at, told) in all().zip(told.iter_mut()) {
        *told = valgrind::freed(at, in_flight);
    }
    let freed = free();
    if freed.is_err() {
        for (&at, told) in all().zip(told) {
            // none for one that is there twice
            if let Some(bytes) = *told {
                valgrind::allocated(handle, at, bytes, true);
            }
        }
    }
    freed
}

/// Runs something that ends pools, and settles their blocks with valgrind.
fn ending(f: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let result = forgive(f());
    if valgrind::active() {
        // while the process is exiting, blocks of pools that weir ended may still be freed by their owners
        valgrind::ended(|handle| match registry::POOLS.get(handle) {
            Err(Error::Finalized { .. }) => end::exiting(),
            found => found.is_ok(),
        });
    }
    result
}

pub(super) fn stream(stream: weir_stream) -> StreamHandle {
    StreamHandle(stream.addr())
}

pub(super) fn addr(block: *mut c_void) -> Addr {
    Addr(block.addr() as u64)
}

/// The pointer of a block. Its memory is mapped outside of what Rust knows.
pub(super) fn pointer(at: Addr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at.0 as usize)
}

/// Creates a pool and gives the caller its only reference. `options` NULL means the defaults and the environment,
/// as weir_pool_options_init gives them. The options are copied.
///
/// With WEIR_NVTX=1 in the environment (0 or unset: off) a pool of device memory takes it as with
/// WEIR_DEVICE_MEMORY_PLAIN, and tells the tool that NVTX_INJECTION64_PATH names of every block, with the size that was
/// asked for: compute-sanitizer then reports a write past a block's end, and a block that is never freed. The CUDA
/// runtime must have been initialised before. Memory with live blocks is not given back when such a pool ends.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_STRUCT_SIZE; WEIR_ERROR_INVALID_ARGUMENT for a value out of range;
/// WEIR_ERROR_NOT_SUPPORTED for ipc_handle_types or gpu_direct_rdma that the device does not have,
/// when 1024 pools are live, or for a tool that knows nothing of NVTX's memory extension;
/// WEIR_ERROR_DRIVER_UNAVAILABLE if no CUDA driver can be used: the library libcuda.so.1, or what WEIR_CUDA_LIBRARY
/// names, is opened by the first pool that needs it; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_OUT_OF_MEMORY if
/// initial_bytes cannot be had, WEIR_ERROR_SIZE_TOO_LARGE if nobody could have them; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED;
/// WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_create(
    options: *const weir_pool_options,
    pool: *mut *mut weir_pool,
) -> weir_status {
    guard("weir_pool_create", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(pool, "pool") }?;
        // SAFETY: NULL or the caller's options.
        let (config, cell) = unsafe { options::read(options) }?;
        let handle = end::create(config)?;
        cell.store(handle, std::sync::atomic::Ordering::Release);
        out.set(args::pool(handle));
        Ok(())
    })
}

/// Ends a pool whatever its references: waits for work queued on its freed blocks and gives all memory back. NULL
/// is fine. Every later use of the handle is WEIR_ERROR_POOL_DESTROYED. In a forked child it does nothing; so it
/// does for a pool that weir ended itself at exit.
///
/// Errors: WEIR_ERROR_LIVE_BLOCKS if blocks were still allocated (their memory is gone, and the message lists
/// them); WEIR_ERROR_INVALID_POOL; WEIR_ERROR_POOL_DESTROYED; WEIR_ERROR_FINALIZED; WEIR_ERROR_BACKEND, and the pool lives on, if
/// it is of host memory and the caller a function that runs on a host stream, which would wait for itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_destroy(pool: *mut weir_pool) -> weir_status {
    guard("weir_pool_destroy", InChild::Ignore, || {
        if pool.is_null() {
            return Ok(());
        }
        ending(|| end::destroy(pool.addr()))
    })
}

/// Adds a reference, to be given back by weir_pool_release.
///
/// Errors: the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_retain(pool: *mut weir_pool) -> weir_status {
    guard("weir_pool_retain", InChild::Refuse, || {
        registry::POOLS.retain(args::handle(pool)?)
    })
}

/// Gives a reference back; the last one destroys the pool, as weir_pool_destroy does. NULL is fine.
///
/// Errors: as weir_pool_destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_release(pool: *mut weir_pool) -> weir_status {
    guard("weir_pool_release", InChild::Ignore, || {
        if pool.is_null() {
            return Ok(());
        }
        ending(|| end::release(pool.addr()))
    })
}

/// Gives the default pool of a device, the same for the whole process, and creates it at first use with the
/// defaults and the environment. `device` is a GPU's ordinal, or WEIR_DEVICE_HOST for plain host memory. The
/// handle is borrowed: weir ends the pool at exit or in weir_finalize, and the caller releases nothing.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for a device that cannot exist or a malformed
/// variable; WEIR_ERROR_DRIVER_UNAVAILABLE; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_OUT_OF_MEMORY; WEIR_ERROR_BACKEND;
/// WEIR_ERROR_UNLOADED if it does not exist and the process is exiting; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_default_pool(device: c_int, pool: *mut *mut weir_pool) -> weir_status {
    guard("weir_default_pool", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(pool, "pool") }?;
        out.set(args::pool(defaults::default_pool(device, options::defaults)?));
        Ok(())
    })
}

/// Gives the default pool of page-locked memory for a GPU, the same for the whole process, and creates it at first use with
/// the defaults and the environment. Copies with WEIR_COPY_STAGED go through it. The handle is borrowed, as that of
/// weir_default_pool.
///
/// Errors: those of weir_default_pool; WEIR_ERROR_INVALID_ARGUMENT also for WEIR_DEVICE_HOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_default_pinned_pool(device: c_int, pool: *mut *mut weir_pool) -> weir_status {
    guard("weir_default_pinned_pool", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(pool, "pool") }?;
        out.set(args::pool(defaults::default_pinned_pool(
            device,
            options::defaults,
        )?));
        Ok(())
    })
}

/// Makes a pool the current one of a device; NULL returns to the default pool. The pool is not retained: when it
/// ends, the device returns to its default.
///
/// Errors: WEIR_ERROR_INVALID_ARGUMENT for a device that cannot exist or a pool of other memory;
/// WEIR_ERROR_INVALID_POOL; WEIR_ERROR_POOL_DESTROYED; WEIR_ERROR_FINALIZED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_device_set_pool(device: c_int, pool: *mut weir_pool) -> weir_status {
    guard("weir_device_set_pool", InChild::Refuse, || {
        defaults::set_current(device, (!pool.is_null()).then(|| pool.addr()))
    })
}

/// Gives the current pool of a device: what weir_device_set_pool set, or else the default. The handle is
/// borrowed.
///
/// Errors: as weir_default_pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_device_get_pool(device: c_int, pool: *mut *mut weir_pool) -> weir_status {
    guard("weir_device_get_pool", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(pool, "pool") }?;
        out.set(args::pool(defaults::current_pool(device, options::defaults)?));
        Ok(())
    })
}

/// Tells where a pool's memory is: `memory` gets a weir_memory, and `device` the GPU's ordinal, or WEIR_DEVICE_HOST
/// where there is none. Either may be NULL.
///
/// Errors: the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_get_memory(
    pool: *mut weir_pool,
    memory: *mut i32,
    device: *mut c_int,
) -> weir_status {
    guard("weir_pool_get_memory", InChild::Refuse, || {
        let (kind, ordinal) = serve(args::handle(pool)?, |pool| {
            let config = pool.config();
            Ok(types::memory_numbers(config.memory, config.device))
        })?;
        for (place, value) in [(memory, kind), (device, ordinal)] {
            if !place.is_null() {
                // SAFETY: not NULL, so it is the caller's variable.
                unsafe { Out::new(place, "memory") }?.set(value);
            }
        }
        Ok(())
    })
}

/// Waits until the functions that were deferred by weir_stream_defer have been called. Then ends every pool of the
/// process, whatever its references, and all host streams and events, after the work queued on them; gives all memory
/// back. Safe to call twice, from several threads, at exit, and after the driver is gone, but not from a function that runs
/// on a host stream or was deferred; in a forked child it does nothing. Afterwards pool handles from before answer
/// WEIR_ERROR_FINALIZED, and the next use of weir starts anew.
///
/// Errors: WEIR_ERROR_LIVE_BLOCKS if blocks were still allocated (every pool is gone all the same, and the message lists
/// them), or if a pool stays because a stream is being captured, which the message says.
#[unsafe(no_mangle)]
pub extern "C" fn weir_finalize() -> weir_status {
    guard("weir_finalize", InChild::Ignore, || ending(end::finalize))
}

/// Makes `counts[i]` blocks of `sizes[i]` bytes, for every i below `n`, available to `stream` so that allocating
/// them needs no growth. The arrays may be NULL if `n` is 0.
///
/// Errors: those of weir_pool_alloc; WEIR_ERROR_INVALID_ARGUMENT for an impossible `n`, or counts that add up to more than 2^32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_warmup(
    pool: *mut weir_pool,
    sizes: *const usize,
    counts: *const usize,
    n: usize,
    stream: weir_stream,
) -> weir_status {
    guard("weir_pool_warmup", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        // SAFETY: NULL, or arrays of the caller's with `n` elements.
        let (sizes, counts) = unsafe { (slice(sizes, n, "sizes")?, slice(counts, n, "counts")?) };
        serve(handle, |pool| {
            pool.warmup(widen(sizes), widen(counts), self::stream(stream))
        })
    })
}

/// Gives free memory back until the pool holds at most `min_bytes_to_keep` bytes or nothing more can be given back. What
/// another process has imported is not free (weir_pool_export_pointer). Nor goes what may still be in use by queued work: of
/// memory freed on created streams that are not declared up to a 16th of the pool may count as that until such a stream is
/// named again, or the program is seen to wait for it.
/// Waits for no work, except that WEIR_DEVICE_MEMORY_PLAIN is memory that the driver may take back only when running
/// kernels, whosever they are, have ended.
///
/// Errors: the pool errors; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_trim(pool: *mut weir_pool, min_bytes_to_keep: usize) -> weir_status {
    guard("weir_pool_trim", InChild::Refuse, || {
        serve(args::handle(pool)?, |pool| pool.trim(min_bytes_to_keep as u64))
    })
}

/// Gives everything back that is free: waits for the work that freed blocks still wait for, and empties caches.
/// `released`, which may be NULL, gets the number of bytes.
///
/// Errors: the pool errors; WEIR_ERROR_BACKEND, also for a pool of host memory in a function that runs on a host stream;
/// WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_squeeze(pool: *mut weir_pool, released: *mut usize) -> weir_status {
    guard("weir_pool_squeeze", InChild::Refuse, || {
        let bytes = serve(args::handle(pool)?, |pool| {
            order::may_wait_for(pool)?;
            pool.squeeze()
        })?;
        if !released.is_null() {
            // SAFETY: not NULL, so it is the caller's variable.
            unsafe { Out::new(released, "released") }?.set(bytes as usize);
        }
        Ok(())
    })
}

/// Sets WEIR_ATTRIBUTE_RELEASE_THRESHOLD to `bytes`; UINT64_MAX is never reached.
///
/// Errors: the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_set_release_threshold(pool: *mut weir_pool, bytes: u64) -> weir_status {
    guard("weir_pool_set_release_threshold", InChild::Refuse, || {
        serve(args::handle(pool)?, |pool| {
            pool.set_attribute(crate::pool::Attribute::ReleaseThreshold, bytes)
        })
    })
}

/// Sets an attribute, a weir_attribute.
///
/// Errors: the pool errors; WEIR_ERROR_INVALID_ARGUMENT for an attribute that does not exist or is read only, or a
/// value that it cannot have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_set_attribute(
    pool: *mut weir_pool,
    attribute: i32,
    value: u64,
) -> weir_status {
    guard("weir_pool_set_attribute", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        let attribute = types::attribute(attribute)?;
        serve(handle, |pool| pool.set_attribute(attribute, value))
    })
}

/// Reads an attribute, a weir_attribute. Of memory used and reserved it tells what weir_pool_get_stats would.
///
/// Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for an attribute that does not
/// exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_get_attribute(
    pool: *mut weir_pool,
    attribute: i32,
    value: *mut u64,
) -> weir_status {
    guard("weir_pool_get_attribute", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(value, "value") }?;
        let attribute = types::attribute(attribute)?;
        out.set(serve(handle, |pool| pool.attribute(attribute))?);
        Ok(())
    })
}
