//! Counters of one pool. At any moment
//!
//! ```text
//! reserved = used + cached + free + pending + idle
//! allocations − frees = live blocks
//! ```

/// A snapshot of a pool's counters; bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// In live blocks, rounded up as they were allocated.
    pub used: u64,
    /// Highest `used` since creation or the last reset; where several threads have caches the highest that was seen.
    pub used_peak: u64,
    /// Physical memory held.
    pub reserved: u64,
    /// Highest `reserved` since creation or the last reset.
    pub reserved_peak: u64,
    /// Free inside slabs.
    pub cached: u64,
    /// Free extents, ready for a stream.
    pub free: u64,
    /// Freed, but held back until another stream's work is complete.
    pub pending: u64,
    /// Physical memory not in any usable address range just now.
    pub idle: u64,
    /// The largest contiguous free extent.
    pub largest_free: u64,
    /// Blocks ever allocated (a count).
    pub allocations: u64,
    /// Blocks ever freed (a count).
    pub frees: u64,
    /// Requests that failed, but for those refused because of an argument (a count).
    pub failures: u64,
    /// Requests served without the miss path (a count).
    pub hits: u64,
    /// Requests that took the miss path (a count).
    pub misses: u64,
    /// Pages made usable at another address (a count).
    pub pages_moved: u64,
    /// Pages created (a count).
    pub page_creates: u64,
    /// Pages given back (a count).
    pub page_releases: u64,
    /// Mappings made (a count).
    pub maps: u64,
    /// Mappings removed (a count).
    pub unmaps: u64,
    /// Events recorded, queried or waited for, and streams asked whether they have work (a count).
    pub event_calls: u64,
    /// All backend calls (a count).
    pub driver_calls: u64,
    /// Times all free memory was given back, by request or before failing (a count).
    pub squeezes: u64,
}
