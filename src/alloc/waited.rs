//! What the streams of a replay know of each other because they wait for each other on the device.
//!
//! Where memory is shared by waits (`sharing`) a call that takes over what another stream used last (`takeover`) need not find that
//! stream's work complete: its own stream waits for an event recorded since, and what is queued on it from then on comes after that work. So
//! what is known is known to one stream, not to all: each needs events for what it takes over itself. Where it is shared by looks a stream
//! waits, too, if another one is late, as long as that is seldom: to end the replay costs milliseconds. Where it is not, streams had better
//! not share (`sharing`), which only the books can tell. On streams beyond reach there an event is for all, and none waits.
//!
//! Vector clocks (Fidge, "Timestamps in message-passing systems that preserve the partial ordering", 1988) whose numbers are calls of the
//! replay; what a stream could know through a third one is not counted.
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::company::{MANY, Replayed};
use super::heap::Heap;
use crate::backend::Event;

/// So often in a round is a stream late that is looked at, before the replay ends.
const LATE: u32 = 4;

/// Of each part, for which of another's calls, the first so many, its stream waits.
#[derive(Debug, Default)]
pub(super) struct Waited {
    calls: [[u64; MANY]; MANY],
    /// Waits of a round.
    late: (u64, u32),
}

impl Waited {
    /// A part's stream waits for what another one did in its first so many calls.
    fn learn(&mut self, part: usize, from: usize, calls: u64) {
        let known = &mut self.calls[part][from];
        *known = calls.max(*known);
    }

    /// A stream is late in that round: may another one wait for it?
    fn may_be_late(&mut self, round: u64) -> bool {
        if self.late.0 != round {
            self.late = (round, 0);
        }
        self.late.1 += 1;
        self.late.1 <= LATE
    }

    /// For how many of them?
    pub(super) fn of(&self, part: usize, from: usize) -> u64 {
        self.calls[part][from]
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
        self.replay.is_on() && self.replay.company.by_waits
    }

    /// May a stream wait for what its next call takes over?
    pub fn may_wait_in_replay(&mut self) -> bool {
        let Some(progress) = self.replay.tape.progress() else {
            return false;
        };
        let company = &mut self.replay.company;
        if !self.reuse.internal_dependencies || !company.by_pairs {
            return false;
        }
        let may = company.by_waits || company.waited.may_be_late(progress.rounds);
        if !may {
            self.sharing.found_busy();
        }
        may
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_may_be_late_so_often_in_a_round() {
        let mut waited = Waited::default();
        for round in [0, 1, 7] {
            let may = (0..LATE + 2).map(|_| waited.may_be_late(round));
            assert_eq!(may.filter(|&may| may).count(), LATE as usize);
        }
    }

    #[test]
    fn what_one_part_waits_for_no_other_knows() {
        let mut waited = Waited::default();
        waited.learn(1, 0, 40);
        waited.learn(1, 0, 30);
        assert_eq!((waited.of(1, 0), waited.of(0, 1), waited.of(2, 0)), (40, 0, 0));
    }
}
