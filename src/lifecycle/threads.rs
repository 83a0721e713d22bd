//! What each thread has: its caches, one for each pool and stream that it calls often. A call that a cache serves takes
//! no lock and looks up nothing that threads share.
//!
//! A cache is opened by the calls that could have used it, and goes back to its pool when the thread ends, when another
//! stream needs its place, and when the stream's handle comes to mean something else.
//!
//! Locks: none; a slot is its thread's own. It is never borrowed while a pool is called, because a callback may call
//! weir again.

use super::end;
use super::registry::POOLS;
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::pool::{Pool, ThreadCache};
use std::cell::{Cell, RefCell};

/// Places for caches: a power of two.
const SLOTS: usize = 32;
/// Calls that a cache could have served before there is one.
const CALLS: u32 = 4;
/// Calls for another stream after which a cache leaves its place to that one.
const PATIENCE: u32 = 64;

#[derive(Default)]
struct Slot {
    pool: usize,
    stream: usize,
    /// Calls that wanted a cache here: for its own stream as long as there is none, for others afterwards.
    wanted: u32,
    cache: Option<ThreadCache>,
}

/// All caches of a thread.
struct Slots([Slot; SLOTS]);

impl Drop for Slots {
    fn drop(&mut self) {
        // in a forked child other threads' locks may be held for ever, and all belongs to the parent
        if !end::forked() {
            self.0.iter_mut().for_each(give_back);
        }
    }
}

fn give_back(slot: &mut Slot) {
    let slot = std::mem::take(slot);
    if let Some(cache) = slot.cache
        && let Ok(pool) = POOLS.get(slot.pool)
    {
        pool.close_cache(&cache);
    }
}

thread_local! {
    static MINE: RefCell<Slots> = RefCell::new(Slots(Default::default()));
    /// Does `MINE` exist? It has a destructor, which the C library notes, so it is made only where it is used.
    static ANY: Cell<bool> = const { Cell::new(false) };
}

#[inline]
fn place(pool: usize, stream: StreamHandle) -> usize {
    let mixed = (stream.0 ^ pool << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> (usize::BITS - SLOTS.trailing_zeros())
}

#[inline]
fn with_slot<R>(pool: usize, stream: StreamHandle, f: impl FnOnce(&mut Slot) -> R) -> Option<R> {
    if !ANY.get() {
        return None;
    }
    let found = MINE.try_with(|slots| {
        let mut slots = slots.try_borrow_mut().ok()?;
        Some(f(&mut slots.0[place(pool, stream)]))
    });
    found.ok().flatten()
}

#[inline]
fn cached<R>(pool: usize, stream: StreamHandle, f: impl FnOnce(&ThreadCache) -> Option<R>) -> Option<R> {
    with_slot(pool, stream, |slot| match &slot.cache {
        Some(cache) if slot.pool == pool && slot.stream == stream.0 => f(cache),
        _ => None,
    })
    .flatten()
}

/// A block from the calling thread's cache.
#[inline]
pub fn alloc(pool: usize, bytes: u64, align: u64, stream: StreamHandle) -> Option<Addr> {
    cached(pool, stream, |cache| cache.alloc(bytes, align))
}

/// Puts a freed block into the calling thread's cache.
#[inline]
pub fn free(pool: usize, at: Addr, stream: StreamHandle) -> Option<u64> {
    cached(pool, stream, |cache| cache.free(at))
}

/// Calls a pool for what the thread's cache could not do.
pub fn beside<R>(
    pool: usize,
    stream: StreamHandle,
    f: impl FnOnce(Option<&ThreadCache>) -> Result<R, Error>,
) -> Result<R, Error> {
    let cache = cached(pool, stream, |cache| Some(cache.clone()));
    let result = f(cache.as_ref());
    if cache.is_some_and(|cache| cache.is_ended()) {
        // a callback may have put another one there
        with_slot(pool, stream, |slot| {
            if slot.cache.as_ref().is_some_and(ThreadCache::is_ended) {
                *slot = Slot::default();
            }
        });
    }
    result
}

/// A request was served that a cache might have served: opens one if that has happened often enough. (A free opens
/// none, because it allocates nothing.)
pub fn consider(pool: &Pool, handle: usize, stream: StreamHandle) {
    let has_one = |_: &ThreadCache| Some(());
    if !pool.has_caches() || !ANY.get() && end::exiting() || cached(handle, stream, has_one).is_some() {
        return;
    }
    ANY.set(true);
    let old = with_slot(handle, stream, |slot| {
        slot.wanted += 1;
        let same = slot.pool == handle && slot.stream == stream.0;
        let taken = slot.cache.is_some() && POOLS.is_live(slot.pool);
        if !same && slot.wanted > if taken { PATIENCE } else { 1 } {
            let new = Slot {
                pool: handle,
                stream: stream.0,
                ..Slot::default()
            };
            return Some(std::mem::replace(slot, new));
        }
        None
    });
    if let Some(mut old) = old.flatten() {
        give_back(&mut old);
    }
    let due = |slot: &mut Slot| {
        let same = slot.pool == handle && slot.stream == stream.0;
        same && slot.cache.is_none() && slot.wanted >= CALLS
    };
    if with_slot(handle, stream, due) == Some(true)
        && let Some(cache) = pool.open_cache(stream)
    {
        // a place that has gone meanwhile drops the cache, which the pool must not miss
        let mut cache = Some(cache);
        with_slot(handle, stream, |slot| {
            (slot.cache, slot.wanted) = (cache.take(), 0);
        });
        if let Some(cache) = cache {
            pool.close_cache(&cache);
        }
    }
}

/// Pools have ended: what the calling thread has of them goes.
pub fn forget_ended() {
    if ANY.get() {
        let _ = MINE.try_with(|slots| {
            let Ok(mut slots) = slots.try_borrow_mut() else {
                return;
            };
            for slot in slots.0.iter_mut().filter(|slot| !POOLS.is_live(slot.pool)) {
                *slot = Slot::default();
            }
        });
    }
}
