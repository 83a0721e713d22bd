//! Memory is *partitioned* among threads that each make rounds of their own, on streams of their own, at the same time: what a
//! stream has freed stays its own, and each of its long requests goes where it went in its round before.
//!
//! How the calls of such threads follow on each other is chance, so the pool has no rounds. Where a block lies, and which pages have to
//! be moved for it, would depend on what other threads have freed just then: pages moved for ever. Nor has what is held to be much more than
//! what is in use: each thread's most comes together with the others' at some time.
//!
//! It begins where nearly all long requests are as before (`predictor`), each thread's on one stream, what is allocated on a stream is freed on it, and the pool may hold
//! what the streams need apart; and ends where that is so no more, or the program wants memory back. Streams that are made for a request
//! each are never sure of anything. Where threads take turns, calls may follow on each other in the same order in each round. Then all of them
//! are better known by heart (`replay`): so there it begins only after a good while.
//!
//! Meanwhile the pool does not rest, which would move what is free at that moment. A stream whose requests are not as before, that has not
//! called for long, or whose thread has ended, is *loose*: what it has freed is others' as soon as that is complete, before the pool grows.
//!
//! No lock of its own: the heap's.

use super::cache::ThreadId;
use super::heap::Heap;
use super::lists::LONG;
use super::note::Extent;
use super::order::COMMON;
use super::page::Changes;
use rustc_hash::FxHashMap;

/// It is looked at after so many long requests.
const WINDOW: u32 = 64;
/// All but so small a part of them are as before, when it begins...
const BUT: u32 = 8;
/// ...and this part, or more, while it lasts.
const LEAST: u32 = 2;
/// So many windows in a row before it begins where threads take turns.
const TURNS: u32 = 16;
/// Each time that it has ended twice as many, up to those of so many times.
const TIMES: u32 = 6;
/// Where it ended because pages moved on and on it is twice as many `TIMES` times at once, up to so often.
const ENDLESS_TIMES: u32 = 24;
/// What is allocated on a stream and freed on another one is so small a part of what is needed.
const PASSED: u64 = 16;
/// The host is ahead of its streams if one look for so many long requests, or more, found a stream at work.
const VAIN: u32 = 8;
/// Pages that move in so many windows do not come to an end.
const ENDLESS: u32 = 64;
/// Streams, at most: each remembers its requests.
const MANY: usize = 64;
/// A thread does nearly all if others do so small a part, and a stream's calls are all of its thread's but for such a part.
const FEW: u64 = 16;
/// Of what counts as of late a request is so much, of which this part is forgotten with each window: all after some forty windows.
const ONE: u64 = 64;
const FADES: u64 = 8;

/// What it may cost: streams that share nothing need more than others. Where the host is ahead of them they share hardly anything anyway,
/// and each look for it takes time.
#[derive(Clone, Copy, Debug, Default)]
enum Price {
    #[default]
    Low,
    High,
}

impl Price {
    /// Of a window.
    fn of(vain: u32, noted: u32) -> Price {
        match vain >= noted / VAIN {
            true => Price::High,
            false => Price::Low,
        }
    }

    /// What streams may need apart where so much is needed.
    fn most_apart(self, needed: u64) -> u64 {
        match self {
            Price::Low => needed + needed / 4,
            Price::High => needed * 5 / 2,
        }
    }

    /// What the pool may hold that needs so much apart.
    fn most_held(self, apart: u64) -> u64 {
        match self {
            Price::Low => apart + apart / 16,
            Price::High => apart + apart / 8,
        }
    }
}

/// What speaks for it.
#[derive(Debug, Default)]
pub struct Partition {
    /// What it may cost.
    price: Price,
    /// Several threads have caches, and no two for the same stream.
    threads: bool,
    /// Long requests since it was looked at, and those that were as before on a stream where they have been for long.
    noted: u32,
    sure: u32,
    /// Looks at streams meanwhile that found them at work.
    pub(super) vain: u32,
    /// Windows in a row in which nearly all were.
    windows: u32,
    /// What was held when it began.
    held: u64,
    /// Mappings were made or removed until then, and in so many windows since.
    changes: Changes,
    moving: u32,
    /// How often it has ended.
    ended: u32,
}

impl Partition {
    /// A window is over: were nearly all as before? Less will do while it `lasts`.
    fn is_regular(&mut self, lasts: bool) -> bool {
        let part = if lasts {
            self.noted / LEAST
        } else {
            self.noted - self.noted / BUT
        };
        let regular = self.sure >= part;
        if !lasts {
            self.price = Price::of(self.vain, self.noted);
        }
        (self.noted, self.sure, self.vain) = (0, 0, 0);
        regular
    }
}

impl Heap {
    /// Caches came or went: has each thread streams of its own?
    pub(super) fn see_owners(&mut self) {
        let mut owners = FxHashMap::default();
        let own = self.caches().iter().all(|cache| {
            let owner = *owners.entry(cache.arena).or_insert(cache.owner);
            cache.arena != COMMON && owner == cache.owner
        });
        let mut threads = owners.into_values();
        let first = threads.next();
        self.partition.threads = own && threads.any(|owner| Some(owner) != first);
        for stream in self.streams_now() {
            let arena = self.arena_mut(stream);
            if arena.caches == 0 {
                arena.recent = 0; // whoever called has ended
            }
        }
    }

    /// May what a thread asks for be all that its stream is asked for?
    fn may_be_partitioned(&self) -> bool {
        self.partition.threads && self.known_streams() <= MANY && !self.is_crowded()
    }

    /// A long request: its block, where it was before, if that is free.
    #[inline(always)]
    pub fn alloc_as_predicted(&mut self, bytes: u64, align: u64, stream: u32) -> Option<u64> {
        match self.sharing.is_by_threads() && bytes > LONG {
            true => self.alloc_predicted(bytes, align, stream),
            false => None,
        }
    }

    #[inline(never)]
    fn alloc_predicted(&mut self, bytes: u64, align: u64, stream: u32) -> Option<u64> {
        let (len, align) = Heap::need(bytes, align);
        let at = self.arena(stream).predictor.place(bytes)?;
        let block = Extent {
            bytes: len,
            slab: None,
        };
        at.is_multiple_of(align)
            .then(|| self.alloc_at(at, block, stream))?
    }

    /// A request was served. Gives whether it is time to look whether memory is to be partitioned, or no more.
    #[inline(always)]
    pub fn note_request(&mut self, stream: u32, bytes: u64, at: u64) -> bool {
        bytes > LONG
            && (self.partition.threads || self.sharing.is_by_threads())
            && self.note_long(stream, bytes, at)
    }

    #[inline(never)]
    fn note_long(&mut self, stream: u32, bytes: u64, at: u64) -> bool {
        if self.may_be_partitioned()
            && let Some(arena) = self.arenas[stream as usize].as_mut()
        {
            arena.predictor.note(bytes, at);
            if arena.predictor.is_lost() {
                arena.most = 0; // what it needed before says nothing
            }
            arena.most = arena.most.max(arena.holds);
            arena.recent += ONE;
            self.partition.sure += u32::from(arena.predictor.is_sure());
        }
        self.partition.noted += 1;
        self.partition.noted >= WINDOW && self.replay.is_watching()
    }

    /// May others have what this stream has freed, though memory is partitioned?
    fn is_loose(&self, stream: u32) -> bool {
        let arena = self.arena(stream);
        arena.recent < FADES || !arena.predictor.is_sure()
    }

    /// Such streams that have freed something, but for this one.
    pub fn loose_streams(&self, but: u32) -> Vec<u32> {
        let has =
            |&stream: &u32| stream != but && !self.arena(stream).bins.is_empty() && self.is_loose(stream);
        self.streams().filter(has).collect()
    }

    /// The other streams that have more than they need, and how much: those first that have most of it.
    pub fn streams_with_more(&self, but: u32) -> Vec<(u64, u32)> {
        let excess = |stream: u32| {
            let arena = self.arena(stream);
            let free = arena.bins.descending(&self.space.nodes, 0);
            let free: u64 = free.map(|id| self.space.nodes[id].len).sum();
            (free as i64 + arena.holds - arena.most).max(0) as u64
        };
        let others = self.streams().filter(|&stream| stream != but);
        let mut others: Vec<_> = others.map(|stream| (excess(stream), stream)).collect();
        others.retain(|&(excess, _)| excess > 0);
        others.sort_unstable_by(|one, other| other.cmp(one));
        others
    }

    /// What streams need apart of which each is a thread's own.
    pub fn need_by_threads(&self) -> u64 {
        let need = self.streams().map(|stream| {
            let arena = self.arena(stream);
            let need = if self.is_loose(stream) {
                arena.holds
            } else {
                arena.most
            };
            need.max(0) as u64
        });
        need.sum::<u64>().max(self.needed)
    }

    /// A window is over. `may` the pool hold what is needed apart?
    pub fn look_at_partition(&mut self, may: bool) {
        let lasts = self.sharing.is_by_threads();
        let regular = self.partition.is_regular(lasts);
        let need = self.need_by_threads();
        let has = regular && may && self.may_be_partitioned() && self.is_worth_it(need, lasts);
        let endless = lasts && self.is_endless();
        let has = has && !endless && self.is_nothing_passed() && self.are_threads_apart();
        for stream in self.streams_now() {
            let recent = &mut self.arena_mut(stream).recent;
            *recent -= *recent / FADES;
        }
        match (lasts, has) {
            (true, true) => {
                self.look_at_moves();
                self.sharing.part_by_threads(need);
            }
            (true, false) => {
                let ended = self.partition.ended;
                self.partition.ended = match endless {
                    true => (ended + TIMES).min(ENDLESS_TIMES),
                    false => (ended + 1).min(TIMES.max(ended)),
                };
                self.end_partition();
            }
            (false, true) => {
                self.partition.windows += 1;
                let least = if self.has_several_threads() { 1 } else { TURNS };
                if self.partition.windows >= least << self.partition.ended {
                    self.begin_partition(need);
                }
            }
            (false, false) => self.partition.windows = 0,
        }
    }

    /// Pages that go on moving take too much time: then it may cost more.
    fn look_at_moves(&mut self) {
        let partition = &mut self.partition;
        partition.moving += u32::from(partition.changes != self.pages.changes);
        partition.changes = self.pages.changes;
        if partition.moving > ENDLESS {
            partition.price = Price::High;
        }
    }

    /// Is what streams need apart, so much, little more than what is needed, or held anyway?
    fn is_worth_it(&self, need: u64, lasts: bool) -> bool {
        let held = if lasts {
            self.partition.held
        } else {
            self.stats.reserved
        };
        need <= held.max(self.partition.price.most_apart(self.needed))
    }

    /// What a pool may hold that needs so much apart.
    pub fn most_by_threads(&self, need: u64) -> u64 {
        self.partition.price.most_held(need)
    }

    /// Have several threads called of late, each for one stream, but for a few calls?
    fn are_threads_apart(&self) -> bool {
        let mut streams: Vec<_> = self
            .caches()
            .iter()
            .map(|cache| (cache.owner, cache.arena))
            .collect();
        streams.sort_unstable();
        streams.dedup();
        let recent = |own: &[(ThreadId, u32)]| own.iter().map(|own| self.arena(own.1).recent).max();
        let threads = streams.chunk_by(|one, other| one.0 == other.0);
        let threads: Vec<u64> = threads.filter_map(recent).collect();
        let all: u64 = self.streams().map(|stream| self.arena(stream).recent).sum();
        let nearly = all - all / FEW;
        threads.iter().sum::<u64>() >= nearly && threads.iter().all(|&calls| calls < nearly)
    }

    /// Is nearly all that is allocated on a stream freed on it? What streams pass on would have to come back to them, or what they need apart
    /// would have no end.
    pub fn is_nothing_passed(&self) -> bool {
        let held = self
            .streams()
            .map(|stream| self.arena(stream).holds.max(0) as u64);
        held.sum::<u64>() <= self.stats.used + self.needed / PASSED
    }

    fn begin_partition(&mut self, need: u64) {
        self.wake_caches();
        self.leeway.end();
        (self.partition.held, self.partition.moving) = (self.stats.reserved, 0);
        self.sharing.part_by_threads(need);
    }

    /// What one stream has freed is others' again, once that is complete.
    fn end_partition(&mut self) {
        self.partition.windows = 0;
        self.sharing.end();
        self.streams_now().for_each(|stream| self.want_event(stream));
    }
}
