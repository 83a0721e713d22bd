//! Carrying out what `plan` chose. `enact` changes the books as if all calls will succeed: the window is one
//! `Busy` node, and pages have left their old homes. The pool makes the driver's calls and reports each one.
//! `settle` then makes the books agree with what did happen; because an aliased page keeps its old mapping,
//! taking back what did not happen needs no driver call.
//!
//! Between `enact` and `settle` the bytes concerned count as idle.
//!
//! Caller: `pool::miss`, holding `Grow` throughout and `Heap` while in here; and `replay`, holding `Heap` throughout, for pages that wake,
//! which takes no call: what a miss is about is `Busy`.

use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::order::COMMON;
use super::page::{MappingId, PageId};
use super::plan::{Fill, Window};
use super::size::round_down;
use super::space::Found;
use crate::base::units::PageHandle;

/// What the pool is to do, and what of it is done.
#[derive(Debug, Default)]
pub struct Plan {
    /// The window, on no list.
    busy: NodeId,
    /// Addresses of the window where bytes are at home.
    home: Vec<(u64, u64)>,
    /// Dormant mappings in the way, all of whose work is complete: address, bytes.
    pub clear: Vec<(u64, u64, MappingId)>,
    /// Pages to map.
    pub alias: Vec<Alias>,
    /// Pages to create and map: address, bytes.
    pub create: Vec<(u64, u64)>,
    /// Pages that came home without a call.
    pub woken: u64,
    /// No window of this length is remembered.
    pub novel: bool,
    /// One of this length was made when the very same bytes were free.
    pub known: bool,
    /// It makes pages that the request's window lacks, in a place of their own: to be planned again.
    pub aside: bool,
    /// Some of it comes from memory that only the asking stream may use yet.
    own: bool,
}

/// A page on its way to another address.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// Where it is to be mapped.
    pub at: u64,
    /// Its handle.
    pub handle: PageHandle,
    /// Its bytes.
    pub bytes: u64,
    page: PageId,
    /// The bytes that come home.
    lo: u64,
    hi: u64,
    /// Their home until now; NIL: the page was loose.
    from: MappingId,
    /// Whose they were, and under which number.
    owner: (u32, u64),
    done: bool,
}

impl Heap {
    /// Changes the books for a chosen window.
    pub(super) fn enact(&mut self, window: &Window, fills: &[Fill]) -> Plan {
        let len = window.end - window.start;
        let plan = Plan {
            known: self.windows.at(self.shape, len).is_some(),
            novel: self.windows.note(self.shape, len, window.start),
            ..Plan::default()
        };
        self.enact_as(plan, (window.start, window.end), fills)
    }

    pub(super) fn enact_as(
        &mut self,
        mut plan: Plan,
        (mut start, mut end): (u64, u64),
        fills: &[Fill],
    ) -> Plan {
        let mut reach = |from: u64, to: u64| {
            start = start.min(from);
            end = end.max(to);
        };
        // bytes leave their homes first: none of those lies in the window
        for fill in fills {
            match *fill {
                Fill::Wake { at, to, from } => {
                    let here = self.pages.mapping(self.space.mapping_at(at)).at;
                    plan.own |= self.vacate(from, at - here, to - here).0 != COMMON;
                    reach(at, to);
                }
                Fill::Clear(mapping) => {
                    let (at, bytes) = self.pages.span(mapping);
                    plan.clear.push((at, bytes, mapping));
                    reach(at, at + bytes);
                }
                Fill::Alias {
                    at,
                    page,
                    lo,
                    hi,
                    from,
                } => {
                    let owner = if from == NIL {
                        self.pages.loose.retain(|&loose| loose != page);
                        (COMMON, 0)
                    } else {
                        self.vacate(from, lo, hi)
                    };
                    plan.own |= owner.0 != COMMON;
                    let (handle, bytes) = (self.pages.page(page).handle, self.pages.page(page).bytes);
                    plan.alias.push(Alias {
                        at,
                        handle,
                        bytes,
                        page,
                        lo,
                        hi,
                        from,
                        owner,
                        done: false,
                    });
                    reach(at, at + bytes);
                }
                Fill::Create { at, bytes } => {
                    plan.create.push((at, bytes));
                    reach(at, at + bytes);
                }
            }
        }
        plan.busy = self.gather(start, end, &mut plan);
        for fill in fills {
            if let Fill::Wake { at, to, .. } = *fill {
                let mapping = self.space.mapping_at(at);
                self.pages.come_home(mapping, to - at);
                plan.home.push((at, to));
                plan.woken += 1;
            }
        }
        plan
    }

    /// Makes `[at, at + len)` one `Busy` node, all of whose bytes are at home: it is mapped, and each of its bytes is free, here or
    /// where it is at home.
    pub(super) fn claim(&mut self, at: u64, len: u64) -> NodeId {
        let mut fills = Vec::new();
        let (mut next, end) = (at, at + len);
        while next < end {
            let (Found::Start(id) | Found::Inside(id)) = self.space.find(next) else {
                unreachable!("in a range")
            };
            let to = self.space.nodes[id].end().min(end);
            next = match self.space.nodes[id].kind {
                Kind::Free => to,
                Kind::Hole => {
                    let (from, to) = self.home_from(next, to);
                    fills.push(Fill::Wake { at: next, to, from });
                    to
                }
                kind => unreachable!("nothing in use lies there: {kind:?}"),
            };
        }
        let plan = self.enact_as(Plan::default(), (at, end), &fills);
        self.stats.idle -= len;
        plan.busy
    }

    /// Where the byte at `at`, in a hole, is at home, and up to where, not beyond `to`, those behind it are at home with it.
    fn home_from(&self, at: u64, to: u64) -> (MappingId, u64) {
        let here = self.space.mapping_at(at);
        let (start, bytes) = self.pages.span(here);
        let homes = self.pages.page_of(here).homes.iter();
        let found = homes.copied().find_map(|home| {
            let there = self.pages.mapping(home).at;
            match self.space.find(there + (at - start)) {
                Found::Start(id) | Found::Inside(id) if self.space.nodes[id].kind == Kind::Free => {
                    Some((home, (start + self.space.nodes[id].end()).saturating_sub(there)))
                }
                _ => None,
            }
        });
        let (home, free) = found.expect("it is free at home");
        (home, to.min(free).min(start + bytes))
    }

    /// Makes `[start, end)`, free extents and unbacked addresses, one `Busy` node, and notes what of it was
    /// free.
    fn gather(&mut self, start: u64, end: u64, plan: &mut Plan) -> NodeId {
        let (mut busy, mut at) = (NIL, start);
        while at < end {
            let (Found::Start(id) | Found::Inside(id)) = self.space.find(at) else {
                unreachable!("in a range")
            };
            let to = self.space.nodes[id].end().min(end);
            let piece = match self.space.nodes[id].kind {
                Kind::Free => {
                    self.stats.idle += to - at;
                    plan.home.push((at, to));
                    plan.own |= self.space.nodes[id].owner != COMMON;
                    let piece = self.cut_free(id, at, to);
                    self.space.nodes[piece].kind = Kind::Busy;
                    piece
                }
                Kind::Hole | Kind::Void => self.space.carve_unbacked(id, at, to),
                kind => unreachable!("a window holds nothing in use: {kind:?}"),
            };
            if busy == NIL {
                busy = piece;
            } else {
                self.space.merge(busy);
            }
            at = to;
        }
        busy
    }

    /// The bytes `[lo, hi)` of a page, free at home in `mapping`, leave it and count as idle. Returns whose
    /// they were, and under which number.
    pub(super) fn vacate(&mut self, mapping: MappingId, lo: u64, hi: u64) -> (u32, u64) {
        let at = self.pages.mapping(mapping).at;
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at + lo) else {
            unreachable!("in a range")
        };
        let (owner, seq) = (self.space.nodes[id].owner, self.space.nodes[id].seq);
        let piece = self.cut_free(id, at + lo, at + hi);
        let user = (!self.is_complete(owner, seq)).then_some((owner, seq));
        self.pages.leave_home(mapping, hi - lo, user);
        self.space.set_unbacked(piece, Kind::Hole);
        self.stats.idle += hi - lo;
        (owner, seq)
    }

    /// The idle bytes `[lo, hi)` of a page come home to `mapping`, where there is a hole, and are free for
    /// `owner` since `seq`.
    pub(super) fn occupy(&mut self, mapping: MappingId, lo: u64, hi: u64, (owner, seq): (u32, u64)) {
        let at = self.pages.mapping(mapping).at;
        let (Found::Start(id) | Found::Inside(id)) = self.space.find(at + lo) else {
            unreachable!("in a range")
        };
        let piece = self.space.carve_unbacked(id, at + lo, at + hi);
        self.pages.come_home(mapping, hi - lo);
        self.stats.idle -= hi - lo;
        match owner {
            COMMON => self.put_free(piece, COMMON),
            owner => self.put_free_since(piece, owner, seq),
        }
    }

    /// A mapping in a plan's way was removed.
    pub fn cleared(&mut self, mapping: MappingId) {
        let (at, bytes) = self.pages.span(mapping);
        self.space.set_mapping(at, bytes, NIL);
        self.forget(mapping);
    }

    /// Page number `index` of a plan's aliases was mapped.
    pub fn aliased(&mut self, plan: &mut Plan, index: usize) {
        let alias = &mut plan.alias[index];
        alias.done = true;
        let Alias { at, page, lo, hi, .. } = *alias;
        self.mapped(plan, page, at, lo, hi);
    }

    /// A page was created. It is mapped nowhere yet.
    pub fn created(&mut self, handle: PageHandle, bytes: u64) -> PageId {
        self.stats.idle += bytes;
        self.stats.reserved += bytes;
        self.stats.reserved_peak = self.stats.reserved_peak.max(self.stats.reserved);
        self.pages.add(handle, bytes)
    }

    /// A page was mapped in a plan's window, and `[lo, hi)` of it is at home there.
    pub fn mapped(&mut self, plan: &mut Plan, page: PageId, at: u64, lo: u64, hi: u64) {
        let bytes = self.pages.page(page).bytes;
        let mapping = self.pages.add_mapping(page, at);
        self.space.set_mapping(at, bytes, mapping);
        self.pages.come_home(mapping, hi - lo);
        plan.home.push((at + lo, at + hi));
    }

    /// Ends a plan, carried out or not: what is at home in the window is free for everybody, or for `stream`
    /// if only it may use some of that yet; what did not get there is free where it was, and the rest of the window is hole or void again.
    pub fn settle(&mut self, mut plan: Plan, stream: u32) {
        plan.home.sort_unstable();
        let (mut rest, end) = (plan.busy, self.space.nodes[plan.busy].end());
        let mut at = self.space.nodes[rest].start;
        let mut homes = plan.home.iter().copied().peekable();
        while at < end {
            let (to, kind) = match homes.peek().copied() {
                Some((from, mut to)) if from == at => {
                    homes.next();
                    while let Some((_, further)) = homes.next_if(|next| next.0 == to) {
                        to = further;
                    }
                    (to, Kind::Free)
                }
                next => self.unbacked_run(at, next.map_or(end, |next| next.0)),
            };
            let piece = rest;
            if to < end {
                rest = self.space.split(piece, to);
            }
            if kind == Kind::Free {
                self.stats.idle -= to - at;
                self.put_free(piece, if plan.own { stream } else { COMMON });
            } else {
                self.space.set_unbacked(piece, kind);
            }
            at = to;
        }
        for alias in plan.alias.iter().filter(|alias| !alias.done) {
            if alias.from == NIL {
                self.pages.loose.push(alias.page);
            } else {
                // if its stream has come to an end all that was queued on it is complete, and whoever has its index now may have it
                let owner = if self.arenas[alias.owner.0 as usize].is_some() {
                    alias.owner
                } else {
                    (COMMON, 0)
                };
                self.occupy(alias.from, alias.lo, alias.hi, owner);
            }
        }
    }

    /// How far from `at`, not beyond `end`, addresses are mapped, or not mapped, alike.
    fn unbacked_run(&self, at: u64, end: u64) -> (u64, Kind) {
        let slot = self.space.slot();
        let kind_at = |at| {
            if self.space.mapping_at(at) == NIL {
                Kind::Void
            } else {
                Kind::Hole
            }
        };
        let kind = kind_at(at);
        let mut to = round_down(at, slot) + slot;
        while to < end && kind_at(to) == kind {
            to += slot;
        }
        (to.min(end), kind)
    }
}
