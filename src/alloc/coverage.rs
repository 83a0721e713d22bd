//! What no event covers yet, of streams on which the pool can record one only in a call that names them.
//!
//! Such a stream may never be named again: destroyed, or done with. What it freed after its latest event is then out of
//! other streams' reach until the host waits for all work, and so is every extent that took it in. Hence:
//!
//! - all such streams together leave no more than a 256th of the pool out of others' reach: what would be more has an event.
//!   Where hardly any request looks at these it is up to a 16th (`Part`). A stream that is *alone* in the pool has one as soon as
//!   it would be a 32nd, or all of it;
//! - what a stream frees while it is alone, or what is freed for it after others came and before it is named again, joins
//!   no extents but those that are not covered either, until an allocation of the stream asks for memory. So what was
//!   covered, or everybody's, stays so as long as it may be of use to others.
//!
//! While a request *waits* for what others have freed nothing is joined with that, whosever it is; nor where the pool holds far more than
//! it needs, and would ever more: a stream that goes on freeing beside what it has had would keep that from the others.
//!
//! An event is recorded outside the lock of the books. From when one is due until it is there what it is for counts as covered: others who
//! free meanwhile would record one each. If it fails it does no more.
//!
//! What threads keep for such streams (`cache`) is not counted before it comes back to the heap, and then joins what lies beside
//! it, covered or not, unless the stream was alone when it kept it. Strays are counted for their own stream only, and a stream
//! with less than `EVENT_BYTES` not at all.
//!
//! Invariants: `Arena::uncovered` is the sum of a stream's free extents with numbers above `counted_from`, and
//! `Heap::uncovered` that of all streams beyond reach.
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::limits::MANY_STREAMS;
use super::node::{Kind, NIL, Node, NodeId};
use super::order::{Arena, COMMON, EVENT_BYTES, EVENT_FREES};
use super::space::Found;
use crate::base::units::{StreamHandle, Timeline};
use std::mem;

/// No stream asks for memory.
pub(super) const NOBODY: u32 = u32::MAX;
/// A stream that is alone may have this part of the pool free without an event.
const PART: u64 = 32;
/// Just before a rest, where there are several, each free has its event; of thousands in a row those that add up to this part
/// of what is still in use.
const PART_OF_REST: u64 = 64;
/// Where there are several they may have this part of it together...
const PART_OF_SEVERAL: u64 = 256;
/// ...or this one.
const LARGEST_PART: u64 = 16;
/// Whether events are of use is seen by so many.
const WINDOW: u64 = 64;
/// So many for each request that found nothing are too many...
const MANY: u64 = 8;
/// ...and so many are few.
const FEW: u64 = 2;

/// What a stream has freed since an event covered all of it, or all was known to be complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unrecorded {
    frees: u32,
    bytes: u64,
    /// Of these bytes, those of strays.
    pub(super) strays: u64,
    /// Somebody needs an event at the next call that names the stream.
    pub(super) wanted: bool,
}

impl Unrecorded {
    /// And so many frees.
    pub(super) fn add(&mut self, frees: u32, bytes: u64) {
        self.frees += frees;
        self.bytes += bytes;
    }

    /// And all of this.
    fn add_all(&mut self, other: Unrecorded) {
        self.add(other.frees, other.bytes);
        self.strays += other.strays;
        self.wanted |= other.wanted;
    }
}

/// The part of the pool that several streams may have free without an event. Only a request that finds nothing looks at events, and each costs
/// a call of the driver and the heap's lock once more. So the part is twice as large where there were many for each such request, and half
/// as large where there were few. Frees alone say nothing: what they leave may be for others.
#[derive(Debug)]
pub(super) struct Part {
    /// It is one of so many.
    of: u64,
    events: u64,
    /// Requests that had found something, but in caches, and nothing, when these began.
    hits: u64,
    misses: u64,
}

impl Default for Part {
    fn default() -> Part {
        Part {
            of: PART_OF_SEVERAL,
            events: 0,
            hits: 0,
            misses: 0,
        }
    }
}

impl Part {
    /// An event is due because no more may be free without one. So many requests have found something until now, but in caches, and nothing.
    fn event_is_due(&mut self, hits: u64, misses: u64) {
        self.events += 1;
        if self.events < WINDOW {
            return;
        }
        self.events = 0;
        let misses_since = misses.wrapping_sub(mem::replace(&mut self.misses, misses));
        let requests = hits.wrapping_sub(mem::replace(&mut self.hits, hits)) + misses_since;
        if misses_since * FEW > WINDOW || requests < WINDOW / 2 {
            self.of = (self.of * 2).min(PART_OF_SEVERAL);
        } else if misses_since * MANY <= WINDOW {
            self.of = (self.of / 2).max(LARGEST_PART);
        }
    }
}

impl Heap {
    /// A call that has just taken the lock asks for no stream's memory, as far as is known.
    #[inline(always)]
    pub fn serve_nobody(&mut self) {
        self.serving = NOBODY;
    }

    /// An allocation on a stream is under way: what the stream freed is joined with its neighbours.
    #[inline(always)]
    pub fn serve(&mut self, stream: u32) {
        self.serving = stream;
        if stream == COMMON {
            return;
        }
        if self.frozen > 0 {
            return; // it is joined later
        }
        let arena = self.arena(stream);
        let (newest, joined) = (arena.newest, arena.joined);
        if newest != NIL && self.space.nodes[newest].seq > joined && !self.is_enclosed(newest, joined) {
            self.join_late(stream, joined);
        }
        let arena = self.arena_mut(stream);
        (arena.joined, arena.left) = (arena.seq, false);
    }

    /// A free on a stream, or the like, which allocates nothing. While others are known an extent that would be much for them to
    /// miss has its event at once, whatever it is joined with.
    pub fn hear_of(&mut self, stream: u32) {
        if stream != COMMON && !self.is_alone(stream) {
            self.serving = stream;
            self.arena_mut(stream).left = false;
        }
    }

    /// Is it the only late one, and none of its neighbours free?
    #[inline(always)]
    fn is_enclosed(&self, newest: NodeId, joined: u64) -> bool {
        let nodes = &self.space.nodes;
        let &Node {
            prev, next, age_prev, ..
        } = &nodes[newest];
        let is_free = |id: NodeId| id != NIL && nodes[id].kind == Kind::Free;
        (age_prev == NIL || nodes[age_prev].seq <= joined) && !is_free(prev) && !is_free(next)
    }

    fn join_late(&mut self, stream: u32, joined: u64) {
        let newest = self.arena(stream).newest;
        let before = self.space.nodes[newest].age_prev;
        match before == NIL || self.space.nodes[before].seq <= joined {
            true => self.join_now(newest, stream),
            false => self.join_several(newest, stream, joined),
        }
    }

    #[inline(never)]
    fn join_several(&mut self, newest: NodeId, stream: u32, joined: u64) {
        // an extent may be gone when its turn comes, part of another one
        let nodes = &self.space.nodes;
        let known = |id: NodeId| (id != NIL && nodes[id].seq > joined).then_some(id);
        let late = std::iter::successors(known(newest), |&id| known(nodes[id].age_prev));
        let starts: Vec<u64> = late.map(|id| nodes[id].start).collect();
        for start in starts.into_iter().rev() {
            if let Found::Start(id) = self.space.find(start)
                && (self.space.nodes[id].kind, self.space.nodes[id].owner) == (Kind::Free, stream)
            {
                self.join_now(id, stream);
            }
        }
    }

    #[inline(always)]
    fn join_now(&mut self, id: NodeId, stream: u32) {
        let node = &self.space.nodes[id];
        let (seq, prev, next) = (node.seq, node.prev, node.next);
        if self.joins(next, stream, None) || self.joins(prev, stream, None) {
            self.pull_free(id);
            self.put_free_since(id, stream, seq);
        }
    }

    /// A free extent with this number is put among `owner`'s: if it is to be joined with its like only, the number
    /// that divides what is covered from what is not.
    pub(super) fn divide(&self, owner: u32, seq: u64) -> Option<(u64, bool)> {
        if owner == COMMON {
            return None;
        }
        let arena = self.arena(owner);
        if self.frozen > 0 {
            return Some((arena.frozen, seq > arena.frozen));
        }
        if owner == self.serving {
            return None;
        }
        if arena.reach.is_some() || arena.id.capture.is_some() || !(arena.left || self.is_alone(owner)) {
            return None;
        }
        let covered = arena.recorded();
        Some((covered, seq > covered))
    }

    /// A request is about to wait for what streams have freed until now. What they free from now on joins none of it, nor what is
    /// everybody's: all of that would get a number that the wait does not cover, and a stream on which others go on freeing would keep it
    /// for ever.
    pub fn freeze(&mut self) {
        self.frozen += 1;
        for stream in self.streams_now() {
            let arena = self.arena_mut(stream);
            arena.frozen = arena.seq;
        }
    }

    /// A request is about to have the pool hold yet more. If that is more than twice what it needs, what streams have freed until now is
    /// kept apart in the same way as long as it is so: each such request looks whether that is complete, and it is at last. (Not near a
    /// limit, or where the device is short: there is an end to it there, and free memory had better be in one piece.)
    pub fn part_if_far_above(&mut self) {
        self.part_no_more();
        let far = self.stats.reserved > 2 * self.base() + self.little_for_threads();
        let near = self.is_short() || self.stats.reserved > self.limit / 2;
        self.parted = far && !near && self.has_several_streams() && !self.sharing.is_apart();
        if self.parted {
            self.freeze();
        }
    }

    /// Nothing is kept apart so any more. Gives whether anything was.
    pub fn part_no_more(&mut self) -> bool {
        let was = mem::take(&mut self.parted);
        if was {
            self.thaw();
        }
        was
    }

    /// It has got what it waited for, or nothing. Each stream's next allocation joins what was kept apart.
    pub fn thaw(&mut self) {
        self.frozen -= 1;
    }

    /// Is this the only stream that the pool knows?
    pub(super) fn is_alone(&self, stream: u32) -> bool {
        self.known == 1 && stream != COMMON
    }

    /// Does the pool know more than one stream?
    pub fn has_several_streams(&self) -> bool {
        self.known > 1
    }

    /// How many does it know?
    pub(super) fn known_streams(&self) -> usize {
        self.known as usize
    }

    /// How many of them have no cache, at least, as several may be one stream's, and are no parts of captures, of which a program with many
    /// graphs has many?
    pub(super) fn streams_without_cache(&self) -> usize {
        ((self.known - self.captured) as usize).saturating_sub(self.caches().len())
    }

    /// Does it know any?
    pub(super) fn has_streams(&self) -> bool {
        self.known > 0
    }

    /// A stream has come to be known. One that was alone until now has freed what only it may use: it should have an event
    /// as soon as it is named.
    pub(super) fn stream_came(&mut self, id: Timeline) {
        self.known += 1;
        self.came += u64::from(id.capture.is_none());
        self.captured += u32::from(id.capture.is_some());
        if self.known == 2 {
            for other in 1..self.arenas.len() as u32 {
                if self.arenas[other as usize].is_some() {
                    self.arena_mut(other).left = true;
                    self.want_event(other);
                }
            }
            self.limit_caches();
        }
    }

    /// Have so many streams come since this was last so that it is time to look which are no more, where nobody else does? Each such look is
    /// at all that are known, so it takes half as many.
    pub fn is_review_due(&mut self) -> bool {
        let due = self.came - self.seen > MANY_STREAMS.max(u64::from(self.known) / 2);
        if due {
            self.seen = self.came;
        }
        due
    }

    /// A stream was forgotten.
    pub(super) fn stream_went(&mut self, id: Timeline) {
        self.known -= 1;
        self.captured -= u32::from(id.capture.is_some());
        if self.known == 1 {
            self.limit_caches();
        }
    }

    /// Is it worth recording an event on `stream` in this call? Gives the number to be covered. Never on one that
    /// is being captured: the event would be part of the graph.
    pub fn event_due(&mut self, stream: u32) -> Option<u64> {
        let crowded = self.is_crowded();
        let arena = self.arena(stream);
        // where the pool can record one at any time there will be one when somebody needs it
        if arena.id.capture.is_some()
            || arena.reach.is_some() && !crowded
            || arena.recorded_soon() >= arena.seq
            || !(arena.unrecorded.wanted
                || self.replay.company.wants_events(stream)
                || self.is_worth_an_event(stream, crowded))
        {
            return None;
        }
        Some(self.number_for_event(stream))
    }

    /// The same only if somebody needs one.
    pub fn event_wanted(&mut self, stream: u32) -> Option<u64> {
        let wanted = self.arena(stream).unrecorded.wanted;
        wanted.then(|| self.event_due(stream))?
    }

    /// Can the pool record an event on this stream only in calls that name it?
    pub(super) fn is_beyond_reach(&self, stream: u32) -> bool {
        stream != COMMON && self.arena(stream).is_beyond_reach()
    }

    /// An event will be recorded at once, by a call of the driver outside the lock of the books. Until then other threads free, too: who
    /// counted what it will cover would record one more each time.
    fn number_for_event(&mut self, stream: u32) -> u64 {
        let arena = self.arena_mut(stream);
        arena.advance();
        let number = arena.seq;
        let unrecorded = mem::take(&mut arena.unrecorded);
        arena.coming.add_all(unrecorded);
        arena.soon = number;
        self.count_uncovered(stream);
        if !self.replay.is_watching() {
            let calls = self.calls().all();
            self.replay.company.event_is_due(stream, calls, number);
        }
        number
    }

    /// It could not be: what it was to cover waits for the next one.
    pub fn event_failed(&mut self, stream: u32, number: u64) {
        let Some(arena) = self.arenas[stream as usize].as_mut() else {
            return;
        };
        if arena.soon == number && arena.recorded() < number {
            let coming = mem::take(&mut arena.coming);
            arena.unrecorded.add_all(coming);
            arena.soon = 0;
            self.count_uncovered(stream);
        }
    }

    /// A cache has kept a block that was freed. Where a round is ready but for events one is due: the number to be covered.
    pub(super) fn cover_kept(&mut self, stream: u32) -> Option<u64> {
        let due = self.replay.company.wants_events(stream) && self.is_beyond_reach(stream);
        due.then(|| self.number_for_event(stream))
    }

    fn is_worth_an_event(&mut self, stream: u32, crowded: bool) -> bool {
        let Unrecorded {
            frees, bytes, strays, ..
        } = self.arena(stream).unrecorded;
        if self.is_resting()
            && !self.sharing.is_apart()
            && self.has_several_streams()
            && (self.rest.is_row_short() || bytes >= self.used_now() / PART_OF_REST)
        {
            return true;
        }
        if frees >= EVENT_FREES || bytes >= EVENT_BYTES && self.stats.used == 0 {
            return true;
        }
        let own = self.count_uncovered(stream) + strays;
        if frees > 0 && self.is_beyond_reach(stream) && self.is_left_by_streams() {
            return true;
        }
        if crowded {
            return bytes >= EVENT_BYTES;
        }
        let due = own >= EVENT_BYTES && self.uncovered + strays >= self.most_without_event();
        if due && self.has_several_streams() {
            self.part.event_is_due(self.stats.hits, self.stats.misses);
        }
        due
    }

    /// What may be held back or kept without an event, of all streams together.
    pub(super) fn most_uncovered(&self) -> u64 {
        self.part_without_event(PART_OF_SEVERAL)
    }

    /// What streams may have free without one, all together.
    pub(super) fn most_without_event(&self) -> u64 {
        // what is to go back does once an event of it is complete
        self.part_without_event(match self.is_above_threshold() {
            true => PART_OF_SEVERAL,
            false => self.part.of,
        })
    }

    /// The same where several streams may have one of so many parts of the pool.
    fn part_without_event(&self, of: u64) -> u64 {
        let shares = self.known > 1 && !self.sharing.is_by_threads();
        EVENT_BYTES.max(self.stats.reserved / if shares { of } else { PART })
    }

    /// Bytes of the stream's free extents that no event covers, or will at once. One may have come.
    pub(super) fn count_uncovered(&mut self, stream: u32) -> u64 {
        let nodes = &self.space.nodes;
        let arena = self.arenas[stream as usize].as_mut().expect("a stream in use");
        let from = arena.recorded_soon();
        if arena.counted_from != from {
            let known = |id: NodeId| (id != NIL && nodes[id].seq > from).then_some(id);
            let uncovered = std::iter::successors(known(arena.newest), |&id| known(nodes[id].age_prev));
            let counted = uncovered.map(|id| nodes[id].len).sum();
            let before = mem::replace(&mut arena.uncovered, counted);
            arena.counted_from = from;
            if arena.is_beyond_reach() {
                self.uncovered = self.uncovered - before + counted;
            }
        }
        self.arena(stream).uncovered
    }

    /// The pool can record an event on the stream at any time from now on, under this name; or not any more.
    pub fn set_reach(&mut self, stream: u32, name: Option<StreamHandle>) {
        let arena = self.arena_mut(stream);
        let was = arena.beyond_reach();
        arena.reach = name;
        arena.ended &= name.is_none();
        let is = arena.beyond_reach();
        self.uncovered = self.uncovered - was + is;
    }
}

impl Arena {
    /// The number that the newest event covers, or one that is being recorded.
    fn recorded_soon(&self) -> u64 {
        self.recorded().max(self.soon)
    }

    /// Can the pool record an event only in calls that name the stream?
    pub(super) fn is_beyond_reach(&self) -> bool {
        self.reach.is_none() && self.id.capture.is_none()
    }

    /// What it adds to the sum over all such streams.
    pub(super) fn beyond_reach(&self) -> u64 {
        if self.is_beyond_reach() { self.uncovered } else { 0 }
    }

    /// A free extent of the stream's has come, or has got its length; or it goes, or is about to lose it. `all`: the sum over
    /// all streams beyond reach.
    #[inline(always)]
    pub(super) fn count(&mut self, all: &mut u64, len: u64, seq: u64, comes: bool) {
        if seq <= self.counted_from {
            return;
        }
        let change = |sum: &mut u64| match comes {
            true => *sum += len,
            false => *sum -= len,
        };
        change(&mut self.uncovered);
        if self.is_beyond_reach() {
            change(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::Directory;
    use super::super::order::Reuse;
    use super::*;
    use crate::base::units::StreamId;
    use std::sync::Arc;

    /// Frees, or somebody who needs one, ask for an event; not again while it is recorded, and again if it fails.
    #[test]
    fn an_event_that_fails_is_due_again() {
        let reuse = Reuse {
            event_dependencies: true,
            opportunistic: true,
            internal_dependencies: true,
        };
        let directory = Arc::new(Directory::new().expect("addresses"));
        let mut heap = Heap::new(2 << 20, reuse, u64::MAX, directory);
        let [stream, _] = [1, 2].map(|number| heap.stream(Timeline::of(StreamId(number))));
        heap.arena_mut(stream).unrecorded = Unrecorded::default();
        for wanted in [false, true] {
            for _ in 0..EVENT_FREES {
                heap.arena_mut(stream).tick(1);
            }
            heap.arena_mut(stream).unrecorded.wanted = wanted;
            let due = |heap: &mut Heap| match wanted {
                true => heap.event_wanted(stream),
                false => heap.event_due(stream),
            };
            let first = due(&mut heap).expect("an event");
            heap.arena_mut(stream).tick(1);
            assert_eq!(due(&mut heap), None, "{wanted}");
            heap.event_failed(stream, first);
            let second = due(&mut heap).expect("another one");
            heap.event_failed(stream, first); // late news
            assert_eq!(due(&mut heap), None, "{wanted}");
            heap.complete(&[(stream, second)], &mut Vec::new());
            heap.event_failed(stream, second);
            assert_eq!(due(&mut heap), None, "{wanted}: it is known to be complete");
        }
    }

    /// So many windows in each of which so many requests find something, and nothing: one of how many parts may be without an event then?
    fn after(part: &mut Part, windows: u64, hits: u64, misses: u64) -> u64 {
        for _ in 0..windows * WINDOW {
            let (hits, misses) = (part.hits + hits, part.misses + misses);
            part.event_is_due(hits, misses);
        }
        part.of
    }

    #[test]
    fn the_part_grows_while_events_are_of_no_use() {
        let mut part = Part::default();
        assert_eq!(after(&mut part, 1, 100, 8), 128);
        assert_eq!(after(&mut part, 9, 100, 0), LARGEST_PART);
        assert_eq!(after(&mut part, 3, 100, 20), LARGEST_PART, "neither many nor few");
        assert_eq!(after(&mut part, 1, 100, 33), 32);
        assert_eq!(after(&mut part, 1, 31, 0), 64, "frees alone");
        assert_eq!(after(&mut part, 9, 100, 64), PART_OF_SEVERAL);
    }
}
