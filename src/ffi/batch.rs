//! Many blocks at once.

use super::args::{self, check_array, slice, widen};
use super::blocks::not_asked;
use super::guard::{InChild, guard};
use super::pool::{freeing, give_back, pointer, serve, watched};
use super::status::weir_status;
use super::types::{weir_pool, weir_stream};
use super::valgrind;
use crate::backend::process;
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::lifecycle::{order, threads};
use crate::pool::ThreadCache;
use std::ffi::c_void;

/// Allocates `count` blocks of `sizes[i]` bytes into `ptrs[i]`, each as weir_pool_alloc would: all of them, or none
/// and `ptrs` unchanged. The arrays may be NULL if `count` is 0.
///
/// Errors: those of weir_pool_alloc; WEIR_ERROR_INVALID_ARGUMENT for an impossible count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_alloc_batch(
    pool: *mut weir_pool,
    sizes: *const usize,
    count: usize,
    stream: weir_stream,
    ptrs: *mut *mut c_void,
) -> weir_status {
    guard("weir_pool_alloc_batch", InChild::Refuse, || {
        let (handle, on) = (args::handle(pool)?, super::pool::stream(stream));
        // SAFETY: NULL, or an array of the caller's with `count` elements.
        let sizes = unsafe { slice(sizes, count, "sizes") }?;
        check_array(ptrs.cast_const(), count, "ptrs")?;
        let blocks = alloc_all(handle, widen(sizes), on)?;
        for (n, &at) in blocks.iter().enumerate() {
            // SAFETY: the array was checked, and has a place for each block.
            unsafe { ptrs.add(n).write(pointer(at)) };
        }
        Ok(())
    })
}

fn alloc_all(handle: usize, sizes: &[u64], on: StreamHandle) -> Result<Vec<Addr>, Error> {
    let mut blocks = Vec::new();
    let room = blocks.try_reserve_exact(sizes.len());
    room.map_err(|error| Error::Backend(format!("no room to list {} blocks: {error}", sizes.len())))?;
    blocks.resize(sizes.len(), Addr::default());
    let take = |cache: &ThreadCache| cache.alloc_batch(sizes, &mut blocks).then_some(());
    if !process::disturbed() && threads::cached(handle, on, take).is_some() {
        return Ok(blocks);
    }
    serve(handle, |pool| {
        let take = |cache: &ThreadCache| cache.alloc_batch(sizes, &mut blocks).then_some(());
        if not_asked(handle, on, take).is_none() {
            threads::beside(pool, handle, on, None, |own| {
                pool.alloc_batch_beside(own, sizes, on, &mut blocks)
            })?;
        }
        if watched(pool) {
            let in_flight = order::is_host_stream(on);
            blocks
                .iter()
                .zip(sizes)
                .for_each(|(at, size)| valgrind::allocated(handle, *at, *size, in_flight));
        }
        Ok(())
    })?;
    Ok(blocks)
}

/// Frees `count` blocks, each as weir_pool_free would: all of them, or none. NULL entries are fine, and so is a NULL
/// array if `count` is 0.
///
/// Errors: those of weir_pool_free; WEIR_ERROR_INVALID_ARGUMENT for an impossible count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_free_batch(
    pool: *mut weir_pool,
    ptrs: *const *mut c_void,
    count: usize,
    stream: weir_stream,
) -> weir_status {
    guard("weir_pool_free_batch", InChild::Ignore, || {
        let (handle, on) = (args::handle(pool)?, super::pool::stream(stream));
        // SAFETY: NULL, or an array of the caller's with `count` elements.
        let ptrs = unsafe { slice(ptrs, count, "ptrs") }?;
        let keep = |cache: &ThreadCache| cache.free_batch(addrs(ptrs)).then_some(());
        if !process::disturbed() && threads::cached(handle, on, keep).is_some() {
            return Ok(());
        }
        give_back(handle, ptrs, |pool| {
            freeing(
                pool,
                handle,
                addrs(ptrs),
                order::is_host_stream(on),
                || match not_asked(handle, on, keep) {
                    Some(()) => Ok(()),
                    None => threads::beside_in_free(pool, handle, on, None, |own| {
                        pool.free_batch_beside(own, addrs(ptrs), on)
                    }),
                },
            )
        })
    })
}

/// Pointers as the pool takes them: NULL is 0.
fn addrs(ptrs: &[*mut c_void]) -> &[Addr] {
    const {
        assert!(
            size_of::<*mut c_void>() == size_of::<Addr>() && align_of::<*mut c_void>() == align_of::<Addr>()
        )
    };
    // SAFETY: on the 64-bit targets of this library both are 64 bits, as asserted; their memory the pool never reaches by them.
    unsafe { std::slice::from_raw_parts(ptrs.as_ptr().cast(), ptrs.len()) }
}
