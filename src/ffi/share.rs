//! Pools, blocks and events for other processes.

use super::args::{self, Out};
use super::guard::{InChild, guard};
use super::pool::{addr, pointer, serve, watched};
use super::status::weir_status;
use super::types::{weir_event, weir_pool};
use super::valgrind;
use crate::base::error::Error;
use crate::base::units::EventHandle;
use crate::lifecycle::share::{self, Bytes};
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};

/// Names a block or an event of one process in another. It can be copied and sent by any means (a pipe, shared memory,
/// MPI, a file); only who has imported the pool can use it. Its bytes are weir's own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weir_ipc_token {
    /// Weir's own.
    pub bytes: [u8; 128],
}

const _: () = assert!(size_of::<weir_ipc_token>() == size_of::<Bytes>());

/// A descriptor that the caller keeps.
///
/// # Safety
/// It is not closed while the result lives.
unsafe fn borrow<'a>(descriptor: c_int, what: &str) -> Result<BorrowedFd<'a>, Error> {
    if descriptor < 0 {
        return Err(Error::InvalidArgument(format!(
            "{what} is {descriptor}, which is no descriptor"
        )));
    }
    // SAFETY: not -1, and the caller promised the rest; one that is not open is an error of the calls made with it.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// # Safety
/// `token` is NULL or can be read.
unsafe fn read(token: *const weir_ipc_token) -> Result<Bytes, Error> {
    if token.is_null() {
        return Err(Error::NullPointer {
            what: "token",
            hint: "pass what the exporting process sent",
        });
    }
    // SAFETY: not NULL, and the caller promised the rest; bytes need no alignment.
    Ok(unsafe { (*token).bytes })
}

/// Makes a pool importable by other processes, and gives a file descriptor that stands for it. Give it to any number of
/// them: with weir_ipc_send_descriptor, with an SCM_RIGHTS message of your own, or by inheritance (it is close-on-exec: clear
/// that for a child that calls exec). The caller owns it and
/// closes it when it has been given to all; importers keep what they have. Whoever has it can read and write every
/// block that is exported by a token, and the pages that these lie in.
///
/// The pool must have been created with `ipc_handle_types` = 1, with mapped device memory or host memory. It stays a pool
/// like any other: it trims, squeezes and moves what no importer has. The first export starts a thread that answers
/// importers; it sleeps otherwise, and ends with the pool. Then importers find the pool gone, but keep the blocks they
/// have: memory lives until the last process has let it go.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_NOT_SUPPORTED for a pool made without ipc_handle_types = 1, or an imported
/// one; WEIR_ERROR_STALE once a process has called shutdown(2) on a descriptor that this function gave, which is so for all of
/// them, or the program has closed descriptors that it did not open, the pool's among them (where these are an importer's alone,
/// what that one has stays lent until the pool ends); WEIR_ERROR_BACKEND if there are no descriptors or threads left;
/// WEIR_ERROR_DEVICE_LOST; the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_export(pool: *mut weir_pool, descriptor: *mut c_int) -> weir_status {
    guard("weir_pool_export", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(descriptor, "descriptor") }?;
        out.set(share::export(args::handle(pool)?)?.into_raw_fd());
        Ok(())
    })
}

/// Makes a pool of what another process exports. `descriptor` is what weir_pool_export gave there; it stays the caller's,
/// who may close it after the call. The pool is of the same device, found by its UUID whatever its ordinal is here, and is
/// the caller's as if created. It holds only blocks that weir_pool_import_pointer brings: every call that allocates
/// fails. Its `reserved_bytes` are the pages that are mapped for such blocks, and no other addresses are taken. It can be
/// imported more than once, also in the process that exports it. Waits for the exporting process's answer, 20 s at most.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for a descriptor that is not a pool's, or is of another
/// version of weir; WEIR_ERROR_STALE if the exporting pool or process has ended, or somebody has called shutdown(2) on the
/// descriptor; WEIR_ERROR_NOT_SUPPORTED for a device that this process cannot see, or when 1024 pools are live;
/// WEIR_ERROR_DRIVER_UNAVAILABLE; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_BACKEND, also if there are no descriptors left;
/// WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_import(descriptor: c_int, pool: *mut *mut weir_pool) -> weir_status {
    guard("weir_pool_import", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(pool, "pool") }?;
        // SAFETY: the caller's, for the call.
        let door = unsafe { borrow(descriptor, "descriptor") }?;
        out.set(args::pool(share::import(door)?));
        Ok(())
    })
}

/// Fills `token` with what another process needs to use a live block of the pool, at any offset of which it then can; the
/// same each time. It is good until the block is freed. The content is in no stream order with what the other process
/// does: synchronize, or have it wait for an event (weir_pool_export_event).
///
/// A block that another process has imported and this one frees keeps its memory: it counts as `pending_bytes`, and
/// serves no other request, until each importer has freed it, or ended. Its token is stale at once.
///
/// Errors: WEIR_ERROR_NULL_POINTER; as weir_pool_export; WEIR_ERROR_UNKNOWN_POINTER, WEIR_ERROR_INTERIOR_POINTER,
/// WEIR_ERROR_DOUBLE_FREE and WEIR_ERROR_WRONG_POOL as weir_pool_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_export_pointer(
    pool: *mut weir_pool,
    ptr: *mut c_void,
    token: *mut weir_ipc_token,
) -> weir_status {
    guard("weir_pool_export_pointer", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(token, "token") }?;
        let bytes = share::export_pointer(args::handle(pool)?, addr(ptr))?;
        out.set(weir_ipc_token { bytes });
        Ok(())
    })
}

/// Maps a block of another process into this one. `pool` is what weir_pool_import gave, `token` what
/// weir_pool_export_pointer filled; `ptr` receives the block's address here, which differs. Only the pages that the
/// block lies in are mapped; each call maps them anew. Readable and writable on the pool's device at once, without order
/// to anything queued; see weir_pool_set_access for other devices.
///
/// The block is the caller's until freed with weir_pool_free (or any of its kind) on this pool, in stream order: once the
/// work queued on that stream by then is complete, and a later call of the pool has seen it (weir_pool_trim will do, a
/// synchronize by weir's function, or weir_pool_free_synced at once), it is unmapped, and the exporter may reuse its
/// memory if it has freed it, too. Destroying the pool waits for all work and does so for every block. Waits for the
/// exporting process's answer, 20 s at most.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for bytes that are no token, or of another pool than
/// the imported one; WEIR_ERROR_STALE if the block was freed, or the exporting pool or process has ended;
/// WEIR_ERROR_NOT_SUPPORTED for a pool that is not imported; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; the pool errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_import_pointer(
    pool: *mut weir_pool,
    token: *const weir_ipc_token,
    ptr: *mut *mut c_void,
) -> weir_status {
    guard("weir_pool_import_pointer", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(ptr, "ptr") }?;
        // SAFETY: NULL or the caller's token.
        let token = unsafe { read(token) }?;
        let handle = args::handle(pool)?;
        serve(handle, |pool| {
            let (at, bytes) = share::import_pointer(pool, &token)?;
            if watched(pool) {
                valgrind::allocated(handle, at, bytes, true);
            }
            out.set(pointer(at));
            Ok(())
        })
    })
}

/// Fills `token` with what another process needs to use an event of this one. For a device pool it is a CUevent or
/// cudaEvent_t that was created for this: with CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING. For a host pool it is any
/// host event; what was recorded before this call is not seen by others. The event stays the caller's; the token is good
/// until it is destroyed.
///
/// Errors: WEIR_ERROR_NULL_POINTER; as weir_pool_export; WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_BACKEND for an event that
/// was not created for this; WEIR_ERROR_DEVICE_LOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_export_event(
    pool: *mut weir_pool,
    event: weir_event,
    token: *mut weir_ipc_token,
) -> weir_status {
    guard("weir_pool_export_event", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(token, "token") }?;
        let bytes = share::export_event(args::handle(pool)?, EventHandle(event.addr()))?;
        out.set(weir_ipc_token { bytes });
        Ok(())
    })
}

/// Opens an event of another process. `pool` is what weir_pool_import gave, `token` what weir_pool_export_event filled.
/// One process records it, any can wait for it and query it: for both directions use two. A record in one process is seen
/// by calls in another that come after it, so tell the other process that it was made. `event` receives one that is the
/// caller's: a CUevent, ended by cuEventDestroy, or a host event, ended by weir_host_event_destroy. Waits for the exporting
/// process's answer, 20 s at most.
///
/// A host event is complete when all that was recorded with it is, and once the process that recorded it has ended; 256
/// records may be in flight. That another process records it as well is WEIR_ERROR_BACKEND. The driver does not see that.
///
/// Errors: as weir_pool_import_pointer, with WEIR_ERROR_STALE for a host event that was destroyed; a CUevent that was is the
/// driver's to refuse, which is WEIR_ERROR_BACKEND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_import_event(
    pool: *mut weir_pool,
    token: *const weir_ipc_token,
    event: *mut weir_event,
) -> weir_status {
    guard("weir_pool_import_event", InChild::Refuse, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(event, "event") }?;
        // SAFETY: NULL or the caller's token.
        let token = unsafe { read(token) }?;
        serve(args::handle(pool)?, |pool| {
            let event = share::import_event(pool, &token)?;
            out.set(std::ptr::with_exposed_provenance_mut(event.0));
            Ok(())
        })
    })
}

/// Sends a file descriptor to another process through a connected Unix socket of the program's, of any type. Both stay the
/// caller's. Waits until there is room in the socket. The other process calls weir_ipc_receive_descriptor, or takes the
/// SCM_RIGHTS of a message with one byte.
///
/// Works in a forked child, too.
///
/// Errors: WEIR_ERROR_INVALID_ARGUMENT for a negative number; WEIR_ERROR_BACKEND with the system's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ipc_send_descriptor(socket: c_int, descriptor: c_int) -> weir_status {
    guard("weir_ipc_send_descriptor", InChild::Serve, || {
        // SAFETY: the caller's, for the call.
        let (socket, file) = unsafe { (borrow(socket, "socket")?, borrow(descriptor, "descriptor")?) };
        share::send_descriptor(socket, file)
    })
}

/// Receives a file descriptor that weir_ipc_send_descriptor sent; waits for it. The caller owns and closes it. It closes
/// on exec. Works in a forked child, too.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for a negative number; WEIR_ERROR_STALE if the other end
/// was closed or sent something else; WEIR_ERROR_BACKEND with the system's error, and if this process can have no more
/// descriptors: then the one that was sent may be lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ipc_receive_descriptor(socket: c_int, descriptor: *mut c_int) -> weir_status {
    guard("weir_ipc_receive_descriptor", InChild::Serve, || {
        // SAFETY: NULL or the caller's variable.
        let out = unsafe { Out::new(descriptor, "descriptor") }?;
        // SAFETY: the caller's, for the call.
        let socket = unsafe { borrow(socket, "socket") }?;
        out.set(share::receive_descriptor(socket)?.into_raw_fd());
        Ok(())
    })
}
