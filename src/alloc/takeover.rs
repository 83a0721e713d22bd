//! What the streams of a round that several make (`company`) take over from each other: found before it is replayed.
//!
//! A call that *takes over* memory which another one used last needs an event of that stream's, recorded since, that is complete. Where
//! the pool can record one at any time that is done in the call itself, and covers the most; elsewhere it is done in the last of
//! that stream's frees before, at the latest in the one that let the memory go. So each needs a point within an interval, and those that take
//! the last point of the first one to end need the fewest (Gupta, Lee, Leung, "Efficient algorithms for interval graphs and circular-arc
//! graphs", 1982). Whoever comes after an event was seen to be complete that covers what he takes over asks nothing. Where streams wait for
//! each other (`waited`) an event is of use to the stream that waits for it alone.
//!
//! No lock of its own: the heap's.

use super::company::MANY;
use super::guests::reach;
use super::heap::Heap;
use super::note::Note;
use super::tape::Step;
use super::uses::{Part, Uses};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;

/// So many parts of pages are looked at to find out what is taken over, some tens of milliseconds.
const WORK: usize = 1 << 21;

/// A call takes over what another part used last, so many calls before it. The event that tells whether it may is recorded in that part's
/// free so many calls before it, or, if that is 0, in the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Takeover {
    pub(super) step: usize,
    /// Whom events are for: the part of the call, or 0, which is the host, for all.
    pub(super) by: usize,
    pub(super) from: usize,
    pub(super) ago: usize,
    pub(super) event: usize,
}

impl Takeover {
    /// In which call of a round of so many the event is recorded, if it is not this one.
    pub(super) fn event_step(&self, round: usize) -> Option<usize> {
        (self.event > 0).then(|| (self.step + round - self.event) % round)
    }

    /// Is that one of the round before?
    pub(super) fn waits_for_round_before(&self) -> bool {
        self.event > self.step
    }

    /// All before this call, of the round's first call on, is covered by the event.
    fn covers(&self) -> i64 {
        self.step as i64 - self.event.saturating_sub(1) as i64
    }
}

/// The parts of pages behind the block of each call, all of its slab if it is of one.
#[derive(Debug, Default)]
pub(super) struct Touches {
    /// Once for each block.
    pub(super) parts: Vec<Part>,
    /// Which of them a call touches.
    by_call: Vec<Range<usize>>,
}

impl Touches {
    /// By the call of that number.
    fn of(&self, step: usize) -> &[Part] {
        &self.parts[self.by_call[step].clone()]
    }

    /// Who used what last when so many of the round's calls were made, and all before them.
    fn latest_uses(&self, steps: usize) -> Uses {
        let mut uses = Uses::default();
        for step in (steps..self.by_call.len()).chain(0..steps) {
            self.use_by(step, &mut uses);
        }
        uses
    }

    fn use_by(&self, step: usize, uses: &mut Uses) {
        for &part in self.of(step) {
            uses.set(part, step);
        }
    }
}

/// Those of them, by step, that need an event of their own in each round, recorded so many calls before. It has to cover what the others
/// take over, too. None: there is none for one of them.
fn thin_out(takeovers: Vec<Takeover>, event: impl Fn(&Takeover) -> Option<usize>) -> Option<Vec<Takeover>> {
    let mut needed: Vec<Takeover> = Vec::new();
    let mut latest: [[Option<usize>; MANY]; MANY] = Default::default();
    for mut takeover in takeovers {
        // before the first call of the round, if it is less than 0
        let used = takeover.step as i64 - takeover.ago as i64;
        let before = latest[takeover.by][takeover.from].map(|before| &mut needed[before]);
        match before.filter(|before| before.covers() > used) {
            Some(before) => before.ago = before.ago.min((before.step as i64 - used) as usize),
            None => {
                takeover.event = event(&takeover).filter(|&event| event <= takeover.ago)?;
                latest[takeover.by][takeover.from] = Some(needed.len());
                needed.push(takeover);
            }
        }
    }
    Some(needed)
}

/// Of these frees of a round of so many calls the last one before this call: so many calls before it.
fn last_free(frees: &[usize], step: usize, round: usize) -> Option<usize> {
    match frees.partition_point(|&free| free < step) {
        0 => Some(step + round - frees.last()?),
        before => Some(step - frees[before - 1]),
    }
}

impl Heap {
    /// What is taken over in a round that touches this. None: a slab's block is freed on another stream than the slab's, or it takes too long to find out.
    pub(super) fn find_takeovers(&self, notes: &VecDeque<Note>, touches: &Touches) -> Option<Vec<Takeover>> {
        if !self.are_slabs_freed_at_home(notes) {
            return None;
        }
        debug_assert_eq!(
            touches.by_call.len(),
            notes.len(),
            "streams that make a round together are several"
        );
        if touches.by_call.iter().map(Range::len).sum::<usize>() > WORK {
            return None;
        }
        let mut uses = touches.latest_uses(0);
        let by_pairs = self.takes_over_by_pairs();
        let mut takeovers = Vec::new();
        for (step, note) in notes.iter().enumerate() {
            let mut ago = [0; MANY];
            if let Step::Alloc { .. } = note.step() {
                let users = touches.of(step).iter().flat_map(|&part| uses.of(part));
                let others = users.filter(|&(_, _, last)| notes[last].part() != note.part());
                for (_, _, last) in others {
                    // a call of this number is one of the round before
                    let since = (step + notes.len() - last - 1) % notes.len() + 1;
                    let ago = &mut ago[notes[last].part()];
                    *ago = match *ago {
                        0 => since,
                        before => since.min(before),
                    };
                }
            }
            touches.use_by(step, &mut uses);
            let from = ago.into_iter().enumerate().filter(|&(_, ago)| ago > 0);
            let by = if by_pairs { note.part() } else { 0 };
            takeovers.extend(from.map(|(from, ago)| Takeover {
                step,
                by,
                from,
                ago,
                event: 0,
            }));
        }
        let mut frees: [Vec<usize>; MANY] = Default::default();
        for (step, note) in notes.iter().enumerate() {
            if let Step::Free { .. } = note.step() {
                frees[note.part()].push(step);
            }
        }
        let members = self.replay.company.members();
        thin_out(takeovers, |takeover| {
            match self.is_beyond_reach(members[takeover.from]) {
                true => last_free(&frees[takeover.from], takeover.step, notes.len()),
                false => Some(0),
            }
        })
    }

    /// Is each stream told from all others, so that it may wait for one by itself? Events in frees would be more.
    pub(super) fn takes_over_by_pairs(&self) -> bool {
        let members = self.replay.company.members();
        self.sharing.is_by_waits() || !members.iter().any(|&stream| self.is_beyond_reach(stream))
    }

    /// Does nobody free a slab's block but the stream whose slab it is?
    fn are_slabs_freed_at_home(&self, notes: &VecDeque<Note>) -> bool {
        let owner = |slab: u64| self.replay.company.part_of(self.slab_owner(slab)?);
        let mut owners: FxHashMap<u64, Option<usize>> = FxHashMap::default();
        notes.iter().all(|note| {
            let Some(slab) = note.block().slab else {
                return true;
            };
            match note.step() {
                Step::Alloc { .. } => {
                    owners.insert(slab, Some(note.part()));
                    true
                }
                Step::Free { .. } => *owners.entry(slab).or_insert_with(|| owner(slab)) == Some(note.part()),
            }
        })
    }

    /// Who used what last, when so many of the round's calls were made.
    pub(super) fn latest_uses(&self, notes: &VecDeque<Note>, steps: usize) -> Uses {
        self.touches(notes).latest_uses(steps)
    }

    /// What calls touch.
    pub(super) fn touches(&self, notes: &VecDeque<Note>) -> Touches {
        let mut known: FxHashMap<(u64, u64), Range<usize>> = FxHashMap::default();
        let mut parts = Vec::new();
        let mut add = |(at, bytes)| {
            let first = parts.len();
            parts.extend(self.parts(at, bytes));
            first..parts.len()
        };
        let blocks = notes.iter().map(|note| reach(note.block(), note.at));
        let by_call = blocks.map(|block| known.entry(block).or_insert_with(|| add(block)).clone());
        let by_call = by_call.collect();
        Touches { parts, by_call }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takeover(step: usize, from: usize, ago: usize, event: usize) -> Takeover {
        Takeover {
            step,
            by: 0,
            from,
            ago,
            event,
        }
    }

    #[test]
    fn one_event_covers_all_that_was_used_before_it() {
        let all = [
            (3, 0, 8),
            (5, 0, 4), // used by call 1: the event in call 3 has to cover that
            (6, 1, 1),
            (7, 0, 4), // used by call 3 itself, which comes after its event
            (9, 0, 5),
        ];
        let all = all.map(|(step, from, ago)| takeover(step, from, ago, 0));
        let needed = [takeover(3, 0, 2, 0), takeover(6, 1, 1, 0), takeover(7, 0, 3, 0)];
        assert_eq!(thin_out(all.to_vec(), |_| Some(0)), Some(needed.to_vec()));
    }

    /// Where events are recorded in frees only each is in the last one before.
    #[test]
    fn an_event_in_a_free_covers_that_and_all_before() {
        const ROUND: usize = 20;
        let frees = [4, 6, 9, 15];
        let all = [
            (2, 0, 7),  // freed by call 15 of the round before, which is the last one
            (3, 0, 14), // call 9 of that, seen by then
            (5, 0, 1),  // call 4
            (7, 0, 3),  // the same
            (8, 0, 2),  // call 6
            (12, 0, 6), // the same
            (14, 0, 5), // call 9
        ];
        let all = all.map(|(step, from, ago)| takeover(step, from, ago, 0));
        let needed = [
            takeover(2, 0, 7, 7),
            takeover(5, 0, 1, 1),
            takeover(8, 0, 2, 2),
            takeover(14, 0, 5, 5),
        ];
        let event = |takeover: &Takeover| last_free(&frees, takeover.step, ROUND);
        let found = thin_out(all.to_vec(), event);
        assert_eq!(found, Some(needed.to_vec()));
        assert_eq!(
            thin_out(vec![takeover(5, 0, 0, 0)], event),
            None,
            "no free comes after that"
        );
        let events = needed.map(|takeover| takeover.event_step(ROUND));
        assert_eq!(events, [Some(15), Some(4), Some(6), Some(9)]);
        let before = needed.map(|takeover| takeover.waits_for_round_before());
        assert_eq!(before, [true, false, false, false]);
    }
}
