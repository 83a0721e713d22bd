//! The program's events, with the meaning that CUDA gives them: an event holds the point that was recorded
//! last; a wait looks at it when it is called, so recording again does not change earlier waits; an event
//! never recorded is complete; destroying one cancels nothing.
//!
//! An event that is offered to other processes, or comes from one, has a `board` that they share; from then on
//! what is recorded is told there. What this process recorded last is waited for even where another has recorded since:
//! pools believe that whoever waited for the event waited for that.
//!
//! A handle that is no live host stream's is a stream with nothing in flight: recording on it makes the
//! event complete, and since it has no queue that could be held back, `stream_wait` blocks the caller.
//!
//! Locks: `EVENTS`, held for one look into the table; never while waiting.

use super::board::Board;
use super::stream::Point;
use super::{gate, lock, order, slots::Slots, streams};
use crate::backend::BackendError;
use crate::base::units::{EventHandle, StreamHandle};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const TAG: usize = 0x0057_4556_5400_0000;

#[derive(Debug, Default)]
struct Entry {
    point: Option<Point>,
    board: Option<Arc<Board>>,
    /// The number under which it is offered to other processes, which no other event ever has; 0: it is not.
    offer: u64,
}

static EVENTS: Mutex<Slots<Entry>> = Mutex::new(Slots::new(TAG));
static OFFERS: AtomicU64 = AtomicU64::new(0);

/// Work to wait for, all of it.
struct Pending {
    here: Option<Point>,
    told: Option<(Arc<Board>, u64)>,
}

fn unknown(event: EventHandle) -> BackendError {
    BackendError::Other(format!("{event:?} is not a live host event"))
}

/// What is left to wait for.
fn pending(event: EventHandle) -> Result<Pending, BackendError> {
    gate::for_program()?;
    let events = lock(&EVENTS);
    let entry = events.get(event.0).ok_or_else(|| unknown(event))?;
    let (point, board) = (entry.point.clone(), entry.board.clone());
    drop(events);
    let told = board.map(|board| (board.recorded(), board));
    let told = told.filter(|(number, board)| !board.is_complete(*number));
    Ok(Pending {
        here: point.filter(|point| !point.reached()),
        told: told.map(|(number, board)| (board, number)),
    })
}

/// Is this the handle of a live host event? False in a forked child.
pub fn is_event(event: EventHandle) -> bool {
    gate::usable() && lock(&EVENTS).get(event.0).is_some()
}

fn add(entry: Entry) -> Result<EventHandle, BackendError> {
    gate::first_use()?;
    let handle = lock(&EVENTS).insert(entry);
    handle
        .map(EventHandle)
        .ok_or_else(|| BackendError::OutOfMemory("2^24 host events exist; destroy some".into()))
}

/// A new event, complete until it is recorded.
pub fn create() -> Result<EventHandle, BackendError> {
    add(Entry::default())
}

/// Destroys an event. What waits for it goes on waiting for what was recorded.
pub fn destroy(event: EventHandle) -> Result<(), BackendError> {
    gate::for_program()?;
    let removed = lock(&EVENTS).remove(event.0);
    removed.map(drop).ok_or_else(|| unknown(event))
}

/// Records: the event now stands for all work queued on `stream` so far.
pub fn record(event: EventHandle, stream: StreamHandle) -> Result<(), BackendError> {
    gate::for_program()?;
    let target = streams::find(stream);
    let point = target.as_ref().map(|stream| stream.point());
    let events = lock(&EVENTS);
    let board = events.get(event.0).ok_or_else(|| unknown(event))?.board.clone();
    drop(events);
    // first, because it may be refused, and then what was recorded before still counts
    let number = board.as_ref().map(|board| board.record()).transpose()?;
    let mut events = lock(&EVENTS);
    let entry = events.get_mut(event.0);
    let old = entry.map(|entry| std::mem::replace(&mut entry.point, point));
    drop(events);
    drop(old);
    let (Some(board), Some(number)) = (board, number) else {
        return Ok(());
    };
    let told = board.clone();
    if !target.is_some_and(|stream| stream.run(Box::new(move || told.done(number)))) {
        board.done(number);
    }
    Ok(())
}

/// Is the work that was recorded complete?
pub fn query(event: EventHandle) -> Result<bool, BackendError> {
    let Pending { here, told } = pending(event)?;
    Ok(here.is_none() && told.is_none())
}

/// Blocks until the work that was recorded is complete. An error on the worker that is to do that work.
pub fn synchronize(event: EventHandle) -> Result<(), BackendError> {
    let Pending { here, told } = pending(event)?;
    here.map_or(Ok(()), |point| point.wait())?;
    if let Some((board, number)) = told {
        board.wait(number);
    }
    Ok(())
}

/// Has `stream` wait, before any work queued on it later, for the work recorded so far.
pub fn stream_wait(stream: StreamHandle, event: EventHandle) -> Result<(), BackendError> {
    let Pending { here, told } = pending(event)?;
    here.map_or(Ok(()), |point| order(stream, point))?;
    let Some((board, number)) = told else {
        return Ok(());
    };
    match streams::find(stream) {
        None => board.wait(number),
        Some(target) if target.run(Box::new(move || board.wait(number))) => {}
        Some(_) => {
            return Err(BackendError::InvalidStream(format!(
                "{stream} was destroyed during the call"
            )));
        }
    }
    Ok(())
}

/// Offers an event to other processes, under the same number each time.
pub(super) fn offer(event: EventHandle) -> Result<u64, BackendError> {
    gate::for_program()?;
    let known = lock(&EVENTS).get(event.0).map(|entry| entry.board.is_some());
    let fresh = match known.ok_or_else(|| unknown(event))? {
        true => None,
        false => Some(Arc::new(Board::new()?)),
    };
    let mut events = lock(&EVENTS);
    let entry = events.get_mut(event.0).ok_or_else(|| unknown(event))?;
    // another thread may have been first
    let unused = match entry.board {
        Some(_) => fresh,
        None => std::mem::replace(&mut entry.board, fresh),
    };
    if entry.offer == 0 {
        entry.offer = OFFERS.fetch_add(1, Ordering::Relaxed) + 1;
    }
    let offer = entry.offer;
    drop(events);
    drop(unused);
    Ok(offer)
}

/// A descriptor of an event that was offered under a number. None: it is no more.
pub(super) fn file(event: EventHandle, number: u64) -> Result<Option<OwnedFd>, BackendError> {
    let events = lock(&EVENTS);
    let entry = events.get(event.0).filter(|entry| entry.offer == number);
    let board = entry.and_then(|entry| entry.board.clone());
    drop(events);
    board.map(|board| board.file()).transpose()
}

/// An event of another process.
pub(super) fn adopt(file: OwnedFd) -> Result<EventHandle, BackendError> {
    add(Entry {
        board: Some(Arc::new(Board::open(file)?)),
        ..Entry::default()
    })
}

/// Destroys every event and frees the table.
pub(super) fn shutdown() {
    let events = lock(&EVENTS).take();
    drop(events);
}
