//! Copies through memory that is page-locked, or that nobody else will change: in pieces, so that one is copied by
//! threads while a stream copies the one before. Into it ([`Copy::into_stream`]) the call returns when the source has been
//! read; out of it ([`Copy::out_of_stream`]) when the target has been written.
//!
//! Both ways the parts of pieces (`PART`) are handed out to the threads in order, and a piece is whole when all of its parts
//! are copied. Where nobody works beside it a piece is short: into memory the first ones, before which the stream has nothing to
//! do, and out of it the last ones, after which it has not. A piece may be begun when its slot is free: `open` pieces may. The calling thread queues the copies of the
//! stream, and looks at what it has done; it copies parts itself only where few others do, since a part takes as long as half
//! of a piece's copy. It waits for the stream only if nothing can go on without.
//!
//! Threads are started by each copy that is worth them and have ended when it returns: 11 of them take less than a
//! hundredth of a copy of a GiB, and nothing is left behind for a fork or the end of the process. Each starts the next one, so
//! that the caller has the stream begin meanwhile.
//!
//! Locks: a run's `helpers`, and its bell's; never while anything is copied or queued.

use super::BackendError;
use super::bell::{Bell, SPINS};
use super::transfer;
use crate::base::units::{Addr, StreamHandle};
use std::collections::VecDeque;
use std::hint;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, available_parallelism};

/// What a thread copies at a time.
const PART: usize = 256 << 10;
/// The longest piece, and the most pieces that are on their way at a time: all of them stay in the processor's cache, from which
/// the stream reads what threads have just written. Beside an H100 (16 cores of a Xeon, 2 MiB of second-level cache each,
/// 2026-11-22) 1 GiB went in at 51 GB/s and out at 52 with 6 slots, at 49 and 52 with 12, at 42 and 31 with 4; with pieces of half the length at 31
/// and 27.
const PIECE: usize = 4 << 20;
const SLOTS: usize = 6;
/// The shortest piece, but for the last one, is such a part of the longest, in whole parts.
const EDGE: usize = 8;
/// A thread more is worth its start for so much.
const SHARE: usize = 2 << 20;
/// Threads of a copy, the caller among them: with 16 it was as fast (50 and 52 GB/s), with 8 slower (50 and 47; with 12 slots 39 and 37).
const THREADS: usize = 12;
/// With so many other threads the caller copies no parts.
const ENOUGH: usize = 4;
const STACK: usize = 256 << 10;
/// A point in the work of a stream.
pub trait Moment: Send + Sync {
    /// Has all work before it ended? True, too, if it never will, because nothing runs any more.
    fn is_over(&self) -> bool;

    /// Blocks until it is over. An error if the work before it was not done, and never will be, or if nothing tells.
    fn wait(&self) -> Result<(), BackendError>;

    /// Moves it behind what is queued on `stream` now, on which it was taken, in a call that names it. False: it cannot be
    /// moved, and is where it was; take a new one.
    fn move_on(&self, _stream: StreamHandle) -> bool {
        false
    }
}

/// A stream that copies are queued on.
pub trait CopyQueue: Sync {
    /// Queues a copy. Pre: the memory stays until the copy has ended.
    fn copy(&self, to: Addr, from: Addr, bytes: u64) -> Result<(), BackendError>;

    /// The point behind what has been queued until now.
    fn moment(&self) -> Result<Arc<dyn Moment>, BackendError>;

    /// An error if the caller could not wait for what it queues: to be asked before, since what is queued is done whatever the
    /// call says then.
    fn may_wait(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// What to copy, and where to.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// To where.
    pub to: Addr,
    /// From where.
    pub from: Addr,
    /// How much; in pieces not 0.
    pub bytes: u64,
}

impl Copy {
    fn piece(&self) -> usize {
        // short copies are cut, too, so that the stream need not wait for all of one
        let eighth = (self.bytes as usize / 8).next_multiple_of(PART);
        eighth.clamp(PART, PIECE)
    }

    /// Bytes of each slot, and how many slots are of use.
    pub fn slots(&self) -> (u64, usize) {
        let piece = self.piece().min(self.bytes as usize);
        let pieces = (self.bytes as usize).div_ceil(piece);
        (piece as u64, pieces.min(SLOTS))
    }

    /// Copies host memory to where only the stream may write, through `slots`. Once it has returned the source may change,
    /// also if it has failed; what was queued then still uses the slots. Pre: the slots have the bytes that
    /// [`Copy::slots`] says, and nobody else uses them.
    pub fn into_stream(&self, slots: &[Addr], queue: &dyn CopyQueue) -> Result<(), BackendError> {
        let run = Run::new(self, slots, Way::In);
        if run.pieces() > slots.len() {
            queue.may_wait()?;
        }
        run.open(slots.len());
        run.with_threads(|| {
            let mut queued: VecDeque<Arc<dyn Moment>> = VecDeque::new();
            for piece in 0..run.pieces() {
                while !run.is_whole(piece) {
                    while queued.front().is_some_and(|oldest| oldest.is_over()) {
                        queued.pop_front();
                        run.open(1);
                    }
                    if run.is_open(piece) {
                        run.help(piece);
                    } else if let Some(oldest) = queued.pop_front() {
                        oldest.wait()?;
                        run.open(1);
                    }
                }
                let (at, bytes) = run.span(piece);
                queue.copy(run.copy.target(at), run.slot(piece, 0), bytes as u64)?;
                // another piece will need its slot
                if piece + slots.len() < run.pieces() {
                    queued.push_back(queue.moment()?);
                }
            }
            Ok(())
        })
    }

    /// Copies what only the stream may read to host memory, through `slots`. Pre: as for `into_stream`.
    pub fn out_of_stream(&self, slots: &[Addr], queue: &dyn CopyQueue) -> Result<(), BackendError> {
        let run = Run::new(self, slots, Way::Out);
        let may_be_queued = |whole: usize| run.pieces().min(whole + slots.len());
        let mut queued: VecDeque<Arc<dyn Moment>> = VecDeque::new();
        let mut next = may_be_queued(0);
        run.fetch(0..next, queue, &mut queued)?;
        run.with_threads(|| {
            let (mut arrived, mut whole) = (0, 0);
            while whole < run.pieces() {
                // one that is over is waited for, too: the device may have been lost before the piece came
                while let Some(oldest) = queued.pop_front_if(|oldest| whole == arrived || oldest.is_over()) {
                    oldest.wait()?;
                    arrived += 1;
                    run.open(1);
                }
                run.help(whole);
                while whole < arrived && run.is_whole(whole) {
                    whole += 1;
                }
                let more = may_be_queued(whole);
                run.fetch(next..more, queue, &mut queued)?;
                next = more;
            }
            Ok(())
        })
    }

    fn target(&self, at: usize) -> Addr {
        Addr(self.to.0 + at as u64)
    }

    fn source(&self, at: usize) -> Addr {
        Addr(self.from.0 + at as u64)
    }
}

/// What the host copies: from the source to slots, or from slots to the target.
#[derive(Debug)]
enum Way {
    In,
    Out,
}

/// A copy under way. Threads share it rather than borrow it: for scoped threads the standard library notes who waits, in
/// memory that a program's main thread never gives back.
#[derive(Debug)]
struct Run {
    copy: Copy,
    way: Way,
    /// Where the pieces begin, and where the last one ends.
    cuts: Vec<usize>,
    /// The first part of each piece, and how many parts there are.
    firsts: Vec<usize>,
    slots: Vec<Addr>,
    /// The next part that nobody has taken.
    next: AtomicUsize,
    /// Parts of each piece that are not copied yet.
    left: Vec<AtomicUsize>,
    /// So many pieces may be copied.
    open: AtomicUsize,
    given_up: AtomicBool,
    threads: Bell,
    /// Those that were started, and how many.
    helpers: Mutex<Vec<JoinHandle<()>>>,
    others: AtomicUsize,
}

impl Run {
    fn new(copy: &Copy, slots: &[Addr], way: Way) -> Arc<Run> {
        let cuts = cuts(copy.bytes as usize, copy.slots().0 as usize, &way);
        let parts: Vec<usize> = cuts
            .windows(2)
            .map(|cut| (cut[1] - cut[0]).div_ceil(PART))
            .collect();
        let mut firsts = vec![0];
        firsts.extend(parts.iter().scan(0, |sum, parts| {
            *sum += parts;
            Some(*sum)
        }));
        Arc::new(Run {
            copy: *copy,
            way,
            cuts,
            firsts,
            slots: slots.to_vec(),
            next: AtomicUsize::new(0),
            left: parts.into_iter().map(AtomicUsize::new).collect(),
            open: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            threads: Bell::default(),
            helpers: Mutex::default(),
            others: AtomicUsize::new(0),
        })
    }

    fn pieces(&self) -> usize {
        self.left.len()
    }

    /// Runs the caller's side beside threads that copy parts, and waits for these.
    fn with_threads(
        self: &Arc<Run>,
        caller: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let wanted = self.copy.bytes as usize / SHARE;
        let most = match wanted {
            0 => 0,
            _ => processors().min(THREADS) - 1,
        };
        let _ended = Helpers(self);
        self.start(wanted.min(most));
        caller()
    }

    /// Starts so many threads, one after the other. The caller does what nobody else does.
    fn start(self: &Arc<Run>, threads: usize) {
        if threads == 0 || self.given_up.load(Ordering::SeqCst) {
            return;
        }
        let run = Arc::clone(self);
        let thread = thread::Builder::new().name("weir-copy".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            run.start(threads - 1);
            while run.copy_next(true) {}
        });
        if let Ok(thread) = started {
            self.others.fetch_add(1, Ordering::Relaxed);
            self.lock_helpers().push(thread);
        }
    }

    fn lock_helpers(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.helpers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the copies of pieces to their slots.
    fn fetch(
        &self,
        pieces: Range<usize>,
        queue: &dyn CopyQueue,
        queued: &mut VecDeque<Arc<dyn Moment>>,
    ) -> Result<(), BackendError> {
        for piece in pieces {
            let (at, bytes) = self.span(piece);
            queue.copy(self.slot(piece, 0), self.copy.source(at), bytes as u64)?;
            queued.push_back(queue.moment()?);
        }
        Ok(())
    }

    /// Copies the next part. False: there is none, or, for who does not `wait`, none that may be copied now.
    fn copy_next(&self, wait: bool) -> bool {
        let piece_of = |part: usize| self.firsts.partition_point(|&first| first <= part) - 1;
        let ready = |part: usize| part < self.firsts[self.pieces()] && (wait || self.is_open(piece_of(part)));
        let claim = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |part| {
                ready(part).then_some(part + 1)
            });
        let Ok(part) = claim else { return false };
        let piece = piece_of(part);
        self.threads
            .wait(|| self.is_open(piece) || self.given_up.load(Ordering::SeqCst));
        if !self.is_open(piece) {
            return false;
        }
        let (start, bytes) = self.span(piece);
        let within = (part - self.firsts[piece]) * PART;
        let (at, slot) = (start + within, self.slot(piece, within));
        let bytes = PART.min(bytes - within);
        match self.way {
            Way::In => transfer::copy(slot, self.copy.source(at), bytes),
            Way::Out => transfer::copy(self.copy.target(at), slot, bytes),
        }
        self.left[piece].fetch_sub(1, Ordering::Release);
        true
    }

    /// The calling thread copies a part, or waits a moment for the others.
    fn help(&self, piece: usize) {
        if self.others.load(Ordering::Relaxed) >= ENOUGH || !self.copy_next(false) {
            // not for long: what the stream has done lets others go on
            for _ in 0..SPINS {
                if self.is_whole(piece) {
                    return;
                }
                hint::spin_loop();
            }
            thread::yield_now();
        }
    }

    /// Lets so many more pieces be copied.
    fn open(&self, more: usize) {
        self.open.fetch_add(more, Ordering::SeqCst);
        self.threads.ring();
    }

    fn is_open(&self, piece: usize) -> bool {
        piece < self.open.load(Ordering::SeqCst)
    }

    fn is_whole(&self, piece: usize) -> bool {
        self.left[piece].load(Ordering::Acquire) == 0
    }

    /// Where a piece begins, and its bytes.
    fn span(&self, piece: usize) -> (usize, usize) {
        (self.cuts[piece], self.cuts[piece + 1] - self.cuts[piece])
    }

    /// Where something of a piece lies in its slot.
    fn slot(&self, piece: usize, within: usize) -> Addr {
        Addr(self.slots[piece % self.slots.len()].0 + within as u64)
    }
}

/// Tests have as many threads on every machine.
fn processors() -> usize {
    match cfg!(test) {
        true => THREADS,
        false => available_parallelism().map_or(1, NonZero::get),
    }
}

/// Where so many bytes are cut into pieces of at most `piece`: each as long as all before it, or as half of what is left,
/// and but for the last one no shorter than an `EDGE`th of `piece`.
fn cuts(bytes: usize, piece: usize, way: &Way) -> Vec<usize> {
    let least = (piece / EDGE).max(1).next_multiple_of(PART).min(piece);
    let mut cuts = vec![0];
    let mut at = 0;
    while at < bytes {
        let left = bytes - at;
        let length = match way {
            Way::In => at,
            Way::Out => (left / 2).next_multiple_of(PART),
        };
        at += length.clamp(least, piece).min(left);
        cuts.push(at);
    }
    cuts
}

/// The threads of a copy, which end before it returns, also by a panic: they read and write memory that is the program's again
/// then.
struct Helpers<'a>(&'a Run);

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::SeqCst);
        self.0.threads.ring();
        loop {
            // each has put the next one here before it ends
            let thread = self.0.lock_helpers().pop();
            let Some(thread) = thread else { return };
            // copying does not panic: a part that is missing would have kept the caller waiting
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A stream whose copies are done when somebody waits for them, or soon after.
    #[derive(Default)]
    struct Late {
        queued: Mutex<Vec<(Addr, Addr, u64)>>,
        fails: AtomicBool,
        lost: AtomicBool,
        panics: AtomicBool,
    }

    struct Then<'a>(&'a Late, usize);

    impl Late {
        fn perform(&self) {
            for (to, from, bytes) in self.queued.lock().unwrap().drain(..) {
                transfer::copy(to, from, bytes as usize);
            }
        }
    }

    impl Moment for Then<'static> {
        fn is_over(&self) -> bool {
            let over = self.0.queued.lock().unwrap().len() < self.1;
            if !over && self.1.is_multiple_of(3) {
                self.0.perform();
            }
            over
        }
        fn wait(&self) -> Result<(), BackendError> {
            self.0.perform();
            match self.0.lost.load(Ordering::Relaxed) {
                true => Err(BackendError::Lost("gone".into())),
                false => Ok(()),
            }
        }
    }

    impl CopyQueue for &'static Late {
        fn copy(&self, to: Addr, from: Addr, bytes: u64) -> Result<(), BackendError> {
            assert!(!self.panics.load(Ordering::Relaxed));
            if self.fails.load(Ordering::Relaxed) {
                return Err(BackendError::Other("no".into()));
            }
            self.queued.lock().unwrap().push((to, from, bytes));
            Ok(())
        }
        fn moment(&self) -> Result<Arc<dyn Moment>, BackendError> {
            Ok(Arc::new(Then(self, self.queued.lock().unwrap().len())))
        }
    }

    fn addr(bytes: &mut [u8]) -> Addr {
        Addr(bytes.as_mut_ptr().expose_provenance() as u64)
    }

    #[test]
    fn all_of_it_arrives_both_ways_through_few_slots() {
        let late: &'static Late = Box::leak(Box::default());
        for bytes in [1usize, 100, PART, PART + 1, PIECE * 8 - 1, PIECE * 9 + 12345] {
            let mut from: Vec<u8> = (0..bytes).map(|i| ((i * 7) >> 2) as u8).collect();
            let mut to = vec![0u8; bytes];
            let staged = Copy {
                to: addr(&mut to),
                from: addr(&mut from),
                bytes: bytes as u64,
            };
            let (length, count) = staged.slots();
            for slots in [1, count] {
                let mut memory = vec![0u8; length as usize * slots];
                let slots: Vec<Addr> = memory.chunks_mut(length as usize).map(addr).collect();
                to.fill(0);
                staged.into_stream(&slots, &late).unwrap();
                late.perform();
                assert!(to == from, "{bytes} in, {} slots", slots.len());
                to.fill(0);
                staged.out_of_stream(&slots, &late).unwrap();
                assert!(to == from, "{bytes} out, {} slots", slots.len());
            }
        }
    }

    #[test]
    fn what_never_comes_is_an_error() {
        let late: &'static Late = Box::leak(Box::default());
        late.lost.store(true, Ordering::Relaxed);
        let (mut from, mut to) = (vec![1u8; PIECE * 4], vec![0u8; PIECE * 4]);
        let staged = Copy {
            to: addr(&mut to),
            from: addr(&mut from),
            bytes: from.len() as u64,
        };
        let mut slots = [vec![0u8; PIECE], vec![0u8; PIECE], vec![0u8; PIECE]];
        let slots: Vec<Addr> = slots.iter_mut().map(|slot| addr(slot)).collect();
        assert!(staged.out_of_stream(&slots, &late).is_err());
        assert!(to.iter().all(|&byte| byte == 0));
        assert!(staged.into_stream(&slots[..1], &late).is_err());
    }

    #[test]
    fn pieces_are_short_where_nobody_works_beside_them() {
        let lengths = |bytes: usize, way: Way| -> Vec<usize> {
            let cuts = cuts(bytes, PIECE, &way);
            assert_eq!((cuts[0], cuts.last()), (0, Some(&bytes)));
            cuts.windows(2).map(|cut| (cut[1] - cut[0]) / PART).collect()
        };
        assert_eq!(lengths(PIECE * 4, Way::In), [2, 2, 4, 8, 16, 16, 16]);
        assert_eq!(lengths(PIECE * 4, Way::Out), [16, 16, 16, 8, 4, 2, 2]);
        assert_eq!(lengths(PIECE + PART - 1, Way::In), [2, 2, 4, 8, 0]);
        assert_eq!(lengths(PIECE - 1, Way::Out), [8, 4, 2, 1]);
        assert_eq!(cuts(100, 100, &Way::In), [0, 100]);
        assert_eq!(cuts(PART + 1, PART, &Way::Out), [0, PART, PART + 1]);
    }

    /// A copy of memory onto itself.
    fn within(memory: &mut [u8]) -> Copy {
        let at = addr(memory);
        Copy {
            to: at,
            from: at,
            bytes: memory.len() as u64,
        }
    }

    #[test]
    fn all_threads_end_with_the_copy_however_many_were_started() {
        let mut memory = vec![0u8; PIECE * 8];
        let at = addr(&mut memory);
        let staged = within(&mut memory);
        for most in [0, 1, 3, usize::MAX] {
            let run = Run::new(&staged, &[at], Way::In);
            let started = || run.others.load(Ordering::Relaxed);
            let copied = run.with_threads(|| {
                while started() < most.min(THREADS - 1) {
                    thread::yield_now();
                }
                Ok(())
            });
            assert_eq!(copied, Ok(()));
            assert!(started() >= most.min(THREADS - 1));
            assert_eq!(Arc::strong_count(&run), 1);
        }
    }

    #[test]
    fn a_panic_of_the_stream_leaves_no_thread() {
        let late: &'static Late = Box::leak(Box::default());
        late.panics.store(true, Ordering::Relaxed);
        let mut memory = vec![0u8; PIECE * 8];
        let at = addr(&mut memory);
        let staged = within(&mut memory);
        let mut slot = vec![0u8; PIECE];
        let slots = [addr(&mut slot)];
        for way in [Way::In, Way::Out] {
            let run = Run::new(&staged, &slots, way);
            run.open(1);
            let copies = || run.with_threads(|| CopyQueue::copy(&late, at, at, 1));
            assert!(catch_unwind(AssertUnwindSafe(copies)).is_err());
            assert_eq!(Arc::strong_count(&run), 1, "{:?}", run.way);
        }
    }

    #[test]
    fn a_stream_that_refuses_ends_it() {
        let late: &'static Late = Box::leak(Box::default());
        late.fails.store(true, Ordering::Relaxed);
        let mut memory = vec![0u8; PIECE * 4];
        let staged = within(&mut memory);
        let mut slot = vec![0u8; PIECE];
        assert!(staged.into_stream(&[addr(&mut slot)], &late).is_err());
        assert!(staged.out_of_stream(&[addr(&mut slot)], &late).is_err());
    }
}
