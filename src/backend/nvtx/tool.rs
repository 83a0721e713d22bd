//! The tool that watches this process, if `NVTX_INJECTION64_PATH` names one: a shared library that the program
//! loads, as NVTX says, shows its tables to, and then calls through them. Nothing is loaded otherwise.
//!
//! Invariants: the tables live as long as the process, since the tool keeps their addresses; they are filled once,
//! in [`attached`], and only read afterwards.
//!
//! Locks: none but the one of `OnceLock` while the tool is loaded. What a tool does inside its functions is its own.

use super::abi::{self, CallbackTable, HeapDesc, ModuleInfo, ModuleSegment, VersionTable, VirtualRange};
use crate::backend::BackendError;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStringExt;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// Names the library of the tool, in processes of 64 bits.
const PATH: &str = "NVTX_INJECTION64_PATH";
const LONGEST: usize = 16;

/// A tool that watches memory.
#[derive(Debug)]
pub struct Tool {
    domain: AtomicPtr<c_void>,
    heap_register: abi::HeapRegister,
    heap_unregister: abi::HeapUnregister,
    regions_register: abi::RegisterRegions,
    regions_unregister: abi::UnregisterRegions,
}

/// What a tool calls a heap; 0: it has not taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap(usize);

impl Heap {
    /// No heap.
    pub const NONE: Heap = Heap(0);
}

impl Tool {
    /// Memory from which blocks will be cut. Nothing of it may be touched but blocks.
    pub fn register_heap(&self, at: u64, bytes: u64) -> Heap {
        let range = VirtualRange {
            size: bytes as usize,
            at: at as *const c_void,
        };
        let desc = HeapDesc {
            compat: abi::MEM_COMPAT,
            struct_size: size_of::<HeapDesc>() as u16,
            reserved: 0,
            usage: abi::USAGE_SUB_ALLOCATOR,
            kind: abi::TYPE_VIRTUAL_ADDRESS,
            desc_size: size_of::<VirtualRange>(),
            desc: &raw const range,
            category: 0,
            message_type: 0,
            message: null(),
        };
        // SAFETY: the tool's function for this slot, which takes a description that it does not keep.
        Heap(unsafe { (self.heap_register)(self.domain.load(Relaxed), &raw const desc) } as usize)
    }

    /// The memory is about to be given back.
    pub fn unregister_heap(&self, heap: Heap) {
        if heap.0 != 0 {
            // SAFETY: the tool's function for this slot, and a heap that it named.
            unsafe { (self.heap_unregister)(self.domain.load(Relaxed), heap.0 as *mut c_void) };
        }
    }

    /// A block of a heap.
    pub fn register_region(&self, heap: Heap, at: u64, bytes: u64) {
        let range = VirtualRange {
            size: bytes as usize,
            at: at as *const c_void,
        };
        let desc = abi::RegionsRegister {
            compat: abi::MEM_COMPAT,
            struct_size: size_of::<abi::RegionsRegister>() as u16,
            kind: abi::TYPE_VIRTUAL_ADDRESS,
            heap: heap.0 as *mut c_void,
            count: 1,
            desc_size: size_of::<VirtualRange>(),
            descs: &raw const range,
            handles: null_mut(),
        };
        if heap.0 != 0 {
            // SAFETY: the tool's function for this slot, which takes a description that it does not keep.
            unsafe { (self.regions_register)(self.domain.load(Relaxed), &raw const desc) };
        }
    }

    /// A block of a heap is no more.
    pub fn unregister_region(&self, heap: Heap, at: u64) {
        let pointer = at as *const c_void;
        let desc = abi::RegionsUnregister {
            compat: abi::MEM_COMPAT,
            struct_size: size_of::<abi::RegionsUnregister>() as u16,
            ref_type: abi::REF_POINTER,
            count: 1,
            ref_size: size_of::<*const c_void>(),
            refs: &raw const pointer,
        };
        if heap.0 != 0 {
            // SAFETY: the tool's function for this slot, which takes a description that it does not keep.
            unsafe { (self.regions_unregister)(self.domain.load(Relaxed), &raw const desc) };
        }
    }
}

/// The tool, loaded on the first call, if there is one and it watches memory. An error says why a tool that is named
/// does not.
pub fn attached() -> Result<Option<&'static Tool>, BackendError> {
    static TOOL: OnceLock<Result<Option<Tool>, BackendError>> = OnceLock::new();
    match TOOL.get_or_init(load) {
        Ok(tool) => Ok(tool.as_ref()),
        Err(error) => Err(error.clone()),
    }
}

fn load() -> Result<Option<Tool>, BackendError> {
    let Some(path) = std::env::var_os(PATH).filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let shown = path.to_string_lossy().into_owned();
    let refused = |why: &str| BackendError::NotSupported(format!("{PATH} names {shown:?}, {why}"));
    let path = CString::new(path.into_vec()).map_err(|_| refused("which has a zero byte in it"))?;
    // SAFETY: a C string. What the library does when it is loaded is what the program's user asked for.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return Err(refused("which cannot be loaded"));
    }
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the handle of a library that stays loaded, and a C string.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    };
    let core = symbol(c"InitializeInjectionNvtx2");
    if !core.is_null() {
        // SAFETY: by this name NVTX has a function of this type, or none.
        let init = unsafe { std::mem::transmute::<*mut c_void, abi::InitCore>(core) };
        // SAFETY: as NVTX calls it, with tables that outlive the library. Without the core there are no domains,
        // which the extension can do without, so its answer does not matter.
        unsafe { init(tables) };
    }
    let extension = symbol(c"InitializeInjectionNvtxExtension");
    if extension.is_null() {
        return Err(refused("which knows no extensions of NVTX"));
    }
    // SAFETY: by this name NVTX has a function of this type, or none.
    let init = unsafe { std::mem::transmute::<*mut c_void, abi::InitExtension>(extension) };
    let mut segment = ModuleSegment {
        id: abi::MEM_SEGMENT,
        slots: abi::MEM_SLOTS,
        functions: (&raw const MEM).cast_mut().cast(),
    };
    let mut module = ModuleInfo {
        version: abi::VERSION,
        struct_size: size_of::<ModuleInfo>() as u16,
        module: abi::MEM_MODULE,
        compat: abi::MEM_COMPAT,
        segments: 1,
        segment: &raw mut segment,
        export: null(),
        info: null(),
    };
    // SAFETY: as NVTX calls it. The descriptions are read during the call alone; the slots are static and atomic.
    if unsafe { init(&raw mut module) } == 0 {
        return Err(refused("which does not watch memory"));
    }
    let slot = |number: usize| match MEM[number].load(Relaxed) {
        function if function < abi::FIRST_FUNCTION => Err(refused("which watches memory in part only")),
        function => Ok(function as *const c_void),
    };
    let (begin, end) = (slot(abi::HEAP_REGISTER)?, slot(abi::HEAP_UNREGISTER)?);
    let (enter, leave) = (slot(abi::REGIONS_REGISTER)?, slot(abi::REGIONS_UNREGISTER)?);
    // SAFETY: the tool put into each slot a function of the type that NVTX says.
    let tool = unsafe {
        Tool {
            domain: AtomicPtr::new(domain()),
            heap_register: std::mem::transmute::<*const c_void, abi::HeapRegister>(begin),
            heap_unregister: std::mem::transmute::<*const c_void, abi::HeapUnregister>(end),
            regions_register: std::mem::transmute::<*const c_void, abi::RegisterRegions>(enter),
            regions_unregister: std::mem::transmute::<*const c_void, abi::UnregisterRegions>(leave),
        }
    };
    Ok(Some(tool))
}

/// The name under which a tool sees what weir tells it.
fn domain() -> *mut c_void {
    let create = CORE[abi::MODULE_CORE2][abi::DOMAIN_CREATE].load(Relaxed);
    if create.is_null() {
        return null_mut();
    }
    // SAFETY: the tool put a function of this type into the slot.
    let create = unsafe { std::mem::transmute::<*mut c_void, abi::DomainCreate>(create) };
    // SAFETY: a C string.
    unsafe { create(c"weir".as_ptr()) }
}

// What is shown to the tool.

/// Functions of the memory extension.
static MEM: [AtomicUsize; abi::MEM_SLOTS] = [const { AtomicUsize::new(0) }; abi::MEM_SLOTS];
/// Functions of the core, by module.
static CORE: [[AtomicPtr<c_void>; LONGEST]; abi::MODULE_SIZES.len()] =
    [const { [const { AtomicPtr::new(null_mut()) }; LONGEST] }; abi::MODULE_SIZES.len()];
/// Addresses of those.
static PLACES: [Places; abi::MODULE_SIZES.len()] = places();

struct Places([*const AtomicPtr<c_void>; LONGEST + 1]);

// SAFETY: addresses of statics, which are atomic.
unsafe impl Sync for Places {}

const fn places() -> [Places; abi::MODULE_SIZES.len()] {
    let mut all = [const { Places([null(); LONGEST + 1]) }; abi::MODULE_SIZES.len()];
    let mut module = 1;
    while module < all.len() {
        let mut function = 1;
        while function < abi::MODULE_SIZES[module] {
            all[module].0[function] = &raw const CORE[module][function];
            function += 1;
        }
        module += 1;
    }
    all
}

extern "C" fn tables(id: u32) -> *const c_void {
    static CALLBACKS: CallbackTable = CallbackTable {
        struct_size: size_of::<CallbackTable>(),
        get_module,
    };
    static VERSION: VersionTable = VersionTable {
        struct_size: size_of::<VersionTable>(),
        version: abi::VERSION as u32,
        reserved: 0,
        set_tool_version,
    };
    match id {
        abi::TABLE_CALLBACKS => (&raw const CALLBACKS).cast(),
        abi::TABLE_VERSION => (&raw const VERSION).cast(),
        _ => null(),
    }
}

extern "C" fn get_module(module: c_int, table: *mut *const *const c_void, size: *mut c_uint) -> c_int {
    let known = usize::try_from(module).ok().filter(|&module| module > 0);
    let Some((places, &functions)) =
        known.and_then(|module| PLACES.get(module).zip(abi::MODULE_SIZES.get(module)))
    else {
        return 0;
    };
    // SAFETY: the tool passes places for the answers, or null for those it does not want.
    unsafe {
        if !size.is_null() {
            *size = functions as c_uint;
        }
        if !table.is_null() {
            *table = places.0.as_ptr().cast();
        }
    }
    1
}

extern "C" fn set_tool_version(_version: u32) {}
