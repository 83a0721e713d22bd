//! The latest calls of the program, as many as a round has, and by which blocks what is in use now differs from what was in use before
//! them. By none: then the round is *whole*, and may come again with the same blocks.
//!
//! The window slides: where a block that lasts from one round to the next has another place each time, rounds may be whole from
//! another call on. If none is, the window is made twice as long: two blocks may take turns.
//!
//! No lock of its own: the heap's.

use super::rounds::{ALIKE, Calls};
use super::tape::{Progress, STEPS, Step};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// So many times as many calls are recorded as the round has, in vain, until that is given up...
const TRIES: usize = 4;
/// ...and a window is no longer than so many rounds.
const ROUNDS: usize = 2;

/// Calls that are the same are part of the same round if so many in a row are.
const LAST: usize = 64;

/// A round of about so many calls may have so many more or less.
fn near(round: usize) -> usize {
    round / ALIKE as usize
}

/// A block as the books had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length, as rounded up.
    pub bytes: u64,
    /// Where its slab begins, if it is of one.
    pub slab: Option<u64>,
}

/// A call, and the block that it is about.
#[derive(Clone, Copy, Debug)]
struct Note {
    step: Step,
    block: Extent,
    /// All calls noted before it, and the bytes that they left in use.
    before: Calls,
    more: i64,
    /// Changes of mappings until then.
    changes: u64,
}

/// What calls have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// How many there were.
    pub calls: Calls,
    /// Bytes that they left in use.
    pub more: i64,
}

/// The latest calls.
#[derive(Debug, Default)]
pub struct Recording {
    notes: VecDeque<Note>,
    /// Notes that are kept, and of a round as it was first seen.
    window: usize,
    round: usize,
    /// Notes that were made.
    made: usize,
    /// How many calls a round has is known as well as it can be.
    exact: bool,
    /// Windows were whole, but pages were mapped.
    alike: bool,
    /// Blocks that were in use before the window and are not now, and the other way round.
    gone: FxHashMap<u64, Extent>,
    born: FxHashMap<u64, Extent>,
}

impl Recording {
    /// Of rounds of so many calls; none if they are too long.
    pub fn new(round: u64) -> Option<Recording> {
        let round = usize::try_from(round).ok().filter(|&round| round <= STEPS)?;
        let mut recording = Recording {
            window: round,
            round,
            ..Recording::default()
        };
        recording.make_room();
        Some(recording)
    }

    /// Notes that are kept at most: a free allocates nothing.
    fn most(&self) -> usize {
        match self.exact {
            true => self.window,
            false => self.window + near(self.window) + 2 * LAST,
        }
    }

    fn make_room(&mut self) {
        let most = self.most();
        self.notes.reserve(most + 1 - self.notes.len());
        self.gone.reserve(most);
        self.born.reserve(most);
    }

    /// Notes a call. A block's free is noted before, and all else after it was done.
    pub fn note(&mut self, step: Step, block: Extent, changes: u64) {
        if self.notes.len() == self.most() {
            self.drop_oldest();
        }
        let Done { calls, more } = self.notes.back().map_or_else(Done::default, Note::after);
        self.notes.push_back(Note {
            step,
            block,
            before: calls,
            more,
            changes,
        });
        self.differ(step, block, false);
        self.made += 1;
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.notes.pop_front() {
            self.differ(oldest.step, oldest.block, true);
        }
    }

    /// How many calls ago was the same done as just now? About as many as a round was thought to have.
    fn period(&self) -> Option<usize> {
        let last = self.notes.len() - 1;
        let (near, calls) = (near(self.round), LAST.min(self.round));
        let same = |one: &Note, other: &Note| match (one.step, other.step) {
            (Step::Alloc { bytes, .. }, Step::Alloc { bytes: other, .. }) => bytes == other,
            (Step::Free { .. }, Step::Free { .. }) => one.block.bytes == other.block.bytes,
            _ => false,
        };
        let matches = |&ago: &usize| {
            let pairs = (0..calls).map(|back| last - back);
            pairs
                .clone()
                .all(|at| at >= ago && same(&self.notes[at], &self.notes[at - ago]))
        };
        // what was thought first, then what is more and less
        let near = (0..=near).flat_map(|off| [self.round + off, self.round.saturating_sub(off)]);
        near.filter(|&ago| ago > 0).find(matches)
    }

    /// Before an allocation: is the window whole, and were the mappings all the time as they are now?
    pub fn is_whole(&mut self, changes: u64) -> bool {
        let full = self.notes.len() == self.window;
        if !full || !self.gone.is_empty() || !self.born.is_empty() {
            return false;
        }
        self.alike = true;
        self.notes.front().is_some_and(|first| first.changes == changes)
    }

    /// Is it worth recording more?
    pub fn goes_on(&mut self) -> bool {
        if !self.exact && self.notes.len() >= self.round + near(self.round) + LAST.min(self.round) {
            let Some(period) = self.period() else {
                return false;
            };
            (self.window, self.round, self.exact) = (period, period, true);
            while self.notes.len() > period {
                self.drop_oldest();
            }
        }
        if self.exact && self.made >= 2 * self.window && !self.alike {
            let window = 2 * self.window;
            if window <= (ROUNDS * self.round).min(STEPS) {
                self.window = window;
                self.make_room();
            }
        }
        self.made < TRIES * self.round
    }

    /// Calls of a round.
    pub fn round(&self) -> u64 {
        self.round as u64
    }

    /// Calls noted.
    pub fn made(&self) -> u64 {
        self.made as u64
    }

    /// The calls of the window.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = Step> + '_ {
        self.notes.iter().map(|note| note.step)
    }

    /// A call has brought a block into use or out of it: now, or before the window.
    fn differ(&mut self, step: Step, block: Extent, before: bool) {
        let (at, comes) = match step {
            Step::Alloc { at, .. } => (at, !before),
            Step::Free { at, .. } => (at, before),
        };
        let (out, into) = match comes {
            true => (&mut self.gone, &mut self.born),
            false => (&mut self.born, &mut self.gone),
        };
        match out.get(&at) {
            Some(same) if *same == block => drop(out.remove(&at)),
            _ => drop(into.insert(at, block)),
        }
    }

    /// What was done if a whole window was repeated up to there.
    pub fn done(&self, progress: Progress) -> Done {
        let Some(first) = self.notes.front() else {
            return Done::default();
        };
        let until = |done: Done| Done {
            calls: done.calls.since(first.before),
            more: done.more - first.more,
        };
        let round = self
            .notes
            .back()
            .map_or_else(Done::default, |last| until(last.after()));
        let next = self.notes.get(progress.steps);
        let part = next.map_or_else(Done::default, |next| until(next.until()));
        let all = |round: u64, part: u64| progress.rounds.wrapping_mul(round).wrapping_add(part);
        Done {
            calls: Calls {
                allocs: all(round.calls.allocs, part.calls.allocs),
                frees: all(round.calls.frees, part.calls.frees),
            },
            more: part.more,
        }
    }

    /// Blocks that are in use before the first call of a whole window and not before that one, and the other way round, by address.
    pub fn difference(&mut self, steps: usize) -> [Vec<(u64, Extent)>; 2] {
        for number in 0..steps {
            let Note { step, block, .. } = self.notes[number];
            self.differ(step, block, false);
        }
        [&mut self.gone, &mut self.born].map(|blocks| {
            let mut blocks: Vec<(u64, Extent)> = blocks.drain().collect();
            blocks.sort_unstable_by_key(|block| block.0);
            blocks
        })
    }
}

impl Note {
    fn until(&self) -> Done {
        Done {
            calls: self.before,
            more: self.more,
        }
    }

    fn after(&self) -> Done {
        let (mut done, bytes) = (self.until(), self.block.bytes as i64);
        match self.step {
            Step::Alloc { .. } => {
                done.calls.allocs += 1;
                done.more += bytes;
            }
            Step::Free { .. } => {
                done.calls.frees += 1;
                done.more -= bytes;
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Extent = Extent {
        bytes: 512,
        slab: None,
    };

    /// As the heap does: gives whether the window was whole before.
    fn alloc(recording: &mut Recording, at: u64) -> bool {
        let whole = recording.is_whole(0);
        assert!(whole || recording.goes_on());
        recording.note(Step::Alloc { bytes: 1, at }, BLOCK, 0);
        whole
    }

    fn free(recording: &mut Recording, at: u64) {
        recording.note(Step::Free { bytes: 512, at }, BLOCK, 0);
    }

    #[test]
    fn a_window_is_whole_from_the_call_on_before_which_nothing_takes_turns() {
        let mut recording = Recording::new(4).expect("short");
        // one block lasts over the first call, at another place each time
        let mut whole = Vec::new();
        for round in 0..5 {
            free(&mut recording, round + 1);
            whole.push(alloc(&mut recording, 9));
            free(&mut recording, 9);
            whole.push(alloc(&mut recording, round + 2));
        }
        let first = whole.iter().position(|&whole| whole);
        assert!(
            first.is_some_and(|first| first < 8),
            "between two blocks there is nothing: {whole:?}"
        );
    }

    #[test]
    fn blocks_that_take_turns_are_found_in_a_window_of_two_rounds() {
        let mut recording = Recording::new(2).expect("short");
        // the next one comes before the last one goes: 1, 2, 1, 2
        alloc(&mut recording, 1);
        let mut whole = None;
        for call in 0..6 {
            let (next, last) = if call % 2 == 0 { (2, 1) } else { (1, 2) };
            let steps = recording.steps().len();
            if alloc(&mut recording, next) {
                whole = whole.or(Some(steps));
            }
            free(&mut recording, last);
        }
        assert_eq!(whole, Some(4));
    }

    #[test]
    fn a_round_of_about_so_many_calls_is_found_as_it_is() {
        let mut recording = Recording::new(100).expect("short");
        let mut whole = None;
        let mut call = 0;
        while whole.is_none() {
            // 52 blocks of as many lengths
            let bytes = call % 52;
            if recording.is_whole(0) {
                whole = Some(recording.steps().len());
            }
            assert!(whole.is_some() || recording.goes_on());
            recording.note(Step::Alloc { bytes, at: 512 }, BLOCK, 0);
            recording.note(Step::Free { bytes: 512, at: 512 }, BLOCK, 0);
            call += 1;
        }
        // after a hundred calls nothing is in use, either
        assert!(whole == Some(100) || whole == Some(104), "{whole:?}");
    }

    #[test]
    fn a_window_in_which_pages_were_mapped_is_not_whole() {
        let mut recording = Recording::new(2).expect("short");
        for changes in [0, 1] {
            assert!(!recording.is_whole(1));
            recording.note(Step::Alloc { bytes: 1, at: 1 }, BLOCK, changes);
            recording.note(Step::Free { bytes: 512, at: 1 }, BLOCK, changes);
        }
        assert!(recording.goes_on() && recording.is_whole(1));
    }

    #[test]
    fn what_was_done_is_counted_and_differs_by_the_blocks_of_the_last_round() {
        let mut recording = Recording::new(4).expect("short");
        alloc(&mut recording, 1);
        alloc(&mut recording, 2);
        free(&mut recording, 1);
        free(&mut recording, 2);
        assert!(recording.is_whole(0));
        let progress = Progress { rounds: 2, steps: 3 };
        let done = recording.done(progress);
        let calls = Calls { allocs: 6, frees: 5 };
        assert_eq!((done.calls, done.more), (calls, 512));
        let [gone, born] = recording.difference(progress.steps);
        assert_eq!((gone, born), (vec![], vec![(2, BLOCK)]));
    }
}
