//! One pool: routing, the out-of-memory path, options. Thread-safe; every method may be called from any
//! thread, and each checks first that the pool has not ended.

use crate::backend::Backend;
use crate::base::error::Error;
use crate::base::units::{Addr, EventHandle, StreamHandle};
use crate::config::Config;
use crate::observe::stats::Stats;
use std::sync::Arc;

/// What `end` found still allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaked {
    /// Live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Up to eight of them, largest first: address and bytes.
    pub largest: Vec<(Addr, u64)>,
}

/// A switch or figure that can be read, and some of them set, at run time; the numbers are CUDA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// 0 or 1.
    ReuseFollowEventDependencies,
    /// 0 or 1.
    ReuseAllowOpportunistic,
    /// 0 or 1.
    ReuseAllowInternalDependencies,
    /// Bytes.
    ReleaseThreshold,
    /// Bytes; read only.
    ReservedCurrent,
    /// Bytes; may be set to 0, which resets it to the current value.
    ReservedHigh,
    /// Bytes; read only.
    UsedCurrent,
    /// Bytes; may be set to 0, which resets it to the current value.
    UsedHigh,
}

/// A moment on the streams a pool knows, taken before a synchronise and confirmed after it.
#[derive(Clone, Debug)]
pub struct Mark {}

/// A stream-ordered memory pool.
#[derive(Debug)]
pub struct Pool {}

#[allow(unused_variables)]
impl Pool {
    /// Creates a pool. Takes `initial_bytes` at once, or fails.
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Result<Pool, Error> { todo!() }
    /// The options it was created with.
    pub fn config(&self) -> &Config { todo!() }
    /// Allocates `bytes` (0 gives a unique address) aligned to `align` (0: 256) for use on `stream`.
    pub fn alloc(&self, bytes: u64, align: u64, stream: StreamHandle) -> Result<Addr, Error> { todo!() }
    /// Allocates every size, or none. `out` has as many places as `sizes`.
    pub fn alloc_batch(&self, sizes: &[u64], stream: StreamHandle, out: &mut [Addr]) -> Result<(), Error> { todo!() }
    /// Frees a block: its memory is for `stream` at once, for others when ordered. Returns its size.
    pub fn free(&self, at: Addr, stream: StreamHandle) -> Result<u64, Error> { todo!() }
    /// Frees every block, or none.
    pub fn free_batch(&self, blocks: &[Addr], stream: StreamHandle) -> Result<(), Error> { todo!() }
    /// Frees a block all use of which is over, on every stream. Returns its size.
    pub fn free_synced(&self, at: Addr) -> Result<u64, Error> { todo!() }
    /// The block is also used on `stream`: its free waits for that stream's work too.
    pub fn record_stream(&self, at: Addr, stream: StreamHandle) -> Result<(), Error> { todo!() }
    /// Makes `counts[i]` blocks of `sizes[i]` allocatable on `stream` without growing.
    pub fn warmup(&self, sizes: &[u64], counts: &[u64], stream: StreamHandle) -> Result<(), Error> { todo!() }
    /// Gives back free memory, without waiting for any work, until at most `keep` bytes are reserved.
    pub fn trim(&self, keep: u64) -> Result<(), Error> { todo!() }
    /// Waits for pending frees, gives back everything that is free, and returns how many bytes that was.
    pub fn squeeze(&self) -> Result<u64, Error> { todo!() }
    /// Reads an attribute.
    pub fn attribute(&self, attribute: Attribute) -> Result<u64, Error> { todo!() }
    /// Sets an attribute.
    pub fn set_attribute(&self, attribute: Attribute, value: u64) -> Result<(), Error> { todo!() }
    /// The counters now.
    pub fn stats(&self) -> Result<Stats, Error> { todo!() }
    /// Peaks become the current values.
    pub fn reset_peaks(&self) -> Result<(), Error> { todo!() }

    /// The user recorded `event` on `stream` (call after the driver's record, in the same call).
    pub fn event_recorded(&self, event: EventHandle, stream: StreamHandle) { todo!() }
    /// The user made `stream` wait for `event`.
    pub fn stream_waits(&self, stream: StreamHandle, event: EventHandle) { todo!() }
    /// The event handle is no longer one.
    pub fn event_destroyed(&self, event: EventHandle) { todo!() }
    /// Takes a mark before the host synchronises with `stream`.
    pub fn mark_stream(&self, stream: StreamHandle) -> Mark { todo!() }
    /// Takes a mark before the host synchronises with `event`.
    pub fn mark_event(&self, event: EventHandle) -> Mark { todo!() }
    /// Takes a mark before the host synchronises with the whole device.
    pub fn mark_all(&self) -> Mark { todo!() }
    /// The synchronise that `mark` was taken for has returned. Applies the release threshold.
    pub fn synchronized(&self, mark: Mark) { todo!() }

    /// The size of the live block that starts at `at`, if this pool has one there.
    pub fn block_size(&self, at: Addr) -> Option<u64> { todo!() }
    /// Does this address lie in the pool's address ranges?
    pub fn contains(&self, at: Addr) -> bool { todo!() }
    /// Ends the pool: waits for queued work, gives all memory back, reports what was live. Later calls fail
    /// with `PoolDestroyed`; a second `end` finds nothing. If the backend is no longer usable no call is made.
    pub fn end(&self) -> Leaked { todo!() }
    /// Checks every invariant; panics on the first that does not hold.
    pub fn validate(&self) { todo!() }
}
