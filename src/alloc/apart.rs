//! Pages that stay apart: no extent crosses from one page to the next, so every block lies in one page. This is
//! for those who register memory by its page (NCCL, RDMA), and for memory that cannot be mapped side by side.
//!
//! A miss then makes one page that holds the whole of what is needed. Nothing is moved, joined or aliased: the
//! free ends of pages wait for blocks that fit into them, and a page goes back when all of it is free.
//!
//! Memory may also come with its address. Such a page is a *segment*: a range of its own, which begins wherever the
//! device put it and is forgotten with it. Nothing in it is ever hole or void, except on its way out.
//!
//! Invariants:
//! - a page has one mapping at most, and is at home there as a whole;
//! - where memory comes with its address, a range is one page.
//!
//! Caller: `plan` and `pool::miss`, holding `Grow` throughout and `Heap` while in here; before an extent is cut the pool asks here
//! with `Heap` alone.

use super::heap::Heap;
use super::node::NIL;
use super::order::{Arena, COMMON};
use super::page::PageId;
use super::plan::{Fill, Sources};
use super::size::{class_of, round_up};
use super::transit::Plan;
use crate::base::units::PageHandle;

/// An extent is spared if there may be one that is no more than this part of it. (24 blocks of up to 2 MiB on four streams
/// under a limit of 24 MiB, two million requests: 97 failed before, 9 with this.)
const SPARED: u64 = 2;
/// Allocations between a look in vain and the next one.
const SELDOM: u64 = 16;

impl Heap {
    /// Do pages that must stay apart meet at this address?
    pub(super) fn are_apart(&self, at: u64) -> bool {
        self.apart
            && at.is_multiple_of(self.space.slot())
            && self.pages.mapping(self.space.mapping_at(at)).at == at
    }

    /// Bytes of the page to be created for `len`; none if the sources do not suffice.
    pub fn page_for(&self, len: u64, sources: Sources) -> Option<u64> {
        let bytes = round_up(len, self.space.slot()).max(sources.page_min);
        (bytes <= sources.create).then_some(bytes)
    }

    /// Plans a page of its own for `len` bytes aligned to `align`.
    pub(super) fn plan_page(&mut self, len: u64, align: u64, sources: Sources) -> Option<Plan> {
        let loose = self.loose_page(len);
        let bytes = match loose {
            Some(page) => self.pages.page(page).bytes,
            None => self.page_for(len, sources)?,
        };
        let window = self.fresh_window(bytes, align)?;
        let at = window.start;
        let fill = match loose {
            Some(page) => Fill::Alias {
                at,
                page,
                lo: 0,
                hi: bytes,
                from: NIL,
            },
            None => Fill::Create { at, bytes },
        };
        Some(self.enact(&window, &[fill]))
    }

    /// A page was created that came with its address. It is free for everybody.
    pub fn add_segment(&mut self, at: u64, handle: PageHandle, bytes: u64) {
        let page = self.created(handle, bytes);
        let mapping = self.pages.add_mapping(page, at);
        let node = self.space.add_segment(at, bytes, mapping);
        self.pages.come_home(mapping, bytes);
        self.stats.idle -= bytes;
        self.put_free(node, COMMON);
    }

    /// Would an allocation for `stream` cut an extent, near the limit, while another stream has a much shorter one that may be
    /// everybody's by now? Where pages stay apart none will move to where the long one was.
    #[inline(always)]
    pub fn would_waste(&self, bytes: u64, align: u64, stream: u32) -> bool {
        self.apart && self.is_crowded() && self.would_waste_here(bytes, align, stream)
    }

    #[inline(never)]
    fn would_waste_here(&self, bytes: u64, align: u64, stream: u32) -> bool {
        if !self.has_several_streams() || !self.reuse.opportunistic || self.stats.allocations < self.look_from
        {
            return false;
        }
        let has_slab = |class| self.arena(stream).partial[class] != NIL;
        if class_of(bytes, align).is_some_and(has_slab) {
            return false;
        }
        let (len, align) = Heap::need(bytes, align);
        let Some(found) = self.fit(len, align, stream) else {
            return false;
        };
        let nodes = &self.space.nodes;
        let least = nodes[found].len / SPARED;
        let is_spare = |arena: &Arena| {
            let id = arena.bins.best(nodes, len);
            id != NIL
                && nodes[id].len <= least
                && round_up(nodes[id].start, align) + len <= nodes[id].end()
                && arena.id.capture.is_none()
                && (arena.reach.is_some() || !arena.events.is_empty())
        };
        let others = (COMMON + 1..)
            .zip(&self.arenas[1..])
            .filter(|&(other, _)| other != stream);
        len <= least && others.filter_map(|(_, arena)| arena.as_deref()).any(is_spare)
    }

    /// Somebody has looked for such an extent. After a look in vain the next one waits a while.
    pub fn has_looked(&mut self, found: bool) {
        if !found {
            self.look_from = self.stats.allocations + SELDOM;
        }
    }

    /// The smallest of the pages that a failed call left without an address, if one is large enough.
    pub fn loose_page(&self, len: u64) -> Option<PageId> {
        let bytes = |&page: &PageId| self.pages.page(page).bytes;
        let loose = self.pages.loose.iter().copied();
        loose.filter(|page| bytes(page) >= len).min_by_key(bytes)
    }
}
