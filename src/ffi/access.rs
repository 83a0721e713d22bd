//! What GPUs may do with a pool's memory.

use super::args::{self, Out};
use super::guard::{InChild, guard};
use super::pool::serve;
use super::status::weir_status;
use super::types::{self, weir_pool};
use std::ffi::c_int;

/// Sets what another GPU may do with the pool's memory, now and later: a weir_access. It is for all of the pool's memory
/// or, if the call fails, for none. Work of that GPU that uses the memory must be complete before access is taken from
/// it. The pool's own GPU always reads and writes, which cannot be changed.
///
/// Errors: the pool errors; WEIR_ERROR_INVALID_ARGUMENT for an access that does not exist;
/// WEIR_ERROR_NOT_SUPPORTED for a host pool, for WEIR_DEVICE_MEMORY_PLAIN (but every GPU reads and writes such pinned
/// memory), for a GPU that does not exist or cannot
/// reach the pool's, and for the pool's own; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_set_access(
    pool: *mut weir_pool,
    device: c_int,
    access: i32,
) -> weir_status {
    guard("weir_pool_set_access", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        let access = types::access(access)?;
        serve(handle, |pool| pool.set_access(device, access))
    })
}

/// Tells what a GPU may do with the pool's memory: a weir_access.
///
/// Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_NOT_SUPPORTED for a host pool, for a GPU that does not
/// exist, and for GPUs other than the pool's own with WEIR_DEVICE_MEMORY_PLAIN; WEIR_ERROR_UNLOADED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_get_access(
    pool: *mut weir_pool,
    device: c_int,
    access: *mut i32,
) -> weir_status {
    guard("weir_pool_get_access", InChild::Refuse, || {
        let handle = args::handle(pool)?;
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(access, "access") }?;
        out.set(types::access_number(serve(handle, |pool| pool.access(device))?));
        Ok(())
    })
}
