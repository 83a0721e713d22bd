//! The way to what the directory has of one block, for a cache that looks and then keeps the block, or does not.
//!
//! Locks: none, as in the module above.

use super::{
    CELL, CLASS_SHIFT, Chapter, GRAINS_SHIFT, Marks, STATE, STATE_SHIFT, STATES, State, WHOSE, Where, begins,
    byte_of, state_in, word_in,
};
use crate::alloc::size::MIN_ALIGN;
use crate::alloc::standing::Standing;
use crate::backend::sparse::Site;
use std::sync::atomic::{AtomicU64, Ordering};

/// Here something has been read of which the next step makes use. loom, which does not know of these, is told that others may come between.
#[inline(always)]
fn between() {
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Where the directory has what it knows of an address at which a block may begin.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    chapter: &'a Chapter,
    /// The address in units of the least alignment.
    number: u64,
}

impl<'a> Spot<'a> {
    /// None: nothing of the pool's can begin there.
    #[inline(always)]
    pub fn of(at: u64, whole: &'a Where) -> Option<Spot<'a>> {
        // bits that are not 0 where no block begins make a number beyond all chapters
        let number = at.rotate_right(MIN_ALIGN.trailing_zeros());
        Some(Spot {
            chapter: whole.get(number / STATES)?,
            number,
        })
    }

    /// The word of the cell.
    #[inline(always)]
    pub fn look(self) -> Look<'a> {
        Look::at(word_in(self.chapter, self.number / (CELL / MIN_ALIGN)))
    }

    /// A slab's block of that class is freed and kept by the cache of its thread, which alone frees such blocks or does not. Gives where its
    /// state is. None: its free concerns the heap, or is a mistake.
    #[inline(always)]
    pub fn keep_small(self, class: usize, standing: &Standing) -> Option<Site> {
        let (plain, kept) = (byte_of(class, State::Plain), byte_of(class, State::Kept));
        let state = state_in(self.chapter, self.number);
        let changed = match standing.is_sole() {
            true => (state.load(Ordering::Relaxed) == plain).then(|| {
                between();
                state.store(kept, Ordering::Release);
            }),
            false => state
                .compare_exchange(plain, kept, Ordering::AcqRel, Ordering::Relaxed)
                .map(drop)
                .ok(),
        };
        changed.map(|()| Site::of(state))
    }
}

/// The word of a cell, as it was a moment ago.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    cell: &'a AtomicU64,
    word: u64,
}

impl<'a> Look<'a> {
    #[inline(always)]
    fn at(cell: &'a AtomicU64) -> Look<'a> {
        let word = cell.load(Ordering::Relaxed);
        between();
        Look { cell, word }
    }

    /// Where the word is.
    #[inline(always)]
    pub fn site(&self) -> Site {
        Site::of(self.cell)
    }

    /// The class of the blocks there, if they are of a slab of the arena of these marks. (A slab serves its owner alone.)
    #[inline(always)]
    pub fn class(&self, marks: &Marks) -> Option<usize> {
        let apart = self.word ^ marks.slabs;
        (apart & WHOSE == 0).then_some((apart >> CLASS_SHIFT) as usize)
    }

    /// Has it more grains than so many, if it is a block of no slab?
    #[inline(always)]
    pub fn is_longer(&self, grains: u64) -> bool {
        self.word >> GRAINS_SHIFT > grains
    }

    /// Is it the word of a live block of no slab that the owner of a cache with these marks alone may free, and it is?
    #[inline(always)]
    pub fn is_own(&self, marks: &Marks, standing: &Standing) -> bool {
        marks.is_own(self.word) && standing.is_sole()
    }

    /// That one is freed and kept if it begins at this address, and fits: its grains. The word was read inside the gate, and nobody else
    /// changes it.
    #[inline(always)]
    pub fn keep_own(&self, at: u64, fits: impl FnOnce(u64) -> bool) -> Option<u64> {
        let grains = self.word >> GRAINS_SHIFT;
        (begins(self.word, at) && fits(grains)).then(|| {
            between();
            self.cell.store(kept(self.word), Ordering::Release);
            grains
        })
    }

    /// The same of any.
    #[inline(always)]
    pub fn keep_large(
        &self,
        at: u64,
        marks: &Marks,
        standing: &Standing,
        fits: impl FnOnce(u64) -> bool,
    ) -> Option<u64> {
        let word = self.word;
        if !marks.may_keep(word) {
            return None;
        }
        if standing.is_sole_of_pool() || self.is_own(marks, standing) {
            return self.keep_own(at, fits);
        }
        let grains = word >> GRAINS_SHIFT;
        // another thread may be about to free what is its own, too: the heap tells that one first
        if marks.is_anothers(word) || !begins(word, at) || !fits(grains) {
            return None;
        }
        self.cell
            .compare_exchange(word, kept(word), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then_some(grains)
    }
}

/// The word of a block that is kept.
#[inline(always)]
fn kept(word: u64) -> u64 {
    word & !STATE | (State::Kept as u64) << STATE_SHIFT
}
