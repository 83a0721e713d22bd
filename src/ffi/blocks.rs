//! Blocks of a pool, one at a time.

use super::args::{self, Out};
use super::guard::{InChild, guard};
use super::pool::{addr, pointer, serve, stream, watched};
use super::status::weir_status;
use super::types::{weir_pool, weir_stream};
use super::valgrind;
use crate::backend::own::Mine;
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::lifecycle::threads::{self, Caches, Place};
use crate::lifecycle::{end, order};
use crate::pool::{Asked, Cache, Inside, Refused, SMALL_MAX as SMALL, ThreadCache};
use std::cell::Ref;
use std::ffi::c_void;

/// Longer blocks are of no slab.
const SMALL_MAX: usize = SMALL as usize;

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
    match threads::nearest(pool.addr(), self::stream(stream)) {
        // SAFETY: `quick` gave it, and the thread's slot still has it; and the caller's promise about `ptr`, passed on.
        Some((cache, _)) => unsafe { alloc_from(&*cache, pool, bytes, stream, ptr) },
        // SAFETY: as above.
        None => unsafe { alloc_elsewhere(pool, bytes, stream, ptr) },
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
    let mine = threads::mine_if_calm();
    let any = |cache: &Cache| {
        let bytes = bytes as u64;
        let inside = match cache.enter_quick() {
            Ok(inside) => inside,
            Err(refused) => return refused.replay_alloc(bytes),
        };
        match bytes {
            _ if bytes <= SMALL => inside.take_small(bytes),
            _ if !inside.is_for_long(bytes) => inside.take_short(bytes),
            _ => inside.take_long(bytes),
        }
    };
    if alignment == 0
        && let Some(cache) = quick(&mine, pool, on)
        // SAFETY: the caller's promise.
        && unsafe { served(ptr, || any(cache)) }
    {
        return weir_status::WEIR_OK;
    }
    // SAFETY: the caller's promise, passed on.
    match unsafe { ask(own_cache(&mine, pool, stream(on)), (bytes, alignment), ptr) } {
        Ok(()) => weir_status::WEIR_OK,
        // SAFETY: as above.
        Err(asked) => unsafe { alloc_rest(name, pool, (bytes, alignment), on, ptr, asked) },
    }
}

/// The calling thread's cache, if it may be asked without further ado: what asks it calls nothing that could put another one
/// in its place.
#[inline(always)]
fn quick(mine: &Option<Mine<Caches>>, pool: *mut weir_pool, on: weir_stream) -> Option<&Cache> {
    let cache = mine.as_ref()?.quick(pool.addr(), stream(on));
    // SAFETY: it is NULL, or that of a cache that the calling thread's slot has, until the thread itself puts another one there.
    unsafe { cache.as_ref() }
}

/// Hands out the block that is found, if there is a place for its address.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(always)]
unsafe fn served(ptr: *mut *mut c_void, find: impl FnOnce() -> Option<u64>) -> bool {
    if ptr.is_null() {
        return false;
    }
    let Some(at) = find() else { return false };
    // SAFETY: not NULL, so the caller promised that it can be written.
    unsafe { ptr.write(pointer(Addr(at))) };
    true
}

/// `weir_pool_alloc` where this is the cache.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(always)]
unsafe fn alloc_from(
    cache: &Cache,
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
) -> weir_status {
    let inside = match cache.enter_quick() {
        Ok(inside) => inside,
        // SAFETY: the caller's promise, passed on.
        Err(refused) => return unsafe { alloc_by_heart(pool, bytes, on, ptr, refused) },
    };
    if bytes > SMALL_MAX {
        // SAFETY: as above.
        return unsafe { alloc_larger(pool, bytes, on, ptr, inside) };
    }
    // SAFETY: the caller's promise.
    if unsafe { served(ptr, || inside.take_small(bytes as u64)) } {
        return weir_status::WEIR_OK;
    }
    drop(inside);
    // SAFETY: as above.
    unsafe { alloc_missed(pool, bytes, on, ptr, Asked::No) }
}

/// What `weir_pool_alloc` goes on with where the cache is not the nearest. It has the same arguments, and lets no panic out, so that it
/// is a jump away and nothing has to be kept.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_elsewhere(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
) -> weir_status {
    match find(&threads::mine_if_calm(), pool, on) {
        // SAFETY: the caller's promise, passed on.
        Found::Quick(cache) => unsafe { alloc_from(cache, pool, bytes, on, ptr) },
        // SAFETY: as above.
        Found::Asks(place) => unsafe { alloc_asking(pool, bytes, on, ptr, place) },
        // SAFETY: as above.
        Found::Nothing => unsafe { alloc_missed(pool, bytes, on, ptr, Asked::No) },
    }
}

/// What the calling thread has for a pool and a stream.
pub(super) enum Found<'a> {
    /// As `quick`.
    Quick(&'a Cache),
    /// The place of a cache that has something to ask, if it has one.
    Asks(&'a Place),
    Nothing,
}

/// What there is where it is not the nearest cache.
#[inline(always)]
pub(super) fn find(mine: &Option<Mine<Caches>>, pool: *mut weir_pool, on: weir_stream) -> Found<'_> {
    let (pool, on) = (pool.addr(), stream(on));
    let Some(mine) = mine else { return Found::Nothing };
    let (cache, place) = mine.quick_or_place(pool, on);
    // SAFETY: as in `quick`.
    match (unsafe { cache.as_ref() }, place) {
        (Some(cache), _) => {
            mine.bring_near(pool, on, cache);
            Found::Quick(cache)
        }
        (None, Some(place)) => Found::Asks(place),
        (None, None) => Found::Nothing,
    }
}

/// What `weir_pool_alloc` goes on with where calls may be answered as in the round before; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_by_heart(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    refused: Refused<'_>,
) -> weir_status {
    // SAFETY: the caller's promise.
    if unsafe { served(ptr, || refused.replay_alloc(bytes as u64)) } {
        return weir_status::WEIR_OK;
    }
    drop(refused);
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_missed(pool, bytes, on, ptr, Asked::No) }
}

/// What `weir_pool_alloc` goes on with where the block is of no slab; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_larger(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    inside: Inside<'_>,
) -> weir_status {
    if inside.is_for_long(bytes as u64) {
        // SAFETY: the caller's promise, passed on.
        return unsafe { alloc_long(pool, bytes, on, ptr, inside) };
    }
    // SAFETY: the caller's promise.
    match unsafe { served(ptr, || inside.take_latest(bytes as u64)) } {
        true => weir_status::WEIR_OK,
        // SAFETY: the caller's promise, passed on.
        false => unsafe { alloc_near(pool, bytes, on, ptr, inside) },
    }
}

/// What that goes on with where it is not the block that was freed last; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_near(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    inside: Inside<'_>,
) -> weir_status {
    // SAFETY: the caller's promise.
    match unsafe { served(ptr, || inside.take_near(bytes as u64)) } {
        true => weir_status::WEIR_OK,
        // SAFETY: the caller's promise, passed on.
        false => unsafe { alloc_far(pool, bytes, on, ptr, inside) },
    }
}

/// What that goes on with where none is hardly longer; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[cold]
#[inline(never)]
unsafe extern "C" fn alloc_far(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    inside: Inside<'_>,
) -> weir_status {
    // SAFETY: the caller's promise.
    if unsafe { served(ptr, || inside.take_far(bytes as u64)) } {
        return weir_status::WEIR_OK;
    }
    drop(inside);
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_missed(pool, bytes, on, ptr, Asked::No) }
}

/// What `alloc_larger` goes on with where the request is long; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_long(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    inside: Inside<'_>,
) -> weir_status {
    // SAFETY: the caller's promise.
    if unsafe { served(ptr, || inside.take_long(bytes as u64)) } {
        return weir_status::WEIR_OK;
    }
    drop(inside);
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_missed(pool, bytes, on, ptr, Asked::No) }
}

/// What `alloc_elsewhere` goes on with where the cache, if there is one, has to ask the driver whose the stream is; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_asking(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    place: &Place,
) -> weir_status {
    // SAFETY: the caller's promise, passed on.
    match unsafe { ask(place.get(), (bytes, 0), ptr) } {
        Ok(()) => weir_status::WEIR_OK,
        // SAFETY: as above.
        Err(asked) => unsafe { alloc_missed(pool, bytes, on, ptr, asked) },
    }
}

/// The thread's cache where it has to ask, or the block is to be aligned.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(always)]
unsafe fn ask(
    cache: Option<Ref<'_, ThreadCache>>,
    (bytes, alignment): (usize, usize),
    ptr: *mut *mut c_void,
) -> Result<(), Asked> {
    let cache = cache.filter(|_| !ptr.is_null()).ok_or(Asked::No)?;
    let at = cache.alloc_rest(bytes as u64, alignment as u64)?;
    // SAFETY: not NULL, so the caller promised that it can be written.
    unsafe { ptr.write(pointer(at)) };
    Ok(())
}

/// What all these go on with where the cache has nothing at all, or may not be asked; as above.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(never)]
unsafe extern "C" fn alloc_missed(
    pool: *mut weir_pool,
    bytes: usize,
    on: weir_stream,
    ptr: *mut *mut c_void,
    asked: Asked,
) -> weir_status {
    // SAFETY: the caller's promise, passed on.
    unsafe { alloc_rest("weir_pool_alloc", pool, (bytes, 0), on, ptr, asked) }
}

/// What is left of a request: the pool.
///
/// # Safety
/// `ptr` is NULL or can be written.
#[inline(always)]
unsafe fn alloc_rest(
    name: &str,
    pool: *mut weir_pool,
    (bytes, alignment): (usize, usize),
    on: weir_stream,
    ptr: *mut *mut c_void,
    asked: Asked,
) -> weir_status {
    let mine = threads::mine_if_calm();
    let cache = own_cache(&mine, pool, stream(on));
    guard(name, InChild::Refuse, move || {
        let (handle, on) = (args::handle(pool)?, stream(on));
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(ptr, "ptr") }?;
        let at = alloc_beside(handle, (bytes as u64, alignment as u64), on, cache, asked)?;
        out.set(pointer(at));
        Ok(())
    })
}

/// The calling thread's cache. It stays where it is meanwhile.
#[inline(always)]
pub(super) fn own_cache(
    mine: &Option<Mine<Caches>>,
    pool: *mut weir_pool,
    on: StreamHandle,
) -> Option<Ref<'_, ThreadCache>> {
    mine.as_ref()?.of(pool.addr(), on)
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
    (bytes, alignment): (u64, u64),
    on: StreamHandle,
    cache: Option<Ref<'_, ThreadCache>>,
    asked: Asked,
) -> Result<Addr, Error> {
    serve(handle, |pool| {
        let at = match not_asked(handle, on, |cache| cache.alloc(bytes, alignment)) {
            Some(at) => at,
            None => threads::beside(pool, handle, on, cache, |own| {
                pool.alloc_asked(own, asked, (bytes, alignment), on)
            })?,
        };
        if watched(pool) {
            valgrind::allocated(handle, at, bytes, order::is_host_stream(on));
        }
        Ok(at)
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
