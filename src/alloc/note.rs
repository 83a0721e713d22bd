//! A recorded call, and what calls have done.
//!
//! No lock of its own: the heap's.

use super::directory::Piece;
use super::rounds::Calls;
use super::size::{GRAIN, class_of};
use super::tape::Step;
use foldhash::fast::FixedState;
use std::hash::BuildHasher;

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

/// A call, and the block that it is about, in few bytes: there are many of them, and each is read several times.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// The block's address.
    pub at: u64,
    /// Its bytes, as rounded up.
    pub bytes: u64,
    /// As asked for; `FREE` where the block is freed.
    asked: u64,
    /// How far into its slab the block is.
    within: u32,
    /// So many calls ago the block came.
    age: u32,
}

const FREE: u64 = u64::MAX;
/// It is of no slab.
const ALONE: u32 = u32::MAX;
/// It came before anything was recorded.
const BEFORE: u32 = u32::MAX;

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

    /// So many calls ago the block came; None: before anything was recorded.
    pub fn age(&self) -> Option<usize> {
        (self.age != BEFORE).then_some(self.age as usize)
    }

    /// Were so many bytes asked for?
    pub fn asks_for(&self, bytes: u64) -> bool {
        self.asked == bytes
    }

    /// Was the same done, about a block that came as many calls ago, as far as that is known?
    pub fn is_like(&self, other: &Note) -> bool {
        let known = self.age != BEFORE && other.age != BEFORE;
        self.asked == other.asked && (self.age == other.age || !known)
    }

    /// What it adds to a sum of hashes. (Sums of `FxHasher`'s would be 0 too often: they are all but linear.)
    pub fn change(&self) -> u64 {
        let hash = FixedState::default().hash_one((self.at, self.bytes, self.within));
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
            slab: (self.within != ALONE).then(|| self.at - u64::from(self.within)),
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
