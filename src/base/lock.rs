//! Ranked locks. A thread may take a lock only if its rank is above that of every lock it holds; debug
//! builds panic on the first breach. The one table of ranks:
//!
//! | rank | lock | held for |
//! |---|---|---|
//! | 1 | `Grow` | one miss, trim or squeeze at a time; backend calls are made under it |
//! | 2 | `Heap` | the books of one pool; nanoseconds, never a backend call |
//! | 3 | `Stale` | the list of events to forget |
//!
//! They are std's mutexes, as are the other locks of the library: on Linux these are futexes that allocate
//! nothing. parking_lot keeps a table of parked threads that is never freed once two threads have contended, and
//! a strict leak checker would report it for every program that shares a pool between threads.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

/// The ranks; see the module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// Serialises misses of one pool.
    Grow = 1,
    /// The books of one pool.
    Heap = 2,
    /// Events to forget.
    Stale = 3,
}

thread_local! {
    /// Bit `r` is set while this thread holds a lock of rank `r`.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A mutex with a rank.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// Holds a [`Ranked`] lock.
pub struct RankedGuard<'a, T> {
    rank: Rank,
    inner: MutexGuard<'a, T>,
}

impl<T> Ranked<T> {
    /// Wraps `value`.
    pub const fn new(rank: Rank, value: T) -> Ranked<T> {
        Ranked {
            rank,
            inner: Mutex::new(value),
        }
    }

    /// Takes the lock if it is free. Waits for nobody, so no rank is needed.
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(std::sync::TryLockError::Poisoned(poison)) => poison.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        if cfg!(debug_assertions) {
            HELD.with(|held| held.set(held.get() | 1 << self.rank as u32));
        }
        Some(RankedGuard {
            rank: self.rank,
            inner,
        })
    }

    /// Takes the lock. A panic of an earlier holder does not poison it: the C boundary has reported it.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        if cfg!(debug_assertions) {
            let held = HELD.with(Cell::get);
            assert!(
                held >> (self.rank as u32) == 0,
                "lock rank {:?} taken while holding ranks {held:#b}",
                self.rank
            );
        }
        let inner = self.inner.lock().unwrap_or_else(|poison| poison.into_inner());
        if cfg!(debug_assertions) {
            HELD.with(|held| held.set(held.get() | 1 << self.rank as u32));
        }
        RankedGuard {
            rank: self.rank,
            inner,
        }
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for RankedGuard<'_, T> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with(|held| held.set(held.get() & !(1 << self.rank as u32)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upwards_is_fine_and_downwards_is_caught() {
        let (grow, heap) = (Ranked::new(Rank::Grow, 1), Ranked::new(Rank::Heap, 2));
        {
            let a = grow.lock();
            let b = heap.lock();
            assert_eq!(*a + *b, 3);
        }
        let caught = std::panic::catch_unwind(|| {
            let _b = heap.lock();
            let _a = grow.lock();
        });
        assert_eq!(caught.is_err(), cfg!(debug_assertions));
        drop(grow.lock());
    }
}
