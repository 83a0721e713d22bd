//! Do threads with caches call at the same time, or in turn? In turn where one thread's work follows on the other's, as a
//! backward pass that has a thread of its own follows on the forward pass. Then the pool is as it is with one thread: what a thread keeps
//! comes back to the heap when another one's turn begins, so where blocks lie is no chance.
//!
//! A turn is what the heap is called for until another thread asks it for a block. Threads at the same time have short ones, or every other
//! is short, or they wait for each other: who waits for a lock comes to have it for many calls.
//!
//! Where nearly all calls are one stream's, threads that call for others do not count: they are guests (`guests`).
//!
//! No lock of its own: the heap's.

use super::cache::{Cache, ThreadId};
use super::flush::Whose;
use super::heap::Heap;
use super::order::COMMON;
use std::sync::Arc;

/// A turn of fewer calls of the heap is short.
const SHORT: u64 = 64;
/// It is found out anew after so many turns; so many of them may be short. (Pages that moved by chance for eight rounds, rather than three,
/// go on moving: `gpt-train-recompute` in two turns never settled where this was 16.)
const TURNS: u32 = 6;
const FEW: u32 = 1;

/// Who called the heap, and when.
#[derive(Debug, Default)]
pub struct Turns {
    /// Whose turn it is.
    owner: Option<ThreadId>,
    /// Calls of the heap when it began.
    begun: u64,
    /// Turns since it was found out last whether threads take turns, and how many of them were short, or met another one's.
    all: u32,
    short: u32,
    in_turn: bool,
    /// The stream that nearly all calls are of, if there are others: only those of its threads count.
    main: Option<u32>,
    /// Several threads call at the same time.
    several: bool,
}

impl Turns {
    /// Is each call that of one thread for a good while?
    pub fn are_taken(&self) -> bool {
        self.in_turn
    }

    /// Another thread's begins, after so many calls of the heap.
    fn begin(&mut self, owner: ThreadId, calls: u64) {
        let last = calls.wrapping_sub(std::mem::replace(&mut self.begun, calls));
        self.owner = Some(owner);
        self.all += 1;
        self.short += u32::from(last < SHORT);
        if self.all == TURNS {
            self.in_turn = self.short <= FEW;
            (self.all, self.short) = (0, 0);
        } else if self.short > FEW {
            self.in_turn = false;
        }
    }

    /// Somebody had to wait for the heap.
    fn meet(&mut self) {
        self.short = self.short.saturating_add(1);
        self.in_turn &= self.short <= FEW;
    }
}

impl Heap {
    /// The owner of a cache asks for a block. (A free begins no turn: what comes back then takes memory to find out.)
    #[inline(always)]
    pub fn take_turn(&mut self, own: &Cache) {
        if self.caches.turns.owner != Some(own.owner) {
            self.begin_turn(own);
        }
    }

    #[inline(never)]
    fn begin_turn(&mut self, own: &Cache) {
        if self.caches.turns.main.is_some_and(|main| main != own.arena) {
            return; // a guest's
        }
        let owner = own.owner;
        let calls = self.stats.allocations.wrapping_add(self.stats.frees);
        self.see_turns(|turns| turns.begin(owner, calls));
        // where memory is partitioned what another thread keeps is of no use to this one
        if self.caches.turns.are_taken() && !self.sharing.is_by_threads() {
            self.flush(Whose::Others(owner), |_| false);
        }
    }

    /// Do several threads call at the same time? Not if all but one call for streams of their own, and seldom.
    pub(super) fn has_several_threads(&self) -> bool {
        self.caches.turns.several
    }

    /// Looks whose calls matter.
    pub(super) fn see_threads(&mut self) {
        let own = |cache: &&Arc<Cache>| cache.arena != COMMON && self.is_main(cache.arena);
        let main = match self.has_several_streams() {
            true => self.caches().iter().find(own).map(|cache| cache.arena),
            false => None,
        };
        let count = |cache: &&Arc<Cache>| main.is_none_or(|main| main == cache.arena);
        let mut owners = self.caches().iter().filter(count).map(|cache| cache.owner);
        let first = owners.next();
        let several = !self.caches.turns.are_taken() && owners.any(|owner| Some(owner) != first);
        (self.caches.turns.main, self.caches.turns.several) = (main, several);
        (self.replay.several, self.replay.looked) = (self.may_be_company(), 0);
    }

    /// Somebody had to wait for the heap.
    pub(super) fn meet_in_turn(&mut self) {
        self.see_turns(Turns::meet);
    }

    fn see_turns(&mut self, what: impl FnOnce(&mut Turns)) {
        let before = self.caches.turns.are_taken();
        what(&mut self.caches.turns);
        if self.caches.turns.are_taken() != before {
            self.count_caches();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Do threads take turns that have had turns of so many calls?
    fn taken(lengths: impl IntoIterator<Item = u64>) -> bool {
        let (mut turns, mut calls) = (Turns::default(), 0);
        for (number, length) in lengths.into_iter().enumerate() {
            turns.begin(ThreadId(number as u64 % 2), calls);
            calls += length;
        }
        turns.are_taken()
    }

    #[test]
    fn long_turns_are_told_from_calls_at_the_same_time() {
        let long = |_| SHORT;
        assert!(taken((0..=TURNS).map(long)));
        assert!(!taken((0..TURNS - 1).map(long)), "it is yet to be seen");
        assert!(!taken((0..10 * TURNS).map(|_| 3)), "all at once");
        let now_and_then = |number| [10 * SHORT, 1][number as usize % 2];
        assert!(
            !taken((0..10 * TURNS).map(now_and_then)),
            "one calls now and then"
        );
        let seldom = |number| if number % 10 == 0 { 1 } else { SHORT };
        assert!(taken((0..10 * TURNS).map(seldom)));
    }

    #[test]
    fn they_are_not_taken_any_more_once_some_are_short() {
        let lengths = |short| (0..=TURNS).map(|_| SHORT).chain((0..=short).map(|_| 1));
        assert!(taken(lengths(FEW)));
        assert!(!taken(lengths(FEW + 1)));
    }

    #[test]
    fn nor_once_some_have_met() {
        let mut turns = Turns::default();
        (0..=u64::from(TURNS)).for_each(|number| turns.begin(ThreadId(number % 2), number * 10 * SHORT));
        for _ in 0..FEW {
            turns.meet();
            assert!(turns.are_taken());
        }
        turns.meet();
        assert!(!turns.are_taken());
        // and not as long as they do
        for number in 0..u64::from(10 * TURNS) {
            (0..=FEW).for_each(|_| turns.meet());
            turns.begin(ThreadId(number % 2), (number + 100) * 10 * SHORT);
            assert!(!turns.are_taken());
        }
    }
}
