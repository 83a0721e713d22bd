//! A text of bounded length, kept where it is written: what the last error of a thread was.
//!
//! Invariant: behind `length` bytes of UTF-8 there is a NUL.

use std::cell::Cell;
use std::ffi::c_char;
use std::fmt;

/// Bytes of a message, its final NUL not counted.
pub const LONGEST: usize = 1023;

/// The text.
pub struct Message {
    text: [Cell<u8>; LONGEST + 1],
    length: Cell<usize>,
    full: Cell<bool>,
}

impl Message {
    /// No text.
    #[allow(clippy::new_without_default)] // `Default` could not be const.
    pub const fn new() -> Message {
        Message {
            text: [const { Cell::new(0) }; LONGEST + 1],
            length: Cell::new(0),
            full: Cell::new(false),
        }
    }

    /// Makes this the text, cut at a character if it is too long.
    pub fn set(&self, text: fmt::Arguments<'_>) {
        self.length.set(0);
        self.full.set(false);
        let _ = fmt::Write::write_fmt(&mut &*self, text);
    }

    /// Has it never been set?
    pub fn is_empty(&self) -> bool {
        self.length.get() == 0
    }

    /// Its first byte; it ends with a NUL.
    pub fn as_ptr(&self) -> *const c_char {
        self.text.as_ptr().cast()
    }
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
        let places = self.text[length..].iter();
        places
            .zip(&more.as_bytes()[..taken])
            .for_each(|(place, &byte)| place.set(byte));
        self.text[length + taken].set(0);
        self.length.set(length + taken);
        Ok(())
    }
}
