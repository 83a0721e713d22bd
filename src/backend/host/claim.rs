//! The claim of the one process that records a shared event: a lock on the event's file, which the kernel takes off when the
//! process ends, however it does.
//!
//! Such a lock is an open file's and lasts as long as any descriptor of it, so the file is opened anew for it, and nobody is
//! handed the descriptor. A forked child has it all the same, and closes it before `fork` returns there; `OURS` has a bit for
//! each. (A fork between the opening and the bit gets away, and one between the bit and the closing: it keeps the lock as long as it lives.)
//!
//! Invariant: whoever clears a descriptor's bit closes it.
//!
//! Locks: none, since the child closes what another thread may just be opening.

use super::os;
use crate::backend::BackendError;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const BITS: usize = u64::BITS as usize;
/// As many descriptors as Linux lets a process have unless it is told otherwise (`fs.nr_open`); one beyond has no bit.
const WORDS: usize = (1 << 20) / BITS;

static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// Words that have ever had a bit, from the first.
static USED: AtomicUsize = AtomicUsize::new(0);

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
        WATCHED.get_or_init(|| os::at_fork_in_child(in_child)).clone()?;
        let own = os::open_anew(file)?;
        if let Some((word, bit)) = place(own.as_raw_fd()) {
            USED.fetch_max(word + 1, Ordering::Relaxed);
            OURS[word].fetch_or(bit, Ordering::Relaxed);
        }
        let claim = Claim(ManuallyDrop::new(own));
        Ok(os::lock_file(&claim.0).then_some(claim))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
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

/// Does what a handler in the child of a threaded process may: it touches atomics and makes system calls.
extern "C" fn in_child() {
    for (index, word) in OURS.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            os::close((index * BITS) as RawFd + bits.trailing_zeros() as RawFd);
            bits &= bits - 1;
        }
    }
}
