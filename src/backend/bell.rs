//! Where threads of a copy wait for one another.
//!
//! Locks: `door`, to fall asleep or to wake who sleeps.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread looks for what it waits for before it sleeps, and how often between two offers to others to run.
const AWAKE: Duration = Duration::from_micros(100);
pub(super) const SPINS: usize = 64;

/// Where threads wait for something that another one does. They look for it a while before they sleep: to wake the threads of a
/// copy takes longer than its stream takes for a piece.
#[derive(Debug, Default)]
pub(super) struct Bell {
    asleep: AtomicUsize,
    door: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Until `done`.
    pub(super) fn wait(&self, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < AWAKE {
            for _ in 0..SPINS {
                if done() {
                    return;
                }
                hint::spin_loop();
            }
            thread::yield_now();
        }
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        // counted before it looks: who rings has changed something before it looks for sleepers
        self.asleep.fetch_add(1, Ordering::SeqCst);
        while !done() {
            door = self.rung.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes who sleeps. Pre: what they wait for has been done, in the order of `SeqCst`.
    pub(super) fn ring(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
            self.rung.notify_all();
        }
    }
}
