//! What to do when nothing free fits: choose a window of addresses for the request and the pages to back it.
//!
//! A window starts in a free extent and runs on into unbacked addresses, or lies in a void. Each unbacked
//! piece is filled in the cheapest way there is:
//! 1. *wake*: the page mapped there is free at another address. It comes home: no driver call at all;
//! 2. *alias*: a wholly free page from elsewhere is mapped here too, and leaves its old address;
//! 3. *create* a page; where nearly all of a window is pages that move, beside it first (`plan_aside`).
//!
//! Choosing changes nothing but `Page::taken` for its own use; `transit` carries the choice out. The search is
//! bounded, except that it walks free extents for whole pages until it has enough of them.
//!
//! Caller: `pool::miss`, holding `Grow` throughout and `Heap` while in here; `wake_at` needs `Heap` alone.

use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::order::COMMON;
use super::page::{Mapping, MappingId, PageId};
use super::size::{GRAIN, round_down, round_up};
use super::space::Found;
use super::transit::Plan;

/// Free extents, and holes, looked at as the beginning of a window.
const LOOK: usize = 24;
/// Room wanted behind a fresh window.
const SPARE: u64 = 64 << 20;

/// In proportion to the driver's prices: 19.5 us to map a page, of four slots mostly...
const MISSING: u64 = 3;
/// ...and 13 us to unmap one.
const CONFLICT: u64 = 8;

/// A window is made of pages that move if they are more than so many times what is created for it.
const MOSTLY: u64 = 4;

/// Where pages may come from.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// Pages mapped where they are needed may come home there.
    pub wake: bool,
    /// Wholly free pages may be mapped elsewhere.
    pub alias: bool,
    /// The free ends of partly used pages may be joined.
    pub join: bool,
    /// Bytes that may be created.
    pub create: u64,
    /// Pages are created no smaller than this, if bytes and addresses allow.
    pub page_min: u64,
    /// Pages are powers of two no larger than this...
    pub page_max: u64,
    /// ...unless this is not 0: then one is as long as the gap that it fills, up to this.
    pub page_whole: u64,
    /// What pages that move do not suffice for is created beside the window, not in it.
    pub aside: bool,
    /// A window that leaves next to nothing over comes before a cheaper one (`exact`).
    pub exact: bool,
}

impl Sources {
    /// Pages that are mapped where they are needed.
    pub const WAKE: Sources = Sources {
        wake: true,
        alias: false,
        join: false,
        create: 0,
        page_min: 0,
        page_max: 0,
        page_whole: 0,
        aside: true,
        exact: false,
    };

    /// May pages be mapped at all?
    fn maps(&self) -> bool {
        self.alias || self.join || self.create > 0
    }
}

/// How a piece of a window is to be backed. All addresses are the window's.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// A mapped piece comes home from another mapping of the same page.
    Wake {
        /// First address of the piece.
        at: u64,
        /// One past its last.
        to: u64,
        /// Its home until now.
        from: MappingId,
    },
    /// The dormant mapping is in the way.
    Clear(MappingId),
    /// A page is mapped here, and some of its bytes come home.
    Alias {
        /// Where it is mapped.
        at: u64,
        /// Which page.
        page: PageId,
        /// First byte of the page that comes home.
        lo: u64,
        /// One past the last.
        hi: u64,
        /// Their home until now; NIL: the page is loose.
        from: MappingId,
    },
    /// A page is created and mapped.
    Create {
        /// Where.
        at: u64,
        /// Its bytes.
        bytes: u64,
    },
}

/// A window under consideration.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The node it starts in.
    pub first: NodeId,
    /// First address of the block.
    pub start: u64,
    /// One past its last.
    pub end: u64,
    /// Bytes that must be mapped.
    pub(super) missing: u64,
    /// Mappings that must be removed first.
    pub(super) conflicts: u64,
}

impl Window {
    /// In units of 1.6 us.
    pub(super) fn cost(&self, slot: u64) -> u64 {
        self.missing / slot * MISSING + self.conflicts * CONFLICT
    }

    /// Does any of `[from, to)` lie in the window?
    pub fn overlaps(&self, from: u64, to: u64) -> bool {
        from < self.end && to > self.start
    }
}

impl Heap {
    /// Plans a window for `len` bytes aligned to `align` that `stream` may use; none if the sources do not
    /// suffice or no range has room.
    pub fn plan(&mut self, len: u64, align: u64, stream: u32, sources: Sources) -> Option<Plan> {
        if self.apart {
            return self.plan_page(len, align, sources);
        }
        // before hundreds of windows are looked at in vain
        let hopeless = !sources.maps() && self.space.holes.is_empty();
        if hopeless || self.free_for(stream).saturating_add(sources.create) < len {
            return None;
        }
        if sources.join {
            let (window, fills) = self.choose_join(len, align, stream, sources)?;
            return Some(self.enact(&window, &fills));
        }
        let mut window = self.choose_window(len, align, stream, sources)?;
        let mut fills = self.choose_pages(&window, stream, sources);
        if fills.is_none() && sources.maps() && self.space.nodes[window.first].kind != Kind::Void {
            // a fresh place needs more pages, but has room for pages larger than the gap
            window = self.fresh_window(len, align)?;
            fills = self.choose_pages(&window, stream, sources);
        }
        let (fills, used_up) = fills?;
        if sources.aside
            && !self.rest.has_grown(self.needed)
            && used_up
            && let Some(plan) = self.plan_aside(&fills)
        {
            return Some(plan);
        }
        Some(self.enact(&window, &fills))
    }

    /// Plans the pages that a window of moved ones would lack, in a place of their own. Created in it they would be at home there,
    /// and in the next round small blocks would be in its way. None: it is not such a window.
    fn plan_aside(&mut self, fills: &[Fill]) -> Option<Plan> {
        let (mut moved, mut created) = (0, 0);
        for fill in fills {
            match *fill {
                Fill::Alias { lo, hi, .. } => moved += hi - lo,
                Fill::Create { bytes, .. } => created += bytes,
                Fill::Wake { .. } | Fill::Clear(_) => {}
            }
        }
        if created == 0 || moved <= MOSTLY * created {
            return None;
        }
        let window = self.fresh_window(created, GRAIN)?;
        let mut next = window.start;
        let pages = fills.iter().filter_map(|fill| match *fill {
            Fill::Create { bytes, .. } => {
                let at = next;
                next += bytes;
                Some(Fill::Create { at, bytes })
            }
            _ => None,
        });
        let pages: Vec<_> = pages.collect();
        let mut plan = self.enact(&window, &pages);
        plan.aside = true;
        Some(plan)
    }

    /// Has such a request been given a window when the very same bytes were free?
    pub fn has_been_given(&self, len: u64) -> bool {
        // where pages stay apart no page wakes, and what is free is not joined across them
        !self.apart && self.windows.at(self.shape, len).is_some()
    }

    /// Plans the window that such a request was given in this state, if all that it takes is pages that wake.
    pub fn plan_as_before(&mut self, len: u64, align: u64, stream: u32) -> Option<Plan> {
        self.reunite(stream);
        let start = self.window_before(len, align)?;
        self.plan_at(start, len, stream)
    }

    /// First address of the window that such a request was given when the very same bytes were free.
    fn window_before(&self, len: u64, align: u64) -> Option<u64> {
        let before = self.windows.at(self.shape, len);
        before.filter(|start| start.is_multiple_of(align))
    }

    /// Plans this window, if all that it takes is pages that wake.
    fn plan_at(&mut self, start: u64, len: u64, stream: u32) -> Option<Plan> {
        let window = self.survey(start, len, stream, Sources::WAKE, 1, false)?;
        let (fills, _) = self.choose_pages(&window, stream, Sources::WAKE)?;
        Some(self.enact(&window, &fills))
    }

    /// Cuts these very bytes out of an extent, if all of them are free for `stream`, or once pages wake.
    pub(super) fn wake_at(&mut self, at: u64, len: u64, stream: u32) -> Option<NodeId> {
        let cut = self.cut_at(at, len, stream);
        if cut.is_some() || self.apart {
            return cut;
        }
        let plan = self.plan_at(at, len, stream)?;
        self.settle(plan, stream);
        self.cut_at(at, len, stream)
    }

    /// May this free extent be used by the stream?
    pub(super) fn usable(&self, id: NodeId, stream: u32) -> bool {
        let node = &self.space.nodes[id];
        node.kind == Kind::Free && (node.owner == stream || node.owner == COMMON)
    }

    /// Bytes that are free for the stream, wherever they are.
    fn free_for(&self, stream: u32) -> u64 {
        let arenas = Heap::usable_arenas(stream).map(|arena| self.arena(arena).bins.bytes());
        arenas.sum::<u64>() + self.stats.idle
    }

    /// The arenas whose extents the stream may use.
    pub(super) fn usable_arenas(stream: u32) -> impl Iterator<Item = u32> {
        std::iter::once(COMMON).chain((stream != COMMON).then_some(stream))
    }

    fn choose_window(&self, len: u64, align: u64, stream: u32, sources: Sources) -> Option<Window> {
        let slot = self.space.slot();
        // a state that was there before goes on as it did then
        let before = self.window_before(len, align);
        let before = before.and_then(|start| self.survey(start, len, stream, sources, 1, false));
        if before.is_some() {
            return before;
        }
        // where blocks come and go in no order gaps do, too
        let exact = sources.exact && sources.maps() && !self.leeway.is_any();
        if exact && let Some(window) = self.exact_window(len, align, stream, sources) {
            return Some(window);
        }
        // without pages to map only a window that needs none will do
        let (mut best, mut most) = match sources.maps() {
            true => (self.fresh_window(len, align), u64::MAX),
            false => (None, 1),
        };
        if let Some(best) = &best {
            most = best.cost(slot);
        }
        let mut consider = |start: u64| {
            if most > 0
                && let Some(window) = self.survey(start, len, stream, sources, most, false)
            {
                most = window.cost(slot);
                best = Some(window);
            }
        };
        // where such a request, or a longer one, went before; its pages are elsewhere if there is no order in requests
        if !self.leeway.is_any() {
            let starts = self.windows.of(len);
            for start in starts.filter(|start| start.is_multiple_of(align)) {
                consider(start);
            }
        }
        let nodes = &self.space.nodes;
        let unbacked = |id: NodeId| id != NIL && matches!(nodes[id].kind, Kind::Hole | Kind::Void);
        for arena in Heap::usable_arenas(stream) {
            for id in self.arena(arena).bins.descending(nodes, GRAIN).take(LOOK) {
                let node = &nodes[id];
                if unbacked(node.next) {
                    consider(round_up(node.start, align));
                }
                if unbacked(node.prev) && node.end() > len {
                    consider(round_down(node.end() - len, align));
                }
            }
        }
        // holes about as long as the request: a layout that was there before
        for id in self
            .space
            .holes
            .ascending(nodes, round_down(len, slot))
            .take(LOOK)
        {
            let prev = nodes[id].prev;
            if prev != NIL && self.usable(prev, stream) && nodes[prev].len < len {
                consider(round_up(nodes[prev].start, align));
            }
            consider(round_up(nodes[id].start, align));
        }
        best
    }

    /// A window in the tightest void with room for it.
    pub(super) fn fresh_window(&self, len: u64, align: u64) -> Option<Window> {
        let slot = self.space.slot();
        let need = round_up(len, slot) + align.saturating_sub(slot);
        let roomy = self.space.voids.best(&self.space.nodes, need + SPARE);
        let first = if roomy != NIL {
            roomy
        } else {
            self.space.voids.best(&self.space.nodes, need)
        };
        (first != NIL).then(|| {
            let start = round_up(self.space.nodes[first].start, align);
            Window {
                first,
                start,
                end: start + len,
                missing: round_up(len, slot),
                conflicts: 0,
            }
        })
    }

    /// What a window at `start` would take; none if something is in the way or it costs `most` or more. If the layout is `new` no
    /// other one is expected to come back for which mappings should stay.
    pub(super) fn survey(
        &self,
        start: u64,
        len: u64,
        stream: u32,
        sources: Sources,
        most: u64,
        new: bool,
    ) -> Option<Window> {
        let slot = self.space.slot();
        let fresh = len.div_ceil(slot) * MISSING;
        let (Found::Start(first) | Found::Inside(first)) = self.space.find(start) else {
            return None;
        };
        let mut window = Window {
            first,
            start,
            end: start + len,
            missing: 0,
            conflicts: 0,
        };
        let mut woken = Vec::new();
        let (mut id, mut end) = (first, start);
        while end < window.end {
            if id == NIL {
                return None;
            }
            let node = &self.space.nodes[id];
            end = node.end();
            match node.kind {
                Kind::Free if self.usable(id, stream) => {}
                Kind::Void => {
                    window.missing +=
                        round_up(end.min(window.end), slot) - round_down(node.start.max(start), slot)
                }
                Kind::Hole => {
                    for piece in self.hole_pieces(id, &window) {
                        if sources.wake && self.wakes(piece, &window, stream, &mut woken).is_some() {
                            continue;
                        }
                        if !self.can_clear(piece.mapping) {
                            return None;
                        }
                        window.conflicts += 1;
                        window.missing +=
                            piece.to.min(round_up(window.end, slot)) - round_down(piece.at.max(start), slot);
                        let cost = window.cost(slot);
                        // what is recorded can be replayed if its mappings stay
                        let clears = || self.replay.is_watching() && self.rest.clears(cost, fresh);
                        if cost >= most || !new && !clears() {
                            return None; // a hole can be long
                        }
                    }
                }
                _ => return None,
            }
            if window.cost(slot) >= most {
                return None;
            }
            id = node.next;
        }
        Some(window)
    }

    /// The parts of a hole, mapping by mapping, that a window touches; each whole.
    fn hole_pieces(&self, hole: NodeId, window: &Window) -> impl Iterator<Item = Piece> + use<'_> {
        let (start, end) = (self.space.nodes[hole].start, self.space.nodes[hole].end());
        let last = end.min(window.end);
        let mut at = start.max(window.start);
        std::iter::from_fn(move || {
            (at < last).then(|| {
                let mapping = self.space.mapping_at(at);
                let (from, bytes) = self.pages.span(mapping);
                let piece = Piece {
                    mapping,
                    at: from.max(start),
                    to: (from + bytes).min(end),
                };
                at = piece.to;
                piece
            })
        })
    }

    /// Is the mapping dormant, with all work that could use it complete?
    pub(super) fn can_clear(&self, mapping: MappingId) -> bool {
        let mapping = self.pages.mapping(mapping);
        mapping.home == 0
            && mapping
                .users
                .iter()
                .all(|&(stream, seq)| self.is_complete(stream, seq))
    }

    /// The mapping where this piece of a page is at home and free for the stream, outside the window.
    fn home_of(&self, piece: Piece, window: &Window, stream: u32) -> Option<MappingId> {
        let Mapping { at: here, page, .. } = *self.pages.mapping(piece.mapping);
        let (lo, len) = (piece.at - here, piece.to - piece.at);
        let page = self.pages.page(page);
        page.homes.iter().copied().find(|&other| {
            let mapping = self.pages.mapping(other);
            let at = mapping.at + lo;
            other != piece.mapping
                && mapping.home >= len
                && !window.overlaps(at, at + len)
                && match self.space.find(at) {
                    Found::Start(id) | Found::Inside(id) => {
                        self.usable(id, stream) && self.space.nodes[id].end() >= at + len
                    }
                    Found::Outside => unreachable!("a mapping is part of a range"),
                }
        })
    }

    /// The piece that wakes here, and its home until now: as much of it as there is, or what lies in the window, as
    /// where ends of pages were joined. A page mapped twice in the window can be at home in one of the places
    /// only: the first, which `woken` has.
    fn wakes(
        &self,
        piece: Piece,
        window: &Window,
        stream: u32,
        woken: &mut Vec<PageId>,
    ) -> Option<(Piece, MappingId)> {
        let page = self.pages.mapping(piece.mapping).page;
        if woken.contains(&page) {
            return None;
        }
        let inside = Piece {
            at: piece.at.max(window.start),
            to: piece.to.min(window.end),
            ..piece
        };
        let home = |piece| Some((piece, self.home_of(piece, window, stream)?));
        let part = || (inside != piece).then(|| home(inside)).flatten();
        let found = home(piece).or_else(part)?;
        woken.push(page);
        Some(found)
    }

    /// How to back a window, and whether that takes all pages that could move; none if the sources do not suffice.
    fn choose_pages(&mut self, window: &Window, stream: u32, sources: Sources) -> Option<(Vec<Fill>, bool)> {
        let mut fills = Vec::new();
        let mut woken = Vec::new();
        let gaps = self.gaps(window, stream, sources.wake, &mut woken, &mut fills)?;
        for &page in &woken {
            self.pages.page_mut(page).taken = true;
        }
        let missing = gaps.iter().map(|gap| gap.1).sum();
        let mut pages = if sources.alias && missing > 0 {
            self.donors(window, stream, missing)
        } else {
            Vec::new()
        };
        let enough = self.fill_gaps(Some(window), &gaps, &mut pages, sources, &mut fills);
        for &page in &woken {
            self.pages.page_mut(page).taken = false;
        }
        enough.then_some((fills, pages.is_empty()))
    }

    /// The runs of slots that need pages, after what can be woken is; none if something is in the way.
    fn gaps(
        &self,
        window: &Window,
        stream: u32,
        wake: bool,
        woken: &mut Vec<PageId>,
        fills: &mut Vec<Fill>,
    ) -> Option<Vec<(u64, u64)>> {
        let slot = self.space.slot();
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        let mut gap = |at: u64, to: u64| {
            let (at, to) = (
                round_down(at.max(window.start), slot),
                round_up(to.min(window.end), slot),
            );
            match gaps.last_mut() {
                Some(last) if last.0 + last.1 == at => last.1 += to - at,
                _ => gaps.push((at, to - at)),
            }
        };
        let mut id = window.first;
        while id != NIL && self.space.nodes[id].start < window.end {
            let node = &self.space.nodes[id];
            match node.kind {
                Kind::Void => gap(node.start, node.end()),
                Kind::Hole => {
                    for piece in self.hole_pieces(id, window) {
                        let home = wake.then(|| self.wakes(piece, window, stream, woken));
                        if let Some((woken, from)) = home.flatten() {
                            fills.push(Fill::Wake {
                                at: woken.at,
                                to: woken.to,
                                from,
                            });
                        } else if self.can_clear(piece.mapping) {
                            fills.push(Fill::Clear(piece.mapping));
                            gap(piece.at, piece.to);
                        } else {
                            return None;
                        }
                    }
                }
                _ => {}
            }
            id = node.next;
        }
        Some(gaps)
    }
}

/// A part of a hole within one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    mapping: MappingId,
    at: u64,
    to: u64,
}
