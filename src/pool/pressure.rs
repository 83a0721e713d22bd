//! A device that runs short, which a pool learns only by being refused a page.
//!
//! What it held then becomes a limit to it, beside the program's own: it serves from what it has, with small pages and all
//! that a pool near its limit does. It may ask for more in the first miss after a pause, which doubles with each refusal,
//! and in every miss before it waits for queued work or fails. So a driver that refuses is not asked at each miss, and no
//! request fails for what it said before. The limit is dropped when the pool has come to hold clearly more.
//!
//! Meanwhile threads keep less, and what has not been needed for a while goes back by itself (`alloc::spare`).
//!
//! Locks: none of its own. All is written under `Grow`; the fields are atomic because some are read without.

use super::Pool;
use super::turn::Turn;
use crate::alloc::flush::Whose;
use crate::backend::{Backend, BackendError};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Misses that do without at most before the device is asked again.
const PATIENCE: u32 = 64;
/// A device is no longer short when it has granted so many times what it refused, beyond what it had refused to exceed.
/// (What the pool gave back by itself and has taken again says nothing of the device.)
const ENOUGH: u64 = 16;

/// What the device has refused.
#[derive(Debug)]
pub(super) struct Pressure {
    /// Bytes that the pool can hold, as the device said; `u64::MAX`: nothing was refused.
    limit: AtomicU64,
    /// Bytes of the page that was refused.
    page: AtomicU64,
    /// The device may be asked for more all the same.
    lifted: AtomicBool,
    /// Misses that are to do without.
    pause: AtomicU32,
    /// As many after the next refusal.
    next: AtomicU32,
    /// How often this miss has been refused something.
    refusals: AtomicU32,
}

impl Pressure {
    pub(super) fn new() -> Pressure {
        Pressure {
            limit: AtomicU64::new(u64::MAX),
            page: AtomicU64::new(0),
            lifted: AtomicBool::new(false),
            pause: AtomicU32::new(0),
            next: AtomicU32::new(1),
            refusals: AtomicU32::new(0),
        }
    }

    /// Is the device short of memory?
    pub(super) fn is_short(&self) -> bool {
        self.limit.load(Relaxed) != u64::MAX
    }

    /// Bytes that may be made beside those that are held.
    pub(super) fn left(&self, reserved: u64) -> u64 {
        match self.lifted.load(Relaxed) {
            true => u64::MAX,
            false => self.limit.load(Relaxed).saturating_sub(reserved),
        }
    }

    /// A miss begins.
    pub(super) fn begin_miss(&self) {
        self.refusals.store(0, Relaxed);
        let pause = self.pause.load(Relaxed);
        self.pause.store(pause.saturating_sub(1), Relaxed);
        self.lifted.store(pause == 0 && self.is_short(), Relaxed);
    }

    /// How often this miss has been refused something.
    pub(super) fn refusals(&self) -> u32 {
        self.refusals.load(Relaxed)
    }

    /// What this miss has asked the device, for [`Self::resume`] after others have had their turn.
    pub(super) fn asked(&self) -> (bool, u32) {
        (self.lifted.load(Relaxed), self.refusals())
    }

    /// The miss that had `asked` goes on.
    pub(super) fn resume(&self, (lifted, refusals): (bool, u32)) {
        self.lifted.store(lifted, Relaxed);
        self.refusals.store(refusals, Relaxed);
    }

    /// The device may be asked for more, if this miss has not asked it yet. Whether that is new.
    pub(super) fn ask_again(&self) -> bool {
        self.is_short() && self.refusals() == 0 && !self.lifted.swap(true, Relaxed)
    }
}

impl Pool {
    /// What the device said to a request for a page. The caller holds `grow`.
    pub(super) fn heard<T>(&self, bytes: u64, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        let pressure = &self.pressure;
        match &answer {
            Ok(_) if pressure.is_short() => {
                let more = ENOUGH.saturating_mul(pressure.page.load(Relaxed));
                if self.held() + bytes >= pressure.limit.load(Relaxed).saturating_add(more) {
                    pressure.limit.store(u64::MAX, Relaxed);
                    pressure.next.store(1, Relaxed);
                    self.tell_whether_short(false);
                }
            }
            Err(BackendError::OutOfMemory(_)) => {
                // a smaller page may still be had
                let limit = self.held() + bytes - self.backend.granularity();
                pressure.limit.store(limit, Relaxed);
                pressure.page.store(bytes, Relaxed);
                pressure.lifted.store(false, Relaxed);
                // once a miss, however often it asks
                if pressure.refusals.fetch_add(1, Relaxed) == 0 {
                    let pause = pressure.next.load(Relaxed);
                    pressure.pause.store(pause, Relaxed);
                    pressure.next.store((2 * pause).min(PATIENCE), Relaxed);
                }
                self.tell_whether_short(true);
            }
            _ => {}
        }
        answer
    }

    fn held(&self) -> u64 {
        self.books().map_or(0, |heap| heap.stats.reserved)
    }

    fn tell_whether_short(&self, short: bool) {
        if let Ok(mut heap) = self.books()
            && heap.is_short() != short
        {
            heap.set_short(short);
        }
    }

    /// Gives back what was not needed for a while, if no miss is at work just then.
    pub(super) fn give_back_spare(&self) {
        let Some(_grow) = Turn::try_take(self) else { return };
        let Ok(mut heap) = self.books() else { return };
        let keep = heap.bytes_to_keep();
        // plain memory may wait for running work when it is released, and this is in an allocation
        if self.placed || heap.stats.reserved <= keep {
            return;
        }
        heap.flush(Whose::All, |_| false);
        drop(heap);
        self.poll(None, true, false);
        // what cannot be given back now stays until the next time
        let _ = self.give_back(keep, 0);
    }
}
