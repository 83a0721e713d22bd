//! Threads that are alone: one that calls a pool, or one that frees the blocks of a stream. As long as nobody else does, nobody frees a block
//! that it is freeing at that moment, so its caches find out without a locked instruction that a block was freed before.
//!
//! *Of the pool*: whoever comes to the books is asked whether it is that thread. If it is not, all caches are told first, behind their shut
//! gates. A thread is alone again when it opens a cache and nobody else has one.
//!
//! *Of a stream*: a thread that has all of its caches. Others can get at a block that these handed out, or that is of the stream's slabs,
//! through the books alone: other streams' caches leave it to them. So before anybody else changes what the directory has of such a
//! block, the owner is told, behind its shut gates, and does from then on what threads do that are not alone. Before a run is no longer
//! the stream's slab it is waited for: what it had looked up would be somebody else's block. One stray free is no habit: once a thread
//! has freed many blocks since, on a stream for which nobody else has a cache, it is alone there again.
//!
//! (Locks that are reserved for the thread that takes them: Kawachiya, Koseki, Onodera, "Lock reservation", 2002.)
//!
//! Invariants: if a thread is alone in the pool all caches are its own, and it is alone on all their streams; if one is alone on a stream all
//! caches for that are its own; each cache's standing says what holds for its pool and stream.
//! No lock of its own: the heap's.

use super::cache::{Cache, ThreadId};
use super::gate::{Gate, Shut};
use super::heap::Heap;
use super::standing::Sole;
use std::sync::Arc;

/// Frees after which a thread that was not alone may be: they save 40 to 100 us in all (2.3 to 6.4 ns each), and to tell it otherwise interrupts every processor on
/// which the process runs, for a microsecond or two each.
const AGAIN: u64 = 1 << 14;

/// Threads that are alone, and have caches.
#[derive(Debug, Default)]
pub struct Soles {
    pool: Option<ThreadId>,
    /// By arena; those beyond have none.
    streams: Vec<Alone>,
    /// Who came to the books last.
    caller: Option<ThreadId>,
}

/// Who is alone on a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    sole: Option<ThreadId>,
    /// What all caches for the stream had kept when that ended.
    since: u64,
}

impl Soles {
    fn of(&self, arena: u32) -> Option<ThreadId> {
        self.streams.get(arena as usize)?.sole
    }

    /// (In a free another cache was there before, and with it the place.)
    fn set(&mut self, arena: u32, sole: Option<ThreadId>) {
        let index = arena as usize;
        if index >= self.streams.len() {
            self.streams.resize(index + 1, Alone::default());
        }
        self.streams[index].sole = sole;
    }

    fn standing(&self, arena: u32) -> Sole {
        match (self.pool, self.of(arena)) {
            (Some(_), _) => Sole::OfPool,
            (None, Some(_)) => Sole::OfStream,
            (None, None) => Sole::No,
        }
    }

    /// Is somebody alone on a stream who is not the caller?
    fn is_anothers(&self, arena: u32) -> bool {
        self.of(arena).is_some() && self.of(arena) != self.caller
    }
}

impl Heap {
    /// A thread has opened this cache.
    pub(super) fn see_sole(&mut self, cache: &Cache) {
        let (owner, arena) = (Some(cache.owner), cache.arena);
        if self.caches().iter().all(|other| Some(other.owner) == owner) {
            self.soles.pool = owner;
            for at in 0..self.caches().len() {
                self.soles.set(self.caches()[at].arena, owner);
            }
            self.caches().iter().for_each(|other| self.tell(other));
            return;
        }
        match self.soles.of(arena) {
            // whoever was alone there has no cache any more
            _ if self.arena(arena).caches == 1 => self.soles.set(arena, owner),
            Some(sole) if sole != cache.owner => self.end_sole_of(arena),
            _ => {}
        }
        self.tell(cache);
    }

    /// Its owner, who calls, allocates: it may be alone on the stream once more.
    #[inline(always)]
    pub fn see_sole_again(&mut self, cache: &Cache) {
        if !cache.standing.is_sole() {
            self.see_whether_alone(cache);
        }
    }

    #[inline(never)]
    fn see_whether_alone(&mut self, cache: &Cache) {
        let (arena, kept) = (cache.arena, cache.kept());
        if self.arena(arena).caches > 1 {
            return;
        }
        let Some(alone) = self.soles.streams.get_mut(arena as usize) else {
            return;
        };
        // others that were closed since had kept some of it
        alone.since = alone.since.min(kept);
        if kept - alone.since >= AGAIN {
            self.soles.set(arena, Some(cache.owner));
            self.tell(cache);
        }
    }

    /// Tells a cache's owner how it stands.
    fn tell(&self, cache: &Cache) {
        cache.standing.set(self.soles.standing(cache.arena), &cache.marks);
    }

    /// Is a thread alone in the pool?
    pub fn is_sole(&self) -> bool {
        self.soles.pool.is_some()
    }

    /// Somebody comes to the books: `caller` says who. What follows is of a thread alone only if it is the one.
    #[inline(always)]
    pub fn see_caller(&mut self, caller: ThreadId) {
        self.soles.caller = Some(caller);
        if self.soles.pool.is_some_and(|sole| sole != caller) {
            self.end_sole();
        }
    }

    #[cold]
    #[inline(never)]
    fn end_sole(&mut self) {
        self.soles.pool = None;
        let caches = self.caches().iter();
        self.tell_all(caches.clone().map(|cache| &cache.gate), || {
            caches.for_each(|cache| self.tell(cache))
        });
    }

    /// The caller is about to change what the directory has of the block at an address.
    #[inline(always)]
    pub(super) fn see_change(&mut self, at: u64) {
        if !self.is_sole()
            && let Some(arena) = self.directory.reserved_for(at)
            && self.soles.is_anothers(arena)
        {
            self.end_sole_of(arena);
        }
    }

    /// A live block's free will concern the heap.
    pub(super) fn make_special(&mut self, at: u64) {
        self.see_change(at);
        self.directory.set_special(at);
    }

    /// A block that the caches for an arena handed out was freed on another stream, without them.
    pub(super) fn see_free_elsewhere(&mut self, arena: u32) {
        if !self.is_sole() && self.soles.of(arena).is_some() {
            self.end_sole_of(arena);
        }
    }

    /// A run of that arena is about to be none any more.
    pub(super) fn see_run_end(&self, arena: u32) {
        if self.soles.is_anothers(arena) {
            let gates = self.caches_for(arena).map(|cache| &cache.gate);
            // whoever is at work inside has said so to all owners, and need not have waited for this one yet
            match gates.clone().all(|gate| gate.is_shut(Shut::Visit)) {
                true => gates.for_each(Gate::wait),
                false => self.tell_all(gates, || ()),
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn end_sole_of(&mut self, arena: u32) {
        self.soles.set(arena, None);
        self.soles.streams[arena as usize].since = self.kept_for(arena);
        let caches = self.caches_for(arena);
        self.tell_all(caches.clone().map(|cache| &cache.gate), || {
            caches.for_each(|cache| self.tell(cache))
        });
    }

    /// Does something while the owners are outside of these gates, at which others may be at work as well.
    fn tell_all<'a>(&self, gates: impl Iterator<Item = &'a Gate> + Clone, something: impl FnOnce()) {
        Gate::shut_out(gates.clone(), Shut::Told);
        something();
        gates.for_each(|gate| gate.open(Shut::Told));
    }

    fn caches_for(&self, arena: u32) -> impl Iterator<Item = &Arc<Cache>> + Clone {
        self.caches().iter().filter(move |cache| cache.arena == arena)
    }

    /// Checks the invariants.
    pub(super) fn validate_sole(&self) {
        for cache in self.caches() {
            let (pool, stream) = (self.soles.pool, self.soles.of(cache.arena));
            assert!(pool.is_none() || stream == pool, "{pool:?} and {stream:?}");
            assert!(
                stream.is_none_or(|sole| sole == cache.owner),
                "{stream:?} is not {:?}",
                cache.owner
            );
            assert!(
                cache.standing.is(self.soles.standing(cache.arena)),
                "a cache of {:?}",
                cache.owner
            );
        }
    }
}
