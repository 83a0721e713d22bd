//! What each thread has: its caches, one for each pool and stream that it calls often, and the pool that it called last. A
//! call that a cache serves takes no lock and looks up nothing that threads share; one that goes on to the same pool as
//! the last touches nothing that other threads write before it is there.
//!
//! A cache is opened by the calls that could have used it, or by a pool's first call, and goes back to its pool when the
//! thread ends, when another stream needs its place, and when the stream's handle comes to mean something else.
//!
//! All this has no destructor, so that to reach it is to compute an address (`backend/own.rs`): what it holds is given back at
//! the thread's end, of which the C library makes a note when the thread first calls weir.
//!
//! Locks: none; a slot is its thread's own. It stays borrowed while its cache's pool is called; a callback that calls weir
//! again can use it, too, and changes nothing.

use super::end;
use super::message::Message;
use super::registry::POOLS;
use crate::backend::own::{Mine, Own, Value};
use crate::backend::store::Store;
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
    cache: Place,
}

/// Where a cache is, if there is one. It stays borrowed while its pool is called.
pub type Place = RefCell<ManuallyDrop<Option<ThreadCache>>>;

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

    /// Has it one of a pool that lives?
    fn is_taken(&self) -> bool {
        self.has_cache() && POOLS.is_live(self.pool.get())
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
#[repr(align(128))] // its owner writes it at every call: no other thread's memory is beside it
pub struct Caches {
    slots: [Slot; SLOTS],
    /// The slot of the cache that was asked last for a call that names no stream.
    nameless: Cell<usize>,
    /// The pool that it called last. It stays borrowed while that is called.
    last: RefCell<ManuallyDrop<Option<Last>>>,
    /// What its last error was.
    pub error: Message,
}

/// A pool and its handle.
type Last = (usize, Arc<Pool>);

impl Value for Caches {
    const FRESH: Caches = Caches::new();

    /// Gives back what the thread has.
    fn end(&self) -> bool {
        // in a forked child other threads' locks may be held for ever, and all belongs to the parent
        if !end::forked() {
            for slot in &self.slots {
                slot.set(0, 0, None);
            }
        }
        self.remember(None);
        let left = self.last.try_borrow().map_or(true, |last| last.is_some());
        !left && !self.slots.iter().any(Slot::has_cache)
    }
}

thread_local! {
    static MINE: Cell<*const Caches> = const { Cell::new(std::ptr::null()) };
}

static STORE: Store<Caches> = Store::new();
static OWN: Own<Caches> = Own::new(MINE, &STORE);

#[inline(always)]
fn slot_of(pool: usize, stream: StreamHandle) -> usize {
    let mixed = (stream.0 ^ pool << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> (usize::BITS - SLOTS.trailing_zeros())
}

/// What the calling thread has, if it has called weir before and has not come to its end.
#[inline(always)]
pub fn mine() -> Option<Mine<Caches>> {
    OWN.known()
}

/// The same; it may have something from now on.
#[inline(always)]
pub fn own() -> Option<Mine<Caches>> {
    OWN.get()
}

/// The library goes. At the process's end nothing ends what threads still have; who unloads it has no thread in it.
pub fn unload() {
    OWN.close();
}

impl Caches {
    const fn new() -> Caches {
        Caches {
            slots: [const { Slot::new() }; SLOTS],
            nameless: Cell::new(0),
            last: RefCell::new(ManuallyDrop::new(None)),
            error: Message::new(),
        }
    }

    /// Where the one for a pool and a stream is, if there is one.
    #[inline(always)]
    pub fn place(&self, pool: usize, stream: StreamHandle) -> Option<&Place> {
        let slot = &self.slots[slot_of(pool, stream)];
        slot.is_for(pool, stream).then_some(&slot.cache)
    }

    /// The one for a pool and a stream, if there is one.
    fn of(&self, pool: usize, stream: StreamHandle) -> Option<Ref<'_, ThreadCache>> {
        borrow(self.place(pool, stream)?)
    }

    /// The pool that was called last is this one, or none, unless a call is under way.
    fn remember(&self, last: Option<Last>) {
        if let Ok(mut place) = self.last.try_borrow_mut() {
            let old = std::mem::replace(&mut **place, last);
            drop(place);
            drop(old);
        }
    }
}

/// The cache that is there. It stays there meanwhile.
pub fn borrow(place: &Place) -> Option<Ref<'_, ThreadCache>> {
    Ref::filter_map(place.try_borrow().ok()?, |cache| cache.as_ref()).ok()
}

/// Calls `f` with the pool of `handle`. A thread that calls one pool again and again touches nothing that
/// other threads write.
#[inline]
pub fn with<R>(handle: usize, f: impl FnOnce(&Pool) -> Result<R, Error>) -> Result<R, Error> {
    let mine = own();
    let is_it =
        |last: &Ref<'_, ManuallyDrop<Option<Last>>>| last.as_ref().is_some_and(|last| last.0 == handle);
    let last = mine.as_ref().and_then(|mine| mine.last.try_borrow().ok());
    let last = last.filter(is_it).filter(|_| POOLS.is_live(handle));
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
    if let Some(mine) = &mine {
        if !POOLS.is_live(handle) {
            mine.remember(None);
        } else if let Some(pool) = found {
            mine.remember(Some((handle, pool)));
        }
    }
    result
}

/// Asks the calling thread's cache for a pool and a stream, if it has one.
pub fn cached<R>(pool: usize, stream: StreamHandle, f: impl FnOnce(&ThreadCache) -> Option<R>) -> Option<R> {
    f(&*mine()?.of(pool, stream)?)
}

/// Asks the calling thread's caches for a pool, whatever their streams, until one answers: the one first that did last.
pub fn cached_of_any<R>(pool: usize, f: impl Fn(&ThreadCache) -> Option<R>) -> Option<R> {
    let mine = mine()?;
    let ask = |slot: &Slot| (slot.pool.get() == pool).then(|| f(&*borrow(&slot.cache)?))?;
    let last = mine.nameless.get();
    ask(&mine.slots[last]).or_else(|| {
        let others = (0..SLOTS).filter(|&number| number != last);
        let mut answers = others.filter_map(|number| Some((number, ask(&mine.slots[number])?)));
        let (number, answer) = answers.next()?;
        mine.nameless.set(number);
        Some(answer)
    })
}

/// Calls a pool for a request that the thread's cache, which the caller may have looked up, could not serve. Where it has
/// none, but might have served it, it gets one if that has happened often enough, or if nobody has called the pool before.
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
    let known;
    let own = if own.is_none() {
        known = mine();
        known.as_ref().and_then(|mine| {
            mine.of(handle, stream).or_else(|| {
                open_first(mine, pool, handle, stream, open);
                mine.of(handle, stream)
            })
        })
    } else {
        own
    };
    let result = f(own.as_deref());
    match own.as_deref().map(ThreadCache::is_ended) {
        Some(false) => {}
        Some(true) => {
            drop(own);
            if let Some(mine) = mine() {
                mine.slots[slot_of(handle, stream)].set(0, 0, None);
            }
        }
        None if result.is_ok() => {
            if let Some(mine) = mine() {
                consider(&mine, pool, handle, stream, open);
            }
        }
        None => {}
    }
    result
}

/// A pool's first call has a cache: only what is called by way of one is recorded, and it may be all that the program will do again.
#[inline(never)]
fn open_first(
    mine: &Caches,
    pool: &Pool,
    handle: usize,
    stream: StreamHandle,
    open: fn(&Pool, StreamHandle) -> Option<ThreadCache>,
) {
    let slot = &mine.slots[slot_of(handle, stream)];
    if !slot.is_for(handle, stream)
        && !slot.is_taken()
        && !slot.is_in_use()
        && pool.is_new()
        && let Some(cache) = open(pool, stream)
    {
        slot.set(handle, stream.0, Some(cache));
    }
}

#[inline(never)]
fn consider(
    mine: &Caches,
    pool: &Pool,
    handle: usize,
    stream: StreamHandle,
    open: fn(&Pool, StreamHandle) -> Option<ThreadCache>,
) {
    if !pool.has_caches() {
        return;
    }
    let slot = &mine.slots[slot_of(handle, stream)];
    let same = slot.is_for(handle, stream);
    let taken = slot.is_taken();
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
    if slot.wanted.get() >= CALLS
        && !slot.is_in_use()
        && let Some(cache) = open(pool, stream)
    {
        slot.set(handle, stream.0, Some(cache));
    }
}

/// Pools have ended: what the calling thread has of them goes.
pub fn forget_ended() {
    let Some(mine) = mine() else { return };
    mine.remember(None);
    for slot in mine.slots.iter().filter(|slot| !POOLS.is_live(slot.pool.get())) {
        slot.set(0, 0, None);
    }
}
