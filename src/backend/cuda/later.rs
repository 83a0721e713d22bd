//! What the driver's interface gained after CUDA 10.2, where the declarations of `cuda-driver-sys` end. Names, values
//! and layouts are facts of the CUDA Driver API reference and of `cuda.h` 11.0 to 13.0.

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

/// `CUdevice_attribute`: memory created for mapping can be registered for GPUDirect RDMA (11.0).
pub const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: c_int = 110;
/// `CUdevice_attribute`: handles can be exported over the fabric (12.3).
pub const HANDLE_TYPE_FABRIC_SUPPORTED: c_int = 128;
/// `CUdevice_attribute`: the NUMA node of the host that is nearest to the device; -1: none (12.2).
pub const HOST_NUMA_ID: c_int = 134;
/// `CUdevice_attribute`: pages of the host's memory can be created and mapped (12.2).
pub const HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 141;
/// `CUmemLocationType`s: a device, and a NUMA node of the host (12.2).
pub const LOCATION_DEVICE: c_uint = 1;
pub const LOCATION_HOST_NUMA: c_uint = 3;
/// `CUmemAllocationHandleType`: over the fabric (12.3).
pub const MEM_HANDLE_TYPE_FABRIC: c_uint = 8;
/// `CUdriverProcAddress_flags`: the stream NULL is the legacy one, whatever the caller was built for (11.3).
pub const GET_PROC_ADDRESS_LEGACY_STREAM: u64 = 1;

/// `CUresult`s after which a context, or the process, does no more work: `CONTAINED` (12.8), `TENSOR_MEMORY_LEAK`
/// (12.9), `MPS_CLIENT_TERMINATED` (12.0), `EXTERNAL_DEVICE` (11.4).
pub const LATER_STICKY: [c_uint; 4] = [226, 721, 809, 911];

/// `CUuserObject` (11.3).
pub type UserObject = *mut c_void;
/// `CUmemLocation`, whose kinds have grown.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// `CUmemLocationType`.
    pub kind: c_uint,
    pub id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    pub location: Location,
    /// `CUmemAccess_flags`.
    pub flags: c_uint,
}

/// `CUmemAllocationProp` since 11.0: of the size that it had in 10.2, with flags where zeros were required.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// `CUmemAllocationType`.
    pub kind: c_uint,
    /// A mask of `CUmemAllocationHandleType`; 0: none.
    pub requested_handle_types: c_uint,
    pub location: Location,
    pub win32_handle_meta_data: *mut c_void,
    pub compression_type: c_uchar,
    pub gpu_direct_rdma_capable: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

const _: () = assert!(size_of::<AllocationProp>() == size_of::<cuda_driver_sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<AccessDesc>() == size_of::<cuda_driver_sys::CUmemAccessDesc>());
