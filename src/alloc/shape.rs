//! Which bytes are free, as one number: the same bytes give the same number, in whatever pieces they lie, and other bytes give
//! another one (but once in 2^64). So a pool knows a state that comes back, without a copy of it to compare with.
//!
//! It is a sum to which each piece adds when it becomes free, and of which it takes away when it does not stay so, as in Bellare,
//! Micciancio, *A new paradigm for collision-free hashing* (1997). Of a piece it is the hash of its end less that of its
//! beginning, so where two are joined, or one is cut, nothing changes.
//!
//! No lock of its own: the heap's.

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

/// The sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(u64);

impl Shape {
    /// These bytes are free from now on.
    #[inline(always)]
    pub fn add(&mut self, from: u64, to: u64) {
        self.0 = self.0.wrapping_add(hash(to)).wrapping_sub(hash(from));
    }

    /// These are not any more.
    #[inline(always)]
    pub fn remove(&mut self, from: u64, to: u64) {
        self.add(to, from);
    }
}

/// Of an address. (A linear one would tell lengths only.)
#[inline(always)]
fn hash(at: u64) -> u64 {
    FixedState::default().hash_one(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[(u64, u64)]) -> Shape {
        let mut shape = Shape::default();
        pieces.iter().for_each(|&(from, to)| shape.add(from, to));
        shape
    }

    #[test]
    fn it_is_of_bytes_whatever_pieces_they_lie_in() {
        let whole = of(&[(0, 1024), (4096, 8192)]);
        assert_eq!(whole, of(&[(5000, 8192), (0, 512), (4096, 5000), (512, 1024)]));
        let mut cut = of(&[(0, 8192)]);
        cut.remove(1024, 4096);
        assert_eq!(whole, cut);
        assert_ne!(whole, of(&[(0, 1024), (4352, 8448)]), "as many bytes elsewhere");
        assert_ne!(whole, of(&[(0, 1280), (4352, 8192)]));
    }
}
