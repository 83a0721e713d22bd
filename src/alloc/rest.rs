//! Pages on their way home.
//!
//! A page is created at one address, its *first* mapping, and moves to others when requests need it there. What is
//! free where depends on all those moves, and so does the place of each later block; a program that does the same
//! again would find other extents free each time, and other pages would have to be mapped for it, for ever. So when
//! the pool *comes to rest*, when as little is in use as ever between its latest moves, pages go back to their first
//! mappings, and the lists of free extents are put in order. What is free is then the same as the last time, the same
//! requests are served from the same places, and each window that they need is mapped already and wakes without a
//! call.
//!
//! Rounds that need no more than the ones before while the pool holds more than it may lose too much at the ends of
//! pages, or hold what only their first layouts needed. Then the pool *sheds*: what is free beyond what it may hold
//! goes back, with all pages that are too large, and what the next round needs it makes in smaller ones.
//!
//! Invariants: `below` is 0 unless pages have moved since the last rest with nothing in use; `watch` is the larger one
//! of `low` and `below`.
//! Callers: `Pool::alloc` asks whether it is time, a free whether it will be; `pool::miss`, with `Grow` throughout and `Heap` in here,
//! does the rest.

use super::flush::Whose;
use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::order::COMMON;
use super::page::PageId;
use super::sharing::May;
use super::space::Found;
use super::transit::Plan;

/// Moves whose low points are remembered; a program with more of them in one round comes to rest more often.
const LOWS: usize = 8;
/// The share of the peak in use that may be in use beyond the low point.
const NEAR: u64 = 64;

/// Allocations for each node before the pool may come to rest again, which is linear in nodes.
const TURNS: u64 = 2;
/// So many nodes are looked at in the time that a few page moves take...
const FEW: u64 = 2048;
/// ...and so many in the time that each other one took.
const EACH: u64 = 8;
/// Mappings of each page, on average, that are made before the pool may hold more memory so that pages need not move...
const TRIED: u64 = 16;
/// ...and in one round, before it expects no more that layouts come back.
const PATIENCE: u64 = 8;
/// Pages move on and on where so many mappings of each were made, on average, without a pause of so many allocations.
const ENDLESS: u64 = 64;
const PAUSE: u64 = 1024;
/// So many times as many, where streams may come to share otherwise.
const UNDECIDED: u64 = 8;
/// A round is like earlier ones if one in so many of its windows, and so many at least, are made in a state that was there before.
const ALIKE: u64 = 2;
/// A dormant mapping is removed although its layout may come back if a fresh window costs so many times as much...
const SAVING: u64 = 8;
/// ...and no more of them than one for so many pages.
const SPARED: u64 = 32;

/// So often rounds begin with less memory because they hold too much...
const SHEDS: u32 = 2;
/// ...or as often again once they need so many quarters of what they did.
const GROWN: u64 = 5;
/// They are rounds only where each begins with as much in use as the last one, but for so small a part of what is needed: the
/// low points of requests without order are all different.
const SAME: u64 = 1024;

/// A round has no more rests than this.
const ROUND: u32 = 64;

/// After so many frees in a row the next one may be the last before a low point.
const ROW: u32 = 4;
/// A row of more frees than this is long.
const LONG_ROW: u32 = 256;

/// A round of the program that begins.
struct Round {
    /// Like the one before.
    again: bool,
    /// Memory is to be shed before.
    sheds: bool,
}

/// When the pool comes to rest.
#[derive(Debug)]
pub struct Rest {
    /// An allocation that finds less than this in use has to look further.
    watch: u64,
    /// The least in use at any allocation since pages moved.
    low: u64,
    /// The pool is at rest when less than this is in use.
    below: u64,
    /// Frees since the heap's latest allocation, and which one that was.
    row: u32,
    row_of: u64,
    /// The lows between the latest moves, a ring.
    lows: [u64; LOWS],
    moves: usize,
    /// Bytes created since the pool last was at rest, or could have been.
    created: u64,
    /// It has been at rest.
    rested: bool,
    /// Pages mapped elsewhere, ever.
    moved: u64,
    /// Pages mapped without a pause, and the allocations when the latest was.
    endless: u64,
    latest: u64,
    /// Pages mapped since the first rest, or the latest round that was like the one before or began like it, less those that
    /// woke instead.
    mapped: u64,
    /// There were too many of them.
    gave_up: bool,
    /// Windows made in this round...
    windows: u64,
    /// ...and those of them in states that were there before.
    known: u64,
    /// Dormant mappings removed since the first rest.
    cleared: u64,
    /// So many may be.
    spared: u64,
    /// Allocations when the pool last came to rest, and pages that had moved.
    allocations: u64,
    moved_until: u64,
    /// The least that was in use at a rest...
    lowest: u64,
    /// ...and how many rests ago.
    since: u32,
    /// What the pool needed then, or when it was left as it had grown.
    needed: u64,
    /// What it needed when it first shed memory...
    shed_for: u64,
    /// ...and how often it has.
    sheds: u32,
}

impl Default for Rest {
    fn default() -> Rest {
        Rest {
            watch: u64::MAX,
            low: u64::MAX,
            below: 0,
            row: 0,
            row_of: 0,
            lows: [u64::MAX; LOWS],
            moves: 0,
            created: 0,
            rested: false,
            moved: 0,
            endless: 0,
            latest: 0,
            mapped: 0,
            gave_up: false,
            windows: 0,
            known: 0,
            cleared: 0,
            spared: 0,
            allocations: 0,
            moved_until: 0,
            lowest: u64::MAX,
            since: 0,
            needed: 0,
            shed_for: 0,
            sheds: 0,
        }
    }
}

impl Rest {
    /// May dormant mappings be removed for a window that costs so much, where a fresh one costs `fresh`? Always before
    /// the first rest, since the first layout is as good as any, and for a program that keeps asking for new ones.
    /// Else layouts are expected to come back, and it may though it is dearer for once, as a mapping that is needed
    /// again pushes another one out, in turns for ever: only now and then, where it saves nearly all.
    pub fn clears(&self, cost: u64, fresh: u64) -> bool {
        !self.rested || self.gave_up || cost * SAVING <= fresh && self.cleared < self.spared
    }

    /// Has the pool grown so much since it last was at rest, or could have been, that its layout is a new one?
    pub fn has_grown(&self, peak: u64) -> bool {
        self.created > peak / NEAR
    }

    /// An allocation finds so much in use: has the pool come to rest?
    fn is_due(&mut self, used: u64) -> bool {
        if used >= self.watch {
            return false;
        }
        self.low = self.low.min(used);
        self.watch = self.low.max(self.below);
        used < self.below
    }

    /// Something was freed after so many allocations: is so little in use now as at none since pages moved, or are there many
    /// frees in a row?
    fn is_low(&mut self, used: u64, allocations: u64) -> bool {
        if std::mem::replace(&mut self.row_of, allocations) != allocations {
            self.row = 0;
        }
        self.row += 1;
        used < self.low || self.row >= ROW
    }

    /// Were there only so many frees since the latest allocation that an event for each is not much?
    pub(super) fn is_row_short(&self) -> bool {
        self.row <= LONG_ROW
    }

    /// Pages have moved: some woke, some were mapped.
    fn moved(&mut self, woken: u64, mapped: u64, pages: u64, used: u64, peak: u64) {
        self.moved += mapped;
        if self.rested {
            self.mapped = (self.mapped + mapped).saturating_sub(woken);
            self.gave_up = self.mapped > PATIENCE * pages;
        }
        self.lows[self.moves % LOWS] = self.low.min(used);
        self.moves += 1;
        self.low = u64::MAX;
        self.below = self.floor() + peak / NEAR + 1;
        self.watch = u64::MAX;
    }

    /// Pages were mapped, after so many allocations.
    fn count_mapped(&mut self, mapped: u64, allocations: u64) {
        if allocations.wrapping_sub(std::mem::replace(&mut self.latest, allocations)) > PAUSE {
            self.endless = 0;
        }
        self.endless += mapped;
    }

    /// Dormant mappings were removed.
    fn count_cleared(&mut self, cleared: u64, pages: u64) {
        if self.rested {
            self.cleared += cleared;
        }
        self.spared = pages / SPARED;
    }

    /// Has the pool grown so much that the layout which it has now may do without any move?
    fn passes(&mut self, peak: u64) -> bool {
        let grown = self.has_grown(peak);
        self.created = 0;
        if grown {
            self.below = 0;
            self.watch = self.low;
        }
        grown
    }

    /// The pool has come to rest. That is the beginning of a round if less is in use than at the rests between. Memory `exceeds`
    /// what rounds that need so much may hold, or does not. Where all is `as_new` the round before was the pool's whole life.
    fn begin_round(&mut self, used: u64, needed: u64, exceeds: bool, as_new: bool) -> Option<Round> {
        self.since += 1;
        if used > self.lowest && self.since <= ROUND {
            return None;
        }
        let again = as_new || self.lowest.abs_diff(used) <= needed / SAME;
        (self.lowest, self.since) = (used, 0);
        // what comes again may find its layouts again, however many the rounds before have tried
        if self.is_alike() || again {
            (self.mapped, self.gave_up) = (0, false);
        }
        (self.windows, self.known) = (0, 0);
        let before = std::mem::replace(&mut self.needed, needed);
        // a little more or less is what threads keep
        let grows = needed.saturating_sub(before) > before / SAME && !(as_new && before == 0);
        let sheds = !grows && exceeds && again && self.may_shed(needed);
        Some(Round { again, sheds })
    }

    /// May a round begin with less memory, for what it needs?
    fn may_shed(&mut self, needed: u64) -> bool {
        if self.has_shed(needed) == 0 {
            (self.shed_for, self.sheds) = (needed, 0);
        }
        self.sheds += 1;
        self.sheds <= SHEDS
    }

    /// A round begins with less memory.
    #[cfg(test)]
    pub fn shed(&mut self, needed: u64) {
        assert!(self.may_shed(needed), "once too often");
    }

    /// How often has a pool shed memory that needs so much? Larger pages had it hold too much.
    pub fn has_shed(&self, needed: u64) -> u32 {
        if needed <= self.shed_for / 4 * GROWN {
            self.sheds
        } else {
            0
        }
    }

    /// Were most windows of this round made in states that had been there before?
    fn is_alike(&self) -> bool {
        self.known >= ALIKE && self.known * ALIKE >= self.windows
    }

    fn floor(&self) -> u64 {
        self.lows.iter().copied().min().expect("a low")
    }

    /// The pool was brought to rest while so much was in use. What is freed from now on may bring more pages home:
    /// halfway to the floor, and so on.
    fn taken(&mut self, used: u64) {
        let floor = if used > self.floor() { self.floor() } else { 0 };
        self.below = if used == 0 {
            0
        } else {
            floor + (used - floor) / 2 + 1
        };
        self.watch = self.low.max(self.below);
        self.rested = true;
    }
}

impl Heap {
    /// The pool has come to rest. False: it has just grown and may be `left` as it is; but not if it grew by chance, since its layout is chance
    /// then, or if nothing is in use and it holds more than `ample`, which it would shed the next time anyway.
    pub fn begin_rest(&mut self, left: bool, ample: u64) -> bool {
        self.wake_caches();
        let sheds = self.is_as_new(self.used_now()) && self.exceeds(ample);
        let stays = self.rest.passes(self.needed) && left && !self.holds_by_chance() && !sheds;
        if stays {
            self.rest.needed = self.needed;
            // until pages move, or nothing is in use: no layout is lost by a rest then
            self.rest.below = u64::from(!self.had_several_streams());
        }
        !stays
    }

    /// Brings every page that is wholly free home to its first mapping. Linear in pages and in free extents. Is memory to be
    /// shed, where more than `ample` is too much? What streams `may` do rather than look at each other.
    pub fn come_to_rest(&mut self, stream: u32, ample: u64, may: May) -> bool {
        // those of streams whose work is complete are everybody's, as what lies beside them is
        self.share_slabs();
        self.flush_slabs();
        self.absorb_common(stream);
        self.reunite(stream);
        for other in self.streams_now() {
            self.reunite(other);
        }
        let away: Vec<PageId> = self
            .pages
            .iter()
            .filter(|(_, page)| page.is_away())
            .map(|(id, _)| id)
            .collect();
        for page in away {
            self.go_home(page);
        }
        self.sort_bins();
        (self.rest.allocations, self.rest.moved_until) = (self.stats.allocations, self.stats.pages_moved);
        let exceeds = self.exceeds(ample);
        let used = self.used_now();
        let as_new = self.is_as_new(used);
        let round = self.rest.begin_round(used, self.needed, exceeds, as_new);
        self.rest.taken(used);
        let Some(Round { again, sheds }) = round else {
            return false;
        };
        self.leeway.begin_round(again);
        self.begin_round_of_streams(used, again, may);
        sheds
    }

    /// Is as little in use as before the program's first call? Where there are several streams what they hold then is chance.
    fn is_as_new(&self, used: u64) -> bool {
        used <= self.needed / SAME && !self.had_several_streams()
    }

    /// Does it hold too much, for which more than `ample` is? What leeway gave is given, and what chance made it hold it would hold again.
    fn exceeds(&self, ample: u64) -> bool {
        self.stats.reserved > ample && !self.holds_by_chance()
    }

    /// Does what it holds in this round depend on more than the round's requests: leeway, or how far streams had come?
    fn holds_by_chance(&self) -> bool {
        self.leeway.is_any() || self.had_several_streams() && self.sharing.is_busy()
    }

    /// Would it shed memory, if it came to rest again and again?
    pub fn will_shed(&self, ample: u64) -> bool {
        self.rest.has_shed(self.needed) < SHEDS && self.exceeds(ample)
    }

    /// The work that was queued is over, and the next round may begin: what is free becomes a function of the blocks that last, since what threads
    /// keep, and in which order extents became everybody's, differs from round to round, and with it where each block lies.
    pub fn tidy(&mut self) {
        self.flush(Whose::All, |_| false);
        self.share_slabs();
        self.sort_bins();
    }

    /// An allocation is about to be made: has the pool come to rest?
    #[inline(always)]
    pub fn is_rest_due(&mut self) -> bool {
        (self.stats.used < self.rest.watch.saturating_add(self.most_kept()) || self.is_resting())
            && self.is_rest_due_at_all()
    }

    #[inline(never)]
    fn is_rest_due_at_all(&mut self) -> bool {
        if !self.may_look() || self.sharing.is_by_threads() {
            return false;
        }
        let used = self.used_now();
        let due = self.rest.is_due(used) && self.may_rest(used);
        if !due && self.is_resting() {
            self.wake_caches();
        }
        due
    }

    /// Not again after a few allocations, which would be dear.
    fn may_rest(&self, used: u64) -> bool {
        let since = self.stats.allocations.wrapping_sub(self.rest.allocations);
        let nodes = self.space.nodes.count() as u64;
        // near a limit no mapping is kept for what comes home
        let paid = match self.is_crowded() {
            true => 0,
            false => EACH * self.stats.pages_moved.wrapping_sub(self.rest.moved_until),
        };
        used < self.most_at_rest() && (nodes <= FEW.max(paid) || since >= TURNS * nodes)
    }

    /// Less than this is in use at a rest. Where blocks come and go in no order that is hardly anything: what is moved home has to be
    /// moved again.
    fn most_at_rest(&self) -> u64 {
        match self.leeway.is_any() {
            true => self.rest.below.min(self.needed / NEAR),
            false => self.rest.below,
        }
    }

    /// Something was freed: will the pool come to rest at the next allocation? If threads served that, from what they kept
    /// wherever the round had left it, the next round would not be like this one.
    #[inline(always)]
    pub(super) fn expect_rest(&mut self) {
        // what guests of a replay leave says nothing
        if self.rest.below > 0 && !self.replay.is_on() && !self.sharing.is_by_threads() {
            self.expect_rest_now();
        }
    }

    #[inline(never)]
    fn expect_rest_now(&mut self) {
        let used = self.used_now();
        self.approach_rest(used.saturating_sub(self.most_at_rest()));
        let low = self.rest.is_low(used, self.stats.allocations);
        // where there are several streams all that was freed until then is to be covered, and what threads keep is not
        if self.may_rest(used) || low && self.has_several_streams() {
            self.still_caches();
        }
    }

    /// A plan was carried out.
    pub fn count_moves(&mut self, plan: &Plan) {
        self.rest.created += plan.create.iter().map(|&(_, bytes)| bytes).sum::<u64>();
        let (woken, mapped) = (plan.woken, plan.alias.len() as u64);
        self.stats.pages_moved += woken + mapped;
        self.sharing.mapped(mapped + plan.create.len() as u64);
        let pages = self.pages.count();
        self.rest.count_cleared(plan.clear.len() as u64, pages);
        if woken + mapped > 0 {
            let used = self.used_now();
            self.rest.moved(woken, mapped, pages, used, self.needed);
            if mapped > 0 {
                self.rest.count_mapped(mapped, self.calls().allocs);
            }
            self.rest.windows += 1;
            self.rest.known += u64::from(plan.known);
            let endless = self.is_endless();
            let by_chance = self.sharing.is_by_chance() || endless;
            let again = !plan.novel && !self.rest.gave_up && !by_chance;
            let tried = self.rest.moved > TRIED * pages || self.may_fill_up();
            // where states come again there is an order, which more memory would only be wasted on;
            // what is only woken costs nothing, and says nothing against a layout that comes back as it is
            if tried
                && !self.sharing.is_apart()
                && (by_chance || !self.rest.is_alike())
                && (!again || mapped > 0)
            {
                let rounds = endless && self.replay.recording.has_period();
                self.leeway.moved(self.stats.allocations, again, rounds);
            }
        }
    }

    /// Do pages move on and on, though there seems to be an order? Then layouts do not come back, as where the same blocks come and go
    /// without a moment when few are there. (Streams may come to need no moves once they share otherwise, which takes rounds to find out.)
    pub(super) fn is_endless(&self) -> bool {
        let undecided =
            self.had_several_streams() && self.sharing.is_by_looks() && !self.sharing.is_by_chance();
        let times = if undecided { UNDECIDED } else { 1 };
        self.rest.endless > times * ENDLESS * self.pages.count()
    }

    /// A page goes back to its first mapping if it is at home at one other, and all of it is free there.
    fn go_home(&mut self, page: PageId) {
        let page = self.pages.page(page);
        let (from, to, bytes) = (page.homes[0], page.mappings[0], page.bytes);
        let at = self.pages.mapping(from).at;
        let mut pieces = Vec::new();
        let mut id = self.node_at(at);
        let mut owner = COMMON;
        while id != NIL && self.space.nodes[id].start < at + bytes {
            let node = &self.space.nodes[id];
            if node.kind != Kind::Free || owner != COMMON && !self.usable(id, owner) {
                return;
            }
            owner = owner.max(node.owner); // everybody's is the least
            pieces.push((node.start.max(at) - at, node.end().min(at + bytes) - at));
            id = node.next;
        }
        for (lo, hi) in pieces {
            let owner = self.vacate(from, lo, hi);
            self.occupy(to, lo, hi, owner);
        }
    }

    pub(super) fn node_at(&self, at: u64) -> NodeId {
        match self.space.find(at) {
            Found::Start(id) | Found::Inside(id) => id,
            Found::Outside => unreachable!("a mapping is part of a range"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether rounds shed that need so much each, and begin with so much in use.
    fn sheds<const ROUNDS: usize>(rounds: [(u64, u64); ROUNDS], new: bool) -> [bool; ROUNDS] {
        let mut rest = Rest::default();
        rounds.map(|(used, needed)| {
            let round = rest.begin_round(used, needed, true, new && used == 0);
            round.expect("no more is in use than before").sheds
        })
    }

    #[test]
    fn what_holds_too_much_sheds_when_a_round_begins_like_the_last_and_needs_no_more() {
        let need = 1 << 30;
        assert_eq!(sheds([(5, need); 3], false), [false, true, true]);
        assert_eq!(
            sheds([(5, need), (5, need + 4096)], false),
            [false, true],
            "hardly more"
        );
        assert_eq!(sheds([(5, need), (5, need + (need >> 9))], false), [false, false]);
        assert_eq!(
            sheds([(need / 2, need), (5, need)], false),
            [false, false],
            "another round"
        );
    }

    #[test]
    fn the_first_round_begins_with_the_pool() {
        let need = 1 << 30;
        assert_eq!(sheds([(0, need); 2], true), [true, true]);
        assert_eq!(sheds([(need / 2, need), (0, need)], true), [false, true]);
        assert_eq!(
            sheds([(need / 2, need / 2), (0, need)], true),
            [false, false],
            "it grew"
        );
    }
}
