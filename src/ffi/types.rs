//! Handles, enums and callback types of the C interface. A parameter that takes an enum is an `int32_t`, so that
//! a wrong number is an error and not undefined behaviour.

use crate::backend::Access;
use crate::base::error::Error;
use crate::config::{DeviceMemory, MemoryKind};
use crate::pool::Attribute;
use std::ffi::{c_int, c_void};

/// A pool. The value is a checked number and never dereferenced: using one that was destroyed is an error, not
/// a crash.
pub struct weir_pool {
    _opaque: [u8; 0],
}

/// A stream: a CUstream or cudaStream_t, a host stream, or NULL for the default stream. For a host pool any
/// value that is not a live host stream is a stream with nothing in flight. For a device pool NULL and 1 are the legacy
/// default stream and 2 (cudaStreamPerThread) is the calling thread's, of the context that is current or, if none is,
/// of the pool's GPU; other streams must be of a GPU's primary context. WEIR_STREAM_HOST is the host, for every pool: what
/// is allocated on it no queued work uses any more, what is freed on it no stream's work may still use.
pub type weir_stream = *mut c_void;

/// An event: a CUevent or cudaEvent_t, or a host event.
pub type weir_event = *mut c_void;

/// Called when a request is about to fail, without any lock held; it may call weir (free, trim, ...) from the
/// same thread. `user` is on_oom_user of the pool's options, `bytes` what was asked for. Nonzero: try once more.
/// It must not throw or unwind. It is not called while the pool is being created.
pub type weir_oom_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, pool: *mut weir_pool, bytes: usize) -> c_int>;

/// Work for a host stream. It must not throw or unwind.
pub type weir_host_function = Option<unsafe extern "C" fn(arg: *mut c_void)>;

/// What is called when work is complete. It must not throw or unwind.
pub type weir_callback = Option<unsafe extern "C" fn(arg: *mut c_void)>;

/// A copy's source may change when the call returns.
pub const WEIR_COPY_STAGED: u32 = 1;
/// A copy's ends are held until a function has been called.
pub const WEIR_COPY_HOLD: u32 = 2;

/// The device number of plain host memory.
pub const WEIR_DEVICE_HOST: i32 = -1;

/// The NUMA node nearest to a pool's GPU.
pub const WEIR_NUMA_NEAREST: i32 = -1;

/// Where a pool's memory lives.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weir_memory {
    /// Memory of a GPU.
    WEIR_MEMORY_DEVICE = 0,
    /// Page-locked host memory: a GPU reads and writes it, and copies to and from it are asynchronous. Its streams are
    /// the GPU's. The host touches a block when no queued work uses its memory: name WEIR_STREAM_HOST to get such a one.
    WEIR_MEMORY_PINNED = 1,
    /// Plain host memory.
    WEIR_MEMORY_HOST = 2,
}

/// How device memory is come by.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weir_device_memory {
    /// Pages that are mapped where they are needed (cuMemCreate, cuMemMap): a pool holds hardly more than the program
    /// uses, and gives nothing back that would wait for running kernels. A device or driver that cannot map pages gets
    /// plain memory.
    WEIR_DEVICE_MEMORY_MAPPED = 0,
    /// Segments from cuMemAlloc, for those who need it: cuIpcGetMemHandle, many MPI libraries; of pinned memory, segments
    /// registered by cuMemHostRegister. Giving a segment back waits for running kernels.
    WEIR_DEVICE_MEMORY_PLAIN = 1,
}

/// Switches and figures of a pool, with the numbers of CUDA's cudaMemPoolAttr.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weir_attribute {
    /// 0 or 1: reuse across streams that an event, told by weir_event_record and weir_stream_wait_event, has
    /// ordered.
    WEIR_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    /// 0 or 1: reuse of blocks whose stream is seen to have completed its work.
    WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC = 2,
    /// 0 or 1: the pool may make the asking stream wait for the freeing one.
    WEIR_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    /// Bytes: free memory above this is given back at synchronises that the pool sees, and at frees.
    WEIR_ATTRIBUTE_RELEASE_THRESHOLD = 4,
    /// Bytes of memory held now; read only.
    WEIR_ATTRIBUTE_RESERVED_CURRENT = 5,
    /// Bytes of memory held at most; set it to 0 to begin anew.
    WEIR_ATTRIBUTE_RESERVED_HIGH = 6,
    /// Bytes in live blocks now; read only.
    WEIR_ATTRIBUTE_USED_CURRENT = 7,
    /// Bytes in live blocks at most; set it to 0 to begin anew.
    WEIR_ATTRIBUTE_USED_HIGH = 8,
}

/// What another device may do with a pool's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum weir_access {
    /// Nothing.
    WEIR_ACCESS_NONE = 0,
    /// Read.
    WEIR_ACCESS_READ = 1,
    /// Read and write.
    WEIR_ACCESS_READ_WRITE = 3,
}

pub(super) fn memory(number: i32) -> Result<MemoryKind, Error> {
    const ALL: [MemoryKind; 3] = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Host];
    known(
        &ALL.map(|kind| (memory_numbers(kind, 0).0, kind)),
        number,
        "memory",
        "weir_memory",
    )
}

/// The numbers of a kind of memory and of the device that has it.
pub(super) fn memory_numbers(kind: MemoryKind, device: i32) -> (i32, i32) {
    match kind {
        MemoryKind::Device => (weir_memory::WEIR_MEMORY_DEVICE as i32, device),
        MemoryKind::Pinned => (weir_memory::WEIR_MEMORY_PINNED as i32, WEIR_DEVICE_HOST),
        MemoryKind::Host => (weir_memory::WEIR_MEMORY_HOST as i32, WEIR_DEVICE_HOST),
    }
}

pub(super) fn device_memory(number: i32) -> Result<DeviceMemory, Error> {
    const ALL: [(weir_device_memory, DeviceMemory); 2] = [
        (
            weir_device_memory::WEIR_DEVICE_MEMORY_MAPPED,
            DeviceMemory::Mapped,
        ),
        (weir_device_memory::WEIR_DEVICE_MEMORY_PLAIN, DeviceMemory::Plain),
    ];
    known(
        &ALL.map(|(number, kind)| (number as i32, kind)),
        number,
        "device_memory",
        "weir_device_memory",
    )
}

pub(super) fn attribute(number: i32) -> Result<Attribute, Error> {
    use Attribute::*;
    use weir_attribute::*;
    const ALL: [(weir_attribute, Attribute); 8] = [
        (
            WEIR_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            ReuseFollowEventDependencies,
        ),
        (WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC, ReuseAllowOpportunistic),
        (
            WEIR_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
            ReuseAllowInternalDependencies,
        ),
        (WEIR_ATTRIBUTE_RELEASE_THRESHOLD, ReleaseThreshold),
        (WEIR_ATTRIBUTE_RESERVED_CURRENT, ReservedCurrent),
        (WEIR_ATTRIBUTE_RESERVED_HIGH, ReservedHigh),
        (WEIR_ATTRIBUTE_USED_CURRENT, UsedCurrent),
        (WEIR_ATTRIBUTE_USED_HIGH, UsedHigh),
    ];
    known(
        &ALL.map(|(number, attribute)| (number as i32, attribute)),
        number,
        "attribute",
        "weir_attribute",
    )
}

const ACCESS: [(weir_access, Access); 3] = [
    (weir_access::WEIR_ACCESS_NONE, Access::None),
    (weir_access::WEIR_ACCESS_READ, Access::Read),
    (weir_access::WEIR_ACCESS_READ_WRITE, Access::ReadWrite),
];

pub(super) fn access(number: i32) -> Result<Access, Error> {
    known(
        &ACCESS.map(|(number, access)| (number as i32, access)),
        number,
        "access",
        "weir_access",
    )
}

pub(super) fn access_number(access: Access) -> i32 {
    match access {
        Access::None => weir_access::WEIR_ACCESS_NONE as i32,
        Access::Read => weir_access::WEIR_ACCESS_READ as i32,
        Access::ReadWrite => weir_access::WEIR_ACCESS_READ_WRITE as i32,
    }
}

fn known<T: Copy>(all: &[(i32, T)], number: i32, what: &str, of: &str) -> Result<T, Error> {
    let found = all.iter().find(|(known, _)| *known == number);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| Error::InvalidArgument(format!("{what} is {number}, which is no {of}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_an_enum_are_refused_by_name() {
        for number in [-1, 3, i32::MIN, i32::MAX] {
            assert!(
                matches!(memory(number), Err(Error::InvalidArgument(text)) if text.contains("weir_memory"))
            );
        }
        for number in [0, 9, -1] {
            assert!(
                matches!(attribute(number), Err(Error::InvalidArgument(text)) if text.contains("attribute"))
            );
        }
        assert!(access(2).is_err() && access(4).is_err());
        assert_eq!(memory(2), Ok(MemoryKind::Host));
        assert_eq!(attribute(4), Ok(Attribute::ReleaseThreshold));
        for number in [0, 1, 3] {
            assert_eq!(access(number).map(access_number), Ok(number));
        }
        assert!(device_memory(2).is_err() && device_memory(-1).is_err());
        assert_eq!(device_memory(1), Ok(DeviceMemory::Plain));
    }
}
