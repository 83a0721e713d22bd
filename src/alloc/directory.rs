//! What every thread may know of a pool's blocks without a lock: which are live, how long they are, and which of them
//! their owner's thread may keep when they are freed. It decides between two frees of the same block, whoever comes
//! first: a block leaves its state by a compare-and-swap.
//!
//! Addresses are divided into *cells* of 32 KiB. A block outside slabs is longer than a cell, so at most one begins in
//! each, and the cell's word says all of it. The words of the cells of a slab's run name the slab; its blocks have a
//! byte each.
//!
//! ```text
//! block: | grains 38 | arena 16 | state 3 | 0 (1)   | first grain 6 |      0: no block begins here
//! run:   | slab 32   | owner 16 | class 5 | cells from the run's beginning 4 | RUN (1) | 0 (6) |
//! ```
//!
//! The arena of a block is the one whose cache handed it out last, `COMMON` if the heap did: work queued on that stream
//! before may still use it.
//!
//! Invariants: a block has a state other than `GONE` if and only if the heap has it as live; it is `KEPT` if and only
//! if it is in one thread's cache.
//! Locks: words change from and to `GONE`, and from `PLAIN` to `SPECIAL`, under the heap's lock; between `PLAIN` and
//! `KEPT` without one.

use super::order::COMMON;
use super::size::{CLASS_BYTES, GRAIN, run_bytes};
use crate::backend::BackendError;
use crate::backend::sparse::{CHAPTER, Sparse};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a cell.
pub const CELL: u64 = 32 << 10;
/// Addresses end here: 48 bits.
const CELLS: u64 = 1 << (48 - 15);
/// Blocks that a slab may have.
const SLAB_BLOCKS: u64 = 256;
/// Slabs that have room here; the smallest have 64 KiB.
const SLABS: u64 = 1 << 26;
/// An arena whose number needs more bits has no caches.
pub const ARENAS: u32 = 0xffff;

const STATE_SHIFT: u32 = 7;
const STATE: u64 = 7 << STATE_SHIFT;
const RUN: u64 = 1 << 6;
const FIRST: u64 = 63;
const ARENA_SHIFT: u32 = 10;
const GRAINS_SHIFT: u32 = 26;

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

/// A block as a cache keeps it: a class of slab blocks and the block's number among all, or a length in grains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Of a slab.
    Small {
        /// Size class.
        class: usize,
        /// Which of all slabs' blocks.
        block: u64,
    },
    /// Any other.
    Large {
        /// Its length.
        grains: u64,
    },
}

impl Piece {
    /// Bytes.
    #[inline]
    pub fn bytes(self) -> u64 {
        match self {
            Piece::Small { class, .. } => u64::from(CLASS_BYTES[class]),
            Piece::Large { grains } => grains * GRAIN,
        }
    }
}

/// `offset / CLASS_BYTES[class]` by multiplication: offsets within a run are below 2^18, which 40 bits of fraction
/// suffice for (Granlund, Montgomery: "Division by invariant integers using multiplication", 1994).
const RECIPROCALS: [u64; CLASS_BYTES.len()] = {
    let mut table = [0; CLASS_BYTES.len()];
    let mut class = 0;
    while class < table.len() {
        table[class] = (1u64 << 40).div_ceil(CLASS_BYTES[class] as u64);
        class += 1;
    }
    table
};

#[inline]
fn large(at: u64, grains: u64, arena: u32, state: State) -> u64 {
    grains << GRAINS_SHIFT
        | u64::from(arena) << ARENA_SHIFT
        | (state as u64) << STATE_SHIFT
        | (at % CELL / GRAIN)
}

/// The states of all blocks of a pool.
#[derive(Debug)]
pub struct Directory {
    cells: Sparse<AtomicU64>,
    blocks: Sparse<AtomicU8>,
}

enum Place<'a> {
    Large(&'a AtomicU64, u64),
    Small(&'a AtomicU8, Piece, u32),
}

impl Directory {
    /// Without addresses.
    pub fn new() -> Result<Directory, BackendError> {
        Ok(Directory {
            cells: Sparse::new(CELLS)?,
            blocks: Sparse::new(SLABS * SLAB_BLOCKS)?,
        })
    }

    /// Makes room for blocks in `[at, at + bytes)`.
    pub fn cover(&self, at: u64, bytes: u64) -> Result<(), BackendError> {
        self.cells.cover(at / CELL, (at + bytes).div_ceil(CELL))
    }

    /// Makes room for the blocks of the slabs below `count`.
    pub fn cover_slabs(&self, count: u64) -> Result<(), BackendError> {
        self.blocks.cover(0, count * SLAB_BLOCKS)
    }

    /// The word of the cell around an address. Those of neighbours are on different cache lines: threads to which
    /// neighbours belong would slow each other down.
    #[inline(always)]
    fn cell(&self, at: u64) -> Option<&AtomicU64> {
        const LINES: u64 = CHAPTER / 8;
        let cell = at / CELL;
        let number = cell % CHAPTER;
        self.cells
            .get(cell - number + number % LINES * 8 + number / LINES)
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
        let class = (word >> 11 & 31) as usize;
        let offset = (word >> 7 & 15) * CELL + at % CELL;
        let index = (offset * RECIPROCALS[class]) >> 40;
        if index * u64::from(CLASS_BYTES[class]) != offset {
            return None;
        }
        let block = (word >> 32) * SLAB_BLOCKS + index;
        let owner = (word >> 16 & 0xffff) as u32;
        Some(Place::Small(
            self.blocks.get(block)?,
            Piece::Small { class, block },
            owner,
        ))
    }

    /// The state of the block that begins at an address.
    pub fn state(&self, at: u64) -> State {
        match self.place(at) {
            None => State::Gone,
            Some(Place::Large(_, word)) => state((word & STATE) >> STATE_SHIFT),
            Some(Place::Small(byte, ..)) => state(u64::from(byte.load(Ordering::Relaxed))),
        }
    }

    /// A block of at most `most` bytes is freed, and its thread's cache for `arena` keeps it. None: its free concerns the
    /// heap, or is a mistake.
    #[inline(always)]
    pub fn keep(&self, at: u64, arena: u32, most: u64) -> Option<Piece> {
        match self.place(at)? {
            Place::Large(cell, word) => {
                let grains = word >> GRAINS_SHIFT;
                if word & STATE != (State::Plain as u64) << STATE_SHIFT || grains > most / GRAIN {
                    return None;
                }
                let kept = word & !STATE | (State::Kept as u64) << STATE_SHIFT;
                cell.compare_exchange(word, kept, Ordering::AcqRel, Ordering::Relaxed)
                    .ok()?;
                Some(Piece::Large { grains })
            }
            // a slab serves its owner alone
            Place::Small(byte, piece, owner) if owner == arena => {
                let (plain, kept) = (State::Plain as u8, State::Kept as u8);
                byte.compare_exchange(plain, kept, Ordering::AcqRel, Ordering::Relaxed)
                    .ok()?;
                Some(piece)
            }
            Place::Small(..) => None,
        }
    }

    /// A kept block is live as it was before: it shall not be freed after all.
    pub fn revive(&self, at: u64) -> Option<Piece> {
        match self.place(at)? {
            Place::Large(cell, word) => {
                cell.store(
                    word & !STATE | (State::Plain as u64) << STATE_SHIFT,
                    Ordering::Release,
                );
                Some(Piece::Large {
                    grains: word >> GRAINS_SHIFT,
                })
            }
            Place::Small(byte, piece, _) => {
                byte.store(State::Plain as u8, Ordering::Release);
                Some(piece)
            }
        }
    }

    /// A block that the cache for `arena` kept is handed out.
    #[inline(always)]
    pub fn hand_out(&self, at: u64, piece: Piece, arena: u32) {
        match piece {
            Piece::Large { grains } => {
                let cell = self.cell(at).expect("a cell of the pool");
                cell.store(large(at, grains, arena, State::Plain), Ordering::Release);
            }
            Piece::Small { block, .. } => {
                let byte = self.blocks.get(block).expect("a block of the pool");
                byte.store(State::Plain as u8, Ordering::Release);
            }
        }
    }

    /// The heap has made a block outside slabs, of so many bytes.
    pub fn begin(&self, at: u64, bytes: u64) {
        let cell = self.cell(at).expect("a cell of the pool");
        debug_assert_eq!(cell.load(Ordering::Relaxed) & !FIRST, 0, "no block at {at:#x}");
        cell.store(large(at, bytes / GRAIN, COMMON, State::Plain), Ordering::Release);
    }

    /// The heap has handed out a block of a slab.
    pub fn begin_small(&self, slab: u32, index: u16) {
        let block = u64::from(slab) * SLAB_BLOCKS + u64::from(index);
        let byte = self.blocks.get(block).expect("a block of the pool");
        byte.store(State::Plain as u8, Ordering::Release);
    }

    /// The run that begins at an address is a slab's.
    pub fn begin_run(&self, at: u64, class: usize, slab: u32, owner: u32) {
        let owner = u64::from(owner.min(ARENAS));
        for cell in 0..run_bytes(class) / CELL {
            let word = u64::from(slab) << 32 | owner << 16 | (class as u64) << 11 | cell << 7 | RUN;
            let place = self.cell(at + cell * CELL).expect("a cell of the pool");
            place.store(word, Ordering::Release);
        }
    }

    /// The run is no slab's any more. None of its blocks is live.
    pub fn end_run(&self, at: u64, class: usize) {
        for cell in 0..run_bytes(class) / CELL {
            let place = self.cell(at + cell * CELL).expect("a cell of the pool");
            place.store(0, Ordering::Release);
        }
    }

    /// The free of a live block will concern the heap.
    pub fn set_special(&self, at: u64) {
        match self.place(at) {
            Some(Place::Large(cell, word)) if word & STATE != 0 => {
                let special = |word: u64| {
                    (word & STATE == (State::Plain as u64) << STATE_SHIFT)
                        .then_some(word & !STATE | (State::Special as u64) << STATE_SHIFT)
                };
                let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, special);
            }
            Some(Place::Small(byte, ..)) => {
                let (plain, special) = (State::Plain as u8, State::Special as u8);
                let _ = byte.compare_exchange(plain, special, Ordering::AcqRel, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// A live block is freed to the heap: the arena whose cache handed it out, if one did. Err: somebody else has
    /// freed it.
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
                let end = |was: u8| live(state(u64::from(was))).then_some(State::Gone as u8);
                match byte.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end) {
                    Err(was) => Err(state(u64::from(was))),
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
            Piece::Small { block, .. } => {
                let byte = self.blocks.get(block).expect("a block of the pool");
                byte.store(State::Gone as u8, Ordering::Release);
            }
        }
    }

    /// The slab and index of a small piece.
    pub fn slab_of(block: u64) -> (u32, u16) {
        ((block / SLAB_BLOCKS) as u32, (block % SLAB_BLOCKS) as u16)
    }
}
