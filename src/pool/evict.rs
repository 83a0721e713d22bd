//! How many mappings are kept: each costs page tables, and a driver or a system bears only so many. Those that no page is at home in go
//! when there are too many, the oldest first, once all work that could use them is seen to be complete.

use super::{Growth, Pool};
use crate::alloc::heap::Heap;
use crate::alloc::order::COMMON;
use crate::alloc::page::MappingId;
use crate::backend::{Backend, BackendError};

/// Dormant mappings removed at a time when there are too many.
const EVICT: usize = 256;

impl Pool {
    /// Mappings that are kept at most.
    pub(super) fn mapping_budget(&self, heap: &Heap) -> u64 {
        self.backend.mapping_limit().min(heap.pages.mapping_budget())
    }

    /// Removes mappings if `len` bytes more would make too many, or a page has as many as it may have. To be called before there is a plan,
    /// which may count on any of them.
    pub(super) fn thin_out(&self, grow: &mut Growth, len: u64) -> Result<(), BackendError> {
        let heap = self.books().map_err(|_| BackendError::Unloaded)?;
        let most = heap.pages.mapped + len / self.backend.granularity() + 4;
        let budget = self.mapping_budget(&heap);
        let full = heap.pages.full.len();
        drop(heap);
        if most > budget.max(grow.borne.min(self.backend.mapping_limit())) {
            let wanted = (most - budget) as usize + EVICT;
            let chosen = self.choose(wanted, |heap| heap.choose_evicted(wanted))?;
            // to go through all of them each time in vain would cost more than they do
            grow.borne = if chosen.len() < EVICT {
                most + EVICT as u64
            } else {
                0
            };
            self.evict(chosen)?;
        }
        if full > 0 {
            let chosen = self.choose(full, Heap::choose_thinned)?;
            self.evict(chosen)?;
        }
        Ok(())
    }

    /// Chooses, and once more after a look at the streams if those are fewer than `wanted`: where streams wait for each other, or keep to
    /// themselves, nobody may have looked for long.
    fn choose(
        &self,
        wanted: usize,
        choose: impl Fn(&Heap) -> Vec<MappingId>,
    ) -> Result<Vec<MappingId>, BackendError> {
        let books = || self.books().map_err(|_| BackendError::Unloaded);
        let chosen = choose(&*books()?);
        if chosen.len() >= wanted {
            return Ok(chosen);
        }
        self.poll(None, true, false);
        Ok(choose(&*books()?))
    }

    /// Removes dormant mappings whose use is over.
    fn evict(&self, chosen: Vec<MappingId>) -> Result<(), BackendError> {
        for mapping in chosen {
            let planned = self.heap.lock().plan_eviction(mapping);
            if let Some(mut plan) = planned {
                let outcome = self.carry_out(&mut plan);
                self.heap.lock().settle(plan, COMMON);
                outcome?;
            }
        }
        Ok(())
    }
}
