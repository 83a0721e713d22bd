//! The version, the names of status codes, and each thread's last error.
//!
//! The last error lies with what weir has of each thread, so it costs no heap memory. A thread of which weir has nothing, because
//! there are too many or because it has come to its end, is told that there was an error, and no more.

use super::status;
use crate::lifecycle::threads;
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt;

/// Major version of this header.
pub const WEIR_VERSION_MAJOR: i32 = 0;
/// Minor version of this header.
pub const WEIR_VERSION_MINOR: i32 = 1;
/// Patch version of this header.
pub const WEIR_VERSION_PATCH: i32 = 0;

thread_local! {
    /// Has a call of this thread failed?
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Makes this the thread's last error, cut at a character if it is too long.
pub(super) fn set_last_error(message: fmt::Arguments<'_>) {
    FAILED.set(true);
    if let Some(mine) = threads::own() {
        mine.error.set(message);
    }
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
/// succeed, and is valid until the next call that fails on the same thread, or the thread ends. There is room for the messages
/// of 2,048 threads at once; a thread beyond these, and one whose thread-specific data is being destroyed, may be told only that
/// there is none.
#[unsafe(no_mangle)]
pub extern "C" fn weir_last_error() -> *const c_char {
    match threads::own() {
        Some(mine) if !mine.error.is_empty() => mine.error.as_ptr(),
        _ if FAILED.get() => c"weir: this thread has no room for what an error says".as_ptr(),
        _ => c"".as_ptr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::message::LONGEST;
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
