//! A thread's cache: blocks that one thread freed on one stream, for its next requests there. Taking and keeping a
//! block touches nothing that other threads write, and what the heap would do for it, cutting and joining extents, is
//! not done at all. (Deferred coalescing: Weinstock, Wulf, "Quick fit", 1988; a cache a thread: Bonwick, Adams,
//! "Magazines and vmem", 2001.)
//!
//! For the heap a kept block is a live one. It knows all caches of its pool and takes blocks out of them when it needs
//! them, longest first (`flush`).
//!
//! A kept block carries the number that its stream's next free would have had, so any event that covers the number was
//! recorded after the free (see `order`): numbers are published before the event they are read for is recorded.
//!
//! Where long blocks lie decides how much memory the pool needs, and what is kept is in the way of a better place. So
//! only the last long block that was freed is kept, until the thread frees another one or asks for one of another
//! length; then it goes back, as if it had never been kept.
//!
//! Invariants: `bytes` is the sum over the lists; `low` is the least `bytes` since the heap last looked; what was `kept`, less what was `taken`,
//! and `moved` more, is on the lists.
//! Lock: the owner works inside the gate, others behind a shut one, under the heap's lock. Everything is an atomic
//! accessed by plain loads and stores.

use super::depot::Depot;
use super::directory::{Directory, Look, Marks, Piece, Spot, Where};
use super::entries::BLOCKS;
use super::gate::{Gate, Shut};
use super::kept::{Kept, Larger};
use super::lists::{Excess, Lists};
use super::order::COMMON;
use super::size::{GRAIN, SMALL_MAX, class_of, plain_class};
use super::standing::Standing;
use super::tape::{NO_PART, Tape};
use crate::backend::sparse::Site;
use crate::base::units::{Addr, StreamHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Names a thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ThreadId(pub u64);

/// What caches have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Blocks handed out.
    pub taken: u64,
    /// Blocks kept when they were freed.
    pub kept: u64,
}

/// The cache. What nearly every call needs is on its first two lines of the processor's.
#[derive(Debug)]
#[repr(C, align(128))] // its owner writes it at every call: no other thread's memory is beside it
pub struct Cache {
    /// Who may work on it.
    pub gate: Gate,
    /// Whether the owner is alone.
    pub standing: Standing,
    /// By what the directory tells its blocks.
    pub(super) marks: Marks,
    /// The number of the latest free on the stream; for `COMMON`, which has none, what 0 comes after.
    clock: Arc<AtomicU64>,
    pub(super) bytes: AtomicU64,
    low: AtomicU64,
    /// The most bytes to keep, beside the long block.
    limit: AtomicU64,
    taken: AtomicU64,
    kept: AtomicU64,
    /// Grains of the longest block to keep.
    most: AtomicU64,
    /// Blocks that came from others, less those that others got.
    moved: AtomicU64,
    /// Which of its streams the cache is for. Changed while the gate is shut.
    pub(super) part: AtomicU64,
    pub(super) lists: Lists,
    pub(super) directory: Directory,
    /// The pool's.
    pub(super) tape: Arc<Tape>,
    /// The stream's.
    pub(super) depot: Arc<Depot>,
    /// The one thread that calls `take` and `keep`.
    pub owner: ThreadId,
    /// The stream that it is for, as calls name it.
    pub stream: StreamHandle,
    /// The stream's.
    pub arena: u32,
    /// The last batch could not be kept as a whole.
    in_part: AtomicBool,
}

#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Cache {
    /// An empty cache that is nobody's yet.
    pub fn new(directory: Directory, tape: Arc<Tape>) -> Cache {
        Cache {
            gate: Gate::default(),
            owner: ThreadId(0),
            stream: StreamHandle::default(),
            arena: COMMON,
            marks: Marks::of(COMMON),
            standing: Standing::of(&Marks::of(COMMON)),
            most: AtomicU64::new(0),
            directory,
            tape,
            part: AtomicU64::new(NO_PART),
            depot: Arc::default(),
            clock: Arc::new(AtomicU64::new(u64::MAX)),
            lists: Lists::default(),
            bytes: AtomicU64::new(0),
            low: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            in_part: AtomicBool::new(false),
        }
    }

    /// It is for a thread and the stream of an arena, which has a depot, and whose latest free's number is `clock`.
    pub fn assign(
        &mut self,
        owner: ThreadId,
        stream: StreamHandle,
        arena: u32,
        (clock, depot): (Arc<AtomicU64>, Arc<Depot>),
    ) {
        (self.owner, self.stream, self.arena, self.depot) = (owner, stream, arena, depot);
        self.marks = Marks::of(arena);
        self.standing = Standing::of(&self.marks);
        if arena != COMMON {
            self.clock = clock;
        }
    }

    /// What the directory of its pool knows.
    pub fn whole(&self) -> &Where {
        self.directory.whole()
    }

    /// The owner takes a block for a request. None: it has none, or must not now.
    pub fn take(&self, bytes: u64, align: u64) -> Option<u64> {
        let _pass = self.gate.enter()?;
        self.take_inside(bytes, align)
    }

    /// The same for an owner that is inside, or holds the heap's lock while the gate is shut.
    pub fn take_inside(&self, bytes: u64, align: u64) -> Option<u64> {
        let begun = match class_of(bytes, align) {
            Some(class) => self.begin_small(class, self.lists.pop_small(class)?),
            None if align > GRAIN => return None,
            None => self.begin_larger(self.lists.pick_larger(bytes.max(SMALL_MAX + 1))?),
        };
        Some(self.hand_out(begun))
    }

    /// The same if it keeps this very block, and not far down its list.
    pub fn take_this(&self, at: u64, piece: Piece) -> Option<u64> {
        let kept = self.lists.pop_this(at, piece)?;
        let site = kept.site;
        Some(self.hand_out(match kept.piece {
            Piece::Small { class } => self.begin_small(class, (at, site)),
            Piece::Large { grains } => self.begin_larger(Larger { at, grains, site }),
        }))
    }

    /// The owner takes blocks for those of these requests whose places in `out` are still 0. Gives whether it had all of them.
    pub fn take_batch(&self, sizes: &[u64], out: &mut [Addr]) -> bool {
        let Some(_pass) = self.gate.enter() else {
            return false;
        };
        let (mut all, mut count, mut total) = (true, 0, 0);
        let places = out.iter_mut().zip(sizes);
        for (place, &bytes) in places.filter(|(place, _)| place.0 == 0) {
            // each kind by itself: so a slab's block goes from its list to the program in registers
            let taken = match plain_class(bytes) {
                Some(class) => self
                    .lists
                    .pop_small(class)
                    .map(|place| self.begin_small(class, place)),
                None => self
                    .lists
                    .pick_larger(bytes)
                    .map(|larger| self.begin_larger(larger)),
            };
            let Some((at, bytes)) = taken else {
                all = false;
                continue;
            };
            *place = Addr(at);
            (count, total) = (count + 1, total + bytes);
        }
        self.lose(total);
        add(&self.taken, count);
        all
    }

    /// A block that is on no list any more is the program's: where it is, and its bytes.
    #[inline(always)]
    pub(super) fn begin_small(&self, class: usize, place: (u64, Site)) -> (u64, u64) {
        self.directory.hand_out_small(place, class);
        (place.0, Piece::Small { class }.bytes())
    }

    /// The same for one of no slab.
    #[inline(always)]
    pub(super) fn begin_larger(&self, Larger { at, grains, site }: Larger) -> (u64, u64) {
        self.directory
            .hand_out_large((at, site), grains, self.standing.handed_out());
        (at, grains * GRAIN)
    }

    /// One that has begun is handed out.
    #[inline(always)]
    pub(super) fn hand_out(&self, (at, bytes): (u64, u64)) -> u64 {
        self.lose(bytes);
        add(&self.taken, 1);
        at
    }

    /// So much less is kept.
    #[inline(always)]
    pub(super) fn lose(&self, bytes: u64) {
        let left = self.bytes.load(Relaxed).wrapping_sub(bytes);
        self.bytes.store(left, Relaxed);
        self.low.store(left.min(self.low.load(Relaxed)), Relaxed); // no processor foresees which it is
    }

    /// A block of so many bytes, that is on no list any more, is another's.
    #[inline]
    pub(super) fn give_away(&self, bytes: u64) {
        self.lose(bytes);
        add(&self.moved, u64::MAX);
    }

    /// A block of so many bytes, that is on a list now, was another's.
    #[inline]
    pub(super) fn gain_shared(&self, bytes: u64) {
        add(&self.bytes, bytes);
        add(&self.moved, 1);
    }

    /// The owner keeps a block that is freed. Gives its bytes. None: its free concerns the heap.
    pub fn keep(&self, at: u64) -> Option<u64> {
        let _pass = self.gate.enter()?;
        self.keep_inside(at)
    }

    /// As `take_inside`.
    pub fn keep_inside(&self, at: u64) -> Option<u64> {
        let spot = self.directory.spot(at)?;
        let look = spot.look();
        match look.class(&self.marks) {
            Some(class) => self.put_small(at, class, spot),
            None => self.put_any(at, look),
        }
    }

    /// The same where all use of the block is over, on whatever stream. Of what was there before it that says nothing: so it is
    /// kept where it is a slab's of this stream, or where no work of any stream can be left.
    pub fn keep_synced(&self, at: u64) -> Option<u64> {
        let _pass = self.gate.enter()?;
        let spot = self.directory.spot(at)?;
        let look = spot.look();
        match look.class(&self.marks) {
            Some(class) => self.put_small(at, class, spot),
            None => (self.arena == COMMON).then(|| self.put_any(at, look))?,
        }
    }

    /// Could the last batch be kept in part only? Then the next one cannot be had as a whole.
    pub fn is_in_part(&self) -> bool {
        self.in_part.load(Relaxed)
    }

    /// The owner keeps all these blocks, which are freed; of places with 0 there are none. False: it keeps none, because the
    /// free of one concerns the heap.
    pub fn keep_all(&self, blocks: &[Addr]) -> bool {
        if self.is_in_part() {
            return false; // rather than to put it all back again
        }
        let Some(_pass) = self.gate.enter() else {
            return false;
        };
        for (number, &at) in blocks.iter().enumerate() {
            if at.0 != 0 && self.keep_inside(at.0).is_none() {
                // the latest first, since it is the first of its list
                let kept = blocks[..number].iter().rev().filter(|at| at.0 != 0);
                kept.for_each(|at| self.put_back(at.0));
                return false;
            }
        }
        true
    }

    /// The owner keeps those of these blocks, which are freed, that do not concern the heap: `each` is told their numbers, and
    /// those of places with 0.
    pub fn keep_some(&self, blocks: &[Addr], mut each: impl FnMut(usize)) {
        let Some(_pass) = self.gate.enter() else { return };
        for (number, &at) in blocks.iter().enumerate() {
            if at.0 == 0 || self.keep_inside(at.0).is_some() {
                each(number);
            }
        }
    }

    /// Whether a batch was kept only in part.
    pub fn note_batch(&self, in_part: bool) {
        self.in_part.store(in_part, Relaxed);
    }

    /// Is there room for a block on the lists?
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.lists.has_room() && self.has_bytes()
    }

    /// Is there room for more bytes?
    #[inline(always)]
    fn has_bytes(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        self.bytes.load(Relaxed) < limit || self.short_bytes() < limit
    }

    #[inline(always)]
    pub(super) fn put_small(&self, at: u64, class: usize, spot: Spot) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        let site = spot.keep_small(class, &self.standing)?;
        self.lists.push_small(class, (at, site), self.seq());
        Some(self.gain(Piece::Small { class }))
    }

    /// The same for one of no slab.
    #[inline(always)]
    pub(super) fn put_any(&self, at: u64, look: Look) -> Option<u64> {
        match look.is_longer(self.lists.long_from()) {
            true => self.put_long(at, look, false),
            false if self.lists.has_latest() => self.put_next(at, look, false),
            false => self.put_latest(at, look, false),
        }
    }

    /// The same for a long one, which is known to be its `own` or may be any.
    #[inline(always)]
    pub(super) fn put_long(&self, at: u64, look: Look, own: bool) -> Option<u64> {
        match self.lists.long_bytes() {
            0 => self.put_larger(at, look, own, Lists::set_long),
            _ => None,
        }
    }

    /// The same for one that is not, where none came last.
    #[inline(always)]
    pub(super) fn put_latest(&self, at: u64, look: Look, own: bool) -> Option<u64> {
        self.has_bytes()
            .then(|| self.put_larger(at, look, own, Lists::set_latest))?
    }

    /// The same where one did.
    #[inline(always)]
    pub(super) fn put_next(&self, at: u64, look: Look, own: bool) -> Option<u64> {
        self.has_room()
            .then(|| self.put_larger(at, look, own, Lists::set_next))?
    }

    #[inline(always)]
    fn put_larger(
        &self,
        at: u64,
        look: Look,
        own: bool,
        put: impl FnOnce(&Lists, u64, (u64, Site), u64),
    ) -> Option<u64> {
        let fits = |grains| grains <= self.most.load(Relaxed);
        let grains = match own {
            true => look.keep_own(at, fits),
            false => look.keep_large(at, &self.marks, &self.standing, fits),
        }?;
        put(&self.lists, grains, (at, look.site()), self.seq());
        Some(self.gain(Piece::Large { grains }))
    }

    /// The number for a block that was freed just now. It is read behind the gate and after the call began: any event
    /// that will cover it is yet to be recorded.
    #[inline(always)]
    fn seq(&self) -> u64 {
        self.clock.load(Acquire).wrapping_add(1)
    }

    /// Without those of the long block.
    #[inline(always)]
    fn short_bytes(&self) -> u64 {
        self.bytes.load(Relaxed).wrapping_sub(self.lists.long_bytes())
    }

    #[inline(always)]
    fn gain(&self, piece: Piece) -> u64 {
        let bytes = piece.bytes();
        self.bytes
            .store(self.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
        self.kept.store(self.kept.load(Relaxed).wrapping_add(1), Release); // see `kept`
        bytes
    }

    /// The block that was put on its list last is live again, as if it had never been freed. The owner is inside the gate, or
    /// holds the heap's lock since it kept the block.
    pub fn put_back(&self, at: u64) {
        let piece = self.directory.revive(at).expect("kept just now");
        let kept = self.lists.pop_this(at, piece).expect("put there just now");
        debug_assert_eq!(kept.at, at);
        // the heap may have looked meanwhile: its `low` is of too much
        self.lose(piece.bytes());
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

    // What follows is for whoever holds the heap's lock, with the gate shut unless it is the owner.

    /// Bytes of the block that `withdraw` will give, one of the longest.
    pub fn longest(&self) -> Option<u64> {
        self.lists.longest()
    }

    /// Bytes of the long block, which `withdraw` will give; 0 if there is none.
    #[inline]
    pub fn long_bytes(&self) -> u64 {
        self.lists.long_bytes()
    }

    /// Takes a block out, for the heap, which has it as live.
    #[inline]
    pub fn withdraw(&self) -> Option<Kept> {
        let kept = self.lists.pop_longest()?;
        self.give_away(kept.piece.bytes());
        Some(kept)
    }

    /// Are there hardly any places left, or room for bytes?
    pub fn is_full(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        self.count() > (BLOCKS * 15 / 16) as u64 || self.short_bytes() > limit - limit / 16
    }

    /// Calls the owner to the pool, or says that it came.
    pub fn call(&self, wanted: bool) {
        if wanted {
            self.gate.shut(Shut::Call);
        } else if self.gate.is_shut(Shut::Call) {
            self.gate.open(Shut::Call);
        }
    }

    /// Bytes that may be kept, and of the longest block.
    pub fn set_limits(&self, bytes: u64, longest: u64) {
        self.limit.store(bytes, Relaxed);
        self.most.store(longest / GRAIN, Relaxed);
    }

    /// Blocks of more bytes are long.
    pub fn set_long_from(&self, bytes: u64) {
        self.lists.set_long_from(bytes);
    }

    /// As set last.
    #[inline(always)]
    pub fn long_from(&self) -> u64 {
        self.lists.long_from() * GRAIN
    }

    /// The same.
    #[cfg(test)]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// The same.
    #[cfg(test)]
    pub fn excess(&self) -> Excess {
        self.lists.excess()
    }

    /// How far blocks may be longer than requests.
    pub fn set_excess(&self, excess: Excess) {
        self.lists.set_excess(excess);
    }

    // What follows may be called at any time: each figure is one that was true a moment ago.

    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Blocks kept.
    pub fn count(&self) -> u64 {
        let (kept, taken) = (self.kept(), self.taken());
        let count = kept.wrapping_sub(taken).wrapping_add(self.moved.load(Relaxed));
        count.cast_signed().max(0).cast_unsigned() // the three are not read at the same moment
    }

    /// The least bytes kept since this was last called.
    pub fn take_low(&self) -> u64 {
        let low = self.low.load(Relaxed);
        self.low.store(self.bytes.load(Relaxed), Relaxed);
        low
    }

    /// Blocks handed out since it was opened.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Blocks kept when they were freed, since then. Whoever asks for it sees all that was handed out before.
    pub fn kept(&self) -> u64 {
        self.kept.load(Acquire)
    }

    /// All kept blocks. The caller has the gate shut.
    pub fn blocks(&self) -> impl Iterator<Item = Kept> + '_ {
        self.lists.blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::CELL;
    use super::*;

    /// An empty cache, with room for so many bytes, and a live block of as many from an address on.
    fn cache(at: u64, bytes: u64) -> Cache {
        let arena = 1;
        let directory = Directory::new().expect("addresses");
        directory.cover(at, bytes).expect("room");
        directory.begin(at, bytes, false);
        let mut cache = Cache::new(directory, Arc::default());
        cache.assign(ThreadId(1), StreamHandle(1), arena, Default::default());
        cache.set_limits(2 * bytes, bytes);
        cache
    }

    #[test]
    fn a_certain_block_is_taken_only_if_it_is_as_long() {
        let (at, bytes) = (1 << 30, 2 * CELL);
        let cache = cache(at, bytes);
        assert_eq!(cache.keep(at), Some(bytes));
        let piece = |bytes| Piece::Large {
            grains: bytes / GRAIN,
        };
        assert_eq!(
            cache.take_this(at, piece(bytes + GRAIN)),
            None,
            "it is on the same list"
        );
        assert_eq!(cache.take_this(at + CELL, piece(bytes)), None);
        assert_eq!(cache.take_this(at, piece(bytes)), Some(at));
        assert_eq!((cache.count(), cache.bytes()), (0, 0));
    }

    #[test]
    fn what_is_put_back_was_never_the_least_that_was_kept() {
        let (at, bytes) = (1 << 30, 2 * CELL);
        let cache = cache(at, bytes);
        assert_eq!(cache.keep(at), Some(bytes));
        // the heap looks, and then it is put back
        assert_eq!((cache.take_low(), cache.bytes()), (0, bytes));
        cache.put_back(at);
        assert_eq!((cache.take_low(), cache.bytes()), (0, 0));
    }
}
