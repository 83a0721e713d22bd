//! Arguments of exported functions: pointers checked for NULL, outputs, arrays.

use super::types::weir_pool;
use crate::base::error::Error;
use std::ffi::c_void;
use std::ptr::NonNull;

/// The number in a pool handle.
pub(super) fn handle(pool: *const weir_pool) -> Result<usize, Error> {
    match pool.addr() {
        0 => Err(Error::NullPointer {
            what: "pool",
            hint: "pass what weir_pool_create or weir_default_pool gave",
        }),
        handle => Ok(handle),
    }
}

/// A pointer of the caller's that is needed.
pub(super) fn not_null(pointer: *mut c_void, what: &'static str, hint: &'static str) -> Result<(), Error> {
    match pointer.is_null() {
        true => Err(Error::NullPointer { what, hint }),
        false => Ok(()),
    }
}

/// The handle of a pool's number.
pub(super) fn pool(handle: usize) -> *mut weir_pool {
    std::ptr::without_provenance_mut(handle)
}

/// Where a result goes.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// `place` is NULL or can be written for as long as the result lives.
    pub(super) unsafe fn new(place: *mut T, what: &'static str) -> Result<Out<T>, Error> {
        match NonNull::new(place) {
            Some(place) => Ok(Out(place)),
            None => Err(Error::NullPointer {
                what,
                hint: "pass the address of a variable for the result",
            }),
        }
    }

    pub(super) fn set(self, value: T) {
        // SAFETY: `new`'s caller promised that the place can be written.
        unsafe { self.0.write(value) }
    }
}

/// The elements of an array of the caller's; NULL is fine when there are none.
///
/// # Safety
/// `first` is NULL or points to `count` elements that live and do not change while the result does.
pub(super) unsafe fn slice<'a, T>(
    first: *const T,
    count: usize,
    what: &'static str,
) -> Result<&'a [T], Error> {
    check_array(first, count, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, short enough, and the caller promised the rest.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// An array must exist unless it is empty, be aligned, and fit the address space.
pub(super) fn check_array<T>(first: *const T, count: usize, what: &'static str) -> Result<(), Error> {
    if count == 0 {
        return Ok(());
    }
    if first.is_null() {
        return Err(Error::NullPointer {
            what,
            hint: "pass an array with as many elements as count says",
        });
    }
    if !first.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Error::InvalidArgument(format!(
            "{what} is no array of {count} elements: check the count"
        )));
    }
    Ok(())
}

/// Sizes as the pool takes them.
pub(super) fn widen(sizes: &[usize]) -> &[u64] {
    const { assert!(size_of::<usize>() == size_of::<u64>() && align_of::<usize>() == align_of::<u64>()) };
    // SAFETY: on the 64-bit targets of this library the two types are the same but for the name, as asserted.
    unsafe { std::slice::from_raw_parts(sizes.as_ptr().cast(), sizes.len()) }
}
