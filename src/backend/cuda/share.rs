//! Sharing with other processes: handles of pages as file descriptors, events as the driver's own handles, and the number
//! that a device has in every process.
//!
//! Memory that is imported stays as long as some process has it, whatever becomes of the others (CUDA Driver API,
//! "Virtual Memory Management"). An event can be opened elsewhere if it was made with `CU_EVENT_INTERPROCESS`.

use super::context::{Context, relax};
use super::driver::Driver;
use super::later;
use crate::backend::BackendError;
use crate::base::units::EventHandle;
use cuda_driver_sys::{CUdevice, CUdevice_attribute, CUevent, CUipcEventHandle, CUmemAllocationHandleType};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const FILE: c_uint = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as c_uint;

impl Driver {
    /// The number of a device, its UUID.
    pub(super) fn number(&self, device: CUdevice) -> Result<[u64; 2], BackendError> {
        let Some(get) = self.symbols.device_get_uuid else {
            return Err(self.lacks("cuDeviceGetUuid"));
        };
        let mut number = [0u64; 2];
        // SAFETY: 16 bytes of ours, which is what a UUID has.
        let code = unsafe { get(number.as_mut_ptr().cast(), device) };
        self.check("cuDeviceGetUuid", code)?;
        Ok(number)
    }

    /// The ordinal of the device with this number. None: this process cannot see it.
    pub fn device_numbered(&self, number: [u64; 2]) -> Result<Option<c_int>, BackendError> {
        for ordinal in 0..self.devices() {
            if self.number(self.device(ordinal)?)? == number {
                return Ok(Some(ordinal));
            }
        }
        Ok(None)
    }

    fn lacks(&self, call: &str) -> BackendError {
        BackendError::NotSupported(format!("this driver, for CUDA {}, has no {call}", self.version()))
    }
}

/// A descriptor of a page.
pub(super) fn export_page(own: &Context, page: u64) -> Result<OwnedFd, BackendError> {
    let mapping = own.driver.symbols.mapping;
    let calls = mapping.ok_or_else(|| own.driver.lacks("cuMemExportToShareableHandle"))?;
    let _current = own.enter()?;
    let mut file: c_int = -1;
    // SAFETY: the variable is ours, and of the type that this kind of handle has.
    let code = unsafe { (calls.export)((&raw mut file).cast(), page, FILE, 0) };
    own.check("cuMemExportToShareableHandle", code)?;
    // SAFETY: the driver has opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The page of a descriptor.
pub(super) fn import_page(own: &Context, file: &OwnedFd) -> Result<u64, BackendError> {
    let mapping = own.driver.symbols.mapping;
    let calls = mapping.ok_or_else(|| own.driver.lacks("cuMemImportFromShareableHandle"))?;
    let _current = own.enter()?;
    let mut page = 0;
    let given: *mut c_void = ptr::without_provenance_mut(file.as_raw_fd() as usize);
    // SAFETY: the variable is ours; a descriptor is passed as the pointer's value.
    let code = unsafe { (calls.import)(&raw mut page, given, FILE) };
    own.check("cuMemImportFromShareableHandle", code)?;
    Ok(page)
}

/// The driver's handle of a program's event.
pub(super) fn export_event(own: &Context, event: EventHandle) -> Result<[u64; 8], BackendError> {
    let Some(get) = own.driver.symbols.ipc_get_event_handle else {
        return Err(own.driver.lacks("cuIpcGetEventHandle"));
    };
    let _current = own.enter()?;
    let _mode = relax(own.driver)?;
    let handle: CUevent = ptr::with_exposed_provenance_mut(event.0);
    let mut words = [0u64; 8];
    // SAFETY: 64 bytes of ours, which is what a handle has, and the program's event; that it is one is the precondition
    // of its call.
    let code = unsafe { get(words.as_mut_ptr().cast(), handle) };
    own.driver
        .check("cuIpcGetEventHandle (made with CU_EVENT_INTERPROCESS?)", code)?;
    Ok(words)
}

/// The event of a handle.
pub(super) fn import_event(own: &Context, words: [u64; 8]) -> Result<EventHandle, BackendError> {
    let Some(open) = own.driver.symbols.ipc_open_event_handle else {
        return Err(own.driver.lacks("cuIpcOpenEventHandle"));
    };
    let _current = own.enter()?;
    let _mode = relax(own.driver)?;
    let mut event: CUevent = ptr::null_mut();
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    for (place, byte) in handle
        .reserved
        .iter_mut()
        .zip(words.iter().flat_map(|word| word.to_ne_bytes()))
    {
        *place = byte as _;
    }
    // SAFETY: the variable is ours; the handle is a value.
    let code = unsafe { open(&raw mut event, handle) };
    own.driver.check("cuIpcOpenEventHandle", code)?;
    Ok(EventHandle(event.expose_provenance()))
}

/// Can handles of these types, a mask, be exported?
pub(super) fn check_handle_types(context: &Context, types: u32) -> Result<(), BackendError> {
    const POSIX: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as u32;
    const HAS_POSIX: c_int =
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as c_int;
    let known = [
        (POSIX, HAS_POSIX, "file descriptors"),
        (
            later::MEM_HANDLE_TYPE_FABRIC,
            later::HANDLE_TYPE_FABRIC_SUPPORTED,
            "fabric handles",
        ),
    ];
    let mut left = types;
    for (bit, attribute, what) in known {
        if types & bit != 0 && context.driver.attribute(attribute, context.device)? == 0 {
            return Err(BackendError::NotSupported(format!(
                "ipc_handle_types is {types:#x}, but device {} with this driver cannot export {what} ({bit:#x})",
                context.ordinal
            )));
        }
        left &= !bit;
    }
    match left {
        0 => Ok(()),
        left => Err(BackendError::NotSupported(format!(
            "ipc_handle_types is {types:#x}, and {left:#x} of it is nothing that this system can export; pass 1 for file \
             descriptors, 8 for the fabric, or 0"
        ))),
    }
}
