//! A fence that costs the one side nothing: where one thread publishes something often and others look at it seldom,
//! the seldom side can make every thread of the process pass a full fence (`membarrier(2)`), so that the often side
//! needs none of its own. Where the kernel has no such call, or refuses it, both sides have a full fence.
//! (Dice, Huang, Yang: "Asymmetric Dekker synchronization", 2001.)
//!
//! Locks: none.

use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

const UNKNOWN: u8 = 0;
const REFUSED: u8 = 1;
const REGISTERED: u8 = 2;
static SYSTEM: AtomicU8 = AtomicU8::new(UNKNOWN);

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration (linux/membarrier.h).
const EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks the system, once, before the first fence. A thread that still fences by itself does no harm.
pub fn prepare() {
    if SYSTEM.load(Ordering::Relaxed) == UNKNOWN {
        let registered = membarrier(REGISTER_EXPEDITED);
        SYSTEM.store(if registered { REGISTERED } else { REFUSED }, Ordering::SeqCst);
    }
}

/// Is `heavy` enough? It stays so. Else the often side has a fence of its own.
pub fn is_one_sided() -> bool {
    SYSTEM.load(Ordering::Relaxed) == REGISTERED
}

/// The often side where `heavy` is enough: what it wrote before is seen by whoever calls `heavy` later, or this side sees
/// after it what they wrote before theirs.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The often side elsewhere.
pub fn full() {
    fence(Ordering::SeqCst);
}

/// The seldom side.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if SYSTEM.load(Ordering::Relaxed) == REGISTERED {
        let done = membarrier(EXPEDITED);
        assert!(done, "the system registered this process for membarrier");
    }
}
