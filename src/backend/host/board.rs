//! What processes share of a host event: a page with two counters, of records made and of records whose work is done.
//!
//! One process records, the others wait and ask. A record has a number; it counts as complete once it and all before it
//! are done, so a wait never takes less for complete than was recorded, and no completion is lost when later work is
//! done first. Should the recorder end before its work is done, nobody will do it any more, and it counts as complete.
//! The recorder has a lock on the file, which the kernel takes off when it ends.
//!
//! Invariants: `completed` ≤ `recorded` ≤ `completed` + `RING`; `done[n % RING]` is n once record n's work is done.
//! Who opens the file does so anew: a lock is an open file's, and others' must not keep it.
//!
//! Locks: the one on the file, from the first record on. Whoever waits sleeps in the kernel, on `changes`.

use super::os;
use crate::backend::BackendError;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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
    records: AtomicBool,
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
        let own = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Board::map(own.map_err(|error| os::failed("open of an event's file", error))?)
    }

    fn map(file: File) -> Result<Board, BackendError> {
        let at = os::map_anywhere(BYTES, &file)?;
        let page = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("not at 0");
        Ok(Board {
            page,
            file,
            records: AtomicBool::new(false),
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

    /// The number of a new record. `done` follows when its work is.
    pub(super) fn record(&self) -> Result<u64, BackendError> {
        if !self.records.load(Ordering::Acquire) {
            if !os::lock_file(&self.file) {
                return Err(BackendError::Other(
                    "another process records this event; one alone may".into(),
                ));
            }
            self.records.store(true, Ordering::Release);
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
        page.changes.fetch_add(1, Ordering::SeqCst);
        os::wake_all(&page.changes);
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
        let left_alone = !self.records.load(Ordering::Acquire) && !os::is_locked(&self.file);
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
