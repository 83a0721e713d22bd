//! What each thread has: its caches, one for each pool and stream that it calls often, and the pool that it called last. A
//! call that a cache serves takes no lock and looks up nothing that threads share; one that goes on to the same pool as
//! the last touches nothing that other threads write before it is there.
//!
//! One cache is the nearest: a call for the same pool and stream as others before finds it without looking for it.
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
use crate::backend::process::CALM_IS;
use crate::backend::store::Store;
use crate::base::error::Error;
use crate::base::units::StreamHandle;
use crate::pool::{Cache, Pool, ThreadCache, Where};
use std::cell::{Cell, Ref, RefCell};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

/// Places at which the search for a stream's cache begins: a power of two.
const HOMES: usize = 32;
/// So many are looked at, one after the other: two streams are not to want one place while others are free...
const WAYS: usize = 8;
/// ...and so many of them at once.
const AT_ONCE: usize = 2;
const PLACES: usize = HOMES + WAYS - 1;
/// Calls that a cache could have served before there is one.
const CALLS: u32 = 4;
/// Of so many calls for another cache than the nearest the first makes its own the nearest: not each, since who works with several streams
/// in turn would have others come and go.
const TURNS: u32 = 16;
/// Calls for another stream after which a cache leaves its place to that one.
const PATIENCE: u32 = 64;

/// Whose a slot is. Apart from what is there, so that it is found by few instructions.
struct Key {
    pool: Cell<usize>,
    stream: Cell<usize>,
    /// The cache that is there, if it may be asked at once (`ThreadCache::quick`), or NULL.
    quick: Cell<*const Cache>,
    /// Calls that wanted a cache here: for its own stream as long as there is none, for others afterwards.
    wanted: Cell<u32>,
}

/// Where a cache is, if there is one. It stays borrowed while its pool is called.
pub struct Place(RefCell<ManuallyDrop<Option<ThreadCache>>>);

/// A key and its place.
#[derive(Clone, Copy)]
struct Slot<'a> {
    key: &'a Key,
    cache: &'a Place,
}

impl Key {
    const fn new() -> Key {
        Key {
            pool: Cell::new(0),
            stream: Cell::new(0),
            quick: Cell::new(ptr::null()),
            wanted: Cell::new(0),
        }
    }

    #[inline(always)]
    fn is_for(&self, pool: usize, stream: StreamHandle) -> bool {
        self.pool.get() == pool && self.stream.get() == stream.0
    }
}

impl Slot<'_> {
    fn has_cache(self) -> bool {
        self.cache.get().is_some()
    }

    /// Has it one of a pool that lives?
    fn is_taken(self) -> bool {
        self.has_cache() && !self.is_vacant()
    }

    /// Is it for no pool that lives?
    fn is_vacant(self) -> bool {
        !POOLS.is_live(self.key.pool.get())
    }

    fn is_in_use(self) -> bool {
        self.cache.0.try_borrow_mut().is_err()
    }
}

impl Place {
    const fn new() -> Place {
        Place(RefCell::new(ManuallyDrop::new(None)))
    }

    /// The cache that is there. It stays there meanwhile.
    #[inline(always)]
    pub fn get(&self) -> Option<Ref<'_, ThreadCache>> {
        Ref::filter_map(self.0.try_borrow().ok()?, |cache| cache.as_ref()).ok()
    }
}

/// What a thread has.
#[repr(align(128))] // its owner writes it at every call: no other thread's memory is beside it
pub struct Caches {
    keys: [Key; PLACES],
    places: [Place; PLACES],
    /// Calls for another cache than the nearest, since that one is, or since there is none.
    others: Cell<u32>,
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
            self.slots().for_each(|slot| self.set(slot, 0, 0, None));
        }
        self.remember(None);
        let left = self.last.try_borrow().map_or(true, |last| last.is_some());
        !left && !self.slots().any(Slot::has_cache)
    }
}

thread_local! {
    static MINE: Cell<*const Caches> = const { Cell::new(ptr::null()) };
}

static STORE: Store<Caches> = Store::new();
static OWN: Own<Caches, CALM_IS> = Own::new(MINE, &STORE);

/// The first of the places where the cache for a pool and a stream may be. (Multiplicative hashing, by the golden section: Knuth, "The
/// Art of Computer Programming", volume 3, 6.4.)
#[inline(always)]
fn home(pool: usize, stream: StreamHandle) -> usize {
    let mixed = (stream.0.wrapping_add(pool) as u32).wrapping_mul(0x9e37_79b1);
    (mixed >> (u32::BITS - HOMES.trailing_zeros())) as usize
}

/// What the calling thread has, if it has called weir before and has not come to its end.
#[inline(always)]
fn mine() -> Option<Mine<Caches>> {
    OWN.known()
}

/// The same, unless the process was disturbed.
#[inline(always)]
pub fn mine_if_calm() -> Option<Mine<Caches>> {
    OWN.calm()
}

/// The same; it may have something from now on.
#[inline(always)]
pub fn own() -> Option<Mine<Caches>> {
    OWN.get()
}

/// The calling thread's nearest cache, if it is the one for this pool and stream, and what its directory knows; unless the process was
/// disturbed. Both are there until the thread calls anything else of this module.
#[inline(always)]
pub fn nearest(pool: usize, stream: StreamHandle) -> Option<(*const Cache, *const Where)> {
    let [cache, whole] = OWN.near([pool, stream.0])?;
    Some((cache.cast(), whole.cast()))
}

/// The library goes. At the process's end nothing ends what threads still have; who unloads it has no thread in it.
pub fn unload() {
    OWN.close();
}

impl Caches {
    const fn new() -> Caches {
        Caches {
            keys: [const { Key::new() }; PLACES],
            places: [const { Place::new() }; PLACES],
            others: Cell::new(0),
            nameless: Cell::new(0),
            last: RefCell::new(ManuallyDrop::new(None)),
            error: Message::new(),
        }
    }

    /// The one for a pool and a stream, if there is one that may be asked at once, or NULL. It is there until the thread calls
    /// anything else of this module.
    #[inline(always)]
    pub fn quick(&self, pool: usize, stream: StreamHandle) -> *const Cache {
        match self.slot_at_once(pool, stream) {
            Some(slot) => slot.key.quick.get(),
            None => ptr::null(),
        }
    }

    /// The same, or the place of one that has something to ask, if there is one.
    #[inline(always)]
    pub fn quick_or_place(&self, pool: usize, stream: StreamHandle) -> (*const Cache, Option<&Place>) {
        match self.slot_at_once(pool, stream) {
            Some(slot) => (slot.key.quick.get(), Some(slot.cache)),
            None => (ptr::null(), self.place_far_from_home(pool, stream)),
        }
    }

    #[cold]
    #[inline(never)]
    fn place_far_from_home(&self, pool: usize, stream: StreamHandle) -> Option<&Place> {
        self.slot_of(pool, stream).map(|slot| slot.cache)
    }

    /// The slot for a pool and a stream, if it is where one looks at once.
    #[inline(always)]
    fn slot_at_once(&self, pool: usize, stream: StreamHandle) -> Option<Slot<'_>> {
        const { assert!(AT_ONCE == 2) };
        let home = home(pool, stream);
        if self.keys[home].is_for(pool, stream) {
            return Some(self.slot(home));
        }
        std::hint::cold_path();
        self.keys[home + 1]
            .is_for(pool, stream)
            .then(|| self.slot(home + 1))
    }

    /// The one that `quick` gave for a pool and a stream was not the nearest; it may be from now on.
    #[inline(always)]
    pub fn bring_near(&self, pool: usize, stream: StreamHandle, cache: &Cache) {
        let others = self.others.get();
        self.others.set((others + 1) % TURNS);
        if others == 0 {
            let places = [ptr::from_ref(cache).cast(), ptr::from_ref(cache.whole()).cast()];
            OWN.bring_near([pool, stream.0], places);
        }
    }

    /// The one for a pool and a stream, if there is one.
    #[inline(always)]
    pub fn of(&self, pool: usize, stream: StreamHandle) -> Option<Ref<'_, ThreadCache>> {
        self.slot_of(pool, stream)?.cache.get()
    }

    #[inline(always)]
    fn slot(&self, number: usize) -> Slot<'_> {
        Slot {
            key: &self.keys[number],
            cache: &self.places[number],
        }
    }

    /// The slot for a pool and a stream, if there is one.
    #[inline(always)]
    fn slot_of(&self, pool: usize, stream: StreamHandle) -> Option<Slot<'_>> {
        let mut slots = self.slots_for(pool, stream);
        slots.find(|slot| slot.key.is_for(pool, stream))
    }

    /// Those that there may be, in the order in which they are looked at.
    #[inline(always)]
    fn slots_for(&self, pool: usize, stream: StreamHandle) -> impl Iterator<Item = Slot<'_>> {
        let home = home(pool, stream);
        (home..home + WAYS).map(|number| self.slot(number))
    }

    /// The one there is, or the one that it is to be: one that is vacant before one that has no cache, and if others' caches are in all the first
    /// one. Its number among them, too.
    fn place_for(&self, pool: usize, stream: StreamHandle) -> (usize, Slot<'_>) {
        let find = |wanted: &dyn Fn(Slot) -> bool| {
            let mut slots = self.slots_for(pool, stream).enumerate();
            slots.find(|&(_, slot)| wanted(slot))
        };
        find(&|slot| slot.key.is_for(pool, stream))
            .or_else(|| find(&|slot| slot.is_vacant()))
            .or_else(|| find(&|slot| !slot.is_taken()))
            .or_else(|| find(&|_| true))
            .expect("there is a first one")
    }

    /// From now on a slot is for another stream, or for none, and has this cache; unless it is in use.
    fn set(&self, slot: Slot<'_>, pool: usize, stream: usize, cache: Option<ThreadCache>) {
        let Ok(mut place) = slot.cache.0.try_borrow_mut() else {
            return;
        };
        OWN.forget_near();
        self.others.set(0);
        let quick = cache.as_ref().and_then(ThreadCache::quick);
        slot.key.quick.set(quick.map_or(ptr::null(), ptr::from_ref));
        let old = std::mem::replace(&mut **place, cache);
        drop(place);
        let old_pool = slot.key.pool.replace(pool);
        slot.key.stream.set(stream);
        slot.key.wanted.set(0);
        if let Some(old) = old
            && let Ok(pool) = POOLS.get(old_pool)
        {
            pool.close_cache(&old);
        }
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..PLACES).map(|number| self.slot(number))
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
        Error::Unloaded if !POOLS.is_live(handle) => POOLS.verdict(handle),
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
    let ask = |slot: Slot| (slot.key.pool.get() == pool).then(|| f(&*slot.cache.get()?))?;
    let last = mine.nameless.get();
    ask(mine.slot(last)).or_else(|| {
        let others = (0..PLACES).filter(|&number| number != last);
        let mut answers = others.filter_map(|number| Some((number, ask(mine.slot(number))?)));
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
            if let Some(mine) = mine()
                && let Some(slot) = mine.slot_of(handle, stream)
            {
                mine.set(slot, 0, 0, None);
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
    let (way, slot) = mine.place_for(handle, stream);
    if !slot.key.is_for(handle, stream)
        && !slot.is_taken()
        && !slot.is_in_use()
        && pool.is_new()
        && let Some(cache) = open(pool, stream)
    {
        settle(mine, (way, slot), handle, stream, cache);
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
    let (way, slot) = mine.place_for(handle, stream);
    let same = slot.key.is_for(handle, stream);
    let taken = slot.is_taken();
    if same && taken {
        return;
    }
    slot.key.wanted.set(slot.key.wanted.get() + 1);
    if !same {
        if slot.key.wanted.get() > if taken { PATIENCE } else { 1 } {
            mine.set(slot, handle, stream.0, None);
        }
        return;
    }
    if slot.key.wanted.get() >= CALLS
        && !slot.is_in_use()
        && let Some(cache) = open(pool, stream)
    {
        settle(mine, (way, slot), handle, stream, cache);
    }
}

/// A cache comes to its slot, the stream's of that number.
fn settle(
    mine: &Caches,
    (way, slot): (usize, Slot<'_>),
    handle: usize,
    stream: StreamHandle,
    cache: ThreadCache,
) {
    if way >= AT_ONCE {
        cache.set_apart();
    }
    mine.set(slot, handle, stream.0, Some(cache));
}

/// Pools have ended: what the calling thread has of them goes.
pub fn forget_ended() {
    let Some(mine) = mine() else { return };
    mine.remember(None);
    let ended = mine.slots().filter(|slot| slot.is_vacant());
    ended.for_each(|slot| mine.set(slot, 0, 0, None));
}
