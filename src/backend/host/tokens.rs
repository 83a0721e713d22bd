//! The pool's own events: numbers, each standing for a point in a stream's work. They survive the stream.
//!
//! Invariants: a number is given out once, and never 0 ([`Event::COMPLETE`]); `points` holds the numbers
//! given out and not yet forgotten, but for those that were complete when [`purge`] dropped them: these are
//! below `purged`.
//!
//! Locks: `TOKENS`, held for one look into the map.

use super::lock;
use super::stream::Point;
use crate::backend::{BackendError, Event};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::collections::HashMap;
use std::sync::Mutex;

struct Tokens {
    points: FxHashMap<u64, Point>,
    last: u64,
    purged: u64,
}

static TOKENS: Mutex<Tokens> = Mutex::new(Tokens {
    points: HashMap::with_hasher(FxBuildHasher),
    last: 0,
    purged: 0,
});

/// Room made for the events of each stream, so that recording them, which a free does, allocates nothing.
const PER_STREAM: usize = 256;

/// There is one more stream.
pub(super) fn expect_stream() {
    lock(&TOKENS).points.reserve(PER_STREAM);
}

/// An event for a point.
pub(super) fn record(point: Point) -> Result<Event, BackendError> {
    if point.reached() {
        return Ok(Event::COMPLETE);
    }
    let mut tokens = lock(&TOKENS);
    if tokens.points.try_reserve(1).is_err() {
        return Err(BackendError::OutOfMemory(
            "no memory for another host event".into(),
        ));
    }
    tokens.last += 1;
    let number = tokens.last;
    tokens.points.insert(number, point);
    Ok(Event(number))
}

/// What is left to wait for: the event's point, or nothing if it is complete.
pub(super) fn pending(event: Event) -> Result<Option<Point>, BackendError> {
    if event == Event::COMPLETE {
        return Ok(None);
    }
    let tokens = lock(&TOKENS);
    match tokens.points.get(&event.0) {
        Some(point) if point.reached() => Ok(None),
        Some(point) => Ok(Some(point.clone())),
        None if event.0 <= tokens.purged => Ok(None),
        None if event.0 <= tokens.last => {
            Err(BackendError::Other(format!("event {} was forgotten", event.0)))
        }
        None => Err(BackendError::Other(format!(
            "event {} was never recorded",
            event.0
        ))),
    }
}

/// Gives an event back; one that is unknown is none of ours.
pub(super) fn forget(event: Event) {
    let point = lock(&TOKENS).points.remove(&event.0);
    drop(point); // Perhaps the stream's last owner: freed outside the lock.
}

/// Drops all complete events; they stay complete for who still asks.
pub(super) fn purge() {
    let mut tokens = lock(&TOKENS);
    tokens.points.retain(|_, point| !point.reached());
    tokens.points.shrink_to_fit();
    tokens.purged = tokens.last;
}
