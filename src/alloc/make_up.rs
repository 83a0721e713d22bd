//! How the books make up for what was replayed (`replay`): what is free counts as used, and blocks are live where nothing was.
//!
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::node::{Kind, NodeId};
use super::note::Extent;
use super::order::COMMON;
use super::size::class_of;

impl Heap {
    /// All that is free may be in use by a stream's work up to now, in whatever mapping.
    pub(super) fn use_all_free(&mut self, stream: u32) {
        if stream == COMMON {
            return; // nothing is ever at work
        }
        let free = [COMMON, stream].map(|arena| {
            self.arena(arena)
                .bins
                .descending(&self.space.nodes, 0)
                .collect::<Vec<_>>()
        });
        let free: Vec<NodeId> = free.into_iter().flatten().collect();
        for &id in &free {
            self.pull_free(id);
            self.space.nodes[id].kind = Kind::Busy;
        }
        self.arena_mut(stream).advance();
        for id in free {
            self.put_free(id, stream);
        }
        let seq = self.arena(stream).seq;
        self.note_all_small(stream, seq);
        self.pages.used_everywhere(stream, seq);
    }

    /// A block is live where nothing is.
    pub(super) fn place(&mut self, at: u64, block: Extent, stream: u32) {
        let Extent { bytes, slab } = block;
        match slab {
            Some(base) => {
                let class = class_of(bytes, 0).expect("a slab's");
                self.place_small(at, base, class, stream);
            }
            None => {
                let node = self.claim(at, bytes);
                let seq = self.arena(stream).seq;
                let node = &mut self.space.nodes[node];
                (node.kind, node.owner, node.seq) = (Kind::Live, stream, seq);
                self.set_used(self.stats.used + bytes);
                self.directory.begin(at, bytes, stream != COMMON);
            }
        }
        self.took(stream, bytes);
    }
}
