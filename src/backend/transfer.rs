//! The host copies memory: past the caches where much is copied, since nobody will look at it there.
//!
//! Addresses are numbers here as everywhere; that there is memory behind them is each function's precondition.
//!
//! Locks: none.

use crate::base::units::Addr;
use std::ptr;

/// Copies that are this long at least go past the caches. On a Xeon beside an H100 (16 cores, 2026-11-21) one thread is
/// slower by a sixth so, and sixteen are faster by a third.
const LONG: usize = 128 << 10;

/// Copies `bytes` from one place to another; the two do not overlap, unless it is one and the same. Pre: the memory is
/// there, and nobody else writes it meanwhile.
pub fn copy(to: Addr, from: Addr, bytes: usize) {
    let (to, from): (*mut u8, *const u8) = (
        ptr::with_exposed_provenance_mut(to.0 as usize),
        ptr::with_exposed_provenance(from.0 as usize),
    );
    if bytes >= LONG {
        // SAFETY: the function's own precondition.
        unsafe { copy_long(to, from, bytes) }
    } else {
        // SAFETY: the function's own precondition; it may be one and the same memory.
        unsafe { ptr::copy(from, to, bytes) }
    }
}

/// # Safety
/// As `copy`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_long(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    // SAFETY: the caller's promise; `lines` whole lines follow the head, the tail is what is left.
    unsafe {
        ptr::copy(from, to, head);
        let (mut to, mut from) = (to.add(head), from.add(head));
        for _ in 0..lines {
            let source: *const __m128i = from.cast();
            let words = [
                _mm_loadu_si128(source),
                _mm_loadu_si128(source.add(1)),
                _mm_loadu_si128(source.add(2)),
                _mm_loadu_si128(source.add(3)),
            ];
            let target: *mut __m128i = to.cast();
            for (place, word) in words.into_iter().enumerate() {
                _mm_stream_si128(target.add(place), word);
            }
            (to, from) = (to.add(LINE), from.add(LINE));
        }
        // before anybody is told that it is there
        _mm_sfence();
        ptr::copy(from, to, bytes - head - lines * LINE);
    }
}

/// # Safety
/// As `copy`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_long(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy(from, to, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_wherever_it_begins_and_ends() {
        const MOST: usize = LONG + 512;
        let from: Vec<u8> = (0..MOST + 64).map(|i| ((i * 31) >> 3) as u8).collect();
        for (begin, other, bytes) in [
            (0, 0, LONG),
            (1, 0, LONG + 1),
            (0, 7, LONG + 63),
            (63, 63, LONG + 65),
            (5, 3, 100),
            (0, 0, 0),
        ] {
            let mut to = vec![0u8; MOST + 64];
            let target = Addr(to.as_mut_ptr().expose_provenance() as u64 + begin as u64);
            let source = Addr(from.as_ptr().expose_provenance() as u64 + other as u64);
            copy(target, source, bytes);
            assert!(
                to[begin..begin + bytes] == from[other..other + bytes],
                "{begin} {other} {bytes}"
            );
            assert!(
                to[..begin]
                    .iter()
                    .chain(&to[begin + bytes..])
                    .all(|&byte| byte == 0)
            );
        }
    }
}
