//! The host streams of the process: handles for the program, and the worker threads behind them.
//!
//! A handle may be recycled as soon as its stream is destroyed, and is; a [`StreamId`] never is. The ids of
//! host streams have bit 63 set, those made up for other handles have not, so the two cannot meet.
//!
//! Invariants: `workers` holds every stream whose thread has not been joined; each stream that has a handle
//! is among them. A thread is joined once it has ended: at a later `create`, or in `shutdown`.
//!
//! `FIRST_IDS` says what `handles` says of those slots; both change under `STREAMS`.
//!
//! Locks: `STREAMS`, then a stream's queue. Never held while a function runs, a thread is started or joined
//! (the thread-local destructors of the program run then, and may come back here). `ENDING` is taken before
//! both, by `shutdown` alone.

use super::stream::{Function, Point, Stream, on_worker};
use super::tokens;
use super::{gate, lock, slots::Slots};
use crate::backend::BackendError;
use crate::base::units::{StreamHandle, StreamId};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};

const TAG: usize = 0x0057_4549_5200_0000;
const OURS: u64 = 1 << 63;
const STACK: usize = 512 << 10;
/// How often `shutdown` lets work queued by work finish before it refuses more.
const ROUNDS: usize = 64;

#[derive(Debug)]
struct Worker {
    stream: Arc<Stream>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Table {
    handles: Slots<Arc<Stream>>,
    workers: Vec<Worker>,
}

static STREAMS: RwLock<Table> = RwLock::new(Table {
    handles: Slots::new(TAG),
    workers: Vec::new(),
});
/// The identities of the streams in the first slots, 0 where there is none. Every call of a pool asks for one, and readers of
/// the table would all write the lock's count of them.
static FIRST_IDS: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
static ENDING: Mutex<()> = Mutex::new(());
static LAST_ID: AtomicU64 = AtomicU64::new(0);

fn read() -> RwLockReadGuard<'static, Table> {
    STREAMS.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Table> {
    STREAMS.write().unwrap_or_else(PoisonError::into_inner)
}

fn unknown(stream: StreamHandle) -> BackendError {
    BackendError::InvalidStream(format!("{stream} is not a live host stream"))
}

/// The stream behind a handle. The caller has passed the gate.
pub(super) fn find(stream: StreamHandle) -> Option<Arc<Stream>> {
    read().handles.get(stream.0).cloned()
}

/// The identity of a stream. A handle that is no live host stream's is a stream with nothing in flight,
/// and its value is its identity.
pub(super) fn id_of(stream: StreamHandle) -> StreamId {
    live_id(stream).unwrap_or(StreamId(stream.0 as u64 & !OURS))
}

fn live_id(stream: StreamHandle) -> Option<StreamId> {
    match FIRST_IDS.get(stream.0 ^ TAG) {
        Some(id) => Some(StreamId(id.load(Ordering::Acquire))).filter(|id| id.0 != 0),
        None if !Slots::<Arc<Stream>>::may_have(TAG, stream.0) => None,
        None => read().handles.get(stream.0).map(|stream| stream.id()),
    }
}

/// To be called with the table locked.
fn note_id(handle: usize, id: StreamId) {
    if let Some(known) = FIRST_IDS.get(handle ^ TAG) {
        known.store(id.0, Ordering::Release);
    }
}

/// Is this the identity of a stream that was created here, alive or not?
pub(super) fn is_ours(id: StreamId) -> bool {
    id.0 & OURS != 0
}

/// Is this the handle of a live host stream? False in a forked child.
pub fn is_stream(stream: StreamHandle) -> bool {
    // a driver's handle is told by its number, before anything else is looked at
    Slots::<Arc<Stream>>::may_have(TAG, stream.0) && gate::usable() && live_id(stream).is_some()
}

/// Starts a stream and its worker thread.
pub fn create() -> Result<StreamHandle, BackendError> {
    gate::first_use()?;
    reap();
    let number = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
    let stream = Arc::new(Stream::new(StreamId(OURS | number)));
    let worker = Arc::clone(&stream);
    let thread = thread::Builder::new()
        .name(format!("weir-{number}"))
        .stack_size(STACK)
        .spawn(move || worker.work())
        .map_err(|error| BackendError::OutOfMemory(format!("no thread for a host stream: {error}")))?;
    tokens::expect_stream();
    let mut table = write();
    let handle = table.handles.insert(Arc::clone(&stream));
    handle.inspect(|&handle| note_id(handle, stream.id()));
    table.workers.push(Worker {
        stream: Arc::clone(&stream),
        thread,
    });
    drop(table);
    handle.map(StreamHandle).ok_or_else(|| {
        stream.close();
        BackendError::OutOfMemory("2^24 host streams exist; destroy some".into())
    })
}

/// Joins the threads that have ended.
fn reap() {
    let mut ended = Vec::new();
    let mut table = write();
    let mut at = 0;
    while at < table.workers.len() {
        if table.workers[at].thread.is_finished() {
            ended.push(table.workers.swap_remove(at));
        } else {
            at += 1;
        }
    }
    drop(table);
    join(ended);
}

fn join(workers: Vec<Worker>) {
    for worker in workers {
        // A worker's functions cannot make it panic, and there is nobody to tell if it did.
        let _ = worker.thread.join();
    }
}

/// Destroys a stream: returns at once, what is queued still runs. The handle is invalid from now on, and a
/// later [`create`] may return its value again.
pub fn destroy(stream: StreamHandle) -> Result<(), BackendError> {
    gate::for_program()?;
    let mut table = write();
    let removed = table.handles.remove(stream.0).ok_or_else(|| unknown(stream))?;
    note_id(stream.0, StreamId(0));
    drop(table);
    removed.close();
    Ok(())
}

/// Queues a function. It may itself use streams and events, but not wait for its own stream.
pub fn enqueue(stream: StreamHandle, function: Function) -> Result<(), BackendError> {
    gate::for_program()?;
    let target = find(stream).ok_or_else(|| unknown(stream))?;
    if target.run(function) {
        Ok(())
    } else {
        Err(unknown(stream))
    }
}

/// Blocks until everything queued on the stream so far has run. An error on the stream's own worker.
pub fn synchronize(stream: StreamHandle) -> Result<(), BackendError> {
    gate::for_program()?;
    find(stream).ok_or_else(|| unknown(stream))?.point().wait()
}

/// The points behind all unfinished work of the process, destroyed streams included.
fn unfinished() -> Vec<Point> {
    let table = read();
    table
        .workers
        .iter()
        .map(|worker| worker.stream.point())
        .filter(|point| !point.reached())
        .collect()
}

/// Blocks until all work queued so far on any stream, destroyed ones included, has run. An error on a
/// stream's worker, which would wait for itself.
pub fn synchronize_all() -> Result<(), BackendError> {
    gate::for_program()?;
    wait_for_all()
}

/// [`synchronize_all`] for a caller that has passed the gate.
pub(super) fn wait_for_all() -> Result<(), BackendError> {
    if on_worker() {
        return Err(BackendError::Other(
            "a function that runs on a host stream may not wait for all streams".into(),
        ));
    }
    unfinished().iter().try_for_each(Point::wait)
}

/// Runs what is queued to the end, joins every worker and frees the table. Work that goes on queueing more
/// work is refused it after a while.
pub(super) fn shutdown() -> Result<(), BackendError> {
    if on_worker() {
        return Err(BackendError::Other(
            "a function that runs on a host stream may not end all streams".into(),
        ));
    }
    let _alone = lock(&ENDING);
    for _ in 0..ROUNDS {
        let points = unfinished();
        if points.is_empty() {
            break;
        }
        points.iter().try_for_each(Point::wait)?;
    }
    let mut table = write();
    let handles = table.handles.take();
    FIRST_IDS.iter().for_each(|id| id.store(0, Ordering::Release));
    let workers = mem::take(&mut table.workers);
    drop(table);
    drop(handles);
    workers.iter().for_each(|worker| worker.stream.close());
    join(workers);
    Ok(())
}
