//! Memory of the program's own that it has page-locked for its copies.
//!
//! What somebody else has page-locked already is noted, so that it is given back by the same call, and otherwise left to
//! whoever did it.
//!
//! Invariant: ranges in `RANGES` do not overlap; each has a reference to the context that it was registered in.
//!
//! Locks: `RANGES`, while the driver registers or lets go of memory.

use super::context::{self, Context, lock, relax};
use super::copies::{Known, known};
use super::driver::{self, Driver};
use crate::backend::BackendError;
use crate::base::units::Addr;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`: for every context, and reached by kernels.
pub(super) const FLAGS: c_uint = 1 | 2;

#[derive(Debug)]
struct Range {
    bytes: u64,
    /// None: somebody else has registered it.
    context: Option<Arc<Context>>,
}

static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

fn pointer(at: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at as usize)
}

/// Page-locks memory of the program's. Pre: it is there until it is unregistered.
pub fn register(driver: &'static Driver, at: Addr, bytes: u64) -> Result<(), BackendError> {
    driver::still_usable()?;
    let end =
        at.0.checked_add(bytes)
            .filter(|_| bytes > 0)
            .ok_or_else(|| BackendError::Other(format!("{bytes} B at {at} are no memory")))?;
    let mut ranges = lock(&RANGES);
    if let Some((&known, range)) = ranges.range(..end).next_back()
        && known + range.bytes > at.0
    {
        return Err(BackendError::Other(format!(
            "{bytes} B at {at} overlap with {} B at {known:#x}, which are registered",
            range.bytes
        )));
    }
    let context = match known(at)? {
        Known::Device => {
            return Err(BackendError::NotSupported(format!(
                "{at} is a device's memory, which is nothing to page-lock"
            )));
        }
        Known::Pinned => None,
        Known::Pageable => Some(lock_pages(driver, at.0, bytes)?),
    };
    ranges.insert(at.0, Range { bytes, context });
    Ok(())
}

fn lock_pages(driver: &'static Driver, at: u64, bytes: u64) -> Result<Arc<Context>, BackendError> {
    let context = match context::current(driver)? {
        0 => context::borrow(driver, 0)?,
        now => context::primary(driver, now)?,
    };
    let (_current, _mode) = (context.enter()?, relax(driver)?);
    // SAFETY: the program's memory, which stays as long as it is registered: the precondition of its call.
    let code = unsafe { (driver.symbols.mem_host_register)(pointer(at), bytes as usize, FLAGS) };
    context.check("cuMemHostRegister", code)?;
    Ok(context)
}

/// Ends a registration, after all work of contexts in use. False: nothing was registered there.
pub fn unregister(at: Addr) -> Result<bool, BackendError> {
    driver::still_usable()?;
    let mut ranges = lock(&RANGES);
    let Some(range) = ranges.get(&at.0) else {
        return Ok(false);
    };
    if let Some(context) = &range.context {
        unlock_pages(context, at.0)?;
    }
    let range = ranges.remove(&at.0);
    drop(ranges);
    drop(range);
    Ok(true)
}

fn unlock_pages(context: &Arc<Context>, at: u64) -> Result<(), BackendError> {
    if context.is_gone() {
        return Ok(());
    }
    for user in context::joined() {
        user.drain()?;
    }
    context.drain()?;
    let unregister = || {
        let (_current, _mode) = (context.enter()?, relax(context.driver)?);
        // SAFETY: registered by `lock_pages`, and no work is left that could use it.
        context.check("cuMemHostUnregister", unsafe {
            (context.driver.symbols.mem_host_unregister)(pointer(at))
        })
    };
    match unregister().or_else(|error| {
        if driver::usable() {
            unregister()
        } else {
            Err(error)
        }
    }) {
        Err(BackendError::Lost(_)) => Ok(()),
        result => result,
    }
}

/// Ends all registrations. What the driver refuses to let go of stays registered until the process ends.
pub fn shutdown() {
    if !driver::usable() {
        return;
    }
    let ranges = std::mem::take(&mut *lock(&RANGES));
    for (at, range) in ranges {
        if let Some(context) = &range.context {
            let _ = unlock_pages(context, at);
        }
    }
}
