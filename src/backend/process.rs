//! What has happened to this process: has it forked? A forked child owns none of the parent's threads or
//! driver state, so no layer may make a call, or wait for a lock, in it.
//!
//! Calls that threads' caches serve ask one question in place of many: was the process disturbed at all? If so they
//! find out by what. The answer is a number, so that it comes with another one (`own::Own::calm`).
//!
//! Locks: none. [`forked`] is one relaxed load: the flag is written by the only thread of the child before
//! `fork` returns there.

use super::BackendError;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);
static CALM: AtomicUsize = AtomicUsize::new(CALM_IS);
static WATCH: OnceLock<i32> = OnceLock::new();

/// Is this a child, forked from a process in which [`watch_fork`] had been called?
#[inline]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// May the process have forked, a driver be gone, or somebody want to hear of every block?
#[inline]
pub fn disturbed() -> bool {
    calm() != CALM_IS
}

/// What [`calm`] is where nothing has happened.
pub const CALM_IS: usize = 1;

/// [`CALM_IS`] unless the process was [`disturbed`], and then a number that stands for nothing.
#[inline(always)]
pub fn calm() -> usize {
    CALM.load(Ordering::Relaxed)
}

/// One of these has come true.
pub fn disturb() {
    CALM.store(usize::MAX, Ordering::Relaxed);
}

/// Has [`forked`] tell the truth from now on. Cheap after the first call.
pub fn watch_fork() -> Result<(), BackendError> {
    if forked() {
        return Err(BackendError::Unloaded);
    }
    // SAFETY: the handler is a plain function that stays loaded with the library and stores one atomic,
    // which is all that a handler may do in the child of a threaded process.
    let code = *WATCH.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match code {
        0 => Ok(()),
        code => Err(BackendError::OutOfMemory(format!(
            "pthread_atfork failed with code {code}"
        ))),
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
    disturb();
}

/// Runs `handler` when the process exits: after the exit handlers and static objects registered later, before
/// those registered earlier.
pub fn at_exit(handler: extern "C" fn()) -> Result<(), BackendError> {
    // SAFETY: the handler is a function of this library, which stays loaded.
    match unsafe { libc::atexit(handler) } {
        0 => Ok(()),
        code => Err(BackendError::OutOfMemory(format!(
            "atexit failed with code {code}"
        ))),
    }
}

/// The calling thread works in the background: it does not interrupt a thread that wakes it up. Where the system refuses,
/// nothing changes.
pub fn work_in_background() {
    // SAFETY: all zeros is a valid value, the priority that this policy wants.
    let priority = unsafe { std::mem::zeroed() };
    // SAFETY: changes this thread (0) alone, and reads a variable of ours.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) };
}
