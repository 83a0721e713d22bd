//! A turn at `grow`: one miss or squeeze at a time.
//!
//! Whoever waits for queued work lets go of the lock meanwhile: a function that runs on a host stream may allocate, and
//! its miss would wait for the very thread that waits for it. Others may have had their turn then, and the pool may have
//! ended, so what was read of the books before is read again.

use super::{Growth, Pool};
use crate::backend::{Backend, BackendError};
use crate::base::fair::FairGuard;
use std::ops::{Deref, DerefMut};

/// Holds `grow`, but while it waits.
pub(super) struct Turn<'a> {
    pool: &'a Pool,
    grow: Option<FairGuard<'a, Growth>>,
}

impl<'a> Turn<'a> {
    /// Waits until it is this thread's.
    pub(super) fn take(pool: &'a Pool) -> Turn<'a> {
        let grow = Some(pool.grow.lock());
        Turn { pool, grow }
    }

    /// If nobody has it, or waits for it.
    pub(super) fn try_take(pool: &'a Pool) -> Option<Turn<'a>> {
        let grow = Some(pool.grow.try_lock()?);
        Some(Turn { pool, grow })
    }

    /// Waits for all queued work, and makes everything freed before it everybody's.
    pub(super) fn wait_for_all(&mut self) -> bool {
        let mark = self.pool.mark_all();
        let asked = self.pool.pressure.asked();
        self.grow = None;
        let waited = self.pool.backend.synchronize_all();
        self.grow = Some(self.pool.grow.lock());
        self.pool.pressure.resume(asked);
        match waited {
            Ok(()) => self.pool.confirm(&mark.clock, None),
            Err(BackendError::Capturing(_)) => self.pool.wait_for_events(),
            Err(_) => false,
        }
    }
}

/// The worker may have left because of this one.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.grow = None;
        self.pool.call_back();
    }
}

impl Deref for Turn<'_> {
    type Target = Growth;
    fn deref(&self) -> &Growth {
        self.grow.as_ref().expect("a turn that does not wait")
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Growth {
        self.grow.as_mut().expect("a turn that does not wait")
    }
}
