//! The backend contract: everything the pool asks of a device. `host` implements it on the CPU, `counting`
//! without any memory, for benchmarks and model tests; `fault` decorates any backend so that chosen calls
//! fail, `metered` so that they are counted, `nvtx` so that a tool hears of blocks, `import` so that its memory is
//! another process's, which `ipc` speaks with. `ledger` is what keeps the books for all of them; `process` knows whether the process
//! has forked; `transfer` and `staging` copy memory, by the host and through streams.
//!
//! Locks: a backend may lock inside itself, never calls back into the pool, and may block only in
//! `synchronize` and `synchronize_all` (`host` also in `wait`, see there). The pool calls it holding no
//! lock that an allocation which hits could wait for.

use crate::base::units::{Addr, CaptureId, EventHandle, PageHandle, StreamHandle, StreamId, Timeline};
use std::os::fd::OwnedFd;
use std::time::Instant;
use thiserror::Error;

mod bell;
pub mod call;
pub mod counting;
pub mod cuda;
pub mod fault;
pub mod fence;
pub mod host;
pub mod import;
pub mod ipc;
mod key;
pub mod ledger;
pub mod metered;
pub mod nvtx;
pub mod own;
pub mod process;
pub mod sparse;
pub mod staging;
pub mod store;
pub mod transfer;

/// Why a backend call failed. A failed call has changed nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BackendError {
    /// The device has no memory (or address space, or mappings) left for this call.
    #[error("{0}")]
    OutOfMemory(String),
    /// The driver is gone, or the process has forked: no call may be made any more.
    #[error("the driver is gone")]
    Unloaded,
    /// The context is lost; physical memory can still be given back.
    #[error("{0}")]
    Lost(String),
    /// The stream named is not one.
    #[error("{0}")]
    InvalidStream(String),
    /// A stream is being captured, so that this call would be refused or would end the capture.
    #[error("{0}")]
    Capturing(String),
    /// This device, driver or backend cannot do it.
    #[error("{0}")]
    NotSupported(String),
    /// Anything else, with the call and the driver's code.
    #[error("{0}")]
    Other(String),
}

/// An event of the backend's own, recorded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

impl Event {
    /// An event that is complete from the start: nothing was in flight when it was recorded.
    pub const COMPLETE: Event = Event(0);
}

/// What a device may do with memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

fn unshared(name: &str) -> BackendError {
    BackendError::NotSupported(format!("{name} memory is not made to be shared"))
}

/// What the pool asks of a device. Sizes are in bytes and multiples of [`Backend::granularity`].
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// `"host"`, `"cuda"`.
    fn name(&self) -> &'static str;

    /// Every size and mapped address is a multiple of this power of two.
    fn granularity(&self) -> u64;

    /// How many mappings may exist at once.
    fn mapping_limit(&self) -> u64;

    /// How many of them may be one page's, two at least. A driver may refuse a page for good once it was asked for more.
    fn mappings_of_a_page(&self) -> usize;

    /// May any call still be made? False once the driver is gone or the process has forked; the pool then
    /// does its bookkeeping without a call.
    fn usable(&self) -> bool;

    /// The clock by which the pool gives queued work a moment: of a device in virtual time its own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Is the context lost for good? No queued work runs any more then, and what was asked for in vain once always will
    /// be; memory can still be given back.
    fn is_lost(&self) -> bool {
        false
    }

    /// Reserves a range of addresses, aligned to `granularity`. Costs no memory.
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError>;

    /// Gives a range back. Pre: exactly a range from `reserve`, with nothing mapped in it.
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError>;

    /// Creates physical memory. It is not mapped anywhere.
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError>;

    /// Gives physical memory back. Pre: mapped nowhere, and no queued work can touch it.
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError>;

    /// Maps a whole page at `at`, readable and writable wherever the pool's access list says. Pre: the
    /// addresses are reserved and unmapped. One page may be mapped at several addresses at once; its
    /// contents are the same through each.
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError>;

    /// Unmaps `[at, at + bytes)`, which must be a union of adjacent complete mappings. Not stream-ordered:
    /// pre: the host has seen all work that could use these addresses complete.
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError>;

    /// The identity of a stream, and the capture that work queued on it now goes into. May touch the stream: only
    /// inside a call that names it.
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError>;

    /// Is this still the stream of that identity, and does its work go where it went then? No may also mean that `timeline` says what is
    /// wrong. As that, only inside a call that names the stream; it is asked at nearly each.
    fn is_still(&self, stream: StreamHandle, line: Timeline) -> bool {
        self.timeline(stream) == Ok(line)
    }

    /// Is this a stream that never has work in flight? Memory freed on it is everybody's at once.
    fn is_inert(&self, _stream: StreamId) -> bool {
        false
    }

    /// Is this a stream that is always there, for every thread? The pool may then record an event on it at any time, if
    /// `timeline` still gives what it gave before.
    fn is_built_in(&self, _stream: StreamHandle) -> bool {
        false
    }

    /// Does this name mean another stream to each thread? Then only its own thread may record an event on it.
    fn is_of_thread(&self, _stream: StreamHandle) -> bool {
        false
    }

    /// Has this stream, if it is still the one of that identity, work left that was queued on it, or for which it waits? None is always
    /// right: that it is not known, or that to ask takes as long as an event. Only for streams on which the pool may record an event at
    /// any time. Never blocks.
    fn has_work(&self, _stream: StreamHandle, _line: Timeline) -> Option<bool> {
        None
    }

    /// Records a fresh event behind all work queued on `stream` so far. Only inside a call that names it.
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError>;

    /// Has the event's work completed? Never blocks.
    fn query(&self, event: Event) -> Result<bool, BackendError>;

    /// Makes `stream` wait for `event` before any work queued on it later. Only inside a call that names the
    /// stream. Does not block the host, unless `stream` has no queue (`host`, for a value that is no stream).
    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError>;

    /// Blocks until the event's work has completed.
    fn synchronize(&self, event: Event) -> Result<(), BackendError>;

    /// Gives an event back. The work it covers need not be complete. Never fails.
    fn forget(&self, event: Event);

    /// Blocks until all work queued on any stream before this call, destroyed streams included, has
    /// completed. `Capturing`: it would end a capture, so nothing was waited for.
    fn synchronize_all(&self) -> Result<(), BackendError>;

    /// Asks to hear, by `graphs_gone`, when the graph of this capture is gone, with all that was made of it, and their
    /// launches are complete. Only inside a call that names `stream`, whose work goes into that capture.
    fn watch_graph(&self, _stream: StreamHandle, _capture: CaptureId) -> Result<(), BackendError> {
        Err(BackendError::NotSupported(format!(
            "{} streams have no graphs",
            self.name()
        )))
    }

    /// Tells each capture whose graph is gone since the last call. Makes no call of a driver; any thread.
    fn graphs_gone(&self, _each: &mut dyn FnMut(CaptureId)) {}

    /// Must every block lie in one page, because pages cannot be put side by side, or somebody registers
    /// blocks by their page? The pool then cuts blocks within pages and moves none.
    fn blocks_in_one_page(&self) -> bool {
        false
    }

    /// Does memory come with its address? The pool then asks for pages by `create_at` only, and neither reserves,
    /// maps nor unmaps.
    fn pages_have_addresses(&self) -> bool {
        false
    }

    /// Creates physical memory at an address of the device's choice, a multiple of 512, ready for use. `release`
    /// ends it; it may wait for running work. The address may then come again, with another page.
    fn create_at(&self, _bytes: u64) -> Result<(Addr, PageHandle), BackendError> {
        Err(BackendError::NotSupported(format!(
            "{} memory has no address of its own",
            self.name()
        )))
    }

    /// Sets what another device may do with the memory mapped now and later. All or nothing.
    fn set_access(&self, _device: i32, _access: Access) -> Result<(), BackendError> {
        Err(BackendError::NotSupported(format!(
            "{} memory is no other device's to reach",
            self.name()
        )))
    }

    /// Tells what a device may do with the memory.
    fn access(&self, _device: i32) -> Result<Access, BackendError> {
        Err(BackendError::NotSupported(format!(
            "{} memory is no other device's to reach",
            self.name()
        )))
    }

    /// The device's number, by which processes tell devices apart.
    fn device_number(&self) -> Result<[u64; 2], BackendError> {
        Ok([0; 2])
    }

    /// A descriptor of a page, by which another process can `import` it. Pre: the page was created for that.
    fn export(&self, _page: PageHandle) -> Result<OwnedFd, BackendError> {
        Err(unshared(self.name()))
    }

    /// The page behind a descriptor that another process exported; `release` ends this process's part in it. The
    /// memory itself lives until every process has released it.
    fn import(&self, _file: OwnedFd, _bytes: u64) -> Result<PageHandle, BackendError> {
        Err(unshared(self.name()))
    }

    /// Offers an event of the program's to other processes: the number under which it is found, and what the driver wants
    /// to know there.
    fn export_event(&self, _event: EventHandle) -> Result<(u64, [u64; 8]), BackendError> {
        Err(unshared(self.name()))
    }

    /// The descriptor that an importer of such an event needs, if it needs one. The outer None: the event is gone.
    fn event_file(&self, _event: EventHandle, _number: u64) -> Result<Option<Option<OwnedFd>>, BackendError> {
        Err(unshared(self.name()))
    }

    /// Another process's event, as one of the program's.
    fn import_event(&self, _file: Option<OwnedFd>, _driver: [u64; 8]) -> Result<EventHandle, BackendError> {
        Err(unshared(self.name()))
    }

    /// Does somebody watch the blocks (`block_allocated`, `block_freed`)? Does not change.
    fn watches_blocks(&self) -> bool {
        false
    }

    /// A block is about to be handed out; of `bytes`, as asked for, but 1 at least.
    fn block_allocated(&self, _at: Addr, _bytes: u64) {}

    /// A block is being freed; its memory is not anybody's yet. The only call that is made under a lock that requests
    /// wait for, so that nobody hears of a new block before the end of the old one: it must be short and not call
    /// the driver.
    fn block_freed(&self, _at: Addr) {}

    /// The process ends, and nobody has ended the pool: whoever watches its memory should see that it was left.
    fn abandon(&self) {}

    /// The pool has ended and given everything back, unless it could not: no other call follows. What the backend
    /// itself holds of the device goes now, because the last reference to it may be dropped while a thread or the
    /// process is ending. If it is not usable any more it only lets go of its own memory.
    fn close(&self) {}
}
