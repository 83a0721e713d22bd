//! A table over wide and sparsely used numbers, such as addresses, that any thread may read without a lock: two
//! levels, like a processor's page tables. A chapter comes into being when something in it is first needed, and stays
//! where it is until the table goes, so that a reference to an element holds as long as the table. Whoever looks into it
//! at every call has a clone, which is the same table one step nearer.
//!
//! Memory is mapped from the system, zeroed, and costs nothing until it is touched.
//!
//! Invariant: `top[c]` is NULL or the first element of chapter `c`; once set it does not change.
//! Locks: `Memory::parts`, among those that add chapters.

use super::BackendError;
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

/// The table, of chapters of so many elements.
#[derive(Debug)]
pub struct Sparse<T: Cell, const CHAPTER: u64> {
    top: NonNull<AtomicPtr<T>>,
    chapters: u64,
    memory: Arc<Memory>,
}

/// What is mapped for a table: addresses and bytes.
#[derive(Debug)]
struct Memory {
    top: (usize, usize),
    parts: Mutex<Vec<(usize, usize)>>,
}

// SAFETY: elements are shared between threads as `Cell` allows; the pointers are to memory of the table's own.
unsafe impl<T: Cell, const CHAPTER: u64> Send for Sparse<T, CHAPTER> {}
// SAFETY: as above.
unsafe impl<T: Cell, const CHAPTER: u64> Sync for Sparse<T, CHAPTER> {}

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

fn map_books(bytes: usize) -> Result<NonNull<u8>, BackendError> {
    map(bytes).ok_or_else(|| {
        BackendError::OutOfMemory(format!(
            "no {bytes} B for the pool's books: {}",
            std::io::Error::last_os_error()
        ))
    })
}

impl<T: Cell, const CHAPTER: u64> Sparse<T, CHAPTER> {
    /// A table for the numbers below `limit`, with no element yet.
    pub fn new(limit: u64) -> Result<Sparse<T, CHAPTER>, BackendError> {
        let chapters = limit.div_ceil(CHAPTER);
        let bytes = chapters as usize * size_of::<AtomicPtr<T>>();
        let top = map_books(bytes)?;
        Ok(Sparse {
            top: top.cast(),
            chapters,
            memory: Arc::new(Memory {
                top: (top.addr().get(), bytes),
                parts: Mutex::new(Vec::new()),
            }),
        })
    }

    #[inline(always)]
    fn chapter(&self, index: u64) -> Option<&AtomicPtr<T>> {
        // SAFETY: `top` has this many pointers, NULL at first, for as long as the table is.
        (index / CHAPTER < self.chapters)
            .then(|| unsafe { self.top.add((index / CHAPTER) as usize).as_ref() })
    }

    /// The element of a number, if its chapter exists.
    #[inline(always)]
    pub fn get(&self, index: u64) -> Option<&T> {
        let first = NonNull::new(self.chapter(index)?.load(Ordering::Acquire))?;
        // SAFETY: a chapter has `CHAPTER` elements and stays until the table goes.
        Some(unsafe { first.add((index % CHAPTER) as usize).as_ref() })
    }

    /// Sees to it that the numbers `[from, to)` have elements.
    pub fn cover(&self, from: u64, to: u64) -> Result<(), BackendError> {
        let mut parts = self.memory.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = CHAPTER as usize * size_of::<T>();
        let last = to.div_ceil(CHAPTER);
        let mut next = from / CHAPTER;
        while next < last {
            let missing = |chapter: u64| {
                self.chapter(chapter * CHAPTER)
                    .map(|first| first.load(Ordering::Relaxed).is_null())
            };
            match missing(next) {
                None => {
                    return Err(BackendError::NotSupported(format!(
                        "the pool's books end before number {to:#x}"
                    )));
                }
                Some(false) => next += 1,
                Some(true) => {
                    let count = (next..last)
                        .take_while(|&chapter| missing(chapter) == Some(true))
                        .count();
                    let at = map_books(count * bytes)?;
                    parts.push((at.addr().get(), count * bytes));
                    for part in 0..count {
                        // SAFETY: within what was just mapped.
                        let first = unsafe { at.add(part * bytes) };
                        let chapter = self.chapter((next + part as u64) * CHAPTER);
                        chapter
                            .expect("looked at before")
                            .store(first.cast().as_ptr(), Ordering::Release);
                    }
                    next += count as u64;
                }
            }
        }
        Ok(())
    }
}

impl<T: Cell, const CHAPTER: u64> Clone for Sparse<T, CHAPTER> {
    fn clone(&self) -> Sparse<T, CHAPTER> {
        let memory = self.memory.clone();
        Sparse { memory, ..*self }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        for &(at, bytes) in parts.iter().chain([&self.top]) {
            // SAFETY: mapped by `map` with this length, and nobody has a reference any more.
            unsafe { libc::munmap(ptr::without_provenance_mut(at), bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAPTER: u64 = 1 << 15;

    #[test]
    fn elements_are_zero_apart_and_stay_where_they_are() {
        let table: Sparse<AtomicU64, CHAPTER> = Sparse::new(1 << 33).unwrap();
        assert!(table.get(0).is_none() && table.get(u64::MAX).is_none());
        table.cover(5 * CHAPTER - 1, 5 * CHAPTER + 1).unwrap();
        assert!(table.get(4 * CHAPTER - 1).is_none() && table.get(6 * CHAPTER).is_none());
        let (below, above) = (
            table.get(5 * CHAPTER - 1).unwrap(),
            table.get(5 * CHAPTER).unwrap(),
        );
        below.store(1, Ordering::Relaxed);
        above.store(2, Ordering::Relaxed);
        table.clone().cover(0, 1 << 20).unwrap();
        assert!(std::ptr::eq(below, table.get(5 * CHAPTER - 1).unwrap()));
        assert_eq!(
            (below.load(Ordering::Relaxed), above.load(Ordering::Relaxed)),
            (1, 2)
        );
        assert_eq!(table.get(7).unwrap().load(Ordering::Relaxed), 0);
        assert!(table.cover(0, (1 << 33) + CHAPTER).is_err());
    }
}
