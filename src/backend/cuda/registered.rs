//! Page-locked memory of the host for drivers that cannot map it: plain memory that is registered with the driver. It
//! comes with its address, and the driver may wait for running work when it is to let go of it.
//!
//! Most of the time goes into touching the memory for the first time, so several threads do that, with huge pages where
//! the system gives them: on an H100's host (driver 580.159.04, 2026-11-21) a GiB took one thread 178 ms, eight 48 ms, and
//! registering it 25 ms, where `cuMemHostAlloc` took 527 ms.
//!
//! Locks: none.

use super::context::{Context, relax};
use super::driver;
use super::registrations::FLAGS;
use crate::backend::BackendError;
use std::ffi::{c_int, c_void};
use std::io::Error;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::ptr::{self, NonNull};
use std::thread::available_parallelism;

/// The size of a huge page; segments begin at a multiple of it.
const HUGE: usize = 2 << 20;
/// Each thread that touches memory has so much to do at least.
const SHARE: usize = 8 << 20;
const THREADS: usize = 8;

/// Registers `bytes` of new memory, on a NUMA node if one is named.
pub(super) fn create(own: &Context, bytes: u64, node: Option<c_int>) -> Result<u64, BackendError> {
    let memory = Memory::new(bytes as usize, node)?;
    memory.touch();
    let (_current, _mode) = (own.enter()?, relax(own.driver)?);
    let at = memory.at.as_ptr().cast();
    // SAFETY: memory of ours, which stays until it is unregistered.
    let code = unsafe { (own.driver.symbols.mem_host_register)(at, memory.bytes, FLAGS) };
    match code {
        driver::SUCCESS => Ok(ManuallyDrop::new(memory).at.as_ptr().expose_provenance() as u64),
        code => Err(own.note(own.driver.error(&format!("cuMemHostRegister of {bytes} B"), code))),
    }
}

/// Unregisters and frees what `create` gave. Pre: no queued work can touch it.
pub(super) fn release(own: &Context, at: u64, bytes: u64) -> Result<(), BackendError> {
    let at: *mut c_void = ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: registered by `create`, and nobody uses it, as the contract says.
    let unregister = || unsafe { (own.driver.symbols.mem_host_unregister)(at) };
    if !own.is_gone()
        && let Err(error) = own.give_back("cuMemHostUnregister", unregister)
        && own.alive().is_ok()
    {
        return Err(error); // the driver has it still
    }
    // SAFETY: mapped by `create`, no longer registered, and nobody uses it.
    unsafe { libc::munmap(at, bytes as usize) };
    Ok(())
}

/// Memory that is not registered yet; freed when it is dropped.
struct Memory {
    at: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize, node: Option<c_int>) -> Result<Memory, BackendError> {
        let failed = |call: &str| {
            let error = Error::last_os_error();
            BackendError::OutOfMemory(format!("{call} of {bytes} B of host memory: {error}"))
        };
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping, where the system likes.
        let raw = unsafe { libc::mmap(ptr::null_mut(), bytes + HUGE, access, kind, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(failed("mmap"));
        }
        let before = raw.addr().next_multiple_of(HUGE) - raw.addr();
        // SAFETY: within what was mapped above, which is longer by the size of a huge page.
        let (at, end) = unsafe { (raw.byte_add(before), raw.byte_add(before + bytes)) };
        // SAFETY: the ends of that mapping, which nobody has heard of.
        unsafe {
            if before > 0 {
                libc::munmap(raw, before);
            }
            libc::munmap(end, HUGE - before);
        }
        let Some(start) = NonNull::new(at.cast()) else {
            return Err(failed("mmap"));
        };
        let memory = Memory { at: start, bytes };
        // SAFETY: our own memory; where the system has no huge pages nothing changes.
        unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
        if let Some(node) = node {
            memory.bind(node)?;
        }
        Ok(memory)
    }

    /// Has the memory come from a NUMA node.
    fn bind(&self, node: c_int) -> Result<(), BackendError> {
        const MPOL_BIND: c_int = 2;
        const BITS: usize = usize::BITS as usize;
        let mut nodes = [0usize; 16];
        let place = usize::try_from(node)
            .ok()
            .and_then(|node| Some((nodes.get_mut(node / BITS)?, node % BITS)));
        let Some((word, bit)) = place else {
            return Err(BackendError::NotSupported(format!(
                "there is no NUMA node {node}"
            )));
        };
        *word = 1 << bit;
        // SAFETY: our own memory, and an array of as many bits as are said (the kernel takes one for the end).
        let code = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.at.as_ptr(),
                self.bytes,
                MPOL_BIND,
                nodes.as_ptr(),
                nodes.len() * BITS,
                0,
            )
        };
        match code {
            0 => Ok(()),
            _ => Err(BackendError::NotSupported(format!(
                "memory of NUMA node {node} (mbind): {}; pass WEIR_NUMA_NEAREST to leave the choice to the system",
                Error::last_os_error()
            ))),
        }
    }

    /// Has the system provide the memory now, by several threads if it is much.
    fn touch(&self) {
        let processors = available_parallelism().map_or(1, NonZero::get);
        let threads = (self.bytes / SHARE).clamp(1, THREADS.min(processors));
        let share = self.bytes.div_ceil(threads).next_multiple_of(HUGE);
        let (start, end) = (self.at.as_ptr().expose_provenance(), self.bytes);
        let begin = |first: usize| {
            let bytes = share.min(end - first);
            // what no thread is had for is touched when it is registered
            std::thread::Builder::new()
                .spawn(move || touch(start + first, bytes))
                .ok()
        };
        let helpers: Vec<_> = (share..end).step_by(share).map_while(begin).collect();
        touch(start, share.min(end));
        helpers.into_iter().for_each(|helper| drop(helper.join()));
    }
}

fn touch(at: usize, bytes: usize) {
    const PAGE: usize = 4096;
    for page in (at..at + bytes).step_by(PAGE) {
        // SAFETY: memory of `Memory`, which waits for this and uses nothing of it meanwhile.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(0) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody else's.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
