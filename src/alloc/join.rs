//! Joining the free ends of partly used pages.
//!
//! Where blocks begin and end inside pages, parts of those pages stay free. Such a part cannot be moved alone,
//! since pages are mapped whole; but a page can be mapped twice. A page whose *tail* is free, then wholly free
//! pages, then a page whose *head* is free, mapped one after the other at fresh addresses, make one extent. The
//! first and the last page are split: their other bytes stay at home where they were.
//!
//! This costs two mappings more than moving whole pages and is done when those do not suffice. With it pages
//! may be large without much being lost at the ends of blocks.
//!
//! Caller: `plan`.

use super::heap::Heap;
use super::page::MappingId;
use super::plan::{Fill, Sources, Window};
use super::size::{GRAIN, round_up};

/// Ends looked at on each side.
const LOOK: usize = 64;
/// Extents looked at for their ends.
const LOOK_EXTENTS: usize = 512;

/// A free end of a page.
#[derive(Clone, Copy, Debug)]
struct End {
    mapping: MappingId,
    lo: u64,
    hi: u64,
}

/// A cost, and the ends that it is the cost of.
type Choice = ((u64, u64), Option<End>, Option<End>);

impl End {
    fn len(&self) -> u64 {
        self.hi - self.lo
    }
}

impl Heap {
    /// Chooses pages to join for `len` bytes: as few whole pages as possible, then as little left over.
    pub(super) fn choose_join(
        &mut self,
        len: u64,
        align: u64,
        stream: u32,
        sources: Sources,
    ) -> Option<(Window, Vec<Fill>)> {
        let slot = self.space.slot();
        let (mut tails, heads) = self.free_ends(stream);
        if align > GRAIN {
            tails.clear(); // a tail begins where it begins
        }
        let (tail, head) = self.choose_ends(len, &tails, &heads)?;
        let (tail_len, head_len) = (tail.map_or(0, |end| end.len()), head.map_or(0, |end| end.len()));
        let middle = round_up(len.saturating_sub(tail_len + head_len), slot);
        // a window of whole mappings in a void, in which the block begins with the tail
        let before = tail.map_or(0, |end| end.lo);
        let after = head.map_or(0, |end| self.pages.page_of(end.mapping).bytes);
        let fresh = self.fresh_window(before + tail_len + middle + after, align)?;
        let start = fresh.start + before;
        let window = Window {
            start,
            end: start + len,
            ..fresh
        };
        let mut fills = Vec::new();
        let mut at = fresh.start;
        let ends = [tail, head]
            .into_iter()
            .flatten()
            .map(|end| self.pages.mapping(end.mapping).page);
        let ends: Vec<_> = ends.collect();
        if let Some(end) = tail {
            fills.push(self.join_end(end, at));
            at += end.hi;
        }
        let mut pages = self.donors(&window, stream, middle);
        pages.retain(|donor| !ends.contains(&donor.page) && donor.bytes <= middle);
        // pages must end where the head begins, so none may be longer than its gap
        let gaps = if middle > 0 {
            vec![(at, middle)]
        } else {
            Vec::new()
        };
        if !self.fill_gaps(None, &gaps, &mut pages, sources, &mut fills) {
            return None;
        }
        if let Some(end) = head {
            fills.push(self.join_end(end, at + middle));
        }
        Some((window, fills))
    }

    fn join_end(&self, end: End, at: u64) -> Fill {
        let page = self.pages.mapping(end.mapping).page;
        Fill::Alias {
            at,
            page,
            lo: end.lo,
            hi: end.hi,
            from: end.mapping,
        }
    }

    /// The free tails and heads of partly used pages, the longest extents' first.
    fn free_ends(&self, stream: u32) -> (Vec<End>, Vec<End>) {
        let nodes = &self.space.nodes;
        let (mut tails, mut heads) = (Vec::new(), Vec::new());
        for arena in Heap::usable_arenas(stream) {
            for id in self.arena(arena).bins.descending(nodes, GRAIN).take(LOOK_EXTENTS) {
                let (start, end) = (nodes[id].start, nodes[id].end());
                let first = self.space.mapping_at(start);
                let (at, bytes) = self.pages.span(first);
                let may = |mapping| !self.pages.is_full(self.pages.mapping(mapping).page);
                if at < start && end >= at + bytes && may(first) {
                    tails.push(End {
                        mapping: first,
                        lo: start - at,
                        hi: bytes,
                    });
                }
                let last = self.space.mapping_at(end - 1);
                let (at, bytes) = self.pages.span(last);
                if at >= start && end < at + bytes && may(last) {
                    heads.push(End {
                        mapping: last,
                        lo: 0,
                        hi: end - at,
                    });
                }
            }
        }
        for ends in [&mut tails, &mut heads] {
            ends.sort_by_key(|end: &End| std::cmp::Reverse(end.len()));
            ends.truncate(LOOK);
        }
        (tails, heads)
    }

    /// The pair of ends, either of which may be missing, that leaves the fewest whole slots to be found and
    /// then the least left over.
    fn choose_ends(&self, len: u64, tails: &[End], heads: &[End]) -> Option<(Option<End>, Option<End>)> {
        let slot = self.space.slot();
        let page = |end: &End| self.pages.mapping(end.mapping).page;
        let with_none = |ends: &[End]| -> Vec<Option<End>> {
            std::iter::once(None)
                .chain(ends.iter().copied().map(Some))
                .collect()
        };
        let mut best: Option<Choice> = None;
        for tail in with_none(tails) {
            for head in with_none(heads) {
                let (Some(any), other) = (tail.or(head), head) else {
                    continue;
                };
                if tail.is_some() && other.is_some_and(|other| page(&other) == page(&any)) {
                    continue;
                }
                let ends = tail.map_or(0, |end| end.len()) + head.map_or(0, |end| end.len());
                let middle = round_up(len.saturating_sub(ends), slot);
                let cost = (middle, ends + middle - len);
                if best.as_ref().is_none_or(|best| cost < best.0) {
                    best = Some((cost, tail, head));
                }
            }
        }
        // joining must save a slot at least, or whole pages do as well
        best.filter(|best| best.0.0 < round_up(len, slot))
            .map(|(_, tail, head)| (tail, head))
    }
}
