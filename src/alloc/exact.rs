//! Windows that leave next to nothing over: gaps between blocks that are as long as the request, but for less than a slot.
//!
//! Where pages have moved away from between blocks, the ends of the pages that stayed are free, and too short for most
//! requests. A window elsewhere leaves them so, and an end of its own besides; one that takes the whole gap takes the ends
//! with it. That is best fit, over addresses rather than over memory (Knuth, TAOCP 2.5; Wilson et al., *Dynamic storage
//! allocation: a survey and critical review*, 1995, on why so little is lost by it). It may clear mappings that would be
//! needed again, so it is for pools that have a limit, where memory matters more than time.
//!
//! Caller: `plan`.

use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::plan::{Sources, Window};
use super::size::{round_down, round_up};

/// Gaps looked at.
const LOOK: usize = 64;
/// What is free at both ends of a gap is shorter than so many slots: else it is no end of a page that stayed.
const ENDS: u64 = 2;

impl Heap {
    /// The cheapest window for `len` bytes, aligned to `align`, that leaves less than a slot of its gap. None: there is none, or
    /// work that could use what is in its way is not complete.
    pub(super) fn exact_window(&self, len: u64, align: u64, stream: u32, sources: Sources) -> Option<Window> {
        let slot = self.space.slot();
        let nodes = &self.space.nodes;
        let least = len.saturating_sub(ENDS * slot).max(slot);
        let unbacked = [&self.space.holes, &self.space.voids];
        let unbacked = unbacked
            .into_iter()
            .flat_map(|bins| bins.ascending(nodes, least).take(LOOK));
        let new = self.is_crowded() || self.rest.has_grown(self.needed);
        let mut best: Option<Window> = None;
        for (start, end) in unbacked.filter_map(|id| self.gap_around(id, stream, len + slot)) {
            let last = end.checked_sub(len).filter(|&last| last >= start);
            let Some(last) = last else { continue };
            let starts = [round_up(start, align), round_down(last, align)];
            for start in starts.into_iter().filter(|at| (start..=last).contains(at)) {
                let most = best.map_or(u64::MAX, |best| best.cost(slot));
                best = self.survey(start, len, stream, sources, most, new).or(best);
            }
        }
        best
    }

    /// From where to where there is no block around this node, if that is less than `most` bytes.
    fn gap_around(&self, id: NodeId, stream: u32, most: u64) -> Option<(u64, u64)> {
        let nodes = &self.space.nodes;
        let is_open = |id: NodeId| {
            id != NIL && (matches!(nodes[id].kind, Kind::Hole | Kind::Void) || self.usable(id, stream))
        };
        let (mut first, mut last) = (id, id);
        loop {
            let (start, end) = (nodes[first].start, nodes[last].end());
            if end - start >= most {
                return None;
            }
            if is_open(nodes[first].prev) {
                first = nodes[first].prev;
            } else if is_open(nodes[last].next) {
                last = nodes[last].next;
            } else {
                return Some((start, end));
            }
        }
    }
}
