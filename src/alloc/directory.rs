//! What every thread may know of a pool's blocks without a lock: which are live, how long they are, and which of them
//! their owner's thread may keep when they are freed. It decides between two frees of the same block, whoever comes
//! first: a block leaves its state by a compare-and-swap, or, where nobody else can free it at that moment (`sole`), by a load and a store.
//!
//! Addresses are divided into *cells* of 32 KiB. A block outside slabs is longer than a cell, so at most one begins in
//! each, and the cell's word says all of it. The words of the cells of a slab's run say whose it is and its class. The
//! states of its blocks are bytes, one for each 256 B of addresses: so a block's is found without asking its slab, and
//! in the same chapter of the table as the word. A chapter takes a 240th of the addresses that it is of, and of that memory
//! what is touched.
//!
//! ```text
//! block: | grains 38 | arena 16 | owed 1 | state 2 | 0 (1)   | first grain 6 |      0: no block begins here
//! run:   | class     | owner 16 | 0 (3)            | RUN (1) | 0 (6)         |
//! byte:  | class 6   | state 2 |                                                     0: no block begins here
//! ```
//!
//! The arena of a block is the one whose cache handed it out last, `COMMON` if the heap did: work queued on that stream
//! before may still use it. If the heap did, `owed` says that such work may be left as well: then, and if there is an arena, a
//! free on a stream that is never at work says nothing of that, and concerns the heap. If a cache did, `owed` says that its owner alone
//! frees such blocks (`sole`): a free on another stream concerns the heap.
//!
//! Invariants: a block has a state other than `GONE` if and only if the heap has it as live; it is `KEPT` if and only
//! if it is in one thread's cache.
//! Locks: words change from and to `GONE`, and from `PLAIN` to `SPECIAL`, under the heap's lock; between `PLAIN` and
//! `KEPT` without one.

mod spot;

pub use spot::{Look, Spot};

use super::order::COMMON;
use super::size::{CLASS_BYTES, CLASSES, GRAIN, MIN_ALIGN, round_down, run_bytes};
use crate::backend::BackendError;
use crate::backend::sparse::{self, Chapters, Site, Sparse};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a cell.
pub const CELL: u64 = 32 << 10;
/// Addresses end here: 48 bits.
const END: u64 = 1 << 48;
/// Addresses of a chapter of the table.
const CHAPTER: u64 = 1 << 30;
const CELLS: u64 = CHAPTER / CELL;
const STATES: u64 = CHAPTER / MIN_ALIGN;
/// States of slabs' blocks, and words of cells.
type Chapter = ([AtomicU8; STATES as usize], [AtomicU64; CELLS as usize]);
const MOST: usize = (END / CHAPTER) as usize;
/// Where the words and states are of all addresses.
pub type Where = Chapters<Chapter, MOST>;
/// An arena whose number needs more bits has no caches.
pub const ARENAS: u32 = 0xffff;

const STATE_SHIFT: u32 = 7;
const STATE: u64 = 3 << STATE_SHIFT;
/// If the heap handed it out: of memory whose stream was not known to have completed its work there. If a cache did: one of an owner who
/// alone frees what its stream's caches hand out.
const OWED: u64 = 1 << 9;
/// Whose a block is that such a cache handed out.
const RESERVED: u64 = OWED | (ARENAS as u64) << ARENA_SHIFT;
const RUN: u64 = 1 << 6;
const FIRST: u64 = 63;
const ARENA_SHIFT: u32 = 10;
const GRAINS_SHIFT: u32 = 26;
const CLASS_SHIFT: u32 = 26;
/// What is beside the class in the word of a run.
const WHOSE: u64 = (1 << CLASS_SHIFT) - 1;

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No block.
    Gone = 0,
    /// Live. A cache may keep it when it is freed.
    Plain = 1,
    /// Live, and its free concerns the heap: other streams use it, or a graph.
    Special = 2,
    /// Freed, and in a thread's cache.
    Kept = 3,
}

const fn state(bits: u64) -> State {
    match bits {
        1 => State::Plain,
        2 => State::Special,
        3 => State::Kept,
        _ => State::Gone,
    }
}

/// The byte of a slab's block: the class, too, so that whoever changes it has read the word of the same run.
#[inline(always)]
const fn byte_of(class: usize, state: State) -> u8 {
    (class as u8) << 2 | state as u8
}

const fn state_of(byte: u8) -> State {
    state((byte & 3) as u64)
}

/// A block as a cache keeps it: of a class, or of a length in grains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Of a slab.
    Small {
        /// Size class.
        class: usize,
    },
    /// Any other.
    Large {
        /// Its length.
        grains: u64,
    },
}

/// `CLASS_BYTES`, as long as a power of two, so that to look into it cannot fail.
const BYTES: [u32; CLASSES.next_power_of_two()] = {
    let mut table = [0; CLASSES.next_power_of_two()];
    let mut class = 0;
    while class < CLASSES {
        table[class] = CLASS_BYTES[class];
        class += 1;
    }
    table
};

impl Piece {
    /// Bytes.
    #[inline(always)]
    pub fn bytes(self) -> u64 {
        match self {
            Piece::Small { class } => u64::from(BYTES[class % BYTES.len()]),
            Piece::Large { grains } => grains * GRAIN,
        }
    }
}

#[inline]
fn run(class: usize, owner: u32) -> u64 {
    (class as u64) << CLASS_SHIFT | slabs_of(owner)
}

/// What the words of all runs say that are slabs' of an arena.
#[inline]
const fn slabs_of(owner: u32) -> u64 {
    (owner as u64) << ARENA_SHIFT | RUN
}

/// Where a block of no slab begins, and how long it is.
#[inline]
fn large(at: u64, grains: u64) -> u64 {
    grains << GRAINS_SHIFT | (at % CELL / GRAIN)
}

/// What words say where they are about blocks of an arena.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Those of its slabs' runs, beside the class.
    slabs: u64,
    /// That of a live block which its cache hands out, beside where and how long it is.
    plain: u64,
    /// The same if the cache's owner alone frees it.
    own: u64,
    /// What is looked at where a block of no slab is to be kept: it must be as `PLAIN` says, and nothing else.
    kept_if: u64,
}

const PLAIN: u64 = (State::Plain as u64) << STATE_SHIFT;

impl Marks {
    /// Those of an arena.
    pub const fn of(arena: u32) -> Marks {
        // nobody says what work is left where another arena's cache or the heap handed it out, for a stream that is never at work
        let settled = match arena {
            COMMON => RESERVED,
            _ => 0,
        };
        // of what everybody's hands out `OWED` says something else: it is given a word that none has
        let own = match arena {
            COMMON => RESERVED,
            _ => OWED | (arena as u64) << ARENA_SHIFT,
        };
        Marks {
            slabs: slabs_of(arena),
            plain: (arena as u64) << ARENA_SHIFT | PLAIN,
            own: own | PLAIN,
            kept_if: STATE | RUN | settled,
        }
    }

    /// This is said of a block of no slab that its cache hands out, if the owner alone frees it or not.
    pub const fn handed_out(&self, alone: bool) -> u64 {
        match alone && self.own != RESERVED | PLAIN {
            true => self.own,
            false => self.plain,
        }
    }

    /// Is that said by the word of a live block of no slab, if the owner alone frees it?
    #[inline(always)]
    fn is_own(&self, word: u64) -> bool {
        (word ^ self.own) & (STATE | RUN | RESERVED) == 0
    }

    /// Or does it say so of the owner of another arena's cache?
    #[inline(always)]
    fn is_anothers(&self, word: u64) -> bool {
        let whose = word & RESERVED;
        whose & OWED != 0 && whose != OWED && whose != self.own & RESERVED
    }

    /// May its cache keep a block of no slab, if it is the one of this word?
    #[inline(always)]
    fn may_keep(&self, word: u64) -> bool {
        word & self.kept_if == PLAIN
    }
}

/// Does a block of no slab begin at an address, if one does in the cell of this word?
#[inline(always)]
fn begins(word: u64, at: u64) -> bool {
    // the place of a grain within its cell is part of its address
    (word << GRAIN.trailing_zeros() ^ at).is_multiple_of(CELL)
}

/// The states of all blocks of a pool. A clone is the same one, nearer to whoever has it.
#[derive(Clone, Debug)]
pub struct Directory {
    table: Sparse<Chapter, MOST>,
}

/// The word of a cell within its chapter. Those of neighbours are on different cache lines, since threads to which
/// neighbours belong would slow each other down, and in eight places, so that few pages are touched.
#[inline(always)]
fn word_in(chapter: &Chapter, cell: u64) -> &AtomicU64 {
    const APART: u32 = (CELLS / 8) as u32;
    // an odd number, so that no two come to the same place
    let place = (cell as u32).wrapping_mul(5 * APART + 1);
    &chapter.1[(u64::from(place) % CELLS) as usize]
}

/// The state of what begins at the 256 B of that number within its chapter.
#[inline(always)]
fn state_in(chapter: &Chapter, number: u64) -> &AtomicU8 {
    &chapter.0[(number % STATES) as usize]
}

enum Place<'a> {
    Large(&'a AtomicU64, u64),
    /// Of a slab, if there is such a block: the state knows.
    Small(&'a AtomicU8, u64),
}

impl Directory {
    /// Without addresses.
    pub fn new() -> Result<Directory, BackendError> {
        Ok(Directory {
            table: Sparse::new()?,
        })
    }

    /// Makes room for blocks in `[at, at + bytes)`.
    pub fn cover(&self, at: u64, bytes: u64) -> Result<(), BackendError> {
        self.table.cover(at / CHAPTER, (at + bytes).div_ceil(CHAPTER))
    }

    /// Where it is, for as long as it, or a clone of it, is there.
    #[inline(always)]
    pub fn whole(&self) -> &Where {
        self.table.chapters()
    }

    #[inline(always)]
    fn chapter(&self, at: u64) -> Option<&Chapter> {
        self.whole().get(at / CHAPTER)
    }

    /// May a block lie around an address? There is room for one; other memory may be there as well.
    #[inline(always)]
    pub fn covers(&self, at: u64) -> bool {
        self.chapter(at).is_some()
    }

    /// The word of the cell around an address.
    #[inline(always)]
    fn cell(&self, at: u64) -> Option<&AtomicU64> {
        Some(word_in(self.chapter(at)?, at / CELL))
    }

    /// The state of a slab's block.
    #[inline(always)]
    fn small(&self, at: u64) -> Option<&AtomicU8> {
        match at % MIN_ALIGN {
            0 => Some(state_in(self.chapter(at)?, at / MIN_ALIGN)),
            _ => None,
        }
    }

    /// What begins at an address.
    #[inline(always)]
    fn place(&self, at: u64) -> Option<Place<'_>> {
        let cell = self.cell(at)?;
        let word = cell.load(Ordering::Relaxed);
        if word & RUN == 0 {
            let begins = at.is_multiple_of(GRAIN) && word & FIRST == at % CELL / GRAIN;
            return begins.then_some(Place::Large(cell, word));
        }
        Some(Place::Small(self.small(at)?, word))
    }

    /// The state of the block that begins at an address.
    pub fn state(&self, at: u64) -> State {
        match self.place(at) {
            None => State::Gone,
            Some(Place::Large(_, word)) => state((word & STATE) >> STATE_SHIFT),
            Some(Place::Small(byte, ..)) => state_of(byte.load(Ordering::Relaxed)),
        }
    }

    /// The block that begins at an address, if there is one and no cache keeps it.
    #[inline]
    pub fn live(&self, at: u64) -> Option<Piece> {
        let (state, piece) = match self.place(at)? {
            Place::Large(_, word) => {
                let grains = word >> GRAINS_SHIFT;
                (state((word & STATE) >> STATE_SHIFT), Piece::Large { grains })
            }
            Place::Small(byte, _) => {
                let byte = byte.load(Ordering::Relaxed);
                let class = usize::from(byte >> 2);
                (state_of(byte), Piece::Small { class })
            }
        };
        matches!(state, State::Plain | State::Special).then_some(piece)
    }

    /// What it has of an address at which a block may begin.
    #[inline(always)]
    pub fn spot(&self, at: u64) -> Option<Spot<'_>> {
        Spot::of(at, self.whole())
    }

    /// A kept block is live as it was before: it shall not be freed after all.
    pub fn revive(&self, at: u64) -> Option<Piece> {
        match self.place(at)? {
            Place::Large(cell, word) => {
                cell.store(word & !STATE | PLAIN, Ordering::Release);
                Some(Piece::Large {
                    grains: word >> GRAINS_SHIFT,
                })
            }
            Place::Small(byte, word) => {
                let class = (word >> CLASS_SHIFT) as usize;
                byte.store(byte_of(class, State::Plain), Ordering::Release);
                Some(Piece::Small { class })
            }
        }
    }

    /// A block of a slab is handed out by the heap.
    #[inline(always)]
    pub fn begin_small(&self, at: u64, class: usize) {
        self.set_small(at, byte_of(class, State::Plain));
    }

    /// The same by the cache that kept it, which knows where its state is.
    #[inline(always)]
    pub fn hand_out_small(&self, (at, site): (u64, Site), class: usize) {
        debug_assert_eq!(self.small(at).map(Site::of), Some(site), "the state of {at:#x}");
        let state: &AtomicU8 = self.table.element(site);
        state.store(byte_of(class, State::Plain), Ordering::Release);
    }

    /// The chapter of an address where a block has been.
    #[inline(always)]
    fn known_chapter(&self, at: u64) -> Option<&Chapter> {
        self.whole().get_within(at / CHAPTER)
    }

    /// (Where a slab's block begins nobody need ask.)
    #[inline(always)]
    fn set_small(&self, at: u64, to: u8) {
        let chapter = self.known_chapter(at);
        debug_assert!(chapter.is_some(), "{at:#x} is a slab's");
        if let Some(chapter) = chapter {
            state_in(chapter, at / MIN_ALIGN).store(to, Ordering::Release);
        }
    }

    /// The same of a block of no slab, by the cache that says this of it.
    #[inline(always)]
    pub fn hand_out_large(&self, (at, site): (u64, Site), grains: u64, handed_out: u64) {
        debug_assert_eq!(self.cell(at).map(Site::of), Some(site), "the word of {at:#x}");
        let cell: &AtomicU64 = self.table.element(site);
        cell.store(large(at, grains) | handed_out, Ordering::Release);
    }

    /// The heap has made a block outside slabs, of so many bytes. `owed`: of memory whose stream may still be at work on it.
    pub fn begin(&self, at: u64, bytes: u64, owed: bool) {
        let cell = self.cell(at).expect("a cell of the pool");
        debug_assert_eq!(cell.load(Ordering::Relaxed) & !FIRST, 0, "no block at {at:#x}");
        let owed = if owed { OWED } else { 0 };
        let begun = large(at, bytes / GRAIN) | Marks::of(COMMON).plain;
        cell.store(begun | owed, Ordering::Release);
    }

    /// The same for a live block that only the heap knows of.
    pub fn begin_anew(&self, at: u64, bytes: u64, owed: bool) {
        let cell = self.cell(at).expect("a cell of the pool");
        if cell.load(Ordering::Relaxed) & STATE == PLAIN {
            cell.store(0, Ordering::Relaxed);
            self.begin(at, bytes, owed);
        }
    }

    /// The run that begins at an address is a slab's.
    pub fn begin_run(&self, at: u64, class: usize, owner: u32) {
        for cell in 0..run_bytes(class) / CELL {
            let place = self.cell(at + cell * CELL).expect("a cell of the pool");
            place.store(run(class, owner.min(ARENAS)), Ordering::Release);
        }
    }

    /// The run is no slab's any more. None of its blocks is live.
    pub fn end_run(&self, at: u64, class: usize) {
        for cell in 0..run_bytes(class) / CELL {
            let place = self.cell(at + cell * CELL).expect("a cell of the pool");
            place.store(0, Ordering::Release);
        }
    }

    /// Nothing lies in `[at, at + bytes)`, and before something does a run begins there anew: the memory of the states goes
    /// back to the system.
    pub fn forget(&self, at: u64, bytes: u64) {
        let (mut number, end) = (at / MIN_ALIGN, (at + bytes) / MIN_ALIGN);
        while number < end {
            let to = end.min(round_down(number, STATES) + STATES);
            let states = &self.whole().get(number / STATES).expect("of the pool").0;
            let from = (number % STATES) as usize;
            let states = &states[from..from + (to - number) as usize];
            debug_assert!(states.iter().all(|state| state.load(Ordering::Relaxed) == 0));
            sparse::forget_zeros(states);
            number = to;
        }
    }

    /// The arena whose caches' owner may free the block at an address without a compare-and-swap.
    pub fn reserved_for(&self, at: u64) -> Option<u32> {
        let word = match self.place(at)? {
            Place::Large(_, word) if word & OWED == 0 => return None,
            // the heap's says something else by it
            Place::Large(_, word) => (word & RESERVED != OWED).then_some(word)?,
            Place::Small(_, word) => word,
        };
        Some((word >> ARENA_SHIFT) as u32 & ARENAS).filter(|&arena| arena != ARENAS)
    }

    /// The free of a live block will concern the heap.
    pub fn set_special(&self, at: u64) {
        match self.place(at) {
            Some(Place::Large(cell, word)) if word & STATE != 0 => {
                let special = |word: u64| {
                    (word & STATE == PLAIN).then_some(word & !STATE | (State::Special as u64) << STATE_SHIFT)
                };
                let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, special);
            }
            Some(Place::Small(byte, word)) => {
                let class = (word >> CLASS_SHIFT) as usize;
                let (plain, special) = (byte_of(class, State::Plain), byte_of(class, State::Special));
                let _ = byte.compare_exchange(plain, special, Ordering::AcqRel, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// A live block is freed to the heap: the arena whose cache handed it out, if one did. Err: somebody else has
    /// freed it.
    #[inline]
    pub fn end(&self, at: u64) -> Result<Option<u32>, State> {
        let live = |was: State| matches!(was, State::Plain | State::Special);
        match self.place(at) {
            None => Err(State::Gone),
            Some(Place::Large(cell, _)) => {
                let end = |word: u64| live(state((word & STATE) >> STATE_SHIFT)).then_some(0);
                match cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end) {
                    Err(word) => Err(state((word & STATE) >> STATE_SHIFT)),
                    Ok(word) => {
                        Ok(Some((word >> ARENA_SHIFT) as u32 & ARENAS).filter(|&arena| arena != COMMON))
                    }
                }
            }
            Some(Place::Small(byte, ..)) => {
                let end = |was: u8| live(state_of(was)).then_some(State::Gone as u8);
                match byte.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end) {
                    Err(was) => Err(state_of(was)),
                    // its slab is its arena's anyway
                    Ok(_) => Ok(None),
                }
            }
        }
    }

    /// The heap takes back a block that a cache kept.
    pub fn end_kept(&self, at: u64, piece: Piece) {
        match piece {
            Piece::Large { .. } => {
                let cell = self.cell(at).expect("a cell of the pool");
                cell.store(0, Ordering::Release);
            }
            Piece::Small { .. } => self.set_small(at, State::Gone as u8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::standing::{Sole, Standing};

    /// Between the look at the word and the change of the state, the run may have become another class's: then the state
    /// says so, and nothing is kept.
    #[test]
    fn a_state_of_another_class_is_not_changed() {
        let (at, arena) = (CHAPTER, 1);
        let (seen, now) = (3, 5);
        let directory = Directory::new().expect("addresses");
        directory.cover(at, run_bytes(now)).expect("room");
        directory.begin_run(at, seen, arena);
        let spot = directory.spot(at).expect("a cell of the pool");
        assert_eq!(spot.look().class(&Marks::of(arena)), Some(seen));
        for sole in [Sole::No, Sole::OfStream, Sole::OfPool] {
            let standing = Standing::of(&Marks::of(arena));
            standing.set(sole, &Marks::of(arena));
            directory.begin_small(at, now);
            assert_eq!(spot.keep_small(seen, &standing), None);
            assert_eq!(directory.state(at), State::Plain, "it is live still");
            directory.begin_small(at, seen);
            assert_eq!(
                spot.keep_small(seen, &standing),
                directory.small(at).map(Site::of)
            );
            assert_eq!(directory.state(at), State::Kept);
            assert_eq!(spot.keep_small(seen, &standing), None, "a second time");
        }
    }

    /// Wherever addresses begin and end, and over the boundary of two chapters, what lies beside them stays.
    #[test]
    fn what_is_forgotten_ends_where_it_shall() {
        let directory = Directory::new().expect("addresses");
        let (from, bytes) = (2 * CHAPTER - (3 << 20) - CELL, 7 << 20);
        directory.cover(CHAPTER, 2 * CHAPTER).expect("room");
        let beside = [from - MIN_ALIGN, from + bytes];
        let inside = [
            from,
            2 * CHAPTER - MIN_ALIGN,
            2 * CHAPTER,
            from + bytes - MIN_ALIGN,
        ];
        for at in beside.into_iter().chain(inside) {
            directory.begin_small(at, 3);
        }
        for at in inside {
            directory.set_small(at, State::Gone as u8);
        }
        directory.forget(from, bytes);
        let state = |at| {
            directory
                .small(at)
                .expect("a cell of the pool")
                .load(Ordering::Relaxed)
        };
        assert_eq!(beside.map(state), [byte_of(3, State::Plain); 2]);
        assert_eq!(inside.map(state), [0; 4]);
    }
}
