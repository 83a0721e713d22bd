//! How the owner of a cache stands: whether anybody else may free a block that it is freeing at that moment.
//!
//! Lock: raised by the owner itself, lowered behind the shut gate of its cache, under the heap's lock (`sole`).

use super::directory::Marks;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Who is alone?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Sole {
    /// Nobody.
    No = 0,
    /// The owner frees what the caches for its stream hand out, and the blocks of that stream's slabs.
    OfStream = 1,
    /// The owner calls the pool.
    OfPool = 2,
}

/// What the owner of a cache is told of that.
#[derive(Debug)]
pub struct Standing {
    sole: AtomicU8,
    /// What the directory is to say of a block of no slab that the cache hands out.
    handed_out: AtomicU64,
}

impl Standing {
    /// That of an owner who is not alone, of a cache with these marks.
    pub fn of(marks: &Marks) -> Standing {
        Standing {
            sole: AtomicU8::new(Sole::No as u8),
            handed_out: AtomicU64::new(marks.handed_out(false)),
        }
    }

    /// From now on it is this.
    pub fn set(&self, sole: Sole, marks: &Marks) {
        self.sole.store(sole as u8, Relaxed);
        self.handed_out.store(marks.handed_out(sole != Sole::No), Relaxed);
    }

    /// Is it this?
    pub fn is(&self, sole: Sole) -> bool {
        self.sole.load(Relaxed) == sole as u8
    }

    /// Does the owner, who is inside the gate, alone free the blocks of its stream?
    #[inline(always)]
    pub fn is_sole(&self) -> bool {
        !self.is(Sole::No)
    }

    /// Does it alone call the pool?
    #[inline(always)]
    pub fn is_sole_of_pool(&self) -> bool {
        self.is(Sole::OfPool)
    }

    /// What the directory is to say of a block of no slab that is handed out.
    #[inline(always)]
    pub fn handed_out(&self) -> u64 {
        self.handed_out.load(Relaxed)
    }
}
