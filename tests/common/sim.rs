//! A device that is only books, but whole ones: streams whose work stands still until a test lets it go on,
//! events with vector clocks, and pages whose every piece is known to be in use by which queued work.
//!
//! It knows the truth about stream order, and panics as soon as a pool breaks one of its rules:
//! - memory touched by queued work is handed to work that is not ordered behind it;
//! - a page is unmapped or released that unfinished work may still touch;
//! - a stream is touched outside a call that names it, or after it was destroyed.
//!
//! Work of the same block never conflicts with itself: that order is the program's own affair.

use super::work::{Moment, State, Stream, Work, at};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir::backend::counting::Counting;
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{Addr, CaptureId, PageHandle, StreamHandle, StreamId, Timeline};

/// The device.
#[derive(Debug)]
pub struct Sim {
    memory: Arc<Counting>,
    mapping_limit: AtomicU64,
    /// By how much memory that comes with its address is displaced.
    displaced: AtomicU64,
    /// Blocks are to be announced.
    watching: AtomicBool,
    /// Record an event even where nothing is in flight, as CUDA does.
    always_events: AtomicBool,
    state: Mutex<State>,
}

/// Handles from here on are streams; those below never have work in flight.
pub const FIRST_STREAM: usize = 0x1000;

impl Sim {
    /// A device with `streams` streams.
    pub fn new(streams: usize) -> Arc<Sim> {
        Sim::over(Counting::new(true), streams)
    }

    /// A device with this memory.
    pub fn over(memory: Arc<Counting>, streams: usize) -> Arc<Sim> {
        let sim = Sim {
            memory,
            mapping_limit: AtomicU64::new(1 << 20),
            displaced: AtomicU64::new(0),
            watching: AtomicBool::new(false),
            always_events: AtomicBool::new(false),
            state: Mutex::default(),
        };
        for number in 0..streams {
            sim.create_stream(StreamHandle(FIRST_STREAM + number));
        }
        Arc::new(sim)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// At most this many mappings.
    pub fn set_mapping_limit(&self, limit: u64) {
        self.mapping_limit.store(limit, Ordering::Relaxed);
    }

    /// No page bears more than so many mappings. Before a pool is made.
    pub fn limit_mappings_of_a_page(&self, most: usize) {
        self.memory.limit_mappings_of_a_page(most);
    }

    /// From now on memory comes at addresses that the contract does not allow: `bytes` further on.
    pub fn displace(&self, bytes: u64) {
        self.displaced.store(bytes, Ordering::Relaxed);
    }

    /// From now on every event on a stream is one that must be asked for, also where nothing is in flight.
    pub fn always_give_events(&self) {
        self.always_events.store(true, Ordering::Relaxed);
    }

    /// Events that were recorded and not forgotten.
    pub fn events(&self) -> usize {
        self.state().events.len()
    }

    /// Blocks are to be announced from the start of the next pool on.
    pub fn watch(&self) {
        self.watching.store(true, Ordering::Relaxed);
    }

    /// The blocks that were announced and not yet freed, with their bytes. None if nobody watches.
    pub fn blocks(&self) -> Option<BTreeMap<u64, u64>> {
        self.watches_blocks().then(|| self.state().blocks.clone())
    }

    /// Bytes of the pages that lie, in part at least, under these ranges.
    pub fn bytes_under(&self, ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
        self.pages_under(ranges).values().sum()
    }

    /// Those pages, each with its bytes.
    pub fn pages_under(&self, ranges: impl Iterator<Item = (u64, u64)>) -> HashMap<PageHandle, u64> {
        let (state, mut under) = (self.state(), HashMap::new());
        for (start, bytes) in ranges {
            for (&base, &(page, size)) in state.mappings.range(..start + bytes).rev() {
                if base + size <= start {
                    break;
                }
                under.insert(page, size);
            }
        }
        under
    }

    /// Creates a stream. The handle may be one that was destroyed before.
    pub fn create_stream(&self, handle: StreamHandle) {
        let mut state = self.state();
        let index = state.streams.len();
        state.streams.push(Stream::default());
        assert!(state.handles.insert(handle, index).is_none());
    }

    /// Destroys a stream; its work goes on.
    pub fn destroy_stream(&self, handle: StreamHandle) {
        let mut state = self.state();
        state.handles.remove(&handle).expect("a live stream");
        if let Some(declared) = &mut state.declared {
            declared.remove(&handle);
        }
    }

    /// Work queued on the stream goes into a graph from now on.
    pub fn begin_capture(&self, handle: StreamHandle, capture: CaptureId) {
        let mut state = self.state();
        let graph = state.streams.len();
        state.streams.push(Stream::default());
        state.graphs.insert(graph, capture);
        let own = state.handles.insert(handle, graph).expect("a live stream");
        assert!(state.captured.insert(handle, (capture, own)).is_none());
    }

    /// Work queued on the stream is its own again.
    pub fn end_capture(&self, handle: StreamHandle) {
        let mut state = self.state();
        let (_, own) = state.captured.remove(&handle).expect("a captured stream");
        state.handles.insert(handle, own);
    }

    /// The graph is gone, and all its launches are complete.
    pub fn destroy_graph(&self, capture: CaptureId) {
        let mut state = self.state();
        let clock = state.all(|graph| graph == Some(&capture));
        state.finish(&clock);
        if state.watched.remove(&capture) {
            state.gone.push(capture);
        }
    }

    /// As with a driver that does not tell when a graph is gone.
    pub fn never_tell(&self) {
        self.state().untold = true;
    }

    /// All captures end, and all graphs are gone.
    pub fn end_graphs(&self) {
        let captured: Vec<StreamHandle> = self.state().captured.keys().copied().collect();
        captured.into_iter().for_each(|handle| self.end_capture(handle));
        let mut state = self.state();
        let clock = state.all(|graph| graph.is_some());
        state.finish(&clock);
    }

    /// Makes a call that names these streams.
    pub fn naming<T>(&self, streams: &[StreamHandle], call: impl FnOnce() -> T) -> T {
        let mut state = self.state();
        state.named = streams.to_vec();
        if let Some(declared) = &mut state.declared {
            declared.extend(streams);
        }
        drop(state);
        let answer = call();
        self.state().named.clear();
        answer
    }

    /// The pool may touch streams at any time, from when a call named them until they are destroyed.
    pub fn declare_streams(&self) {
        self.state().declared = Some(HashSet::new());
    }

    /// Pool-inserted waits so far.
    pub fn waits(&self) -> u64 {
        self.state().waits
    }

    /// The most bytes of pages since the last reset.
    pub fn peak(&self) -> u64 {
        self.state().peak
    }

    /// The peak becomes what there is.
    pub fn reset_peak(&self) {
        self.state().peak = self.memory.created_bytes();
    }

    /// Is this a stream that work can be queued on?
    pub fn is_stream(&self, stream: StreamHandle) -> bool {
        self.state().handles.contains_key(&stream)
    }

    /// Work on `stream` uses `bytes` at `start`, which belong to `block`. On a stream that is none, the host does
    /// it at once.
    pub fn touch(&self, stream: StreamHandle, block: u64, start: u64, bytes: u64) {
        self.use_memory(stream, block, (start, bytes), false);
    }

    /// The same for work that nobody may be given the memory of before it has run.
    pub fn touch_held(&self, stream: StreamHandle, block: u64, start: u64, bytes: u64) {
        self.use_memory(stream, block, (start, bytes), true);
    }

    /// A block is handed out.
    pub fn hand_out(&self, start: u64, bytes: u64) {
        let state = self.state();
        let pieces = state.pieces(start, bytes);
        let held = state.users(&pieces).find(|work| work.held);
        assert!(
            held.is_none(),
            "{bytes} B at {start:#x} are handed out, but held for {held:?}"
        );
    }

    fn use_memory(&self, stream: StreamHandle, block: u64, (start, bytes): (u64, u64), held: bool) {
        let mut state = self.state();
        let pieces = state.pieces(start, bytes);
        let index = state.handles.get(&stream).copied();
        for work in state.users(&pieces) {
            let ordered =
                index.is_some_and(|index| at(&state.streams[index].clock, work.stream) >= work.position);
            assert!(
                work.block == block || ordered,
                "block {block} of {bytes} B at {start:#x} is used on {stream}, but its memory is still in use by {work:?}"
            );
        }
        let Some(index) = index else { return };
        let position = state.queue(index);
        state.add(Work {
            stream: index,
            position,
            block,
            start,
            end: start + bytes.max(1),
            pieces,
            held,
        });
    }

    /// Queues work that uses no memory.
    pub fn delay(&self, stream: StreamHandle) {
        let mut state = self.state();
        if let Some(&index) = state.handles.get(&stream) {
            state.queue(index);
        }
    }

    /// Now, on a stream: what an event recorded by the program stands for.
    pub fn now(&self, stream: StreamHandle) -> Moment {
        let state = self.state();
        let clock = state
            .handles
            .get(&stream)
            .map(|&index| state.streams[index].clock.clone());
        Moment(clock.unwrap_or_default())
    }

    /// Now, in a stream's own work, even while the stream is captured.
    pub fn now_uncaptured(&self, stream: StreamHandle) -> Moment {
        let state = self.state();
        let index = state
            .captured
            .get(&stream)
            .map(|captured| captured.1)
            .or_else(|| state.handles.get(&stream).copied());
        Moment(
            index
                .map(|index| state.streams[index].clock.clone())
                .unwrap_or_default(),
        )
    }

    /// The program makes a stream wait. A stream that is none has the host wait.
    pub fn wait_for(&self, stream: StreamHandle, moment: &Moment) {
        let mut state = self.state();
        match state.handles.get(&stream).copied() {
            Some(index) => state.order(index, &moment.0),
            None => state.finish(&moment.0),
        }
    }

    /// The host waits.
    pub fn synchronize_with(&self, moment: &Moment) {
        self.state().finish(&moment.0);
    }

    /// Lets the oldest work of a stream run, and what it waits for.
    pub fn advance(&self, stream: StreamHandle, items: u64) {
        let mut state = self.state();
        let Some(&index) = state.handles.get(&stream) else {
            return;
        };
        let target = state.streams[index].completed + items;
        let mut clock = vec![0; index + 1];
        clock[index] = target.min(at(&state.streams[index].clock, index));
        state.finish(&clock);
    }
}

impl Backend for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn granularity(&self) -> u64 {
        self.memory.granularity()
    }

    fn mapping_limit(&self) -> u64 {
        self.mapping_limit.load(Ordering::Relaxed)
    }

    fn mappings_of_a_page(&self) -> usize {
        self.memory.mappings_of_a_page()
    }

    fn usable(&self) -> bool {
        true
    }

    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.memory.reserve(bytes)
    }

    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.memory.unreserve(at, bytes)
    }

    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        let page = self.memory.create(bytes)?;
        let mut state = self.state();
        state.peak = state.peak.max(self.memory.created_bytes());
        Ok(page)
    }

    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        if let Some(work) = self.state().user(page) {
            panic!("{page:?} is released while it is used by {work:?}");
        }
        self.memory.release(page, bytes)?;
        // one that came with its address
        self.state().mappings.retain(|_, mapping| mapping.0 != page);
        Ok(())
    }

    fn pages_have_addresses(&self) -> bool {
        self.memory.pages_have_addresses()
    }

    fn watches_blocks(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    fn block_allocated(&self, at: Addr, bytes: u64) {
        let mut state = self.state();
        let before = state.blocks.range(..at.0 + bytes).next_back();
        assert!(
            before.is_none_or(|(start, bytes)| start + bytes <= at.0),
            "{bytes} B at {at} are announced over {before:x?}"
        );
        state.blocks.insert(at.0, bytes);
    }

    fn block_freed(&self, at: Addr) {
        let known = self.state().blocks.remove(&at.0);
        assert!(known.is_some(), "{at} was never announced");
    }

    fn create_at(&self, bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        let (at, page) = self.memory.create_at(bytes)?;
        let mut state = self.state();
        state.mappings.insert(at.0, (page, bytes));
        state.peak = state.peak.max(self.memory.created_bytes());
        let at = Addr(at.0 + self.displaced.load(Ordering::Relaxed));
        Ok((at, page))
    }

    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        let mut state = self.state();
        if state.mappings.len() as u64 >= self.mapping_limit() {
            return Err(BackendError::OutOfMemory("no mappings are left".into()));
        }
        self.memory.map(at, page, bytes)?;
        state.mappings.insert(at.0, (page, bytes));
        Ok(())
    }

    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        let mut state = self.state();
        for work in &state.work {
            assert!(
                work.end <= at.0 || work.start >= at.0 + bytes,
                "{bytes} B at {at} are unmapped while they are used by {work:?}"
            );
        }
        self.memory.unmap(at, bytes)?;
        state
            .mappings
            .retain(|&place, _| place < at.0 || place >= at.0 + bytes);
        Ok(())
    }

    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        let state = self.state();
        let index = state.named("timeline", stream);
        let captured = state.captured.get(&stream);
        let index = captured.map(|captured| captured.1).or(index);
        let id = index.map_or(stream.0 as u64, |index| (FIRST_STREAM + index) as u64);
        Ok(Timeline {
            stream: StreamId(id),
            capture: captured.map(|captured| captured.0),
        })
    }

    fn is_inert(&self, stream: StreamId) -> bool {
        stream.0 < FIRST_STREAM as u64
    }

    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        if self.timeline(stream) != Ok(line) || line.capture.is_some() {
            return None;
        }
        let state = self.state();
        let index = state.named("a question for its work", stream)?;
        Some(!state.reached(&state.streams[index].clock))
    }

    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        let mut state = self.state();
        state.not_captured("an event recorded", stream);
        let Some(index) = state.named("record", stream) else {
            return Ok(Event::COMPLETE);
        };
        let clock = state.streams[index].clock.clone();
        if !self.always_events.load(Ordering::Relaxed) && state.reached(&clock) {
            return Ok(Event::COMPLETE);
        }
        state.last_event += 1;
        let event = Event(state.last_event);
        state.events.insert(event, clock);
        Ok(event)
    }

    fn query(&self, event: Event) -> Result<bool, BackendError> {
        let state = self.state();
        Ok(event == Event::COMPLETE || state.reached(state.events.get(&event).expect("a live event")))
    }

    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        let mut state = self.state();
        state.waits += 1;
        state.not_captured("a wait", stream);
        let index = state.named("wait", stream);
        let clock = match event {
            Event::COMPLETE => return Ok(()),
            event => state.events.get(&event).expect("a live event").clone(),
        };
        match index {
            Some(index) => state.order(index, &clock),
            None => state.finish(&clock),
        }
        Ok(())
    }

    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        let mut state = self.state();
        let clock = state.events.get(&event).expect("a live event").clone();
        state.finish(&clock);
        Ok(())
    }

    fn watch_graph(&self, stream: StreamHandle, capture: CaptureId) -> Result<(), BackendError> {
        let mut state = self.state();
        assert!(
            state.named.contains(&stream),
            "watched outside a call that names {stream}"
        );
        assert_eq!(
            state.captured.get(&stream).map(|captured| captured.0),
            Some(capture)
        );
        if state.untold {
            return Err(BackendError::NotSupported("nobody can tell".into()));
        }
        state.watched.insert(capture);
        Ok(())
    }

    fn graphs_gone(&self, each: &mut dyn FnMut(CaptureId)) {
        let gone = std::mem::take(&mut self.state().gone);
        gone.into_iter().for_each(each);
    }

    fn forget(&self, event: Event) {
        self.state().events.remove(&event).expect("a live event");
    }

    fn synchronize_all(&self) -> Result<(), BackendError> {
        let mut state = self.state();
        if !state.captured.is_empty() {
            return Err(BackendError::Capturing("a stream is being captured".into()));
        }
        let clock = state.all(|graph| graph.is_none());
        state.finish(&clock);
        Ok(())
    }
}
