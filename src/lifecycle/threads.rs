//! What each thread has: its caches, one for each pool and stream that it calls often, and the pool that it called last. A
//! call that a cache serves takes no lock and looks up nothing that threads share; one that goes on to the same pool as
//! the last touches nothing that other threads write before it is there.
//!
//! A cache is opened by the calls that could have used it, and goes back to its pool when the thread ends, when another
//! stream needs its place, and when the stream's handle comes to mean something else.
//!
//! All this has no destructor, so that to reach it is to compute an address: what it holds is given back by `AtEnd`, which
//! has one, and which the C library notes when there is something to hold.
//!
//! Locks: none; a slot is its thread's own. It stays borrowed while its cache's pool is called; a callback that calls weir
//! again can use it, too, and changes nothing.

use super::end;
use super::registry::POOLS;
use crate::backend::own::{Mine, Own};
use crate::base::error::Error;
use crate::base::units::StreamHandle;
use crate::pool::{Pool, ThreadCache};
use std::cell::{Cell, Ref, RefCell};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Places for caches: a power of two.
const SLOTS: usize = 32;
/// Calls that a cache could have served before there is one.
const CALLS: u32 = 4;
/// Calls for another stream after which a cache leaves its place to that one.
const PATIENCE: u32 = 64;

struct Slot {
    pool: Cell<usize>,
    stream: Cell<usize>,
    /// Calls that wanted a cache here: for its own stream as long as there is none, for others afterwards.
    wanted: Cell<u32>,
    cache: RefCell<ManuallyDrop<Option<ThreadCache>>>,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            pool: Cell::new(0),
            stream: Cell::new(0),
            wanted: Cell::new(0),
            cache: RefCell::new(ManuallyDrop::new(None)),
        }
    }

    #[inline(always)]
    fn is_for(&self, pool: usize, stream: StreamHandle) -> bool {
        self.pool.get() == pool && self.stream.get() == stream.0
    }

    fn has_cache(&self) -> bool {
        self.cache.try_borrow().is_ok_and(|cache| cache.is_some())
    }

    /// From now on it is for another stream, or for none, and has this cache; unless it is in use.
    fn set(&self, pool: usize, stream: usize, cache: Option<ThreadCache>) {
        let Ok(mut place) = self.cache.try_borrow_mut() else {
            return;
        };
        let old = std::mem::replace(&mut **place, cache);
        drop(place);
        let old_pool = self.pool.replace(pool);
        self.stream.set(stream);
        self.wanted.set(0);
        if let Some(old) = old
            && let Ok(pool) = POOLS.get(old_pool)
        {
            pool.close_cache(&old);
        }
    }

    fn is_in_use(&self) -> bool {
        self.cache.try_borrow_mut().is_err()
    }
}

/// What a thread has.
pub struct Caches {
    slots: [Slot; SLOTS],
    /// The pool that it called last. It stays borrowed while that is called.
    last: RefCell<ManuallyDrop<Option<Last>>>,
    at_end: Cell<Note>,
}

/// A pool and its handle.
type Last = (usize, Arc<Pool>);

/// What becomes of `AtEnd`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Note {
    /// Nobody has noted it.
    Unmade,
    /// It is to come.
    Made,
    /// It has been, or cannot come any more.
    Late,
}

struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        let mine = OWN.get();
        // in a forked child other threads' locks may be held for ever, and all belongs to the parent
        if !end::forked() {
            for slot in &mine.slots {
                slot.set(0, 0, None);
            }
        }
        mine.at_end.set(Note::Late);
        mine.remember(None);
    }
}

thread_local! {
    static MINE: Caches = const {
        Caches {
            slots: [const { Slot::new() }; SLOTS],
            last: RefCell::new(ManuallyDrop::new(None)),
            at_end: Cell::new(Note::Unmade),
        }
    };
    static AT_END: AtEnd = const { AtEnd };
}

static OWN: Own<Caches> = Own::new(MINE);

#[inline(always)]
fn place(pool: usize, stream: StreamHandle) -> usize {
    let mixed = (stream.0 ^ pool << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> (usize::BITS - SLOTS.trailing_zeros())
}

/// The calling thread's caches, if it has called `cached` or `beside` before.
#[inline(always)]
pub fn mine() -> Option<Mine<Caches>> {
    OWN.known()
}

impl Caches {
    /// The one for a pool and a stream, if there is one.
    #[inline(always)]
    pub fn of(&self, pool: usize, stream: StreamHandle) -> Option<Ref<'_, ThreadCache>> {
        let slot = &self.slots[place(pool, stream)];
        if !slot.is_for(pool, stream) {
            return None;
        }
        Ref::filter_map(slot.cache.try_borrow().ok()?, |cache| cache.as_ref()).ok()
    }

    /// The pool that was called last is this one, or none, unless a call is under way.
    fn remember(&self, last: Option<Last>) {
        if let Ok(mut place) = self.last.try_borrow_mut() {
            let old = std::mem::replace(&mut **place, last);
            drop(place);
            drop(old);
        }
    }

    /// May it hold something, that is, will `AtEnd` come?
    #[inline(always)]
    fn may_hold(&self) -> bool {
        match self.at_end.get() {
            Note::Made => true,
            Note::Late => false,
            Note::Unmade => self.note(),
        }
    }

    /// Has the C library note it, but not when nothing would run it any more.
    #[cold]
    fn note(&self) -> bool {
        if end::exiting() {
            return false;
        }
        let noted = AT_END.try_with(|_| ()).is_ok();
        self.at_end.set(if noted { Note::Made } else { Note::Late });
        noted
    }
}

/// Calls `f` with the pool of `handle`. A thread that calls one pool again and again touches nothing that
/// other threads write.
#[inline]
pub fn with<R>(handle: usize, f: impl FnOnce(&Pool) -> Result<R, Error>) -> Result<R, Error> {
    let mine = OWN.get();
    let is_it =
        |last: &Ref<'_, ManuallyDrop<Option<Last>>>| last.as_ref().is_some_and(|last| last.0 == handle);
    let last = mine.last.try_borrow().ok().filter(is_it);
    let last = last.filter(|_| POOLS.is_live(handle));
    let found = match last {
        Some(_) => None,
        None => Some(POOLS.get(handle)?),
    };
    let known = last.as_ref().and_then(|last| last.as_ref());
    let pool = found.as_ref().or(known.map(|last| &last.1));
    let result = f(pool.expect("one or the other")).map_err(|error| match error {
        // It ended while the call ran; only the table knows how.
        Error::PoolDestroyed { .. } => POOLS.verdict(handle),
        error => error,
    });
    drop(last);
    if !POOLS.is_live(handle) {
        mine.remember(None);
    } else if let Some(pool) = found
        && mine.may_hold()
    {
        mine.remember(Some((handle, pool)));
    }
    result
}

/// Asks the calling thread's cache for a pool and a stream, if it has one.
pub fn cached<R>(pool: usize, stream: StreamHandle, f: impl FnOnce(&ThreadCache) -> Option<R>) -> Option<R> {
    f(&*OWN.get().of(pool, stream)?)
}

/// Calls a pool for a request that the thread's cache, which the caller may have looked up, could not serve. Where it has
/// none, but might have served it, it gets one if that has happened often enough.
#[inline(always)]
pub fn beside<R>(
    pool: &Pool,
    handle: usize,
    stream: StreamHandle,
    own: Option<Ref<'_, ThreadCache>>,
    f: impl FnOnce(Option<&ThreadCache>) -> Result<R, Error>,
) -> Result<R, Error> {
    beside_with(pool, handle, stream, own, f, Pool::open_cache)
}

/// The same for a free.
#[inline(always)]
pub fn beside_in_free<R>(
    pool: &Pool,
    handle: usize,
    stream: StreamHandle,
    own: Option<Ref<'_, ThreadCache>>,
    f: impl FnOnce(Option<&ThreadCache>) -> Result<R, Error>,
) -> Result<R, Error> {
    beside_with(pool, handle, stream, own, f, Pool::open_cache_in_free)
}

#[inline(always)]
fn beside_with<R>(
    pool: &Pool,
    handle: usize,
    stream: StreamHandle,
    own: Option<Ref<'_, ThreadCache>>,
    f: impl FnOnce(Option<&ThreadCache>) -> Result<R, Error>,
    open: fn(&Pool, StreamHandle) -> Option<ThreadCache>,
) -> Result<R, Error> {
    let mine;
    let own = if own.is_none() {
        mine = OWN.get();
        mine.of(handle, stream)
    } else {
        own
    };
    let result = f(own.as_deref());
    match own.as_deref().map(ThreadCache::is_ended) {
        Some(false) => {}
        Some(true) => {
            drop(own);
            OWN.get().slots[place(handle, stream)].set(0, 0, None);
        }
        None if result.is_ok() => consider(&OWN.get(), pool, handle, stream, open),
        None => {}
    }
    result
}

#[inline(never)]
fn consider(
    mine: &Caches,
    pool: &Pool,
    handle: usize,
    stream: StreamHandle,
    open: fn(&Pool, StreamHandle) -> Option<ThreadCache>,
) {
    if !pool.has_caches() || mine.at_end.get() == Note::Unmade && end::exiting() {
        return;
    }
    let slot = &mine.slots[place(handle, stream)];
    let same = slot.is_for(handle, stream);
    let taken = slot.has_cache() && POOLS.is_live(slot.pool.get());
    if same && taken {
        return;
    }
    slot.wanted.set(slot.wanted.get() + 1);
    if !same {
        if slot.wanted.get() > if taken { PATIENCE } else { 1 } {
            slot.set(handle, stream.0, None);
        }
        return;
    }
    if slot.wanted.get() >= CALLS {
        // at the end of the thread nothing would give a cache back any more
        if mine.may_hold()
            && !slot.is_in_use()
            && let Some(cache) = open(pool, stream)
        {
            slot.set(handle, stream.0, Some(cache));
        }
    }
}

/// Pools have ended: what the calling thread has of them goes.
pub fn forget_ended() {
    let mine = OWN.get();
    mine.remember(None);
    for slot in mine.slots.iter().filter(|slot| !POOLS.is_live(slot.pool.get())) {
        slot.set(0, 0, None);
    }
}
