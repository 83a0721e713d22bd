//! Handles for a C program: values that are looked up, never dereferenced. A handle is a tag that no
//! pointer of a process has (bits 48 to 55 are not zero) plus a slot number. The slot freed last is used
//! first, so handles are recycled as soon as they can be, as a driver's are.
//!
//! Invariant: `free` = the slots of `entries` that are empty.
//! Locks: none; each table is kept under its owner's.

use crate::base::units::is_own_handle;
use std::mem;

const SLOT_BITS: u32 = 24;

#[derive(Debug)]
pub(super) struct Slots<T> {
    tag: usize,
    entries: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slots<T> {
    /// An empty table, which owns no memory. The low 24 bits of `tag` are zero.
    pub(super) const fn new(tag: usize) -> Slots<T> {
        assert!(tag & ((1 << SLOT_BITS) - 1) == 0 && is_own_handle(tag));
        Slots {
            tag,
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// May a table with this tag have such a handle?
    pub(super) const fn may_have(tag: usize, handle: usize) -> bool {
        (handle ^ tag) >> SLOT_BITS == 0
    }

    fn slot(&self, handle: usize) -> Option<usize> {
        let slot = handle ^ self.tag;
        (slot < self.entries.len()).then_some(slot)
    }

    /// A new handle; `None` if 2^24 are in use.
    pub(super) fn insert(&mut self, entry: T) -> Option<usize> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.entries.len() >> SLOT_BITS != 0 => return None,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        self.entries[slot] = Some(entry);
        Some(self.tag | slot)
    }

    pub(super) fn get(&self, handle: usize) -> Option<&T> {
        self.entries[self.slot(handle)?].as_ref()
    }

    pub(super) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        let slot = self.slot(handle)?;
        self.entries[slot].as_mut()
    }

    pub(super) fn remove(&mut self, handle: usize) -> Option<T> {
        let slot = self.slot(handle)?;
        let entry = self.entries[slot].take()?;
        self.free.push(slot);
        Some(entry)
    }

    /// The table as it was; an empty one that owns no memory stays behind.
    pub(super) fn take(&mut self) -> Slots<T> {
        let tag = self.tag;
        mem::replace(self, Slots::new(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    const TAG: usize = 0x0057_4549_5200_0000;

    #[test]
    fn handles_are_checked_and_recycled_at_once() {
        let mut slots = Slots::new(TAG);
        let (a, b) = (slots.insert("a").unwrap(), slots.insert("b").unwrap());
        assert_ne!(a, b);
        assert_eq!((slots.get(a), slots.get(b)), (Some(&"a"), Some(&"b")));
        for wrong in [0, 1, 2, usize::MAX, TAG | 2, a & 0xff_ffff, a ^ (1 << 63)] {
            assert_eq!(slots.get(wrong), None, "{wrong:#x}");
            assert_eq!(slots.remove(wrong), None, "{wrong:#x}");
        }
        assert_eq!(slots.remove(a), Some("a"));
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.insert("c"), Some(a));
        assert_eq!(slots.get_mut(a), Some(&mut "c"));
        assert_eq!(slots.take().get(b), Some(&"b"));
        assert_eq!(
            (slots.get(b), slots.entries.capacity(), slots.free.capacity()),
            (None, 0, 0)
        );
    }
}
