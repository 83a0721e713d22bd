//! Donors: wholly free pages that are mapped where a request needs them. The gaps of a window are filled from them, largest
//! first, and with pages to be created.
//!
//! Caller: `plan` and `join`, holding `Grow` throughout and `Heap` while in here.

use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::page::{MappingId, PageId};
use super::plan::{Fill, Sources, Window};
use super::size::round_up;
use super::space::Found;

/// Pages are gathered so far beyond what is missing, for a better fit.
const SPARE: u64 = 64 << 20;

/// A wholly free page.
#[derive(Clone, Copy, Debug)]
pub struct Donor {
    /// Which page.
    pub page: PageId,
    /// Its bytes.
    pub bytes: u64,
    /// Where it is at home; NIL if it is loose.
    pub from: MappingId,
}

impl Heap {
    /// Wholly free pages outside the window, ascending by size: loose ones, and those in free extents until there is
    /// enough. From the longest extent down: pages next to each other stay so, and their layout may come back. But where
    /// blocks come and go in no order, from the shortest up: long extents are of use as they are.
    pub(super) fn donors(&self, window: &Window, stream: u32, missing: u64) -> Vec<Donor> {
        let slot = self.space.slot();
        let mut pages: Vec<Donor> = self
            .pages
            .loose
            .iter()
            .map(|&page| Donor {
                page,
                bytes: self.pages.page(page).bytes,
                from: NIL,
            })
            .collect();
        let mut sum = pages.iter().map(|page| page.bytes).sum::<u64>();
        let compacts = self.leeway.is_any();
        let nodes = &self.space.nodes;
        'arenas: for arena in Heap::usable_arenas(stream) {
            let bins = &self.arena(arena).bins;
            let extents: Box<dyn Iterator<Item = NodeId>> = match compacts {
                true => Box::new(bins.ascending(nodes, slot)),
                false => Box::new(bins.descending(nodes, slot)),
            };
            for id in extents {
                let (start, end) = (nodes[id].start, nodes[id].end());
                let mut at = round_up(start, slot);
                while at + slot <= end {
                    let mapping = self.space.mapping_at(at);
                    let (from, bytes) = self.pages.span(mapping);
                    let page = self.pages.mapping(mapping).page;
                    let whole = from >= start && from + bytes <= end;
                    let may = !self.pages.page(page).taken && !self.pages.is_full(page);
                    if whole && !window.overlaps(from, from + bytes) && may {
                        pages.push(Donor {
                            page,
                            bytes,
                            from: mapping,
                        });
                        sum += bytes;
                    }
                    at = from + bytes;
                }
                if sum >= missing + SPARE {
                    break 'arenas;
                }
            }
        }
        // of equal pages the last is taken first
        pages.reverse();
        pages.sort_by_key(|donor| donor.bytes);
        pages
    }

    /// Fills the gaps from `pages` (ascending by size) and by creation. Largest pages first, since a mapping
    /// costs the same whatever its size; a page larger than what is left only at the end of the last gap of
    /// `open`, a window that may be exceeded.
    pub(super) fn fill_gaps(
        &self,
        open: Option<&Window>,
        gaps: &[(u64, u64)],
        pages: &mut Vec<Donor>,
        sources: Sources,
        fills: &mut Vec<Fill>,
    ) -> bool {
        let mut budget = sources.create;
        for (index, &(mut at, mut left)) in gaps.iter().enumerate() {
            while left > 0 {
                let fitting = pages.partition_point(|page| page.bytes <= left);
                let donor = if fitting > 0 {
                    Some(fitting - 1)
                } else {
                    let last = index + 1 == gaps.len() && !pages.is_empty();
                    open.filter(|window| last && self.room(window, at) >= pages[0].bytes)
                        .map(|_| 0)
                };
                let bytes = if let Some(donor) = donor {
                    let Donor { page, bytes, from } = pages.remove(donor);
                    fills.push(Fill::Alias {
                        at,
                        page,
                        lo: 0,
                        hi: bytes,
                        from,
                    });
                    bytes
                } else {
                    // all of the gap, or the largest power of two that fits; or a larger page if the window may be exceeded
                    let fits = match left.min(sources.page_whole) {
                        0 => 1 << (63 - left.min(sources.page_max).leading_zeros()),
                        whole => whole,
                    };
                    let least = sources.page_min;
                    let ahead = fits < least && budget >= least && index + 1 == gaps.len();
                    let ahead = ahead && open.is_some_and(|window| self.room(window, at) >= least);
                    let bytes = if ahead { least } else { fits };
                    if bytes > budget {
                        return false;
                    }
                    budget -= bytes;
                    fills.push(Fill::Create { at, bytes });
                    bytes
                };
                at += bytes;
                left = left.saturating_sub(bytes);
            }
        }
        true
    }

    /// Unmapped bytes from `at`, inside the window, on.
    fn room(&self, window: &Window, at: u64) -> u64 {
        debug_assert!(at < window.end);
        match self.space.find(at) {
            Found::Start(id) | Found::Inside(id) if self.space.nodes[id].kind == Kind::Void => {
                self.space.nodes[id].end() - at
            }
            _ => 0,
        }
    }
}
