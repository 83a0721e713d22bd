//! What the streams of a replay know of each other because they wait for each other on the device.
//!
//! Where memory is shared by waits (`sharing`) a call that takes over what another stream used last (`takeover`) need not find that
//! stream's work complete: its own stream waits for an event recorded since, and what is queued on it from then on comes after that work. So
//! what is known is known to one stream, not to all: each needs events for what it takes over itself. Where it is shared by looks a stream
//! waits, too, if another one is late, as long as that is seldom: to end the replay costs milliseconds, and rounds that move pages until
//! the next one begins. Where it is not, streams had better not share (`sharing`), which only the books can tell. What a replay was not late
//! it may be later, since streams that are about as fast as the host are late many times in one round and in none of the next ten. On streams
//! beyond reach there an event is for all, and none waits.
//!
//! Vector clocks (Fidge, "Timestamps in message-passing systems that preserve the partial ordering", 1988) whose numbers are calls of the
//! replay; what a stream could know through a third one is not counted.
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::company::{MANY, Replayed};
use super::heap::Heap;
use crate::backend::Event;

/// So often is a stream late that is looked at, for each round of a replay, before that ends...
const LATE: u64 = 4;
/// ...and so many rounds' worth of it may come at once.
const SAVED: u64 = 16;

/// Of each part, for which of another's calls, the first so many, its stream waits.
#[derive(Debug, Default)]
pub(super) struct Waited {
    calls: [[u64; MANY]; MANY],
    /// How often a stream may be late from now on...
    left: u64,
    /// ...for so many rounds that have begun.
    rounds: u64,
}

impl Waited {
    /// A part's stream waits for what another one did in its first so many calls.
    fn learn(&mut self, part: usize, from: usize, calls: u64) {
        let known = &mut self.calls[part][from];
        *known = calls.max(*known);
    }

    /// A stream is late after so many rounds: may another one wait for it?
    fn may_be_late(&mut self, rounds: u64) -> bool {
        let begun = rounds + 1;
        let earned = (begun - self.rounds) * LATE;
        let left = (self.left + earned).min(LATE * SAVED);
        (self.left, self.rounds) = (left.saturating_sub(1), begun);
        left > 0
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
    fn a_stream_may_be_late_now_and_then() {
        let mut waited = Waited::default();
        let mut times = |rounds| (0..1000).take_while(|_| waited.may_be_late(rounds)).count() as u64;
        assert_eq!(times(0), LATE);
        assert_eq!(times(1), LATE);
        assert_eq!(times(7), 6 * LATE, "it was not in five of them");
        assert_eq!(times(1007), SAVED * LATE);
        assert_eq!(times(1007), 0);
    }

    #[test]
    fn what_one_part_waits_for_no_other_knows() {
        let mut waited = Waited::default();
        waited.learn(1, 0, 40);
        waited.learn(1, 0, 30);
        assert_eq!((waited.of(1, 0), waited.of(0, 1), waited.of(2, 0)), (40, 0, 0));
    }
}
