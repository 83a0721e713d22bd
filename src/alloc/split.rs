//! Split pages: bringing their parts home together.
//!
//! Of a page whose end was joined with another one's (`join`) some bytes are at home where it was mapped first and others where it was
//! joined. Once they are free they may be of more use in one place; that takes no driver call, as the page is mapped whole at each of
//! its homes.
//!
//! Callers: `plan`, `rest`, `release` and `pool::miss`, holding `Grow` throughout and `Heap` while in here.

use super::heap::Heap;
use super::node::{Kind, NIL};
use super::order::COMMON;
use super::page::{MappingId, PageId};

/// A free part of a page: its first byte, the one behind it, where it is at home, and whether it is everybody's.
struct Part {
    lo: u64,
    hi: u64,
    home: MappingId,
    common: bool,
}

impl Heap {
    /// Brings split pages that have become wholly free for the stream home to one address, so that they can
    /// be moved or given back. Linear in the pages that are split.
    pub fn reunite(&mut self, stream: u32) {
        let mut index = 0;
        while index < self.pages.split.len() {
            let page = self.pages.split[index];
            let homes = self.pages.page(page).homes.clone();
            if homes.len() > 1 && homes.iter().all(|&home| self.is_free(home, stream)) {
                self.bring_home(&homes, stream);
            } else if homes.len() > 1 {
                index += 1;
                continue;
            }
            self.pages.split.swap_remove(index);
        }
    }

    /// Is all that is at home in a mapping free for the stream?
    fn is_free(&self, mapping: MappingId, stream: u32) -> bool {
        let (at, bytes) = self.pages.span(mapping);
        let mut id = self.node_at(at);
        while id != NIL && self.space.nodes[id].start < at + bytes {
            if self.space.nodes[id].kind != Kind::Hole && !self.usable(id, stream) {
                return false;
            }
            id = self.space.nodes[id].next;
        }
        true
    }

    fn bring_home(&mut self, homes: &[MappingId], stream: u32) {
        // what is everybody's stays so: whether a page is split differs from round to round
        let owner = match homes.iter().all(|&home| self.is_free(home, COMMON)) {
            true => COMMON,
            false => stream,
        };
        let to = *homes
            .iter()
            .max_by_key(|&&home| self.pages.mapping(home).home)
            .expect("homes");
        let (target, bytes) = self.pages.span(to);
        for &from in homes.iter().filter(|&&home| home != to) {
            let at = self.pages.mapping(from).at;
            let mut done = 0;
            while done < bytes {
                let id = self.node_at(at + done);
                let (lo, hi) = (done, (self.space.nodes[id].end() - at).min(bytes));
                if self.space.nodes[id].kind == Kind::Free {
                    let (_, seq) = self.vacate(from, lo, hi);
                    self.occupy(to, lo, hi, (owner, seq));
                }
                done = hi;
            }
        }
        debug_assert_eq!(self.pages.mapping(to).home, bytes, "whole again at {target:#x}");
    }

    /// Free parts of split pages that lie beside each other come home together, the longest one's: of ends that were joined and are partly in
    /// use again, what was one end is one again. What is joined with them may fall apart, so this is for requests that nothing else
    /// serves but a wait. Has anything moved? Linear in split pages.
    pub fn unite(&mut self, stream: u32) -> bool {
        let mut moved = false;
        for page in self.pages.split.clone() {
            let parts = self.free_parts(page, stream);
            for run in parts.chunk_by(|part, next| part.hi == next.lo) {
                let longest = run.iter().max_by_key(|part| part.hi - part.lo).expect("a part");
                // as where neighbours are joined: the stream's take in what is everybody's, but a capture would keep it
                let mixed = run.iter().any(|part| !part.common);
                let takes_in = mixed && self.capture_of(stream).is_none();
                for part in run.iter().filter(|part| part.home != longest.home) {
                    let (owner, seq) = self.vacate(part.home, part.lo, part.hi);
                    let owner = if takes_in { stream } else { owner };
                    self.occupy(longest.home, part.lo, part.hi, (owner, seq));
                    moved = true;
                }
            }
        }
        moved
    }

    /// What of a page is free for the stream, in the order of its bytes.
    fn free_parts(&self, page: PageId, stream: u32) -> Vec<Part> {
        let mut parts = Vec::new();
        for &home in &self.pages.page(page).homes {
            let (at, bytes) = self.pages.span(home);
            let mut id = self.node_at(at);
            while id != NIL && self.space.nodes[id].start < at + bytes {
                let node = &self.space.nodes[id];
                if self.usable(id, stream) {
                    parts.push(Part {
                        lo: node.start.max(at) - at,
                        hi: node.end().min(at + bytes) - at,
                        home,
                        common: node.owner == COMMON,
                    });
                }
                id = node.next;
            }
        }
        parts.sort_unstable_by_key(|part| part.lo);
        parts
    }
}
