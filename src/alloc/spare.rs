//! What a pool needed lately, while its device is short of memory: the rest goes back by itself.
//!
//! Time is counted in windows of allocations, as many as pay for making the spare pages anew. What was not needed for two
//! windows goes, some of it at a time. Once the device is not short any more the pool keeps what it has.
//!
//! Invariant: `high` and `before` are at least what was taken at any free in their windows.
//!
//! Callers: `Heap::free`; `pool::pressure`, holding `Grow` throughout and `Heap` while in here.

use super::heap::Heap;

/// Allocations that are worth a page made anew: at some 60 us a page that is 60 ns each.
const WORTH: u64 = 1024;
/// A window has at least as many.
const LEAST: u64 = 4096;
/// Bytes that go back at a time, so that no request waits for long...
const AT_ONCE: u64 = 128 << 20;
/// ...and the allocations between two times.
const BETWEEN: u64 = 256;
/// The part of what was needed that is kept beside it.
const MARGIN: u64 = 16;

/// What was needed while the device is short.
#[derive(Debug, Default)]
pub struct Spare {
    /// The device is short of memory.
    short: bool,
    /// The most that was taken in this window.
    high: u64,
    /// The same for the one before.
    before: u64,
    /// Allocations until this window ends, or more can go back.
    until: u64,
}

impl Heap {
    /// The device is short of memory from now on, or no longer.
    pub fn set_short(&mut self, short: bool) {
        self.spare.short = short;
        if short {
            // nothing is known of what was needed until now
            (self.spare.before, self.spare.high) = (u64::MAX, self.taken());
            self.begin_window();
        }
        self.tune_caches();
    }

    /// Is it?
    #[inline]
    pub fn is_short(&self) -> bool {
        self.spare.short
    }

    /// Something is about to be freed: what is taken now may be the most of this window.
    #[inline]
    pub(super) fn note_need(&mut self) {
        if self.spare.short {
            self.spare.high = self.spare.high.max(self.taken());
        }
    }

    /// Is it time to see what can go back?
    #[inline]
    pub fn is_spare_due(&self) -> bool {
        self.spare.short && self.stats.allocations >= self.spare.until
    }

    /// Bytes that are to be kept for now.
    pub fn bytes_to_keep(&mut self) -> u64 {
        let need = self.spare.high.max(self.spare.before).max(self.taken());
        let keep = need.saturating_add(need / MARGIN);
        let next = self.stats.reserved.saturating_sub(AT_ONCE);
        if keep < next {
            self.spare.until = self.stats.allocations + BETWEEN;
            return next;
        }
        (self.spare.before, self.spare.high) = (self.spare.high, self.taken());
        self.begin_window();
        keep
    }

    fn begin_window(&mut self) {
        self.spare.until = self.stats.allocations + (self.pages.count() * WORTH).max(LEAST);
    }
}
