//! The memory of one host backend: pages in memory files (`store`), which are mapped wherever the pool wants them.
//!
//! Invariants:
//! - `raw` has one entry a reservation, the range that the kernel gave, of which it is the aligned part;
//! - the books (`Ledger`) change after the system call succeeded, under the owner's lock, so a failed
//!   call has changed nothing.
//!
//! Locks: none; `HostBackend` keeps it under its own.

use super::store::Store;
use super::{budget, gate, os};
use crate::backend::BackendError;
use crate::backend::ledger::Ledger;
use crate::base::units::{Addr, PageHandle};
use rustc_hash::FxHashMap;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;

/// The size of a huge page on x86-64 and aarch64, and the granularity of GPUs.
pub(super) const GRANULARITY: u64 = 2 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    store: ManuallyDrop<Store>,
    raw: FxHashMap<Addr, (u64, u64)>,
    books: Ledger,
}

impl Memory {
    pub(super) fn new(store: Store) -> Memory {
        Memory {
            store: ManuallyDrop::new(store),
            raw: FxHashMap::default(),
            books: Ledger::new(GRANULARITY),
        }
    }

    pub(super) fn mappings(&self) -> u64 {
        self.books.mappings()
    }

    /// Bytes of memory that the pages really have.
    pub(super) fn resident(&self) -> Result<u64, BackendError> {
        self.store.resident()
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<Addr, BackendError> {
        self.books
            .can_size("reserve", bytes)
            .map_err(BackendError::Other)?;
        let Some(padded) = bytes.checked_add(GRANULARITY) else {
            return Err(BackendError::OutOfMemory(format!(
                "reserve of {bytes} B: no address space is as large"
            )));
        };
        let start = os::reserve(padded)?;
        let at = Addr(start.next_multiple_of(GRANULARITY));
        self.raw.insert(at, (start, padded));
        self.books.reserve(at, bytes).map_err(BackendError::Other)?;
        Ok(at)
    }

    pub(super) fn unreserve(&mut self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.books.can_unreserve(at, bytes).map_err(BackendError::Other)?;
        if let Some(&(start, padded)) = self.raw.get(&at) {
            // SAFETY: the range came from `reserve`; the books say that nothing is mapped in it, and the
            // caller gives its addresses up.
            unsafe { os::unreserve(start, padded)? };
        }
        self.raw.remove(&at);
        self.books.unreserve(at, bytes).map_err(BackendError::Other)
    }

    pub(super) fn create(&mut self, bytes: u64) -> Result<PageHandle, BackendError> {
        self.books
            .can_size("create", bytes)
            .map_err(BackendError::Other)?;
        let page = self.store.create(bytes)?;
        self.books.create(page, bytes).map_err(BackendError::Other)?;
        Ok(page)
    }

    pub(super) fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        self.store.export(page)
    }

    pub(super) fn import(&mut self, file: OwnedFd, bytes: u64) -> Result<PageHandle, BackendError> {
        self.books
            .can_size("import", bytes)
            .map_err(BackendError::Other)?;
        let page = self.store.import(file, bytes)?;
        self.books.create(page, bytes).map_err(BackendError::Other)?;
        Ok(page)
    }

    pub(super) fn release(&mut self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.books.can_release(page, bytes).map_err(BackendError::Other)?;
        self.store.release(page, bytes)?;
        self.books.release(page, bytes).map_err(BackendError::Other)
    }

    pub(super) fn map(&mut self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.books.can_map(at, page, bytes).map_err(BackendError::Other)?;
        budget::take()?;
        let map = |(file, offset)| {
            // SAFETY: the books say that the addresses are reserved and that nothing is mapped there.
            unsafe { os::map(at.0, bytes, file, offset) }
        };
        let done = self.store.place(page).and_then(map);
        if let Err(error) = done {
            budget::give_back(1);
            return Err(error);
        }
        self.books.map(at, page, bytes).map_err(BackendError::Other)
    }

    pub(super) fn unmap(&mut self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.books.can_unmap(at, bytes).map_err(BackendError::Other)?;
        // SAFETY: the books say that the range is made of whole mappings; that no work uses them is the
        // contract's precondition.
        unsafe { os::unmap(at.0, bytes)? };
        let count = self.books.unmap(at, bytes).map_err(BackendError::Other)?;
        budget::give_back(count);
        Ok(())
    }
}

impl Drop for Memory {
    /// Gives everything back, unless the process has forked or the driver is "gone": then the process
    /// is about to end, and only the books are freed.
    fn drop(&mut self) {
        if !gate::usable() {
            return;
        }
        budget::give_back(self.books.mappings());
        for &(start, padded) in self.raw.values() {
            // SAFETY: the range came from `reserve`, and its owner is gone. A failure cannot be reported
            // from here and would leave addresses behind, nothing worse.
            let _ = unsafe { os::unreserve(start, padded) };
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.store) };
    }
}
