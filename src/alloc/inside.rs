//! Calls of an owner that is inside the gate of its cache: what the exported functions go through, one after the other, until one has or keeps
//! the block. Nothing in any of them can fail.
//!
//! Lock: the gate of the cache, which the owner has entered.

use super::cache::Cache;
use super::directory::{Look, Spot};
use super::gate::Gate;
use super::kept::Larger;
use super::size::plain_class;

/// An owner that is inside the gate of a cache, in one word. What it finds there decides how it goes on, so that each way out is a
/// short one.
#[derive(Debug)]
#[repr(transparent)]
pub struct Inside<'a>(&'a Cache);

/// An owner that came to the shut gate of a cache. It has not turned round yet, so what the gate said of the tape holds.
#[derive(Debug)]
#[repr(C)]
pub struct Refused<'a> {
    cache: &'a Cache,
    word: u32,
}

impl Cache {
    /// The owner goes in, where it needs no fence of its own and has nothing to ask. Nothing in it can fail.
    #[inline(always)]
    pub fn enter_quick(&self) -> Result<Inside<'_>, Refused<'_>> {
        match self.gate.enter_quick() {
            0 => Ok(Inside(self)),
            word => Err(Refused { cache: self, word }),
        }
    }

    /// The same where it may need one, and has asked what it has to ask.
    #[inline(always)]
    pub fn enter_asked(&self) -> Result<Inside<'_>, Refused<'_>> {
        match self.gate.enter_asked() {
            0 => Ok(Inside(self)),
            word => Err(Refused { cache: self, word }),
        }
    }
}

impl Refused<'_> {
    /// The block that the same call of the round before got, if the owner's calls are answered from the tape and the program does the same
    /// again.
    #[inline(always)]
    pub fn replay_alloc(&self, bytes: u64) -> Option<u64> {
        Gate::is_to_tape(self.word).then(|| self.cache.replay_alloc_inside(bytes))?
    }

    /// The same of a free: the block's bytes.
    #[inline(always)]
    pub fn replay_free(&self, at: u64) -> Option<u64> {
        Gate::is_to_tape(self.word).then(|| self.cache.replay_free_inside(at))?
    }
}

impl Drop for Refused<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.cache.gate.leave();
    }
}

impl<'a> Inside<'a> {
    /// Where the owner is.
    #[inline(always)]
    pub fn cache(&self) -> &'a Cache {
        self.0
    }

    /// The owner takes a slab's block for a request.
    #[inline(always)]
    pub fn take_small(&self, bytes: u64) -> Option<u64> {
        let class = plain_class(bytes)?;
        let place = self.0.lists.pop_small(class)?;
        Some(self.0.hand_out(self.0.begin_small(class, place)))
    }

    /// One of no slab, aligned as all are, for a request that none of a slab can serve and that is not long.
    #[inline(always)]
    pub fn take_short(&self, bytes: u64) -> Option<u64> {
        let quick = self.take_latest(bytes).or_else(|| self.take_near(bytes));
        quick.or_else(|| self.take_far(bytes))
    }

    /// The same if that is the one that was freed last.
    #[inline(always)]
    pub fn take_latest(&self, bytes: u64) -> Option<u64> {
        self.begin(self.0.lists.pick_latest(bytes))
    }

    /// Another one for such a request, if it is hardly longer.
    #[inline(always)]
    pub fn take_near(&self, bytes: u64) -> Option<u64> {
        self.begin(self.0.lists.pick_near(bytes))
    }

    /// What is left for such a request that these have nothing for.
    pub fn take_far(&self, bytes: u64) -> Option<u64> {
        self.begin(self.0.lists.pick_far(bytes))
    }

    /// The same for a long request.
    #[inline(always)]
    pub fn take_long(&self, bytes: u64) -> Option<u64> {
        self.begin(self.0.lists.pick_long(bytes))
    }

    #[inline(always)]
    fn begin(&self, larger: Option<Larger>) -> Option<u64> {
        larger.map(|larger| self.0.hand_out(self.0.begin_larger(larger)))
    }

    /// Is a request for so many bytes, that none of a slab can serve, for a long block?
    #[inline(always)]
    pub fn is_for_long(&self, bytes: u64) -> bool {
        bytes > self.0.long_from()
    }

    /// The class of the blocks there, if they are of a slab of the cache's stream.
    #[inline(always)]
    pub fn class(&self, look: Look) -> Option<usize> {
        look.class(&self.0.marks)
    }

    /// Is it one of no slab that the owner alone may free?
    #[inline(always)]
    pub fn is_own(&self, look: Look) -> bool {
        look.is_own(&self.0.marks, &self.0.standing)
    }

    /// Is it long, if it is a block of no slab?
    #[inline(always)]
    pub fn is_long(&self, look: Look) -> bool {
        look.is_longer(self.0.lists.long_from())
    }

    /// Has the cache a block that came last, and is on no list?
    #[inline(always)]
    pub fn has_latest(&self) -> bool {
        self.0.lists.has_latest()
    }

    /// Keeps a block of that class that is freed. Gives its bytes.
    #[inline(always)]
    pub fn keep_small(&self, at: u64, class: usize, spot: Spot) -> Option<u64> {
        self.0.put_small(at, class, spot)
    }

    /// The same for its own of no slab that is not long, where there is no such block.
    #[inline(always)]
    pub fn keep_latest(&self, at: u64, look: Look) -> Option<u64> {
        self.0.put_latest(at, look, true)
    }

    /// The same where there is one.
    #[inline(always)]
    pub fn keep_next(&self, at: u64, look: Look) -> Option<u64> {
        self.0.put_next(at, look, true)
    }

    /// The same for a long one.
    #[inline(always)]
    pub fn keep_long(&self, at: u64, look: Look) -> Option<u64> {
        self.0.put_long(at, look, true)
    }

    /// The same for any of no slab.
    #[inline(always)]
    pub fn keep_any(&self, at: u64, look: Look) -> Option<u64> {
        self.0.put_any(at, look)
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}
