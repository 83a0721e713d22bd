//! Places for values, one for each thread that has one (`own.rs`).
//!
//! They lie in a table of the library's, which costs no call of the system, needs no memory that could be missing, and into
//! which leak checkers look. Few programs have more threads at once than it has room for, and one that locks its memory has
//! all of the table in memory: what is beyond lies in pieces that are mapped when they are first needed, and stay.
//!
//! Invariant: a place whose bit is 0 is referred to by nobody; a piece that is there does not go.
//! Locks: none. Frees come here: nothing is allocated.

use super::own::Value;
use super::sparse::map;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Places.
pub(super) const MOST: usize = 2048;
/// Those that lie together.
const PIECE: usize = 256;

/// The places. All this is zero at first, so it takes no room in the library's file, nor in memory before it is used.
pub struct Store<T> {
    /// A bit for each place.
    taken: [AtomicU64; MOST / 64],
    first: UnsafeCell<MaybeUninit<[T; PIECE]>>,
    further: [AtomicPtr<T>; MOST / PIECE - 1],
}

// SAFETY: a place is touched by nobody but the thread that has taken it, which gives it up before another one takes it.
unsafe impl<T> Sync for Store<T> {}

impl<T: Value> Store<T> {
    /// Nothing is taken.
    #[allow(clippy::new_without_default)] // `Default` could not be const.
    pub const fn new() -> Store<T> {
        const { assert!(align_of::<T>() <= 4096, "a piece begins with a page") };
        Store {
            taken: [const { AtomicU64::new(0) }; MOST / 64],
            first: UnsafeCell::new(MaybeUninit::uninit()),
            further: [const { AtomicPtr::new(ptr::null_mut()) }; MOST / PIECE - 1],
        }
    }

    /// Puts a value into a place of its own.
    pub(super) fn take(&self) -> Option<NonNull<T>> {
        let place = (0..)
            .zip(&self.taken)
            .find_map(|(n, word)| Some(64 * n + claim(word)?))?;
        let Some(piece) = self
            .piece(place / PIECE)
            .or_else(|| self.add_piece(place / PIECE))
        else {
            self.leave(place);
            return None;
        };
        // SAFETY: a piece has so many places; from now on this one is this thread's, and nothing refers to what was there before.
        unsafe {
            let value = piece.add(place % PIECE);
            value.write(T::FRESH);
            Some(value)
        }
    }

    /// Nothing refers to the value any more.
    pub(super) fn give_back(&self, value: NonNull<T>) {
        let place = (0..MOST / PIECE).find_map(|n| {
            let offset = value.addr().get().checked_sub(self.piece(n)?.addr().get())?;
            let place = offset / size_of::<T>();
            (place < PIECE).then_some(n * PIECE + place)
        });
        self.leave(place.expect("it was taken from here"));
    }

    fn leave(&self, place: usize) {
        self.taken[place / 64].fetch_and(!(1 << (place % 64)), Ordering::Release);
    }

    /// The first of the places of a piece, if that is there.
    fn piece(&self, n: usize) -> Option<NonNull<T>> {
        NonNull::new(match n.checked_sub(1) {
            None => self.first.get().cast(),
            Some(further) => self.further[further].load(Ordering::Acquire),
        })
    }

    /// Makes a further piece, unless another thread does.
    fn add_piece(&self, n: usize) -> Option<NonNull<T>> {
        let bytes = PIECE * size_of::<T>();
        let made = map(bytes)?.cast::<T>();
        let (before, now) = (ptr::null_mut(), made.as_ptr());
        match self.further[n - 1].compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(made),
            Err(theirs) => {
                // SAFETY: mapped above, and nobody else knows it.
                unsafe { libc::munmap(made.as_ptr().cast(), bytes) };
                NonNull::new(theirs)
            }
        }
    }

    /// How many are taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u32 {
        let words = self.taken.iter().map(|word| word.load(Ordering::Relaxed));
        words.map(u64::count_ones).sum()
    }
}

/// Sets the lowest bit that is 0.
fn claim(word: &AtomicU64) -> Option<usize> {
    let lowest = |bits: u64| (bits != !0).then(|| bits | (bits + 1));
    let before = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest);
    Some(before.ok()?.trailing_ones() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// More than there are get none, and all are different, whichever thread makes their pieces.
    #[test]
    fn places_run_out() {
        static STORE: Store<Cell<u64>> = Store::new();
        let some = || -> Vec<usize> {
            let places = (0..MOST / 4).map(|_| STORE.take().expect("a place"));
            places.map(|place| place.addr().get()).collect()
        };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(some)).collect();
        let places = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"));
        let mut places: Vec<_> = places.collect();
        assert!(STORE.take().is_none());
        places.sort_unstable();
        let gaps = places.windows(2).map(|two| two[1] - two[0]);
        assert!(gaps.min() >= Some(size_of::<Cell<u64>>()), "they overlap");
        for n in [0, 70, PIECE - 1, PIECE, MOST - 1] {
            let piece = STORE.piece(n / PIECE).expect("all are there");
            // SAFETY: a piece has so many places.
            let place = unsafe { piece.add(n % PIECE) };
            STORE.give_back(place);
            assert_eq!(STORE.taken(), MOST as u32 - 1);
            assert_eq!(STORE.take(), Some(place));
        }
    }
}
