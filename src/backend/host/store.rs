//! What the pages of a host backend are made of: parts of one file that exists in memory only or, where other processes
//! are to have them, a file each.
//!
//! A file of its own lets another process have that page and no other, and keeps the page alive until the last process
//! has let it go, as a driver's handle does. Its length is sealed, so that no process can take the memory away from under
//! another; who imports one insists on that.
//!
//! Invariants:
//! - parts: a page's handle is its offset in the file; offsets only grow and are never used twice, so a page begins as
//!   zeros, and `next` ≤ `length`; what lies outside a page that exists is a hole: the file's blocks are those of
//!   touched pages;
//! - files: a page's handle is the number of its file, which no other had before.
//!
//! Locks: none; `HostBackend` keeps it under its own.

use super::memory::GRANULARITY;
use super::os;
use crate::backend::BackendError;
use crate::base::units::PageHandle;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

/// The file grows by this much at a time: addresses in a sparse file cost nothing.
const GROWTH: u64 = 64 << 30;
/// The largest offset that the kernel's file interface can express, rounded down.
const END: u64 = (i64::MAX as u64) - (GROWTH - 1);

#[derive(Debug)]
pub(super) enum Store {
    /// Parts of one file.
    Parts { file: File, length: u64, next: u64 },
    /// A file for each.
    Files { files: FxHashMap<u64, File>, last: u64 },
}

fn blocks(file: &File) -> Result<u64, BackendError> {
    let data = file.metadata();
    data.map(|data| data.blocks() * 512)
        .map_err(|error| BackendError::Other(format!("fstat of a memory file: {error}")))
}

fn unknown(page: PageHandle) -> BackendError {
    BackendError::Other(format!("page {} has no file", page.0))
}

impl Store {
    /// For this process alone.
    pub(super) fn own() -> Result<Store, BackendError> {
        Ok(Store::Parts {
            file: os::memory_file()?,
            length: 0,
            next: GRANULARITY,
        })
    }

    /// For several processes.
    pub(super) fn shared() -> Store {
        Store::Files {
            files: FxHashMap::default(),
            last: 0,
        }
    }

    /// Bytes of memory that the pages really have.
    pub(super) fn resident(&self) -> Result<u64, BackendError> {
        match self {
            Store::Parts { file, .. } => blocks(file),
            Store::Files { files, .. } => files.values().map(blocks).sum(),
        }
    }

    /// A new page.
    pub(super) fn create(&mut self, bytes: u64) -> Result<PageHandle, BackendError> {
        match self {
            Store::Parts { file, length, next } => {
                let page = *next;
                let end = page.checked_add(bytes).filter(|&end| end <= END);
                let end = end.ok_or_else(|| {
                    BackendError::OutOfMemory(format!(
                        "create of {bytes} B: the memory file is at offset {page} and ends at {END}"
                    ))
                })?;
                if end > *length {
                    let grown = end.next_multiple_of(GROWTH);
                    os::grow(file, grown)?;
                    *length = grown;
                }
                *next = end;
                Ok(PageHandle(page))
            }
            Store::Files { .. } => {
                let file = os::sealable_file()?;
                os::grow(&file, bytes)?;
                os::seal(&file)?;
                self.keep(file)
            }
        }
    }

    /// A page that another process created, in a file that it gave.
    pub(super) fn import(&mut self, file: OwnedFd, bytes: u64) -> Result<PageHandle, BackendError> {
        let file = File::from(file);
        let length = file.metadata().map(|data| data.len());
        if !length.is_ok_and(|length| length == bytes) || !os::is_sealed(&file) {
            return Err(BackendError::Other(format!(
                "the descriptor is not that of a page of {bytes} B"
            )));
        }
        self.keep(file)
    }

    fn keep(&mut self, file: File) -> Result<PageHandle, BackendError> {
        match self {
            Store::Parts { .. } => Err(BackendError::NotSupported("pages have no files here".into())),
            Store::Files { files, last } => {
                *last += GRANULARITY;
                files.insert(*last, file);
                Ok(PageHandle(*last))
            }
        }
    }

    /// Gives a page's memory back, as far as this process goes.
    pub(super) fn release(&mut self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        match self {
            Store::Parts { file, .. } => os::punch(file, page.0, bytes),
            Store::Files { files, .. } => files.remove(&page.0).map(drop).ok_or_else(|| unknown(page)),
        }
    }

    /// The file of a page, and where in it the page begins.
    pub(super) fn place(&self, page: PageHandle) -> Result<(&File, u64), BackendError> {
        match self {
            Store::Parts { file, .. } => Ok((file, page.0)),
            Store::Files { files, .. } => Ok((files.get(&page.0).ok_or_else(|| unknown(page))?, 0)),
        }
    }

    /// A descriptor of a page, for another process.
    pub(super) fn export(&self, page: PageHandle) -> Result<OwnedFd, BackendError> {
        match self {
            Store::Parts { .. } => Err(BackendError::NotSupported(
                "this host memory is not made to be shared".into(),
            )),
            Store::Files { .. } => {
                let (file, _) = self.place(page)?;
                let copy = file.try_clone().map(OwnedFd::from);
                copy.map_err(|error| os::failed("dup of a page's file", error))
            }
        }
    }
}
