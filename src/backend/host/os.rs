//! The system calls behind the host backend, each with its error turned into a [`BackendError`]. Nothing
//! here keeps state; who may call what, and when, is `memory`'s business.

use crate::backend::BackendError;
use std::ffi::CStr;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicU32;

pub(super) fn failed(call: &str, error: Error) -> BackendError {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC | libc::EFBIG | libc::EMFILE | libc::ENFILE) => {
            BackendError::OutOfMemory(format!("{call}: {error}"))
        }
        _ => BackendError::Other(format!("{call}: {error}")),
    }
}

fn last(call: impl FnOnce() -> String) -> BackendError {
    let error = Error::last_os_error();
    failed(&call(), error)
}

/// A file that exists in memory only.
pub(super) fn memory_file() -> Result<File, BackendError> {
    file_in_memory(c"weir", 0)
}

/// The same, with a length that can be sealed.
pub(super) fn sealable_file() -> Result<File, BackendError> {
    file_in_memory(c"weir-shared", libc::MFD_ALLOW_SEALING)
}

fn file_in_memory(name: &CStr, flags: libc::c_uint) -> Result<File, BackendError> {
    // SAFETY: the name is a C string; no other precondition.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags | libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(last(|| "memfd_create".into()));
    }
    // SAFETY: `fd` was opened above and is owned by nothing else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Its length is for good.
pub(super) fn seal(file: &File) -> Result<(), BackendError> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
        return Err(last(|| "fcntl sealing a page's file".into()));
    }
    Ok(())
}

/// Is its length for good?
pub(super) fn is_sealed(file: &File) -> bool {
    // SAFETY: the descriptor is open; what is no memory file has no seals, which is an error.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Makes the file at least `bytes` long, at no cost in memory. Refused before the kernel would answer a
/// file beyond `ulimit -f` with a signal.
pub(super) fn grow(file: &File, bytes: u64) -> Result<(), BackendError> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0 && bytes > limit.rlim_cur {
        let most = limit.rlim_cur;
        return Err(BackendError::OutOfMemory(format!(
            "the memory file would grow to {bytes} B, but this process may write files of {most} B at most (ulimit -f)"
        )));
    }
    file.set_len(bytes)
        .map_err(|error| failed(&format!("ftruncate to {bytes} B"), error))
}

/// Gives the memory of a part of the file back; its contents become zero.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) -> Result<(), BackendError> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open; the call touches the file alone.
    let code = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) };
    if code != 0 {
        return Err(last(|| {
            format!("fallocate punching {bytes} B at offset {offset}")
        }));
    }
    Ok(())
}

/// Addresses without memory. Valgrind, which has room for less than 64 GiB in one piece and 128 GiB in all,
/// says EINVAL to what does not fit; the arguments are valid, so that too means out of addresses.
pub(super) fn reserve(bytes: u64) -> Result<u64, BackendError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing uses.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        let error = Error::last_os_error();
        return Err(BackendError::OutOfMemory(format!(
            "mmap reserving {bytes} B of addresses: {error}"
        )));
    }
    Ok(at as u64)
}

/// Gives addresses back, and whatever is mapped there.
///
/// # Safety
/// The range is a whole range from [`reserve`], and nothing will use its addresses again.
pub(super) unsafe fn unreserve(at: u64, bytes: u64) -> Result<(), BackendError> {
    // SAFETY: the caller's promise.
    if unsafe { libc::munmap(at as *mut libc::c_void, bytes as usize) } != 0 {
        return Err(last(|| format!("munmap of {bytes} B at {at:#x}")));
    }
    Ok(())
}

/// Maps a part of the file.
///
/// # Safety
/// The addresses lie in a range from [`reserve`] and hold nothing that is in use.
pub(super) unsafe fn map(at: u64, bytes: u64, file: &File, offset: u64) -> Result<(), BackendError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let place = at as *mut libc::c_void;
    // SAFETY: MAP_FIXED replaces only reserved addresses: the caller's promise.
    let got = unsafe {
        libc::mmap(
            place,
            bytes as usize,
            protection,
            flags,
            file.as_raw_fd(),
            offset as i64,
        )
    };
    if got == libc::MAP_FAILED {
        return Err(last(|| format!("mmap of {bytes} B at {at:#x}")));
    }
    Ok(())
}

/// Puts addresses back to what [`reserve`] gave.
///
/// # Safety
/// The addresses lie in a range from [`reserve`], and nothing in them is in use.
pub(super) unsafe fn unmap(at: u64, bytes: u64) -> Result<(), BackendError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let place = at as *mut libc::c_void;
    // SAFETY: MAP_FIXED replaces only reserved addresses: the caller's promise.
    let got = unsafe { libc::mmap(place, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(last(|| format!("mmap unmapping {bytes} B at {at:#x}")));
    }
    Ok(())
}

/// Maps all of a file, of `bytes`, wherever there is room.
pub(super) fn map_anywhere(bytes: u64, file: &File) -> Result<u64, BackendError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing uses.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes as usize,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(last(|| format!("mmap of {bytes} B")));
    }
    Ok(at as u64)
}

fn whole_file() -> libc::flock {
    // SAFETY: all zeros is a valid value: the whole file, from its beginning.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock
}

/// Takes the lock on a file, until its last descriptor is closed. False: another has it.
pub(super) fn lock_file(file: &File) -> bool {
    let lock = whole_file();
    // SAFETY: the descriptor is open, and the variable ours.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// Does somebody else have the lock on a file?
pub(super) fn is_locked(file: &File) -> bool {
    let mut lock = whole_file();
    // SAFETY: the descriptor is open, and the variable ours.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    code != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}

/// By which path a file is opened once more, so that a lock through one of the two is not the other's.
pub(super) fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens a file by its path.
pub(super) fn open(path: &str) -> Result<File, BackendError> {
    let own = File::options().read(true).write(true).open(path);
    own.map_err(|error| failed("open of an event's file", error))
}

/// Closes a descriptor in a forked child.
///
/// It is this library's, and nobody uses it there.
pub(super) fn close(descriptor: RawFd) {
    // SAFETY: no memory is touched. It cannot be told to anybody how it went.
    unsafe { libc::close(descriptor) };
}

/// What is called around each `fork`.
pub(super) struct AtFork {
    /// Before it.
    pub(super) before: extern "C" fn(),
    /// After it, in the parent, also if there is no child.
    pub(super) in_parent: extern "C" fn(),
    /// After it, in the child.
    pub(super) in_child: extern "C" fn(),
}

/// Has these called from now on.
pub(super) fn at_fork(calls: &AtFork) -> Result<(), BackendError> {
    // SAFETY: functions that stay loaded with the library.
    match unsafe { libc::pthread_atfork(Some(calls.before), Some(calls.in_parent), Some(calls.in_child)) } {
        0 => Ok(()),
        code => Err(failed("pthread_atfork", Error::from_raw_os_error(code))),
    }
}

/// Sleeps while a word that processes share has this value, until it is woken, for a while at most.
pub(super) fn sleep_on(word: &AtomicU32, value: u32, ms: i64) {
    let time = libc::timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    };
    // SAFETY: a word and a variable that live during the call. However it ends, the caller looks again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const time,
        )
    };
}

/// Wakes all that sleep on a word.
pub(super) fn wake_all(word: &AtomicU32) {
    // SAFETY: a word that lives during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
