//! What processes share of a host event: a page with two counters, of records made and of records whose work is done.
//!
//! One process records, the others wait and ask. A record has a number; it counts as complete once it and all before it
//! are done, so a wait never takes less for complete than was recorded, and no completion is lost when later work is
//! done first. Should the recorder end before its work is done, nobody will do it any more, and it counts as complete;
//! another process may record then. The recorder has a claim on the file, which the kernel ends with it.
//!
//! Invariants: `completed` ≤ `recorded` ≤ `completed` + `RING`; `done[n % RING]` is n once record n's work is done.
//!
//! Locks: `claiming`, while the file is claimed, before the first record. Whoever waits sleeps in the kernel, on `changes`.

use super::claim::Claim;
use super::{lock, os};
use crate::backend::BackendError;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

const BYTES: u64 = 4096;
/// Records whose work may be in flight at once.
const RING: u64 = 256;
/// How often who waits looks whether the recorder is still there.
const LOOK_MS: i64 = 50;

#[repr(C)]
struct Page {
    recorded: AtomicU64,
    completed: AtomicU64,
    changes: AtomicU32,
    done: [AtomicU64; RING as usize],
}

const _: () = assert!(size_of::<Page>() as u64 <= BYTES);

#[derive(Debug)]
pub(super) struct Board {
    page: NonNull<Page>,
    file: File,
    /// This process records.
    claim: OnceLock<Claim>,
    claiming: Mutex<()>,
}

// SAFETY: the page is atomics, and stays mapped until the drop.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A fresh one.
    pub(super) fn new() -> Result<Board, BackendError> {
        let file = os::sealable_file()?;
        os::grow(&file, BYTES)?;
        os::seal(&file)?;
        Board::map(file)
    }

    /// Another process's.
    pub(super) fn open(file: OwnedFd) -> Result<Board, BackendError> {
        let file = File::from(file);
        let length = file.metadata().map(|data| data.len());
        if !length.is_ok_and(|length| length == BYTES) || !os::is_sealed(&file) {
            return Err(BackendError::Other(
                "the descriptor is not that of an event".into(),
            ));
        }
        Board::map(file)
    }

    fn map(file: File) -> Result<Board, BackendError> {
        let at = os::map_anywhere(BYTES, &file)?;
        let page = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("not at 0");
        Ok(Board {
            page,
            file,
            claim: OnceLock::new(),
            claiming: Mutex::new(()),
        })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until the drop, long enough, as aligned as a page; any bytes are valid atomics.
        unsafe { self.page.as_ref() }
    }

    /// A descriptor for another process.
    pub(super) fn file(&self) -> Result<OwnedFd, BackendError> {
        let copy = self.file.try_clone().map(OwnedFd::from);
        copy.map_err(|error| os::failed("dup of an event's file", error))
    }

    /// From now on this process records.
    fn claim(&self) -> Result<(), BackendError> {
        let _alone = lock(&self.claiming);
        if self.claim.get().is_some() {
            return Ok(());
        }
        let Some(claim) = Claim::take(&self.file)? else {
            return Err(BackendError::Other(
                "another process records this event; one alone may".into(),
            ));
        };
        // whoever recorded before has ended, and with it the work that was left
        let page = self.page();
        let left = page.recorded.load(Ordering::SeqCst);
        page.completed.fetch_max(left, Ordering::SeqCst);
        self.tell();
        let _ = self.claim.set(claim);
        Ok(())
    }

    /// The number of a new record. `done` follows when its work is.
    pub(super) fn record(&self) -> Result<u64, BackendError> {
        if self.claim.get().is_none() {
            self.claim()?;
        }
        let page = self.page();
        let completed = page.completed.load(Ordering::Acquire);
        let next = |recorded: u64| (recorded < completed + RING).then_some(recorded + 1);
        let before = page
            .recorded
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before.map(|before| before + 1).map_err(|_| {
            BackendError::OutOfMemory(format!(
                "an event that other processes know was recorded {RING} times before its work was done"
            ))
        })
    }

    /// The work of a record is done.
    pub(super) fn done(&self, number: u64) {
        let page = self.page();
        page.done[(number % RING) as usize].store(number, Ordering::SeqCst);
        loop {
            let next = page.completed.load(Ordering::SeqCst) + 1;
            if page.done[(next % RING) as usize].load(Ordering::SeqCst) != next {
                break;
            }
            // somebody else who does the same is as good
            let _ = page
                .completed
                .compare_exchange(next - 1, next, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.tell();
    }

    /// Wakes whoever waits.
    fn tell(&self) {
        let changes = &self.page().changes;
        changes.fetch_add(1, Ordering::SeqCst);
        os::wake_all(changes);
    }

    /// The number of the latest record; 0: none.
    pub(super) fn recorded(&self) -> u64 {
        self.page().recorded.load(Ordering::Acquire)
    }

    /// Is the work of all records up to this one done, or nobody there to do it?
    pub(super) fn is_complete(&self, number: u64) -> bool {
        let complete = || self.page().completed.load(Ordering::Acquire) >= number;
        if complete() {
            return true;
        }
        let left_alone = self.claim.get().is_none() && !os::is_locked(&self.file);
        left_alone || complete()
    }

    /// Blocks until it is.
    pub(super) fn wait(&self, number: u64) {
        loop {
            let seen = self.page().changes.load(Ordering::SeqCst);
            if self.is_complete(number) {
                return;
            }
            os::sleep_on(&self.page().changes, seen, LOOK_MS);
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and nobody uses it any more. A failure would leave a page behind.
        let _ = unsafe { os::unreserve(self.page.as_ptr().expose_provenance() as u64, BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    fn two() -> (Board, Board) {
        let first = Board::new().unwrap();
        let second = Board::open(first.file().unwrap()).unwrap();
        (first, second)
    }

    #[test]
    fn who_records_after_one_that_has_ended_is_waited_for() {
        let (first, second) = two();
        assert_eq!([first.record(), first.record()], [Ok(1), Ok(2)]);
        first.done(2);
        assert!(second.record().is_err(), "one alone may");
        assert!(!second.is_complete(1));
        drop(first);
        assert!(second.is_complete(2), "nobody is left to do it");
        assert_eq!(second.record(), Ok(3));
        assert!(second.is_complete(2) && !second.is_complete(3));
        second.done(3);
        assert!(second.is_complete(3));
        second.wait(3);
    }

    #[test]
    fn what_other_threads_record_first_is_not_taken_for_left() {
        const THREADS: usize = 4;
        for _ in 0..200 {
            let board = Board::new().unwrap();
            let (start, recorded) = (Barrier::new(THREADS), Barrier::new(THREADS));
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        start.wait();
                        let number = board.record();
                        recorded.wait();
                        let complete = number.clone().is_ok_and(|number| board.is_complete(number));
                        recorded.wait();
                        board.done(number.unwrap());
                        assert!(!complete);
                    });
                }
            });
            assert!(board.is_complete(THREADS as u64));
        }
    }
}
