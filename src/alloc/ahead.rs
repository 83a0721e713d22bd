//! Memory made ahead of use: how much of it there is, when to look again, and where more of it goes.
//!
//! What is at hand is counted in wholly free pages, whosever they are: such a page serves any request, here or mapped
//! somewhere else, so a pool that has enough of them needs no more. What is free in pieces serves whom it happens to fit.
//!
//! Invariant: `mark` is above `high`, so nobody looks again for a program that takes no more than it once did.
//!
//! Callers: `Pool`, for each allocation, and `pool::ahead`, holding `Grow` throughout and `Heap` while in here.

use super::heap::Heap;
use super::node::{Kind, NIL};
use super::order::COMMON;
use super::plan::{Fill, Window};
use super::transit::Plan;

/// Free extents looked at for one that can become longer.
const LOOK: usize = 24;

/// When somebody has to look whether there is enough ahead.
#[derive(Debug)]
pub struct Ahead {
    /// An allocation that finds so much taken has to look further; none has, if nobody is ever to look.
    mark: u64,
    /// The most that was taken since there is a mark.
    high: u64,
    /// Nobody is to look just now: somebody is at it, or it would be in vain.
    rests: bool,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead {
            mark: u64::MAX,
            high: 0,
            rests: true,
        }
    }
}

impl Ahead {
    /// Somebody is to look when so much is taken, and more than ever.
    pub fn look_at(&mut self, taken: u64) {
        self.mark = taken.max(self.high + 1);
        self.rests = false;
    }

    /// Nobody is to look until `look_at` is called again.
    pub fn rest(&mut self) {
        self.rests = true;
    }

    /// More is taken than ever: is somebody to look? Says so once.
    fn rises(&mut self, taken: u64) -> bool {
        (self.high, self.mark) = (taken, taken + 1);
        !std::mem::replace(&mut self.rests, true)
    }
}

impl Heap {
    /// Bytes that are not free, nor on their way somewhere.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.stats.used + self.stats.cached + self.stats.pending
    }

    /// Something was allocated: has somebody to look now? Says so once.
    #[inline]
    pub fn is_look_due(&mut self) -> bool {
        let taken = self.taken();
        taken >= self.ahead.mark && self.ahead.rises(taken)
    }

    /// Bytes of wholly free pages, captures' aside; counted no further than `enough`.
    pub fn at_hand(&self, enough: u64) -> u64 {
        let loose = self.pages.loose.iter();
        let mut sum = loose.map(|&page| self.pages.page(page).bytes).sum::<u64>();
        let (nodes, slot) = (&self.space.nodes, self.space.slot());
        let arenas = self.arenas.iter().flatten();
        for arena in arenas.filter(|arena| arena.id.capture.is_none()) {
            for id in arena.bins.descending(nodes, slot) {
                let (start, end) = (nodes[id].start, nodes[id].end());
                let mut at = start;
                while at < end && sum < enough {
                    let (from, bytes) = self.pages.span(self.space.mapping_at(at));
                    if from >= start && from + bytes <= end {
                        sum += bytes;
                    }
                    at = from + bytes;
                }
                if sum >= enough {
                    return sum;
                }
            }
        }
        sum
    }

    /// Plans a page that nobody has asked for: behind one of the longest extents that are everybody's, so that this
    /// becomes longer, or else in a fresh place. None: no range has room.
    pub fn plan_ahead(&mut self, bytes: u64) -> Option<Plan> {
        let (nodes, slot) = (&self.space.nodes, self.space.slot());
        let longest = self.arena(COMMON).bins.descending(nodes, slot).take(LOOK);
        let behind = longest.map(|id| nodes[id].next).find(|&next| {
            next != NIL && nodes[next].kind == Kind::Void && nodes[next].len >= bytes && !self.apart
        });
        let window = match behind {
            Some(first) => {
                let start = nodes[first].start;
                Window {
                    first,
                    start,
                    end: start + bytes,
                    missing: bytes,
                    conflicts: 0,
                }
            }
            None => self.fresh_window(bytes, slot)?,
        };
        let at = window.start;
        Some(self.enact(&window, &[Fill::Create { at, bytes }]))
    }
}
