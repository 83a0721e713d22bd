//! What the streams of a replay know of each other because they wait for each other on the device.
//!
//! Where memory is shared by waits (`sharing`) a call that takes over what another stream used last (`takeover`) need not find that
//! stream's work complete: its own stream waits for an event recorded since, and what is queued on it from then on comes after that work. So
//! what is known is known to one stream, not to all: each needs events for what it takes over itself.
//!
//! Vector clocks (Fidge, "Timestamps in message-passing systems that preserve the partial ordering", 1988) whose numbers are calls of the
//! replay; what a stream could know through a third one is not counted.
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::company::{MANY, Replayed};
use super::heap::Heap;
use crate::backend::Event;

/// Of each part, for which of another's calls, the first so many, its stream waits.
#[derive(Debug, Default)]
pub(super) struct Waited([[u64; MANY]; MANY]);

impl Waited {
    /// A part's stream waits for what another one did in its first so many calls.
    fn learn(&mut self, part: usize, from: usize, calls: u64) {
        let known = &mut self.0[part][from];
        *known = calls.max(*known);
    }

    /// For how many of them?
    pub(super) fn of(&self, part: usize, from: usize) -> u64 {
        self.0[part][from]
    }
}

/// An event for which a call that takes memory over has its stream wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitFor {
    /// The event.
    pub event: Event,
    stream: u32,
    /// What it covers.
    covers: Replayed,
}

impl Heap {
    /// Do streams wait for each other in this replay?
    pub fn replays_by_waits(&self) -> bool {
        self.replay.is_on() && self.replay.company.is_by_waits()
    }

    /// The events for what the next call takes over, of these streams.
    pub fn events_for_takeover(&self, streams: &[u32]) -> Vec<WaitFor> {
        let event = |&stream: &u32| {
            let (covers, number) = self.replay.company.covered(stream)?;
            // none may have been recorded
            let (event, _) = self.awaited_event(stream).filter(|event| event.1 >= number)?;
            Some(WaitFor {
                event,
                stream,
                covers,
            })
        };
        streams.iter().filter_map(event).collect()
    }

    /// The cache's stream waits for that, unless the replay is another one by now.
    pub fn waits_in_replay(&mut self, own: &Cache, wait: WaitFor) {
        let company = &mut self.replay.company;
        if let (Some(part), Some(from)) = (company.part_of(own.arena), company.part_of(wait.stream))
            && self.replay.tape.is_on()
            && company.is_same(wait.covers)
        {
            company.waited.learn(part, from, wait.covers.calls);
        }
    }
}
