//! What the simulated device (`sim`) has in its queues, how far it has come, and which piece of which page which of it uses.

use super::sim::FIRST_STREAM;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use weir::backend::Event;
use weir::base::units::{CaptureId, PageHandle, StreamHandle};

/// How far each stream, by index, has come.
pub(super) type Clock = Vec<u64>;

pub(super) fn at(clock: &Clock, stream: usize) -> u64 {
    clock.get(stream).copied().unwrap_or(0)
}

fn join(clock: &mut Clock, other: &Clock) {
    if clock.len() < other.len() {
        clock.resize(other.len(), 0);
    }
    for (mine, &theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(theirs);
    }
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// What its next work begins after; its own place holds the number of items queued.
    pub(super) clock: Clock,
    /// Items that have run.
    pub(super) completed: u64,
    /// What each unfinished item waits for.
    pub(super) needs: VecDeque<Clock>,
}

/// Queued work that uses memory.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) stream: usize,
    pub(super) position: u64,
    pub(super) block: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) pieces: Vec<Piece>,
    /// Nobody may be given its memory before it has run, not even work that is ordered behind it: the host may write first.
    pub(super) held: bool,
}

/// A page, and bytes of it from, to.
pub(super) type Piece = (PageHandle, u64, u64);

/// Bytes of a page, and which work uses them.
#[derive(Debug)]
struct Use {
    from: u64,
    to: u64,
    work: Arc<Work>,
}

/// A moment in the work of a stream.
#[derive(Clone, Debug, Default)]
pub struct Moment(pub(super) Clock);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) streams: Vec<Stream>,
    /// Live handles. While a stream is captured its work goes to a stream of the graph's, which stands still
    /// until the graph is gone.
    pub(super) handles: HashMap<StreamHandle, usize>,
    /// Streams being captured: the capture, and the stream's own place.
    pub(super) captured: HashMap<StreamHandle, (CaptureId, usize)>,
    /// Streams that are part of a graph, or were.
    pub(super) graphs: HashMap<usize, CaptureId>,
    /// Captures that the pool asked to hear the end of, and those whose end it has not heard of yet.
    pub(super) watched: HashSet<CaptureId>,
    pub(super) gone: Vec<CaptureId>,
    /// Nobody can tell when a graph is gone.
    pub(super) untold: bool,
    pub(super) events: HashMap<Event, Clock>,
    pub(super) last_event: u64,
    pub(super) mappings: BTreeMap<u64, (PageHandle, u64)>,
    pub(super) work: Vec<Arc<Work>>,
    /// Which of it uses which bytes of a page. A page that no work uses is not there.
    uses: HashMap<PageHandle, Vec<Use>>,
    /// Streams that the call in progress names.
    pub(super) named: Vec<StreamHandle>,
    /// Streams that have been named and not been given up since, if the pool may touch those at any time.
    pub(super) declared: Option<HashSet<StreamHandle>>,
    pub(super) waits: u64,
    pub(super) peak: u64,
    /// Blocks that were announced, with their bytes.
    pub(super) blocks: BTreeMap<u64, u64>,
}

impl State {
    /// Where these bytes lie.
    pub(super) fn pieces(&self, start: u64, bytes: u64) -> Vec<Piece> {
        let (end, mut pieces, mut next) = (start + bytes.max(1), Vec::new(), start);
        while next < end {
            let (&base, &(page, size)) = self.mappings.range(..=next).next_back().expect("mapped memory");
            assert!(
                next < base + size,
                "{bytes} B at {start:#x}: nothing is mapped at {next:#x}"
            );
            let to = end.min(base + size);
            pieces.push((page, next - base, to - base));
            next = to;
        }
        pieces
    }

    /// Work is queued that uses memory.
    pub(super) fn add(&mut self, work: Work) {
        let work = Arc::new(work);
        for &(page, from, to) in &work.pieces {
            let work = work.clone();
            self.uses.entry(page).or_default().push(Use { from, to, work });
        }
        self.work.push(work);
    }

    /// The work that uses any of these bytes; once for each piece.
    pub(super) fn users<'a>(&'a self, pieces: &'a [Piece]) -> impl Iterator<Item = &'a Work> {
        pieces.iter().flat_map(|&(page, from, to)| {
            let uses = self.uses.get(&page).map_or(&[][..], Vec::as_slice);
            let met = uses.iter().filter(move |old| old.from < to && from < old.to);
            met.map(|old| &*old.work)
        })
    }

    /// Any work that uses the page.
    pub(super) fn user(&self, page: PageHandle) -> Option<&Work> {
        Some(&self.uses.get(&page)?.first()?.work)
    }

    pub(super) fn queue(&mut self, index: usize) -> u64 {
        let stream = &mut self.streams[index];
        stream.needs.push_back(stream.clock.clone());
        if stream.clock.len() <= index {
            stream.clock.resize(index + 1, 0);
        }
        stream.clock[index] += 1;
        stream.clock[index]
    }

    pub(super) fn order(&mut self, index: usize, after: &Clock) {
        join(&mut self.streams[index].clock, after);
        self.queue(index);
    }

    /// Runs everything up to a moment, and what that waits for.
    pub(super) fn finish(&mut self, clock: &Clock) {
        let mut todo: Vec<(usize, u64)> = clock.iter().copied().enumerate().collect();
        while let Some((index, position)) = todo.pop() {
            let stream = &mut self.streams[index];
            while stream.completed < position {
                // Work only ever waits for work that was queued before it, so this ends.
                let needs = stream.needs.pop_front().expect("queued work");
                stream.completed += 1;
                todo.extend(needs.into_iter().enumerate().filter(|need| need.0 != index));
            }
        }
        let goes_on = |work: &Work| self.streams[work.stream].completed < work.position;
        let mut left = HashSet::new();
        self.work.retain(|work| {
            let goes_on = goes_on(work);
            if !goes_on {
                left.extend(work.pieces.iter().map(|piece| piece.0));
            }
            goes_on
        });
        for page in left {
            let uses = self.uses.get_mut(&page).expect("a page in use");
            uses.retain(|old| goes_on(&old.work));
            if uses.is_empty() {
                self.uses.remove(&page);
            }
        }
    }

    pub(super) fn reached(&self, clock: &Clock) -> bool {
        clock
            .iter()
            .zip(&self.streams)
            .all(|(&position, stream)| stream.completed >= position)
    }

    /// How far all streams will come that `which` wants: none, or the graph they are part of.
    pub(super) fn all(&self, which: impl Fn(Option<&CaptureId>) -> bool) -> Clock {
        (0..self.streams.len())
            .map(|index| match which(self.graphs.get(&index)) {
                true => at(&self.streams[index].clock, index),
                false => 0,
            })
            .collect()
    }

    /// Refuses to have a captured stream touched.
    pub(super) fn not_captured(&self, call: &str, handle: StreamHandle) {
        assert!(
            !self.captured.contains_key(&handle),
            "{call} on {handle}, which is being captured"
        );
    }

    /// The stream of a handle that a pool touches.
    pub(super) fn named(&self, call: &str, handle: StreamHandle) -> Option<usize> {
        assert!(
            self.named.contains(&handle)
                || self
                    .declared
                    .as_ref()
                    .is_some_and(|declared| declared.contains(&handle)),
            "{call} touches {handle} in a call that names {:?}",
            self.named
        );
        if handle.0 < FIRST_STREAM {
            return None;
        }
        let live = self.handles.get(&handle);
        Some(*live.unwrap_or_else(|| panic!("{call} touches {handle}, which was destroyed")))
    }
}
