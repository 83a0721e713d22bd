//! One pool: routing, options, and the calls of its users. `miss` serves what is not free at hand,
//! `release` gives memory back, `order` hears of the user's events and synchronises.
//!
//! Locks: `grow` (one miss, trim or squeeze at a time) before `heap` (the books). The backend is called
//! under `grow` or under none, never under `heap` (but for `block_freed`, which is no driver's call), so a
//! request that hits never waits for the driver. What was read under `heap` is read again after a call.

mod ahead;
mod apart;
mod batch;
mod books;
mod cached;
mod capture;
mod chunks;
mod copies;
mod evict;
mod export;
mod frees;
mod guests;
mod import;
mod miss;
mod order;
mod others;
mod pressure;
mod release;
mod sources;
mod taped;
mod turn;

use crate::alloc::directory::Directory;
use crate::alloc::heap::Heap;
use crate::alloc::limbo::User;
use crate::alloc::size::{MAX_ALIGN, MAX_REQUEST, round_up};
use crate::alloc::tape::Tape;
use crate::backend::import::Importer;
use crate::backend::metered::Metered;
use crate::backend::{Access, Backend, BackendError, Event, fence};
use crate::base::error::Error;
use crate::base::fair::Fair;
use crate::base::lock::{Rank, Ranked};
use crate::base::units::{Addr, StreamHandle, Timeline};
use crate::config::{Config, MOST_SLACK, MemoryKind};
use crate::observe::stats::Stats;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use books::{index, index_beside, index_for_alloc};
pub use cached::{Asked, Cache, Inside, LONG, Look, Refused, SMALL_MAX, Spot, ThreadCache, Where};
pub use chunks::{Chunk, SHORT};
pub use import::refusal;
pub use order::Mark;
use turn::Turn;

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

impl Attribute {
    fn is_figure(self) -> bool {
        use Attribute::{ReservedCurrent, ReservedHigh, UsedCurrent, UsedHigh};
        matches!(self, ReservedCurrent | ReservedHigh | UsedCurrent | UsedHigh)
    }
}

/// What is kept under the `grow` lock.
#[derive(Debug, Default)]
struct Growth {
    /// Bytes of the next address range to be reserved.
    next_range: u64,
    /// Requests for which pages were made (a count).
    made: u64,
    /// Mappings that there may be before it is looked again whether some can go, as few could when it was looked last.
    borne: u64,
}

/// A stream as a call named it.
#[derive(Clone, Copy, Debug)]
struct Named {
    handle: StreamHandle,
    /// None: no work is ever in flight on it.
    line: Option<Timeline>,
    /// The pool may record events on it at any time.
    reach: bool,
}

/// A stream-ordered memory pool. Every method may be called from any thread; after `end` each fails with
/// `PoolDestroyed`.
pub struct Pool {
    config: Config,
    backend: Metered,
    grow: Fair<Growth>,
    /// None: nothing is made ahead of use.
    worker: Option<ahead::Worker>,
    /// Open once the pool has been exported, and shut for good when it ends or is left to the end of the process.
    entrance: Ranked<export::Entrance>,
    /// Where the memory comes from, if another process has made it.
    importer: Option<Arc<Importer>>,
    /// What the device has refused.
    pressure: pressure::Pressure,
    heap: Ranked<Heap>,
    directory: Arc<Directory>,
    /// The heap's, as all caches have it.
    tape: Arc<Tape>,
    ended: AtomicBool,
    /// Every block lies in one page.
    apart: bool,
    /// Pages come with their addresses.
    placed: bool,
    /// Somebody is told of every block.
    watched: bool,
    /// Events to forget. They are kept until no miss can be looking at them.
    stale: Ranked<Vec<Event>>,
    /// What short copies go through.
    chunks: Ranked<VecDeque<Chunk>>,
    /// Read by copies that go through the pool's memory, written by the end. It comes before all ranks.
    passage: RwLock<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({:?} on {})", self.config.name, self.backend.name())
    }
}

impl Pool {
    /// Creates a pool. Takes `initial_bytes` at once, or fails.
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Result<Pool, Error> {
        if !(0.0..=MOST_SLACK).contains(&config.slack) {
            return Err(Error::InvalidArgument(format!(
                "slack is {}; it is a share of the memory in use, from 0 to 16 (0.01: one per cent)",
                config.slack
            )));
        }
        for asked in [config.initial_bytes, config.growth_ahead] {
            if asked > MAX_REQUEST {
                let most = MAX_REQUEST;
                return Err(Error::SizeTooLarge { asked, most });
            }
        }
        let slot = backend.granularity();
        if config.max_bytes != 0 && round_up(config.initial_bytes, slot) > config.max_bytes {
            return Err(Error::InvalidArgument(format!(
                "initial_bytes ({}), in pages of {slot} B, is above max_bytes ({}); lower it or raise the limit",
                config.initial_bytes, config.max_bytes
            )));
        }
        let ahead = config.growth_ahead;
        if ahead != 0 && ahead < slot || config.max_bytes != 0 && ahead > config.max_bytes {
            return Err(Error::InvalidArgument(format!(
                "growth_ahead is {ahead}; it is 0 for none, or at least a page of {slot} B and at most max_bytes ({}; \
                 0: no limit)",
                config.max_bytes
            )));
        }
        fence::prepare();
        let directory = Directory::new().map_err(|error| translate(error, StreamHandle(0)))?;
        let directory = Arc::new(directory);
        let mut heap = Heap::new(slot, config.reuse, config.release_threshold, directory.clone());
        if config.max_bytes != 0 {
            heap.limit = config.max_bytes;
        }
        if ahead != 0 {
            heap.ahead.look_at(config.initial_bytes.saturating_sub(ahead));
        }
        heap.pages.limit_mappings(backend.mappings_of_a_page());
        heap.placed = backend.pages_have_addresses();
        heap.apart = heap.placed || config.blocks_in_one_page || backend.blocks_in_one_page();
        let pool = Pool {
            grow: Fair::new(Rank::Grow, Growth::default()),
            pressure: pressure::Pressure::new(),
            entrance: Ranked::new(Rank::Door, export::Entrance::Closed),
            importer: None,
            worker: (ahead != 0).then(ahead::Worker::new),
            apart: heap.apart,
            placed: heap.placed,
            watched: backend.watches_blocks(),
            tape: heap.replay.tape.clone(),
            heap: Ranked::new(Rank::Heap, heap),
            directory,
            stale: Ranked::new(Rank::Stale, Vec::with_capacity(order::STALE * 2)),
            chunks: Ranked::new(Rank::Chunks, VecDeque::new()),
            passage: RwLock::new(()),
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
        self.alloc_beside(None, bytes, align, stream)
    }

    /// The same for a thread whose cache for the stream could not serve it.
    pub fn alloc_beside(
        &self,
        own: Option<&ThreadCache>,
        bytes: u64,
        align: u64,
        stream: StreamHandle,
    ) -> Result<Addr, Error> {
        self.alloc_asked(own, Asked::No, (bytes, align), stream)
    }

    /// The same if the cache may have asked whose the stream is.
    #[inline(always)]
    pub fn alloc_asked(
        &self,
        own: Option<&ThreadCache>,
        asked: Asked,
        (bytes, align): (u64, u64),
        stream: StreamHandle,
    ) -> Result<Addr, Error> {
        check_request(bytes, align)?;
        let stream = match self.known(own, asked) {
            Some(stream) => stream,
            None => &self.name(stream)?,
        };
        if self.config.memory == MemoryKind::Pinned {
            self.look_at_held();
        }
        if let Some(at) = own.and_then(|own| own.collect(stream, bytes, align)) {
            return Ok(at);
        }
        let mut heap = self.books_as_they_are();
        if !heap.replay.is_watching() {
            let answer;
            (heap, answer) = self.alloc_taped(heap, own, (bytes, align), stream);
            if let Some(at) = answer {
                return Ok(at);
            }
        }
        if !self.is_in_order(&mut heap, stream) {
            drop(heap);
            heap = self.books_in_order(stream)?;
        }
        let mut index = index_beside(&mut heap, own, stream);
        heap.serve(index);
        let own = self.still(&mut heap, own, stream);
        if let Some(own) = own {
            heap.take_turn(&own.cache);
            heap.see_sole_again(&own.cache);
        }
        if self.may_tape() {
            heap.watch_rounds(own.filter(|_| align == 0).map(|own| &own.cache));
        }
        if let Some(own) = own.filter(|_| bytes > LONG) {
            heap.flush_long(&own.cache);
        }
        // another thread's cache has none of these either
        let kept = own.filter(|own| bytes <= own.cache.long_from());
        if let Some(own) = kept
            && heap.even_out(&own.cache)
            && let Some(at) = own.cache.take(bytes, align)
        {
            return Ok(Addr(at));
        }
        if heap.would_waste(bytes, align, index) {
            drop(heap);
            heap = self.look_for_shorter(*stream)?;
            index = index_for_alloc(&mut heap, *stream);
        }
        let before = self.alloc_before(&mut heap, own, bytes, align);
        let before = before.or_else(|| heap.alloc_as_predicted(bytes, align, index));
        if let Some(at) = before.or_else(|| heap.alloc(bytes, align, index)) {
            heap.stats.hits += 1;
            self.note_alloc(&mut heap, own, index, at, bytes);
            self.note_request(&mut heap, index, at, bytes);
            let due = heap.event_wanted(index);
            let short = heap.is_look_due();
            drop(heap);
            self.call_worker(short);
            self.record_if(due, stream, index);
            return Ok(self.announced(Addr(at), bytes));
        }
        drop(heap);
        let at = self.miss(own, bytes, align, *stream)?;
        let mut heap = self.books_as_they_are();
        self.note_alloc(&mut heap, own, index, at.0, bytes);
        self.note_request(&mut heap, index, at.0, bytes);
        drop(heap);
        Ok(self.announced(at, bytes))
    }

    /// A block that is handed out, once whoever watches has been told.
    #[inline]
    fn announced(&self, at: Addr, bytes: u64) -> Addr {
        if self.watched {
            self.backend.block_allocated(at, bytes.max(1));
        }
        at
    }

    /// The block is also used on `stream`: its free waits for that stream's work too. What was held back for it before has its event in
    /// this call, if that needs one that names the stream.
    pub fn record_stream(&self, at: Addr, stream: StreamHandle) -> Result<(), Error> {
        let stream = self.name(stream)?;
        let mut heap = self.books_to_share(at, &stream)?;
        let block = heap.find_block(at.0)?;
        let Some(line) = stream.line else { return Ok(()) };
        let reach = (stream.reach && line.capture.is_none()).then_some(stream.handle);
        heap.record_use(block, User { line, reach });
        if let Some(index) = heap.known_stream(line) {
            let due = heap.event_wanted(index);
            drop(heap);
            self.record_if(due, &stream, index);
        }
        Ok(())
    }

    /// Reads an attribute.
    pub fn attribute(&self, attribute: Attribute) -> Result<u64, Error> {
        if attribute.is_figure() {
            self.look_before_counting();
        }
        let mut heap = self.books_to_read()?;
        Ok(match attribute {
            Attribute::ReuseFollowEventDependencies => u64::from(heap.reuse.event_dependencies),
            Attribute::ReuseAllowOpportunistic => u64::from(heap.reuse.opportunistic),
            Attribute::ReuseAllowInternalDependencies => u64::from(heap.reuse.internal_dependencies),
            Attribute::ReleaseThreshold => heap.release_threshold,
            Attribute::ReservedCurrent => heap.stats.reserved,
            Attribute::ReservedHigh => heap.stats.reserved_peak,
            Attribute::UsedCurrent => heap.figures().used,
            Attribute::UsedHigh => heap.figures().used_peak,
        })
    }

    /// Sets an attribute.
    pub fn set_attribute(&self, attribute: Attribute, value: u64) -> Result<(), Error> {
        let mut heap = if attribute.is_figure() {
            self.look_before_counting();
            self.books_to_read()?
        } else {
            self.books()?
        };
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
            Attribute::ReleaseThreshold => {
                heap.release_threshold = value;
                heap.tune_caches();
            }
            Attribute::ReservedHigh => {
                peak()?;
                heap.stats.reserved_peak = heap.stats.reserved;
            }
            Attribute::UsedHigh => {
                peak()?;
                heap.reset_used_peak();
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
        self.look_before_counting();
        let mut heap = self.books_to_read()?;
        let mut stats = heap.figures();
        stats.largest_free = heap.largest_free().min(stats.free);
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
        self.look_before_counting();
        let mut heap = self.books_to_read()?;
        heap.reset_used_peak();
        heap.stats.reserved_peak = heap.stats.reserved;
        Ok(())
    }

    /// The size of the live block that starts at `at`, if this pool has one there.
    pub fn block_size(&self, at: Addr) -> Option<u64> {
        self.books_to_read().ok()?.bytes_at(at.0)
    }

    /// Does this address lie in the pool's address ranges?
    pub fn contains(&self, at: Addr) -> bool {
        self.books_to_read()
            .is_ok_and(|heap| heap.space.range_of(at.0).is_some())
    }

    /// Checks every invariant; panics on the first that does not hold. Waits for a miss in progress.
    pub fn validate(&self) {
        let _grow = Turn::take(self);
        if let Ok(mut heap) = self.books_to_read() {
            heap.validate();
        }
    }

    /// Who is this? Asks the backend, so no lock may be held.
    #[inline(always)]
    fn name(&self, handle: StreamHandle) -> Result<Named, Error> {
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        match self.backend.timeline(handle) {
            Ok(line) if self.backend.is_inert(line.stream) => Ok(Named {
                handle,
                line: None,
                reach: false,
            }),
            Ok(line) => Ok(Named {
                handle,
                line: Some(line),
                reach: self.reaches(handle),
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

/// 0 is what blocks have anyway.
#[inline]
fn is_alignment(align: u64) -> bool {
    align == 0 || (align.is_power_of_two() && align <= MAX_ALIGN)
}

#[inline]
fn check_request(bytes: u64, align: u64) -> Result<(), Error> {
    if !is_alignment(align) {
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
