//! How streams come by what others have freed.
//!
//! What one stream freed is another's once its work is seen to be complete. Where the host is ahead of the streams, when
//! that is is chance: what a request finds differs from round to round, other pages have to be moved for it each time, and no
//! round finds the layout of the one before. So if rounds that begin alike go on mapping pages, and looks at other
//! streams are in vain, or that has gone on for long, what a request finds is no longer to depend on how far work has come:
//!
//! - Memory is *partitioned* if that costs little of it and streams pass little on: what a stream freed stays its own, its work complete
//!   or not, and the pool may hold what the streams need apart.
//! - Else streams *wait* for each other: a request that finds nothing of its own stream's has the stream wait for the one with the longest
//!   free extent, whose memory then is the asking one's (as where RMM's pool takes from another stream's list), without a look.
//!
//! What a request finds then depends on the requests before it alone, and rounds settle as those of one stream do. Only a request that would
//! have the pool hold yet more looks at other streams.
//!
//! What streams need apart is the sum, over all of them, of the most that each took in a round beyond what was freed on it. One that came in this
//! round and was forgotten in it may have been made for a request alone: it counts once it is known to come again.
//! A pool that may do neither goes on as it is; but it knows that its rounds differ by chance, and may hold more so that pages need not
//! move (`leeway`).
//!
//! No lock of its own: the heap's. Callers: `rest` begins rounds and counts what they map, `pool::order` tells of looks at
//! streams, `waited` and `look` of replays that found them at work, `pool::others` asks.

use super::heap::Heap;
use crate::base::units::Timeline;
use rustc_hash::{FxHashMap, FxHashSet};

/// So many rounds that begin alike and map pages, with none between that begins otherwise, differ by chance...
const ROUNDS: u32 = 16;
/// ...of which a busy one counts for so many, whether it maps pages or not; another one that maps none takes back as many. (Where a round
/// maps thousands of pages streams have come to their end before anybody looks.)
const BUSY: u32 = 4;
/// A round is busy if so many looks at streams found them at work. One that is idle is late now and then.
const VAIN: u64 = 16;
/// One with any such look counts as much if it maps more than one in so many of the pages of the round before: to map them gives streams
/// the time to come to their end, and as long as that is so rounds come no nearer to a layout that lasts.
const FEWER: u64 = 2;
/// Streams that keep to themselves may need so many times what is in use, in halves, or what is held anyway.
const MOST_HALVES: u64 = 5;
/// What was needed apart counts for so much less with each round that needs less.
const FADES: u64 = 8;
/// Unless one part in so many of what is in use, or more, was taken on some streams in a round and freed on others.
const PASSED: u64 = 16;
/// So many streams that were forgotten are remembered in a round.
const GONE: usize = 64;
/// After so many looks in vain in a row a look at a stream does not wait...
const PATIENCE: u32 = 8;
/// ...for so many looks.
const IMPATIENCE: u32 = 63;
/// After so many looks at rests that found streams at work, where they wait for each other, rests do not look any more.
const LATE: u32 = 3;

/// How one stream comes by what another one freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// Once the pool has seen that the other one's work is complete.
    #[default]
    Looks,
    /// It waits for the other one.
    Waits,
    /// Not at all.
    Apart,
}

/// What a pool may do where rounds differ by chance.
#[derive(Clone, Copy, Debug)]
pub struct May {
    /// Streams may wait for each other, and the pool hold a little more than it needs.
    pub wait: bool,
    /// It may hold what they need apart.
    pub part: bool,
}

/// Bytes that a stream has taken in this round beyond those freed on it, and the most of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    now: i64,
    most: i64,
    /// The stream was there in the round before, or came again in this one.
    again: bool,
}

/// How they do, and what says so.
#[derive(Debug, Default)]
pub struct Sharing {
    way: Way,
    /// Not at all, since each is a thread's own (`partition`): rounds say nothing.
    by_threads: bool,
    /// Looks at a stream that found it at work, in this round.
    vain: u64,
    /// Pages mapped in this round, and in the one before.
    mapped: u64,
    mapped_before: u64,
    /// There was more than one stream in this round.
    several: bool,
    /// What streams took that were forgotten in this round, and may come back.
    gone: FxHashMap<Timeline, Taken>,
    /// The streams of the round before.
    before: FxHashSet<Timeline>,
    /// Rounds that map pages, of those that begin alike.
    by_chance: u32,
    /// Replays that ended since they waited for streams too long.
    waited: u32,
    /// What is needed if no stream gets what another one freed.
    need: u64,
    /// Looks at rests that found streams at work, since these wait for each other.
    late: u32,
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

impl Sharing {
    /// Do streams keep to themselves?
    #[inline(always)]
    pub fn is_apart(&self) -> bool {
        self.way == Way::Apart
    }

    /// The same because each is a thread's own?
    #[inline(always)]
    pub fn is_by_threads(&self) -> bool {
        self.by_threads
    }

    /// Streams keep to themselves, and need so much, as long as each is a thread's own.
    pub(super) fn part_by_threads(&mut self, need: u64) {
        (self.way, self.by_threads, self.need) = (Way::Apart, true, need);
    }

    /// Do they wait for each other, complete or not?
    pub fn is_by_waits(&self) -> bool {
        self.way == Way::Waits
    }

    /// Does what a request finds depend on how far work has come?
    pub fn is_by_looks(&self) -> bool {
        self.way == Way::Looks
    }

    /// Do rounds differ by chance?
    pub fn is_by_chance(&self) -> bool {
        self.is_by_looks() && self.differs_by_chance()
    }

    /// (Once rounds came again it is known what streams need apart.)
    fn differs_by_chance(&self) -> bool {
        self.by_chance >= ROUNDS || self.waited > 0 && self.need > 0
    }

    /// Where streams wait for each other: how many times as long as at first does a rest wait for what is queued? None: it does not look.
    /// Whether streams whose work is about as long as the host takes to queue it have come to their end at a rest is chance, so either
    /// all rests wait until they have, or none does.
    pub fn patience_at_rest(&self) -> Option<u32> {
        (self.late < LATE).then(|| 1 << (2 * self.late))
    }

    /// A rest has looked, and found streams at work.
    pub fn late_at_rest(&mut self) {
        self.late += 1;
    }

    /// Is the host ahead of its streams in this round?
    pub(super) fn is_busy(&self) -> bool {
        self.vain >= VAIN
    }

    /// It was found to be so in a replay.
    pub(super) fn found_busy(&mut self) {
        self.vain = self.vain.max(VAIN);
    }

    /// A replay waited for streams too long, in as many looks as it takes: rounds differ by chance from now on, however they begin.
    pub(super) fn found_waiting(&mut self) {
        self.waited += 1;
    }

    /// How often was it?
    pub(super) fn has_waited(&self) -> u32 {
        self.waited
    }

    /// Pages were mapped for a request.
    pub(super) fn mapped(&mut self, pages: u64) {
        self.mapped += pages;
    }

    /// A round begins, like the one before or `again` not. Streams needed so much `apart` in that one. The pool needs `needed` if
    /// they share, and holds `held`.
    fn begin_round(&mut self, again: bool, apart: u64, needed: u64, held: u64, may: May) {
        let (busy, mapped) = (self.is_busy(), self.mapped > 0);
        let lasts = self.vain > 0 && self.mapped * FEWER > self.mapped_before;
        self.mapped_before = std::mem::take(&mut self.mapped);
        self.vain = 0;
        if again {
            // a rest between two rounds may have been taken for their end
            self.need = apart.max(self.need - self.need / FADES);
        }
        if self.is_by_looks() {
            self.by_chance = match (again, mapped || busy) {
                (true, true) => self.by_chance + if busy || lasts { BUSY } else { 1 },
                // one may come to need no page by chance, too
                (true, false) => self.by_chance.saturating_sub(BUSY),
                (false, _) => 0,
            };
        }
        let chance = self.differs_by_chance();
        let is_worth_it = self.need * 2 <= needed * MOST_HALVES || self.need <= held;
        let parts = may.part && (self.is_apart() || self.is_by_looks() && is_worth_it);
        self.way = match chance {
            true if parts => Way::Apart,
            true if may.wait => Way::Waits,
            _ => Way::Looks,
        };
        if !self.is_by_waits() {
            self.late = 0;
        }
    }

    /// Less may be needed from now on.
    pub fn end(&mut self) {
        *self = Sharing::default();
    }
}

impl Heap {
    /// What the pool needs: the most that was in use, or what streams need that keep to themselves.
    pub fn base(&self) -> u64 {
        match self.sharing.is_apart() {
            true => self.need_apart(),
            false => self.needed,
        }
    }

    /// What it would need if streams kept to themselves, as far as is known.
    pub fn need_apart(&self) -> u64 {
        self.needed.max(self.sharing.need)
    }

    /// What streams have needed apart in this round so far.
    pub fn apart_so_far(&self) -> u64 {
        let gone = self.sharing.gone.values().filter(|taken| taken.again);
        let gone = gone.map(|taken| taken.most as u64);
        // what one needed that has ended others have by now
        let here = self.streams().filter(|&stream| !self.arena(stream).ended);
        let here = here.map(|stream| self.arena(stream).taken.most as u64);
        gone.chain(here).sum()
    }

    /// Streams that have ended, and of which something is free.
    pub fn ended_streams(&self) -> Vec<u32> {
        let has = |&stream: &u32| self.arena(stream).ended && !self.arena(stream).bins.is_empty();
        self.streams().filter(has).collect()
    }

    /// The same once this stream gets so much more.
    pub fn apart_with(&self, stream: u32, bytes: u64) -> u64 {
        let Taken { now, most, .. } = self.arena(stream).taken;
        self.apart_so_far() + (now + bytes as i64 - most).max(0) as u64
    }

    /// A request looked whether the work of a stream is complete.
    pub fn looked(&mut self, stream: u32, in_vain: bool) {
        self.sharing.vain += u64::from(in_vain);
        self.partition.vain += u32::from(in_vain);
        if in_vain && self.replay.company.is_several() {
            self.replay.recording.looked_in_vain();
        }
        if let Some(arena) = self.arenas[stream as usize].as_mut() {
            arena.patience.looked(in_vain);
        }
    }

    /// A stream has taken `bytes`.
    #[inline(always)]
    pub(super) fn took(&mut self, stream: u32, bytes: u64) {
        let arena = self.arena_mut(stream);
        arena.served += 1;
        arena.holds += bytes as i64;
        let taken = &mut arena.taken;
        taken.now += bytes as i64;
        taken.most = taken.most.max(taken.now);
    }

    /// They were freed on a stream.
    #[inline(always)]
    pub(super) fn got_back(&mut self, stream: u32, bytes: u64) {
        let arena = self.arena_mut(stream);
        arena.holds -= bytes as i64;
        arena.taken.now -= bytes as i64;
    }

    /// A stream has come. It may have been forgotten in this round with blocks that are in use.
    pub(super) fn recall(&mut self, id: Timeline) -> Taken {
        self.sharing.several |= self.has_several_streams();
        let gone = self.sharing.gone.remove(&id);
        Taken {
            again: gone.is_some() || self.sharing.before.contains(&id),
            ..gone.unwrap_or_default()
        }
    }

    /// A stream is forgotten.
    pub(super) fn remember(&mut self, id: Timeline, taken: Taken) {
        let gone = &mut self.sharing.gone;
        // a program that makes streams without end has no rounds
        if gone.len() < GONE && taken.most > 0 {
            gone.insert(id, taken);
        }
    }

    /// Was there more than one stream in this round? All may be forgotten at its end.
    pub fn had_several_streams(&self) -> bool {
        self.sharing.several || self.has_several_streams()
    }

    /// A round begins, with so much in use, like the one before or `again` not.
    pub(super) fn begin_round_of_streams(&mut self, used: u64, again: bool, may: May) {
        let apart = used + self.apart_so_far();
        self.sharing.before.clear();
        let mut passed = 0;
        for (id, taken) in self.sharing.gone.drain() {
            self.sharing.before.insert(id);
            passed += taken.now.max(0) as u64;
        }
        for stream in self.streams_now() {
            let again = Taken {
                again: true,
                ..Taken::default()
            };
            let taken = std::mem::replace(&mut self.arena_mut(stream).taken, again);
            passed += taken.now.max(0) as u64;
        }
        // a stream alone has nobody to share with, and what streams pass on would have to come back
        let several = self.had_several_streams();
        self.sharing.several = false;
        let may = May {
            wait: may.wait && several,
            part: may.part && several && passed <= self.needed / PASSED,
        };
        let was = self.sharing.way;
        let (needed, held) = (self.needed, self.stats.reserved);
        self.sharing
            .begin_round(again && several, apart, needed, held, may);
        if !self.sharing.is_by_looks() && self.sharing.way != was {
            // there is an order now
            self.leeway.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::Directory;
    use super::super::order::{COMMON, Reuse};
    use super::*;
    use crate::base::units::StreamId;
    use std::sync::Arc;

    const ANY: May = May {
        wait: true,
        part: true,
    };
    const NONE: May = May {
        wait: false,
        part: false,
    };

    fn heap() -> Heap {
        let reuse = Reuse {
            event_dependencies: true,
            opportunistic: true,
            internal_dependencies: true,
        };
        let directory = Arc::new(Directory::new().expect("addresses"));
        Heap::new(2 << 20, reuse, u64::MAX, directory)
    }

    /// A round like the one before, with so many looks in vain, and pages mapped.
    fn round(sharing: &mut Sharing, vain: u64, mapped: u64, apart: u64, may: May) {
        (sharing.vain, sharing.mapped) = (vain, mapped);
        sharing.begin_round(true, apart, 100, 200, may);
    }

    #[test]
    fn rounds_that_differ_by_chance_partition_memory() {
        let mut sharing = Sharing::default();
        for _ in 1..ROUNDS / BUSY {
            round(&mut sharing, VAIN, 1, 150, ANY);
            assert!(sharing.is_by_looks());
        }
        round(&mut sharing, VAIN, 1, 150, ANY);
        assert!(sharing.is_apart());
        // and nothing is looked at any more
        round(&mut sharing, 0, 1, 150, ANY);
        assert!(sharing.is_apart());
        sharing.begin_round(true, 150, 100, 200, May { part: false, ..ANY });
        assert!(sharing.is_by_waits(), "the pool may not hold so much");
        sharing.begin_round(true, 150, 100, 200, ANY);
        assert!(sharing.is_by_waits(), "not to and fro");
        sharing.begin_round(true, 150, 100, 200, NONE);
        assert!(sharing.is_by_chance());
        sharing.end();
        assert!(sharing.is_by_looks() && !sharing.is_by_chance());
    }

    #[test]
    fn rounds_of_a_replay_that_waited_differ_by_chance_however_the_next_ones_begin() {
        let mut sharing = Sharing::default();
        sharing.found_waiting();
        sharing.begin_round(false, 90, 100, 200, ANY);
        assert!(sharing.is_by_looks(), "what they need apart is not known");
        round(&mut sharing, 0, 0, 150, ANY);
        assert!(sharing.is_apart());
        let mut sharing = Sharing::default();
        round(&mut sharing, 0, 0, 150, ANY);
        sharing.found_waiting();
        sharing.begin_round(false, 90, 100, 200, ANY);
        assert!(sharing.is_apart());
    }

    #[test]
    fn rests_wait_longer_or_not_at_all() {
        let mut sharing = Sharing::default();
        for _ in 0..ROUNDS {
            round(&mut sharing, 0, 1, 500, May { part: false, ..ANY });
        }
        assert!(sharing.is_by_waits());
        let patience = [0; 4].map(|_| {
            let patience = sharing.patience_at_rest();
            sharing.late_at_rest();
            patience
        });
        assert_eq!(patience, [Some(1), Some(4), Some(16), None]);
        round(&mut sharing, 0, 1, 500, May { part: false, ..ANY });
        assert_eq!(sharing.patience_at_rest(), None, "and never again");
        round(&mut sharing, 0, 1, 500, NONE);
        assert_eq!(sharing.patience_at_rest(), Some(1));
    }

    /// Rounds until it is decided, with so many looks in vain, where each maps such a part of the pages of the one before.
    fn rounds_until_decided(vain: u64, part: f64) -> u32 {
        let (mut sharing, mut mapped) = (Sharing::default(), 1e9);
        (1..100)
            .find(|_| {
                round(&mut sharing, vain, mapped as u64, 150, ANY);
                mapped *= part;
                !sharing.is_by_looks()
            })
            .expect("a decision")
    }

    #[test]
    fn a_round_that_comes_no_nearer_to_a_layout_counts_as_a_busy_one() {
        assert_eq!(rounds_until_decided(1, 1.0), ROUNDS / BUSY);
        assert_eq!(rounds_until_decided(1, 0.6), ROUNDS / BUSY);
        assert_eq!(rounds_until_decided(0, 1.0), ROUNDS, "no look was in vain");
        assert_eq!(
            rounds_until_decided(1, 0.4),
            ROUNDS - BUSY + 1,
            "it comes nearer, but for the first"
        );
    }

    #[test]
    fn a_round_that_maps_nothing_takes_back_a_busy_one() {
        let mut sharing = Sharing::default();
        let mut rounds = |vain: u64, mapped: u64, count: u32| {
            (0..count).for_each(|_| round(&mut sharing, vain, mapped, 150, ANY));
            sharing.is_apart()
        };
        assert!(!rounds(VAIN, 1, 3));
        assert!(!rounds(0, 0, 3));
        assert!(!rounds(VAIN, 1, 3), "it had settled");
        assert!(!rounds(0, 0, 1));
        assert!(!rounds(VAIN, 1, 1));
        assert!(rounds(VAIN, 1, 1), "it had not");
    }

    #[test]
    fn rounds_that_settle_do_not() {
        let mut sharing = Sharing::default();
        for _ in 0..10 {
            round(&mut sharing, 0, 1, 150, ANY);
            round(&mut sharing, VAIN, 1, 150, ANY);
            round(&mut sharing, VAIN - 1, 0, 150, ANY);
        }
        assert!(sharing.is_by_looks() && !sharing.is_by_chance());
        let mut sharing = Sharing::default();
        for _ in 0..10 {
            (sharing.vain, sharing.mapped) = (VAIN, 1);
            sharing.begin_round(false, 150, 100, 200, ANY);
        }
        assert!(sharing.is_by_looks() && !sharing.is_by_chance());
    }

    #[test]
    fn several_times_what_is_in_use_is_too_much() {
        let mut sharing = Sharing::default();
        for _ in 0..10 {
            round(&mut sharing, VAIN, 1, 251, ANY);
        }
        assert!(sharing.is_by_waits());
        let mut sharing = Sharing::default();
        for _ in 0..10 {
            round(&mut sharing, VAIN, 1, 251, May { wait: false, ..ANY });
        }
        assert!(sharing.is_by_chance());
        let mut sharing = Sharing::default();
        for _ in 0..ROUNDS / BUSY {
            round(&mut sharing, VAIN, 1, 250, ANY);
        }
        assert!(sharing.is_apart());
        let mut sharing = Sharing::default();
        for _ in 0..ROUNDS / BUSY {
            (sharing.vain, sharing.mapped) = (VAIN, 1);
            sharing.begin_round(true, 300, 100, 300, ANY);
        }
        assert!(sharing.is_apart(), "no less is held where they share");
    }

    #[test]
    fn what_was_taken_for_a_round_is_forgotten() {
        let mut sharing = Sharing::default();
        round(&mut sharing, VAIN, 1, 500, May { wait: false, ..ANY });
        for _ in 0..8 {
            round(&mut sharing, VAIN, 1, 150, May { wait: false, ..ANY });
        }
        assert!(sharing.is_apart() && sharing.need < 250);
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

    /// Streams that are made for a request each never come back.
    #[test]
    fn a_stream_that_was_forgotten_counts_once_it_came_again() {
        let mut heap = heap();
        let id = |stream| Timeline::of(StreamId(stream));
        let life = |heap: &mut Heap, stream| {
            let taken = heap.recall(id(stream));
            heap.remember(id(stream), Taken { most: 100, ..taken });
            heap.apart_so_far()
        };
        assert_eq!((1..50).map(|stream| life(&mut heap, stream)).max(), Some(0));
        assert_eq!(life(&mut heap, 7), 100, "it came again");
        heap.begin_round_of_streams(0, true, NONE);
        assert_eq!(heap.apart_so_far(), 0);
        assert_eq!(
            (life(&mut heap, 60), life(&mut heap, 8)),
            (0, 100),
            "it was there in the round before"
        );
    }

    #[test]
    fn a_stream_needs_more_apart_once_it_has_more_than_ever() {
        let mut heap = heap();
        heap.took(COMMON, 100);
        heap.got_back(COMMON, 60);
        let more = heap.apart_with(COMMON, 60) - heap.apart_so_far();
        assert_eq!(more, 0, "it has had so much");
        assert_eq!(heap.apart_with(COMMON, 80) - heap.apart_so_far(), 20);
    }
}
