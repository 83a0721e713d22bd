//! The table of live pools.
//!
//! A handle is `TAG | generation << SLOT_BITS | slot`. Its top bits make it an address that no process can
//! have mapped, so a program that dereferences one by mistake faults at once.
//!
//! Invariants, for every slot:
//!
//! ```text
//! live[slot] = the handle of its pool, or 0 if it has none
//! the generation grows by one with every pool, so a handle names one pool for ever
//! a slot without a pool is in the free list exactly once, or was never used
//! ```
//!
//! Slots are reused oldest first and only when none is left that was never used, so stale handles keep their
//! exact error as long as possible.
//!
//! Locks: one read-write lock per slot and one mutex for the free list, never held while a pool is called, but for the
//! questions that `find` asks, which take no lock. They are the standard library's because those need no heap memory, not even when contended. `threads::with` takes none
//! of them when a thread calls the same pool again.

use crate::base::error::Error;
use crate::pool::Pool;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

/// How many pools can be live at once.
pub const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;
const TAG_SHIFT: u32 = 48;
/// "we": no user-space address begins with it.
const TAG: usize = 0x7765 << TAG_SHIFT;

/// How a pool that is no longer live came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `weir_pool_destroy` or the last `weir_pool_release`.
    Destroyed,
    /// By `weir_finalize` or at exit.
    Finalized,
}

struct Slot<P> {
    generation: u64,
    references: u64,
    pool: Option<Arc<P>>,
    ending: Ending,
}

/// Free slots, oldest first; then the slots from `fresh` on, which were never used.
struct Free {
    ring: [u16; SLOTS],
    first: usize,
    count: usize,
    fresh: usize,
}

/// A table of pools; generic so that its rules can be tested without one.
pub struct Registry<P> {
    live: [AtomicUsize; SLOTS],
    /// One bit per live slot, so that iterating costs what the live pools cost.
    occupied: [AtomicU64; SLOTS / 64],
    slots: [RwLock<Slot<P>>; SLOTS],
    free: Mutex<Free>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P> Registry<P> {
    /// An empty table; it can be a static.
    #[allow(clippy::new_without_default)] // `Default` could not be const.
    pub const fn new() -> Registry<P> {
        Registry {
            live: [const { AtomicUsize::new(0) }; SLOTS],
            occupied: [const { AtomicU64::new(0) }; SLOTS / 64],
            slots: [const {
                RwLock::new(Slot {
                    generation: 0,
                    references: 0,
                    pool: None,
                    ending: Ending::Destroyed,
                })
            }; SLOTS],
            free: Mutex::new(Free {
                ring: [0; SLOTS],
                first: 0,
                count: 0,
                fresh: 0,
            }),
        }
    }

    /// Adds a pool with one reference. None if `SLOTS` pools are live.
    pub fn insert(&self, pool: Arc<P>) -> Option<usize> {
        let index = {
            let mut free = locked(&self.free);
            if free.fresh < SLOTS {
                free.fresh += 1;
                free.fresh - 1
            } else if free.count > 0 {
                let index = usize::from(free.ring[free.first]);
                free.first = (free.first + 1) % SLOTS;
                free.count -= 1;
                index
            } else {
                return None;
            }
        };
        let mut slot = self.slots[index].write().unwrap_or_else(PoisonError::into_inner);
        slot.generation += 1;
        slot.references = 1;
        slot.pool = Some(pool);
        let handle = TAG | (slot.generation as usize) << SLOT_BITS | index;
        self.live[index].store(handle, Ordering::Release);
        self.occupied[index / 64].fetch_or(1 << (index % 64), Ordering::Release);
        Some(handle)
    }

    /// Is this the handle of a live pool? Takes no lock.
    #[inline]
    pub fn is_live(&self, handle: usize) -> bool {
        handle != 0 && self.live[handle % SLOTS].load(Ordering::Acquire) == handle
    }

    /// The pool of a handle, or why there is none.
    pub fn get(&self, handle: usize) -> Result<Arc<P>, Error> {
        let slot = self.slots[handle % SLOTS]
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        match &slot.pool {
            Some(pool) if self.is_live(handle) => Ok(pool.clone()),
            _ => Err(slot.verdict(handle)),
        }
    }

    /// One more reference.
    pub fn retain(&self, handle: usize) -> Result<(), Error> {
        self.writable(handle)?.references += 1;
        Ok(())
    }

    /// Would the pool end with the next release?
    pub fn is_last(&self, handle: usize) -> Result<bool, Error> {
        Ok(self.writable(handle)?.references == 1)
    }

    /// One reference less. The last one removes the pool and gives it to the caller, who ends it.
    pub fn release(&self, handle: usize) -> Result<Option<Arc<P>>, Error> {
        let mut slot = self.writable(handle)?;
        if slot.references > 1 {
            slot.references -= 1;
            return Ok(None);
        }
        Ok(self.retire(slot, handle, Ending::Destroyed))
    }

    /// Removes a pool whatever its references and gives it to the caller, who ends it.
    pub fn remove(&self, handle: usize, ending: Ending) -> Result<Arc<P>, Error> {
        let slot = self.writable(handle)?;
        self.retire(slot, handle, ending)
            .ok_or(Error::InvalidPool { handle })
    }

    /// The slot of a live pool.
    fn writable(&self, handle: usize) -> Result<RwLockWriteGuard<'_, Slot<P>>, Error> {
        let slot = self.slots[handle % SLOTS]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_live(handle) {
            Ok(slot)
        } else {
            Err(slot.verdict(handle))
        }
    }

    fn retire(
        &self,
        mut slot: RwLockWriteGuard<'_, Slot<P>>,
        handle: usize,
        ending: Ending,
    ) -> Option<Arc<P>> {
        let index = handle % SLOTS;
        let pool = slot.pool.take();
        slot.references = 0;
        slot.ending = ending;
        self.live[index].store(0, Ordering::Release);
        self.occupied[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        drop(slot);
        let mut free = locked(&self.free);
        let last = (free.first + free.count) % SLOTS;
        free.ring[last] = index as u16;
        free.count += 1;
        pool
    }

    /// Why a handle that is not live is not.
    pub fn verdict(&self, handle: usize) -> Error {
        self.slots[handle % SLOTS]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .verdict(handle)
    }

    /// Handles of the live pools.
    pub fn handles(&self) -> impl Iterator<Item = usize> + '_ {
        self.occupied.iter().enumerate().flat_map(move |(word, bits)| {
            let bits = bits.load(Ordering::Acquire);
            // one step for each that is set
            let set = std::iter::successors((bits != 0).then_some(bits), |&left| {
                let left = left & (left - 1);
                (left != 0).then_some(left)
            });
            set.filter_map(move |left| {
                let place = word * 64 + left.trailing_zeros() as usize;
                let handle = self.live[place].load(Ordering::Acquire);
                (handle != 0).then_some(handle)
            })
        })
    }

    /// The first live pool, from a place on, that `wanted` says yes to, and its place. `wanted` takes no lock, since each pool is shown
    /// to it under its slot's: others are passed without a count of references.
    pub fn find(&self, from: usize, mut wanted: impl FnMut(&P) -> bool) -> Option<(usize, Arc<P>)> {
        let mut place = from;
        while place < SLOTS {
            let left = self.occupied[place / 64].load(Ordering::Acquire) >> (place % 64);
            if left == 0 {
                place = (place / 64 + 1) * 64;
                continue;
            }
            place += left.trailing_zeros() as usize;
            let slot = self.slots[place].read().unwrap_or_else(PoisonError::into_inner);
            if let Some(pool) = &slot.pool
                && wanted(pool)
            {
                return Some((place, pool.clone()));
            }
            place += 1;
        }
        None
    }

    /// The live pools. One that ends meanwhile may be missing.
    pub fn pools(&self) -> impl Iterator<Item = Arc<P>> + '_ {
        self.handles().filter_map(|handle| self.get(handle).ok())
    }
}

impl<P> Slot<P> {
    fn verdict(&self, handle: usize) -> Error {
        let generation = ((handle ^ TAG) >> SLOT_BITS) as u64;
        if generation == 0 || generation > self.generation {
            Error::InvalidPool { handle }
        } else if generation == self.generation && self.ending == Ending::Finalized {
            Error::Finalized { handle }
        } else {
            Error::PoolDestroyed { handle }
        }
    }
}

/// The pools of this process.
pub static POOLS: Registry<Pool> = Registry::new();

#[cfg(test)]
mod tests {
    use super::*;

    /// A table in memory of its own: it is too large for the stack of a test thread in a debug build.
    fn table() -> &'static Registry<u32> {
        Box::leak(Box::new(Registry::new()))
    }

    #[test]
    fn handles_tell_live_destroyed_finalized_and_garbage_apart() {
        let table = table();
        let first = table.insert(Arc::new(1)).unwrap();
        let second = table.insert(Arc::new(2)).unwrap();
        assert_eq!((*table.get(first).unwrap(), *table.get(second).unwrap()), (1, 2));
        assert_eq!(*table.remove(first, Ending::Destroyed).unwrap(), 1);
        assert_eq!(*table.remove(second, Ending::Finalized).unwrap(), 2);
        assert_eq!(table.get(first), Err(Error::PoolDestroyed { handle: first }));
        assert_eq!(table.get(second), Err(Error::Finalized { handle: second }));
        assert_eq!(
            table.remove(first, Ending::Destroyed),
            Err(Error::PoolDestroyed { handle: first })
        );
        assert_eq!(table.retain(second), Err(Error::Finalized { handle: second }));
        let never = first + SLOTS;
        for garbage in [
            1,
            8,
            SLOTS,
            never,
            !0,
            first ^ (1 << 60),
            0x7fff_dead_beef,
            TAG,
            TAG | 5,
        ] {
            assert_eq!(
                table.get(garbage),
                Err(Error::InvalidPool { handle: garbage }),
                "{garbage:#x}"
            );
        }
    }

    #[test]
    fn slots_are_reused_oldest_first_and_generations_tell_handles_apart() {
        let table = table();
        let firsts: Vec<usize> = (0..SLOTS as u32)
            .map(|n| table.insert(Arc::new(n)).unwrap())
            .collect();
        assert_eq!(table.insert(Arc::new(0)), None);
        table.remove(firsts[7], Ending::Finalized).unwrap();
        table.remove(firsts[3], Ending::Destroyed).unwrap();
        let again = table.insert(Arc::new(77)).unwrap();
        assert_eq!(again % SLOTS, firsts[7] % SLOTS);
        assert_ne!(again, firsts[7]);
        assert_eq!(*table.get(again).unwrap(), 77);
        // A finalised handle says so until its slot is reused.
        assert_eq!(
            table.get(firsts[7]),
            Err(Error::PoolDestroyed { handle: firsts[7] })
        );
        assert_eq!(table.insert(Arc::new(33)).unwrap() % SLOTS, firsts[3] % SLOTS);
        assert_eq!(table.pools().count(), SLOTS);
    }

    #[test]
    fn the_last_release_gives_the_pool_back() {
        let table = table();
        let handle = table.insert(Arc::new(5)).unwrap();
        table.retain(handle).unwrap();
        assert_eq!(table.release(handle), Ok(None));
        assert_eq!(table.release(handle).unwrap().as_deref(), Some(&5));
        assert_eq!(table.release(handle), Err(Error::PoolDestroyed { handle }));
    }

    #[test]
    fn iteration_sees_exactly_the_live_pools() {
        let table = table();
        let handles: Vec<usize> = (0..130).map(|n| table.insert(Arc::new(n)).unwrap()).collect();
        for handle in handles.iter().step_by(2) {
            table.remove(*handle, Ending::Destroyed).unwrap();
        }
        let live: Vec<u32> = table.pools().map(|pool| *pool).collect();
        assert_eq!(live, (0..130).filter(|n| n % 2 == 1).collect::<Vec<_>>());
        assert!(table.handles().eq(handles.iter().copied().skip(1).step_by(2)));
        let next = |from: usize| {
            table
                .find(from, |pool| pool % 3 == 0)
                .map(|(place, pool)| (place, *pool))
        };
        let thirds = std::iter::successors(next(0), |(place, _)| next(place + 1));
        assert!(thirds.eq((3..130).step_by(6).map(|number| (number as usize, number))));
        assert!(table.find(0, |_| false).is_none() && table.find(SLOTS, |_| true).is_none());
    }

    #[test]
    fn threads_create_look_up_and_destroy_at_once() {
        let table = table();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                scope.spawn(move || {
                    let mut stale = Vec::new();
                    for round in 0..1000 {
                        let value = thread << 16 | round;
                        let handle = table.insert(Arc::new(value)).unwrap();
                        assert_eq!(*table.get(handle).unwrap(), value);
                        table.retain(handle).unwrap();
                        assert_eq!(table.release(handle), Ok(None));
                        // Every other thread's pools may come and go meanwhile.
                        assert!(table.pools().any(|pool| *pool == value));
                        assert_eq!(*table.remove(handle, Ending::Destroyed).unwrap(), value);
                        stale.push(handle);
                    }
                    for handle in stale {
                        assert_eq!(table.get(handle), Err(Error::PoolDestroyed { handle }));
                    }
                });
            }
        });
        assert_eq!(table.pools().count(), 0);
    }

    #[test]
    fn one_pool_is_removed_once_however_many_threads_try() {
        let table = table();
        for _ in 0..200 {
            let handle = table.insert(Arc::new(0)).unwrap();
            let removed = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for ending in [Ending::Destroyed, Ending::Finalized, Ending::Destroyed] {
                    let removed = &removed;
                    scope.spawn(move || {
                        if table.remove(handle, ending).is_ok() {
                            removed.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(removed.into_inner(), 1);
        }
    }
}
