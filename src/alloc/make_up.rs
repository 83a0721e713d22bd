//! How the books make up for what was replayed (`replay`): what is free counts as used, and blocks are live where nothing was.
//!
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::note::Extent;
use super::order::COMMON;
use super::size::class_of;

impl Heap {
    /// All that is free may be in use by a stream's work up to now, in whatever mapping, but for what is known not to be.
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
        let (mut used, mut unused) = (Vec::new(), Vec::new());
        for id in free.into_iter().flatten() {
            let parts = self.untouched(id, self.space.slot());
            self.pull_free(id);
            self.space.nodes[id].kind = Kind::Busy;
            let mut rest = id;
            for (from, to) in parts {
                let part = self.split_busy(rest, from);
                if part != rest {
                    used.push(rest);
                }
                rest = self.split_busy(part, to);
                unused.push(part);
            }
            if rest != NIL {
                used.push(rest);
            }
        }
        self.arena_mut(stream).advance();
        for id in used {
            self.put_free(id, stream);
        }
        // not before: a stream's extent takes in what is everybody's beside it
        for id in unused {
            self.put_free(id, COMMON);
        }
        let seq = self.arena(stream).seq;
        self.note_all_small(stream, seq);
        self.pages.used_everywhere(stream, seq);
    }

    /// The part of a node from an address on, which is in it or its end: then there is none.
    fn split_busy(&mut self, id: NodeId, at: u64) -> NodeId {
        match &self.space.nodes[id] {
            node if at == node.start => id,
            node if at == node.end() => NIL,
            _ => self.space.split(id, at),
        }
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
