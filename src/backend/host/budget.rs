//! The process's budget of memory mappings. The kernel allows each process `vm.max_map_count` areas; a
//! mapping in the middle of a reservation may cost two of them (itself, and the split of what is around
//! it). Three quarters of the areas are the host backend's, the rest is left to the program.
//!
//! Invariant: `LIVE` = Σ mappings of all host backends ≤ [`limit`].
//! Locks: none.

use crate::backend::BackendError;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

static LIVE: AtomicU64 = AtomicU64::new(0);
static LIMIT: OnceLock<u64> = OnceLock::new();

const AREAS_BY_DEFAULT: u64 = 65_530;

fn mappings_within(areas: u64) -> u64 {
    (areas / 4 * 3 / 2).max(1)
}

/// Mappings that all host backends of the process may hold together.
pub(super) fn limit() -> u64 {
    *LIMIT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        mappings_within(text.trim().parse().unwrap_or(AREAS_BY_DEFAULT))
    })
}

/// What a backend that holds `own` mappings may hold in all while the others keep theirs.
pub(super) fn limit_beside(own: u64) -> u64 {
    let others = LIVE.load(Ordering::Relaxed).saturating_sub(own);
    limit().saturating_sub(others)
}

/// Takes one mapping out of the budget.
pub(super) fn take() -> Result<(), BackendError> {
    let most = limit();
    let taken = LIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
        (n < most).then_some(n + 1)
    });
    taken.map(drop).map_err(|live| {
        BackendError::OutOfMemory(format!(
            "this process has {live} mappings of host pools, and {most} is the most that vm.max_map_count allows; raise it with sysctl"
        ))
    })
}

/// Puts mappings back into the budget.
pub(super) fn give_back(mappings: u64) {
    LIVE.fetch_sub(mappings, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::mappings_within;

    #[test]
    fn two_areas_a_mapping_fit_beside_the_program() {
        for areas in [0, 1, 100, 65_530, 1_048_576, u64::MAX] {
            let mappings = mappings_within(areas);
            assert!(mappings >= 1);
            assert!(
                areas < 4 || mappings <= areas / 2 - areas / 8,
                "{areas}: {mappings}"
            );
        }
    }
}
