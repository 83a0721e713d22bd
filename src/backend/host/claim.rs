//! The claim of the one process that records a shared event: a lock on the event's file, which the kernel takes off when the
//! process ends, however it does.
//!
//! Such a lock is an open file's and lasts as long as any descriptor of it, so the file is opened anew for it, and nobody is
//! handed the descriptor. A forked child has it all the same, and closes it before `fork` returns there; `OURS` has a bit for
//! each. A fork waits until no thread has a descriptor without its bit; not for longer than `PATIENCE`, since a signal
//! handler may fork, too, while its own thread has one. (In its child that thread then counts down from nothing.)
//!
//! Invariants: whoever clears a descriptor's bit closes it. Outside of a `Change` each descriptor that has a place has its bit.
//!
//! Locks: `CHANGES` and `FORKS` are one that many changes, or one fork and more, may hold; each for a call of the system.

use super::os;
use crate::backend::BackendError;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BITS: usize = u64::BITS as usize;
/// As many descriptors as Linux lets a process have unless it is told otherwise (`fs.nr_open`); one beyond has no bit.
const WORDS: usize = (1 << 20) / BITS;

static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Words that have ever had a bit, from the first.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Threads that open or close a descriptor, and forks under way.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// How long a fork waits for changes, and between two looks.
const PATIENCE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_micros(10);

/// A fork waits while one lives, and none begins while a fork is under way. It asks for no memory, since an allocator may wait for the fork.
/// Neither waits longer than `PATIENCE`: other handlers of the fork may call here, or wait for who does.
struct Change;

impl Change {
    fn begin() -> Change {
        let begun = Instant::now();
        loop {
            CHANGES.fetch_add(1, Ordering::SeqCst);
            let change = Change;
            if FORKS.load(Ordering::SeqCst) == 0 || begun.elapsed() >= PATIENCE {
                return change;
            }
            drop(change);
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        count_down(&CHANGES);
    }
}

fn count_down(count: &AtomicUsize) {
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

fn place(descriptor: RawFd) -> Option<(usize, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    (number < WORDS * BITS).then_some((number / BITS, 1 << (number % BITS)))
}

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub(super) struct Claim(ManuallyDrop<File>);

impl Claim {
    /// None: another process has it.
    pub(super) fn take(file: &File) -> Result<Option<Claim>, BackendError> {
        static WATCHED: OnceLock<Result<(), BackendError>> = OnceLock::new();
        const CALLS: os::AtFork = os::AtFork {
            before: before_fork,
            in_parent: after_fork,
            in_child,
        };
        WATCHED.get_or_init(|| os::at_fork(&CALLS)).clone()?;
        let path = os::path_of(file);
        let change = Change::begin();
        let opened = os::open(&path);
        if let Ok(own) = &opened
            && let Some((word, bit)) = place(own.as_raw_fd())
        {
            USED.fetch_max(word + 1, Ordering::Relaxed);
            OURS[word].fetch_or(bit, Ordering::Relaxed);
        }
        drop(change);
        let own = opened?;
        let claim = Claim(ManuallyDrop::new(own));
        Ok(os::lock_file(&claim.0).then_some(claim))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _change = Change::begin();
        let closed = place(self.0.as_raw_fd()).is_some_and(|(word, bit)| {
            let before = OURS[word].fetch_and(!bit, Ordering::Relaxed);
            before & bit == 0
        });
        if !closed {
            // SAFETY: dropped here alone, and whoever has found the bit gone has closed the descriptor.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    let begun = Instant::now();
    while CHANGES.load(Ordering::SeqCst) > 0 && begun.elapsed() < PATIENCE {
        thread::sleep(LOOK);
    }
}

extern "C" fn after_fork() {
    count_down(&FORKS);
}

/// Does what a handler in the child of a threaded process may: it touches atomics and makes system calls.
extern "C" fn in_child() {
    // no other thread is left that changes anything, or forks
    CHANGES.store(0, Ordering::SeqCst);
    FORKS.store(0, Ordering::SeqCst);
    for (index, word) in OURS.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            os::close((index * BITS) as RawFd + bits.trailing_zeros() as RawFd);
            bits &= bits - 1;
        }
    }
}
