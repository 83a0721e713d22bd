//! What the NVTX interface of C looks like in memory, as far as weir needs it. From the headers of NVTX 3
//! (github.com/NVIDIA/NVTX, c/include/nvtx3: nvToolsExtMem.h, nvtxDetail/nvtxTypes.h and nvtxDetail/nvtxExtTypes.h).
//! The interface has no library of its own: a program that uses it carries these tables, and a tool that was named
//! in the environment fills them.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface.
pub const VERSION: u16 = 3;

// The core: what a tool asks of the program, and fills.

/// Table of the callbacks, for `GetExportTable`.
pub const TABLE_CALLBACKS: u32 = 1;
/// Table of the version.
pub const TABLE_VERSION: u32 = 3;

/// Functions in each module, by its number; the one at 0 is none. Modules are: none, core, CUDA, OpenCL, CUDA
/// runtime, core 2, synchronisation.
pub const MODULE_SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// The second module of the core, and where in it `DomainCreateA` is.
pub const MODULE_CORE2: usize = 5;
pub const DOMAIN_CREATE: usize = 12;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
pub struct CallbackTable {
    pub struct_size: usize,
    pub get_module:
        extern "C" fn(module: c_int, table: *mut *const *const c_void, size: *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
pub struct VersionTable {
    pub struct_size: usize,
    pub version: u32,
    pub reserved: u32,
    pub set_tool_version: extern "C" fn(version: u32),
}

/// `InitializeInjectionNvtx2`, a tool's: 0 means that it will not attach.
pub type InitCore = unsafe extern "C" fn(tables: extern "C" fn(id: u32) -> *const c_void) -> c_int;

/// `nvtxDomainCreateA`.
pub type DomainCreate = unsafe extern "C" fn(name: *const c_char) -> *mut c_void;

// Extensions.

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
pub struct ModuleSegment {
    pub id: usize,
    pub slots: usize,
    pub functions: *mut c_void,
}

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
pub struct ModuleInfo {
    pub version: u16,
    pub struct_size: u16,
    pub module: u16,
    pub compat: u16,
    pub segments: usize,
    pub segment: *mut ModuleSegment,
    pub export: *const c_void,
    pub info: *const c_void,
}

/// `InitializeInjectionNvtxExtension`, a tool's: 0 means that it will not attach.
pub type InitExtension = unsafe extern "C" fn(module: *mut ModuleInfo) -> c_int;

/// What a function slot holds that a tool has not filled is below this.
pub const FIRST_FUNCTION: usize = 2;

// The memory extension.

pub const MEM_MODULE: u16 = 1;
pub const MEM_COMPAT: u16 = 0x0102;
pub const MEM_SEGMENT: usize = 1;
pub const MEM_SLOTS: usize = 63;
/// Slots of the functions that weir calls.
pub const HEAP_REGISTER: usize = 0;
pub const HEAP_UNREGISTER: usize = 1;
pub const REGIONS_REGISTER: usize = 3;
pub const REGIONS_UNREGISTER: usize = 5;

/// The memory is handed out in parts, and nothing else of it may be touched.
pub const USAGE_SUB_ALLOCATOR: u32 = 1;
/// Described by addresses.
pub const TYPE_VIRTUAL_ADDRESS: u32 = 1;
/// A region is named by its address.
pub const REF_POINTER: u32 = 1;

/// `nvtxMemVirtualRangeDesc_t`.
#[repr(C)]
pub struct VirtualRange {
    pub size: usize,
    pub at: *const c_void,
}

/// `nvtxMemHeapDesc_t`.
#[repr(C)]
pub struct HeapDesc {
    pub compat: u16,
    pub struct_size: u16,
    pub reserved: u32,
    pub usage: u32,
    pub kind: u32,
    pub desc_size: usize,
    pub desc: *const VirtualRange,
    pub category: u32,
    pub message_type: u32,
    pub message: *const c_void,
}

/// `nvtxMemRegionsRegisterBatch_t`.
#[repr(C)]
pub struct RegionsRegister {
    pub compat: u16,
    pub struct_size: u16,
    pub kind: u32,
    pub heap: *mut c_void,
    pub count: usize,
    pub desc_size: usize,
    pub descs: *const VirtualRange,
    pub handles: *mut c_void,
}

/// `nvtxMemRegionsUnregisterBatch_t`; a reference is an address here.
#[repr(C)]
pub struct RegionsUnregister {
    pub compat: u16,
    pub struct_size: u16,
    pub ref_type: u32,
    pub count: usize,
    pub ref_size: usize,
    pub refs: *const *const c_void,
}

pub type HeapRegister = unsafe extern "C" fn(domain: *mut c_void, desc: *const HeapDesc) -> *mut c_void;
pub type HeapUnregister = unsafe extern "C" fn(domain: *mut c_void, heap: *mut c_void);
pub type RegisterRegions = unsafe extern "C" fn(domain: *mut c_void, desc: *const RegionsRegister);
pub type UnregisterRegions = unsafe extern "C" fn(domain: *mut c_void, desc: *const RegionsUnregister);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structures_are_as_long_as_those_of_c() {
        let sizes = [
            size_of::<CallbackTable>(),
            size_of::<VersionTable>(),
            size_of::<ModuleSegment>(),
            size_of::<ModuleInfo>(),
            size_of::<VirtualRange>(),
            size_of::<HeapDesc>(),
            size_of::<RegionsRegister>(),
            size_of::<RegionsUnregister>(),
        ];
        assert_eq!(sizes, [16, 24, 24, 40, 16, 48, 48, 32]);
        assert_eq!(
            (offset_of!(HeapDesc, desc), offset_of!(HeapDesc, message)),
            (24, 40)
        );
    }
}
