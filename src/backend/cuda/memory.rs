//! Pages and mappings by the driver's virtual memory management.
//!
//! None of its calls needs a current context, none waits for running work, and none is refused during a capture. What
//! it gave stays when the context is lost, and can be given back. (Measured on an H100 and an H200, driver 580.)
//!
//! Invariants: `mappings` holds every mapping by its address, and each has exactly the access that `access` says;
//! `context.mapped` = Σ mappings of the backends of a device. A call that failed has changed nothing.
//!
//! Locks: none; the backend keeps this under its own, across the driver's calls, so that no mapping is made while the
//! access list changes.

use super::context::Identity;
use super::driver::{self, insist};
use super::later::{AccessDesc, AllocationProp, LOCATION_DEVICE, LOCATION_HOST_NUMA, Location};
use super::symbols::{Code, Mapping};
use crate::backend::{Access, BackendError};
use cuda_driver_sys::CUmemAccess_flags;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// The mappings of a backend, and who may use them.
#[derive(Debug)]
pub(super) struct Memory {
    calls: Mapping,
    context: Arc<Identity>,
    prop: AllocationProp,
    /// Bytes by address.
    mappings: BTreeMap<u64, u64>,
    /// The pool's own device first; no device twice, none without access.
    access: Vec<(c_int, Access)>,
}

// SAFETY: the only pointer in it, in `prop`, is NULL.
unsafe impl Send for Memory {}

fn descriptor(device: c_int, access: Access) -> AccessDesc {
    let location = Location {
        kind: LOCATION_DEVICE,
        id: device,
    };
    described(location, access)
}

fn described(location: Location, access: Access) -> AccessDesc {
    let flags = match access {
        Access::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        Access::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    AccessDesc {
        location,
        flags: flags as c_uint,
    }
}

impl Memory {
    pub(super) fn new(calls: Mapping, context: Arc<Identity>, prop: AllocationProp) -> Memory {
        let own = (context.ordinal, Access::ReadWrite);
        Memory {
            calls,
            context,
            prop,
            mappings: BTreeMap::new(),
            access: vec![own],
        }
    }

    /// The host's own access, if the memory is the host's: without it no processor could touch it.
    fn of_host(&self) -> Option<AccessDesc> {
        let home = self.prop.location;
        (home.kind == LOCATION_HOST_NUMA).then(|| described(home, Access::ReadWrite))
    }

    /// Creates and maps a page, and undoes it: can this process, on this system, at all? A container may forbid it.
    pub(super) fn try_out(&mut self, bytes: u64) -> Result<(), BackendError> {
        let at = self.reserve(bytes, bytes)?;
        let tried = self.create(bytes).and_then(|page| {
            let mapped = self.map(at, page, bytes);
            let unmapped = mapped.and_then(|()| self.unmap(at, bytes));
            let released = self.release(page, bytes);
            unmapped.and(released)
        });
        let given_back = self.unreserve(at, bytes);
        tried.and(given_back)
    }

    /// The granularity that the driver asks for, by a `CUmemAllocationGranularity_flags`.
    pub(super) fn granularity(&self, option: u32) -> Result<u64, BackendError> {
        let mut bytes = 0usize;
        // SAFETY: the variables are ours.
        let code = unsafe { (self.calls.granularity)(&raw mut bytes, &raw const self.prop, option) };
        self.context.check("cuMemGetAllocationGranularity", code)?;
        Ok(bytes as u64)
    }

    /// The call's name with its size, which is what one wants to know when it fails.
    fn check(&self, call: &str, bytes: u64, code: Code) -> Result<(), BackendError> {
        match code {
            driver::SUCCESS => Ok(()),
            code => self.context.check(&format!("{call} of {bytes} B"), code),
        }
    }

    pub(super) fn reserve(&self, bytes: u64, alignment: u64) -> Result<u64, BackendError> {
        let mut at = 0;
        // SAFETY: the variable is ours.
        let code = unsafe { (self.calls.reserve)(&raw mut at, bytes as usize, alignment as usize, 0, 0) };
        self.check("cuMemAddressReserve", bytes, code)?;
        Ok(at)
    }

    pub(super) fn unreserve(&self, at: u64, bytes: u64) -> Result<(), BackendError> {
        // SAFETY: a range that `reserve` gave, with nothing mapped in it, as the contract says.
        let code = insist(|| unsafe { (self.calls.unreserve)(at, bytes as usize) });
        self.check("cuMemAddressFree", bytes, code)
    }

    pub(super) fn create(&self, bytes: u64) -> Result<u64, BackendError> {
        let mut page = 0;
        // SAFETY: the variables are ours.
        let code = unsafe { (self.calls.create)(&raw mut page, bytes as usize, &raw const self.prop, 0) };
        self.check("cuMemCreate", bytes, code)?;
        Ok(page)
    }

    pub(super) fn release(&self, page: u64, bytes: u64) -> Result<(), BackendError> {
        // SAFETY: a page that `create` gave and nobody uses, as the contract says.
        let code = insist(|| unsafe { (self.calls.release)(page) });
        self.check("cuMemRelease", bytes, code)
    }

    pub(super) fn map(&mut self, at: u64, page: u64, bytes: u64) -> Result<(), BackendError> {
        // SAFETY: reserved addresses with nothing mapped there, and a whole page, as the contract says.
        let code = unsafe { (self.calls.map)(at, bytes as usize, 0, page, 0) };
        self.check("cuMemMap", bytes, code)?;
        // The host first: with its device before it a driver (580.159.04, 2026-11-22) gives access to the host's memory, but
        // then refuses to fill what lies in two pages (CUDA_ERROR_INVALID_VALUE), in a graph when that is instantiated.
        let devices = self
            .access
            .iter()
            .map(|&(device, access)| descriptor(device, access));
        let list: Vec<_> = self.of_host().into_iter().chain(devices).collect();
        // SAFETY: what was mapped above, and an array of ours.
        let code = unsafe { (self.calls.set_access)(at, bytes as usize, list.as_ptr(), list.len()) };
        if let Err(error) = self.check("cuMemSetAccess", bytes, code) {
            if driver::usable() {
                // SAFETY: what was mapped above; nobody has heard of it.
                insist(|| unsafe { (self.calls.unmap)(at, bytes as usize) });
            }
            return Err(error);
        }
        self.mappings.insert(at, bytes);
        Ok(())
    }

    /// Unmaps whole mappings. Returns how many.
    pub(super) fn unmap(&mut self, at: u64, bytes: u64) -> Result<u64, BackendError> {
        // SAFETY: whole mappings, which no work uses, as the contract says.
        let code = insist(|| unsafe { (self.calls.unmap)(at, bytes as usize) });
        self.check("cuMemUnmap", bytes, code)?;
        let gone: Vec<u64> = self.mappings.range(at..at + bytes).map(|(&at, _)| at).collect();
        for at in &gone {
            self.mappings.remove(at);
        }
        Ok(gone.len() as u64)
    }

    /// What a device may do.
    pub(super) fn access(&self, device: c_int) -> Access {
        let known = self.access.iter().find(|(known, _)| *known == device);
        known.map_or(Access::None, |&(_, access)| access)
    }

    /// Devices other than the pool's own that may do something.
    pub(super) fn others(&self) -> Vec<c_int> {
        self.access[1..].iter().map(|&(device, _)| device).collect()
    }

    /// Sets what another device may do with all memory mapped now and later. All or nothing.
    pub(super) fn set_access(&mut self, device: c_int, access: Access) -> Result<(), BackendError> {
        let before = self.access(device);
        if before == access {
            return Ok(());
        }
        for (done, (&at, &bytes)) in self.mappings.iter().enumerate() {
            if let Err(error) = self.apply(at, bytes, device, access) {
                for (&at, &bytes) in self.mappings.iter().take(done).take_while(|_| driver::usable()) {
                    let put_back = || self.apply(at, bytes, device, before);
                    let _ = put_back().or_else(|_| put_back());
                }
                return Err(error);
            }
        }
        self.access.retain(|(known, _)| *known != device);
        if access != Access::None {
            self.access.push((device, access));
        }
        Ok(())
    }

    fn apply(&self, at: u64, bytes: u64, device: c_int, access: Access) -> Result<(), BackendError> {
        let one = descriptor(device, access);
        // SAFETY: one of the backend's mappings, and a variable of ours.
        let code = unsafe { (self.calls.set_access)(at, bytes as usize, &raw const one, 1) };
        self.check("cuMemSetAccess", bytes, code)
    }
}
