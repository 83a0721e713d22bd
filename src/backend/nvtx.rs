//! Blocks that tools see. A pool's memory is one allocation to the driver, so that compute-sanitizer finds nothing
//! wrong with a kernel that writes past the end of a block, or with a block that is never freed. Through the memory
//! extension of NVTX it is told which parts are blocks: each segment is a heap, each block a region of the size that
//! was asked for.
//!
//! A decorator for memory that comes with its address; compute-sanitizer refuses mapped memory as a heap.
//!
//! Memory in which blocks are still live is not given back: the pool has ended without them, and the tool would
//! forget them with their heap, where it should report them as leaked.
//!
//! Invariants: a segment's `regions` is the number of its blocks that were registered and not unregistered; segments
//! do not overlap.
//!
//! Locks: `segments`, held while the tool is called, so that the tool hears of a block's end before it hears of the
//! next block there.

mod abi;
mod tool;

use super::{Access, Backend, BackendError, Event};
use crate::base::units::{Addr, CaptureId, PageHandle, StreamHandle, StreamId, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tool::{Heap, Tool};

/// A backend whose blocks a tool is told of.
#[derive(Debug)]
struct Watched {
    inner: Arc<dyn Backend>,
    tool: &'static Tool,
    segments: Mutex<Segments>,
}

#[derive(Debug, Default)]
struct Segments {
    by_address: BTreeMap<u64, Segment>,
    addresses: FxHashMap<PageHandle, u64>,
}

#[derive(Debug)]
struct Segment {
    bytes: u64,
    heap: Heap,
    regions: u64,
}

impl Segments {
    fn holding(&mut self, at: u64) -> Option<&mut Segment> {
        let (&start, segment) = self.by_address.range_mut(..=at).next_back()?;
        (at - start < segment.bytes).then_some(segment)
    }

    fn add(&mut self, tool: &Tool, at: u64, page: PageHandle, bytes: u64) {
        let heap = tool.register_heap(at, bytes);
        let segment = Segment {
            bytes,
            heap,
            regions: 0,
        };
        self.by_address.insert(at, segment);
        self.addresses.insert(page, at);
    }
}

/// Tells the tool that watches this process, if there is one, of the blocks of `inner`, whose memory comes with its
/// address. An error if there is one that cannot be told.
pub fn watched(inner: Arc<dyn Backend>) -> Result<Arc<dyn Backend>, BackendError> {
    assert!(inner.pages_have_addresses(), "{} memory is no heap", inner.name());
    Ok(match tool::attached()? {
        None => inner,
        Some(tool) => Arc::new(Watched {
            inner,
            tool,
            segments: Mutex::default(),
        }),
    })
}

impl Watched {
    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Watched {
    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        let (at, page) = self.inner.create_at(bytes)?;
        self.segments().add(self.tool, at.0, page, bytes);
        Ok((at, page))
    }
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        let mut segments = self.segments();
        let Some(at) = segments.addresses.get(&page).copied() else {
            return Err(BackendError::Other(format!(
                "release of {page:?}, which does not exist"
            )));
        };
        let segment = &segments.by_address[&at];
        if segment.regions > 0 {
            return Ok(());
        }
        self.tool.unregister_heap(segment.heap);
        segments.addresses.remove(&page);
        segments.by_address.remove(&at);
        drop(segments);
        // the tool hears of it first, since the address may come again at once
        self.inner.release(page, bytes).inspect_err(|_| {
            self.segments().add(self.tool, at, page, bytes);
        })
    }
    fn abandon(&self) {
        // a heap without regions is nothing to a tool, while the driver's memory that it was made of is a leak
        let mut segments = self.segments();
        for segment in segments
            .by_address
            .values_mut()
            .filter(|segment| segment.regions == 0)
        {
            self.tool.unregister_heap(segment.heap);
            segment.heap = Heap::NONE;
        }
    }
    fn watches_blocks(&self) -> bool {
        true
    }
    fn block_allocated(&self, at: Addr, bytes: u64) {
        // a pool that ended meanwhile has no segment there any more
        if let Some(segment) = self.segments().holding(at.0) {
            segment.regions += 1;
            self.tool.register_region(segment.heap, at.0, bytes);
        }
    }
    fn block_freed(&self, at: Addr) {
        if let Some(segment) = self.segments().holding(at.0) {
            segment.regions -= 1;
            self.tool.unregister_region(segment.heap, at.0);
        }
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }
    fn mapping_limit(&self) -> u64 {
        self.inner.mapping_limit()
    }
    fn mappings_of_a_page(&self) -> usize {
        self.inner.mappings_of_a_page()
    }
    fn usable(&self) -> bool {
        self.inner.usable()
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.inner.reserve(bytes)
    }
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.inner.unreserve(at, bytes)
    }
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.inner.create(bytes)
    }
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.inner.map(at, page, bytes)
    }
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.inner.unmap(at, bytes)
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.inner.timeline(stream)
    }
    fn is_inert(&self, stream: StreamId) -> bool {
        self.inner.is_inert(stream)
    }
    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        self.inner.has_work(stream, line)
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        self.inner.record(stream)
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        self.inner.query(event)
    }
    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        self.inner.wait(stream, event)
    }
    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        self.inner.synchronize(event)
    }
    fn forget(&self, event: Event) {
        self.inner.forget(event);
    }
    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.inner.synchronize_all()
    }
    fn watch_graph(&self, stream: StreamHandle, capture: CaptureId) -> Result<(), BackendError> {
        self.inner.watch_graph(stream, capture)
    }
    fn graphs_gone(&self, each: &mut dyn FnMut(CaptureId)) {
        self.inner.graphs_gone(each);
    }
    fn blocks_in_one_page(&self) -> bool {
        self.inner.blocks_in_one_page()
    }
    fn pages_have_addresses(&self) -> bool {
        self.inner.pages_have_addresses()
    }
    fn set_access(&self, device: i32, access: Access) -> Result<(), BackendError> {
        self.inner.set_access(device, access)
    }
    fn access(&self, device: i32) -> Result<Access, BackendError> {
        self.inner.access(device)
    }
    fn close(&self) {
        self.inner.close();
    }
}
