//! Real streams and real memory: work queued on host streams writes patterns and looks for them again.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use weir::backend::Backend;
use weir::backend::fault::Faulty;
use weir::backend::host::{HostBackend, events, streams};
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

/// Every such step has a word of the pattern.
const STRIDE: u64 = 64 << 10;

/// Held by a test while it runs: a pool's synchronise waits for the streams of all tests of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// A host stream.
#[derive(Debug)]
pub struct Stream(pub StreamHandle);

impl Stream {
    /// A new one.
    pub fn new() -> Stream {
        Stream(streams::create().expect("a host stream"))
    }

    /// Queues a function.
    pub fn enqueue(&self, function: impl FnOnce() + Send + 'static) {
        streams::enqueue(self.0, Box::new(function)).expect("a live stream");
    }

    /// Work queued from now on waits until the gate is opened or dropped.
    pub fn gate(&self) -> Gate {
        let (sender, receiver) = channel::<()>();
        let given_up = Arc::new(AtomicBool::new(false));
        let gate = Gate {
            given_up: Arc::clone(&given_up),
            _sender: sender,
        };
        // a pool that waits for it on the thread that would open it is found out
        self.enqueue(move || {
            let answer = receiver.recv_timeout(Duration::from_secs(10));
            given_up.store(answer == Err(RecvTimeoutError::Timeout), Ordering::Release);
        });
        gate
    }

    /// Queues work that takes a while.
    pub fn delay(&self, time: Duration) {
        self.enqueue(move || std::thread::sleep(time));
    }

    /// Waits for all that is queued, behind the pool's back.
    pub fn synchronize(&self) {
        streams::synchronize(self.0).expect("a live stream");
    }

    /// Waits for all that is queued if that may run now, and not for long if another stream holds it back.
    pub fn run_ahead(&self) {
        let (sender, receiver) = channel::<()>();
        self.enqueue(move || drop(sender));
        let _ = receiver.recv_timeout(Duration::from_millis(100));
    }

    /// Queues a write of `value` all over a block.
    pub fn write(&self, at: Addr, bytes: u64, value: u64) {
        self.enqueue(move || words(at, bytes, |word| word.store(value, Ordering::Relaxed)));
    }

    /// Queues a look at a block: each word that is not `value` is counted.
    pub fn expect(&self, at: Addr, bytes: u64, value: u64, wrong: &Wrong) {
        let wrong = wrong.clone();
        self.enqueue(move || wrong.look(at, bytes, value));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A test may have destroyed it.
        let _ = streams::destroy(self.0);
    }
}

/// Holds a stream back.
#[derive(Debug)]
pub struct Gate {
    given_up: Arc<AtomicBool>,
    /// The stream goes on when it is gone.
    _sender: Sender<()>,
}

impl Gate {
    /// Lets the stream go on.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        let given_up = self.given_up.load(Ordering::Acquire);
        assert!(
            !given_up || std::thread::panicking(),
            "a gate was opened too late"
        );
    }
}

/// Words of blocks that did not hold what they should.
#[derive(Clone, Debug, Default)]
pub struct Wrong(Arc<AtomicU64>);

impl Wrong {
    /// Looks at a block now.
    pub fn look(&self, at: Addr, bytes: u64, value: u64) {
        words(at, bytes, |word| {
            let wrong = word.load(Ordering::Relaxed) != value;
            self.0.fetch_add(u64::from(wrong), Ordering::Relaxed);
        });
    }

    /// How many so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The first word of each step of a block, and its last word. They are atomics since a defect in the pool shows
/// as two threads at the same word.
#[allow(unsafe_code)]
fn words(at: Addr, bytes: u64, mut visit: impl FnMut(&AtomicU64)) {
    let last = (bytes / 8).checked_sub(1).map(|word| word * 8);
    for offset in (0..bytes / 8 * 8).step_by(STRIDE as usize).chain(last) {
        // SAFETY: the block is live, so the word is mapped, and blocks are aligned to 256 bytes.
        visit(unsafe { &*((at.0 + offset) as *const AtomicU64) });
    }
}

/// A user's event, which the pool hears of.
#[derive(Debug)]
pub struct Recorded(pub EventHandle);

impl Recorded {
    /// Recorded on a stream.
    pub fn on(pool: &Pool, stream: &Stream) -> Recorded {
        let event = events::create().expect("an event");
        let mark = pool.mark_stream(stream.0);
        events::record(event, stream.0).expect("a live stream");
        pool.event_recorded(event, mark);
        Recorded(event)
    }

    /// Has a stream wait for it.
    pub fn waited_for_by(&self, pool: &Pool, stream: &Stream) {
        let mark = pool.mark_event(self.0);
        events::stream_wait(stream.0, self.0).expect("a live stream");
        pool.stream_waits(stream.0, mark);
    }

    /// Waits for it.
    pub fn synchronize(&self, pool: &Pool) {
        let mark = pool.mark_event(self.0);
        events::synchronize(self.0).expect("a live event");
        pool.synchronized(mark);
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        events::destroy(self.0).expect("a live event");
    }
}

/// Waits for a stream, and the pool hears of it.
pub fn synchronize(pool: &Pool, stream: &Stream) {
    let mark = pool.mark_stream(stream.0);
    stream.synchronize();
    pool.synchronized(mark);
}

/// A pool of real memory, and its books.
pub fn pool(config: Config) -> (Pool, Arc<Faulty>) {
    let backend = HostBackend::new().expect("the host backend");
    let faulty = Faulty::new(backend as Arc<dyn Backend>);
    let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
    (pool, faulty)
}

/// Ends a pool that holds no blocks any more.
pub fn end(pool: Pool, faulty: &Faulty) {
    pool.validate();
    assert_eq!(pool.end().blocks, 0);
    drop(pool);
    faulty.assert_empty();
}

/// Waits until something is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::yield_now();
    }
}
