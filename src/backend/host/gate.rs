//! May a call still be made? The host backend has no driver that could go away, so the tests give it one:
//! with `WEIR_TEST_HOST_UNLOAD=1` in the environment at the first use, an exit handler registered then marks
//! the backend unloaded, and a call of the pool after that prints its name and aborts, which proves to a
//! test that there are none. Calls of the program itself (streams, events) are answered with an error.
//!
//! In a forked child every call is refused before any lock is looked at: its holder may not exist there.
//!
//! Locks: none.

use crate::backend::{BackendError, process};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static UNLOADED: AtomicBool = AtomicBool::new(false);
static SWITCH: OnceLock<()> = OnceLock::new();

/// To be called before the first backend, stream or event is made.
pub(super) fn first_use() -> Result<(), BackendError> {
    for_program()?;
    process::watch_fork()?;
    SWITCH.get_or_init(|| {
        if std::env::var_os("WEIR_TEST_HOST_UNLOAD").is_some_and(|value| value == "1") {
            // SAFETY: the handler is a plain function that stays loaded with the library.
            let code = unsafe { libc::atexit(unload) };
            assert_eq!(code, 0, "atexit refused the handler of WEIR_TEST_HOST_UNLOAD");
        }
    });
    Ok(())
}

extern "C" fn unload() {
    UNLOADED.store(true, Ordering::SeqCst);
    process::disturb();
}

/// Neither forked nor unloaded.
pub(super) fn usable() -> bool {
    !process::forked() && !UNLOADED.load(Ordering::Relaxed)
}

/// The check of every call that a program makes.
pub(super) fn for_program() -> Result<(), BackendError> {
    if usable() {
        Ok(())
    } else {
        Err(BackendError::Unloaded)
    }
}

/// The check of every call that a pool makes.
pub(super) fn for_pool(call: &str) -> Result<(), BackendError> {
    if process::forked() {
        return Err(BackendError::Unloaded);
    }
    if UNLOADED.load(Ordering::Relaxed) {
        let _ = writeln!(
            std::io::stderr(),
            "weir: host backend: {call} called after the backend was unloaded"
        );
        // SAFETY: ends the process, which is what the switch is for.
        unsafe { libc::abort() };
    }
    Ok(())
}
