//! A table over wide and sparsely used numbers, such as addresses, that any thread may read without a lock: two
//! levels, like a processor's page tables. A chapter comes into being when something in it is first needed, and stays
//! where it is until the table goes, so that a reference to an element holds as long as the table. Whoever looks into it
//! at every call has the list of its chapters at hand.
//!
//! Memory is mapped from the system, zeroed, and costs nothing until it is touched.
//!
//! Invariant: a pointer of the list is NULL or to a chapter; once set it does not change.
//! Locks: `Memory::parts`, among those that add chapters.

use super::BackendError;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a table may consist of: types for which all bytes zero are a value, and which threads may share.
///
/// # Safety
/// As just said.
pub unsafe trait Cell: Sync {}
// SAFETY: an atomic integer is zero if its bytes are.
unsafe impl Cell for AtomicU64 {}
// SAFETY: as above.
unsafe impl Cell for AtomicU8 {}
// SAFETY: what each of its elements is.
unsafe impl<T: Cell, const N: usize> Cell for [T; N] {}
// SAFETY: as above.
unsafe impl<A: Cell, B: Cell> Cell for (A, B) {}

/// Where the chapters of a table are, of which there may be so many.
#[derive(Debug)]
#[repr(transparent)]
pub struct Chapters<C: Cell, const MOST: usize>([AtomicPtr<C>; MOST]);

impl<C: Cell, const MOST: usize> Chapters<C, MOST> {
    /// The chapter of that number, if it exists.
    #[inline(always)]
    pub fn get(&self, number: u64) -> Option<&C> {
        self.0.get(number as usize).and_then(Self::load)
    }

    /// The same where the caller knows that the number is below `MOST`, so that it need not be compared.
    #[inline(always)]
    pub fn get_within(&self, number: u64) -> Option<&C> {
        debug_assert!(number < MOST as u64);
        Self::load(&self.0[number as usize % MOST])
    }

    #[inline(always)]
    fn load(chapter: &AtomicPtr<C>) -> Option<&C> {
        // SAFETY: NULL, or a chapter, which stays until the table goes, and this list with it.
        unsafe { chapter.load(Ordering::Acquire).as_ref() }
    }
}

/// Where an element of a table is, for whoever can have no reference to it. The table is asked for the element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Site(*const ());

// SAFETY: elements are shared between threads as `Cell` allows.
unsafe impl Send for Site {}
// SAFETY: as above.
unsafe impl Sync for Site {}

impl Site {
    /// That of an element.
    #[inline(always)]
    pub fn of<T: Cell>(element: &T) -> Site {
        Site(ptr::from_ref(element).cast())
    }
}

/// What remembers a site.
#[derive(Debug)]
pub struct Memo(AtomicPtr<()>);

impl Memo {
    /// Of none.
    pub const fn empty() -> Memo {
        Memo(AtomicPtr::new(ptr::null_mut()))
    }

    /// The one that was put there last.
    #[inline(always)]
    pub fn get(&self) -> Site {
        Site(self.0.load(Ordering::Relaxed))
    }

    /// It is this one from now on.
    #[inline(always)]
    pub fn set(&self, site: Site) {
        self.0.store(site.0.cast_mut(), Ordering::Relaxed);
    }
}

/// The table.
#[derive(Debug)]
pub struct Sparse<C: Cell, const MOST: usize> {
    chapters: NonNull<Chapters<C, MOST>>,
    memory: Arc<Memory>,
}

/// What is mapped for a table: addresses and bytes.
#[derive(Debug)]
struct Memory {
    chapters: (usize, usize),
    parts: Mutex<Vec<(usize, usize)>>,
}

// SAFETY: elements are shared between threads as `Cell` allows; the pointers are to memory of the table's own.
unsafe impl<C: Cell, const MOST: usize> Send for Sparse<C, MOST> {}
// SAFETY: as above.
unsafe impl<C: Cell, const MOST: usize> Sync for Sparse<C, MOST> {}

/// Fresh memory from the system.
pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: fresh anonymous memory at an address of the system's choice.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // nothing is mapped at 0
    if at == libc::MAP_FAILED {
        None
    } else {
        NonNull::new(at.cast())
    }
}

/// Bytes of a page of the system's.
fn page() -> usize {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Elements that are all zero, and stay so for now: whole pages of the system's among them go back to it, and are zero when they
/// are needed again.
pub fn forget_zeros<T: Cell>(elements: &[T]) {
    let page = page();
    let first = elements.as_ptr().addr().next_multiple_of(page);
    let end = (elements.as_ptr().addr() + size_of_val(elements)) / page * page;
    if first < end {
        // SAFETY: the pages lie within a table's own anonymous memory, and read zero before and after. If the system does not
        // take them nothing is lost.
        unsafe {
            libc::madvise(
                ptr::without_provenance_mut(first),
                end - first,
                libc::MADV_DONTNEED,
            )
        };
    }
}

/// Has the system find memory for these elements at once, rather than a page at a time when each is touched. Where it cannot
/// nothing is lost.
pub fn populate<T>(elements: &mut [MaybeUninit<T>]) {
    let page = page();
    let first = elements.as_ptr().addr() / page * page;
    let end = elements.as_ptr().addr() + size_of_val(elements);
    // SAFETY: these pages are in use, or none is there; what they hold stays as it is.
    unsafe {
        libc::madvise(
            ptr::without_provenance_mut(first),
            end - first,
            libc::MADV_POPULATE_WRITE,
        )
    };
}

fn map_books(bytes: usize) -> Result<NonNull<u8>, BackendError> {
    map(bytes).ok_or_else(|| {
        BackendError::OutOfMemory(format!(
            "no {bytes} B for the pool's books: {}",
            std::io::Error::last_os_error()
        ))
    })
}

impl<C: Cell, const MOST: usize> Sparse<C, MOST> {
    /// A table without chapters.
    pub fn new() -> Result<Sparse<C, MOST>, BackendError> {
        let bytes = size_of::<Chapters<C, MOST>>();
        let at = map_books(bytes)?;
        Ok(Sparse {
            chapters: at.cast(),
            memory: Arc::new(Memory {
                chapters: (at.addr().get(), bytes),
                parts: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Where its chapters are. They are there as long as the table or a clone of it is.
    #[inline(always)]
    pub fn chapters(&self) -> &Chapters<C, MOST> {
        // SAFETY: mapped, with NULL in it at first, for as long as the table is.
        unsafe { self.chapters.as_ref() }
    }

    /// The element of a site, which whoever asks has from an element of that type of this very table.
    #[inline(always)]
    pub fn element<T: Cell>(&self, site: Site) -> &T {
        debug_assert!(!site.0.is_null());
        // SAFETY: made of a reference to such an element, as those who ask see to, and that stays where it is until the table goes
        unsafe { &*site.0.cast() }
    }

    /// Sees to it that the chapters `[from, to)` exist.
    pub fn cover(&self, from: u64, to: u64) -> Result<(), BackendError> {
        let mut parts = self.memory.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
        let Some(all) = range.and_then(|(from, to)| self.chapters().0.get(from..to)) else {
            return Err(BackendError::NotSupported(format!(
                "the pool's books end before chapter {to:#x}"
            )));
        };
        let is_missing = |chapter: &AtomicPtr<C>| chapter.load(Ordering::Relaxed).is_null();
        for missing in all.chunk_by(|one, next| is_missing(one) == is_missing(next)) {
            if !is_missing(&missing[0]) {
                continue;
            }
            let bytes = missing.len() * size_of::<C>();
            let at = map_books(bytes)?;
            parts.push((at.addr().get(), bytes));
            for (number, chapter) in missing.iter().enumerate() {
                // SAFETY: within what was just mapped.
                let first = unsafe { at.cast::<C>().add(number) };
                chapter.store(first.as_ptr(), Ordering::Release);
            }
        }
        Ok(())
    }
}

impl<C: Cell, const MOST: usize> Clone for Sparse<C, MOST> {
    fn clone(&self) -> Sparse<C, MOST> {
        let memory = self.memory.clone();
        Sparse { memory, ..*self }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        for &(at, bytes) in parts.iter().chain([&self.chapters]) {
            // SAFETY: mapped by `map` with this length, and nobody has a reference any more.
            unsafe { libc::munmap(ptr::without_provenance_mut(at), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: usize = 1 << 15;

    #[test]
    fn elements_are_zero_apart_and_stay_where_they_are() {
        let table: Sparse<([AtomicU64; CELLS], AtomicU8), 64> = Sparse::new().unwrap();
        let get = |number| table.chapters().get(number);
        assert!(get(0).is_none() && get(u64::MAX).is_none());
        table.cover(4, 6).unwrap();
        assert!(get(3).is_none() && get(6).is_none());
        let (below, above) = (&get(4).unwrap().0[CELLS - 1], &get(5).unwrap().0[0]);
        below.store(1, Ordering::Relaxed);
        above.store(2, Ordering::Relaxed);
        table.clone().cover(0, 32).unwrap();
        assert!(std::ptr::eq(below, &get(4).unwrap().0[CELLS - 1]));
        assert_eq!(
            (below.load(Ordering::Relaxed), above.load(Ordering::Relaxed)),
            (1, 2)
        );
        assert_eq!(get(0).unwrap().0[7].load(Ordering::Relaxed), 0);
        assert_eq!(get(5).unwrap().1.load(Ordering::Relaxed), 0);
        assert!(table.cover(0, 65).is_err() && table.cover(0, u64::MAX).is_err());
        assert!(get(63).is_none(), "all or nothing");
    }

    #[test]
    fn what_is_populated_has_its_memory_before_it_is_touched() {
        const PAGE: usize = 4096;
        let at = map(32 * PAGE).unwrap();
        let there = || {
            let mut there = [0u8; 32];
            // SAFETY: a mapping of that length; the list has a byte for each page, or more if pages are longer.
            let status = unsafe { libc::mincore(at.as_ptr().cast(), 32 * PAGE, there.as_mut_ptr()) };
            assert_eq!(status, 0);
            there.iter().filter(|&&page| page & 1 == 1).count()
        };
        // SAFETY: this test's own, and of that length.
        let elements =
            unsafe { std::slice::from_raw_parts_mut(at.as_ptr().cast::<MaybeUninit<u64>>(), 4 * PAGE) };
        elements[0].write(7);
        let before = there();
        populate(&mut elements[1..17 * PAGE / 8]);
        // SAFETY: the system may be too old for that: it says so of no page, too.
        let may = unsafe { libc::madvise(at.as_ptr().cast(), 0, libc::MADV_POPULATE_WRITE) } == 0;
        assert!(before < 17 && (!may || there() >= 17), "{before}, {}", there());
        // SAFETY: written above.
        assert_eq!(unsafe { elements[0].assume_init() }, 7);
        // SAFETY: nobody has a reference any more.
        unsafe { libc::munmap(at.as_ptr().cast(), 32 * PAGE) };
    }

    #[test]
    fn zeros_that_are_forgotten_take_no_memory() {
        let table: Sparse<[AtomicU64; CELLS], 2> = Sparse::new().unwrap();
        table.cover(0, 2).unwrap();
        let cells = table.chapters().get(1).unwrap();
        let pages = || {
            let mut there = [0u8; CELLS * 8 / 4096];
            // SAFETY: a mapping of that length; the list has a byte for each page, or more if pages are longer.
            let status =
                unsafe { libc::mincore(cells.as_ptr().cast_mut().cast(), CELLS * 8, there.as_mut_ptr()) };
            assert_eq!(status, 0);
            there.iter().filter(|&&page| page & 1 == 1).count()
        };
        let set = |value| cells.iter().for_each(|cell| cell.store(value, Ordering::Relaxed));
        set(1);
        let all = pages();
        // next to nothing: its pages hold others' elements, too
        cells[5..100]
            .iter()
            .for_each(|cell| cell.store(0, Ordering::Relaxed));
        forget_zeros(&cells[5..100]);
        assert_eq!(pages(), all);
        let one = |number: usize| cells[number].load(Ordering::Relaxed);
        assert_eq!([one(4), one(5), one(99), one(100)], [1, 0, 0, 1]);
        set(0);
        cells[0].store(7, Ordering::Relaxed);
        forget_zeros(&cells[1..]);
        assert_eq!(pages(), 1);
        assert_eq!([one(0), one(1), one(CELLS - 1)], [7, 0, 0]);
        set(2);
        assert_eq!(pages(), all);
    }
}
