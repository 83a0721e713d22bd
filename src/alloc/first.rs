//! The first calls of a program. Nothing was in use before them, so when nothing is in use again they may be a round, however many they
//! are: what works from nothing to nothing, as a library's routine or a whole run does, may come again as it was.
//!
//! It is guessed once they are so many, and again at twice as many if the guess was wrong; and when they are many and the same ones twice, however
//! many they are (Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977). What is needed to replay them is found only when
//! all blocks have gone: to note a call costs little. But meanwhile it goes to the books before the cache.
//!
//! They are given up when a mapping was removed, and where they do not pay: when they are many, when threads' caches
//! serve most of them, or when shorter rounds have come so often that these are what comes again.
//!
//! No lock of its own: the heap's.

use super::note::{Extent, Note};
use super::page::Changes;
use super::period::{LAST, came_again};
use super::recording::TURNS;
use super::rounds::{BELIEVED, is_cached};
use super::tape::{Progress, Step};
use crate::backend::sparse;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// So many rounds within these calls are what comes again...
const OFTEN: u64 = 32;
/// ...which is looked at again when there are more calls by so small a part.
const SELDOM: u64 = 8;

/// More first calls than these are none: to note them costs more than to find rounds among those that follow.
pub const MOST: usize = 1 << 18;
/// For more calls than these there is room for all.
const FEW: usize = 1024;
/// Of that room the system finds memory for so many at once, which takes half as long as a page each time.
const AHEAD: usize = 2048;

/// All calls so far.
#[derive(Debug)]
pub struct First {
    notes: Vec<Note>,
    /// After each of them but the latest: so many before were the same as the first ones, the most but all.
    again: Vec<u32>,
    /// For so many calls there is memory.
    there: usize,
    /// Blocks in use.
    live: usize,
    /// How many were taken for a round last.
    guessed: usize,
    /// Whether caches serve most of them is looked at when they are so many.
    look_at: u64,
    /// Whether rounds come often is looked at when they are so many.
    rounds_at: u64,
    /// Mappings that had been removed before.
    removed: u64,
    /// A round among them was replayed.
    had_round: bool,
    /// They are of several streams.
    several: bool,
    /// All came again, and then others came.
    had_phase: bool,
}

impl First {
    /// None yet.
    pub fn new(changes: Changes) -> First {
        First {
            notes: Vec::new(),
            again: Vec::new(),
            there: 0,
            live: 0,
            guessed: 0,
            look_at: BELIEVED,
            rounds_at: 0,
            removed: changes.removed,
            had_round: false,
            several: false,
            had_phase: false,
        }
    }

    /// So many bytes were asked for on one of the round's streams, and are here.
    pub fn alloc(&mut self, at: u64, bytes: u64, part: usize) {
        self.live += 1;
        self.make_room();
        self.is_on(part);
        let unknown = Extent { bytes: 0, slab: None };
        self.notes
            .push(Note::new(Step::Alloc { bytes, at }, unknown, None).on(part));
    }

    fn is_on(&mut self, part: usize) {
        self.several |= self.notes.first().is_some_and(|first| first.part() != part);
    }

    /// Makes room for this call and for the frees of all blocks in use, since a free allocates nothing. From some calls on that is room for
    /// all that there may be: what grows by doubling is copied each time, within somebody's call, and what is not used yet is only addresses.
    fn make_room(&mut self) {
        if self.notes.capacity() - self.notes.len() > self.live {
            return self.populate();
        }
        let all = match self.notes.len() < FEW {
            true => 0,
            false => (2 * MOST).saturating_sub(self.notes.len()),
        };
        self.notes.reserve(all.max(self.live + 1));
    }

    /// This block is to be freed.
    pub fn free(&mut self, at: u64, block: Extent, part: usize) {
        self.live = self.live.saturating_sub(1);
        self.is_on(part);
        let step = Step::Free {
            bytes: block.bytes,
            at,
        };
        self.notes.push(Note::new(step, block, None).on(part));
    }

    /// Has the system find memory for the next calls before they come, if there is room for many.
    fn populate(&mut self) {
        let made = self.notes.len();
        if made < self.there || made < FEW {
            return;
        }
        let spare = self.notes.spare_capacity_mut();
        let ahead = spare.len().min(AHEAD);
        sparse::populate(&mut spare[..ahead]);
        self.there = made + ahead;
    }

    /// How many calls there were.
    pub fn made(&self) -> u64 {
        self.notes.len() as u64
    }

    /// Before an allocation: is it worth it to go on? So many allocations were the heap's.
    pub fn goes_on(&mut self, of_heap: u64, changes: Changes) -> bool {
        let made = self.made();
        if self.removed != changes.removed {
            return false; // some of the places are no more
        }
        if made >= self.look_at {
            self.look_at = 2 * made;
            if is_cached(of_heap, made) {
                return false;
            }
        }
        made < MOST as u64
    }

    /// May these calls come again as a whole, now that all blocks have gone?
    pub fn may_be_round(&mut self) -> bool {
        let made = self.notes.len();
        let may = self.live == 0 && made >= LAST && made > self.guessed;
        may && (made >= 2 * self.guessed || self.came_twice().is_some())
    }

    /// How many calls came twice, or more often, if that is all that came, and they are many: few are found among those that follow, and may be a
    /// part of more. What several streams make hardly comes a third time as it was.
    fn came_twice(&mut self) -> Option<usize> {
        let made = self.notes.len();
        if self.several {
            return None;
        }
        self.again.reserve(made - self.again.len());
        let mut again = self.again.last().map_or(0, |&again| again as usize);
        for number in self.again.len()..made {
            let note = &self.notes[number];
            while again > 0 && !note.is_like(&self.notes[again]) {
                again = self.again[again - 1] as usize;
            }
            again += usize::from(again < number && note.is_like(&self.notes[again]));
            self.again.push(again as u32);
        }
        let round = made - again;
        (again > 0 && round as u64 > BELIEVED && made.is_multiple_of(round)).then_some(round)
    }

    /// Have rounds of about so many calls, or some that take turns, come so often that they, rather than all calls, will come again? Of
    /// phases, which may take turns, all of late has to be these.
    pub fn has_many(&mut self, round: u64) -> bool {
        let made = self.made();
        let often = |round: &u64| round.saturating_mul(OFTEN) <= made;
        if !often(&round) || made < self.rounds_at {
            return false;
        }
        self.rounds_at = made + made / SELDOM;
        let mut rounds = (1..=TURNS as u64).map(|turns| turns * round).filter(often);
        let lately = match self.had_phase {
            true => self.notes.len() / 2,
            false => 0,
        };
        rounds.any(|round| came_again(&self.notes, round as usize, lately))
    }

    /// They are taken for a round: all calls, or the latest of those that came twice, each with its block and when that came. None: there
    /// were others.
    pub fn guess(&mut self) -> Option<VecDeque<Note>> {
        self.guessed = self.notes.len();
        let mut notes = match self.came_twice() {
            Some(round) => self.notes.split_off(self.guessed - round),
            None => std::mem::take(&mut self.notes),
        };
        self.there = 0;
        let mut came = FxHashMap::default();
        for number in 0..notes.len() {
            let note = notes[number];
            match note.step() {
                Step::Alloc { at, .. } => drop(came.insert(at, number)),
                Step::Free { at, .. } => {
                    let came = came.remove(&at)?;
                    let asked = notes[came];
                    notes[came] = Note::new(asked.step(), note.block(), Some(0)).on(asked.part());
                    notes[number] = Note::new(note.step(), note.block(), Some(number - came)).on(note.part());
                }
            }
        }
        came.is_empty().then(|| notes.into())
    }

    /// They came again so often as a whole, and then so many of them did. False: they are too many now.
    pub fn resume(&mut self, notes: VecDeque<Note>, again: Progress) -> bool {
        let before = self.notes.len();
        let more = calls_of(&notes, again);
        self.had_phase |= again.rounds > 0;
        match before {
            0 => self.notes = notes.into(),
            _ => self.notes.extend(notes),
        }
        self.go_on(more, |this, number| this.notes[number])
    }

    /// A round of these came again and again.
    pub fn repeat(&mut self, notes: &VecDeque<Note>, again: Progress) -> bool {
        self.had_round = true;
        self.go_on(calls_of(notes, again), |_, number| notes[number % notes.len()])
    }

    /// So many more calls were made. False: they are too many now.
    fn go_on(&mut self, more: usize, call: impl Fn(&First, usize) -> Note) -> bool {
        let room = self.notes.len().saturating_add(more) <= MOST;
        for number in 0..if room { more } else { 0 } {
            self.add(call(self, number));
        }
        self.notes.reserve(self.live + 1);
        room
    }

    /// Was a round among them replayed?
    pub fn had_round(&self) -> bool {
        self.had_round
    }

    fn add(&mut self, note: Note) {
        match note.step() {
            Step::Alloc { .. } => self.live += 1,
            Step::Free { .. } => self.live = self.live.saturating_sub(1),
        }
        self.notes.push(note);
    }
}

/// How many calls that is.
fn calls_of(notes: &VecDeque<Note>, again: Progress) -> usize {
    let rounds = usize::try_from(again.rounds).unwrap_or(usize::MAX);
    rounds.saturating_mul(notes.len()).saturating_add(again.steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Changes = Changes { made: 0, removed: 0 };
    const BLOCK: Extent = Extent {
        bytes: 512,
        slab: Some(0),
    };

    fn steps(steps: usize) -> Progress {
        Progress { rounds: 0, steps }
    }

    /// So many blocks come and go, all but the last one.
    fn all_but_one(first: &mut First, blocks: u64) {
        for at in 0..blocks {
            first.alloc(at, 1, 0);
        }
        for at in 1..blocks {
            first.free(at, BLOCK, 0);
        }
    }

    #[test]
    fn when_nothing_is_in_use_it_is_guessed_that_all_comes_again() {
        let mut first = First::new(NONE);
        all_but_one(&mut first, 10);
        first.free(0, BLOCK, 0);
        assert!(!first.may_be_round(), "too few");
        all_but_one(&mut first, 100);
        assert!(!first.may_be_round(), "one is in use");
        first.free(0, BLOCK, 0);
        assert!(first.may_be_round() && first.goes_on(0, NONE));
        let notes = first.guess().expect("all that were made");
        assert_eq!(notes.len() as u64, 2 * (10 + 100));
        assert!(notes.iter().all(|note| note.block() == BLOCK));
        assert_eq!(
            notes[19].age(),
            Some(19),
            "the first one to come and the last to go"
        );
        // half of them come again, and then others
        first.resume(notes, steps(110));
        assert!(!first.may_be_round(), "some are in use");
        for at in 0..90 {
            first.free(99 - at, BLOCK, 0);
        }
        assert_eq!(first.made(), 220 + 110 + 90);
    }

    #[test]
    fn a_round_among_them_that_is_replayed_is_as_if_its_calls_had_been_made() {
        let [mut one, mut other] = [First::new(NONE), First::new(NONE)];
        let round: VecDeque<Note> = {
            all_but_one(&mut one, 50);
            let mut round = First::new(NONE);
            all_but_one(&mut round, 60);
            round.free(0, BLOCK, 0);
            round.notes.into()
        };
        all_but_one(&mut other, 50);
        assert!(one.repeat(&round, Progress { rounds: 2, steps: 70 }));
        for _ in 0..3 {
            all_but_one(&mut other, 60);
            other.free(0, BLOCK, 0);
        }
        other.notes.truncate(one.notes.len());
        let steps = |first: &First| first.notes.iter().map(Note::step).collect::<Vec<_>>();
        assert_eq!(steps(&one), steps(&other));
        assert_eq!(one.live, 1 + 60 - 10);
        let many = MOST as u64 / 120;
        assert!(
            !one.repeat(
                &round,
                Progress {
                    rounds: many,
                    steps: 0
                }
            ),
            "too many"
        );
        assert_eq!(one.made(), other.made(), "none of them");
    }

    #[test]
    fn after_a_wrong_guess_it_takes_twice_as_many() {
        let mut first = First::new(NONE);
        let mut guesses = Vec::new();
        for _ in 0..200 {
            first.alloc(1, 1, 0);
            first.free(1, BLOCK, 0);
            if first.may_be_round() {
                guesses.push(first.made());
                let notes = first.guess().expect("all that were made");
                first.resume(notes, steps(0));
            }
        }
        assert_eq!(guesses, [64, 128, 256]);
    }

    /// Parts, each of which ends with nothing in use: no number of them says where the whole begins again, but what they are does.
    #[test]
    fn what_came_twice_is_a_round_however_many_calls_it_has() {
        const PARTS: u64 = 93;
        const BLOCKS: u64 = 30;
        const CALLS: u64 = 2 * BLOCKS;
        let part = |first: &mut First, number: u64| {
            for at in 0..BLOCKS {
                first.alloc(at, 1 + number * number % 89 + at, 0);
            }
            (0..BLOCKS).for_each(|at| first.free(at, BLOCK, 0));
        };
        let mut first = First::new(NONE);
        let mut guesses = Vec::new();
        for number in 0..4 * PARTS {
            part(&mut first, number % PARTS);
            while first.may_be_round() {
                let made = first.made();
                let notes = first.guess().expect("all that were made");
                guesses.push((made / CALLS, notes.len() as u64 / CALLS));
                let of_last = notes.back().map(|note| note.step());
                assert!(first.resume(notes, steps(0)), "it was wrong");
                assert_eq!(first.made(), made);
                assert_eq!(first.notes.last().map(Note::step), of_last);
            }
        }
        let twice = [2, 3, 4].map(|times| (times * PARTS, PARTS));
        let by_number = [2, 4, 8, 16, 32, 64, 128].map(|parts| (parts, parts));
        let mut all = [&by_number[..], &twice[..]].concat();
        all.sort_unstable();
        assert_eq!(guesses, all);
        // it ends as it begins
        let mut other = First::new(NONE);
        let run: Vec<u64> = [[0; 78].as_slice(), &[1, 0]].concat();
        for &number in run.iter().chain(&run) {
            part(&mut other, number);
        }
        let guessed = other.guess().map(|notes| notes.len() as u64);
        assert_eq!(guessed, Some(CALLS * run.len() as u64));
        // few calls are not
        let mut other = First::new(NONE);
        for _ in 0..6 {
            (0..22).for_each(|number| part(&mut other, number));
        }
        let guessed = other.guess().map(|notes| notes.len() as u64);
        assert_eq!(guessed, Some(CALLS * 22 * 6));
        // they came again once and a half
        let mut other = First::new(NONE);
        (0..PARTS).for_each(|number| part(&mut other, number));
        let notes = other.guess().expect("all that were made");
        let again = Progress {
            rounds: 1,
            steps: CALLS as usize * 50,
        };
        assert!(other.resume(notes, again));
        (50..PARTS).for_each(|number| part(&mut other, number));
        assert_eq!(other.made(), 3 * CALLS * PARTS);
        let guessed = other.guess().map(|notes| notes.len() as u64);
        assert_eq!(guessed, Some(CALLS * PARTS));
    }

    #[test]
    fn they_are_given_up_where_they_do_not_pay() {
        let mut first = First::new(NONE);
        let removed = Changes { made: 1, removed: 1 };
        assert!(first.goes_on(0, Changes { made: 1, removed: 0 }) && !first.goes_on(0, removed));
        while first.made() < BELIEVED {
            assert!(first.goes_on(0, NONE), "too few to tell");
            all_but_one(&mut first, 1);
            first.free(0, BLOCK, 0);
        }
        let (served, made) = (first.made() / 16, first.made());
        assert!(First::new(NONE).goes_on(0, NONE));
        let mut other = First::new(NONE);
        other.resume(first.notes.clone().into(), steps(0));
        assert!(
            first.goes_on(served, NONE) && !other.goes_on(served - 1, NONE),
            "{made}"
        );
        while first.made() < MOST as u64 {
            assert!(first.goes_on(MOST as u64, NONE));
            first.alloc(1, 1, 0);
            first.free(1, BLOCK, 0);
        }
        assert!(!first.goes_on(MOST as u64, NONE), "there are no more");
    }

    #[test]
    fn shorter_rounds_that_come_often_are_what_comes_again() {
        let mut first = First::new(NONE);
        first.alloc(0, 7, 0);
        let mut had = Vec::new();
        let round = |first: &mut First, turn: u64| {
            for bytes in [3, 5, 9 + turn % 2] {
                first.alloc(bytes, bytes, 0);
                first.free(bytes, BLOCK, 0);
            }
            first.has_many(6)
        };
        for _ in 0..2 * OFTEN {
            had.push(round(&mut first, 0));
        }
        assert_eq!(had.iter().position(|&had| had), Some(OFTEN as usize - 1));
        let mut other = First::new(NONE);
        let turns: Vec<bool> = (0..6 * OFTEN).map(|turn| round(&mut other, turn)).collect();
        let found = turns.iter().position(|&had| had).expect("two take turns") as u64;
        assert!((2 * OFTEN - 1..3 * OFTEN).contains(&found), "{found}");
        let mut last = First::new(NONE);
        assert!(!(0..6 * OFTEN).any(|turn| {
            last.alloc(1, turn, 0);
            last.free(1, BLOCK, 0);
            round(&mut last, 0)
        }));
    }
}
