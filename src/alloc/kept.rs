//! A block that a thread's cache keeps: on its way to the program or to the heap, or in a place of its own, on no list.
//!
//! Lock: that of the cache. Everything is an atomic accessed by plain loads and stores.

use super::directory::Piece;
use super::entries::Entry;
use crate::backend::sparse::Site;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A block on its way back to the heap.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Its address.
    pub at: u64,
    /// What it is.
    pub piece: Piece,
    /// Number of its free.
    pub seq: u64,
    /// Where the directory has it.
    pub site: Site,
}

/// A block of no slab, on its way to the program.
#[derive(Clone, Copy, Debug)]
pub struct Larger {
    /// Its address.
    pub at: u64,
    /// Its length.
    pub grains: u64,
    /// Where the directory has it.
    pub site: Site,
}

/// A place for a block of no slab that is on no list. There is none if it is of 0 grains.
#[derive(Debug)]
pub struct Single {
    entry: Entry,
    grains: AtomicU64,
}

impl Kept {
    /// That of an entry, which is of this kind.
    #[inline(always)]
    pub fn of(entry: &Entry, piece: Piece) -> Kept {
        let (at, site) = entry.place();
        let seq = entry.seq.load(Relaxed);
        Kept { at, piece, seq, site }
    }
}

impl Single {
    /// Without a block.
    pub const fn empty() -> Single {
        Single {
            entry: Entry::empty(),
            grains: AtomicU64::new(0),
        }
    }

    /// The block's length, or 0.
    #[inline(always)]
    pub fn grains(&self) -> u64 {
        self.grains.load(Relaxed)
    }

    /// Number of the block's free.
    #[inline(always)]
    pub fn seq(&self) -> u64 {
        self.entry.seq.load(Relaxed)
    }

    /// Here is a block from now on, and there was none.
    #[inline(always)]
    pub fn set(&self, grains: u64, place: (u64, Site), seq: u64) {
        debug_assert_eq!(self.grains(), 0);
        self.entry.set(place, seq);
        self.grains.store(grains, Relaxed);
    }

    /// Takes the block, which is there.
    #[inline(always)]
    pub fn take(&self) -> Larger {
        let (at, site) = self.entry.place();
        let grains = self.grains();
        self.grains.store(0, Relaxed);
        Larger { at, grains, site }
    }

    /// The block, if there is one.
    pub fn kept(&self) -> Option<Kept> {
        let grains = self.grains();
        (grains != 0).then(|| Kept::of(&self.entry, Piece::Large { grains }))
    }

    /// Takes it, if there is one.
    pub fn pop(&self) -> Option<Kept> {
        self.kept().inspect(|_| self.grains.store(0, Relaxed))
    }
}
