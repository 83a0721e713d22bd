//! Blocks of a pool that are freed, one at a time. The ways that a free goes are those of an allocation, and for the same reasons (`blocks`).

use super::args;
use super::blocks::{Found, find, not_asked, own_cache};
use super::guard::{InChild, guard};
use super::pool::{addr, freeing, give_back, stream};
use super::status::weir_status;
use super::types::{weir_pool, weir_stream};
use crate::base::error::Error;
use crate::base::units::StreamHandle;
use crate::lifecycle::order;
use crate::lifecycle::threads::{self, Place};
use crate::pool::{Asked, Cache, Inside, Look, Refused, Spot, ThreadCache, Where};
use std::cell::Ref;
use std::ffi::c_void;

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
    match threads::nearest(pool.addr(), self::stream(stream)) {
        // SAFETY: `quick` gave the cache, and the thread's slot still has it; what its directory knows is there as long.
        Some((cache, whole)) => free_from(unsafe { (&*cache, &*whole) }, pool, ptr, stream),
        None => free_elsewhere(pool, ptr, stream),
    }
}

/// `weir_pool_free` where this is the cache, and what its directory knows.
#[inline(always)]
fn free_from(
    (cache, whole): (&Cache, &Where),
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
) -> weir_status {
    let at = addr(ptr).0;
    let inside = match cache.enter_quick() {
        Ok(inside) => inside,
        Err(refused) => return free_by_heart(pool, ptr, on, refused),
    };
    let Some(spot) = Spot::of(at, whole) else {
        return freed(pool, ptr, on, inside, false);
    };
    let look = spot.look();
    let Some(class) = inside.class(look) else {
        return free_larger(pool, ptr, on, inside, look);
    };
    let kept = inside.keep_small(at, class, spot);
    freed(pool, ptr, on, inside, kept.is_some())
}

/// What is left of a free if the cache has not kept the block.
#[inline(always)]
fn freed<I>(pool: *mut weir_pool, ptr: *mut c_void, on: weir_stream, inside: I, kept: bool) -> weir_status {
    drop(inside);
    match kept {
        true => weir_status::WEIR_OK,
        false => free_missed(pool, ptr, on, Asked::No),
    }
}

/// As `alloc_elsewhere`.
#[inline(never)]
extern "C" fn free_elsewhere(pool: *mut weir_pool, ptr: *mut c_void, on: weir_stream) -> weir_status {
    match find(&threads::mine_if_calm(), pool, on) {
        Found::Quick(cache) => free_from((cache, cache.whole()), pool, ptr, on),
        Found::Asks(place) => free_asking(pool, ptr, on, place),
        Found::Nothing => free_missed(pool, ptr, on, Asked::No),
    }
}

/// As `alloc_asking`.
#[inline(never)]
extern "C" fn free_asking(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    place: &Place,
) -> weir_status {
    let cache = place.get().filter(|_| !ptr.is_null());
    let kept = match &cache {
        Some(cache) => cache.free_rest(addr(ptr)),
        None => Err(Asked::No),
    };
    drop(cache);
    match kept {
        Ok(_) => weir_status::WEIR_OK,
        Err(asked) => free_missed(pool, ptr, on, asked),
    }
}

/// As `alloc_by_heart`.
#[inline(never)]
extern "C" fn free_by_heart(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    refused: Refused<'_>,
) -> weir_status {
    let replayed = refused.replay_free(addr(ptr).0);
    freed(pool, ptr, on, refused, replayed.is_some())
}

/// As `alloc_larger`.
#[inline(never)]
extern "C" fn free_larger(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    inside: Inside<'_>,
    look: Look<'_>,
) -> weir_status {
    if !inside.is_own(look) {
        return free_any(pool, ptr, on, inside, look);
    }
    if inside.is_long(look) {
        return free_long(pool, ptr, on, inside, look);
    }
    if inside.has_latest() {
        return free_next(pool, ptr, on, inside, look);
    }
    let kept = inside.keep_latest(addr(ptr).0, look);
    freed(pool, ptr, on, inside, kept.is_some())
}

/// As `alloc_near`.
#[inline(never)]
extern "C" fn free_next(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    inside: Inside<'_>,
    look: Look<'_>,
) -> weir_status {
    let kept = inside.keep_next(addr(ptr).0, look);
    freed(pool, ptr, on, inside, kept.is_some())
}

/// As `alloc_long`.
#[inline(never)]
extern "C" fn free_long(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    inside: Inside<'_>,
    look: Look<'_>,
) -> weir_status {
    let kept = inside.keep_long(addr(ptr).0, look);
    freed(pool, ptr, on, inside, kept.is_some())
}

/// What `free_larger` goes on with where others may free the block as well.
#[inline(never)]
extern "C" fn free_any(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    inside: Inside<'_>,
    look: Look<'_>,
) -> weir_status {
    let kept = inside.keep_any(addr(ptr).0, look);
    freed(pool, ptr, on, inside, kept.is_some())
}

/// As `alloc_missed`.
#[inline(never)]
extern "C" fn free_missed(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    on: weir_stream,
    asked: Asked,
) -> weir_status {
    let mine = threads::mine_if_calm();
    let on = super::pool::stream(on);
    let cache = own_cache(&mine, pool, on);
    guard("weir_pool_free", InChild::Ignore, move || {
        free_beside(args::handle(pool)?, ptr, on, cache, asked)
    })
}

/// Frees a block that the thread's cache did not keep.
#[inline]
pub(super) fn free_beside(
    handle: usize,
    ptr: *mut c_void,
    on: StreamHandle,
    cache: Option<Ref<'_, ThreadCache>>,
    asked: Asked,
) -> Result<(), Error> {
    give_back(handle, &[ptr], |pool| {
        if ptr.is_null() {
            return Ok(());
        }
        let at = addr(ptr);
        freeing(
            pool,
            handle,
            &[at],
            order::is_host_stream(on),
            || match not_asked(handle, on, |cache| cache.free(at)) {
                Some(_) => Ok(()),
                None => {
                    let free = |own: Option<&ThreadCache>| pool.free_asked(own, asked, at, on);
                    threads::beside_in_free(pool, handle, on, cache, free).map(drop)
                }
            },
        )
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
        freeing(pool, handle, &[at], false, || {
            match threads::cached_of_any(handle, |cache| cache.free_synced(at)) {
                Some(_) => Ok(()),
                None => pool.free_synced(at).map(drop),
            }
        })
    })
}
