//! Nodes: the pieces that an address range is cut into. Together the nodes of a range tile it without gaps
//! or overlaps; each knows its neighbours in address order, as Knuth's boundary tags do (TAOCP 2.5), but
//! kept beside the memory, which the CPU may not be able to touch.
//!
//! No lock of their own: the heap's.

/// Index of a node.
pub type NodeId = u32;
/// No node (or page, or mapping).
pub const NIL: u32 = u32::MAX;

/// What a piece of address range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block in use.
    Live,
    /// A block freed by its user that another stream's work still holds back.
    Limbo,
    /// A run of small blocks; `Node::slab` says which.
    Slab,
    /// Free, every byte at home here; in the bins of its owner.
    Free,
    /// Mapped, but the bytes of the page that are mapped here are at home at another address.
    Hole,
    /// Whole slots with no mapping; in the bins of voids.
    Void,
    /// A window that a miss is filling.
    Busy,
    /// Not a piece of anything: on the list of spare nodes.
    Spare,
}

/// One piece; a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Node {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// What it is.
    pub kind: Kind,
    /// For `Free`: the stream (arena) it was freed on, or `COMMON`. For `Live`: that of the extent it was cut
    /// from, whose work may still use the memory if the block's user has not begun.
    pub owner: u32,
    /// For `Free` and `Live` with an owner: its use is over once that stream has passed this number.
    pub seq: u64,
    /// For `Slab`: index of the slab.
    pub slab: u32,
    /// Neighbours by address.
    pub prev: NodeId,
    /// Neighbours by address.
    pub next: NodeId,
    /// Neighbours in a bin.
    pub bin_prev: NodeId,
    /// Neighbours in a bin.
    pub bin_next: NodeId,
    /// Neighbours among the owner's free nodes, in the order of `seq`.
    pub age_prev: NodeId,
    /// Neighbours among the owner's free nodes, in the order of `seq`.
    pub age_next: NodeId,
}

impl Node {
    /// A piece that is linked to nothing.
    pub fn new(start: u64, len: u64, kind: Kind) -> Node {
        Node {
            start,
            len,
            kind,
            owner: 0,
            seq: 0,
            slab: NIL,
            prev: NIL,
            next: NIL,
            bin_prev: NIL,
            bin_next: NIL,
            age_prev: NIL,
            age_next: NIL,
        }
    }

    /// One past the last address.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// All nodes of a pool.
#[derive(Debug, Default)]
pub struct Nodes {
    all: Vec<Node>,
    spare: Vec<NodeId>,
}

impl Nodes {
    /// Takes a node into service.
    #[inline]
    pub fn add(&mut self, node: Node) -> NodeId {
        match self.spare.pop() {
            Some(id) => {
                self.all[id as usize] = node;
                id
            }
            None => {
                self.all.push(node);
                // so that `remove`, and with it every free, allocates nothing
                self.spare.reserve(self.all.capacity());
                self.all.len() as u32 - 1
            }
        }
    }

    /// Takes a node, already unlinked, out of service.
    pub fn remove(&mut self, id: NodeId) {
        self[id].kind = Kind::Spare;
        self.spare.push(id);
    }

    /// Nodes in service.
    pub fn count(&self) -> usize {
        self.all.len() - self.spare.len()
    }
}

impl std::ops::Index<NodeId> for Nodes {
    type Output = Node;
    #[inline(always)]
    fn index(&self, id: NodeId) -> &Node {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<NodeId> for Nodes {
    #[inline(always)]
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.all[id as usize]
    }
}
