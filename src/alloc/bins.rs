//! Free nodes by size: two levels of bins found through bitmaps, as in TLSF (Masmano et al., "TLSF: a new
//! dynamic memory allocator for real-time systems", 2004). With 32 bins an octave a fit is within 1/32 of
//! the best, and a bounded look through one bin makes it the best in practice. Constant time.
//!
//! Invariants: a bin's bit is set exactly if its list is not empty; a node is in the bin of its length; `bytes` is the sum of
//! the lengths.
//! No lock of their own: the heap's.

use super::node::{NIL, Node, NodeId, Nodes};
use super::size::GRAIN;

const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;
/// Lengths up to 2^47 bytes.
const LEVELS: usize = 47 - 9 - SUB_BITS as usize + 2;
/// Nodes looked at within one bin for the tightest fit.
const LOOK: usize = 4;

/// Nodes by size.
#[derive(Debug)]
pub struct Bins {
    heads: Box<[NodeId]>,
    levels: u64,
    subs: [u32; LEVELS],
    bytes: u64,
}

#[inline(always)]
fn index(len: u64) -> usize {
    let units = len / GRAIN;
    if units < SUBS as u64 {
        return units as usize;
    }
    let shift = 63 - units.leading_zeros() - SUB_BITS;
    ((shift as usize + 1) << SUB_BITS) + ((units >> shift) as usize & (SUBS - 1))
}

/// The tightest node of at least `len` in a list, which begins with `first`, among those looked at.
#[inline(always)]
fn tightest(nodes: &Nodes, first: NodeId, len: u64) -> NodeId {
    let node = &nodes[first];
    match node.bin_next {
        NIL if node.len >= len => first,
        NIL => NIL,
        _ => tightest_of_several(nodes, first, len),
    }
}

#[inline(never)]
fn tightest_of_several(nodes: &Nodes, first: NodeId, len: u64) -> NodeId {
    let (mut found, mut found_len) = (NIL, u64::MAX);
    let mut id = first;
    let mut looked = 0;
    while id != NIL {
        let node = &nodes[id];
        if node.len >= len && node.len < found_len {
            (found, found_len) = (id, node.len);
            if node.len == len {
                break;
            }
        }
        looked += 1;
        // past the bound any node that fits will do
        if looked >= LOOK && found != NIL {
            break;
        }
        if looked >= 4 * LOOK {
            break;
        }
        id = node.bin_next;
    }
    found
}

impl Default for Bins {
    fn default() -> Bins {
        Bins {
            heads: vec![NIL; LEVELS * SUBS].into_boxed_slice(),
            levels: 0,
            subs: [0; LEVELS],
            bytes: 0,
        }
    }
}

impl Bins {
    /// Puts a node into the bin of its length.
    #[inline]
    pub fn insert(&mut self, nodes: &mut Nodes, id: NodeId) {
        let len = nodes[id].len;
        self.bytes += len;
        self.insert_into(nodes, id, index(len));
    }

    /// Takes a node out. Its length is still that with which it went in.
    #[inline]
    pub fn remove(&mut self, nodes: &mut Nodes, id: NodeId) {
        let &Node {
            len,
            bin_prev: prev,
            bin_next: next,
            ..
        } = &nodes[id];
        self.bytes -= len;
        self.unlink(nodes, prev, next, || index(len));
    }

    /// The length of a node was another one when it went in. It comes to the front of its bin, as if it went out and in again.
    #[inline(always)]
    pub fn resized(&mut self, nodes: &mut Nodes, id: NodeId, was: u64) {
        let &Node {
            len,
            bin_prev: prev,
            bin_next: next,
            ..
        } = &nodes[id];
        self.bytes = self.bytes - was + len;
        let (from, to) = (index(was), index(len));
        if prev == NIL && from == to {
            return;
        }
        self.unlink(nodes, prev, next, || from);
        self.insert_into(nodes, id, to);
    }

    /// The node between these two goes from a bin.
    #[inline(always)]
    fn unlink(&mut self, nodes: &mut Nodes, prev: NodeId, next: NodeId, bin: impl FnOnce() -> usize) {
        if next != NIL {
            nodes[next].bin_prev = prev;
        }
        if prev != NIL {
            nodes[prev].bin_next = next;
            return;
        }
        let at = bin();
        self.heads[at] = next;
        if next == NIL {
            let level = at >> SUB_BITS;
            self.subs[level] &= !(1 << (at & (SUBS - 1)));
            if self.subs[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    #[inline(always)]
    fn insert_into(&mut self, nodes: &mut Nodes, id: NodeId, at: usize) {
        let head = std::mem::replace(&mut self.heads[at], id);
        let node = &mut nodes[id];
        (node.bin_prev, node.bin_next) = (NIL, head);
        if head != NIL {
            nodes[head].bin_prev = id;
            return;
        }
        self.levels |= 1 << (at >> SUB_BITS);
        self.subs[at >> SUB_BITS] |= 1 << (at & (SUBS - 1));
    }

    /// The tightest node of at least `len` among those looked at; NIL if there is none of that size.
    #[inline(always)]
    pub fn best(&self, nodes: &Nodes, len: u64) -> NodeId {
        if self.is_empty() {
            return NIL;
        }
        let at = index(len);
        let head = self.heads[at];
        if head != NIL {
            let found = tightest(nodes, head, len);
            if found != NIL {
                return found;
            }
        }
        match self.above(at + 1) {
            Some(at) => tightest(nodes, self.heads[at], len),
            None => NIL,
        }
    }

    /// The first bin that is not empty, from bin `at` on.
    #[inline(always)]
    fn above(&self, at: usize) -> Option<usize> {
        let level = at >> SUB_BITS;
        if level >= LEVELS {
            return None;
        }
        let here = self.subs[level] & (u32::MAX << (at & (SUBS - 1)));
        if here != 0 {
            return Some((level << SUB_BITS) + here.trailing_zeros() as usize);
        }
        let higher = if level + 1 >= 64 {
            0
        } else {
            self.levels & (u64::MAX << (level + 1))
        };
        (higher != 0).then(|| {
            let level = higher.trailing_zeros() as usize;
            (level << SUB_BITS) + self.subs[level].trailing_zeros() as usize
        })
    }

    /// Nodes from the largest bin down, without order inside a bin. Stops at bins whose nodes may be shorter
    /// than `least`.
    pub fn descending<'a>(&'a self, nodes: &'a Nodes, least: u64) -> impl Iterator<Item = NodeId> + 'a {
        let mut levels = self.levels;
        let mut subs = 0u32;
        let mut level = 0;
        let mut id = NIL;
        let lowest = index(least);
        std::iter::from_fn(move || {
            loop {
                if id != NIL {
                    let this = id;
                    id = nodes[this].bin_next;
                    return Some(this);
                }
                if subs == 0 {
                    if levels == 0 {
                        return None;
                    }
                    level = 63 - levels.leading_zeros() as usize;
                    levels &= !(1 << level);
                    subs = self.subs[level];
                }
                let sub = 31 - subs.leading_zeros();
                subs &= !(1 << sub);
                let at = (level << SUB_BITS) + sub as usize;
                if at < lowest {
                    return None;
                }
                id = self.heads[at];
            }
        })
    }

    /// Nodes from the bin of `least` up, without order inside a bin; the first bin may hold shorter ones.
    pub fn ascending<'a>(&'a self, nodes: &'a Nodes, least: u64) -> impl Iterator<Item = NodeId> + 'a {
        let mut at = index(least);
        let mut id = NIL;
        std::iter::from_fn(move || {
            while id == NIL {
                let found = self.above(at)?;
                id = self.heads[found];
                at = found + 1;
            }
            let this = id;
            id = nodes[this].bin_next;
            Some(this)
        })
    }

    /// The longest node's length; 0 if empty.
    pub fn largest(&self, nodes: &Nodes) -> u64 {
        let Some(level) = 63u32.checked_sub(self.levels.leading_zeros()) else {
            return 0;
        };
        let at = ((level as usize) << SUB_BITS) + 31 - self.subs[level as usize].leading_zeros() as usize;
        let (mut longest, mut id) = (0, self.heads[at]);
        while id != NIL {
            longest = longest.max(nodes[id].len);
            id = nodes[id].bin_next;
        }
        longest
    }

    /// All nodes' bytes together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Is there no node at all?
    pub fn is_empty(&self) -> bool {
        self.levels == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::node::Kind;

    #[test]
    fn index_grows_with_length_and_stays_in_range() {
        let mut last = 0;
        for shift in 9..47 {
            for part in 0..64u64 {
                let len = (1u64 << shift) + (((part << shift) / 64) & !(GRAIN - 1));
                let at = index(len);
                assert!(at >= last && at < LEVELS * SUBS, "{len}");
                last = at;
            }
        }
        assert!(index(1 << 47) < LEVELS * SUBS);
    }

    #[test]
    fn finds_the_tightest_and_forgets_what_is_removed() {
        let (mut nodes, mut bins) = (Nodes::default(), Bins::default());
        let ids: Vec<_> = [512u64, 4096, 1 << 20, (1 << 20) + 512, 1 << 30]
            .iter()
            .map(|&len| {
                let id = nodes.add(Node::new(0, len, Kind::Free));
                bins.insert(&mut nodes, id);
                id
            })
            .collect();
        assert_eq!(bins.best(&nodes, 513), ids[1]);
        assert_eq!(bins.best(&nodes, 1 << 20), ids[2]);
        assert_eq!(bins.best(&nodes, (1 << 20) + 512), ids[3]);
        assert_eq!(bins.best(&nodes, (1 << 20) + 1024), ids[4]);
        assert_eq!(bins.best(&nodes, (1 << 30) + 512), NIL);
        assert_eq!(bins.largest(&nodes), 1 << 30);
        assert_eq!(bins.descending(&nodes, 1 << 20).count(), 3);
        for id in ids {
            bins.remove(&mut nodes, id);
        }
        assert!(bins.is_empty());
        assert_eq!(bins.best(&nodes, 1), NIL);
    }
    /// Nodes whose lengths change lie where they would if they were taken out and put in again.
    #[test]
    fn a_length_that_changes_is_as_good_as_a_new_node() {
        const COUNT: u32 = 40;
        let mut random = 1u64;
        let mut below = |most: u64| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let (mut nodes, mut bins) = (Nodes::default(), Bins::default());
        let (mut others, mut model) = (Nodes::default(), Bins::default());
        for _ in 0..COUNT {
            let id = nodes.add(Node::new(0, GRAIN, Kind::Free));
            assert_eq!(others.add(Node::new(0, GRAIN, Kind::Free)), id);
            bins.insert(&mut nodes, id);
            model.insert(&mut others, id);
        }
        let mut stayed = 0;
        for _ in 0..20_000 {
            // few lengths, so that many share a bin
            let (id, len) = (below(COUNT.into()) as u32, (60 + below(12)) * GRAIN);
            let was = std::mem::replace(&mut nodes[id].len, len);
            stayed += u32::from(index(was) == index(len) && nodes[id].bin_prev == NIL);
            bins.resized(&mut nodes, id, was);
            model.remove(&mut others, id);
            others[id].len = len;
            model.insert(&mut others, id);
            let order = |bins: &Bins, nodes| bins.descending(nodes, 0).collect::<Vec<_>>();
            assert_eq!(order(&bins, &nodes), order(&model, &others));
            assert_eq!((bins.levels, bins.subs), (model.levels, model.subs));
        }
        assert!(stayed > 100, "some were where they had to be");
    }
}
