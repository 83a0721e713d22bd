//! Every way a call can fail. Each variant is one `weir_status` of the C interface (`ffi::status` maps
//! them one to one), and its text names the values and what to try.

use super::units::{Addr, Human, StreamHandle};
use thiserror::Error;

/// The numbers behind a failed allocation, as they were when it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes asked for.
    pub asked: u64,
    /// The stream that asked.
    pub stream: StreamHandle,
    /// Bytes in live blocks.
    pub used: u64,
    /// Physical bytes held by the pool.
    pub reserved: u64,
    /// The largest contiguous free extent.
    pub largest_free: u64,
    /// `max_bytes` of the pool; 0: none.
    pub limit: u64,
    /// Free bytes that queued work may still use.
    pub pending: u64,
    /// What the backend said when the pool last tried to grow; empty: the limit stopped it.
    pub backend: String,
}

/// A failure of a pool operation. Unless a variant says otherwise nothing was changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// An argument that no other variant describes.
    #[error("{0}")]
    InvalidArgument(String),
    /// A required pointer was NULL.
    #[error("{what} is NULL; {hint}")]
    NullPointer {
        /// The argument's name.
        what: &'static str,
        /// What to pass instead.
        hint: &'static str,
    },
    /// A struct whose `struct_size` this library does not know.
    #[error(
        "{what}.struct_size is {given}, but this library accepts {least} to {most}; initialise the struct with sizeof, and build against the header of the library you run with"
    )]
    StructSize {
        /// The struct's name.
        what: &'static str,
        /// The size given.
        given: usize,
        /// The smallest size ever published.
        least: usize,
        /// The size of this version.
        most: usize,
    },
    /// The handle was never a pool's.
    #[error("{handle:#x} is not a pool handle; pass what weir_pool_create or weir_default_pool gave")]
    InvalidPool {
        /// The handle given.
        handle: usize,
    },
    /// The pool was destroyed.
    #[error("pool {handle:#x} was destroyed; its memory has been given back, and nothing was done")]
    PoolDestroyed {
        /// The handle given.
        handle: usize,
    },
    /// The pool was ended by `weir_finalize` or at exit.
    #[error(
        "pool {handle:#x} was ended by weir_finalize or at exit; its memory has been given back, and nothing was done"
    )]
    Finalized {
        /// The handle given.
        handle: usize,
    },
    /// No memory.
    #[error("out of memory: asked {} ({} B) on stream {}, used {}, reserved {}, limit {}, largest free {}, waiting for queued work {}{}; free blocks, raise max_bytes, or synchronize streams that hold freed blocks",
        Human(.0.asked), .0.asked, .0.stream, Human(.0.used), Human(.0.reserved),
        if .0.limit == 0 { "none".to_string() } else { Human(.0.limit).to_string() },
        Human(.0.largest_free), Human(.0.pending),
        if .0.backend.is_empty() { String::new() } else { format!("; the backend said: {}", .0.backend) })]
    OutOfMemory(Box<Shortage>),
    /// The size can never be served.
    #[error(
        "{asked} B can never be allocated: the largest request is {most} B; check the size for an overflow"
    )]
    SizeTooLarge {
        /// Bytes asked for.
        asked: u64,
        /// The largest size.
        most: u64,
    },
    /// The alignment is not a power of two or too large.
    #[error("alignment {given} is not a power of two of at most {most}; pass 0 for the default of 256")]
    InvalidAlignment {
        /// The alignment given.
        given: u64,
        /// The largest alignment.
        most: u64,
    },
    /// The pointer lies in no pool's memory.
    #[error("{0} was not allocated from this pool, nor from any other pool of this process")]
    UnknownPointer(Addr),
    /// The pointer lies inside a live block, not at its start.
    #[error("{at} is {} B into the block at {block} of {bytes} B; pass the block's own address", .at.0 - .block.0)]
    InteriorPointer {
        /// The pointer given.
        at: Addr,
        /// The block it lies in.
        block: Addr,
        /// That block's size.
        bytes: u64,
    },
    /// The block was freed before, or never allocated, in this pool's memory.
    #[error("{0} lies in this pool's free memory: it was freed already, or never allocated")]
    DoubleFree(Addr),
    /// The block belongs to another pool.
    #[error("{at} belongs to another pool ({owner}); free it there")]
    WrongPool {
        /// The pointer given.
        at: Addr,
        /// The owner's name.
        owner: String,
    },
    /// The stream handle cannot be used.
    #[error("{0}: {1}")]
    InvalidStream(StreamHandle, String),
    /// The event handle cannot be used.
    #[error("event {0:#x}: {1}")]
    InvalidEvent(usize, String),
    /// Not available for this pool, backend or build.
    #[error("{0}")]
    NotSupported(String),
    /// No usable driver on this machine.
    #[error("{0}")]
    DriverUnavailable(String),
    /// A call of the backend failed. What the pool held, it still holds.
    #[error("{0}")]
    Backend(String),
    /// The driver is gone: the process is exiting.
    #[error("the driver is gone (the process is exiting); nothing was done")]
    Unloaded,
    /// The device lost its contents.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// Refused because a stream is being captured into a graph, or a wrong use of a capture.
    #[error("{0}")]
    Capture(String),
    /// What another process exported is gone.
    #[error("{0}")]
    Stale(String),
    /// Called in a forked child.
    #[error("this pool belongs to the parent process; a forked child must create its own after exec")]
    Forked,
    /// The pool was destroyed with live blocks. The pool is gone all the same.
    #[error("{0}")]
    LiveBlocks(String),
    /// A defect of weir itself: a panic was caught.
    #[error("internal error in weir: {0}; please report it")]
    Internal(String),
}
