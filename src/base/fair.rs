//! A ranked lock that nobody waits for in vain.
//!
//! What it protects takes long, as calls of the driver do. With a plain mutex a thread that has just let it go takes it again long
//! before whoever waited has woken, and may do so for ever. Here a thread may overtake those who wait for a moment, so that short
//! turns need no switch of threads, and then queues up behind them. (Eventual fairness, as parking_lot has it, which gives a lock
//! that was fought over for half a millisecond to whoever waits; the tickets are those of Reed and Kanodia, 1979.)
//!
//! Invariants: `front <= next`; of those who wait the one with ticket `front` is next. The inner lock is taken by whoever has set
//! `taken` only, so nobody waits for it.

use super::lock::{Rank, Ranked, RankedGuard};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long those who wait may be overtaken.
const PATIENCE: Duration = Duration::from_micros(500);
/// Those who wait are woken one at a time as long as they are no more than these.
const BELLS: usize = 8;

/// Who has the lock, and who waits for it.
#[derive(Debug)]
struct Line {
    taken: bool,
    /// The ticket for whoever comes to wait.
    next: u64,
    /// The ticket of whoever waits and comes next.
    front: u64,
    /// When that one came to the front.
    since: Option<Instant>,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.front == self.next
    }

    /// Has whoever is in front waited long enough?
    fn is_impatient(&self) -> bool {
        !self.is_empty() && self.since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }
}

/// A mutex with a rank, and a line of those who wait.
#[derive(Debug)]
pub struct Fair<T> {
    line: Mutex<Line>,
    bells: [Condvar; BELLS],
    value: Ranked<T>,
}

/// Holds a [`Fair`] lock.
pub struct FairGuard<'a, T> {
    lock: &'a Fair<T>,
    /// Some, but while it is dropped.
    value: Option<RankedGuard<'a, T>>,
}

impl<T> Fair<T> {
    /// Wraps `value`.
    pub fn new(rank: Rank, value: T) -> Fair<T> {
        Fair {
            line: Mutex::new(Line {
                taken: false,
                next: 0,
                front: 0,
                since: None,
            }),
            bells: Default::default(),
            value: Ranked::new(rank, value),
        }
    }

    /// Does anybody have it?
    pub fn is_taken(&self) -> bool {
        self.line().taken
    }

    /// Takes the lock if it is free and nobody waits for it. Waits for nobody, so no rank is needed.
    pub fn try_lock(&self) -> Option<FairGuard<'_, T>> {
        let mut line = self.line();
        if line.taken || !line.is_empty() {
            return None;
        }
        let value = self.value.try_lock()?;
        line.taken = true;
        Some(FairGuard {
            lock: self,
            value: Some(value),
        })
    }

    /// Takes the lock.
    pub fn lock(&self) -> FairGuard<'_, T> {
        self.value.check_rank();
        let mut line = self.line();
        if line.taken || line.is_impatient() {
            let ticket = line.next;
            if line.is_empty() {
                line.since = Some(Instant::now());
            }
            line.next += 1;
            while line.taken || line.front != ticket {
                let bell = self.bell(ticket);
                line = bell.wait(line).unwrap_or_else(PoisonError::into_inner);
            }
            line.front += 1;
            line.since = Some(Instant::now());
        }
        line.taken = true;
        drop(line);
        FairGuard {
            lock: self,
            value: Some(self.value.lock()),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bell(&self, ticket: u64) -> &Condvar {
        &self.bells[ticket as usize % BELLS]
    }
}

impl<T> Drop for FairGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        let mut line = self.lock.line();
        line.taken = false;
        if !line.is_empty() {
            self.lock.bell(line.front).notify_all();
        }
    }
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_ref().expect("held until it is dropped")
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("held until it is dropped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread::{scope, sleep, yield_now};

    fn waiting(lock: &Fair<u64>) -> u64 {
        let line = lock.line();
        line.next - line.front
    }

    #[test]
    fn one_at_a_time() {
        let lock = Fair::new(Rank::Grow, 0u64);
        let inside = AtomicU64::new(0);
        scope(|scope| {
            for number in 0..20 {
                let (lock, inside) = (&lock, &inside);
                scope.spawn(move || {
                    for turn in 0..500 {
                        let guard = match (turn + number) % 5 {
                            0 => lock.try_lock(),
                            _ => Some(lock.lock()),
                        };
                        let Some(mut guard) = guard else { continue };
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        *guard += 1;
                        if turn % 50 == 0 {
                            yield_now();
                        }
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(*lock.lock() >= 20 * 400);
        assert_eq!(waiting(&lock), 0);
    }

    /// A thread takes it in a loop, each time for longer than patience lasts: another one that waits is overtaken once at most,
    /// if it came in the last moment of a turn.
    #[test]
    fn nobody_waits_for_ever() {
        let lock = Fair::new(Rank::Grow, 0u64);
        let (done, mut most) = (AtomicBool::new(false), 0);
        scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    *lock.lock() = 0;
                }
            });
            for _ in 0..50 {
                let mut turns = lock.lock();
                *turns = if waiting(&lock) > 0 { *turns + 1 } else { 0 };
                let overtaken = *turns;
                sleep(4 * PATIENCE);
                drop(turns);
                most = most.max(overtaken);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(most <= 1, "the other one waited for {most} turns");
    }

    #[test]
    fn who_tries_does_not_overtake() {
        let lock = Fair::new(Rank::Grow, 0u64);
        assert!(!lock.is_taken());
        let guard = lock.lock();
        assert!(lock.is_taken() && lock.try_lock().is_none());
        scope(|scope| {
            let waiter = scope.spawn(|| *lock.lock() += 1);
            while waiting(&lock) == 0 {
                yield_now();
            }
            drop(guard);
            while !waiter.is_finished() {
                if let Some(value) = lock.try_lock() {
                    assert_eq!(*value, 1, "before the one that waited");
                }
            }
        });
        assert_eq!(*lock.try_lock().expect("free"), 1);
    }
}
