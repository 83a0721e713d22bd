//! What to do when nothing free fits: choose a window of addresses for the request and the pages to back it.
//!
//! A window starts in a free extent and runs on into unbacked addresses, or lies in a void. Each unbacked
//! slot is filled in the cheapest way there is:
//! 1. *wake* a dormant mapping whose page is wholly free: no driver call at all;
//! 2. *alias* a wholly free page from elsewhere: one mapping, its old address goes dormant;
//! 3. *create* a page.
//!
//! Planning changes the books as if all calls will succeed (the window is `Busy`, its pages are spoken for);
//! `settle` then makes them agree with what did happen. Because an aliased page keeps its old mapping, taking
//! a plan back needs no driver call.
//!
//! Caller: `pool::miss`, holding `Grow` throughout and `Heap` while in here.

use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::order::COMMON;
use super::page::{MappingId, Page, PageId};
use super::size::{round_down, round_up};
use super::space::Found;
use crate::base::units::PageHandle;

/// Free extents looked at as the beginning of a window.
const LOOK: usize = 48;
/// Pages gathered at most for one window beyond those it needs.
const SPARE_PAGES: u64 = 64 << 20;

/// Where pages may come from.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// Dormant mappings may be woken.
    pub wake: bool,
    /// Free pages may be mapped elsewhere.
    pub alias: bool,
    /// Bytes that may be created.
    pub create: u64,
    /// Pages are created no larger than this.
    pub page_max: u64,
}

/// A window and how to back it.
#[derive(Debug)]
pub struct Plan {
    /// The window, on no list.
    pub busy: NodeId,
    /// Dormant mappings in the way, all of whose work is complete.
    pub unmap: Vec<(u64, u64, MappingId)>,
    /// Pages to map.
    pub alias: Vec<Alias>,
    /// Pages to create and map: address, bytes.
    pub create: Vec<(u64, u64)>,
    /// Mappings that were only woken.
    pub woken: u64,
}

/// A page on its way to another address.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// Where it goes.
    pub at: u64,
    /// Which page.
    pub page: PageId,
    /// Its handle.
    pub handle: PageHandle,
    /// Its bytes.
    pub bytes: u64,
    /// Its mapping until now; NIL if it had none.
    pub old: MappingId,
}

/// How a piece of window is to be backed.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Wake(MappingId),
    Alias(u64, PageId),
    Create(u64, u64),
}

/// A window under consideration.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The node it starts in.
    first: NodeId,
    /// The block.
    start: u64,
    end: u64,
    /// Bytes that must be mapped.
    missing: u64,
    /// Mappings that must be removed first.
    conflicts: u64,
}

impl Window {
    fn cost(&self, slot: u64) -> u64 {
        self.missing / slot * 4 + self.conflicts * 3
    }
}

impl Heap {
    /// Plans a window for `len` bytes aligned to `align` that `stream` may use; none if the sources do not
    /// suffice or no range has room.
    pub fn plan(&mut self, len: u64, align: u64, stream: u32, sources: Sources) -> Option<Plan> {
        let window = self.choose_window(len, align, stream, sources.wake)?;
        let fills = self.choose_pages(&window, stream, sources);
        let fills = match fills {
            Some(fills) => fills,
            // a fresh place needs more pages, but has room for pages larger than the gap
            None if self.space.nodes[window.first].kind != Kind::Void => {
                let fresh = self.fresh_window(len, align)?;
                let fills = self.choose_pages(&fresh, stream, sources)?;
                return Some(self.enact(fresh, &fills));
            }
            None => return None,
        };
        Some(self.enact(window, &fills))
    }

    /// May this free extent be used by the stream?
    fn usable(&self, id: NodeId, stream: u32) -> bool {
        let node = &self.space.nodes[id];
        node.kind == Kind::Free && (node.owner == stream || node.owner == COMMON)
    }

    fn choose_window(&self, len: u64, align: u64, stream: u32, wake: bool) -> Option<Window> {
        let slot = self.space.slot();
        let mut best = self.fresh_window(len, align);
        let mut consider = |first: NodeId| {
            if let Some(window) = self.survey(first, len, align, stream, wake)
                && best
                    .as_ref()
                    .is_none_or(|best| window.cost(slot) < best.cost(slot))
            {
                best = Some(window);
            }
        };
        let nodes = &self.space.nodes;
        let arenas: &[u32] = if stream == COMMON {
            &[COMMON]
        } else {
            &[stream, COMMON]
        };
        for &arena in arenas {
            for id in self
                .arena(arena)
                .bins
                .descending(nodes, super::size::GRAIN)
                .take(LOOK)
            {
                let next = nodes[id].next;
                if next != NIL && nodes[next].kind != Kind::Live && nodes[next].kind != Kind::Slab {
                    consider(id);
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
                consider(prev);
            }
            consider(id);
        }
        best
    }

    /// A window in the tightest void with room for it.
    fn fresh_window(&self, len: u64, align: u64) -> Option<Window> {
        let slot = self.space.slot();
        let need = round_up(len, slot) + align.saturating_sub(slot);
        // room behind the window lets a page larger than the last gap be used there
        let roomy = self.space.voids.best(&self.space.nodes, need + SPARE_PAGES);
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

    /// What a window that starts in `first` would take; none if something is in the way.
    fn survey(&self, first: NodeId, len: u64, align: u64, stream: u32, wake: bool) -> Option<Window> {
        let slot = self.space.slot();
        let start = round_up(self.space.nodes[first].start, align);
        let end = start + len;
        if start >= self.space.nodes[first].end() {
            return None;
        }
        let mut window = Window {
            first,
            start,
            end,
            missing: 0,
            conflicts: 0,
        };
        let mut id = first;
        while id != NIL && self.space.nodes[id].start < end {
            let node = &self.space.nodes[id];
            match node.kind {
                Kind::Free if self.usable(id, stream) => {}
                Kind::Void => {
                    let from = round_down(node.start.max(start), slot);
                    window.missing += round_up(node.end().min(end), slot) - from;
                }
                Kind::Hole => {
                    let mut at = round_down(node.start.max(start), slot);
                    let to = round_up(node.end().min(end), slot);
                    while at < to {
                        let mapping = self.space.mapping_at(at);
                        let (from, bytes) = self.mapping_span(mapping);
                        if self.can_wake(mapping, &window, stream, wake) {
                            // woken whole, wherever the window begins in it
                        } else if self.can_unmap(mapping) {
                            window.conflicts += 1;
                            window.missing += (from + bytes).min(to) - at;
                        } else {
                            return None;
                        }
                        at = from + bytes;
                    }
                }
                _ => return None,
            }
            id = node.next;
        }
        (self.space.range_of(start) == self.space.range_of(end - 1)).then_some(window)
    }

    fn mapping_span(&self, mapping: MappingId) -> (u64, u64) {
        (self.pages.mapping(mapping).at, self.pages.page_of(mapping).bytes)
    }

    fn can_unmap(&self, mapping: MappingId) -> bool {
        let mapping = self.pages.mapping(mapping);
        self.is_complete(mapping.owner, mapping.seq)
    }

    /// Is the page of this dormant mapping wholly free for the stream, and outside the window?
    fn can_wake(&self, mapping: MappingId, window: &Window, stream: u32, wake: bool) -> bool {
        wake && self.free_page(self.pages.mapping(mapping).page, window, stream)
    }

    fn free_page(&self, page: PageId, window: &Window, stream: u32) -> bool {
        let page = self.pages.page(page);
        if page.active == NIL || page.taken {
            return false;
        }
        let at = self.pages.mapping(page.active).at;
        let outside = at + page.bytes <= window.start || at >= window.end;
        outside
            && match self.space.find(at) {
                Found::Start(id) | Found::Inside(id) => {
                    self.usable(id, stream) && self.space.nodes[id].end() >= at + page.bytes
                }
                Found::Outside => unreachable!("an active mapping is part of a range"),
            }
    }

    /// How to back a window; none if the sources do not suffice. Leaves no page `taken`.
    fn choose_pages(&mut self, window: &Window, stream: u32, sources: Sources) -> Option<Vec<Fill>> {
        let mut fills = Vec::new();
        let gaps = self.gaps(window, stream, sources.wake, &mut fills)?;
        for fill in &fills {
            if let Fill::Wake(mapping) = *fill {
                let page = self.pages.mapping(mapping).page;
                self.pages.page_mut(page).taken = true;
            }
        }
        let missing = gaps.iter().map(|gap| gap.1).sum();
        let mut pages = if sources.alias {
            self.donors(window, stream, missing)
        } else {
            Vec::new()
        };
        pages.sort_by_key(|&(page, bytes)| (bytes, page));
        let enough = self.fill_gaps(window, &gaps, &mut pages, sources, &mut fills);
        for fill in &fills {
            if let Fill::Wake(mapping) = *fill {
                let page = self.pages.mapping(mapping).page;
                self.pages.page_mut(page).taken = false;
            }
        }
        enough.then_some(fills)
    }

    /// The runs of slots that need pages, after what can be woken is.
    fn gaps(
        &self,
        window: &Window,
        stream: u32,
        wake: bool,
        fills: &mut Vec<Fill>,
    ) -> Option<Vec<(u64, u64)>> {
        let slot = self.space.slot();
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        let mut gap = |at: u64, bytes: u64| match gaps.last_mut() {
            Some(last) if last.0 + last.1 == at => last.1 += bytes,
            _ => gaps.push((at, bytes)),
        };
        let mut id = window.first;
        while id != NIL && self.space.nodes[id].start < window.end {
            let node = &self.space.nodes[id];
            let mut at = round_down(node.start.max(window.start), slot);
            let to = round_up(node.end().min(window.end), slot);
            match node.kind {
                Kind::Void => gap(at, to - at),
                Kind::Hole => {
                    while at < to {
                        let mapping = self.space.mapping_at(at);
                        let (from, bytes) = self.mapping_span(mapping);
                        if self.can_wake(mapping, window, stream, wake) {
                            // one page may have two dormant mappings in the window: it fills the first only
                            let page = self.pages.mapping(mapping).page;
                            let again = fills.iter().any(|fill| {
                                matches!(*fill, Fill::Wake(other) if self.pages.mapping(other).page == page)
                            });
                            if again {
                                if !self.can_unmap(mapping) {
                                    return None;
                                }
                                gap(at, (from + bytes).min(to) - at);
                            } else {
                                fills.push(Fill::Wake(mapping));
                            }
                        } else {
                            gap(at, (from + bytes).min(to) - at);
                        }
                        at = from + bytes;
                    }
                }
                _ => {}
            }
            id = node.next;
        }
        Some(gaps)
    }

    /// Wholly free pages outside the window, from the longest extents down, until there is enough.
    fn donors(&self, window: &Window, stream: u32, missing: u64) -> Vec<(PageId, u64)> {
        let slot = self.space.slot();
        let mut pages: Vec<(PageId, u64)> = self
            .pages
            .loose
            .iter()
            .map(|&page| (page, self.pages.page(page).bytes))
            .collect();
        let mut sum = pages.iter().map(|page| page.1).sum::<u64>();
        let nodes = &self.space.nodes;
        let arenas: &[u32] = if stream == COMMON {
            &[COMMON]
        } else {
            &[COMMON, stream]
        };
        for &arena in arenas {
            for id in self.arena(arena).bins.descending(nodes, slot) {
                let (start, end) = (nodes[id].start, nodes[id].end());
                let mut at = round_up(start, slot);
                while at + slot <= end {
                    let mapping = self.space.mapping_at(at);
                    let (from, bytes) = self.mapping_span(mapping);
                    let inside = from < window.end && from + bytes > window.start;
                    let page = self.pages.mapping(mapping).page;
                    if from >= start && from + bytes <= end && !inside && !self.pages.page(page).taken {
                        pages.push((page, bytes));
                        sum += bytes;
                    }
                    at = from + bytes;
                }
                if sum >= missing + SPARE_PAGES {
                    return pages;
                }
            }
        }
        pages
    }

    /// Fills the gaps from `pages` (ascending by size) and by creation. Largest pages first, since a mapping
    /// costs the same whatever its size; a page larger than what is left only at the end of the last gap.
    fn fill_gaps(
        &self,
        window: &Window,
        gaps: &[(u64, u64)],
        pages: &mut Vec<(PageId, u64)>,
        sources: Sources,
        fills: &mut Vec<Fill>,
    ) -> bool {
        let mut budget = sources.create;
        for (index, &(mut at, mut left)) in gaps.iter().enumerate() {
            while left > 0 {
                let fitting = pages.partition_point(|page| page.1 <= left);
                if fitting > 0 {
                    let (page, bytes) = pages.remove(fitting - 1);
                    fills.push(Fill::Alias(at, page));
                    at += bytes;
                    left -= bytes;
                } else if !pages.is_empty() && index + 1 == gaps.len() && self.room(window, at) >= pages[0].1
                {
                    let (page, _) = pages.remove(0);
                    fills.push(Fill::Alias(at, page));
                    left = 0;
                } else {
                    let bytes = left.min(sources.page_max);
                    // the largest power of two slots
                    let bytes = 1 << (63 - bytes.leading_zeros());
                    if bytes > budget {
                        return false;
                    }
                    budget -= bytes;
                    fills.push(Fill::Create(at, bytes));
                    at += bytes;
                    left -= bytes;
                }
            }
        }
        true
    }

    /// Unmapped bytes from `at`, inside or just behind the window, on.
    fn room(&self, window: &Window, at: u64) -> u64 {
        match self.space.find(at) {
            Found::Start(id) | Found::Inside(id) if self.space.nodes[id].kind == Kind::Void => {
                debug_assert!(at < window.end);
                self.space.nodes[id].end() - at
            }
            _ => 0,
        }
    }

    /// Changes the books for a chosen window: it becomes one `Busy` node of whole fills.
    fn enact(&mut self, window: Window, fills: &[Fill]) -> Plan {
        let slot = self.space.slot();
        let mut plan = Plan {
            busy: NIL,
            unmap: Vec::new(),
            alias: Vec::new(),
            create: Vec::new(),
            woken: 0,
        };
        // pages leave their places first: extents of the window are not among those
        for fill in fills {
            match *fill {
                Fill::Wake(mapping) => {
                    let page = self.pages.mapping(mapping).page;
                    self.detach(page);
                    plan.woken += 1;
                }
                Fill::Alias(at, page) => {
                    let old = self.pages.page(page).active;
                    if old == NIL {
                        self.pages.loose.retain(|&loose| loose != page);
                    } else {
                        self.stats.idle += self.detach(page);
                    }
                    let Page { handle, bytes, .. } = *self.pages.page(page);
                    plan.alias.push(Alias {
                        at,
                        page,
                        handle,
                        bytes,
                        old,
                    });
                }
                Fill::Create(at, bytes) => plan.create.push((at, bytes)),
            }
        }
        // then the window's pieces, in address order, become one node
        let reach = fills.iter().map(|fill| match *fill {
            Fill::Wake(mapping) => self.mapping_span(mapping).0 + self.mapping_span(mapping).1,
            Fill::Alias(at, page) => at + self.pages.page(page).bytes,
            Fill::Create(at, bytes) => at + bytes,
        });
        let end = reach.max().unwrap_or(0).max(window.end);
        // the window's own start may be inside a woken page that began earlier
        let low = fills.iter().filter_map(|fill| match *fill {
            Fill::Wake(mapping) => Some(self.mapping_span(mapping).0),
            _ => None,
        });
        let start = low.min().unwrap_or(u64::MAX).min(window.start);
        let mut busy = NIL;
        let mut at = start;
        while at < end {
            let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
                unreachable!("in a range")
            };
            let node = &self.space.nodes[id];
            let (kind, node_end) = (node.kind, node.end());
            let piece = match kind {
                Kind::Free => self.cut_free(id, at, node_end.min(end)),
                Kind::Hole | Kind::Void => {
                    let (mut from, mut to) = (round_down(at, slot), round_up(node_end.min(end), slot));
                    if kind == Kind::Hole {
                        from = from
                            .min(self.mapping_span(self.space.mapping_at(from)).0)
                            .max(node.start);
                        let (last, bytes) = self.mapping_span(self.space.mapping_at(to - slot));
                        to = to.max(last + bytes);
                    }
                    self.space.carve_unbacked(id, from, to)
                }
                _ => unreachable!("a window holds nothing in use: {kind:?}"),
            };
            self.space.nodes[piece].kind = Kind::Busy;
            at = self.space.nodes[piece].end();
            busy = if busy == NIL {
                piece
            } else {
                self.space.merge(busy);
                busy
            };
        }
        plan.busy = busy;
        for fill in fills {
            if let Fill::Wake(mapping) = *fill {
                self.pages.wake(mapping);
            }
        }
        // dormant mappings that are left where a page must go, or that the window cut into, are in the way
        let mut at = round_up(self.space.nodes[busy].start, slot);
        while at < self.space.nodes[busy].end() {
            let mapping = self.space.mapping_at(at);
            if mapping == NIL {
                at += slot;
                continue;
            }
            let (from, bytes) = self.mapping_span(mapping);
            let covered = |place: u64, len: u64| place < from + bytes && from < place + len;
            let in_way = plan.alias.iter().any(|alias| covered(alias.at, alias.bytes))
                || plan.create.iter().any(|&(place, len)| covered(place, len));
            if in_way && !self.pages.is_active(mapping) {
                plan.unmap.push((from, bytes, mapping));
            }
            at = from + bytes;
        }
        self.stats.idle += self.backed(busy);
        plan
    }

    /// Bytes of a `Busy` node that active mappings back.
    fn backed(&self, busy: NodeId) -> u64 {
        self.runs(busy)
            .iter()
            .filter(|run| run.2 == Kind::Free)
            .map(|run| run.1 - run.0)
            .sum()
    }

    /// A `Busy` node as runs of backed (`Free`), dormant (`Hole`) and unmapped (`Void`) addresses.
    fn runs(&self, busy: NodeId) -> Vec<(u64, u64, Kind)> {
        let slot = self.space.slot();
        let (start, end) = (self.space.nodes[busy].start, self.space.nodes[busy].end());
        let mut runs: Vec<(u64, u64, Kind)> = Vec::new();
        let mut at = start;
        while at < end {
            let mapping = self.space.mapping_at(at);
            let (to, kind) = if mapping == NIL {
                (round_down(at, slot) + slot, Kind::Void)
            } else {
                let (from, bytes) = self.mapping_span(mapping);
                (
                    from + bytes,
                    if self.pages.is_active(mapping) {
                        Kind::Free
                    } else {
                        Kind::Hole
                    },
                )
            };
            let to = to.min(end);
            match runs.last_mut() {
                Some(last) if last.2 == kind => last.1 = to,
                _ => runs.push((at, to, kind)),
            }
            at = to;
        }
        runs
    }

    /// Takes a wholly free page out of the extent it lies in; its mapping goes dormant. Returns its bytes.
    pub fn detach(&mut self, page: PageId) -> u64 {
        let (at, bytes) = self.mapping_span(self.pages.page(page).active);
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
            unreachable!("in a range")
        };
        let (owner, seq) = (self.space.nodes[id].owner, self.space.nodes[id].seq);
        let cut = self.cut_free(id, at, at + bytes);
        self.pages.rest(page, owner, seq);
        self.space.set_unbacked(cut, Kind::Hole);
        bytes
    }

    /// A mapping in a plan's way was removed.
    pub fn cleared(&mut self, mapping: MappingId) {
        let (at, bytes) = self.mapping_span(mapping);
        self.space.set_mapping(at, bytes, NIL);
        self.pages.remove_mapping(mapping);
    }

    /// A page of a plan was mapped.
    pub fn mapped(&mut self, page: PageId, at: u64) {
        let bytes = self.pages.page(page).bytes;
        let mapping = self.pages.add_mapping(page, at);
        self.space.set_mapping(at, bytes, mapping);
    }

    /// A page was created. It is mapped nowhere yet.
    pub fn created(&mut self, handle: PageHandle, bytes: u64) -> PageId {
        self.stats.idle += bytes;
        self.stats.reserved += bytes;
        self.stats.reserved_peak = self.stats.reserved_peak.max(self.stats.reserved);
        self.pages.add(handle, bytes)
    }

    /// Ends a plan, carried out or not: what is backed is free for `stream`, pages that did not get to their
    /// new place are free at the old one, and the rest of the window is a hole or void again.
    pub fn settle(&mut self, plan: &Plan, stream: u32) {
        self.stats.idle -= self.backed(plan.busy);
        let runs = self.runs(plan.busy);
        let mut rest = plan.busy;
        for (index, &(_, to, kind)) in runs.iter().enumerate() {
            let piece = rest;
            if index + 1 < runs.len() {
                rest = self.space.split(piece, to);
            }
            match kind {
                // the stream's: some pages may come from memory that only this stream may use yet
                Kind::Free => self.put_free(piece, stream),
                kind => self.space.set_unbacked(piece, kind),
            }
        }
        for alias in &plan.alias {
            if self.pages.page(alias.page).active == NIL {
                self.put_back(alias.page, alias.old);
            }
        }
    }

    /// A page in transit is usable at its old address again, or loose if it had none.
    pub fn put_back(&mut self, page: PageId, old: MappingId) {
        if old == NIL {
            self.pages.loose.push(page);
            return;
        }
        let (at, bytes) = self.mapping_span(old);
        let owner = self.pages.mapping(old).owner;
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
            unreachable!("in a range")
        };
        self.pages.wake(old);
        let piece = self.space.carve_unbacked(id, at, at + bytes);
        self.stats.idle -= bytes;
        // if its stream has come to an end, all that was queued on it is complete
        let owner = if self.arenas[owner as usize].is_some() {
            owner
        } else {
            COMMON
        };
        self.put_free(piece, owner);
    }
}
