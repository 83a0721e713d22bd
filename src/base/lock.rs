//! Ranked locks. A thread may take a lock only if its rank is above that of every lock it holds; debug
//! builds panic on the first breach. The one table of ranks:
//!
//! | rank | lock | held for |
//! |---|---|---|
//! | 1 | `Grow` | one miss, trim or squeeze at a time, but while it waits for work; backend calls are made under it |
//! | 2 | `Heap` | the books of one pool; nanoseconds, never a backend call |
//! | 3 | `Stale` | the list of events to forget |
//! | 4 | `Desk` | what a pool's worker is to do; a few instructions, or its start |
//! | 5 | `Door` | whether a pool exports, and what its porter has seen; a few instructions, or its start |
//! | 6 | `Chunks` | the list of a pool's chunks for short copies; a look at it |
//! | 7 | `Depot` | a handful of blocks on their way from thread to thread |
//!
//! `Grow` takes long, so it is one that threads queue up for ([`fair`](super::fair)). They are std's mutexes, as are the other locks of the library: on Linux these are futexes that allocate
//! nothing. parking_lot keeps a table of parked threads that is never freed once two threads have contended, and
//! a strict leak checker would report it for every program that shares a pool between threads.

use std::cell::Cell;
use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

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
    /// What a pool's worker is to do.
    Desk = 4,
    /// Whether a pool exports.
    Door = 5,
    /// What short copies go through.
    Chunks = 6,
    /// Blocks on their way from thread to thread.
    Depot = 7,
}

thread_local! {
    /// Bit `r` is set while this thread holds a lock of rank `r`.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A thread pauses once before it looks again at a lock that is not free, then twice as long each time, up to so many times. What
/// the lock protects is in the processor's caches of whoever had it last, who does more by having it again than by sharing it.
const LONGEST: u32 = 1 << 10;
/// So many pauses in all come before it sleeps for the lock: less than a millisecond.
const PAUSES: u32 = 1 << 14;
/// After so many at once whoever has it may run, where there are more threads than processors.
const YIELD: u32 = 1 << 7;

/// A mutex with a rank.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// Notes that this thread holds a lock of a rank.
struct Held(Rank);

impl Held {
    fn new(rank: Rank) -> Held {
        if cfg!(debug_assertions) {
            HELD.with(|held| held.set(held.get() | 1 << rank as u32));
        }
        Held(rank)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with(|held| held.set(held.get() & !(1 << self.0 as u32)));
        }
    }
}

/// Holds a [`Ranked`] lock.
pub struct RankedGuard<'a, T> {
    held: Held,
    inner: MutexGuard<'a, T>,
    waited: bool,
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
        Some(RankedGuard {
            held: Held::new(self.rank),
            inner,
            waited: false,
        })
    }

    /// Takes the lock if it is free at one of a few looks. std's mutex does not look again once one thread sleeps for it, and then
    /// every one of them does, each time: to be woken takes much longer than the lock is held. (Spin before sleeping: Karlin,
    /// Li, Manasse, Owicki, 1991; the pauses: Anderson, 1990; that fewer threads at a lock do more: Dice, Malthusian Locks, 2017.)
    fn lock_soon(&self) -> Option<RankedGuard<'_, T>> {
        let (mut pauses, mut left) = (1, PAUSES);
        while left > 0 {
            for pause in 1..=pauses {
                hint::spin_loop();
                if pause % YIELD == 0 {
                    thread::yield_now();
                }
            }
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            left = left.saturating_sub(pauses);
            pauses = (2 * pauses).min(LONGEST);
        }
        None
    }

    /// May this thread wait for the lock, with those that it holds?
    pub(super) fn check_rank(&self) {
        if cfg!(debug_assertions) {
            let held = HELD.with(Cell::get);
            assert!(
                held >> (self.rank as u32) == 0,
                "lock rank {:?} taken while holding ranks {held:#b}",
                self.rank
            );
        }
    }

    /// Takes the lock. A panic of an earlier holder does not poison it: the C boundary has reported it.
    #[inline]
    pub fn lock(&self) -> RankedGuard<'_, T> {
        self.check_rank();
        self.try_lock().unwrap_or_else(|| self.lock_late())
    }

    /// The same where it is not free.
    #[cold]
    fn lock_late(&self) -> RankedGuard<'_, T> {
        let mut guard = self.lock_soon().unwrap_or_else(|| self.lock_asleep());
        guard.waited = true;
        guard
    }

    fn lock_asleep(&self) -> RankedGuard<'_, T> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        RankedGuard {
            held: Held::new(self.rank),
            inner,
            waited: false,
        }
    }
}

impl<T> RankedGuard<'_, T> {
    /// Had somebody else the lock when it was asked for?
    #[inline(always)]
    pub fn has_waited(&self) -> bool {
        self.waited
    }

    /// Sleeps until the condition is signalled, or wakes for no reason; others may have the lock meanwhile.
    pub fn wait(self, condition: &Condvar) -> Self {
        RankedGuard {
            held: self.held,
            inner: condition.wait(self.inner).unwrap_or_else(PoisonError::into_inner),
            waited: self.waited,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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

    #[test]
    fn a_lock_knows_whether_somebody_had_it() {
        let lock = Ranked::new(Rank::Heap, 0u32);
        assert!(!lock.lock().has_waited());
        let waited = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !waited.load(Relaxed) {
                        let mut value = lock.lock();
                        *value += 1;
                        waited.fetch_or(value.has_waited(), Relaxed);
                    }
                });
            }
        });
        assert!(!lock.lock().has_waited());
    }
}
