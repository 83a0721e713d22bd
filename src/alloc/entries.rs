//! The entries that the lists of a cache consist of: those on lists, and a chain of spare ones.
//!
//! Part of the chain can be held back. A cache whose owner hands its blocks over is then full after a handful of them, of which it finds
//! out as it does when it is full otherwise.
//!
//! An entry's number says how many bytes before it the others take, so that to find it is an addition.
//!
//! Invariant: an entry is on a list, or on one of the chains.
//! Lock: that of the cache. Everything is an atomic accessed by plain loads and stores.

use crate::backend::sparse::{Memo, Site};
use std::iter::repeat_with;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

/// Blocks a cache can keep, and one entry more, the last, that never has one: its number stands for none.
pub const BLOCKS: usize = 2048;
/// No entry.
pub const NONE: u16 = u16::MAX;
/// From one entry's number to the next one's.
const STEP: usize = size_of::<Entry>();
const _: () = assert!(BLOCKS * STEP == NONE as usize + 1, "NONE is within the last one");

/// A place for a block that is kept.
#[derive(Debug)]
pub struct Entry {
    /// Its address.
    at: AtomicU64,
    /// Where the directory has it.
    site: Memo,
    /// Free of this number, at the latest.
    pub seq: AtomicU64,
    /// The next entry of the list, or of the chain.
    pub next: AtomicU16,
}

impl Entry {
    /// Without a block.
    pub const fn empty() -> Entry {
        Entry {
            at: AtomicU64::new(0),
            site: Memo::empty(),
            seq: AtomicU64::new(0),
            next: AtomicU16::new(NONE),
        }
    }

    /// It is for that block from now on.
    #[inline(always)]
    pub fn set(&self, (at, site): (u64, Site), seq: u64) {
        self.at.store(at, Relaxed);
        self.site.set(site);
        self.seq.store(seq, Relaxed);
    }

    /// Where the block begins, and where the directory has it.
    #[inline(always)]
    pub fn place(&self) -> (u64, Site) {
        (self.at.load(Relaxed), self.site.get())
    }

    /// All of them, each with the next one; the last has none. They are never on the stack: a thread's may be no longer than they are.
    fn chain() -> Box<[Entry; BLOCKS]> {
        let mut all: Vec<Entry> = repeat_with(Entry::empty).take(BLOCKS).collect();
        for (place, entry) in all[..BLOCKS - 2].iter_mut().enumerate() {
            entry.next = AtomicU16::new(((place + 1) * STEP) as u16);
        }
        all.try_into().expect("as many")
    }
}

/// All entries of a cache.
#[derive(Debug)]
pub struct Entries {
    all: Box<[Entry; BLOCKS]>,
    /// The first of those to be used.
    spare: AtomicU16,
    /// The first of those held back.
    held_back: AtomicU16,
}

impl Default for Entries {
    fn default() -> Entries {
        Entries {
            all: Entry::chain(),
            spare: AtomicU16::new(0),
            held_back: AtomicU16::new(NONE),
        }
    }
}

impl Entries {
    /// The entry. No number is beyond all of them.
    #[inline(always)]
    pub fn get(&self, id: u16) -> &Entry {
        &self.all[usize::from(id) / STEP]
    }

    /// The next one to be used, or `NONE`.
    #[inline(always)]
    pub fn spare(&self) -> u16 {
        self.spare.load(Relaxed)
    }

    /// That one is on a list from now on.
    #[inline(always)]
    pub fn use_spare(&self) -> (u16, &Entry) {
        let id = self.spare();
        debug_assert_ne!(id, NONE);
        let entry = self.get(id);
        self.spare.store(entry.next.load(Relaxed), Relaxed);
        (id, entry)
    }

    /// It is on no list any more.
    #[inline(always)]
    pub fn retire(&self, id: u16) {
        self.get(id).next.store(self.spare(), Relaxed);
        self.spare.store(id, Relaxed);
    }

    /// From now on there are no more to be used than so many, and one for each that leaves its list.
    pub fn hold_back(&self, but: usize) {
        if self.holds_back() {
            return;
        }
        let mut last = self.spare();
        for _ in 1..but {
            if last == NONE {
                return;
            }
            last = self.get(last).next.load(Relaxed);
        }
        if last != NONE {
            self.held_back
                .store(self.get(last).next.swap(NONE, Relaxed), Relaxed);
        }
    }

    /// Are some held back?
    pub fn holds_back(&self) -> bool {
        self.held_back.load(Relaxed) != NONE
    }

    /// Where none is left to be used, those that were held back are. False: there are none.
    pub fn bring_back(&self) -> bool {
        if self.spare() == NONE {
            self.spare.store(self.held_back.swap(NONE, Relaxed), Relaxed);
        }
        self.spare() != NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_all(entries: &Entries) -> usize {
        let spare = || (entries.spare() != NONE).then(|| entries.use_spare());
        std::iter::from_fn(spare).count()
    }

    #[test]
    fn each_entry_is_used_once() {
        let entries = Entries::default();
        assert_eq!(use_all(&entries), BLOCKS - 1);
        assert!(!entries.bring_back());
        (0..BLOCKS - 1).for_each(|place| entries.retire((place * STEP) as u16));
        assert_eq!(use_all(&entries), BLOCKS - 1);
    }

    #[test]
    fn what_is_held_back_comes_back() {
        let entries = Entries::default();
        let (first, _) = entries.use_spare();
        entries.hold_back(10);
        assert!(entries.holds_back());
        assert_eq!(use_all(&entries), 10);
        entries.retire(first);
        assert_eq!(use_all(&entries), 1, "one for each that leaves its list");
        assert!(entries.bring_back() && !entries.holds_back());
        assert_eq!(use_all(&entries), BLOCKS - 1 - 11);
        assert!(!entries.bring_back());
    }

    #[test]
    fn nothing_is_held_back_of_few() {
        for few in [0, 1, 5] {
            let entries = Entries::default();
            for _ in 0..BLOCKS - 1 - few {
                entries.use_spare();
            }
            entries.hold_back(5);
            assert_eq!((use_all(&entries), entries.holds_back()), (few, false));
        }
    }
}
