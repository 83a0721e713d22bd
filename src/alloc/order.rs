//! Stream order: who may use what was freed.
//!
//! Every stream counts its frees (`seq`). A free extent carries the stream it was freed on and the number of
//! the latest free in it; work that may still use the extent was queued on that stream before that free. An
//! event that was recorded after number `n` was read covers all frees up to `n`, so:
//!
//! - the freeing stream may use the extent at once;
//! - anybody may once the host has seen such an event complete (`completed >= seq`), and the extent then
//!   moves to the common arena;
//! - stream T may once T waits for such an event (`T.knows[S] >= seq`), and it then becomes T's, under a
//!   fresh number of T: T's next event comes after its wait.
//!
//! Numbers stand in for lists of events: when extents merge the larger number wins, so no event is ever
//! lost (compare rmm#2489), and nothing is published with an event that is not yet recorded (compare
//! cub#156). The clocks a stream knows are vector clocks (Fidge, Mattern, 1988).
//!
//! Invariant: a stream's free extents, oldest first, have ascending numbers, none above `seq`.
//! No lock of its own: the heap's.

use super::bins::Bins;
use super::company::MANY;
use super::coverage::Unrecorded;
use super::depot::Depot;
use super::heap::Heap;
use super::node::{NIL, NodeId};
use super::predictor::Predictor;
use super::sharing::{Patience, Taken};
use super::size::CLASSES;
use super::slab::StrayList;
use crate::backend::Event;
use crate::base::units::{EventHandle, StreamHandle, StreamId, Timeline};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The arena of memory that every stream may use. Streams that never have work in flight use it as their own.
pub const COMMON: u32 = 0;
/// Events kept per stream; past that every other one is dropped, and its frees wait for the next.
const EVENTS: usize = 16;
/// Freed bytes that are worth an event where memory is short or nothing is in use, and the least anywhere (`coverage`): any
/// block that is no slab's. An extent that took in a block without one would be out of other streams' reach as a whole.
pub(super) const EVENT_BYTES: u64 = 32 << 10;
/// Frees that are worth an event however small they are.
pub(super) const EVENT_FREES: u32 = 64;

/// The three reuse policies of stream-ordered pools; all on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Reuse across streams that an event dependency (told through the hooks) has ordered.
    pub event_dependencies: bool,
    /// Reuse of blocks whose stream's work is seen to be complete.
    pub opportunistic: bool,
    /// The pool may make the asking stream wait for the freeing one.
    pub internal_dependencies: bool,
}

/// A stream's free memory and its clock.
#[derive(Debug)]
pub struct Arena {
    /// Whose.
    pub id: Timeline,
    /// Its free extents by size.
    pub bins: Bins,
    /// Its oldest free extent.
    pub oldest: NodeId,
    /// Its newest free extent.
    pub newest: NodeId,
    /// Slabs with a free block, by class.
    pub partial: [u32; CLASSES],
    /// Number of the latest free.
    pub seq: u64,
    /// The same, for the caches of threads. It is never ahead of an event: see `advance`.
    pub clock: Arc<AtomicU64>,
    /// What threads hand over to each other.
    pub depot: Arc<Depot>,
    /// By which name the pool may record an event at any time, not only in calls that name the stream.
    pub reach: Option<StreamHandle>,
    /// The program has said that it is about to end, and has not named it since.
    pub(super) ended: bool,
    /// Caches of threads for this stream.
    pub caches: u32,
    /// Blocks that they had kept when the pool last recorded an event by itself.
    pub(super) kept: u64,
    /// The host knows all work before this free to be complete.
    pub completed: u64,
    /// Numbers of other streams that this one waits for.
    pub knows: FxHashMap<u32, u64>,
    /// Events not seen complete yet, oldest first, with the number each covers.
    pub events: VecDeque<(Event, u64)>,
    /// Others have come, and it was not named since.
    pub(super) left: bool,
    /// Extents with later numbers may have neighbours that they could be joined with.
    pub joined: u64,
    /// The number of its latest free when a request began to wait for what was freed.
    pub(super) frozen: u64,
    /// Bytes of the free extents with numbers above the other.
    pub(super) uncovered: u64,
    pub(super) counted_from: u64,
    /// Blocks of other streams' slabs that were freed on this stream, oldest first.
    pub strays: StrayList,
    /// How long a request waits for its work to be complete.
    pub patience: Patience,
    /// What it has taken in this round.
    pub(super) taken: Taken,
    /// Allocations of its that the heap served.
    pub(super) served: u64,
    /// Bytes that it has had of the heap, less those freed on it.
    pub(super) holds: i64,
    /// The most of that since its requests are as before, and where these went.
    pub(super) most: i64,
    /// How many long requests it made of late (`partition`).
    pub(super) recent: u64,
    pub(super) predictor: Predictor,
    /// What no event covers...
    pub unrecorded: Unrecorded,
    /// ...and what one will that is being recorded, up to this number.
    pub(super) coming: Unrecorded,
    pub(super) soon: u64,
}

impl Arena {
    /// A stream without memory.
    pub fn new(id: Timeline) -> Arena {
        Arena {
            id,
            bins: Bins::default(),
            oldest: NIL,
            newest: NIL,
            partial: [NIL; CLASSES],
            seq: 0,
            clock: Arc::default(),
            depot: Arc::default(),
            reach: None,
            ended: false,
            caches: 0,
            kept: 0,
            completed: 0,
            knows: FxHashMap::default(),
            events: VecDeque::with_capacity(EVENTS + 2),
            left: false,
            joined: 0,
            frozen: 0,
            uncovered: 0,
            counted_from: 0,
            strays: StrayList::default(),
            patience: Patience::default(),
            taken: Taken::default(),
            served: 0,
            holds: 0,
            most: 0,
            recent: 0,
            predictor: Predictor::default(),
            unrecorded: Unrecorded::default(),
            coming: Unrecorded::default(),
            soon: 0,
        }
    }

    /// It is this stream's, which counts its frees from there on.
    fn begin(&mut self, id: Timeline, from: u64) {
        self.id = id;
        (self.seq, self.completed, self.joined) = (from, from, from);
        (self.frozen, self.counted_from) = (from, from);
        self.clock.store(from, Ordering::Release);
    }

    /// Counts a free of `bytes` and gives its number.
    pub fn tick(&mut self, bytes: u64) -> u64 {
        self.next_number();
        self.unrecorded.add(1, bytes);
        self.seq
    }

    fn next_number(&mut self) {
        self.seq += 1;
        self.clock.store(self.seq, Ordering::Release);
    }

    /// Before a number is read for an event to cover, or for a synchronise: what threads have kept until now had the
    /// number of the free to come, which so becomes that of the past.
    pub fn advance(&mut self) {
        if self.caches > 0 {
            self.next_number();
        }
    }

    /// The number that the newest event covers, or that is complete.
    pub fn recorded(&self) -> u64 {
        self.events
            .back()
            .map_or(self.completed, |event| event.1.max(self.completed))
    }

    /// Adds an event that was recorded after `covers` was read; gives back events no longer needed. One that
    /// was complete from the start counts at once if `eager`, else when somebody looks.
    pub fn add_event(&mut self, event: Event, covers: u64, eager: bool, dropped: &mut Vec<Event>) {
        if event == Event::COMPLETE && eager {
            self.completed = self.completed.max(covers);
        } else if covers <= self.recorded() {
            dropped.push(event); // another thread recorded a later one meanwhile
        } else {
            self.events.push_back((event, covers));
        }
        self.note_covered();
        if self.events.len() > EVENTS {
            let last = self.events.len() - 1;
            let mut index = 0;
            self.events.retain(|event| {
                let keep = index % 2 == 1 || index == last;
                index += 1;
                if !keep {
                    dropped.push(event.0);
                }
                keep
            });
        }
    }

    /// All that it has freed by now was freed before the event for this number was recorded: that covers it. False: there is none.
    pub(super) fn is_covered_since(&mut self, number: u64) -> bool {
        if self.recorded() < number {
            return false;
        }
        match self.events.back_mut() {
            Some((_, covers)) if *covers >= number => *covers = self.seq,
            _ => self.completed = self.seq,
        }
        self.note_covered();
        true
    }

    /// If all that it freed is covered nobody needs an event.
    fn note_covered(&mut self) {
        let recorded = self.recorded();
        if recorded >= self.soon {
            self.coming = Unrecorded::default();
        }
        if recorded >= self.seq {
            self.unrecorded = Unrecorded::default();
        }
    }

    /// Nothing of this stream is left but slabs: no work that anything waits for, and it waits for none.
    fn is_idle(&self) -> bool {
        self.completed >= self.seq
            && self.caches == 0
            && self.knows.is_empty()
            && self.events.is_empty()
            && self.bins.is_empty()
            && self.strays.is_empty()
    }

    /// Nor is a slab of which something is free.
    pub fn is_spent(&self) -> bool {
        self.is_idle() && self.partial.iter().all(|&slab| slab == NIL)
    }
}

/// How far each of some streams had come.
pub type Clock = Vec<(u32, u64)>;

/// A stream, whose it is, by which name it goes, and the number to be covered.
pub type Uncovered = (u32, Timeline, StreamHandle, u64);

impl Heap {
    /// The arena of a timeline, made on its first use.
    #[inline]
    pub fn stream(&mut self, id: Timeline) -> u32 {
        if self.arenas[self.latest as usize]
            .as_ref()
            .is_some_and(|arena| arena.id == id)
        {
            return self.latest;
        }
        self.latest = self.find_stream(id);
        self.latest
    }

    #[cold]
    fn find_stream(&mut self, id: Timeline) -> u32 {
        if let Some(&index) = self.ids.get(&id) {
            return index;
        }
        let (index, from) = self.vacant_index();
        let mut arena = self
            .spare_arena
            .take()
            .unwrap_or_else(|| Box::new(Arena::new(id)));
        arena.begin(id, from);
        match self.arenas.get_mut(index as usize) {
            Some(place) => *place = Some(arena),
            None => self.arenas.push(Some(arena)),
        }
        self.ids.insert(id, index);
        self.stream_came(id);
        let taken = self.recall(id);
        self.arena_mut(index).taken = taken;
        index
    }

    /// An index for one more stream, and the number from which on it counts. All that is written of whoever had the index is of earlier numbers,
    /// and so complete; but of calls by heart only the index is known.
    fn vacant_index(&mut self) -> (u32, u64) {
        let is_free = |&(index, _): &(u32, u64)| !self.is_member(index);
        match self.vacant.iter().rposition(is_free) {
            Some(place) => self.vacant.swap_remove(place),
            None => (self.arenas.len() as u32, 0),
        }
    }

    /// Sees to it that a free on a stream that is new to the pool will allocate nothing.
    #[inline(always)]
    pub(super) fn expect_stream(&mut self) {
        if self.spare_arena.is_none() {
            self.prepare_arena();
        }
    }

    #[cold]
    fn prepare_arena(&mut self) {
        self.spare_arena = Some(Box::new(Arena::new(Timeline::of(StreamId(0)))));
        self.arenas.reserve(1);
        self.ids.reserve(1);
    }

    /// The arena of a timeline, if it has one.
    pub fn known_stream(&self, id: Timeline) -> Option<u32> {
        self.ids.get(&id).copied()
    }

    /// The arena.
    pub fn arena(&self, index: u32) -> &Arena {
        self.arenas[index as usize].as_ref().expect("a stream in use")
    }

    /// The arena.
    pub fn arena_mut(&mut self, index: u32) -> &mut Arena {
        self.arenas[index as usize].as_mut().expect("a stream in use")
    }

    /// Streams other than the common arena.
    pub fn streams(&self) -> impl Iterator<Item = u32> {
        let is_known = |&stream: &u32| self.arenas[stream as usize].is_some();
        (1..self.arenas.len() as u32).filter(is_known)
    }

    /// The same for whoever changes the books on the way.
    pub fn streams_now(&self) -> impl Iterator<Item = u32> + use<> {
        self.streams().collect::<Vec<_>>().into_iter()
    }

    /// Has the host seen all work of `owner` up to `seq` complete?
    pub fn is_complete(&self, owner: u32, seq: u64) -> bool {
        owner == COMMON
            || self.arenas[owner as usize]
                .as_ref()
                .is_none_or(|arena| arena.completed >= seq)
    }

    /// Somebody needs an event on a stream, at the next call that names it; at once if the pool can reach it.
    pub fn want_event(&mut self, stream: u32) {
        if self.arena(stream).reach.is_some() && !self.is_crowded() {
            return;
        }
        self.arena_mut(stream).unrecorded.wanted = true;
        self.call_owners(stream);
    }

    /// Streams that the pool can reach, of those `which` are asked for, and that have freed something no event covers: what is to be covered,
    /// and by which name they go.
    pub fn uncovered(&mut self, which: impl Fn(u32) -> bool) -> Vec<Uncovered> {
        let streams = self.streams_now().filter(|&stream| which(stream));
        streams.filter_map(|stream| self.uncovered_of(stream)).collect()
    }

    /// The same of one stream.
    pub fn uncovered_of(&mut self, stream: u32) -> Option<Uncovered> {
        let arena = self.arenas.get(stream as usize)?.as_ref()?;
        let (name, line, numbered) = (arena.reach?, arena.id, arena.recorded() < arena.seq);
        let known = arena.kept;
        (numbered || known != self.kept_for(stream)).then(|| (stream, line, name, self.number_now(stream)))
    }

    /// Streams of that name are about to end, and beyond reach from now on.
    pub fn lose_reach(&mut self, name: StreamHandle) {
        for stream in self.streams_now() {
            if self.arena(stream).reach == Some(name) {
                self.set_reach(stream, None);
                self.arena_mut(stream).ended = true;
            }
        }
        // only what another thread has told of since `end_uses`
        let users = self.also_used.values_mut().flat_map(|users| &mut users.streams);
        for user in users.filter(|user| user.reach == Some(name)) {
            user.reach = None;
        }
    }

    /// Adds an event that was recorded on a stream after `covers` was read. Meanwhile the stream may have been
    /// forgotten, and another one have its index, which counts on.
    pub fn add_event(&mut self, stream: u32, event: Event, covers: u64, dropped: &mut Vec<Event>) {
        match self.arenas[stream as usize].as_mut() {
            Some(arena) => {
                arena.add_event(event, covers, self.reuse.opportunistic, dropped);
                self.count_uncovered(stream);
            }
            None => dropped.push(event),
        }
    }

    /// How far a stream has come, and what it waits for.
    pub fn clock(&mut self, stream: u32) -> Clock {
        let now = self.number_now(stream);
        let arena = self.arena(stream);
        let mut clock: Clock = arena.knows.iter().map(|(&s, &seq)| (s, seq)).collect();
        clock.push((stream, now));
        clock
    }

    /// How far every stream has come.
    pub fn clock_of_all(&mut self) -> Clock {
        let streams = self.streams_now();
        streams.map(|stream| (stream, self.number_now(stream))).collect()
    }

    /// A number that all which a stream has freed by now has come to, also what threads keep of it.
    fn number_now(&mut self, stream: u32) -> u64 {
        // before the number is read: what is kept from now on may have a later one
        let kept = self.kept_for(stream);
        let arena = self.arena_mut(stream);
        // of a stream that never calls again a number that nothing has would be one that no event covers
        if mem::replace(&mut arena.kept, kept) != kept {
            arena.advance();
        }
        arena.seq
    }

    /// The host has seen this moment pass. Events it covers are of no more use. A capture's graph is not over for
    /// that.
    pub fn complete(&mut self, clock: &[(u32, u64)], dropped: &mut Vec<Event>) {
        for &(stream, seq) in clock {
            if let Some(Some(arena)) = self.arenas.get_mut(stream as usize)
                && arena.id.capture.is_none()
            {
                arena.completed = arena.completed.max(seq);
                while arena
                    .events
                    .front()
                    .is_some_and(|event| event.1 <= arena.completed)
                {
                    dropped.push(arena.events.pop_front().expect("an event").0);
                }
                arena.note_covered();
                self.count_uncovered(stream);
            }
        }
    }

    /// The user recorded an event at this moment.
    pub fn remember_event(&mut self, event: EventHandle, clock: Clock) {
        self.user_events.insert(event, clock);
    }

    /// The moment a user's event stands for.
    pub fn event_clock(&self, event: EventHandle) -> Clock {
        self.user_events.get(&event).cloned().unwrap_or_default()
    }

    /// The event is gone.
    pub fn forget_event(&mut self, event: EventHandle) {
        self.user_events.remove(&event);
    }

    /// The stream waits for this moment from now on.
    pub fn learn(&mut self, stream: u32, clock: &[(u32, u64)]) {
        for &(other, seq) in clock {
            if other != stream && !self.is_complete(other, seq) {
                let known = self.arena_mut(stream).knows.entry(other).or_insert(0);
                *known = (*known).max(seq);
            }
        }
    }

    /// Moves what is complete to the common arena. Each extent moves once for each time it is freed. Returns
    /// whether anything moved. What the stream that `asks` has freed stays its own: it may use it anyway, and whether it
    /// is complete by now is chance, on which the place of a block should not depend.
    pub fn absorb_complete(&mut self, asks: Option<u32>) -> bool {
        self.absorb_complete_of(|stream| asks != Some(stream))
    }

    /// The same of these streams.
    pub fn absorb_complete_from(&mut self, streams: &[u32]) -> bool {
        self.absorb_complete_of(|stream| streams.contains(&stream))
    }

    /// The same when the program says that it has waited: where streams keep to themselves what they freed stays theirs.
    pub fn absorb_synchronized(&mut self) {
        let shares = !self.sharing.is_apart();
        self.absorb_complete_of(|_| shares);
    }

    fn absorb_complete_of(&mut self, shares: impl Fn(u32) -> bool) -> bool {
        let mut any = self.release_limbo();
        for stream in self.streams_now() {
            if shares(stream) && !self.keeps_to_itself(stream) {
                let completed = self.arena(stream).completed;
                any |= self.absorb(stream, completed, COMMON);
            }
            any |= self.return_strays(stream);
            let mut knows = mem::take(&mut self.arena_mut(stream).knows);
            knows.retain(|&other, &mut seq| !self.is_complete(other, seq));
            self.arena_mut(stream).knows = knows;
            // of few streams the slabs that serve them stay
            let serve = self.known_streams() <= MANY && !self.arena(stream).ended;
            if !serve && self.arena(stream).is_idle() {
                self.share_slabs_of(std::iter::once(stream));
            }
            if self.arena(stream).is_spent() {
                self.retire(stream);
            }
        }
        any
    }

    /// Moves to `stream` what it may use because it waits for it. Returns whether anything moved.
    pub fn absorb_known(&mut self, stream: u32) -> bool {
        if !self.reuse.event_dependencies && !self.reuse.internal_dependencies {
            return false;
        }
        let known: Clock = self
            .arena(stream)
            .knows
            .iter()
            .map(|(&s, &seq)| (s, seq))
            .collect();
        let mut any = false;
        for (other, seq) in known {
            if self.arenas[other as usize].is_some() && !self.keeps_to_itself(other) {
                any |= self.absorb(other, seq, stream);
            }
        }
        any
    }

    /// If no other stream is known, what is everybody's becomes the stream's, because extents of one owner are joined.
    pub fn absorb_common(&mut self, stream: u32) {
        let alone = self.streams().all(|other| other == stream);
        if !alone || stream == COMMON || self.capture_of(stream).is_some() {
            return;
        }
        let longest = |heap: &Heap| heap.arena(COMMON).bins.descending(&heap.space.nodes, 0).next();
        // it stays complete, as streams to come will need it
        let completed = self.arena(stream).completed;
        while let Some(id) = longest(self) {
            self.pull_free(id);
            self.put_free_since(id, stream, completed);
        }
    }

    fn absorb(&mut self, from: u32, seq: u64, to: u32) -> bool {
        let mut any = false;
        loop {
            let id = self.arena(from).oldest;
            if id == NIL || self.space.nodes[id].seq > seq {
                return any;
            }
            self.pull_free(id);
            self.put_free(id, to);
            any = true;
        }
    }

    /// Forgets a stream that has nothing left, unless its slabs live on. Numbers of it that are still written
    /// somewhere count as complete.
    fn retire(&mut self, stream: u32) {
        if self.slabs.owned(stream) > 0 {
            return;
        }
        if self.is_member(stream) {
            self.spoil_tape(); // who goes by that name later is another one
        }
        let arena = self.arenas[stream as usize].take().expect("a stream in use");
        self.remember(arena.id, arena.taken);
        self.ids.remove(&arena.id);
        // what threads kept had the number of the free to come
        self.vacant.push((stream, arena.seq + 1));
        self.stream_went(arena.id);
    }
}
