//! A thread-specific key of the C library: what each thread has set is handed to a function when that thread ends.
//!
//! Destructors of C++'s and Rust's thread-local variables run before those of keys, and a note of one that is made after
//! that is made for nothing: who frees in a key's destructor, and had called nothing before, would never be told. (POSIX has
//! destructors of keys run again, four times at least, for what is set meanwhile.)
//!
//! Locks: none, because a forked child could wait for one for ever.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Not made yet.
const NONE: usize = 0;
/// Never again.
const GONE: usize = usize::MAX;

/// The key. It is made when it is first needed.
pub struct Key {
    /// One more than its number, or `NONE`, or `GONE`.
    number: AtomicUsize,
    at_end: extern "C" fn(*mut c_void),
}

impl Key {
    /// `at_end` is given what an ending thread has set, once, and may set it again.
    pub const fn new(at_end: extern "C" fn(*mut c_void)) -> Key {
        Key {
            number: AtomicUsize::new(NONE),
            at_end,
        }
    }

    /// What `at_end` will be given by the calling thread. False: a process has 1,024 keys, or there is no memory, or the
    /// library is on its way out.
    pub fn set(&self, value: *const c_void) -> bool {
        let number = match self.number.load(Ordering::Relaxed) {
            NONE => self.make(),
            number => number,
        };
        // SAFETY: the key is there; nothing looks at the value but `at_end`.
        number != NONE && number != GONE && unsafe { libc::pthread_setspecific(key(number), value) } == 0
    }

    #[cold]
    fn make(&self) -> usize {
        let mut made = 0;
        // SAFETY: writes a variable of ours; the function is there until the key is not, see `close`.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(self.at_end)) } != 0 {
            return NONE;
        }
        let ours = made as usize + 1;
        match self
            .number
            .compare_exchange(NONE, ours, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => ours,
            Err(theirs) => {
                // SAFETY: made above, and nobody else knows it.
                unsafe { libc::pthread_key_delete(made) };
                theirs
            }
        }
    }

    /// No thread that ends from now on calls `at_end`, whose code may go.
    pub fn close(&self) {
        let number = self.number.swap(GONE, Ordering::Relaxed);
        if number != NONE && number != GONE {
            // SAFETY: it was made, and is deleted here alone.
            unsafe { libc::pthread_key_delete(key(number)) };
        }
    }
}

fn key(number: usize) -> libc::pthread_key_t {
    (number - 1) as libc::pthread_key_t
}
