//! One stream: a queue, and the worker thread that runs it in order.
//!
//! Invariants:
//! - `queued` counts the jobs ever queued, `completed` those that have run; a job's position is `queued`
//!   just after it was queued; `completed` + the job running (0 or 1) + `jobs.len()` = `queued`;
//! - a [`Point`] is reached when `completed` has come to its position. It needs neither the stream's handle
//!   nor its worker, so it outlives both;
//! - `closing` is final: nothing is queued after it, and the worker ends when the queue is empty;
//! - whoever sleeps in [`Point::wait`] has made `wake_at` ≤ its position.
//!
//! Locks: `queue`, held for a few instructions and never while a job runs or another lock is taken. `std`'s
//! locks are used because they never allocate.

use super::lock;
use crate::backend::BackendError;
use crate::base::units::StreamId;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A function queued on a stream.
pub type Function = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The stream whose worker this thread is; `FOREIGN` for any other thread. Has no destructor.
    static WORKER_OF: Cell<StreamId> = const { Cell::new(StreamId(0)) };
}

/// Is this thread a stream's worker?
pub fn on_worker() -> bool {
    WORKER_OF.get() != StreamId(0)
}

enum Job {
    Run(Function),
    Wait(Point),
}

struct Queue {
    jobs: VecDeque<Job>,
    queued: u64,
    closing: bool,
    idle: bool,
    wake_at: u64,
}

pub(super) struct Stream {
    id: StreamId,
    completed: AtomicU64,
    queue: Mutex<Queue>,
    work: Condvar,
    progress: Condvar,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.id, self.completed.load(Ordering::Relaxed))
    }
}

impl Stream {
    pub(super) fn new(id: StreamId) -> Stream {
        let queue = Queue {
            jobs: VecDeque::new(),
            queued: 0,
            closing: false,
            idle: false,
            wake_at: u64::MAX,
        };
        Stream {
            id,
            completed: AtomicU64::new(0),
            queue: Mutex::new(queue),
            work: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    pub(super) fn id(&self) -> StreamId {
        self.id
    }

    /// Queues a function; gives it back if the stream is closing.
    pub(super) fn run(&self, function: Function) -> bool {
        self.push(Job::Run(function))
    }

    /// Has later work wait until `point` is reached. False if the stream is closing.
    pub(super) fn wait_for(&self, point: Point) -> bool {
        self.push(Job::Wait(point))
    }

    fn push(&self, job: Job) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closing {
            drop(queue);
            return false; // The job, a closure of the program's, is dropped outside the lock.
        }
        queue.jobs.push_back(job);
        queue.queued += 1;
        if queue.idle {
            self.work.notify_one();
        }
        true
    }

    /// Refuses further work; what is queued will still run.
    pub(super) fn close(&self) {
        lock(&self.queue).closing = true;
        self.work.notify_one();
    }

    /// May the caller wait for work queued now? An error on the stream's own worker, which would wait for itself.
    pub(super) fn may_wait(&self) -> Result<(), BackendError> {
        if WORKER_OF.get() != self.id {
            return Ok(());
        }
        Err(BackendError::Other(format!(
            "a function that runs on a host stream ({:?}) may not wait for work queued behind it there",
            self.id
        )))
    }

    /// The point behind everything queued so far.
    pub(super) fn point(self: &Arc<Self>) -> Point {
        let position = lock(&self.queue).queued;
        Point {
            stream: Arc::clone(self),
            position,
        }
    }

    /// The worker's loop. A function that panics (the message is printed by the panic hook) counts as
    /// completed, and the stream goes on.
    pub(super) fn work(&self) {
        WORKER_OF.set(self.id);
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                match job {
                    Job::Run(function) => drop(catch_unwind(AssertUnwindSafe(function))),
                    Job::Wait(point) => point.sleep(),
                }
                queue = lock(&self.queue);
                let completed = self.completed.fetch_add(1, Ordering::Release) + 1;
                if completed >= queue.wake_at {
                    queue.wake_at = u64::MAX;
                    self.progress.notify_all();
                }
            } else if queue.closing {
                queue.jobs = VecDeque::new();
                return;
            } else {
                queue.idle = true;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle = false;
            }
        }
    }
}

/// A position in a stream's work.
#[derive(Clone, Debug)]
pub(super) struct Point {
    stream: Arc<Stream>,
    position: u64,
}

impl Point {
    /// Has all work up to here completed? What it wrote is then visible to the caller.
    pub(super) fn reached(&self) -> bool {
        self.stream.completed.load(Ordering::Acquire) >= self.position
    }

    pub(super) fn stream_id(&self) -> StreamId {
        self.stream.id
    }

    /// Blocks until it is reached. An error on the stream's own worker, which would wait for itself.
    pub(super) fn wait(&self) -> Result<(), BackendError> {
        if !self.reached() {
            self.stream.may_wait()?;
        }
        self.sleep();
        Ok(())
    }

    pub(super) fn sleep(&self) {
        if self.reached() {
            return;
        }
        let mut queue = lock(&self.stream.queue);
        while !self.reached() {
            queue.wake_at = queue.wake_at.min(self.position);
            queue = self
                .stream
                .progress
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
