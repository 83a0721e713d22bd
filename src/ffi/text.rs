//! The version, the names of status codes, and each thread's last error.
//!
//! The last error lives in a thread-local array without a destructor, so it costs no heap memory and can be
//! read and written while a thread or the process is ending.

use super::status;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_int};
use std::fmt;

/// Major version of this header.
pub const WEIR_VERSION_MAJOR: i32 = 0;
/// Minor version of this header.
pub const WEIR_VERSION_MINOR: i32 = 1;
/// Patch version of this header.
pub const WEIR_VERSION_PATCH: i32 = 0;

/// Bytes of a message, its final NUL not counted.
const LONGEST: usize = 1023;

struct Message {
    text: UnsafeCell<[u8; LONGEST + 1]>,
    length: Cell<usize>,
    full: Cell<bool>,
}

thread_local! {
    static LAST_ERROR: Message =
        const { Message { text: UnsafeCell::new([0; LONGEST + 1]), length: Cell::new(0), full: Cell::new(false) } };
}

impl fmt::Write for &Message {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.full.get() {
            return Ok(());
        }
        let length = self.length.get();
        let mut taken = more.len().min(LONGEST - length);
        while !more.is_char_boundary(taken) {
            taken -= 1;
        }
        self.full.set(taken < more.len());
        // SAFETY: the array belongs to this thread and nothing else borrows it: a pointer given to C may be
        // read again only after this thread's call has returned.
        let text = unsafe { &mut *self.text.get() };
        text[length..length + taken].copy_from_slice(&more.as_bytes()[..taken]);
        text[length + taken] = 0;
        self.length.set(length + taken);
        Ok(())
    }
}

/// Makes this the thread's last error, cut at a character if it is too long.
pub(super) fn set_last_error(message: fmt::Arguments<'_>) {
    LAST_ERROR.with(|mut last| {
        last.length.set(0);
        last.full.set(false);
        let _ = fmt::Write::write_fmt(&mut last, message);
    });
}

/// This thread's last error.
#[cfg(test)]
pub(super) fn last_error() -> String {
    // SAFETY: the text always ends with a NUL.
    unsafe { std::ffi::CStr::from_ptr(weir_last_error()) }
        .to_str()
        .unwrap()
        .to_owned()
}

/// The version of the library that runs, such as "1.2.3"; compare it with the WEIR_VERSION_* macros of the
/// header the program was built with. Static text, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn weir_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The name of a status, such as "WEIR_ERROR_OUT_OF_MEMORY"; "unknown status" for any other number. Static
/// text, never freed.
#[unsafe(no_mangle)]
pub extern "C" fn weir_status_name(status: c_int) -> *const c_char {
    let name = usize::try_from(status)
        .ok()
        .and_then(|number| status::NAMES.get(number));
    name.unwrap_or(&c"unknown status").as_ptr()
}

/// The message of this thread's last failed call: what was asked, why it failed, the numbers, and what to try.
/// "" if none has failed. At most 1023 bytes of UTF-8. It belongs to weir, stays as it is through calls that
/// succeed, and is valid until the next call that fails on the same thread.
#[unsafe(no_mangle)]
pub extern "C" fn weir_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.text.get().cast_const().cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_macros_and_the_text_are_the_packages_version() {
        assert_eq!(WEIR_VERSION_MAJOR.to_string(), env!("CARGO_PKG_VERSION_MAJOR"));
        assert_eq!(WEIR_VERSION_MINOR.to_string(), env!("CARGO_PKG_VERSION_MINOR"));
        assert_eq!(WEIR_VERSION_PATCH.to_string(), env!("CARGO_PKG_VERSION_PATCH"));
        // SAFETY: static text with a NUL at its end.
        let version = unsafe { CStr::from_ptr(weir_version()) };
        assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        assert_eq!(last_error(), "");
        for lead in 0..4 {
            let long = "x".repeat(lead) + &"é".repeat(700);
            set_last_error(format_args!("{long}{}", "never shown"));
            let kept = last_error();
            assert!(
                kept.len() == LONGEST || kept.len() == LONGEST - 1,
                "{}",
                kept.len()
            );
            assert!(long.starts_with(&kept));
        }
        set_last_error(format_args!("{}{}", "y".repeat(LONGEST), "z"));
        assert_eq!(last_error(), "y".repeat(LONGEST));
        set_last_error(format_args!("short"));
        assert_eq!(last_error(), "short");
    }

    #[test]
    fn each_thread_has_its_own() {
        set_last_error(format_args!("mine"));
        std::thread::spawn(|| assert_eq!(last_error(), ""))
            .join()
            .unwrap();
        assert_eq!(last_error(), "mine");
    }

    #[test]
    fn numbers_that_are_no_status_have_a_name_too() {
        for number in [-1, 27, c_int::MAX, c_int::MIN] {
            // SAFETY: static text with a NUL at its end.
            let name = unsafe { CStr::from_ptr(weir_status_name(number)) };
            assert_eq!(name.to_str().unwrap(), "unknown status");
        }
    }
}
