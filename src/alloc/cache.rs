//! A thread's cache: blocks that one thread freed on one stream, for its next requests there. Taking and keeping a
//! block touches nothing that other threads write, and what the heap would do for it, cutting and joining extents, is
//! not done at all. (Deferred coalescing: Weinstock, Wulf, "Quick fit", 1988; a cache a thread: Bonwick, Adams,
//! "Magazines and vmem", 2001.)
//!
//! For the heap a kept block is a live one. It knows all caches of its pool and takes blocks out of them when it needs
//! them, longest first (`flush`).
//!
//! Blocks of a slab are listed by class. Others are listed by length, 64 lists an octave, and a request takes a block of
//! its own length if there is one, else one that is longer by a 16th at most, in a little pool by a quarter; long ones by
//! a 256th.
//!
//! A kept block carries the number that its stream's next free would have had, so any event that covers the number was
//! recorded after the free (see `order`): numbers are published before the event they are read for is recorded.
//!
//! Where long blocks lie decides how much memory the pool needs, and what is kept is in the way of a better place. So
//! only the last long block that was freed is kept, until the thread frees another one or asks for one of another
//! length; then it goes back, as if it had never been kept.
//!
//! Invariants: `bytes` is the sum over the lists; a list's bit is set if and only if it is not empty; `low` is the
//! least `bytes` since the heap last looked.
//! Lock: the owner works inside the gate, others behind a shut one, under the heap's lock. Everything is an atomic
//! accessed by plain loads and stores.

use super::directory::{Directory, Piece};
use super::gate::{Gate, Shut};
use super::order::COMMON;
use super::size::{CLASSES, GRAIN, SMALL_MAX, class_of, round_up};
use crate::base::units::StreamHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

/// Blocks a cache can keep.
pub const BLOCKS: usize = 2048;
const NONE: u16 = u16::MAX;
/// Blocks that are longer than this are long.
pub const LONG: u64 = 256 << 10;
/// Lists an octave.
const STEPS: usize = 64;
/// Lists in all: those of the classes, and of the lengths from 2^6 grains to `LONG`.
const LISTS: usize = list_of(LONG / GRAIN) + 1;
/// The number of the long block, behind those of the lists.
const THE_LONG: usize = LISTS;
const WORDS: usize = (THE_LONG + 1).div_ceil(64);
/// A request takes a block that is longer than itself by this shift of its length; and in a little pool by that one.
const CLOSE: u32 = 4;
const GENEROUS: u32 = 2;
/// Blocks of a list that are looked at.
const LOOK: usize = 8;

/// Names a thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(pub u64);

#[derive(Debug)]
struct Entry {
    at: AtomicU64,
    /// `Piece`: a slab's block, or grains.
    what: AtomicU64,
    /// Free of this number, at the latest.
    seq: AtomicU64,
    next: AtomicU16,
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            at: AtomicU64::new(0),
            what: AtomicU64::new(0),
            seq: AtomicU64::new(0),
            next: AtomicU16::new(NONE),
        }
    }

    fn write(&self, kept: Kept, what: u64) {
        self.at.store(kept.at, Relaxed);
        self.what.store(what, Relaxed);
        self.seq.store(kept.seq, Relaxed);
    }
}

/// A block on its way back to the heap.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Its address.
    pub at: u64,
    /// What it is.
    pub piece: Piece,
    /// Number of its free.
    pub seq: u64,
}

/// What a cache has done since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Blocks handed out.
    pub taken: u64,
    /// Blocks kept when they were freed.
    pub kept: u64,
}

/// The cache.
#[derive(Debug)]
#[repr(align(128))] // its owner writes it at every call: no other thread's memory is beside it
pub struct Cache {
    /// Who may work on it.
    pub gate: Gate,
    /// The one thread that calls `take` and `keep`.
    pub owner: ThreadId,
    /// The stream that it is for, as calls name it.
    pub stream: StreamHandle,
    /// The stream's.
    pub arena: u32,
    /// The longest block to keep.
    most: u64,
    directory: Arc<Directory>,
    /// The number of the latest free on the stream.
    clock: Arc<AtomicU64>,
    entries: Box<[Entry; BLOCKS]>,
    /// The long block; none if it is of 0 grains.
    long: Entry,
    lists: [AtomicU16; LISTS],
    filled: [AtomicU64; WORDS],
    spare: AtomicU16,
    fresh: AtomicU16,
    count: AtomicU16,
    bytes: AtomicU64,
    low: AtomicU64,
    /// The most bytes to keep, beside the long block.
    limit: AtomicU64,
    /// A block may be longer than a request by the request's length shifted by this.
    excess: AtomicU32,
    taken: AtomicU64,
    kept: AtomicU64,
}

/// The list of lengths of so many grains.
#[inline]
const fn list_of(grains: u64) -> usize {
    let octave = if grains < 64 { 6 } else { grains.ilog2() };
    let step = (grains >> (octave - 6)) as usize & (STEPS - 1);
    CLASSES + (octave as usize - 6) * STEPS + step
}

#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Cache {
    /// An empty cache that is nobody's yet.
    pub fn new(directory: Arc<Directory>) -> Cache {
        Cache {
            gate: Gate::default(),
            owner: ThreadId(0),
            stream: StreamHandle::default(),
            arena: COMMON,
            most: 0,
            directory,
            clock: Arc::default(),
            entries: Box::new([const { Entry::new() }; BLOCKS]),
            long: Entry::new(),
            lists: [const { AtomicU16::new(NONE) }; LISTS],
            filled: [const { AtomicU64::new(0) }; WORDS],
            spare: AtomicU16::new(NONE),
            fresh: AtomicU16::new(0),
            count: AtomicU16::new(0),
            bytes: AtomicU64::new(0),
            low: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            excess: AtomicU32::new(CLOSE),
            taken: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }

    /// It is for a thread and the stream of an arena, whose latest free's number is `clock`, and for blocks of at most
    /// `most` bytes.
    pub fn assign(
        &mut self,
        owner: ThreadId,
        stream: StreamHandle,
        arena: u32,
        most: u64,
        clock: Arc<AtomicU64>,
    ) {
        (self.owner, self.stream, self.arena) = (owner, stream, arena);
        (self.most, self.clock) = (most, clock);
    }

    /// The owner takes a block for a request. None: it has none, or must not now.
    #[inline]
    pub fn take(&self, bytes: u64, align: u64) -> Option<u64> {
        let _pass = self.gate.enter()?;
        let kept = self.pick(bytes, align)?;
        self.hand_out(kept);
        Some(kept.at)
    }

    /// The owner takes blocks for all these requests. None: it has not enough of them, or must not now.
    pub fn take_all(&self, sizes: &[u64]) -> Option<Vec<Kept>> {
        let mut picked = Vec::with_capacity(sizes.len());
        let _pass = self.gate.enter()?;
        for &bytes in sizes {
            match self.pick(bytes, 0) {
                Some(kept) => picked.push(kept),
                None => {
                    // they are kept still, as far as anybody else knows
                    picked.into_iter().rev().for_each(|kept| self.push(kept));
                    return None;
                }
            }
        }
        picked.iter().for_each(|&kept| self.hand_out(kept));
        Some(picked)
    }

    /// Takes a block for a request off its list.
    #[inline(always)]
    fn pick(&self, bytes: u64, align: u64) -> Option<Kept> {
        match class_of(bytes, align) {
            Some(class) => self.pop(class),
            None if align > GRAIN => None,
            None if bytes > LONG => self.take_long(bytes),
            None => self.fitting(round_up(bytes.max(SMALL_MAX + GRAIN), GRAIN) / GRAIN),
        }
    }

    /// A block that is on no list any more is the program's.
    #[inline(always)]
    fn hand_out(&self, kept: Kept) {
        self.directory.hand_out(kept.at, kept.piece, self.arena);
        let left = self.bytes.load(Relaxed) - kept.piece.bytes();
        self.bytes.store(left, Relaxed);
        if left < self.low.load(Relaxed) {
            self.low.store(left, Relaxed);
        }
        bump(&self.taken);
    }

    /// The owner keeps a block that is freed. Gives its bytes. None: its free concerns the heap.
    #[inline]
    pub fn keep(&self, at: u64) -> Option<u64> {
        let _pass = self.gate.enter()?;
        self.put(at)
    }

    /// The owner keeps all these blocks, which are freed. False: it keeps none, because the free of one concerns the heap.
    pub fn keep_all(&self, blocks: impl DoubleEndedIterator<Item = u64> + Clone) -> bool {
        let Some(_pass) = self.gate.enter() else {
            return false;
        };
        for (kept, at) in blocks.clone().enumerate() {
            if self.put(at).is_none() {
                // the latest first, since it is the first of its list
                let rest = blocks.clone().count() - kept;
                blocks.rev().skip(rest).for_each(|at| self.put_back(at));
                return false;
            }
        }
        true
    }

    /// Puts a block on its list.
    #[inline(always)]
    fn put(&self, at: u64) -> Option<u64> {
        let long = self.long.what.load(Relaxed) * GRAIN;
        if usize::from(self.count.load(Relaxed)) == BLOCKS
            || self.bytes.load(Relaxed) - long >= self.limit.load(Relaxed)
        {
            return None;
        }
        let most = match long {
            0 => self.most,
            _ => self.most.min(LONG),
        };
        let piece = self.directory.keep(at, self.arena, most)?;
        // read behind the gate and after the call began: any event that will cover this number is yet to be recorded
        let seq = if self.arena == COMMON {
            0
        } else {
            self.clock.load(Acquire) + 1
        };
        self.push(Kept { at, piece, seq });
        let bytes = piece.bytes();
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        bump(&self.kept);
        Some(bytes)
    }

    /// The block that was put on its list last is live again, as if it had never been freed.
    fn put_back(&self, at: u64) {
        let piece = self.directory.revive(at).expect("kept just now");
        let list = match piece {
            Piece::Small { class, .. } => class,
            Piece::Large { grains } if grains > LONG / GRAIN => THE_LONG,
            Piece::Large { grains } => list_of(grains),
        };
        let kept = self.pop(list).expect("put there just now");
        debug_assert_eq!(kept.at, at);
        self.bytes
            .store(self.bytes.load(Relaxed) - piece.bytes(), Relaxed);
        self.kept.store(self.kept.load(Relaxed).wrapping_sub(1), Relaxed);
    }

    /// The owner puts a block back that it took and nobody had: neither is counted. False: the cache cannot keep it.
    pub fn untake(&self, at: u64) -> bool {
        let kept = self.keep(at).is_some();
        if kept {
            self.kept.store(self.kept.load(Relaxed).wrapping_sub(1), Relaxed);
            self.taken
                .store(self.taken.load(Relaxed).wrapping_sub(1), Relaxed);
        }
        kept
    }

    /// The entry of a block: `id` is below `BLOCKS`, of which the compiler is told here.
    #[inline]
    fn entry(&self, id: u16) -> &Entry {
        &self.entries[usize::from(id) % BLOCKS]
    }

    #[inline(always)]
    fn push(&self, kept: Kept) {
        let (list, what) = match kept.piece {
            Piece::Small { class, block } => (class, block),
            Piece::Large { grains } if grains > LONG / GRAIN => {
                self.mark(THE_LONG, true);
                return self.long.write(kept, grains);
            }
            Piece::Large { grains } => (list_of(grains), grains),
        };
        let id = match self.spare.load(Relaxed) {
            NONE => {
                let id = self.fresh.load(Relaxed);
                self.fresh.store(id + 1, Relaxed);
                id
            }
            id => {
                self.spare.store(self.entry(id).next.load(Relaxed), Relaxed);
                id
            }
        };
        let entry = self.entry(id);
        entry.write(kept, what);
        let first = &self.lists[list];
        entry.next.store(first.load(Relaxed), Relaxed);
        if first.load(Relaxed) == NONE {
            self.mark(list, true);
        }
        first.store(id, Relaxed);
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
    }

    #[inline]
    fn mark(&self, list: usize, filled: bool) {
        let word = &self.filled[list / 64];
        let bit = 1 << (list % 64);
        let bits = word.load(Relaxed);
        word.store(if filled { bits | bit } else { bits & !bit }, Relaxed);
    }

    /// Takes the long block if it is of the length that is needed, or hardly longer.
    #[inline]
    fn take_long(&self, bytes: u64) -> Option<Kept> {
        let grains = bytes.div_ceil(GRAIN);
        let kept = self.long.what.load(Relaxed);
        if kept < grains || kept - grains > grains >> 8 {
            return None;
        }
        self.pop(THE_LONG)
    }

    /// Takes the first block of a list.
    #[inline(always)]
    fn pop(&self, list: usize) -> Option<Kept> {
        if list == THE_LONG {
            let kept = self.read(&self.long, THE_LONG);
            self.long.what.store(0, Relaxed);
            self.mark(THE_LONG, false);
            return Some(kept);
        }
        let id = self.lists[list].load(Relaxed);
        (id != NONE).then(|| self.unlink(list, NONE, id))
    }

    #[inline(always)]
    fn unlink(&self, list: usize, before: u16, id: u16) -> Kept {
        let entry = self.entry(id);
        let next = entry.next.load(Relaxed);
        if before != NONE {
            self.entry(before).next.store(next, Relaxed);
        } else {
            self.lists[list].store(next, Relaxed);
            if next == NONE {
                self.mark(list, false);
            }
        }
        entry.next.store(self.spare.load(Relaxed), Relaxed);
        self.spare.store(id, Relaxed);
        self.count.store(self.count.load(Relaxed) - 1, Relaxed);
        self.read(entry, list)
    }

    /// Takes a block of so many grains or hardly more.
    #[inline]
    fn fitting(&self, grains: u64) -> Option<Kept> {
        let list = list_of(grains);
        let most = grains + (grains >> self.excess.load(Relaxed));
        let (mut id, mut before) = (self.lists[list].load(Relaxed), NONE);
        let mut best = (NONE, NONE, most + 1);
        for _ in 0..LOOK {
            if id == NONE {
                break;
            }
            let entry = self.entry(id);
            let length = entry.what.load(Relaxed);
            if length == grains {
                return Some(self.unlink(list, before, id));
            }
            if length > grains && length < best.2 {
                best = (id, before, length);
            }
            (before, id) = (id, entry.next.load(Relaxed));
        }
        if best.0 != NONE {
            return Some(self.unlink(list, best.1, best.0));
        }
        // in the lists above every block is long enough
        let above = self.filled_from(list + 1).filter(|&above| above != THE_LONG)?;
        let id = self.lists[above].load(Relaxed);
        let length = self.entry(id).what.load(Relaxed);
        (length <= most).then(|| self.unlink(above, NONE, id))
    }

    /// The first list from `list` on that has blocks.
    #[inline]
    fn filled_from(&self, list: usize) -> Option<usize> {
        let word = list / 64;
        let first = |word: usize, mask: u64| {
            let bits = self.filled.get(word)?.load(Relaxed) & mask;
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        };
        // no block of the word after the next is short enough for a request of this one
        first(word, u64::MAX << (list % 64)).or_else(|| first(word + 1, u64::MAX))
    }

    #[inline(always)]
    fn read(&self, entry: &Entry, list: usize) -> Kept {
        let what = entry.what.load(Relaxed);
        Kept {
            at: entry.at.load(Relaxed),
            piece: if list < CLASSES {
                Piece::Small {
                    class: list,
                    block: what,
                }
            } else {
                Piece::Large { grains: what }
            },
            seq: entry.seq.load(Relaxed),
        }
    }

    // What follows is for whoever holds the heap's lock, with the gate shut unless it is the owner.

    /// Bytes of the block that `withdraw` will give, one of the longest.
    pub fn longest(&self) -> Option<u64> {
        let list = self.last_list()?;
        let entry = match list {
            THE_LONG => &self.long,
            list => self.entry(self.lists[list].load(Relaxed)),
        };
        Some(self.read(entry, list).piece.bytes())
    }

    fn last_list(&self) -> Option<usize> {
        let filled = |word: &usize| self.filled[*word].load(Relaxed) != 0;
        let word = (0..WORDS).rev().find(filled)?;
        let bits = self.filled[word].load(Relaxed);
        Some(word * 64 + 63 - bits.leading_zeros() as usize)
    }

    /// Takes a block out, for the heap, which has it as live.
    pub fn withdraw(&self) -> Option<Kept> {
        let kept = self.pop(self.last_list()?)?;
        let left = self.bytes.load(Relaxed) - kept.piece.bytes();
        self.bytes.store(left, Relaxed);
        self.low.store(self.low.load(Relaxed).min(left), Relaxed);
        Some(kept)
    }

    /// Half of what it has more than another cache for the same stream, of each length, goes there. The other one has fewer
    /// blocks, so there are places for them. The long block stays.
    pub fn share(&self, with: &Cache) {
        debug_assert_eq!(self.arena, with.arena);
        let mut moved = 0;
        for list in 0..LISTS {
            let more = self.ids(list).count().saturating_sub(with.ids(list).count());
            for _ in 0..more.div_ceil(2) {
                let kept = self.pop(list).expect("counted");
                moved += kept.piece.bytes();
                with.push(kept);
            }
        }
        let left = self.bytes.load(Relaxed) - moved;
        self.bytes.store(left, Relaxed);
        self.low.store(self.low.load(Relaxed).min(left), Relaxed);
        with.bytes.store(with.bytes.load(Relaxed) + moved, Relaxed);
    }

    /// Are there hardly any places left, or room for bytes?
    pub fn is_full(&self) -> bool {
        let long = self.long.what.load(Relaxed) * GRAIN;
        let (bytes, limit) = (self.bytes.load(Relaxed) - long, self.limit.load(Relaxed));
        self.count.load(Relaxed) as usize > BLOCKS * 15 / 16 || bytes > limit - limit / 16
    }

    /// Calls the owner to the pool, or says that it came.
    pub fn call(&self, wanted: bool) {
        if wanted {
            self.gate.shut(Shut::Call);
        } else if self.gate.is_shut(Shut::Call) {
            self.gate.open(Shut::Call);
        }
    }

    /// Bytes that may be kept.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Whether a request may take a block that is a good deal longer. That costs memory where all blocks are short, but
    /// less than keeping more of them would, and nearly every request then finds one.
    pub fn set_generous(&self, generous: bool) {
        self.excess
            .store(if generous { GENEROUS } else { CLOSE }, Relaxed);
    }

    // What follows may be called at any time: each figure is one that was true a moment ago.

    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Blocks kept.
    pub fn count(&self) -> u64 {
        u64::from(self.count.load(Relaxed)) + u64::from(self.long.what.load(Relaxed) != 0)
    }

    /// The least bytes kept since this was last called.
    pub fn take_low(&self) -> u64 {
        let low = self.low.load(Relaxed);
        self.low.store(self.bytes.load(Relaxed), Relaxed);
        low
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        Counts {
            taken: self.taken.load(Relaxed),
            kept: self.kept.load(Relaxed),
        }
    }

    /// All kept blocks. The caller has the gate shut.
    pub fn blocks(&self) -> impl Iterator<Item = Kept> + '_ {
        let long = self.longest().filter(|&bytes| bytes > LONG);
        let long = long.map(|_| self.read(&self.long, THE_LONG));
        let lists =
            (0..LISTS).flat_map(move |list| self.ids(list).map(move |id| self.read(self.entry(id), list)));
        lists.chain(long)
    }

    /// The entries of a list.
    fn ids(&self, list: usize) -> impl Iterator<Item = u16> + '_ {
        let known = |id: u16| (id != NONE).then_some(id);
        let next = move |&id: &u16| known(self.entry(id).next.load(Relaxed));
        std::iter::successors(known(self.lists[list].load(Relaxed)), next)
    }
}
