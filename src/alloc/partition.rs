//! Whether streams keep to themselves.
//!
//! What one stream freed is another's once its work is seen to be complete. Where the host is ahead of the streams, when
//! that is is chance: what a request finds differs from round to round, other pages have to be moved for it each time, and no
//! round finds the layout of the one before. So if rounds that begin alike go on mapping pages, and looks at other
//! streams are in vain, or that has gone on for long, memory is *partitioned*: what a stream freed stays its own, its work complete or not,
//! and the pool may hold what the streams need apart. What a request finds then depends on the stream's own requests, and
//! rounds settle as those of one stream do. Only a request that would have the pool hold yet more looks at other streams.
//!
//! What streams need apart is the sum, over all of them, of the most that each took in a round beyond what was freed on it.
//! A pool that would have to hold several times what is in use for it, and holds less, or that may not hold so much, goes on as it
//! is; but it knows that its rounds differ by chance, and may hold more so that pages need not move (`leeway`).
//!
//! No lock of its own: the heap's. Callers: `rest` begins rounds and counts what they map, `pool::order` tells of looks at
//! streams, `pool::miss` asks.

use super::heap::Heap;

/// So many rounds in a row that begin alike and map pages differ by chance...
const ROUNDS: u32 = 12;
/// ...of which one with a look at a stream that found it at work counts for so many. (Where a round maps thousands of pages streams have
/// come to their end before anybody looks.)
const VAIN: u32 = 3;
/// Streams that keep to themselves may need so many times what is in use, in halves, or what is held anyway.
const MOST_HALVES: u64 = 5;
/// What was needed apart counts for so much less with each round that needs less.
const FADES: u64 = 8;
/// Unless one part in so many of what is in use, or more, was taken on some streams in a round and freed on others.
const PASSED: u64 = 16;
/// After so many looks in vain in a row a look at a stream does not wait...
const PATIENCE: u32 = 8;
/// ...for so many looks.
const IMPATIENCE: u32 = 63;

/// Whether they do, and what says so.
#[derive(Debug, Default)]
pub struct Partition {
    on: bool,
    /// Looks at a stream that found it at work, in this round.
    vain: u64,
    /// Pages mapped in this round.
    mapped: u64,
    /// Rounds in a row that map pages.
    by_chance: u32,
    /// What is needed if no stream gets what another one freed.
    need: u64,
}

/// How long a look at a stream waits.
#[derive(Debug, Default)]
pub struct Patience {
    /// Looks in vain in a row, of those that may wait.
    vain: u32,
    /// Looks that do not wait.
    skip: u32,
}

impl Patience {
    /// Does the next look wait?
    pub fn waits(&self) -> bool {
        self.skip == 0
    }

    fn looked(&mut self, in_vain: bool) {
        match (in_vain, self.skip) {
            (false, _) => *self = Patience::default(),
            (true, 0) => {
                self.vain = (self.vain + 1).min(PATIENCE);
                self.skip = if self.vain == PATIENCE { IMPATIENCE } else { 0 };
            }
            (true, _) => self.skip -= 1,
        }
    }
}

impl Partition {
    /// Do streams keep to themselves?
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Do rounds differ by chance?
    pub fn is_by_chance(&self) -> bool {
        !self.on && self.by_chance >= ROUNDS
    }

    /// Pages were mapped for a request.
    pub(super) fn mapped(&mut self, pages: u64) {
        self.mapped += pages;
    }

    /// A round begins, like the one before or `again` not. Streams needed so much `apart` in that one. The pool needs `needed` if
    /// they share, holds `held`, and `may` hold more.
    fn begin_round(&mut self, again: bool, apart: u64, needed: u64, held: u64, may: bool) {
        let (vain, mapped) = (self.vain, self.mapped);
        (self.vain, self.mapped) = (0, 0);
        if again {
            // a rest between two rounds may have been taken for their end
            self.need = apart.max(self.need - self.need / FADES);
        }
        if !self.on {
            match again && mapped > 0 {
                true => self.by_chance += if vain > 0 { VAIN } else { 1 },
                false => self.by_chance = 0,
            }
        }
        let is_worth_it = self.need * 2 <= needed * MOST_HALVES || self.need <= held;
        self.on = may && (self.on || self.is_by_chance() && is_worth_it);
    }

    /// Less may be needed from now on.
    pub fn end(&mut self) {
        *self = Partition::default();
    }
}

impl Heap {
    /// What the pool needs: the most that was in use, or what streams need that keep to themselves.
    pub fn base(&self) -> u64 {
        match self.partition.on {
            true => self.need_apart(),
            false => self.needed,
        }
    }

    /// What it would need if streams kept to themselves, as far as is known.
    pub fn need_apart(&self) -> u64 {
        self.needed.max(self.partition.need)
    }

    /// A request looked whether the work of a stream is complete.
    pub fn looked(&mut self, stream: u32, in_vain: bool) {
        self.partition.vain += u64::from(in_vain);
        if let Some(arena) = self.arenas[stream as usize].as_mut() {
            arena.patience.looked(in_vain);
        }
    }

    /// A stream has taken `bytes`.
    #[inline(always)]
    pub(super) fn took(&mut self, stream: u32, bytes: u64) {
        let arena = self.arena_mut(stream);
        arena.taken += bytes as i64;
        arena.most_taken = arena.most_taken.max(arena.taken);
    }

    /// They were freed on a stream.
    #[inline(always)]
    pub(super) fn got_back(&mut self, stream: u32, bytes: u64) {
        self.arena_mut(stream).taken -= bytes as i64;
    }

    /// A round begins, with so much in use, like the one before or `again` not. The pool `may` hold more than it needs.
    pub(super) fn begin_round_of_streams(&mut self, used: u64, again: bool, may: bool) {
        let (mut apart, mut passed) = (used, 0);
        for stream in self.streams() {
            let arena = self.arena_mut(stream);
            apart += arena.most_taken as u64;
            passed += arena.taken.max(0) as u64;
            (arena.taken, arena.most_taken) = (0, 0);
        }
        // one stream has nobody to keep from, and what streams pass on would have to come back
        let again = again && self.has_several_streams();
        let may = may && self.has_several_streams() && passed <= self.needed / PASSED;
        let was = self.partition.is_on();
        self.partition
            .begin_round(again, apart, self.needed, self.stats.reserved, may);
        if self.partition.is_on() && !was {
            // there is an order within each stream
            self.leeway.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round like the one before, with so many looks in vain, and pages mapped.
    fn round(partition: &mut Partition, vain: u64, mapped: u64, apart: u64) {
        (partition.vain, partition.mapped) = (vain, mapped);
        partition.begin_round(true, apart, 100, 200, true);
    }

    #[test]
    fn rounds_that_differ_by_chance_partition_memory() {
        let mut partition = Partition::default();
        for _ in 1..ROUNDS / VAIN {
            round(&mut partition, 1, 1, 150);
            assert!(!partition.is_on());
        }
        round(&mut partition, 1, 1, 150);
        assert!(partition.is_on());
        // and nothing is looked at any more
        round(&mut partition, 0, 1, 150);
        assert!(partition.is_on());
        partition.begin_round(true, 150, 100, 200, false);
        assert!(!partition.is_on(), "the pool may not hold so much");
    }

    #[test]
    fn rounds_that_settle_do_not() {
        let mut partition = Partition::default();
        for _ in 0..10 {
            round(&mut partition, 0, 1, 150);
            round(&mut partition, 1, 1, 150);
            round(&mut partition, 1, 0, 150);
        }
        assert!(!partition.is_on() && !partition.is_by_chance());
        let mut partition = Partition::default();
        for _ in 0..10 {
            (partition.vain, partition.mapped) = (1, 1);
            partition.begin_round(false, 150, 100, 200, true);
        }
        assert!(!partition.is_on());
    }

    #[test]
    fn several_times_what_is_in_use_is_too_much() {
        let mut partition = Partition::default();
        for _ in 0..10 {
            round(&mut partition, 1, 1, 251);
        }
        assert!(!partition.is_on() && partition.is_by_chance());
        let mut partition = Partition::default();
        for _ in 0..ROUNDS / VAIN {
            round(&mut partition, 1, 1, 250);
        }
        assert!(partition.is_on());
        let mut partition = Partition::default();
        for _ in 0..ROUNDS / VAIN {
            (partition.vain, partition.mapped) = (1, 1);
            partition.begin_round(true, 300, 100, 300, true);
        }
        assert!(partition.is_on(), "no less is held where they share");
    }

    #[test]
    fn what_was_taken_for_a_round_is_forgotten() {
        let mut partition = Partition::default();
        round(&mut partition, 1, 1, 500);
        for _ in 0..8 {
            round(&mut partition, 1, 1, 150);
        }
        assert!(partition.is_on() && partition.need < 250);
    }

    #[test]
    fn who_waited_in_vain_waits_less() {
        let mut patience = Patience::default();
        let mut waited = 0;
        for _ in 0..1000 {
            waited += u32::from(patience.waits());
            patience.looked(true);
        }
        assert_eq!(waited, PATIENCE + (1000 - PATIENCE) / (IMPATIENCE + 1));
        patience.looked(false);
        assert!(patience.waits());
    }
}
