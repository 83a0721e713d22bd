//! One pool: routing, options, and the calls of its users. `miss` serves what is not free at hand,
//! `release` gives memory back, `order` hears of the user's events and synchronises.
//!
//! Locks: `grow` (one miss, trim or squeeze at a time) before `heap` (the books). The backend is called
//! under `grow` or under none, never under `heap` (but for `block_freed`, which is no driver's call), so a
//! request that hits never waits for the driver. What was read under `heap` is read again after a call.

mod apart;
mod miss;
mod order;
mod release;

use crate::alloc::heap::Heap;
use crate::alloc::order::COMMON;
use crate::alloc::size::{MAX_ALIGN, MAX_REQUEST, round_up};
use crate::backend::metered::Metered;
use crate::backend::{Access, Backend, BackendError, Event};
use crate::base::error::Error;
use crate::base::lock::{Rank, Ranked, RankedGuard};
use crate::base::units::{Addr, CaptureId, StreamHandle, Timeline};
use crate::config::Config;
use crate::observe::stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use order::Mark;

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

/// What is kept under the `grow` lock.
#[derive(Debug, Default)]
struct Growth {
    /// Bytes of the next address range to be reserved.
    next_range: u64,
}

/// A stream as a call named it.
#[derive(Clone, Copy, Debug)]
struct Named {
    handle: StreamHandle,
    /// None: no work is ever in flight on it.
    line: Option<Timeline>,
}

/// A stream-ordered memory pool. Every method may be called from any thread; after `end` each fails with
/// `PoolDestroyed`.
pub struct Pool {
    config: Config,
    backend: Metered,
    grow: Ranked<Growth>,
    heap: Ranked<Heap>,
    ended: AtomicBool,
    /// Every block lies in one page.
    apart: bool,
    /// Pages come with their addresses.
    placed: bool,
    /// Somebody is told of every block.
    watched: bool,
    /// Events to forget. They are kept until no miss can be looking at them.
    stale: Ranked<Vec<Event>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({:?} on {})", self.config.name, self.backend.name())
    }
}

impl Pool {
    /// Creates a pool. Takes `initial_bytes` at once, or fails.
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Result<Pool, Error> {
        if !(config.slack >= 0.0 && config.slack <= 16.0) {
            return Err(Error::InvalidArgument(format!(
                "slack is {}; it is a share of the memory in use, from 0 to 16 (0.01: one per cent)",
                config.slack
            )));
        }
        let slot = backend.granularity();
        if config.max_bytes != 0 && round_up(config.initial_bytes, slot) > config.max_bytes {
            return Err(Error::InvalidArgument(format!(
                "initial_bytes ({}), in pages of {slot} B, is above max_bytes ({}); lower it or raise the limit",
                config.initial_bytes, config.max_bytes
            )));
        }
        let mut heap = Heap::new(slot, config.reuse, config.release_threshold);
        heap.placed = backend.pages_have_addresses();
        heap.apart = heap.placed || config.blocks_in_one_page || backend.blocks_in_one_page();
        let pool = Pool {
            grow: Ranked::new(Rank::Grow, Growth::default()),
            apart: heap.apart,
            placed: heap.placed,
            watched: backend.watches_blocks(),
            heap: Ranked::new(Rank::Heap, heap),
            stale: Ranked::new(Rank::Stale, Vec::with_capacity(order::STALE * 2)),
            backend: Metered::new(backend),
            ended: AtomicBool::new(false),
            config,
        };
        pool.grow_by(pool.config.initial_bytes)?;
        Ok(pool)
    }

    /// The options it was created with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Allocates `bytes` (0 gives a unique address) aligned to `align` (0: 256) for use on `stream`.
    pub fn alloc(&self, bytes: u64, align: u64, stream: StreamHandle) -> Result<Addr, Error> {
        check_request(bytes, align)?;
        let stream = self.name(stream)?;
        let mut heap = self.books_for_alloc(stream)?;
        let index = index(&mut heap, stream);
        if let Some(at) = heap.alloc(bytes, align, index) {
            heap.stats.hits += 1;
            let due = heap.arena(index).wanted.then(|| heap.event_due(index)).flatten();
            drop(heap);
            self.record_if(due, stream, index);
            return Ok(self.announced(Addr(at), bytes));
        }
        drop(heap);
        let at = self.miss(bytes, align, stream)?;
        Ok(self.announced(at, bytes))
    }

    /// A block that is handed out, once whoever watches has been told.
    fn announced(&self, at: Addr, bytes: u64) -> Addr {
        if self.watched {
            self.backend.block_allocated(at, bytes.max(1));
        }
        at
    }

    /// Allocates every size, or none. `out` has as many places as `sizes`.
    pub fn alloc_batch(&self, sizes: &[u64], stream: StreamHandle, out: &mut [Addr]) -> Result<(), Error> {
        self.alloc_all(sizes, stream, out)?;
        for (&at, &bytes) in out.iter().zip(sizes) {
            self.announced(at, bytes);
        }
        Ok(())
    }

    fn alloc_all(&self, sizes: &[u64], stream: StreamHandle, out: &mut [Addr]) -> Result<(), Error> {
        assert_eq!(sizes.len(), out.len());
        for &bytes in sizes {
            check_request(bytes, 0)?;
        }
        let stream = self.name(stream)?;
        for (index, &bytes) in sizes.iter().enumerate() {
            let got = self.alloc_named(bytes, 0, stream);
            match got {
                Ok(at) => out[index] = at,
                Err(error) => {
                    let mut heap = self.books()?;
                    for at in &mut out[..index] {
                        let block = heap.find_block(at.0).expect("allocated above");
                        // handed to nobody: no work can use it
                        heap.forget_uses(block);
                        heap.free(block, COMMON, true);
                        heap.stats.allocations -= 1;
                        heap.stats.frees -= 1;
                        *at = Addr(0);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn alloc_named(&self, bytes: u64, align: u64, stream: Named) -> Result<Addr, Error> {
        let mut heap = self.books_for_alloc(stream)?;
        let index = index(&mut heap, stream);
        if let Some(at) = heap.alloc(bytes, align, index) {
            heap.stats.hits += 1;
            return Ok(Addr(at));
        }
        drop(heap);
        self.miss(bytes, align, stream)
    }

    /// Frees a block: its memory is for `stream` at once, for others when ordered. Returns its size.
    pub fn free(&self, at: Addr, stream: StreamHandle) -> Result<u64, Error> {
        let Some(stream) = self.name_for_free(stream)? else {
            return self.free_quietly(at);
        };
        let mut heap = self.books_for(stream)?;
        let block = heap.find_block(at.0)?;
        let index = index(&mut heap, stream);
        self.part_with(at);
        let bytes = heap.free(block, index, false);
        self.after_frees(heap, stream, index);
        Ok(bytes)
    }

    /// Frees every block, or none.
    pub fn free_batch(
        &self,
        blocks: impl Iterator<Item = Addr> + Clone,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let named = self.name_for_free(stream)?;
        let usable = named.is_some();
        let stream = named.unwrap_or(Named {
            handle: stream,
            line: None,
        });
        let mut heap = self.books_for(stream)?;
        heap.check_batch(blocks.clone().map(|at| at.0))?;
        let index = index(&mut heap, stream);
        for at in blocks {
            let block = heap.find_block(at.0)?;
            self.part_with(at);
            heap.free(block, index, !usable);
        }
        if usable {
            self.after_frees(heap, stream, index);
        }
        Ok(())
    }

    /// Frees a block all use of which is over, on every stream. Returns its size.
    pub fn free_synced(&self, at: Addr) -> Result<u64, Error> {
        if !self.backend.usable() {
            return self.free_quietly(at);
        }
        let mut heap = self.books()?;
        let block = heap.find_block(at.0)?;
        self.part_with(at);
        let bytes = heap.free(block, COMMON, true);
        let over = heap.stats.reserved > heap.release_threshold;
        drop(heap);
        if over {
            self.apply_threshold();
        }
        Ok(bytes)
    }

    /// Who frees? None: the backend is gone, or its device is lost; there no work runs any more.
    fn name_for_free(&self, stream: StreamHandle) -> Result<Option<Named>, Error> {
        match self.name(stream) {
            Ok(stream) => Ok(Some(stream)),
            Err(_) if !self.backend.usable() || self.backend.is_lost() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whoever watches that a block is no more, before its memory can be another one. The caller holds the books.
    fn part_with(&self, at: Addr) {
        if self.watched && self.backend.usable() {
            self.backend.block_freed(at);
        }
    }

    /// The backend is gone: only the books are kept, so that leaks are still counted rightly.
    fn free_quietly(&self, at: Addr) -> Result<u64, Error> {
        let mut heap = self.books()?;
        let block = heap.find_block(at.0)?;
        self.part_with(at);
        Ok(heap.free(block, COMMON, true))
    }

    fn after_frees(&self, heap: RankedGuard<'_, Heap>, stream: Named, index: u32) {
        let due = heap.event_due(index);
        let over = heap.stats.reserved > heap.release_threshold;
        drop(heap);
        self.record_if(due, stream, index);
        if over {
            self.apply_threshold();
        }
    }

    /// The block is also used on `stream`: its free waits for that stream's work too.
    pub fn record_stream(&self, at: Addr, stream: StreamHandle) -> Result<(), Error> {
        let stream = self.name(stream)?;
        let mut heap = self.books_for(stream)?;
        let block = heap.find_block(at.0)?;
        if let Some(line) = stream.line {
            heap.record_use(block, line);
        }
        Ok(())
    }

    /// Makes `counts[i]` blocks of `sizes[i]` allocatable on `stream` without growing.
    pub fn warmup(&self, sizes: &[u64], counts: &[u64], stream: StreamHandle) -> Result<(), Error> {
        let total = counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count));
        let total = total.filter(|&total| total <= 1 << 32).ok_or_else(|| {
            Error::InvalidArgument("the counts of weir_pool_warmup add up to more than 2^32 blocks".into())
        })?;
        let each: Vec<u64> = sizes
            .iter()
            .zip(counts)
            .flat_map(|(&bytes, &count)| std::iter::repeat_n(bytes, count as usize))
            .collect();
        let mut blocks = vec![Addr(0); total as usize];
        self.alloc_all(&each, stream, &mut blocks)?;
        let mut heap = self.books()?;
        for at in blocks {
            let block = heap.find_block(at.0)?;
            heap.forget_uses(block);
            heap.free(block, COMMON, true);
        }
        Ok(())
    }

    /// Reads an attribute.
    pub fn attribute(&self, attribute: Attribute) -> Result<u64, Error> {
        let heap = self.books()?;
        Ok(match attribute {
            Attribute::ReuseFollowEventDependencies => u64::from(heap.reuse.event_dependencies),
            Attribute::ReuseAllowOpportunistic => u64::from(heap.reuse.opportunistic),
            Attribute::ReuseAllowInternalDependencies => u64::from(heap.reuse.internal_dependencies),
            Attribute::ReleaseThreshold => heap.release_threshold,
            Attribute::ReservedCurrent => heap.stats.reserved,
            Attribute::ReservedHigh => heap.stats.reserved_peak,
            Attribute::UsedCurrent => heap.stats.used,
            Attribute::UsedHigh => heap.stats.used_peak,
        })
    }

    /// Sets an attribute.
    pub fn set_attribute(&self, attribute: Attribute, value: u64) -> Result<(), Error> {
        let mut heap = self.books()?;
        let switch = || match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::InvalidArgument(format!(
                "{attribute:?} is a switch: 0 or 1, not {value}"
            ))),
        };
        let peak = || match value {
            0 => Ok(()),
            _ => Err(Error::InvalidArgument(format!(
                "{attribute:?} can only be reset, by 0, not set to {value}"
            ))),
        };
        match attribute {
            Attribute::ReuseFollowEventDependencies => heap.reuse.event_dependencies = switch()?,
            Attribute::ReuseAllowOpportunistic => heap.reuse.opportunistic = switch()?,
            Attribute::ReuseAllowInternalDependencies => heap.reuse.internal_dependencies = switch()?,
            Attribute::ReleaseThreshold => heap.release_threshold = value,
            Attribute::ReservedHigh => {
                peak()?;
                heap.stats.reserved_peak = heap.stats.reserved;
            }
            Attribute::UsedHigh => {
                peak()?;
                heap.stats.used_peak = heap.stats.used;
            }
            Attribute::ReservedCurrent | Attribute::UsedCurrent => {
                return Err(Error::InvalidArgument(format!("{attribute:?} can only be read")));
            }
        }
        Ok(())
    }

    /// Sets what another device may do with the pool's memory, now and later.
    pub fn set_access(&self, device: i32, access: Access) -> Result<(), Error> {
        drop(self.books()?);
        self.backend
            .set_access(device, access)
            .map_err(|error| translate(error, StreamHandle(0)))
    }

    /// What a device may do with the pool's memory.
    pub fn access(&self, device: i32) -> Result<Access, Error> {
        drop(self.books()?);
        self.backend
            .access(device)
            .map_err(|error| translate(error, StreamHandle(0)))
    }

    /// The counters now.
    pub fn stats(&self) -> Result<Stats, Error> {
        let heap = self.books()?;
        let mut stats = heap.stats;
        stats.largest_free = heap.largest_free();
        drop(heap);
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        stats.page_creates = count(&self.backend.creates);
        stats.page_releases = count(&self.backend.releases);
        stats.maps = count(&self.backend.maps);
        stats.unmaps = count(&self.backend.unmaps);
        stats.event_calls = count(&self.backend.events);
        stats.driver_calls = self.backend.total();
        Ok(stats)
    }

    /// Peaks become the current values.
    pub fn reset_peaks(&self) -> Result<(), Error> {
        let mut heap = self.books()?;
        heap.stats.used_peak = heap.stats.used;
        heap.stats.reserved_peak = heap.stats.reserved;
        Ok(())
    }

    /// The size of the live block that starts at `at`, if this pool has one there.
    pub fn block_size(&self, at: Addr) -> Option<u64> {
        let heap = self.books().ok()?;
        let block = heap.find_block(at.0).ok()?;
        Some(heap.block_bytes(block))
    }

    /// Does this address lie in the pool's address ranges?
    pub fn contains(&self, at: Addr) -> bool {
        self.books().is_ok_and(|heap| heap.space.range_of(at.0).is_some())
    }

    /// Checks every invariant; panics on the first that does not hold. Waits for a miss in progress.
    pub fn validate(&self) {
        let _grow = self.grow.lock();
        if let Ok(heap) = self.books() {
            heap.validate();
        }
    }

    /// The books, unless the pool has ended.
    fn books(&self) -> Result<RankedGuard<'_, Heap>, Error> {
        let heap = self.heap.lock();
        if self.ended.load(Ordering::Relaxed) {
            Err(Error::PoolDestroyed { handle: 0 })
        } else {
            Ok(heap)
        }
    }

    /// The books, for a call that names a stream.
    fn books_for(&self, stream: Named) -> Result<RankedGuard<'_, Heap>, Error> {
        let heap = self.books()?;
        if let Some(capture) = stream.line.and_then(|line| line.capture)
            && heap.is_released(capture)
        {
            return Err(Error::Capture(format!(
                "capture {} was released to the pool, but stream {} is still being captured; release it when the \
                 graph is gone",
                capture.0, stream.handle
            )));
        }
        Ok(heap)
    }

    /// The same, for an allocation: the pool may have come to rest before.
    fn books_for_alloc(&self, stream: Named) -> Result<RankedGuard<'_, Heap>, Error> {
        let mut heap = self.books_for(stream)?;
        if heap.is_rest_due() {
            drop(heap);
            self.come_to_rest(stream)?;
            heap = self.books_for(stream)?;
        }
        Ok(heap)
    }

    /// The graph of a capture is gone, with all that was made of it, and its launches are complete: what was
    /// handed out in the capture, and freed since, is everybody's. A capture that took nothing from the pool is
    /// none of its concern.
    pub fn release_capture(&self, capture: CaptureId) -> Result<(), Error> {
        let mut heap = self.books()?;
        heap.release_capture(capture);
        let over = heap.stats.reserved > heap.release_threshold;
        drop(heap);
        if over {
            self.apply_threshold();
        }
        Ok(())
    }

    /// Who is this? Asks the backend, so no lock may be held.
    fn name(&self, handle: StreamHandle) -> Result<Named, Error> {
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        match self.backend.timeline(handle) {
            Ok(line) if self.backend.is_inert(line.stream) => Ok(Named { handle, line: None }),
            Ok(line) => Ok(Named {
                handle,
                line: Some(line),
            }),
            Err(error) => Err(translate(error, handle)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
    }
}

/// The arena of a named stream.
fn index(heap: &mut Heap, stream: Named) -> u32 {
    stream.line.map_or(COMMON, |line| heap.stream(line))
}

fn check_request(bytes: u64, align: u64) -> Result<(), Error> {
    if align != 0 && (!align.is_power_of_two() || align > MAX_ALIGN) {
        return Err(Error::InvalidAlignment {
            given: align,
            most: MAX_ALIGN,
        });
    }
    if bytes > MAX_REQUEST {
        return Err(Error::SizeTooLarge {
            asked: bytes,
            most: MAX_REQUEST,
        });
    }
    Ok(())
}

fn translate(error: BackendError, stream: StreamHandle) -> Error {
    match error {
        BackendError::InvalidStream(why) => Error::InvalidStream(stream, why),
        BackendError::Unloaded => Error::Unloaded,
        BackendError::Lost(why) => Error::DeviceLost(why),
        BackendError::Capturing(why) => Error::Capture(why),
        BackendError::NotSupported(why) => Error::NotSupported(why),
        BackendError::OutOfMemory(why) | BackendError::Other(why) => Error::Backend(why),
    }
}
