//! The host copies memory.
//!
//! Addresses are numbers here as everywhere; that there is memory behind them is each function's precondition. Stores that go past
//! the caches were tried for long copies: threads alone are faster by a third so, and slower where a stream reads what they
//! wrote from the caches at the same time (`docs/copies.md`).
//!
//! Locks: none.

use crate::base::units::Addr;
use std::ptr;

/// Copies `bytes` from one place to another; the two do not overlap, unless it is one and the same. Pre: the memory is
/// there, and nobody else writes it meanwhile.
pub fn copy(to: Addr, from: Addr, bytes: usize) {
    let (to, from): (*mut u8, *const u8) = (
        ptr::with_exposed_provenance_mut(to.0 as usize),
        ptr::with_exposed_provenance(from.0 as usize),
    );
    // SAFETY: the function's own precondition; it may be one and the same memory.
    unsafe { ptr::copy(from, to, bytes) }
}
