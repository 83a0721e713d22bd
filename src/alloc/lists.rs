//! The blocks that a thread's cache keeps, in lists: of a slab's blocks one for each class, of others one for each length, but for one long
//! block. A request takes a block of its own length if there is one, else one of the shortest that are longer, by a 16th at most, or by a
//! quarter as far as the pool allows that (`Excess`); a long one by a 256th.
//!
//! All blocks of a list are alike, so none has to be looked at, and the nearest list is found among bits, without a branch: where lengths
//! come in no order no processor foresees whether there is a block of the very length.
//!
//! Of what is no slab's the latest is on no list until the next one comes: programs often ask at once for what they have just freed. One of
//! another length gets it only where lists have nothing: so whether there is a latest is as it was the time before, nearly always, which
//! a processor foresees. (On a list it would be found where its length says, which the directory has to tell first: 16 ns rather than 12.)
//!
//! Invariant: a list's bit is set if and only if it is not empty, but classes have none: they are few, and their lists
//! change at nearly every call. The latest block was not long when it came.
//! Lock: that of the cache. Everything is an atomic accessed by plain loads and stores.

use super::directory::Piece;
use super::entries::{Entries, Entry, NONE};
use super::kept::{Kept, Larger, Single};
use super::size::{CLASSES, GRAIN};
use crate::backend::sparse::Site;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Blocks that are longer than this are long...
pub const LONG: u64 = 256 << 10;
/// ...or than this, where that is said (`set_long_from`).
pub const LONG_AT_MOST: u64 = 1 << 20;
/// Lists: first those of the classes, then those of lengths, each at one less than its grains, up to `LONG_AT_MOST`.
const LISTS: usize = (LONG_AT_MOST / GRAIN) as usize;
/// Lists of classes: a power of two, so that a class is within them whatever the compiler knows of it.
const SMALL: usize = CLASSES.next_power_of_two();
/// The shortest block of a length.
const SHORTEST: u64 = 64;
const WORDS: usize = LISTS / 64;
const _: () = assert!(LISTS.is_power_of_two() && SMALL < SHORTEST as usize);
/// A request takes a block that is longer by this shift of its length; and where that is allowed by that one.
const CLOSE: u32 = 4;
const FAR: u32 = 2;
/// Blocks of a list that are looked at, where one block is wanted and no other.
const LOOK_FOR_ONE: usize = 256;
/// Where blocks that are a good deal longer are taken now and then, they are longer by no more than this part of what requests have
/// asked for; of that so many grains at most are saved up.
const PART: u64 = 64;
const SAVED: u64 = (16 << 20) / GRAIN;

/// The lists.
#[derive(Debug)]
pub struct Lists {
    /// What the lists consist of.
    pub entries: Entries,
    /// The long block, and the one that came last of those that are no longer and of no slab.
    long: Single,
    latest: Single,
    /// Blocks of more grains are long. It may change at any time: what is long by then may be on a list.
    long_from: AtomicU64,
    lists: [AtomicU16; LISTS],
    filled: [AtomicU64; WORDS],
    /// Where no account is kept of them, blocks may be longer by this shift of a request's length.
    close: AtomicU32,
    /// Grains of requests that may still be counted for blocks that are a good deal longer: `SAVED` at most are...
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

/// The list of that length.
#[inline(always)]
const fn list_of(grains: u64) -> usize {
    debug_assert!(SHORTEST <= grains && grains <= LISTS as u64);
    grains as usize - 1
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

/// What the blocks of a list are.
#[inline(always)]
const fn piece_of(list: usize) -> Piece {
    match list < SMALL {
        true => Piece::Small { class: list },
        false => Piece::Large {
            grains: list as u64 + 1,
        },
    }
}

impl Default for Lists {
    fn default() -> Lists {
        Lists {
            entries: Entries::default(),
            long: Single::empty(),
            latest: Single::empty(),
            long_from: AtomicU64::new(LONG / GRAIN),
            lists: [const { AtomicU16::new(NONE) }; LISTS],
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

    /// Takes a block that is of no slab, for a request that none of a slab can serve, aligned as all such are.
    #[inline(always)]
    pub fn pick_larger(&self, bytes: u64) -> Option<Larger> {
        match self.is_long(bytes.div_ceil(GRAIN)) {
            true => self.pick_long(bytes),
            false => {
                let quick = self.pick_latest(bytes).or_else(|| self.pick_near(bytes));
                quick.or_else(|| self.pick_far(bytes))
            }
        }
    }

    /// The long one, for a long request.
    #[inline(always)]
    pub fn pick_long(&self, bytes: u64) -> Option<Larger> {
        self.has_long_for(bytes).then(|| self.long.take())
    }

    /// The one that came last, for a request that is not long, if it is of that length.
    #[inline(always)]
    pub fn pick_latest(&self, bytes: u64) -> Option<Larger> {
        let grains = grains_for(bytes); // which the block's are, without a look at it that would have to be waited for
        (self.latest.grains() == grains).then(|| Larger {
            grains,
            ..self.latest.take()
        })
    }

    /// Another one, for such a request, if it is of that length or hardly longer. (No function is called, for which registers would have to be
    /// kept: what is left is for `pick_far`.)
    #[inline(always)]
    pub fn pick_near(&self, bytes: u64) -> Option<Larger> {
        let grains = grains_for(bytes);
        self.saved.store(self.saved.load(Relaxed) + grains, Relaxed);
        let near = self.filled_from(list_of(grains));
        let excess = u64::from(near.trailing_zeros());
        let may = near != 0 && excess <= grains >> self.close.load(Relaxed);
        may.then(|| self.take_first(grains + excess))
    }

    /// The same where that finds none: one that is a good deal longer, or the one that came last.
    #[cold]
    pub fn pick_far(&self, bytes: u64) -> Option<Larger> {
        let grains = grains_for(bytes);
        let near = self.filled_from(list_of(grains));
        let excess = match near {
            0 => self.look_far(grains),
            _ => u64::from(near.trailing_zeros()),
        };
        if self.is_close(excess, grains) {
            return Some(self.take_first(grains + excess));
        }
        let latest = self.latest.grains();
        let may = latest >= grains && self.is_close(latest - grains, grains);
        may.then(|| self.latest.take())
    }

    /// By how much the shortest block on a list is longer than so many grains, if that is 64 at least and no more than is ever hardly longer.
    fn look_far(&self, grains: u64) -> u64 {
        let list = list_of(grains);
        let most = (grains as usize >> FAR).min(LISTS - 1 - list);
        let mut nears = (64..=most)
            .step_by(64)
            .map(|more| (more as u64, self.filled_from(list + more)));
        let near = nears.find(|(_, near)| *near != 0);
        near.map_or(u64::MAX, |(more, near)| more + u64::from(near.trailing_zeros()))
    }

    /// Is a block that is longer than a request of so many grains by that much hardly longer, as far as the pool allows?
    fn is_close(&self, excess: u64, grains: u64) -> bool {
        excess <= grains >> self.close.load(Relaxed) || self.may_exceed(excess, grains)
    }

    /// May a block be longer than a request of so many grains by that much more?
    fn may_exceed(&self, excess: u64, grains: u64) -> bool {
        let price = excess.saturating_mul(self.cost.load(Relaxed));
        let saved = self.saved.load(Relaxed).min(SAVED);
        let may = excess <= grains >> FAR && price <= saved;
        if may {
            self.saved.store(saved - price, Relaxed);
        }
        may
    }

    /// The first entry of a list.
    #[inline(always)]
    fn first(&self, list: usize) -> &AtomicU16 {
        &self.lists[list % LISTS]
    }

    /// Is there room for another block?
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.entries.spare() != NONE
    }

    /// Puts a block on its list. The caller has seen that there is room.
    pub fn push(&self, kept: Kept) {
        let place = (kept.at, kept.site);
        match kept.piece {
            Piece::Small { class } => self.push_small(class, place, kept.seq),
            // from another cache, which had it on a list: it must not take the long one's place, whatever is long by now
            Piece::Large { grains } if self.has_latest() => self.set_next(grains, place, kept.seq),
            Piece::Large { grains } => self.set_latest(grains, place, kept.seq),
        }
    }

    /// The same for one of no slab that is long. There is no other.
    #[inline(always)]
    pub fn set_long(&self, grains: u64, place: (u64, Site), seq: u64) {
        self.long.set(grains, place, seq);
    }

    /// The same for one that is not, where none is the latest.
    #[inline(always)]
    pub fn set_latest(&self, grains: u64, place: (u64, Site), seq: u64) {
        debug_assert!(grains <= LONG_AT_MOST / GRAIN);
        self.latest.set(grains, place, seq);
    }

    /// The same where there is one.
    #[inline(always)]
    pub fn set_next(&self, grains: u64, place: (u64, Site), seq: u64) {
        self.put_latest_on_list();
        self.set_latest(grains, place, seq);
    }

    /// Is one on no list?
    #[inline(always)]
    pub fn has_latest(&self) -> bool {
        self.latest.grains() != 0
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
        let seq = self.latest.seq();
        let Larger { at, grains, site } = self.latest.take();
        let list = list_of(grains);
        self.link(list, (at, site), seq);
        self.set_bit(list);
    }

    /// The same for a slab's block.
    #[inline(always)]
    pub fn push_small(&self, class: usize, place: (u64, Site), seq: u64) {
        self.link(class % SMALL, place, seq);
    }

    /// A spare entry becomes the first of a list.
    #[inline(always)]
    fn link(&self, list: usize, place: (u64, Site), seq: u64) {
        let (id, entry) = self.entries.use_spare();
        entry.set(place, seq);
        let first = self.first(list);
        let next = first.load(Relaxed);
        entry.next.store(next, Relaxed);
        first.store(id, Relaxed);
    }

    /// The bit of a list that is not empty any more.
    #[inline(always)]
    fn set_bit(&self, list: usize) {
        let word = &self.filled[list / 64 % WORDS];
        word.store(word.load(Relaxed) | 1 << (list % 64), Relaxed);
    }

    /// That of one that a block has left, after which there is this one. (Without a branch, as whether it is the last cannot be foreseen.)
    #[inline(always)]
    fn clear_bit(&self, list: usize, next: u16) {
        let word = &self.filled[list / 64 % WORDS];
        let bit = u64::from(next == NONE) << (list % 64);
        word.store(word.load(Relaxed) & !bit, Relaxed);
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
        let is_it = |kept: Kept| kept.at == at && kept.piece == piece;
        let mut singles = [&self.long, &self.latest].into_iter();
        if let Some(single) = singles.find(|single| single.kept().is_some_and(is_it)) {
            return single.pop();
        }
        let list = list_like(piece)?;
        let mut before = NONE;
        for id in self.ids(list).take(LOOK_FOR_ONE) {
            let entry = self.entries.get(id);
            if entry.place().0 == at {
                self.unlink(list, before, id);
                self.mark_again(list);
                return Some(Kept::of(entry, piece));
            }
            before = id;
        }
        None
    }

    /// Takes one of the longest blocks.
    #[inline]
    pub fn pop_longest(&self) -> Option<Kept> {
        self.long.pop().or_else(|| self.pop_longest_short())
    }

    /// The same but for the long block.
    #[inline]
    pub fn pop_longest_short(&self) -> Option<Kept> {
        self.settle();
        // where there is no room on lists
        self.latest.pop().or_else(|| self.pop(self.last_filled()?))
    }

    /// Takes the first block of a list.
    #[inline]
    pub fn pop(&self, list: usize) -> Option<Kept> {
        let id = self.first(list).load(Relaxed);
        (id != NONE).then(|| {
            let entry = self.unlink(list, NONE, id);
            self.mark_again(list);
            Kept::of(entry, piece_of(list))
        })
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

    /// Takes the first block of that length. There is one.
    #[inline(always)]
    fn take_first(&self, grains: u64) -> Larger {
        let list = list_of(grains);
        let id = self.first(list).load(Relaxed);
        let (at, site) = self.unlink(list, NONE, id).place();
        self.clear_bit(list, self.first(list).load(Relaxed));
        Larger { at, grains, site }
    }

    /// A block has left a list, of whichever kind.
    fn mark_again(&self, list: usize) {
        if list >= SMALL {
            self.clear_bit(list, self.first(list).load(Relaxed));
        }
    }

    /// The bits of the lists from this one on, 64 of them. (Behind the last come those of classes, which have none.)
    #[inline(always)]
    fn filled_from(&self, list: usize) -> u64 {
        let word = |number: usize| u128::from(self.filled[number % WORDS].load(Relaxed));
        ((word(list / 64 + 1) << 64 | word(list / 64)) >> (list % 64)) as u64
    }

    /// The lists that have blocks.
    fn filled(&self) -> impl Iterator<Item = usize> + '_ {
        let classes = (0..CLASSES).filter(|class| self.is_filled(*class));
        let lengths = (0..WORDS).flat_map(|word| {
            let mut bits = self.filled[word].load(Relaxed);
            std::iter::from_fn(move || {
                let list = 64 * word + bits.trailing_zeros() as usize;
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    list
                })
            })
        });
        classes.chain(lengths)
    }

    /// The last of them.
    #[inline]
    fn last_filled(&self) -> Option<usize> {
        let bits = |word: usize| self.filled[word].load(Relaxed);
        match (0..WORDS).rev().find(|&word| bits(word) != 0) {
            Some(word) => Some(word * 64 + 63 - bits(word).leading_zeros() as usize),
            None => (0..CLASSES).rev().find(|class| self.is_filled(*class)),
        }
    }

    #[inline(always)]
    fn is_filled(&self, list: usize) -> bool {
        self.first(list).load(Relaxed) != NONE
    }

    /// Bytes of the block that `pop_longest` will give.
    pub fn longest(&self) -> Option<u64> {
        self.settle();
        let singles = [&self.long, &self.latest].map(Single::grains);
        match singles.into_iter().find(|grains| *grains != 0) {
            Some(grains) => Some(grains * GRAIN),
            None => Some(piece_of(self.last_filled()?).bytes()),
        }
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

    /// The lists that have blocks. The latest is on its list as well, if there is room.
    pub fn settled(&self) -> impl Iterator<Item = usize> + '_ {
        self.settle();
        self.filled()
    }

    /// Blocks of a list.
    pub fn length(&self, list: usize) -> usize {
        self.settle();
        self.ids(list).count()
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = Kept> + '_ {
        let of = |list| {
            let entries = self.ids(list).map(|id| self.entries.get(id));
            entries.map(move |entry| Kept::of(entry, piece_of(list)))
        };
        let singles = [&self.long, &self.latest];
        self.filled()
            .flat_map(of)
            .chain(singles.into_iter().filter_map(Single::kept))
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
