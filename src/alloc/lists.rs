//! The blocks that a thread's cache keeps, in lists: of a slab's blocks by class, of others by length, 64 lists an octave.
//! A request takes a block of its own length if there is one, else one that is longer by a 16th at most, or by a quarter as
//! far as the pool allows that (`Excess`); a long one by a 256th.
//!
//! Of what is no slab's the latest is on no list until the next one comes: programs often ask at once for what they have just freed. One of
//! another length gets it only where lists have nothing: so whether there is a latest is as it was the time before, nearly always, which
//! a processor foresees.
//!
//! Invariants: a list's bit is set if and only if it is not empty, but classes have none: they are few, and their lists
//! change at nearly every call. The latest block was not long when it came.
//! Lock: that of the cache. Everything is an atomic accessed by plain loads and stores.

use super::directory::Piece;
use super::entries::{Entries, Entry, Larger, NONE};
use super::size::{CLASSES, GRAIN, class_of};
use crate::backend::sparse::Site;
use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Blocks that are longer than this are long...
pub const LONG: u64 = 256 << 10;
/// ...or than this, where that is said (`set_long_from`).
pub const LONG_AT_MOST: u64 = 1 << 20;
/// Lists an octave.
const STEPS: usize = 64;
/// Lists of classes: a power of two, so that a class is within them whatever the compiler knows of it.
const SMALL: usize = CLASSES.next_power_of_two();
/// Lists in all: those of the classes, and of the lengths from 2^6 grains to `LONG_AT_MOST`.
pub const LISTS: usize = list_of(LONG_AT_MOST / GRAIN) + 1;
/// The numbers of the long block and of the latest, behind those of the lists.
const THE_LONG: usize = LISTS;
const THE_LATEST: usize = LISTS + 1;
/// Places for lists: a power of two, like `SMALL`.
const PLACES: usize = (THE_LATEST + 1).next_power_of_two();
const WORDS: usize = PLACES / 64;
/// A request takes a block that is longer by this shift of its length; and where that is allowed by that one.
const CLOSE: u32 = 4;
const FAR: u32 = 2;
/// Blocks of a list that are looked at.
const LOOK: usize = 8;
/// And where one block is wanted and no other.
const LOOK_FOR_ONE: usize = 256;
/// Where blocks that are a good deal longer are taken now and then, they are longer by no more than this part of what requests have
/// asked for; of that so many grains at most are saved up.
const PART: u64 = 64;
const SAVED: u64 = (16 << 20) / GRAIN;

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

/// The lists.
#[derive(Debug)]
pub struct Lists {
    /// What the lists consist of.
    pub entries: Entries,
    /// The long block, and the one that came last of those that are no longer and of no slab; none if it is of 0 grains.
    long: Entry,
    latest: Entry,
    /// Blocks of more grains are long. It may change at any time: what is long by then may be on a list.
    long_from: AtomicU64,
    lists: [AtomicU16; PLACES],
    filled: [AtomicU64; WORDS],
    /// Where no account is kept of them, blocks may be longer by this shift of a request's length.
    close: AtomicU32,
    /// Grains of requests that may still be counted for blocks that are a good deal longer, `SAVED` at most...
    saved: AtomicU64,
    /// ...and how many of them a grain of such a block's excess costs.
    cost: AtomicU64,
}

/// May a request take a block that is longer by more than a 16th?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// It may.
    Free,
    /// As long as it is little of all that is asked for.
    Rare,
    /// Never.
    None,
}

/// The list of lengths of so many grains, 64 or more. The first bit says which octave it is, the next six which step of that.
#[inline(always)]
const fn list_of(grains: u64) -> usize {
    debug_assert!(grains >= 64);
    let zeros = grains.leading_zeros();
    let step = (grains << zeros >> 57) as usize;
    SMALL + (57 - zeros as usize) * STEPS + step - STEPS
}

/// The grains that a request needs that is not long.
#[inline(always)]
const fn grains_for(bytes: u64) -> u64 {
    (bytes + (GRAIN - 1)) >> GRAIN.trailing_zeros()
}

/// The list of blocks of that kind, if such blocks may be on one.
fn list_like(piece: Piece) -> Option<usize> {
    match piece {
        Piece::Small { class } => Some(class),
        Piece::Large { grains } => (grains <= LONG_AT_MOST / GRAIN).then(|| list_of(grains)),
    }
}

impl Default for Lists {
    fn default() -> Lists {
        Lists {
            entries: Entries::default(),
            long: Entry::empty(),
            latest: Entry::empty(),
            long_from: AtomicU64::new(LONG / GRAIN),
            lists: [const { AtomicU16::new(NONE) }; PLACES],
            filled: [const { AtomicU64::new(0) }; WORDS],
            close: AtomicU32::new(CLOSE),
            saved: AtomicU64::new(SAVED),
            cost: AtomicU64::new(u64::MAX),
        }
    }
}

impl Lists {
    /// Is a block of so many grains long?
    #[inline(always)]
    pub fn is_long(&self, grains: u64) -> bool {
        grains > self.long_from()
    }

    /// The grains of the longest one that is not.
    #[inline(always)]
    pub fn long_from(&self) -> u64 {
        self.long_from.load(Relaxed)
    }

    /// Blocks of more bytes are long from now on.
    pub fn set_long_from(&self, bytes: u64) {
        debug_assert!((LONG..=LONG_AT_MOST).contains(&bytes));
        self.long_from.store(bytes / GRAIN, Relaxed);
    }

    /// Could there be a block for a request? The answer is no only if there is none.
    pub fn may_have(&self, bytes: u64, align: u64) -> bool {
        match class_of(bytes, align) {
            Some(class) => self.first(class).load(Relaxed) != NONE,
            None if self.is_long(bytes.div_ceil(GRAIN)) => self.has_long_for(bytes),
            None => {
                let list = list_of((bytes / GRAIN).max(64));
                self.latest.grains() >= bytes / GRAIN && !self.latest.is_none() || self.filled_from(list) != 0
            }
        }
    }

    /// Takes a block that is of no slab, for a request that none of a slab can serve, aligned as all such are.
    pub fn pick_larger(&self, bytes: u64) -> Option<Larger> {
        match self.is_long(bytes.div_ceil(GRAIN)) {
            true => self.pick_long(bytes),
            false => self.pick_latest(bytes).or_else(|| self.pick_near(bytes)),
        }
    }

    /// The long one, for a long request.
    #[inline(always)]
    pub fn pick_long(&self, bytes: u64) -> Option<Larger> {
        self.has_long_for(bytes).then(|| self.long.pop())
    }

    /// The one that came last, for a request that is not long, if it is of that length.
    #[inline(always)]
    pub fn pick_latest(&self, bytes: u64) -> Option<Larger> {
        let latest = self.latest.larger();
        let found = (latest.grains == grains_for(bytes)).then_some(latest);
        found.inspect(|_| self.latest.clear())
    }

    /// Another one, for such a request, if it is of that length or hardly longer.
    #[inline(always)]
    pub fn pick_near(&self, bytes: u64) -> Option<Larger> {
        let grains = grains_for(bytes);
        let list = list_of(grains);
        let id = self.first(list).load(Relaxed);
        let first = self.entries.get(id);
        let length = first.grains();
        let found = if first.next.load(Relaxed) == NONE {
            // which of both it is no processor can foresee where lengths come in no order
            let nearest = select_unpredictable(length >= grains, list, self.next_filled(list));
            self.take_close(nearest, grains)
        } else if length == grains {
            self.unlink_larger(list, NONE, id);
            id
        } else {
            self.search(list, grains)
        };
        match found {
            NONE => self.take_close_latest(grains),
            id => Some(self.entries.get(id).larger()),
        }
    }

    /// The one that came last, if it is of so many grains or hardly more.
    #[cold]
    #[inline(never)]
    fn take_close_latest(&self, grains: u64) -> Option<Larger> {
        let kept = self.latest.grains();
        let may = kept >= grains && self.is_close(kept - grains, grains);
        may.then(|| self.latest.pop())
    }

    /// The first entry of a list.
    #[inline(always)]
    fn first(&self, list: usize) -> &AtomicU16 {
        &self.lists[list % PLACES]
    }

    /// Is there room for another block?
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.entries.spare() != NONE
    }

    /// Puts a block on its list. The caller has seen that there is room.
    pub fn push(&self, kept: Kept) {
        match kept.piece {
            Piece::Small { class } => self.push_small(class, (kept.at, kept.site), kept.seq),
            // from another cache, which had it on a list: it must not take the long one's place, whatever is long by now
            Piece::Large { grains } => {
                let Kept { at, seq, site, .. } = kept;
                self.push_larger(Larger { at, grains, site }, seq, LONG_AT_MOST / GRAIN)
            }
        }
    }

    /// The same for a block of no slab, which is long if it has more grains than those.
    #[inline(always)]
    pub fn push_larger(&self, larger: Larger, seq: u64, long_from: u64) {
        match larger.grains > long_from {
            true => self.set_long(larger, seq),
            false if self.has_latest() => self.set_next(larger, seq),
            false => self.set_latest(larger, seq),
        }
    }

    /// The same for a long one. There is no other.
    #[inline(always)]
    pub fn set_long(&self, larger: Larger, seq: u64) {
        debug_assert!(self.long.is_none());
        self.long.set(larger, seq);
    }

    /// The same for one that is not, where none is the latest.
    #[inline(always)]
    pub fn set_latest(&self, larger: Larger, seq: u64) {
        debug_assert!(larger.grains <= LONG_AT_MOST / GRAIN && self.latest.is_none());
        self.latest.set(larger, seq);
    }

    /// The same where there is one.
    #[inline(always)]
    pub fn set_next(&self, larger: Larger, seq: u64) {
        self.put_latest_on_list();
        self.set_latest(larger, seq);
    }

    /// Is one on no list?
    #[inline(always)]
    pub fn has_latest(&self) -> bool {
        !self.latest.is_none()
    }

    /// The latest block is on its list from now on, if there is room.
    #[inline(always)]
    fn settle(&self) {
        if self.has_latest() && self.has_room() {
            self.put_latest_on_list();
        }
    }

    #[inline(always)]
    fn put_latest_on_list(&self) {
        let seq = self.latest.seq.load(Relaxed);
        let Larger { at, grains, site } = self.latest.pop();
        let list = list_of(grains);
        self.link(list, (at, site), seq).set_grains(grains);
        self.mark(list, true);
    }

    /// The same for a slab's block.
    #[inline(always)]
    pub fn push_small(&self, class: usize, place: (u64, Site), seq: u64) {
        self.link(class % SMALL, place, seq);
    }

    /// A spare entry becomes the first of a list.
    #[inline(always)]
    fn link(&self, list: usize, place: (u64, Site), seq: u64) -> &Entry {
        let (id, entry) = self.entries.use_spare();
        entry.set_place(place, seq);
        let first = self.first(list);
        let next = first.load(Relaxed);
        entry.next.store(next, Relaxed);
        first.store(id, Relaxed);
        entry
    }

    /// Sets or clears a list's bit. (Without a branch: see `pick_near`.)
    #[inline(always)]
    fn mark(&self, list: usize, filled: bool) {
        let word = &self.filled[list / 64 % WORDS];
        let bits = word.load(Relaxed) & !(1 << (list % 64));
        word.store(bits | u64::from(filled) << (list % 64), Relaxed);
    }

    /// Is the long block of the length that is needed, or hardly longer?
    #[inline(always)]
    fn has_long_for(&self, bytes: u64) -> bool {
        let excess = self.long_bytes().checked_sub(bytes);
        excess.is_some_and(|excess| excess <= bytes >> 8)
    }

    /// Takes the first block of a class: its address, and where the directory has it.
    #[inline(always)]
    pub fn pop_small(&self, class: usize) -> Option<(u64, Site)> {
        let list = class % SMALL;
        let id = self.first(list).load(Relaxed);
        (id != NONE).then(|| self.unlink(list, NONE, id).place())
    }

    /// Takes this block of that kind, if it is not far down its list.
    pub fn pop_this(&self, at: u64, piece: Piece) -> Option<Kept> {
        let is_it = |kept: &Kept| kept.at == at && kept.piece == piece;
        let single = self
            .singles()
            .find(|&(entry, list)| is_it(&self.read(entry, list)));
        if let Some((_, list)) = single {
            return self.pop(list);
        }
        let list = list_like(piece)?;
        let mut before = NONE;
        for id in self.ids(list).take(LOOK_FOR_ONE) {
            if self.entries.get(id).at.load(Relaxed) == at {
                let kept = self.read(self.entries.get(id), list);
                return (kept.piece == piece).then(|| {
                    self.unlink(list, before, id);
                    self.mark_again(list);
                    kept
                });
            }
            before = id;
        }
        None
    }

    /// Takes one of the longest blocks.
    #[inline]
    pub fn pop_longest(&self) -> Option<Kept> {
        self.pop(self.last_list()?)
    }

    /// The same but for the long block.
    #[inline]
    pub fn pop_longest_short(&self) -> Option<Kept> {
        self.pop(self.last_short_list()?)
    }

    /// Takes the first block of a list.
    #[inline]
    pub fn pop(&self, list: usize) -> Option<Kept> {
        if let Some(entry) = self.single(list) {
            let kept = self.read(entry, list);
            return (entry.pop().grains != 0).then_some(kept);
        }
        let id = self.first(list).load(Relaxed);
        (id != NONE).then(|| {
            let kept = self.read(self.unlink(list, NONE, id), list);
            self.mark_again(list);
            kept
        })
    }

    /// The blocks that are on no list.
    fn singles(&self) -> impl Iterator<Item = (&Entry, usize)> {
        let entries = [(&self.long, THE_LONG), (&self.latest, THE_LATEST)];
        entries.into_iter().filter(|(entry, _)| !entry.is_none())
    }

    /// The entry that stands for such a list by itself.
    #[inline(always)]
    fn single(&self, list: usize) -> Option<&Entry> {
        match list {
            THE_LONG => Some(&self.long),
            THE_LATEST => Some(&self.latest),
            _ => None,
        }
    }

    /// Gives the entry, which is spare now and still says what it was.
    #[inline(always)]
    fn unlink(&self, list: usize, before: u16, id: u16) -> &Entry {
        let entry = self.entries.get(id);
        let next = entry.next.load(Relaxed);
        if before != NONE {
            self.entries.get(before).next.store(next, Relaxed);
        } else {
            self.first(list).store(next, Relaxed);
        }
        self.entries.retire(id);
        entry
    }

    /// The same for a list of lengths.
    #[inline(always)]
    fn unlink_larger(&self, list: usize, before: u16, id: u16) {
        self.unlink(list, before, id);
        self.mark(list, self.first(list).load(Relaxed) != NONE);
    }

    /// A block has left a list, of whichever kind.
    fn mark_again(&self, list: usize) {
        if list >= SMALL {
            self.mark(list, self.first(list).load(Relaxed) != NONE);
        }
    }

    /// Takes a block of so many grains or hardly more, from the list of that length if it has one: blocks of one list differ by a 64th at
    /// most. Gives its entry, or `NONE`. (A number is handed on in a register, as a block is not.)
    #[inline(never)]
    fn search(&self, list: usize, grains: u64) -> u16 {
        let (mut id, mut before) = (self.first(list).load(Relaxed), NONE);
        let mut best = (NONE, NONE, u64::MAX);
        for _ in 0..LOOK {
            if id == NONE || best.2 == grains {
                break;
            }
            let entry = self.entries.get(id);
            let length = entry.grains();
            if (grains..best.2).contains(&length) {
                best = (id, before, length);
            }
            (before, id) = (id, entry.next.load(Relaxed));
        }
        if best.0 == NONE {
            return self.take_close(self.next_filled(list), grains);
        }
        self.unlink_larger(list, best.1, best.0);
        best.0
    }

    /// Takes the first block of a list if it is of so many grains or hardly more: as `search`.
    #[inline(always)]
    fn take_close(&self, list: usize, grains: u64) -> u16 {
        let id = self.first(list).load(Relaxed);
        let excess = self.entries.get(id).grains().wrapping_sub(grains);
        let saved = self.saved.load(Relaxed) + grains;
        self.saved.store(saved.min(SAVED), Relaxed);
        if !self.is_close(excess, grains) {
            return NONE;
        }
        self.unlink_larger(list, NONE, id);
        id
    }

    /// Is a block that is longer than a request of so many grains by that much hardly longer, as far as the pool allows?
    #[inline(always)]
    fn is_close(&self, excess: u64, grains: u64) -> bool {
        excess <= grains >> self.close.load(Relaxed) || self.may_exceed(excess, grains)
    }

    /// May a block be longer than a request of so many grains by that much more?
    #[cold]
    #[inline(never)]
    fn may_exceed(&self, excess: u64, grains: u64) -> bool {
        let price = excess.saturating_mul(self.cost.load(Relaxed));
        let saved = self.saved.load(Relaxed);
        let may = excess <= grains >> FAR && price <= saved;
        if may {
            self.saved.store(saved - price, Relaxed);
        }
        may
    }

    /// The next list that has blocks, all of which are longer; if there is none, one that has no block, or none that is close.
    #[inline(always)]
    fn next_filled(&self, list: usize) -> usize {
        let next = list + 1 + self.filled_from(list + 1).trailing_zeros() as usize;
        next.min(THE_LONG) // on which there is none
    }

    /// The bits of the lists from this one on, an octave of them. (Behind the last come the first.)
    #[inline(always)]
    fn filled_from(&self, list: usize) -> u64 {
        let word = |number: usize| u128::from(self.filled[number % WORDS].load(Relaxed));
        ((word(list / 64 + 1) << 64 | word(list / 64)) >> (list % 64)) as u64
    }

    #[inline(always)]
    fn read(&self, entry: &Entry, list: usize) -> Kept {
        let (at, site) = entry.place();
        Kept {
            at,
            piece: match list {
                class if class < SMALL => Piece::Small { class },
                _ => Piece::Large {
                    grains: entry.grains(),
                },
            },
            seq: entry.seq.load(Relaxed),
            site,
        }
    }

    /// Bytes of the block that `pop_longest` will give.
    pub fn longest(&self) -> Option<u64> {
        let list = self.last_list()?;
        let entry = self.single(list);
        let entry = entry.unwrap_or_else(|| self.entries.get(self.first(list).load(Relaxed)));
        Some(self.read(entry, list).piece.bytes())
    }

    /// The last list that has blocks.
    #[inline]
    fn last_list(&self) -> Option<usize> {
        match self.long.is_none() {
            true => self.last_short_list(),
            false => Some(THE_LONG),
        }
    }

    /// The same but for the long block.
    #[inline]
    fn last_short_list(&self) -> Option<usize> {
        self.settle();
        if !self.latest.is_none() {
            return Some(THE_LATEST); // there is no room on lists
        }
        let bits = |word: usize| self.filled[word].load(Relaxed);
        let Some(word) = (0..WORDS).rev().find(|&word| bits(word) != 0) else {
            let filled = |class: &usize| self.first(*class).load(Relaxed) != NONE;
            return (0..CLASSES).rev().find(filled);
        };
        Some(word * 64 + 63 - bits(word).leading_zeros() as usize)
    }

    /// Bytes of the long block, 0 if there is none.
    #[inline(always)]
    pub fn long_bytes(&self) -> u64 {
        self.long.grains() * GRAIN
    }

    /// How far blocks may be longer than requests.
    pub fn set_excess(&self, excess: Excess) {
        let (close, cost) = match excess {
            Excess::Free => (FAR, u64::MAX),
            Excess::Rare => (CLOSE, PART),
            Excess::None => (CLOSE, u64::MAX),
        };
        self.close.store(close, Relaxed);
        self.cost.store(cost, Relaxed);
    }

    /// Blocks of a list.
    pub fn length(&self, list: usize) -> usize {
        self.settle();
        self.ids(list).count()
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = Kept> + '_ {
        let single = self.singles().map(|(entry, list)| self.read(entry, list));
        let lists = (0..LISTS).flat_map(move |list| {
            self.ids(list)
                .map(move |id| self.read(self.entries.get(id), list))
        });
        lists.chain(single)
    }

    /// The entries of a list.
    fn ids(&self, list: usize) -> impl Iterator<Item = u16> + '_ {
        let known = |id: u16| (id != NONE).then_some(id);
        let next = move |&id: &u16| known(self.entries.get(id).next.load(Relaxed));
        std::iter::successors(known(self.first(list).load(Relaxed)), next)
    }
}

#[cfg(test)]
mod tests;
