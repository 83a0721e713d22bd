//! Blocks of a pool, one at a time.

use super::args::{self, Out};
use super::guard::{InChild, guard};
use super::pool::{addr, give_back, pointer, serve, stream, watched};
use super::status::weir_status;
use super::types::{weir_pool, weir_stream};
use super::valgrind;
use crate::backend::own::Mine;
use crate::backend::process;
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::lifecycle::threads::{self, Caches, Place};
use crate::lifecycle::{end, order};
use crate::pool::{Missed, Pool, ThreadCache};
use std::cell::Ref;
use std::ffi::c_void;

/// Tells valgrind that a block goes back, if the pool has it.
fn announce_free(pool: &Pool, at: Addr, in_flight: bool) {
    if pool.block_size(at).is_some() {
        valgrind::freed(at, in_flight);
    }
}

/// Allocates `bytes` for use on `stream`, aligned to 256 bytes. 0 bytes give a pointer of their own. Work queued on
/// `stream` from now on may use the block; other streams must be ordered behind this call by the program.
/// Before it fails for lack of memory it waits for all queued work, whose memory may then serve it.
///
/// Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_OUT_OF_MEMORY; WEIR_ERROR_SIZE_TOO_LARGE;
/// WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_alloc(
    pool: *mut weir_pool,
    bytes: usize,
    stream: weir_stream,
    ptr: *mut *mut c_void,
) -> weir_status {
    let mine = threads::mine();
    let place = own_place(&mine, pool, stream);
    // SAFETY: it takes a block from the cache's lists, and the caller's promise.
    match unsafe { served(place, ptr, |cache| cache.alloc_small(bytes as u64)) } {
        Ok(()) => weir_status::WEIR_OK,
        // SAFETY: the caller's promise about `ptr`, passed on.
        Err(Missed::Shut) => unsafe { alloc_by_heart(pool, bytes, stream, ptr, place) },
        // SAFETY: as above.
        Err(Missed::Other) => unsafe { alloc_larger(pool, bytes, stream, ptr, place) },
    }
}

/// Like weir_pool_alloc, aligned to `alignment` bytes: a power of two, or 0 for 256.
///
/// Errors: those of weir_pool_alloc; WEIR_ERROR_INVALID_ALIGNMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_alloc_aligned(
    pool: *mut weir_pool,
    bytes: usize,
    alignment: usize,
    stream: weir_stream,
    ptr: *mut *mut c_void,
) -> weir_status {
    // SAFETY: the caller's promise about `ptr`, passed on.
    unsafe { alloc("weir_pool_alloc_aligned", pool, bytes, alignment, stream, ptr) }
}

/// The same as `weir_pool_alloc_aligned`.
///
/// # Safety
/// `ptr` is NULL or can be written.
pub(super) unsafe fn alloc(
    name: &str,
    pool: *mut weir_pool,
    bytes: usize,
    alignment: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
) -> weir_status {
    let alignment = match alignment {
        1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256 => 0, // every block's
        other => other,
    };
    let mine = threads::mine();
    let place = own_place(&mine, pool, on);
    let any = |cache: &ThreadCache| {
        let bytes = bytes as u64;
        let small = cache.alloc_small(bytes);
        small.or_else(|missed| match missed {
            Missed::Shut => cache.alloc_by_heart(bytes),
            Missed::Other => cache.alloc_larger(bytes).or_else(|_| cache.alloc_searched(bytes)),
        })
    };
    // SAFETY: it takes a block from the cache's lists, or reads the tape, and the caller's promise.
    if alignment == 0 && unsafe { served(place, ptr, any) }.is_ok() {
        return weir_status::WEIR_OK;
    }
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_rest(name, pool, bytes, alignment, on, ptr, place) }
}

/// Where the calling thread's cache is, if it may be asked without further ado.
#[inline(always)]
fn own_place(mine: &Option<Mine<Caches>>, pool: *mut weir_pool, on: weir_stream) -> Option<&Place> {
    match process::disturbed() {
        true => None,
        false => mine.as_ref()?.place(pool.addr(), stream(on)),
    }
}

/// Asks the cache that is there, without a note of it: to borrow it would be a twentieth of a hit.
///
/// # Safety
/// `ask` calls nothing but the cache, which knows of no place: so nobody puts another one there meanwhile.
#[inline(always)]
unsafe fn glance<R>(
    place: Option<&Place>,
    ask: impl FnOnce(&ThreadCache) -> Result<R, Missed>,
) -> Result<R, Missed> {
    let place = place.ok_or(Missed::Other)?;
    // SAFETY: the place is the calling thread's alone, and the rest is the caller's promise.
    let cache = unsafe { place.try_borrow_unguarded() }.map_err(|_| Missed::Other)?;
    ask(cache.as_ref().ok_or(Missed::Other)?)
}

/// Hands out the block that the cache has for `ask`, if there is a place for its address.
///
/// # Safety
/// `ptr` is NULL or can be written; `ask` is as for `glance`.
#[inline(always)]
unsafe fn served(
    place: Option<&Place>,
    ptr: *mut *mut c_void,
    ask: impl FnOnce(&ThreadCache) -> Result<Addr, Missed>,
) -> Result<(), Missed> {
    if ptr.is_null() {
        return Err(Missed::Other);
    }
    // SAFETY: the caller's promise.
    let at = unsafe { glance(place, ask) }?;
    // SAFETY: not NULL, so the caller promised that it can be written.
    unsafe { ptr.write(pointer(at)) };
    Ok(())
}

/// What `weir_pool_alloc` goes on with where calls may be answered as in the round before. It has the same arguments, so that
/// the other one, which nearly all calls of many programs end in, has to keep no register.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe fn alloc_by_heart(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    place: Option<&Place>,
) -> weir_status {
    // SAFETY: it reads the tape, and the caller's promise.
    if unsafe { served(place, ptr, |cache| cache.alloc_by_heart(bytes as u64)) }.is_ok() {
        return weir_status::WEIR_OK;
    }
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_missed(pool, bytes, on, ptr, place) }
}

/// What `weir_pool_alloc` goes on with where the block is of no slab, or not in the cache. It has the same arguments
/// for the same reason.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe fn alloc_larger(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    place: Option<&Place>,
) -> weir_status {
    // SAFETY: it takes a block from the cache's lists, and the caller's promise.
    if unsafe { served(place, ptr, |cache| cache.alloc_larger(bytes as u64)) }.is_ok() {
        return weir_status::WEIR_OK;
    }
    if ThreadCache::takes_search(bytes as u64) {
        // SAFETY: the caller's promise, passed on.
        return unsafe { alloc_searched(pool, bytes, on, ptr, place) };
    }
    // SAFETY: as above.
    unsafe { alloc_missed(pool, bytes, on, ptr, place) }
}

/// What that goes on with where it takes a search; for the same reason.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe fn alloc_searched(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    place: Option<&Place>,
) -> weir_status {
    // SAFETY: it takes a block from the cache's lists, and the caller's promise.
    if unsafe { served(place, ptr, |cache| cache.alloc_searched(bytes as u64)) }.is_ok() {
        return weir_status::WEIR_OK;
    }
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_missed(pool, bytes, on, ptr, place) }
}

/// What that goes on with where the cache has nothing at all; for the same reason.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe fn alloc_missed(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    place: Option<&Place>,
) -> weir_status {
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_rest("weir_pool_alloc", pool, bytes, 0, on, ptr, place) }
}

/// What is left of a request: the thread's cache where it has to ask the driver whose the stream is, and the pool.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(always)]
unsafe fn alloc_rest(
    name: &str,
    pool: *mut weir_pool,
    bytes: usize,
    alignment: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    place: Option<&Place>,
) -> weir_status {
    let cache = place.and_then(threads::borrow);
    guard(name, InChild::Refuse, move || {
        let (handle, on) = (args::handle(pool)?, stream(on));
        let (bytes, alignment) = (bytes as u64, alignment as u64);
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(ptr, "ptr") }?;
        let kept = cache
            .as_ref()
            .and_then(|cache| cache.alloc_rest(bytes, alignment));
        let at = match kept {
            Some(at) => at,
            None => alloc_beside(handle, bytes, alignment, on, cache)?,
        };
        out.set(pointer(at));
        Ok(())
    })
}

/// Asks the thread's cache, unless that was done before: while valgrind wants to hear of blocks it was not.
pub(super) fn not_asked<R>(
    handle: usize,
    on: StreamHandle,
    ask: impl FnOnce(&ThreadCache) -> Option<R>,
) -> Option<R> {
    match valgrind::active() {
        true => threads::cached(handle, on, |cache| cache.is_usable().then(|| ask(cache))?),
        false => None,
    }
}

/// A block that the thread's cache did not have.
#[inline(always)]
fn alloc_beside(
    handle: usize,
    bytes: u64,
    alignment: u64,
    on: StreamHandle,
    cache: Option<Ref<'_, ThreadCache>>,
) -> Result<Addr, Error> {
    serve(handle, |pool| {
        let at = match not_asked(handle, on, |cache| cache.alloc(bytes, alignment)) {
            Some(at) => at,
            None => threads::beside(pool, handle, on, cache, |own| {
                pool.alloc_beside(own, bytes, alignment, on)
            })?,
        };
        if watched(pool) {
            valgrind::allocated(handle, at, bytes, order::is_host_stream(on));
        }
        Ok(at)
    })
}

/// Frees a block: its memory is for `stream` at once, and for other streams when the work queued on `stream` until
/// now is known to be complete or ordered before theirs. NULL is fine. It allocates no memory, unless what is
/// reserved is above the release threshold and memory is given back, or calls were answered as in the round before and this is the
/// first that differs; a call that fails has changed nothing. Once the process is exiting, and in a forked child, it does nothing where nothing is
/// left to do.
///
/// Errors: WEIR_ERROR_NULL_POINTER for the pool; WEIR_ERROR_INVALID_POOL; WEIR_ERROR_POOL_DESTROYED;
/// WEIR_ERROR_FINALIZED; WEIR_ERROR_UNKNOWN_POINTER; WEIR_ERROR_INTERIOR_POINTER; WEIR_ERROR_DOUBLE_FREE;
/// WEIR_ERROR_WRONG_POOL; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_free(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    stream: weir_stream,
) -> weir_status {
    let on = super::pool::stream(stream);
    let mine = threads::mine();
    let place = own_place(&mine, pool, stream);
    // SAFETY: it puts a block on one of the cache's lists.
    match unsafe { glance(place, |cache| cache.free_small(addr(ptr))) } {
        Ok(_) => weir_status::WEIR_OK,
        Err(Missed::Shut) => free_by_heart(pool, ptr, on, place),
        Err(Missed::Other) => free_larger(pool, ptr, on, place),
    }
}

/// As `alloc_by_heart`.
#[inline(never)]
fn free_by_heart(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: StreamHandle,
    place: Option<&Place>,
) -> weir_status {
    // SAFETY: it reads the tape.
    match unsafe { glance(place, |cache| cache.free_by_heart(addr(ptr))) } {
        Ok(_) => weir_status::WEIR_OK,
        Err(_) => free_missed(pool, ptr, on, place),
    }
}

/// As `alloc_larger`.
#[inline(never)]
fn free_larger(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: StreamHandle,
    place: Option<&Place>,
) -> weir_status {
    // SAFETY: it puts a block on one of the cache's lists.
    match unsafe { glance(place, |cache| cache.free_larger(addr(ptr))) } {
        Ok(_) => weir_status::WEIR_OK,
        Err(_) => free_missed(pool, ptr, on, place),
    }
}

/// As `alloc_missed`.
#[inline(never)]
fn free_missed(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: StreamHandle,
    place: Option<&Place>,
) -> weir_status {
    let cache = place.and_then(threads::borrow);
    guard("weir_pool_free", InChild::Ignore, move || {
        let handle = args::handle(pool)?;
        match cache.as_ref().and_then(|cache| cache.free_rest(addr(ptr))) {
            Some(_) => Ok(()),
            None => free_beside(handle, ptr, on, cache),
        }
    })
}

/// Frees a block that the thread's cache did not keep.
#[inline]
pub(super) fn free_beside(
    handle: usize,
    ptr: *mut c_void,
    on: StreamHandle,
    cache: Option<Ref<'_, ThreadCache>>,
) -> Result<(), Error> {
    give_back(handle, &[ptr], |pool| {
        if ptr.is_null() {
            return Ok(());
        }
        let at = addr(ptr);
        if watched(pool) {
            announce_free(pool, at, order::is_host_stream(on));
        }
        match not_asked(handle, on, |cache| cache.free(at)) {
            Some(_) => Ok(()),
            None => threads::beside_in_free(pool, handle, on, cache, |own| pool.free_beside(own, at, on))
                .map(drop),
        }
    })
}

/// Frees a block all use of which is over, on every stream: its memory is for any stream at once, but what the calling thread
/// keeps for the stream that the block was allocated on, as weir_pool_free would, is for that one before others. NULL is fine.
///
/// Errors: those of weir_pool_free, but for WEIR_ERROR_INVALID_STREAM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_free_synced(pool: *mut weir_pool, ptr: *mut c_void) -> weir_status {
    guard("weir_pool_free_synced", InChild::Ignore, || {
        free_synced(args::handle(pool)?, ptr)
    })
}

pub(super) fn free_synced(handle: usize, ptr: *mut c_void) -> Result<(), Error> {
    give_back(handle, &[ptr], |pool| {
        if ptr.is_null() {
            return Ok(());
        }
        let at = addr(ptr);
        if watched(pool) {
            announce_free(pool, at, false);
        }
        match threads::cached_of_any(handle, |cache| cache.free_synced(at)) {
            Some(_) => Ok(()),
            None => pool.free_synced(at).map(drop),
        }
    })
}

/// Says that a block is also used on `stream`: once freed, it also waits for the work queued there until then.
///
/// Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_UNKNOWN_POINTER; WEIR_ERROR_INTERIOR_POINTER;
/// WEIR_ERROR_DOUBLE_FREE for a block that is not live; WEIR_ERROR_WRONG_POOL; WEIR_ERROR_INVALID_STREAM;
/// WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_record_stream(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    stream: weir_stream,
) -> weir_status {
    guard("weir_pool_record_stream", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        if ptr.is_null() {
            return Err(Error::NullPointer {
                what: "ptr",
                hint: "pass a live block",
            });
        }
        let on = super::pool::stream(stream);
        serve(handle, |pool| {
            if watched(pool) && order::is_host_stream(on) {
                valgrind::shared();
            }
            pool.record_stream(addr(ptr), on)
        })
        .map_err(end::find_owner)
    })
}
