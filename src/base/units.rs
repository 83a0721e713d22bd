//! Newtypes for the quantities of the pool. A device address is an opaque integer here: nothing above
//! the backend ever dereferences one.

use std::fmt;

/// An address of device (or host pool) memory.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr(pub u64);

/// A stream as its user names it: a `CUstream`, a host stream, or 0 for the default stream. Handles may be
/// recycled after the stream is destroyed, so nothing is ever keyed by one; see [`StreamId`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamHandle(pub usize);

impl StreamHandle {
    /// The host, which is behind all work that has been waited for: no work is ever queued on it.
    pub const HOST: StreamHandle = StreamHandle(usize::MAX);
}

/// Is this a handle that weir made up, or [`StreamHandle::HOST`]? A driver's handles are small numbers and addresses, in which
/// bits 48 to 55 are zero; in weir's own some of them are not.
#[inline]
pub const fn is_own_handle(handle: usize) -> bool {
    (handle >> 48) & 0xff != 0
}

/// A stream's identity, which is never reused within a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(pub u64);

/// A stream capture in progress, or the graph that came of it. Never used for two captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaptureId(pub u64);

/// Work in order: a stream's own, or that of its part in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeline {
    /// The stream.
    pub stream: StreamId,
    /// The capture that work queued on it goes into.
    pub capture: Option<CaptureId>,
}

impl Timeline {
    /// The stream's own work.
    pub const fn of(stream: StreamId) -> Timeline {
        Timeline {
            stream,
            capture: None,
        }
    }
}

/// A user's event handle, as given to the ordering hooks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventHandle(pub usize);

/// Physical memory: one handle of the backend, mapped and released only as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageHandle(pub u64);

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.0)
    }
}
impl fmt::Display for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream id {}", self.0)
    }
}
impl fmt::Debug for EventHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:#x}", self.0)
    }
}

/// A number of bytes, written for people: `1.50 GiB`, `512 B`.
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut unit = 0;
        let mut value = self.0 as f64;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{value:.2} {}", UNITS[unit])
        }
    }
}
