//! A recorded call, and what calls have done.
//!
//! No lock of its own: the heap's.

use super::directory::Piece;
use super::heap::Heap;
use super::rounds::Calls;
use super::size::{GRAIN, class_of};
use super::space::Found;
use super::tape::{Progress, Step};
use foldhash::fast::FixedState;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::ops::Range;

/// A block as the books had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Its length, as rounded up.
    pub bytes: u64,
    /// Where its slab begins, if it is of one.
    pub slab: Option<u64>,
}

impl Extent {
    /// What a cache takes it for.
    pub fn piece(&self) -> Piece {
        match self.slab {
            Some(_) => Piece::Small {
                class: class_of(self.bytes, 0).expect("a slab's"),
            },
            None => Piece::Large {
                grains: self.bytes / GRAIN,
            },
        }
    }
}

impl Heap {
    /// The live block that begins at an address, if one does.
    pub(super) fn extent_at(&self, at: u64) -> Option<Extent> {
        let Some(piece) = self.directory.live(at) else {
            // or one whose address is not its node's
            let block = self.find_block(at).ok()?;
            let bytes = self.block_bytes(block);
            return Some(Extent { bytes, slab: None });
        };
        let slab = match piece {
            Piece::Large { .. } => None,
            Piece::Small { .. } => match self.space.find(at) {
                Found::Start(id) | Found::Inside(id) => Some(self.space.nodes[id].start),
                Found::Outside => return None,
            },
        };
        let bytes = piece.bytes();
        Some(Extent { bytes, slab })
    }
}

/// A call, and the block that it is about, in few bytes: there are many of them, and each is read several times.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// The block's address.
    pub at: u64,
    /// Its bytes, as rounded up.
    pub bytes: u64,
    /// As asked for; `FREE` where the block is freed.
    asked: u64,
    /// How far into its slab the block is, and which of the round's streams the call is on.
    within: u32,
    /// So many calls ago the block came.
    age: u32,
}

const FREE: u64 = u64::MAX;
/// Bits of how far into its slab a block is, which is shorter than that.
const WITHIN: u32 = 24;
/// It is of no slab.
const ALONE: u32 = (1 << WITHIN) - 1;
/// It came before anything was recorded.
const BEFORE: u32 = u32::MAX;
/// What is done is kept for one of so many calls.
pub const EVERY: usize = 64;
/// So small a part of what calls have in use at most is hardly anything.
const HARDLY: i64 = 32;

impl Note {
    /// Of a call, about a block that came so many calls ago, unless that was before anything was recorded.
    pub fn new(step: Step, block: Extent, age: Option<usize>) -> Note {
        let (at, asked) = match step {
            Step::Alloc { bytes, at } => (at, bytes),
            Step::Free { at, .. } => (at, FREE),
        };
        Note {
            at,
            bytes: block.bytes,
            asked,
            within: block.slab.map_or(ALONE, |base| (at - base) as u32),
            age: age.and_then(|age| u32::try_from(age).ok()).unwrap_or(BEFORE),
        }
    }

    /// The same on another of the round's streams.
    pub fn on(mut self, part: usize) -> Note {
        self.within = self.within & ALONE | (part as u32) << WITHIN;
        self
    }

    /// Which of the round's streams the call is on.
    pub fn part(&self) -> usize {
        (self.within >> WITHIN) as usize
    }

    /// So many calls ago the block came; None: before anything was recorded.
    pub fn age(&self) -> Option<usize> {
        (self.age != BEFORE).then_some(self.age as usize)
    }

    /// Were so many bytes asked for, on that stream?
    pub fn asks_for(&self, bytes: u64, part: usize) -> bool {
        self.asked == bytes && self.part() == part
    }

    /// Was the same done, about a block that came as many calls ago, as far as that is known?
    pub fn is_like(&self, other: &Note) -> bool {
        let known = self.age != BEFORE && other.age != BEFORE;
        self.asked == other.asked && self.part() == other.part() && (self.age == other.age || !known)
    }

    /// What it adds to a sum of hashes. (Sums of `FxHasher`'s would be 0 too often: they are all but linear.)
    pub fn change(&self) -> u64 {
        let hash = FixedState::default().hash_one((self.at, self.bytes, self.within & ALONE));
        match self.step() {
            Step::Alloc { .. } => hash,
            Step::Free { .. } => hash.wrapping_neg(),
        }
    }

    /// The call.
    pub fn step(&self) -> Step {
        match self.asked {
            FREE => Step::Free {
                bytes: self.bytes,
                at: self.at,
            },
            bytes => Step::Alloc { bytes, at: self.at },
        }
    }

    /// The block.
    pub fn block(&self) -> Extent {
        Extent {
            bytes: self.bytes,
            slab: (self.within & ALONE != ALONE).then(|| self.at - u64::from(self.within & ALONE)),
        }
    }
}

/// What calls have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// How many there were.
    pub calls: Calls,
    /// Bytes that they left in use.
    pub more: i64,
}

impl Done {
    /// And this.
    pub fn add(&mut self, note: &Note) {
        match note.step() {
            Step::Alloc { .. } => {
                (self.calls.allocs, self.more) = (self.calls.allocs + 1, self.more + note.bytes as i64)
            }
            Step::Free { .. } => {
                (self.calls.frees, self.more) = (self.calls.frees + 1, self.more - note.bytes as i64)
            }
        }
    }
}

/// What is done by the first of some calls, for one number of them in `EVERY`, and by all.
#[derive(Debug, Default)]
pub struct Sums {
    parts: Vec<Done>,
    all: Done,
    /// The most that was left in use after one of a part's calls, and of all.
    peaks: Vec<i64>,
    most: i64,
}

impl Sums {
    /// Of these calls.
    pub fn of(notes: &VecDeque<Note>) -> Sums {
        let (mut parts, mut peaks, mut done) = (Vec::new(), Vec::new(), Done::default());
        for (number, note) in notes.iter().enumerate() {
            if number % EVERY == 0 {
                parts.push(done);
                peaks.push(i64::MIN);
            }
            done.add(note);
            let peak = peaks.last_mut().expect("a part has begun");
            *peak = done.more.max(*peak);
        }
        parts.push(done);
        let most = peaks.iter().copied().max().unwrap_or_default();
        Sums {
            parts,
            all: done,
            peaks,
            most,
        }
    }

    /// The most that was left in use after one of the calls between, if there was one.
    pub fn peak(&self, notes: &VecDeque<Note>, from: Progress, to: Progress) -> Option<i64> {
        match to.rounds - from.rounds {
            0 => self.peak_of(notes, from.steps..to.steps),
            1 if to.steps < from.steps => {
                let last = self.peak_of(notes, from.steps..notes.len());
                last.max(self.peak_of(notes, 0..to.steps))
            }
            _ => Some(self.most),
        }
    }

    fn peak_of(&self, notes: &VecDeque<Note>, mut calls: Range<usize>) -> Option<i64> {
        let mut most = None;
        while !calls.is_empty() {
            let (part, skipped) = (calls.start / EVERY, calls.start % EVERY);
            let next = ((part + 1) * EVERY).min(notes.len());
            let peak = match skipped == 0 && next <= calls.end {
                true => Some(self.peaks[part]),
                false => {
                    let mut done = self.parts[part];
                    let after = notes.range(part * EVERY..next.min(calls.end)).map(|note| {
                        done.add(note);
                        done.more
                    });
                    after.skip(skipped).max()
                }
            };
            most = most.max(peak);
            calls.start = next;
        }
        most
    }

    /// What was done if they were repeated up to there.
    pub fn until(&self, notes: &VecDeque<Note>, progress: Progress) -> Done {
        let Some(&before) = self.parts.get(progress.steps / EVERY) else {
            return Done::default();
        };
        let mut part = before;
        let after = notes.range(progress.steps / EVERY * EVERY..progress.steps);
        after.for_each(|note| part.add(note));
        let all = |round: u64, part: u64| progress.rounds.wrapping_mul(round).wrapping_add(part);
        Done {
            calls: Calls {
                allocs: all(self.all.calls.allocs, part.calls.allocs),
                frees: all(self.all.calls.frees, part.calls.frees),
            },
            more: part.more,
        }
    }
}

/// Of calls that are repeated, the frees after which they have hardly anything in use: what an event covers that is recorded then is most of
/// what it can be. One in so many calls, those that end the greatest falls.
pub fn low_points(notes: &VecDeque<Note>, calls: usize) -> Vec<usize> {
    let (mut done, mut top) = (Done::default(), 0);
    let mut falls = Vec::new();
    for (number, note) in notes.iter().enumerate() {
        done.add(note);
        top = top.max(done.more);
        let next = &notes[(number + 1) % notes.len()];
        if note.asked == FREE && next.asked != FREE {
            falls.push((number, done.more, top - done.more));
            top = done.more;
        }
    }
    let least = falls.iter().map(|&(_, more, _)| more).min().unwrap_or(0);
    let most = falls
        .iter()
        .map(|&(_, more, fall)| more + fall)
        .max()
        .unwrap_or(0);
    falls.retain(|&(_, more, _)| more - least <= (most - least) / HARDLY);
    falls.sort_by_key(|&(_, _, fall)| Reverse(fall));
    falls.truncate((notes.len() / calls).max(1));
    let mut low: Vec<usize> = falls.into_iter().map(|(number, ..)| number).collect();
    low.sort_unstable();
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 512 << 10;

    /// Calls of 512 B each, of which so many allocate first, some of these free, and so on.
    fn calls(lengths: &[usize]) -> VecDeque<Note> {
        let block = Extent {
            bytes: 512,
            slab: None,
        };
        let kinds = lengths.iter().enumerate();
        let kinds = kinds.flat_map(|(number, &length)| std::iter::repeat_n(number % 2 == 0, length));
        let step = |alloc: bool| match alloc {
            true => Step::Alloc { bytes: 1, at: 512 },
            false => Step::Free { bytes: 512, at: 512 },
        };
        kinds
            .map(|alloc| Note::new(step(alloc), block, Some(1)))
            .collect()
    }

    #[test]
    fn what_was_done_by_many_calls_is_the_sum_of_what_each_has_done() {
        let notes = calls(&[EVERY, 10, 7, EVERY + 3, 2 * EVERY, 1, 1, EVERY - 2, 3, 2 * EVERY]);
        let sums = Sums::of(&notes);
        // after how many calls of which round
        let place = |number: usize| Progress {
            rounds: (number / notes.len()) as u64,
            steps: number % notes.len(),
        };
        let (mut done, mut more) = (Done::default(), vec![0]);
        for (number, note) in notes.iter().cycle().take(3 * notes.len()).enumerate() {
            done.add(note);
            // what is left in use is a round's alone: as much as before its first call
            if (number + 1) % notes.len() == 0 {
                done.more = 0;
            }
            more.push(done.more);
            let until = sums.until(&notes, place(number + 1));
            assert_eq!((until.calls, until.more), (done.calls, done.more), "{number}");
        }
        let whole = sums.all.more;
        assert!(whole != 0, "the last call of a round counts with it");
        for from in 0..more.len() {
            for to in (from..more.len()).step_by(7) {
                let made = (from + 1..=to).map(|number| match number % notes.len() {
                    0 => whole,
                    _ => more[number],
                });
                assert_eq!(
                    sums.peak(&notes, place(from), place(to)),
                    made.max(),
                    "{from} {to}"
                );
            }
        }
    }

    /// Two rounds, of which the first one leaves a bit more, and blocks that hardly matter.
    #[test]
    fn calls_are_low_where_much_was_freed_and_hardly_anything_is_left() {
        let (mut notes, mut low) = (VecDeque::new(), Vec::new());
        let mut note = |at: u64, bytes: u64, step: Step| {
            notes.push_back(Note::new(step, Extent { bytes, slab: None }, Some(1)));
            (notes.len() - 1, at)
        };
        for round in 0..2 {
            for at in 0..60 {
                note(at, LARGE, Step::Alloc { bytes: LARGE, at });
            }
            if round == 0 {
                note(100, 512, Step::Alloc { bytes: 512, at: 100 });
            }
            let frees = (0..60).map(|at| note(at, LARGE, Step::Free { bytes: LARGE, at }));
            low.extend(frees.last().map(|(number, _)| number));
            for _ in 0..3 {
                note(200, 1024, Step::Alloc { bytes: 1024, at: 200 });
                note(200, 1024, Step::Free { bytes: 1024, at: 200 });
            }
            if round == 1 {
                note(100, 512, Step::Free { bytes: 512, at: 100 });
            }
        }
        assert_eq!(low_points(&notes, notes.len() / 2), low);
        let found = low_points(&notes, 64);
        assert!(found.len() <= notes.len() / 64, "{found:?}");
        assert!(
            low.iter().all(|number| found.contains(number)),
            "{low:?} {found:?}"
        );
    }
}
