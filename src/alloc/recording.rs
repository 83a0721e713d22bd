//! The latest calls of the program, as many as a round has, and by which blocks what is in use now differs from what was in use before
//! them. By none: then the round is *whole*, and may come again with the same blocks.
//!
//! How many calls a round has is known about, and found by looking for the latest ones among those so long ago: or twice as long,
//! three times, four times, where rounds take turns (batches of several lengths).
//!
//! That the same places are in use is not enough: two blocks of a length may have changed places, and the next call frees one of them. So
//! a block is told by the turn at which it came, too.
//!
//! The window slides: where a block that lasts from one round to the next has another place each time, rounds may be whole from
//! another call on. If none is, the window is made twice as long: two blocks may take turns.
//!
//! No lock of its own: the heap's.

use super::rounds::{ALIKE, Calls};
use super::tape::{Progress, STEPS, Step};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// So many times as many calls as a window has are recorded in vain until that is given up.
const TRIES: usize = 3;
/// So many rounds take turns at most...
const TURNS: usize = 4;
/// ...and of no more calls together, unless there is one.
const MANY: usize = 1 << 13;
/// So many blocks that last take turns at most.
const PLACES: usize = 2;
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

/// A block came before anything was recorded.
const BEFORE: usize = usize::MAX;

/// A call, and the block that it is about.
#[derive(Clone, Copy, Debug)]
struct Note {
    step: Step,
    block: Extent,
    /// The call by which the block came.
    came: usize,
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
    /// Notes when the window got its length.
    since: usize,
    /// How many calls a round has is known: they are so long ago.
    exact: bool,
    /// They were not found after so many rounds.
    turns: usize,
    /// Windows were whole, but pages were mapped.
    alike: bool,
    /// By which calls blocks came that are in use.
    came: FxHashMap<u64, usize>,
    /// Blocks that were in use before the window and are not now, and the other way round, once its length is known; each with its turn.
    gone: FxHashMap<u64, (Extent, usize)>,
    born: FxHashMap<u64, (Extent, usize)>,
}

impl Recording {
    /// Of rounds of so many calls; none if they are too long, or of none.
    pub fn new(round: u64) -> Option<Recording> {
        let round = usize::try_from(round)
            .ok()
            .filter(|round| (1..=STEPS).contains(round))?;
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
            false => {
                let about = (self.turns + 1) * self.round;
                about + near(about) + 2 * LAST
            }
        }
    }

    fn make_room(&mut self) {
        let most = self.most();
        self.notes.reserve(most + 1 - self.notes.len());
        self.came.reserve(most);
        if self.exact {
            self.gone.reserve(most);
            self.born.reserve(most);
        }
    }

    /// Notes a call. A block's free is noted before, and all else after it was done.
    pub fn note(&mut self, step: Step, block: Extent, changes: u64) {
        if self.notes.len() == self.most() {
            self.drop_oldest();
        }
        let Done { calls, more } = self.notes.back().map_or_else(Done::default, Note::after);
        let came = match step {
            Step::Alloc { at, .. } => {
                self.came.insert(at, self.made);
                self.made
            }
            Step::Free { at, .. } => self.came.remove(&at).unwrap_or(BEFORE),
        };
        let note = Note {
            step,
            block,
            came,
            before: calls,
            more,
            changes,
        };
        self.notes.push_back(note);
        if self.exact {
            self.differ(note, false);
        }
        self.made += 1;
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.notes.pop_front()
            && self.exact
        {
            self.differ(oldest, true);
        }
    }

    /// The window has so many calls from now on.
    fn set_window(&mut self, window: usize) {
        (self.window, self.exact, self.since) = (window, true, self.made);
        while self.notes.len() > window {
            self.notes.pop_front();
        }
        self.make_room();
        self.gone.clear();
        self.born.clear();
        for number in 0..self.notes.len() {
            self.differ(self.notes[number], false);
        }
    }

    /// How many calls ago was the same done as just now? About so many.
    fn period(&self, about: usize) -> Option<usize> {
        let last = self.notes.len() - 1;
        let calls = LAST.min(self.round);
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
        let near = (0..=near(about)).flat_map(|off| [about + off, about - off]);
        near.filter(|&ago| ago > 0).find(matches)
    }

    /// Before an allocation: is the window whole, and were the mappings all the time as they are now?
    pub fn is_whole(&mut self, changes: u64) -> bool {
        let full = self.exact && self.notes.len() == self.window;
        if !full || !self.gone.is_empty() || !self.born.is_empty() {
            return false;
        }
        self.alike = true;
        self.notes.front().is_some_and(|first| first.changes == changes)
    }

    /// Is it worth recording more?
    pub fn goes_on(&mut self) -> bool {
        if !self.exact {
            return self.finds_period();
        }
        if self.made >= self.since + TRIES * self.window {
            let window = 2 * self.window;
            if self.alike || window > (PLACES * self.round).min(STEPS) {
                return false;
            }
            self.set_window(window);
        }
        true
    }

    /// False: it is not to be found.
    fn finds_period(&mut self) -> bool {
        let about = (self.turns + 1) * self.round;
        if self.notes.len() < about + near(about) + LAST.min(self.round) {
            return true;
        }
        let Some(period) = self.period(about) else {
            self.turns += 1;
            self.make_room();
            return self.turns < TURNS && about + self.round <= MANY;
        };
        if period <= STEPS {
            self.round = period;
            self.set_window(period);
        }
        self.exact
    }

    /// Is it known how many calls a round has?
    pub fn has_period(&self) -> bool {
        self.exact
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
    fn differ(&mut self, note: Note, before: bool) {
        let (at, comes) = match note.step {
            Step::Alloc { at, .. } => (at, !before),
            Step::Free { at, .. } => (at, before),
        };
        let turn = match note.came {
            BEFORE => BEFORE,
            came => came % self.window,
        };
        let block = (note.block, turn);
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
            self.differ(self.notes[number], false);
        }
        [&mut self.gone, &mut self.born].map(|blocks| {
            let mut blocks: Vec<(u64, Extent)> = blocks.drain().map(|(at, block)| (at, block.0)).collect();
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

    /// Two blocks of a length that change places: the places in use are the same, and yet the next free is of another one.
    #[test]
    fn blocks_that_change_places_are_not_the_same() {
        let mut recording = Recording::new(4).expect("short");
        let mut whole = Vec::new();
        // each round frees both, and gets them again the other way round
        let (mut one, mut other) = (1, 2);
        for _ in 0..8 {
            free(&mut recording, one);
            whole.push(alloc(&mut recording, one));
            free(&mut recording, other);
            whole.push(alloc(&mut recording, other));
            std::mem::swap(&mut one, &mut other);
        }
        let first = whole.iter().position(|&whole| whole);
        assert!(first.is_none_or(|_| recording.window == 8), "{whole:?}");
    }

    #[test]
    fn blocks_that_take_turns_are_found_in_a_window_of_two_rounds() {
        let mut recording = Recording::new(2).expect("short");
        // the next one comes before the last one goes: 1, 2, 1, 2
        alloc(&mut recording, 1);
        let mut whole = None;
        for call in 0..12 {
            let (next, last) = if call % 2 == 0 { (2, 1) } else { (1, 2) };
            let steps = recording.steps().len();
            if alloc(&mut recording, next) {
                whole = whole.or(Some(steps));
            }
            free(&mut recording, last);
        }
        assert_eq!(whole, Some(4));
    }

    /// Rounds of so many calls, thought to have about as many, in which blocks of some lengths come and go. How many calls the window
    /// has that is whole.
    fn found(about: u64, lengths: u64) -> Option<usize> {
        let mut recording = Recording::new(about).expect("short");
        for call in 0..1000 {
            if recording.is_whole(0) {
                return Some(recording.steps().len());
            }
            if !recording.goes_on() {
                return None;
            }
            let bytes = call % lengths;
            recording.note(Step::Alloc { bytes, at: 512 }, BLOCK, 0);
            recording.note(Step::Free { bytes: 512, at: 512 }, BLOCK, 0);
        }
        None
    }

    #[test]
    fn how_many_calls_a_round_has_is_found() {
        assert_eq!(found(104, 52), Some(104));
        assert_eq!(found(100, 52), Some(104), "about so many");
        assert_eq!(found(104, 3 * 52), Some(3 * 104), "rounds take turns");
        assert_eq!(found(104, 1000), None, "nothing comes again");
    }

    #[test]
    fn a_window_in_which_pages_were_mapped_is_not_whole() {
        let mut recording = Recording::new(2).expect("short");
        for changes in [0, 0, 1] {
            assert!(!recording.is_whole(1) && recording.goes_on());
            recording.note(Step::Alloc { bytes: 1, at: 1 }, BLOCK, changes);
            recording.note(Step::Free { bytes: 512, at: 1 }, BLOCK, changes);
        }
        assert!(recording.goes_on() && recording.is_whole(1));
    }

    #[test]
    fn what_was_done_is_counted_and_differs_by_the_blocks_of_the_last_round() {
        let mut recording = Recording::new(4).expect("short");
        for _ in 0..2 {
            alloc(&mut recording, 1);
            alloc(&mut recording, 2);
            free(&mut recording, 1);
            free(&mut recording, 2);
        }
        assert!(recording.goes_on() && recording.is_whole(0));
        let progress = Progress { rounds: 2, steps: 3 };
        let done = recording.done(progress);
        let calls = Calls { allocs: 6, frees: 5 };
        assert_eq!((done.calls, done.more), (calls, 512));
        let [gone, born] = recording.difference(progress.steps);
        assert_eq!((gone, born), (vec![], vec![(2, BLOCK)]));
    }
}
