//! Deliberate mistakes, and the stand-in's word for each: a backend that tells the pool what is not so makes it do what
//! it must never do. If these did not end the process, no other test on the stand-in would mean much.

use crate::common::M;
use crate::common::cuda::{backend, handle};
use crate::common::standin::{Device, Object, aborted, alone, ok, stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use weir::backend::cuda::CudaBackend;
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{Addr, PageHandle, StreamHandle, Timeline};
use weir::config::{Config, MemoryKind};
use weir::pool::Pool;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Work is said to be complete as soon as somebody asks.
    CompleteAtOnce,
    /// The host does not wait when it should.
    DoesNotWait,
    /// The event that is to cover a free was recorded before the work that the free comes after.
    RecordedEarly,
    /// An event is recorded when somebody asks for it, by the stream that was named long ago.
    RecordedLate,
    /// A stream that is being captured is treated like any other.
    BlindToCaptures,
}

#[derive(Debug)]
struct Mistaken {
    inner: Arc<CudaBackend>,
    mistake: Mistake,
    late: Mutex<HashMap<u64, StreamHandle>>,
    early: Mutex<HashMap<usize, Event>>,
}

/// Numbers of events that are not recorded yet.
const LATE: u64 = 1 << 48;

impl Backend for Mistaken {
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
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.inner.reserve(bytes)
    }
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.inner.unreserve(at, bytes)
    }
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.inner.create(bytes)
    }
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.inner.release(page, bytes)
    }
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.inner.map(at, page, bytes)
    }
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.inner.unmap(at, bytes)
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        let line = self.inner.timeline(stream)?;
        match self.mistake {
            Mistake::BlindToCaptures => Ok(Timeline::of(line.stream)),
            Mistake::RecordedEarly => {
                let mut early = self.early.lock().unwrap();
                if let std::collections::hash_map::Entry::Vacant(place) = early.entry(stream.0) {
                    place.insert(self.inner.record(stream)?);
                }
                Ok(line)
            }
            _ => Ok(line),
        }
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        match self.mistake {
            Mistake::RecordedLate => {
                let mut late = self.late.lock().unwrap();
                let event = LATE + late.len() as u64;
                late.insert(event, stream);
                Ok(Event(event))
            }
            Mistake::RecordedEarly => Ok(self.early.lock().unwrap()[&stream.0]),
            Mistake::BlindToCaptures => {
                let mut event = std::ptr::null_mut();
                ok!(event_create(&raw mut event, 2));
                let stream = std::ptr::with_exposed_provenance_mut(stream.0);
                // what the driver answers is no matter: the stand-in ends the process
                let _ = crate::common::standin::control!(event_record(event, stream));
                Ok(Event(event.expose_provenance() as u64))
            }
            _ => self.inner.record(stream),
        }
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        match self.mistake {
            Mistake::CompleteAtOnce => Ok(true),
            Mistake::RecordedLate => {
                let stream = self.late.lock().unwrap()[&event.0];
                let event = self.inner.record(stream)?;
                self.inner.query(event)
            }
            _ => self.inner.query(event),
        }
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
        match self.mistake {
            Mistake::DoesNotWait => Ok(()),
            _ => self.inner.synchronize_all(),
        }
    }
    fn close(&self) {
        self.inner.close();
    }
}

fn pool(mistake: Mistake) -> Pool {
    let inner = backend();
    let config = Config {
        memory: MemoryKind::Device,
        ..Config::default()
    };
    let backend = Mistaken {
        inner,
        mistake,
        late: Mutex::default(),
        early: Mutex::default(),
    };
    Pool::new(config, Arc::new(backend)).expect("a pool")
}

/// A block of 16 MiB that its stream is at work on, for a while, when it is freed.
fn busy_block_freed(pool: &Pool, stream: Object) {
    let at = pool.alloc(16 * M, 0, handle(stream)).expect("a block");
    crate::common::standin::rest(stream, 100_000);
    ok!(fill(at.0, 1, 16 << 20, stream));
    pool.free(at, handle(stream)).expect("a free");
}

/// What each mistake is made of: memory freed on one stream that has not done its work yet is looked for by another,
/// given back, and the stream destroyed in between.
fn scene(mistake: Mistake, act: impl FnOnce(&Pool, Object)) {
    let device = Device::open(0);
    let pool = pool(mistake);
    let (first, second) = (stream(), stream());
    busy_block_freed(&pool, first);
    ok!(stream_destroy(first));
    act(&pool, second);
    pool.end();
    ok!(stream_destroy(second));
    drop(device);
}

fn takes_it(pool: &Pool, other: Object) {
    let at = pool.alloc(16 * M, 0, handle(other)).expect("a block");
    ok!(fill(at.0, 2, 16 << 20, other));
    pool.free(at, handle(other)).expect("a free");
}

fn trims(pool: &Pool, _: Object) {
    pool.trim(0).expect("a trim");
}

fn squeezes(pool: &Pool, _: Object) {
    pool.squeeze().expect("a squeeze");
}

/// Frees on a stream that is being captured.
fn captures(pool: &Pool, other: Object) {
    let at = pool.alloc(16 * M, 0, handle(other)).expect("a block");
    ok!(stream_begin_capture(other, 2));
    pool.free(at, handle(other)).expect("a free");
    let mut graph = std::ptr::null_mut();
    ok!(stream_end_capture(other, &raw mut graph));
    ok!(graph_destroy(graph));
}

#[test]
fn without_a_mistake_all_is_well() {
    alone("without_a_mistake_all_is_well", &[], || {
        for act in [takes_it, trims, squeezes, captures] {
            scene(Mistake::None, act);
        }
    });
}

#[test]
fn a_page_unmapped_too_early_is_caught() {
    let words = "are unmapped, and nobody has seen the work on stream";
    aborted("a_page_unmapped_too_early_is_caught", words, || {
        scene(Mistake::CompleteAtOnce, trims);
    });
}

#[test]
fn a_squeeze_that_does_not_wait_is_caught() {
    let words = "are unmapped, and nobody has seen the work on stream";
    aborted("a_squeeze_that_does_not_wait_is_caught", words, || {
        scene(Mistake::DoesNotWait, squeezes);
    });
}

#[test]
fn memory_given_to_a_stream_that_is_not_behind_its_last_use_is_caught() {
    let name = "memory_given_to_a_stream_that_is_not_behind_its_last_use_is_caught";
    aborted(name, "and nothing orders the two", || {
        scene(Mistake::CompleteAtOnce, takes_it);
    });
}

#[test]
fn an_event_that_does_not_cover_the_free_is_caught() {
    let name = "an_event_that_does_not_cover_the_free_is_caught";
    aborted(
        name,
        "are unmapped, and nobody has seen the work on stream",
        || {
            scene(Mistake::RecordedEarly, |pool, other| {
                // long enough for the event, and not for the work that the block was freed behind
                std::thread::sleep(std::time::Duration::from_millis(5));
                trims(pool, other);
            });
        },
    );
}

#[test]
fn a_stream_touched_after_its_destruction_is_caught() {
    let name = "a_stream_touched_after_its_destruction_is_caught";
    aborted(name, "has been given back", || {
        scene(Mistake::RecordedLate, trims);
    });
}

#[test]
fn an_event_recorded_on_a_capturing_stream_is_caught() {
    let name = "an_event_recorded_on_a_capturing_stream_is_caught";
    aborted(name, "captur", || {
        scene(Mistake::BlindToCaptures, captures);
    });
}
