//! Giving physical memory back, and thinning out dormant mappings.
//!
//! A page may be unmapped or released only when the host has seen all work that could touch it complete, at
//! every address where it is mapped. So only pages in the common arena qualify, and of their dormant mappings
//! each must be complete as well. Linear in the free pages looked at.
//!
//! Caller: `pool::release`, holding `Grow` throughout and `Heap` while in here.

use super::heap::Heap;
use super::node::{Kind, NIL};
use super::order::COMMON;
use super::page::{MappingId, PageId};
use super::plan::Fill;
use super::size::round_down;
use super::space::Found;
use super::transit::Plan;
use crate::base::units::PageHandle;

/// A page on its way out: to be unmapped from each of its addresses and released. Its last mapping in the
/// list is the one where it was usable.
#[derive(Debug)]
pub struct Leaving {
    /// Which page.
    pub page: PageId,
    /// Its handle.
    pub handle: PageHandle,
    /// Its bytes.
    pub bytes: u64,
    /// Its mappings: address and name.
    pub mappings: Vec<(u64, MappingId)>,
}

impl Heap {
    /// Chooses wholly free pages of at least `least` bytes whose use is over, until giving them back brings what is reserved down to
    /// `keep`; a page is never taken that would bring it below. They are out of use from now on.
    pub fn choose_leaving(&mut self, keep: u64, least: u64) -> Vec<Leaving> {
        let slot = self.space.slot();
        self.reunite(COMMON);
        let mut excess = self.stats.reserved.saturating_sub(keep);
        let mut chosen: Vec<(PageId, MappingId)> = Vec::new();
        for &page in &self.pages.loose {
            let bytes = self.pages.page(page).bytes;
            if (least..=excess).contains(&bytes) {
                excess -= bytes;
                chosen.push((page, NIL));
            }
        }
        let nodes = &self.space.nodes;
        for id in self.arena(COMMON).bins.descending(nodes, slot) {
            if excess < slot {
                break;
            }
            let (start, end) = (nodes[id].start, nodes[id].end());
            let mut at = start;
            while at < end {
                let mapping = self.space.mapping_at(at);
                let from = self.pages.mapping(mapping).at;
                let page = self.pages.page_of(mapping);
                if from >= start
                    && from + page.bytes <= end
                    && (least..=excess).contains(&page.bytes)
                    && page
                        .mappings
                        .iter()
                        .all(|&other| other == mapping || self.can_clear(other))
                {
                    excess -= page.bytes;
                    chosen.push((self.pages.mapping(mapping).page, mapping));
                }
                at = from + page.bytes;
            }
        }
        chosen
            .into_iter()
            .map(|(page, home)| self.leave(page, home))
            .collect()
    }

    fn leave(&mut self, page: PageId, home: MappingId) -> Leaving {
        if home == NIL {
            self.pages.loose.retain(|&loose| loose != page);
        } else {
            self.vacate(home, 0, self.pages.page(page).bytes);
        }
        let info = self.pages.page(page);
        let others = info.mappings.iter().filter(|&&mapping| mapping != home);
        let mappings = others.chain(info.mappings.iter().filter(|&&mapping| mapping == home));
        Leaving {
            page,
            handle: info.handle,
            bytes: info.bytes,
            mappings: mappings
                .map(|&mapping| (self.pages.mapping(mapping).at, mapping))
                .collect(),
        }
    }

    /// A dormant mapping was removed.
    pub fn unmapped(&mut self, mapping: MappingId) {
        let (at, bytes) = self.pages.span(mapping);
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
            unreachable!("in a range")
        };
        let piece = self.space.carve_unbacked(id, at, at + bytes);
        self.space.set_mapping(at, bytes, NIL);
        self.space.set_unbacked(piece, Kind::Void);
        self.forget(mapping);
    }

    /// A slab's run begins there: from now on the directory has states of its blocks.
    pub(super) fn note_states(&mut self, base: u64, len: u64) {
        let slot = self.space.slot();
        let mut at = base;
        while at < base + len {
            self.pages.note_slabs(self.space.mapping_at(at));
            at = round_down(at, slot) + slot;
        }
    }

    /// A mapping is no more. What the directory had of slabs there would otherwise be all that ever were anywhere, in a pool that goes
    /// on to new addresses.
    pub(super) fn forget(&mut self, mapping: MappingId) {
        if self.pages.mapping(mapping).slabs {
            let (at, bytes) = self.pages.span(mapping);
            self.directory.forget(at, bytes);
        }
        self.pages.remove_mapping(mapping);
    }

    /// A page whose mappings are all gone, or that came with its address, was released.
    pub fn released(&mut self, page: PageId) {
        if let Some(&mapping) = self.pages.page(page).mappings.first() {
            let (at, bytes) = self.pages.span(mapping);
            self.space.remove_segment(at);
            self.set_back.retain(|start| !(at..at + bytes).contains(start));
            self.forget(mapping);
        }
        let bytes = self.pages.remove(page).bytes;
        self.stats.idle -= bytes;
        self.stats.reserved -= bytes;
    }

    /// A page could not be given back: it is usable where it was, or loose if it is mapped nowhere.
    pub fn stays(&mut self, leaving: &Leaving) {
        match leaving.mappings.last() {
            // the home is the last to go
            Some(&(_, home)) if self.pages.page(leaving.page).mappings.contains(&home) => {
                self.occupy(home, 0, leaving.bytes, (COMMON, 0));
            }
            _ => self.pages.loose.push(leaving.page),
        }
    }

    /// The oldest dormant mappings whose use is over, at most `count`.
    pub fn choose_evicted(&self, count: usize) -> Vec<MappingId> {
        let over = self.pages.dormant().filter(|&mapping| self.can_clear(mapping));
        over.take(count).collect()
    }

    /// Of each page that has as many mappings as it may have such ones, the first made first, so that half as many are left. But that
    /// where it was mapped first stays: there it comes home.
    pub fn choose_thinned(&self) -> Vec<MappingId> {
        let pages = self.pages.full.iter().map(|&page| self.pages.page(page));
        let each = pages.flat_map(|page| {
            let over = page.mappings[1..]
                .iter()
                .filter(|&&mapping| self.can_clear(mapping));
            over.copied().take(page.mappings.len() / 2)
        });
        each.collect()
    }

    /// Plans to remove one of these. None: a page came home there since, which takes no more than the heap's lock.
    pub fn plan_eviction(&mut self, mapping: MappingId) -> Option<Plan> {
        self.can_clear(mapping).then(|| {
            let (at, bytes) = self.pages.span(mapping);
            self.enact_as(Plan::default(), (at, at + bytes), &[Fill::Clear(mapping)])
        })
    }
}
