//! The driver's entry points: for each its name for `cuGetProcAddress`, the names it is exported by, and the CUDA
//! version each of these appeared in (CUDA Driver API reference and release notes). What is listed as required is in
//! every driver since CUDA 9; without one of the others a feature is missing and nothing else.
//!
//! Results are plain numbers here and not `CUresult`: a driver that is newer than an enum returns values outside of it.
//! The same goes for enums that the driver writes.

use super::later::{AccessDesc, AllocationProp, UserObject};
use cuda_driver_sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUipcEventHandle,
    CUmemGenericAllocationHandle, CUstream,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// A `CUresult`.
pub type Code = c_uint;

/// Versions and exported names, newest first.
pub type Exports = &'static [(c_int, &'static str)];

/// What a lookup gives as a function of this type; None for NULL.
macro_rules! function {
    ($find:expr, $name:literal, $exports:tt, ($($arg:ty),*)) => {
        // SAFETY: NULL, or the function of that name, whose documented type this is.
        unsafe {
            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($arg),*) -> Code>>(
                $find($name, &$exports),
            )
        }
    };
}

macro_rules! symbols {
    (
        required { $($must:ident $must_name:literal $must_exports:tt ($($must_arg:ty),*);)* }
        optional { $($may:ident $may_name:literal $may_exports:tt ($($may_arg:ty),*);)* }
        mapping { $($map:ident $map_name:literal $map_exports:tt ($($map_arg:ty),*);)* }
    ) => {
        /// The entry points that were found.
        #[derive(Debug)]
        pub struct Symbols {
            $(pub $must: unsafe extern "C" fn($($must_arg),*) -> Code,)*
            $(pub $may: Option<unsafe extern "C" fn($($may_arg),*) -> Code>,)*
            /// Virtual memory management: all of it, or it is not there.
            pub mapping: Option<Mapping>,
        }

        /// Virtual memory management.
        #[derive(Clone, Copy, Debug)]
        pub struct Mapping {
            $(pub $map: unsafe extern "C" fn($($map_arg),*) -> Code,)*
        }

        impl Symbols {
            /// Looks everything up. Err: the name of what every driver should have and this one has not.
            ///
            /// # Safety
            /// `find` gives NULL or the address of the function of that name and version.
            pub unsafe fn find(find: impl Fn(&str, Exports) -> *mut c_void) -> Result<Symbols, &'static str> {
                Ok(Symbols {
                    $($must: function!(find, $must_name, $must_exports, ($($must_arg),*)).ok_or($must_name)?,)*
                    $($may: function!(find, $may_name, $may_exports, ($($may_arg),*)),)*
                    mapping: Symbols::mapping(find),
                })
            }

            fn mapping(find: impl Fn(&str, Exports) -> *mut c_void) -> Option<Mapping> {
                Some(Mapping {
                    $($map: function!(find, $map_name, $map_exports, ($($map_arg),*))?,)*
                })
            }
        }
    };
}

symbols! {
    required {
        get_error_name "cuGetErrorName" [(6000, "cuGetErrorName")] (Code, *mut *const c_char);
        get_error_string "cuGetErrorString" [(6000, "cuGetErrorString")] (Code, *mut *const c_char);
        device_get "cuDeviceGet" [(2000, "cuDeviceGet")] (*mut CUdevice, c_int);
        device_get_count "cuDeviceGetCount" [(2000, "cuDeviceGetCount")] (*mut c_int);
        device_get_attribute "cuDeviceGetAttribute" [(2000, "cuDeviceGetAttribute")] (*mut c_int, c_int, CUdevice);
        device_can_access_peer "cuDeviceCanAccessPeer" [(4000, "cuDeviceCanAccessPeer")]
            (*mut c_int, CUdevice, CUdevice);
        primary_retain "cuDevicePrimaryCtxRetain" [(7000, "cuDevicePrimaryCtxRetain")] (*mut CUcontext, CUdevice);
        primary_release "cuDevicePrimaryCtxRelease"
            [(11000, "cuDevicePrimaryCtxRelease_v2"), (7000, "cuDevicePrimaryCtxRelease")] (CUdevice);
        primary_state "cuDevicePrimaryCtxGetState" [(7000, "cuDevicePrimaryCtxGetState")]
            (CUdevice, *mut c_uint, *mut c_int);
        ctx_get_current "cuCtxGetCurrent" [(4000, "cuCtxGetCurrent")] (*mut CUcontext);
        ctx_push_current "cuCtxPushCurrent" [(4000, "cuCtxPushCurrent_v2")] (CUcontext);
        ctx_pop_current "cuCtxPopCurrent" [(4000, "cuCtxPopCurrent_v2")] (*mut CUcontext);
        ctx_get_device "cuCtxGetDevice" [(2000, "cuCtxGetDevice")] (*mut CUdevice);
        ctx_synchronize "cuCtxSynchronize" [(2000, "cuCtxSynchronize")] ();
        mem_alloc "cuMemAlloc" [(3020, "cuMemAlloc_v2")] (*mut CUdeviceptr, usize);
        mem_free "cuMemFree" [(3020, "cuMemFree_v2")] (CUdeviceptr);
        mem_host_alloc "cuMemHostAlloc" [(2020, "cuMemHostAlloc")] (*mut *mut c_void, usize, c_uint);
        mem_free_host "cuMemFreeHost" [(2000, "cuMemFreeHost")] (*mut c_void);
        mem_host_register "cuMemHostRegister" [(6050, "cuMemHostRegister_v2"), (4000, "cuMemHostRegister")]
            (*mut c_void, usize, c_uint);
        mem_host_unregister "cuMemHostUnregister" [(4000, "cuMemHostUnregister")] (*mut c_void);
        stream_synchronize "cuStreamSynchronize" [(2000, "cuStreamSynchronize")] (CUstream);
        stream_wait_event "cuStreamWaitEvent" [(3020, "cuStreamWaitEvent")] (CUstream, CUevent, c_uint);
        mem_copy_async "cuMemcpyAsync" [(4000, "cuMemcpyAsync")] (CUdeviceptr, CUdeviceptr, usize, CUstream);
        pointer_get_attributes "cuPointerGetAttributes" [(7000, "cuPointerGetAttributes")]
            (c_uint, *mut c_uint, *mut *mut c_void, CUdeviceptr);
        event_create "cuEventCreate" [(2000, "cuEventCreate")] (*mut CUevent, c_uint);
        event_destroy "cuEventDestroy" [(4000, "cuEventDestroy_v2")] (CUevent);
        event_record "cuEventRecord" [(2000, "cuEventRecord")] (CUevent, CUstream);
        event_query "cuEventQuery" [(2000, "cuEventQuery")] (CUevent);
        event_synchronize "cuEventSynchronize" [(2000, "cuEventSynchronize")] (CUevent);
    }
    optional {
        stream_query "cuStreamQuery" [(2000, "cuStreamQuery")] (CUstream);
        stream_get_flags "cuStreamGetFlags" [(5050, "cuStreamGetFlags")] (CUstream, *mut c_uint);
        stream_get_ctx "cuStreamGetCtx" [(9020, "cuStreamGetCtx")] (CUstream, *mut CUcontext);
        stream_is_capturing "cuStreamIsCapturing" [(10000, "cuStreamIsCapturing")] (CUstream, *mut c_uint);
        stream_get_capture_info "cuStreamGetCaptureInfo" [(10010, "cuStreamGetCaptureInfo")]
            (CUstream, *mut c_uint, *mut c_ulonglong);
        stream_get_capture_graph "cuStreamGetCaptureInfo" [(11030, "cuStreamGetCaptureInfo_v2")]
            (CUstream, *mut c_uint, *mut c_ulonglong, *mut CUgraph, *mut *const CUgraphNode, *mut usize);
        user_object_create "cuUserObjectCreate" [(11030, "cuUserObjectCreate")]
            (*mut UserObject, *mut c_void, Option<extern "C" fn(*mut c_void)>, c_uint, c_uint);
        user_object_release "cuUserObjectRelease" [(11030, "cuUserObjectRelease")] (UserObject, c_uint);
        graph_retain_user_object "cuGraphRetainUserObject" [(11030, "cuGraphRetainUserObject")]
            (CUgraph, UserObject, c_uint, c_uint);
        thread_exchange_capture_mode "cuThreadExchangeStreamCaptureMode"
            [(10010, "cuThreadExchangeStreamCaptureMode")] (*mut c_uint);
        stream_get_id "cuStreamGetId" [(12000, "cuStreamGetId")] (CUstream, *mut c_ulonglong);
        device_get_uuid "cuDeviceGetUuid" [(11040, "cuDeviceGetUuid_v2"), (9020, "cuDeviceGetUuid")]
            (*mut c_char, CUdevice);
        ipc_get_event_handle "cuIpcGetEventHandle" [(4010, "cuIpcGetEventHandle")] (*mut CUipcEventHandle, CUevent);
        ipc_open_event_handle "cuIpcOpenEventHandle" [(4010, "cuIpcOpenEventHandle")]
            (*mut CUevent, CUipcEventHandle);
        ctx_get_id "cuCtxGetId" [(12000, "cuCtxGetId")] (CUcontext, *mut c_ulonglong);
    }
    mapping {
        reserve "cuMemAddressReserve" [(10020, "cuMemAddressReserve")]
            (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        unreserve "cuMemAddressFree" [(10020, "cuMemAddressFree")] (CUdeviceptr, usize);
        create "cuMemCreate" [(10020, "cuMemCreate")]
            (*mut CUmemGenericAllocationHandle, usize, *const AllocationProp, c_ulonglong);
        release "cuMemRelease" [(10020, "cuMemRelease")] (CUmemGenericAllocationHandle);
        map "cuMemMap" [(10020, "cuMemMap")]
            (CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        unmap "cuMemUnmap" [(10020, "cuMemUnmap")] (CUdeviceptr, usize);
        set_access "cuMemSetAccess" [(10020, "cuMemSetAccess")]
            (CUdeviceptr, usize, *const AccessDesc, usize);
        granularity "cuMemGetAllocationGranularity" [(10020, "cuMemGetAllocationGranularity")]
            (*mut usize, *const AllocationProp, c_uint);
        export "cuMemExportToShareableHandle" [(10020, "cuMemExportToShareableHandle")]
            (*mut c_void, CUmemGenericAllocationHandle, c_uint, c_ulonglong);
        import "cuMemImportFromShareableHandle" [(10020, "cuMemImportFromShareableHandle")]
            (*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
    }
}
