//! Blocks that go from one thread's cache to another's, without being the heap's in between: where some threads free what others
//! allocate.
//!
//! A thread that hardly allocates puts what it keeps into the stream's depot whenever its cache is full, and one that found nothing takes
//! it from there. What others keep beyond that, and what threads keep that both allocate and free, whoever holds the heap's lock may
//! pass on: behind their shut gates, which costs more.
//!
//! Lock: the owner's part is inside its gate; `share` and `give_all` are for whoever holds the heap's lock, with the gate of the one shut and the other one's
//! owner outside.

use super::cache::Cache;
use super::depot::HANDFUL;
use super::kept::Kept;
use super::lists::Lists;

impl Cache {
    /// The owner found no block for a request: takes some that others have handed over. False: there are none.
    #[inline]
    pub fn collect(&self) -> bool {
        self.depot.bytes() > 0 && self.collect_some()
    }

    #[inline(never)]
    fn collect_some(&self) -> bool {
        let Some(_pass) = self.gate.enter() else {
            return false;
        };
        let got = self.depot.take(|kept| {
            let room = self.has_room();
            if room {
                self.lists.push(kept);
                self.gain_shared(kept.piece.bytes());
            }
            room
        });
        got > 0
    }

    /// The owner could not keep a block that it frees: if that is because it is full, and it hardly allocates, hands some over to those who
    /// do. Gives whether there is room now.
    #[inline]
    pub fn hand_over(&self) -> bool {
        !self.has_room() && self.make_room()
    }

    #[inline(never)]
    fn make_room(&self) -> bool {
        let Some(_pass) = self.gate.enter() else {
            return false;
        };
        if self.depot.is_closed() || !self.hardly_allocates() {
            self.lists.entries.bring_back();
        } else {
            self.depot.put(|| {
                let kept = self.lists.pop_longest_short()?;
                self.give_away(kept.piece.bytes());
                Some(kept)
            });
        }
        self.has_room()
    }

    /// So many blocks go there at once, if it is used to that.
    pub fn hands_over_at(&self) -> u64 {
        match self.lists.entries.holds_back() {
            true => HANDFUL as u64,
            false => 0,
        }
    }

    /// Does its owner free what others allocate?
    pub fn hardly_allocates(&self) -> bool {
        self.taken() < self.kept() / 2
    }

    /// Half of what it has more than another cache for the same stream, of each length, goes there, as far as there are places. The
    /// long block stays.
    pub fn share(&self, with: &Cache) {
        for list in self.lists.settled() {
            let more = self.lists.length(list).saturating_sub(with.lists.length(list));
            let mut left = more.div_ceil(2);
            while left > 0 && self.give(with, |lists| lists.pop(list)) {
                left -= 1;
            }
        }
    }

    /// All that it has goes to another cache for the same stream, as far as that has room. The long block stays. From now on it is full when
    /// it has a handful, and hands that over.
    pub fn give_all(&self, with: &Cache) {
        while with.has_room() && self.give(with, Lists::pop_longest_short) {}
        self.lists.entries.hold_back(HANDFUL);
    }

    fn give(&self, with: &Cache, block: impl FnOnce(&Lists) -> Option<Kept>) -> bool {
        debug_assert_eq!(self.arena, with.arena);
        if !with.lists.entries.bring_back() {
            return false;
        }
        let Some(kept) = block(&self.lists) else {
            return false;
        };
        let bytes = kept.piece.bytes();
        self.give_away(bytes);
        with.lists.push(kept);
        with.gain_shared(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::ThreadId;
    use super::super::depot::Depot;
    use super::super::directory::{CELL, Directory};
    use super::super::entries::BLOCKS;
    use super::super::lists::LONG;
    use super::*;
    use crate::base::units::StreamHandle;
    use std::sync::Arc;

    const ARENA: u32 = 1;
    const AT: u64 = 1 << 30;
    const BYTES: u64 = 2 * CELL;

    fn at(number: u64) -> u64 {
        AT + number * BYTES
    }

    /// Caches for one stream, and so many live blocks.
    fn caches<const COUNT: usize>(blocks: u64, most: u64) -> ([Cache; COUNT], Arc<Depot>) {
        let directory = Directory::new().expect("addresses");
        directory.cover(AT, blocks * BYTES).expect("room");
        (0..blocks).for_each(|number| directory.begin(at(number), BYTES, false));
        let depot = Arc::<Depot>::default();
        depot.prepare();
        depot.set_limit(most);
        let caches = std::array::from_fn(|number| {
            let mut cache = Cache::new(directory.clone(), Arc::default());
            let owner = ThreadId(number as u64 + 1);
            cache.assign(owner, StreamHandle(1), ARENA, (Arc::default(), depot.clone()));
            cache.set_limits(u64::MAX, LONG);
            cache
        });
        (caches, depot)
    }

    /// Keeps these blocks; gives how often room had to be made.
    fn keep(cache: &Cache, blocks: std::ops::Range<u64>) -> u64 {
        let made_room = |&number: &u64| {
            let full = cache.keep(at(number)).is_none();
            assert!(!full || cache.hand_over() && cache.keep(at(number)).is_some());
            full
        };
        blocks.filter(made_room).count() as u64
    }

    #[test]
    fn what_one_frees_another_one_takes_a_handful_at_a_time() {
        let handful = HANDFUL as u64;
        let ([from, to], depot) = caches(3 * handful, u64::MAX);
        from.lists.entries.hold_back(HANDFUL);
        assert_eq!(keep(&from, 0..3 * handful), 2);
        assert_eq!((from.count(), depot.bytes()), (handful, 2 * handful * BYTES));
        assert!(to.take(BYTES, 0).is_none() && to.collect());
        let taken: Vec<u64> = std::iter::from_fn(|| {
            to.take(BYTES, 0)
                .or_else(|| to.collect().then(|| to.take(BYTES, 0))?)
        })
        .collect();
        assert_eq!(taken.len() as u64, 2 * handful);
        assert_eq!((to.bytes(), depot.bytes(), from.bytes()), (0, 0, handful * BYTES));
        assert!(!to.collect());
    }

    #[test]
    fn it_keeps_all_itself_where_nobody_is_to_take_it() {
        let ([from], depot) = caches(1000, u64::MAX);
        from.lists.entries.hold_back(HANDFUL);
        depot.set_limit(0);
        assert_eq!(keep(&from, 0..1000), 1, "once");
        assert_eq!((from.count(), depot.bytes()), (1000, 0));
        assert_eq!(from.hands_over_at(), 0);
    }

    #[test]
    fn so_does_one_that_allocates_too() {
        let ([from], depot) = caches(1000, u64::MAX);
        from.lists.entries.hold_back(HANDFUL);
        for _ in 0..1000 {
            assert_eq!(from.keep(at(0)), Some(BYTES));
            assert_eq!(from.take(BYTES, 0), Some(at(0)));
        }
        keep(&from, 0..1000);
        assert_eq!((from.count(), depot.bytes()), (1000, 0));
    }

    #[test]
    fn nothing_is_handed_over_beyond_the_limit() {
        let ([from], depot) = caches(1000, 10 * BYTES);
        from.lists.entries.hold_back(HANDFUL);
        // one of them is on no list
        keep(&from, 0..HANDFUL as u64 + 11);
        assert_eq!((from.count(), depot.bytes()), (HANDFUL as u64 + 1, 10 * BYTES));
        assert!(from.keep(at(900)).is_none() && !from.hand_over());
    }

    #[test]
    fn it_is_full_when_hardly_any_place_is_left() {
        let most = (BLOCKS * 15 / 16) as u64;
        let ([from, to], _depot) = caches(most + 1, u64::MAX);
        assert_eq!(keep(&from, 0..most), 0);
        assert!(!from.is_full());
        assert_eq!(keep(&from, most..most + 1), 0);
        assert!(from.is_full());
        // what it hands over is not there any more
        from.share(&to);
        assert!(!from.is_full() && !to.is_full());
        assert_eq!(from.count() + to.count(), most + 1);
    }

    #[test]
    fn all_is_given_as_far_as_there_is_room() {
        let ([from, to], _depot) = caches(1000, u64::MAX);
        keep(&from, 0..500);
        to.set_limits(100 * BYTES, LONG);
        from.give_all(&to);
        assert_eq!(
            (from.count(), to.count(), from.hands_over_at()),
            (400, 100, HANDFUL as u64)
        );
        assert_eq!((from.bytes(), to.bytes()), (400 * BYTES, 100 * BYTES));
    }

    /// It had learned to hand over, and asks for blocks now.
    #[test]
    fn one_that_is_given_a_share_has_places_for_it() {
        let ([from, to], _depot) = caches(1000, u64::MAX);
        to.lists.entries.hold_back(HANDFUL);
        keep(&from, 0..900);
        from.share(&to);
        assert_eq!((from.count(), to.count()), (450, 450));
        assert_eq!((from.bytes(), to.bytes()), (450 * BYTES, 450 * BYTES));
    }
}
