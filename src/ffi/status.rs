//! The status codes. Their numbers never change meaning; new ones go to the end.

use crate::base::error::Error;

/// What a call returns. Everything but WEIR_OK leaves a message in weir_last_error(). Numbers never change
/// meaning; new ones are added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weir_status {
    /// Success.
    WEIR_OK = 0,
    /// An argument that no other status describes; the message names it.
    WEIR_ERROR_INVALID_ARGUMENT = 1,
    /// A required pointer was NULL.
    WEIR_ERROR_NULL_POINTER = 2,
    /// A struct_size that this library does not know.
    WEIR_ERROR_STRUCT_SIZE = 3,
    /// The handle was never a pool's.
    WEIR_ERROR_INVALID_POOL = 4,
    /// The pool was destroyed.
    WEIR_ERROR_POOL_DESTROYED = 5,
    /// The pool was ended by weir_finalize, or at exit.
    WEIR_ERROR_FINALIZED = 6,
    /// There is no memory for this request. The pool is unchanged and usable.
    WEIR_ERROR_OUT_OF_MEMORY = 7,
    /// The size can never be served.
    WEIR_ERROR_SIZE_TOO_LARGE = 8,
    /// The alignment is not a power of two, or too large.
    WEIR_ERROR_INVALID_ALIGNMENT = 9,
    /// The pointer lies in no pool's memory.
    WEIR_ERROR_UNKNOWN_POINTER = 10,
    /// The pointer lies inside a block, not at its start.
    WEIR_ERROR_INTERIOR_POINTER = 11,
    /// The block was freed before.
    WEIR_ERROR_DOUBLE_FREE = 12,
    /// The block belongs to another pool.
    WEIR_ERROR_WRONG_POOL = 13,
    /// The stream cannot be used.
    WEIR_ERROR_INVALID_STREAM = 14,
    /// The event cannot be used.
    WEIR_ERROR_INVALID_EVENT = 15,
    /// Not available for this kind of pool, or in this version.
    WEIR_ERROR_NOT_SUPPORTED = 16,
    /// This machine has no usable GPU driver.
    WEIR_ERROR_DRIVER_UNAVAILABLE = 17,
    /// A call of the driver or the operating system failed; the message has its name and code.
    WEIR_ERROR_BACKEND = 18,
    /// The driver is gone because the process is exiting.
    WEIR_ERROR_UNLOADED = 19,
    /// The device lost its contents.
    WEIR_ERROR_DEVICE_LOST = 20,
    /// Called in a forked child: the pool belongs to the parent.
    WEIR_ERROR_FORKED = 21,
    /// The pool is gone, but blocks were still allocated from it; the message lists them.
    WEIR_ERROR_LIVE_BLOCKS = 22,
    /// The work is not complete yet.
    WEIR_ERROR_NOT_READY = 23,
    /// A defect of weir itself; please report the message.
    WEIR_ERROR_INTERNAL = 24,
    /// Refused because a stream is being captured into a graph, or a wrong use of a capture.
    WEIR_ERROR_CAPTURE = 25,
    /// What another process exported is gone: the block was freed, the event destroyed, the pool or its process ended.
    WEIR_ERROR_STALE = 26,
}

use weir_status::*;

impl weir_status {
    /// The status of an error: one for each variant.
    pub fn of(error: &Error) -> weir_status {
        match error {
            Error::InvalidArgument(_) => WEIR_ERROR_INVALID_ARGUMENT,
            Error::NullPointer { .. } => WEIR_ERROR_NULL_POINTER,
            Error::StructSize { .. } => WEIR_ERROR_STRUCT_SIZE,
            Error::InvalidPool { .. } => WEIR_ERROR_INVALID_POOL,
            Error::PoolDestroyed { .. } => WEIR_ERROR_POOL_DESTROYED,
            Error::Finalized { .. } => WEIR_ERROR_FINALIZED,
            Error::OutOfMemory(_) => WEIR_ERROR_OUT_OF_MEMORY,
            Error::SizeTooLarge { .. } => WEIR_ERROR_SIZE_TOO_LARGE,
            Error::InvalidAlignment { .. } => WEIR_ERROR_INVALID_ALIGNMENT,
            Error::UnknownPointer(_) => WEIR_ERROR_UNKNOWN_POINTER,
            Error::InteriorPointer { .. } => WEIR_ERROR_INTERIOR_POINTER,
            Error::DoubleFree(_) => WEIR_ERROR_DOUBLE_FREE,
            Error::WrongPool { .. } => WEIR_ERROR_WRONG_POOL,
            Error::InvalidStream(..) => WEIR_ERROR_INVALID_STREAM,
            Error::InvalidEvent(..) => WEIR_ERROR_INVALID_EVENT,
            Error::NotSupported(_) => WEIR_ERROR_NOT_SUPPORTED,
            Error::DriverUnavailable(_) => WEIR_ERROR_DRIVER_UNAVAILABLE,
            Error::Backend(_) => WEIR_ERROR_BACKEND,
            Error::Unloaded => WEIR_ERROR_UNLOADED,
            Error::DeviceLost(_) => WEIR_ERROR_DEVICE_LOST,
            Error::Forked => WEIR_ERROR_FORKED,
            Error::LiveBlocks(_) => WEIR_ERROR_LIVE_BLOCKS,
            Error::Internal(_) => WEIR_ERROR_INTERNAL,
            Error::Capture(_) => WEIR_ERROR_CAPTURE,
            Error::Stale(_) => WEIR_ERROR_STALE,
        }
    }
}

/// Every name at the place of its number.
pub(super) const NAMES: [&std::ffi::CStr; 27] = [
    c"WEIR_OK",
    c"WEIR_ERROR_INVALID_ARGUMENT",
    c"WEIR_ERROR_NULL_POINTER",
    c"WEIR_ERROR_STRUCT_SIZE",
    c"WEIR_ERROR_INVALID_POOL",
    c"WEIR_ERROR_POOL_DESTROYED",
    c"WEIR_ERROR_FINALIZED",
    c"WEIR_ERROR_OUT_OF_MEMORY",
    c"WEIR_ERROR_SIZE_TOO_LARGE",
    c"WEIR_ERROR_INVALID_ALIGNMENT",
    c"WEIR_ERROR_UNKNOWN_POINTER",
    c"WEIR_ERROR_INTERIOR_POINTER",
    c"WEIR_ERROR_DOUBLE_FREE",
    c"WEIR_ERROR_WRONG_POOL",
    c"WEIR_ERROR_INVALID_STREAM",
    c"WEIR_ERROR_INVALID_EVENT",
    c"WEIR_ERROR_NOT_SUPPORTED",
    c"WEIR_ERROR_DRIVER_UNAVAILABLE",
    c"WEIR_ERROR_BACKEND",
    c"WEIR_ERROR_UNLOADED",
    c"WEIR_ERROR_DEVICE_LOST",
    c"WEIR_ERROR_FORKED",
    c"WEIR_ERROR_LIVE_BLOCKS",
    c"WEIR_ERROR_NOT_READY",
    c"WEIR_ERROR_INTERNAL",
    c"WEIR_ERROR_CAPTURE",
    c"WEIR_ERROR_STALE",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Shortage;
    use crate::base::units::{Addr, StreamHandle};

    /// Published numbers. A line here may be added, never changed.
    const FROZEN: [(weir_status, i32); 27] = [
        (WEIR_OK, 0),
        (WEIR_ERROR_INVALID_ARGUMENT, 1),
        (WEIR_ERROR_NULL_POINTER, 2),
        (WEIR_ERROR_STRUCT_SIZE, 3),
        (WEIR_ERROR_INVALID_POOL, 4),
        (WEIR_ERROR_POOL_DESTROYED, 5),
        (WEIR_ERROR_FINALIZED, 6),
        (WEIR_ERROR_OUT_OF_MEMORY, 7),
        (WEIR_ERROR_SIZE_TOO_LARGE, 8),
        (WEIR_ERROR_INVALID_ALIGNMENT, 9),
        (WEIR_ERROR_UNKNOWN_POINTER, 10),
        (WEIR_ERROR_INTERIOR_POINTER, 11),
        (WEIR_ERROR_DOUBLE_FREE, 12),
        (WEIR_ERROR_WRONG_POOL, 13),
        (WEIR_ERROR_INVALID_STREAM, 14),
        (WEIR_ERROR_INVALID_EVENT, 15),
        (WEIR_ERROR_NOT_SUPPORTED, 16),
        (WEIR_ERROR_DRIVER_UNAVAILABLE, 17),
        (WEIR_ERROR_BACKEND, 18),
        (WEIR_ERROR_UNLOADED, 19),
        (WEIR_ERROR_DEVICE_LOST, 20),
        (WEIR_ERROR_FORKED, 21),
        (WEIR_ERROR_LIVE_BLOCKS, 22),
        (WEIR_ERROR_NOT_READY, 23),
        (WEIR_ERROR_INTERNAL, 24),
        (WEIR_ERROR_CAPTURE, 25),
        (WEIR_ERROR_STALE, 26),
    ];

    #[test]
    fn every_status_keeps_its_number_and_has_its_name() {
        assert_eq!(FROZEN.len(), NAMES.len());
        for (n, (status, number)) in FROZEN.iter().enumerate() {
            assert_eq!((*status as i32, n as i32), (*number, *number));
            assert_eq!(NAMES[n].to_str().unwrap(), format!("{status:?}"));
        }
    }

    #[test]
    fn every_error_has_the_status_of_its_name() {
        let text = String::new;
        let shortage = Shortage {
            asked: 0,
            stream: StreamHandle(0),
            used: 0,
            reserved: 0,
            largest_free: 0,
            limit: 0,
            pending: 0,
            backend: text(),
        };
        let at = Addr(0);
        let errors = [
            Error::InvalidArgument(text()),
            Error::NullPointer { what: "", hint: "" },
            Error::StructSize {
                what: "",
                given: 0,
                least: 0,
                most: 0,
            },
            Error::InvalidPool { handle: 0 },
            Error::PoolDestroyed { handle: 0 },
            Error::Finalized { handle: 0 },
            Error::OutOfMemory(Box::new(shortage)),
            Error::SizeTooLarge { asked: 0, most: 0 },
            Error::InvalidAlignment { given: 0, most: 0 },
            Error::UnknownPointer(at),
            Error::InteriorPointer {
                at,
                block: at,
                bytes: 0,
            },
            Error::DoubleFree(at),
            Error::WrongPool { at, owner: text() },
            Error::InvalidStream(StreamHandle(0), text()),
            Error::InvalidEvent(0, text()),
            Error::NotSupported(text()),
            Error::DriverUnavailable(text()),
            Error::Backend(text()),
            Error::Unloaded,
            Error::DeviceLost(text()),
            Error::Forked,
            Error::LiveBlocks(text()),
            Error::Internal(text()),
            Error::Capture(text()),
            Error::Stale(text()),
        ];
        for error in errors {
            let variant = format!("{error:?}");
            let variant = variant.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            let status = format!("{:?}", weir_status::of(&error))
                .replace("WEIR_ERROR_", "")
                .replace('_', "");
            assert_eq!(status, variant.to_uppercase());
        }
    }
}
