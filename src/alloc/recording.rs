//! The latest calls of the program, as many as a round has, and by which blocks what is in use now differs from what was in use before
//! them. By none: then the round is *whole*, and may come again with the same blocks.
//!
//! If there were as many calls as the round before had it is guessed that the next ones are the same again; of a wrong guess the recording
//! knows nothing afterwards.
//!
//! How many calls a round has is known about, and found by looking for the latest ones among those so long ago: or twice as long,
//! three times, four times, where rounds take turns (batches of several lengths).
//!
//! Whether the same places are in use is told by a sum of hashes, to which each block adds when it comes, and of which it takes away when it
//! goes (Bellare, Micciancio, "A new paradigm for collision-free hashing", 1997); then by the blocks themselves.
//!
//! That is not enough: two blocks of a length may have changed places, and the next call frees one of them. So
//! a block is told by how many calls ago it came, too.
//!
//! The window slides: where a block that lasts from one round to the next has another place each time, rounds may be whole from
//! another call on. It is one round or several: a block that is kept until the next one is there goes to and fro between two places, and of so
//! many of a length that are each takes the place that the one before it left, so that all are where they were after one round more.
//!
//! No lock of its own: the heap's.

use super::difference::difference;
use super::guide::Guide;
use super::moves::Moves;
use super::note::{Done, Extent, Note, Sums};
use super::page::Changes;
use super::period::{LAST, is_same, near, period};
use super::tape::{Progress, STEPS, Step, part};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::mem;

/// So many times as many calls as a window has are recorded in vain until that is given up.
const TRIES: usize = 3;
/// So many rounds take turns at most...
pub const TURNS: usize = 4;
/// ...and of no more calls together, unless there is one.
const MANY: usize = 1 << 13;
/// Blocks that last are where they were after so many rounds at most, if these are no more than so many calls.
const PLACES: usize = 16;
/// They are led to where they were so many rounds ago at most, whose calls may be more.
const LED: usize = 2;
/// To map a page costs as much as to record so many calls, and more.
const DEAR: u64 = 64;
/// Whether blocks have changed places is looked at so often in a window.
const SELDOM: usize = 8;
/// Of a long round so small a part tells whether it has as many calls as it was thought to have.
const SOON: usize = 64;

/// The latest calls.
#[derive(Debug, Default)]
pub struct Recording {
    notes: VecDeque<Note>,
    /// Notes of the window, or of where blocks are led until there is one, and of a round as it was first seen.
    window: usize,
    round: usize,
    /// So much was in use when it began.
    begun_with: u64,
    /// Notes that are kept once it is known how many calls a round has.
    kept: usize,
    /// Notes that were made.
    made: usize,
    /// Notes when the window got its length, or since when so many were made in vain, and how many more are worth it.
    since: usize,
    tries: usize,
    /// How many calls a round has is known: they are so long ago.
    exact: bool,
    /// They were not found after so many rounds.
    turns: usize,
    /// Windows were whole, but mappings were removed.
    alike: bool,
    /// The first calls were taken for a round, or were none.
    guessed: bool,
    /// Changes of mappings, and the notes that were made when they were so many first, and when so many had been removed.
    changes: Changes,
    changed: usize,
    removed: usize,
    /// The same when one of the round's streams was found at work last by another one.
    vain: usize,
    before_tries: u64,
    moves: Moves,
    /// What was replayed, if that has ended and is recorded again.
    guide: Option<Guide>,
    /// By which calls blocks came that are in use.
    came: FxHashMap<u64, usize>,
    /// Hashes of the blocks that came less those of the blocks that went, once it is known how many calls a round has...
    sum: u64,
    /// ...and what they were before each note: the same if the same places are in use.
    sums: VecDeque<u64>,
    /// What is done by the window's calls, once it is repeated.
    repeated: Sums,
    /// Whether these are the same blocks, or as many calls as was thought, is not looked at until so many notes were made.
    look_from: usize,
}

impl Recording {
    /// Of rounds of so many calls, the first of which finds so much in use; none if they are too long, or of none.
    pub fn new(round: u64, used: u64) -> Option<Recording> {
        let round = usize::try_from(round)
            .ok()
            .filter(|round| (1..=STEPS).contains(round))?;
        let mut recording = Recording {
            window: round,
            round,
            begun_with: used,
            ..Recording::default()
        };
        recording.make_room();
        Some(recording)
    }

    /// Of calls of which it is guessed that they come again as a whole.
    pub fn of_round(notes: VecDeque<Note>) -> Recording {
        let made = notes.len();
        Recording {
            notes,
            window: made,
            round: made,
            made,
            ..Recording::default()
        }
    }

    /// The calls of the window.
    pub fn notes(&self) -> &VecDeque<Note> {
        &self.notes
    }

    /// The same.
    pub fn into_notes(self) -> VecDeque<Note> {
        self.notes
    }

    /// Notes that are kept at most: a free allocates nothing.
    fn most(&self) -> usize {
        match self.exact {
            true => self.kept,
            false => {
                let about = (self.turns + 1) * self.round;
                about + near(about) + 2 * LAST
            }
        }
    }

    fn make_room(&mut self) {
        let more = self.most() + 1 - self.notes.len();
        self.notes.reserve(more);
        if self.exact {
            self.sums.reserve(more);
        }
    }

    /// Notes a call on one of the round's streams. A block's free is noted before, and all else after it was done.
    pub fn note(&mut self, step: Step, part: usize, block: Extent, changes: Changes) {
        if self.notes.len() == self.most() {
            self.notes.pop_front();
            self.sums.pop_front();
        }
        if self.changes.removed != changes.removed {
            self.removed = self.made;
        }
        if self.changes != changes {
            (self.changes, self.changed) = (changes, self.made);
        }
        let age = match step {
            Step::Alloc { at, .. } => {
                self.came.insert(at, self.made);
                Some(0)
            }
            Step::Free { at, .. } => self.came.remove(&at).map(|came| self.made - came),
        };
        let note = Note::new(step, block, age).on(part);
        self.notes.push_back(note);
        if self.exact {
            self.add(note);
        }
        if let Some(guide) = &mut self.guide {
            guide.follow(step, part);
        }
        self.moves.look(self.made, self.round, changes, self.exact);
        self.made += 1;
    }

    /// To what is known of places.
    fn add(&mut self, note: Note) {
        self.sums.push_back(self.sum);
        self.sum = self.sum.wrapping_add(note.change());
    }

    /// Blocks are led to where they were so many calls ago from now on, and windows may be whole.
    fn set_window(&mut self, window: usize) {
        let known = mem::replace(&mut self.exact, true);
        self.window = window;
        self.kept = window.max((MANY / self.round).min(PLACES) * self.round);
        self.begin_tries();
        self.keep(self.kept);
        if !known {
            self.sums.reserve(self.kept + 1);
            (0..self.notes.len()).for_each(|number| self.add(self.notes[number]));
        }
        self.make_room();
        (self.alike, self.look_from) = (false, 0);
    }

    /// So many notes are kept, the latest.
    fn keep(&mut self, most: usize) {
        self.notes.drain(..self.notes.len().saturating_sub(most));
        self.sums.drain(..self.sums.len().saturating_sub(most));
    }

    /// The block that the same call got in the round before, if this is the same: so many bytes are asked for on that stream.
    pub fn before(&self, bytes: u64, part: usize) -> Option<(u64, Extent)> {
        if !self.moves.are_few(self.round) {
            return None;
        }
        if let Some(guide) = &self.guide {
            let note = guide.asks_for(bytes, part)?;
            return Some((note.at, note.block()));
        }
        // where blocks take turns the window is two rounds, and until so much is known the last one will do
        let made = self.notes.len();
        let number = made
            .checked_sub(self.window)
            .or_else(|| made.checked_sub(self.round));
        let number = number.filter(|_| self.exact)?;
        let note = self.notes.get(number)?;
        note.asks_for(bytes, part).then(|| (note.at, note.block()))
    }

    /// Before an allocation: have there been as many calls as a round had, and are the blocks in use those before them? The next ones may be
    /// the same again, of which the first that differs will tell. Not if pages were to be given back, and some were mapped or unmapped.
    pub fn guesses_round(&mut self, changes: Changes, sheds: bool) -> bool {
        let now = !self.exact && self.made == self.round;
        if !now || mem::replace(&mut self.guessed, true) || sheds && self.has_moved(changes, self.made) {
            return false;
        }
        let stayed = self.removed == 0 && self.changes.removed == changes.removed && self.vain == 0;
        stayed && self.difference(self.made).iter().all(Vec::is_empty)
    }

    /// The same: is a window whole, are all mappings still there that were at any time, and was no stream found at work? Then it is all that is
    /// known. Not if pages were to be given back, and some were mapped or unmapped in it.
    pub fn is_whole(&mut self, changes: Changes, sheds: bool) -> bool {
        if !self.exact || self.made < self.look_from {
            return false;
        }
        let since = self.removed.max(self.vain);
        let stayed = |window: usize| self.changes.removed == changes.removed && since <= self.made - window;
        let notes = self.notes.len();
        let (mut window, mut windows, mut looked, mut whole) = (self.round, 0, 0, None);
        while window <= notes && whole.is_none() {
            let may = !(sheds && self.has_moved(changes, window)) && (!self.alike || stayed(window));
            if may && self.sums[notes - window] == self.sum {
                looked += window;
                let differs = difference(self.notes.range(notes - window..), true);
                whole = differs.iter().all(Vec::is_empty).then_some(window);
            }
            (window, windows) = (window + self.round, windows + 1);
        }
        // at one window each time, at several as seldom as they are many
        self.look_from = self.made + (looked / SELDOM).max(windows);
        let Some(window) = whole else { return false };
        let stayed = stayed(window);
        self.alike = true;
        if stayed {
            self.window = window;
            self.keep(window);
        }
        stayed
    }

    /// One of the round's streams was found at work by another one, as it would be again: then what that took over is not there.
    pub fn looked_in_vain(&mut self) {
        self.vain = self.made;
    }

    /// The number of the oldest note.
    fn first(&self) -> usize {
        self.made - self.notes.len()
    }

    /// Were pages mapped or unmapped among so many calls, the latest?
    fn has_moved(&self, changes: Changes, calls: usize) -> bool {
        self.changes != changes || self.changed > self.made - calls
    }

    /// Is it worth recording more?
    pub fn goes_on(&mut self) -> bool {
        if !self.exact {
            return self.finds_period();
        }
        let (tried, longer) = (self.made - self.since, 2 * self.window);
        if tried < self.tries {
            return true;
        }
        let may_be_longer = !self.alike && !self.is_guided() && longer <= (LED * self.round).min(STEPS);
        if may_be_longer {
            self.set_window(longer); // what lasts may take turns
            return true;
        }
        let (all, before) = (self.changes.all(), self.before_tries);
        let moves = (all - before) * DEAR > tried as u64;
        if moves {
            self.begin_tries();
        } else if all == before && self.tries < self.kept && self.is_level() {
            self.tries = self.kept; // they may be where they were after some more rounds
        } else {
            return false;
        }
        true
    }

    /// So many notes are worth it from now on.
    fn begin_tries(&mut self) {
        (self.since, self.before_tries) = (self.made, self.changes.all());
        self.tries = TRIES * self.window.min(LED * self.round);
    }

    /// Was as much freed as allocated in the last round? Then all blocks that last may be where they were after some more.
    fn is_level(&self) -> bool {
        let last = self.notes.range(self.notes.len().saturating_sub(self.round)..);
        let change = |note: &Note| match note.step() {
            Step::Alloc { .. } => note.bytes,
            Step::Free { .. } => note.bytes.wrapping_neg(),
        };
        last.map(change).fold(0, u64::wrapping_add) == 0
    }

    /// False: it is not to be found.
    fn finds_period(&mut self) -> bool {
        let about = (self.turns + 1) * self.round;
        let soon = about + about / SOON;
        if self.made >= soon && self.look_from == 0 && about / SOON >= LAST {
            self.look_from = self.made;
            if is_same(&self.notes, self.round, about) {
                return self.begin_windows(about);
            }
        }
        if self.notes.len() < about + near(about) + LAST.min(self.round) {
            return true;
        }
        match period(&self.notes, self.round, about) {
            Some(period) => self.begin_windows(period),
            None => {
                self.turns += 1;
                self.make_room();
                self.turns < TURNS && about + self.round <= MANY
            }
        }
    }

    /// A round has so many calls. False: they are too many.
    fn begin_windows(&mut self, period: usize) -> bool {
        if period <= STEPS {
            self.round = period;
            self.set_window(period);
        }
        self.exact
    }

    /// Is a round recorded again that was replayed?
    pub fn is_guided(&self) -> bool {
        self.guide.is_some()
    }

    /// Is it known how many calls a round has?
    pub fn has_period(&self) -> bool {
        self.exact
    }

    /// Calls of a round.
    pub fn round(&self) -> u64 {
        self.round as u64
    }

    /// So much was in use when it began; nothing before a program's first call.
    pub fn begun_with(&self) -> u64 {
        self.begun_with
    }

    /// Calls noted.
    pub fn made(&self) -> u64 {
        self.made as u64
    }

    /// The calls of the window.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (Step, u64)> + '_ {
        self.notes.iter().map(|note| (note.step(), part(note.part())))
    }

    /// A whole window is going to be repeated.
    pub fn begin(&mut self) {
        self.guide = None;
        self.repeated = Sums::of(&self.notes);
    }

    /// The window's calls came again, so many times: they are recorded as if they had been made one by one. The next call is another one, or
    /// a guest has changed what there is.
    pub fn resume(&mut self, progress: Progress, changes: Changes) {
        self.repeated = Sums::default();
        // what was guessed is known only once all of it came again
        let came_again = progress.rounds > 0 || self.exact && self.rounds_until(progress) > 0;
        let guide = came_again.then(|| Guide::new(&self.notes, progress.steps));
        if guide.is_some() {
            self.repeat(progress.rounds as usize, changes);
        }
        let again: Vec<_> = self.notes.iter().take(progress.steps).copied().collect();
        again
            .into_iter()
            .for_each(|note: Note| self.note(note.step(), note.part(), note.block(), changes));
        if guide.is_some() {
            (self.guide, self.look_from) = (guide, self.made + 1);
        }
    }

    /// The same for whole rounds.
    fn repeat(&mut self, rounds: usize, changes: Changes) {
        let (first, more) = (self.first(), rounds * self.notes.len());
        // what came in the window and lasts came again in each
        for came in self.came.values_mut().filter(|came| **came >= first) {
            *came += more;
        }
        self.made += more;
        if !self.exact {
            self.round = self.notes.len();
            self.set_window(self.round); // it was guessed
        }
        self.begin_tries();
        self.moves = Moves::few_until(self.made, self.round, changes);
    }

    /// How many rounds that was.
    pub fn rounds_until(&self, progress: Progress) -> u64 {
        let calls = progress.rounds.saturating_mul(self.notes.len() as u64) + progress.steps as u64;
        calls / self.round.max(1) as u64
    }

    /// Blocks that were in use before the window's first call and are not after so many, and the other way round, by address.
    pub fn difference(&self, steps: usize) -> [Vec<(u64, Extent)>; 2] {
        difference(self.notes.iter().take(steps), steps == self.notes.len())
    }

    /// What was done if it was repeated up to there.
    pub fn done(&self, progress: Progress) -> Done {
        self.repeated.until(&self.notes, progress)
    }

    /// The most that was in use more than before the first call, after one of those between, if there was one.
    pub fn peak(&self, from: Progress, to: Progress) -> Option<i64> {
        self.repeated.peak(&self.notes, from, to)
    }

    /// The latest one of the window's first calls that is about the block at an address, and the block.
    pub fn latest_of(&self, at: u64, steps: usize) -> Option<(Step, Extent)> {
        let mut calls = self.notes.iter().take(steps).rev();
        let note = calls.find(|note| note.at == at)?;
        Some((note.step(), note.block()))
    }
}

#[cfg(test)]
mod tests;
