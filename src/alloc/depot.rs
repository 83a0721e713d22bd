//! Where threads that only free put what threads that only allocate are in need of, many blocks at a time, without the heap: one for
//! each stream. (The depot of Bonwick, Adams, "Magazines and vmem", 2001.)
//!
//! A thread's cache hands its blocks over when it is full, if its owner hardly allocates, and one that has nothing for a request takes
//! some. Neither looks into another thread's cache, for which that thread would have to be kept out.
//!
//! For the heap these blocks are live, as those in caches are, and it takes them back with them. Their numbers are those of their frees.
//!
//! Invariant: `bytes` is the sum over the blocks.
//! Lock: `blocks`, by itself or under the heap's. Who moves blocks between it and a cache is inside that cache's gate, so nothing moves while
//! all gates are shut.

use super::kept::Kept;
use crate::base::lock::{Rank, Ranked};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks that it has room for.
const BLOCKS: usize = 2048;
/// Blocks that are moved at a time.
pub const HANDFUL: usize = 128;

/// The depot.
#[derive(Debug)]
pub struct Depot {
    blocks: Ranked<Vec<Kept>>,
    bytes: AtomicU64,
    /// No more bytes are put there than these. 0: it is closed.
    limit: AtomicU64,
}

impl Default for Depot {
    fn default() -> Depot {
        Depot {
            blocks: Ranked::new(Rank::Depot, Vec::new()),
            bytes: AtomicU64::new(0),
            limit: AtomicU64::new(0),
        }
    }
}

impl Depot {
    /// Makes room: to put a block there allocates nothing.
    pub fn prepare(&self) {
        self.blocks.lock().reserve_exact(BLOCKS);
    }

    /// From now on it has no more than so many bytes, as far as they are put there.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Bytes of its blocks, a moment ago.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Is nothing to be put there?
    pub fn is_closed(&self) -> bool {
        self.limit.load(Relaxed) == 0
    }

    /// Puts a handful of these blocks there, as far as there is room. Gives their bytes.
    pub fn put(&self, mut from: impl FnMut() -> Option<Kept>) -> u64 {
        let mut blocks = self.blocks.lock();
        let before = self.bytes();
        let mut bytes = before;
        for _ in 0..HANDFUL.min(blocks.capacity() - blocks.len()) {
            if bytes >= self.limit.load(Relaxed) {
                break;
            }
            let Some(kept) = from() else { break };
            bytes += kept.piece.bytes();
            blocks.push(kept);
        }
        self.bytes.store(bytes, Relaxed);
        bytes - before
    }

    /// Takes a handful of the blocks that were put there last.
    pub fn take(&self, mut to: impl FnMut(Kept) -> bool) -> u64 {
        let mut blocks = self.blocks.lock();
        let before = self.bytes();
        let mut bytes = before;
        for _ in 0..HANDFUL {
            let Some(&kept) = blocks.last() else { break };
            if !to(kept) {
                break;
            }
            blocks.pop();
            bytes -= kept.piece.bytes();
        }
        self.bytes.store(bytes, Relaxed);
        before - bytes
    }

    /// Takes the latest; `before` hears of its bytes while it is still there.
    pub fn pop(&self, before: impl FnOnce(u64)) -> Option<Kept> {
        let mut blocks = self.blocks.lock();
        let bytes = blocks.last()?.piece.bytes();
        before(bytes);
        self.bytes.store(self.bytes() - bytes, Relaxed);
        blocks.pop()
    }

    /// All of them.
    pub fn blocks(&self) -> Vec<Kept> {
        self.blocks.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::Piece;
    use super::super::size::GRAIN;
    use super::*;
    use crate::backend::sparse::Site;

    static STATE: AtomicU64 = AtomicU64::new(0);

    fn kept(number: u64) -> Kept {
        Kept {
            at: number << 20,
            piece: Piece::Large { grains: number },
            seq: number,
            site: Site::of(&STATE),
        }
    }

    #[test]
    fn it_has_what_was_put_there_up_to_its_limit_and_gives_the_latest_first() {
        let depot = Depot::default();
        let mut numbers = 1..;
        let mut next = || numbers.next().map(kept);
        assert_eq!(depot.put(&mut next), 0, "it is closed, and there is no room");
        depot.set_limit(10 * GRAIN);
        assert_eq!(depot.put(&mut next), 0);
        depot.prepare();
        assert!(!depot.is_closed());
        assert_eq!(depot.put(&mut next), 10 * GRAIN);
        assert_eq!(depot.put(&mut next), 0);
        let mut taken = Vec::new();
        let two = |kept: Kept| {
            taken.push(kept.at);
            taken.len() < 3
        };
        assert_eq!(depot.take(two), 7 * GRAIN);
        assert_eq!(taken, [4, 3, 2].map(|number| number << 20));
        assert_eq!(depot.blocks().len(), 2, "the third one was refused");
        let latest = depot.pop(|bytes| assert_eq!((bytes, depot.bytes()), (2 * GRAIN, 3 * GRAIN)));
        assert_eq!((latest.map(|kept| kept.seq), depot.bytes()), (Some(2), GRAIN));
    }

    #[test]
    fn a_handful_is_moved_at_a_time() {
        let depot = Depot::default();
        depot.prepare();
        depot.set_limit(u64::MAX);
        let put = || depot.put(|| Some(kept(1))) / GRAIN;
        let all: u64 = (0..=BLOCKS / HANDFUL).map(|_| put()).sum();
        assert!(all as usize >= BLOCKS && put() == 0, "{all}");
        assert_eq!(depot.take(|_| true), HANDFUL as u64 * GRAIN);
    }
}
