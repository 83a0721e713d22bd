//! Calls that a thread's cache answers as in the round before (`replay`), if the program is known to do the same again.
//!
//! Lock: none. The tape is read inside the owner's gate.

use super::cache::Cache;
use crate::base::units::Addr;
use std::sync::atomic::Ordering::Relaxed;

impl Cache {
    /// Which of the tape's streams it is for.
    #[inline(always)]
    pub fn part(&self) -> u64 {
        self.part.load(Relaxed)
    }

    /// It is for that one, or for none.
    pub fn set_part(&self, part: u64) {
        self.part.store(part, Relaxed);
    }

    /// The bytes of the block that the same call of the round before freed, if the program is known to do the same again, and that is all there is
    /// to do.
    #[inline(always)]
    pub fn replay_free(&self, at: u64) -> Option<u64> {
        let _pass = self.gate.enter_taped()?;
        self.replay_free_inside(at)
    }

    /// The blocks that the requests of a batch got then, if all of them did. Otherwise no place of `out` is worth anything.
    pub fn replay_alloc_batch(&self, sizes: &[u64], out: &mut [Addr]) -> bool {
        let pass = self.gate.enter_taped();
        pass.is_some_and(|_pass| self.tape.alloc_all(self.part(), sizes, out))
    }

    /// The same of its frees. Places with 0 are none.
    pub fn replay_free_batch(&self, blocks: &[Addr]) -> bool {
        let pass = self.gate.enter_taped();
        pass.is_some_and(|_pass| self.tape.free_all(self.part(), blocks))
    }

    /// As `take_inside`.
    #[inline(always)]
    pub fn replay_alloc_inside(&self, bytes: u64) -> Option<u64> {
        self.tape.alloc(self.part(), bytes)
    }

    /// As `take_inside`.
    #[inline(always)]
    pub fn replay_free_inside(&self, at: u64) -> Option<u64> {
        self.tape.free(self.part(), at)
    }

    /// Are calls answered like that?
    #[inline(always)]
    pub fn is_replayed(&self) -> bool {
        self.tape.is_on()
    }
}
