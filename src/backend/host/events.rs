//! The program's events, with the meaning that CUDA gives them: an event holds the point that was recorded
//! last; a wait looks at it when it is called, so recording again does not change earlier waits; an event
//! never recorded is complete; destroying one cancels nothing.
//!
//! A handle that is no live host stream's is a stream with nothing in flight: recording on it makes the
//! event complete, and since it has no queue that could be held back, `stream_wait` blocks the caller.
//!
//! Locks: `EVENTS`, held for one look into the table; never while waiting.

use super::stream::Point;
use super::{gate, lock, order, slots::Slots, streams};
use crate::backend::BackendError;
use crate::base::units::{EventHandle, StreamHandle};
use std::sync::Mutex;

const TAG: usize = 0x0057_4556_5400_0000;

static EVENTS: Mutex<Slots<Option<Point>>> = Mutex::new(Slots::new(TAG));

fn unknown(event: EventHandle) -> BackendError {
    BackendError::Other(format!("{event:?} is not a live host event"))
}

/// What is left to wait for.
fn pending(event: EventHandle) -> Result<Option<Point>, BackendError> {
    gate::for_program()?;
    let point = lock(&EVENTS).get(event.0).ok_or_else(|| unknown(event))?.clone();
    Ok(point.filter(|point| !point.reached()))
}

/// Is this the handle of a live host event? False in a forked child.
pub fn is_event(event: EventHandle) -> bool {
    gate::usable() && lock(&EVENTS).get(event.0).is_some()
}

/// A new event, complete until it is recorded.
pub fn create() -> Result<EventHandle, BackendError> {
    gate::first_use()?;
    let handle = lock(&EVENTS).insert(None);
    handle
        .map(EventHandle)
        .ok_or_else(|| BackendError::OutOfMemory("2^24 host events exist; destroy some".into()))
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
    let point = streams::find(stream).map(|stream| stream.point());
    let mut events = lock(&EVENTS);
    let place = events.get_mut(event.0).ok_or_else(|| unknown(event))?;
    let old = std::mem::replace(place, point);
    drop(events);
    drop(old);
    Ok(())
}

/// Is the work that was recorded complete?
pub fn query(event: EventHandle) -> Result<bool, BackendError> {
    Ok(pending(event)?.is_none())
}

/// Blocks until the work that was recorded is complete. An error on the worker that is to do that work.
pub fn synchronize(event: EventHandle) -> Result<(), BackendError> {
    pending(event)?.map_or(Ok(()), |point| point.wait())
}

/// Has `stream` wait, before any work queued on it later, for the work recorded so far.
pub fn stream_wait(stream: StreamHandle, event: EventHandle) -> Result<(), BackendError> {
    pending(event)?.map_or(Ok(()), |point| order(stream, point))
}

/// Destroys every event and frees the table.
pub(super) fn shutdown() {
    let events = lock(&EVENTS).take();
    drop(events);
}
