//! Tells valgrind which blocks of a host pool are allocated, as it knows them from malloc: a leaked block is
//! reported with the stack that allocated it, and a block is undefined when allocated and off limits when freed.
//!
//! A request is a sequence of instructions that does nothing on a real processor and that valgrind recognises
//! (`valgrind.h`, "VALGRIND_DO_CLIENT_REQUEST"). It is written here so that no C compiler, header or crate is
//! needed.
//!
//! Work that is queued on a host stream may use a block after its stream-ordered free, and after the next
//! allocation of its memory, so blocks of such streams stay accessible and are defined from the start. A block that is live when its pool ends is never announced as freed, which is what makes it a
//! leak; its addresses are then kept from being used again, because valgrind stops at two blocks in one place.
//!
//! Locks: `BLOCKS`, only while valgrind runs; only the registry is asked under it.

use crate::backend::process;
use crate::base::units::Addr;
use crate::lifecycle::registry::POOLS;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const RUNNING_ON_VALGRIND: usize = 0x1001;
const MALLOCLIKE_BLOCK: usize = 0x1301;
const FREELIKE_BLOCK: usize = 0x1302;
/// `VG_USERREQ_TOOL_BASE('M','C') + 2`; tools other than memcheck ignore it.
const MAKE_MEM_DEFINED: usize = 0x4d43_0002;

/// Announced blocks that are live: address to bytes and the pool's handle.
static BLOCKS: Mutex<BTreeMap<u64, (u64, usize)>> = Mutex::new(BTreeMap::new());
/// Has a block been used on a second stream? Its free then does not tell who may still use it.
static SHARED: AtomicBool = AtomicBool::new(false);

#[cfg(target_arch = "x86_64")]
fn request(arguments: [usize; 6]) -> usize {
    let result;
    // SAFETY: four rotations by 128 bits in all leave rdi as it was, and exchanging a register with itself does
    // nothing. Valgrind reads `arguments` and puts its answer, otherwise the 0 put there, into rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") arguments.as_ptr(), inout("rdx") 0usize => result, options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
fn request(arguments: [usize; 6]) -> usize {
    let result;
    // SAFETY: four rotations by 128 bits in all leave x12 as it was, and a register or-ed with itself does not
    // change. Valgrind reads `arguments` and puts its answer, otherwise the 0 put there, into x3.
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3", "ror x12, x12, #13", "ror x12, x12, #51", "ror x12, x12, #61", "orr x10, x10, x10",
            in("x4") arguments.as_ptr(), inout("x3") 0usize => result, options(nostack)
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("weir runs on x86-64 and aarch64");

/// Does this process run under valgrind? One relaxed load once it is known.
#[inline]
pub(super) fn active() -> bool {
    const NO: u8 = 1;
    const YES: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(0);
    match STATE.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        _ => {
            let running = request([RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0]) != 0;
            if running {
                process::disturb();
            }
            STATE.store(if running { YES } else { NO }, Ordering::Relaxed);
            running
        }
    }
}

fn blocks() -> MutexGuard<'static, BTreeMap<u64, (u64, usize)>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block of the pool `handle` was allocated, unless the pool has ended since. `in_flight`: work queued before may still use its
/// memory as that of an earlier block. Call it only while [`active`].
#[inline(never)]
pub(super) fn allocated(handle: usize, at: Addr, bytes: u64, in_flight: bool) {
    let mut blocks = blocks();
    if !POOLS.is_live(handle) {
        return; // `ended` may have been through, which holds the lock
    }
    blocks.insert(at.0, (bytes, handle));
    let defined = in_flight || SHARED.load(Ordering::Relaxed);
    request([
        MALLOCLIKE_BLOCK,
        at.0 as usize,
        bytes as usize,
        0,
        defined.into(),
        0,
    ]);
}

/// A block goes back to its pool; call it while the block is still live there. `in_flight`: queued work may
/// still use it. How long it was when it was announced, if it was.
#[inline(never)]
pub(super) fn freed(at: Addr, in_flight: bool) -> Option<u64> {
    let mut blocks = blocks();
    let (bytes, _) = blocks.remove(&at.0)?;
    if blocks.is_empty() {
        // An empty map may keep a node; no heap memory stays behind while no block is live.
        *blocks = BTreeMap::new();
    }
    drop(blocks);
    request([FREELIKE_BLOCK, at.0 as usize, 0, 0, 0, 0]);
    if in_flight || SHARED.load(Ordering::Relaxed) {
        request([MAKE_MEM_DEFINED, at.0 as usize, bytes as usize, 0, 0, 0]);
    }
    Some(bytes)
}

/// A block is used on a second stream that has work in flight.
pub(super) fn shared() {
    SHARED.store(true, Ordering::Relaxed);
}

/// Pools have ended: keeps the addresses of blocks that were live in them from being used again, and forgets
/// the blocks. `live` tells whether a pool's blocks can still be freed.
pub(super) fn ended(live: impl Fn(usize) -> bool) {
    let mut blocks = blocks();
    blocks.retain(|at, (bytes, handle)| {
        if live(*handle) {
            return true;
        }
        const PAGE: u64 = 4096;
        let first = *at / PAGE * PAGE;
        let length = (*at + (*bytes).max(1)).next_multiple_of(PAGE) - first;
        // SAFETY: NOREPLACE maps nothing where something is mapped, and nobody is given what is mapped here.
        unsafe {
            libc::mmap(
                first as usize as *mut c_void,
                length as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        false
    });
    if blocks.is_empty() {
        *blocks = BTreeMap::new();
    }
}
