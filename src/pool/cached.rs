//! Calls through a thread's cache. What the cache serves takes no lock; all else goes on to the pool.

use super::turn::Turn;
use super::{Named, Pool, index, index_for_alloc, is_alignment};
pub use crate::alloc::cache::Cache;
use crate::alloc::cache::ThreadId;
pub use crate::alloc::directory::{Look, Spot, Where};
use crate::alloc::flush::Whose;
use crate::alloc::gate::Shut;
use crate::alloc::heap::Heap;
pub use crate::alloc::inside::{Inside, Refused};
pub use crate::alloc::lists::LONG;
pub use crate::alloc::size::SMALL_MAX;
use crate::backend::{Backend, process};
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle, Timeline};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number for the calling thread. (`std::thread::current` allocates.)
pub(super) fn this_thread() -> ThreadId {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static THIS: Cell<u64> = const { Cell::new(0) };
    }
    if THIS.get() == 0 {
        THIS.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    ThreadId(THIS.get())
}

/// A thread's cache for one stream of a pool. Only the thread that opened it may use it.
#[derive(Clone, Debug)]
pub struct ThreadCache {
    pub(super) cache: Arc<Cache>,
    backend: Arc<dyn Backend>,
    stream: Named,
    line: Timeline,
    /// The program says when the stream's handle comes to mean something else.
    declared: bool,
}

/// Has the backend said in this call that the stream's handle still means the cache's stream? Then the pool need not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)] // as long as an address, so that either comes back in a register
pub enum Asked {
    /// It was not asked, or said something else.
    No,
    /// It has.
    Yes,
}

impl ThreadCache {
    /// A block for a request, if the cache has one. What is no alignment the pool refuses.
    pub fn alloc(&self, bytes: u64, align: u64) -> Option<Addr> {
        self.alloc_or_ask(bytes, align).ok()
    }

    #[inline(always)]
    fn alloc_or_ask(&self, bytes: u64, align: u64) -> Result<Addr, Asked> {
        if !is_alignment(align) || !self.stream_is_the_same() {
            return Err(Asked::No);
        }
        let at = match self.cache.enter_asked() {
            Ok(_inside) => self.cache.take_inside(bytes, align),
            Err(refused) if align == 0 => refused.replay_alloc(bytes),
            Err(_) => None,
        };
        at.map(Addr).ok_or(Asked::Yes)
    }

    /// The cache itself, where it may be asked at once: the stream is declared (others have something to ask first), and whoever
    /// looks into it from outside needs no fence of its owner. That is so for good. Nothing in what it is asked can fail; the caller
    /// has made sure that the process is not disturbed.
    pub fn quick(&self) -> Option<&Cache> {
        self.cache.gate.is_quick().then_some(&*self.cache)
    }

    /// Its place is one where nobody looks at once.
    pub fn set_apart(&self) {
        self.cache.gate.asks();
    }

    /// A block for a request if `quick` did not give this cache to be asked, or the block is to be aligned.
    #[inline(always)]
    pub fn alloc_rest(&self, bytes: u64, align: u64) -> Result<Addr, Asked> {
        match align == 0 && self.cache.gate.is_quick() {
            true => Err(Asked::No),
            false => self.alloc_or_ask(bytes, align),
        }
    }

    /// Keeps a block that is freed, if that is all there is to do; gives its size.
    pub fn free(&self, at: Addr) -> Option<u64> {
        self.free_or_ask(at).ok()
    }

    #[inline(always)]
    fn free_or_ask(&self, at: Addr) -> Result<u64, Asked> {
        if !self.stream_is_the_same() {
            return Err(Asked::No);
        }
        let bytes = match self.cache.enter_asked() {
            Ok(_inside) => self.cache.keep_inside(at.0),
            Err(refused) => refused.replay_free(at.0),
        };
        bytes.ok_or(Asked::Yes)
    }

    /// Keeps a block all use of which is over, whatever stream that was on: gives its size.
    #[inline]
    pub fn free_synced(&self, at: Addr) -> Option<u64> {
        if process::disturbed() && !self.backend.usable() {
            return None;
        }
        match self.cache.is_replayed() {
            true => self.cache.replay_free(at.0),
            false => self.cache.keep_synced(at.0),
        }
    }

    /// The same of a free.
    #[inline(always)]
    pub fn free_rest(&self, at: Addr) -> Result<u64, Asked> {
        match self.cache.gate.is_quick() {
            true => Err(Asked::No),
            false => self.free_or_ask(at),
        }
    }

    /// Blocks for those of these requests for which the cache has one; the other places stay 0. Gives whether it had all.
    pub fn alloc_batch(&self, sizes: &[u64], out: &mut [Addr]) -> bool {
        if !self.stream_is_the_same() {
            return false;
        }
        if self.cache.is_replayed() {
            let all = self.cache.replay_alloc_batch(sizes, out);
            if !all {
                out.fill(Addr(0));
            }
            return all;
        }
        // the pool looks at what is in use before a batch, and lets the cache serve what it can
        !self.cache.is_in_part() && self.cache.take_batch(sizes, out)
    }

    /// Keeps all these blocks, which are freed, if that is all there is to do. Places with 0 are none.
    pub fn free_batch(&self, blocks: &[Addr]) -> bool {
        self.stream_is_the_same()
            && match self.cache.is_replayed() {
                true => self.cache.replay_free_batch(blocks),
                false => self.cache.keep_all(blocks),
            }
    }

    /// May it be asked in a process that was disturbed? The backend may be gone.
    pub fn is_usable(&self) -> bool {
        self.backend.usable()
    }

    /// Does its owner, who asks, alone free the blocks of its stream?
    pub fn is_sole(&self) -> bool {
        self.cache.standing.is_sole()
    }

    /// Does it serve nobody any more?
    pub fn is_ended(&self) -> bool {
        self.cache.gate.is_shut(Shut::Ended)
    }

    /// Is it for this stream?
    #[inline(always)]
    pub(super) fn is_of(&self, stream: &Named) -> bool {
        std::ptr::eq(stream, &self.stream) || stream.line == self.stream.line
    }

    /// A block for a request of this stream that it did not have, if it has one once it has got what other threads handed over.
    #[inline(always)]
    pub(super) fn collect(&self, stream: &Named, bytes: u64, align: u64) -> Option<Addr> {
        let any = self.is_of(stream) && self.cache.collect();
        any.then(|| self.cache.take(bytes, align).map(Addr))?
    }

    /// Keeps a block that is freed on this stream and that it had no room for, if it has once it has handed some over.
    #[inline(always)]
    pub(super) fn hand_over(&self, stream: &Named, at: Addr) -> Option<u64> {
        let room = self.is_of(stream) && self.cache.hand_over();
        room.then(|| self.cache.keep(at.0))?
    }

    /// Handles of destroyed streams come again, and a stream may be captured at any time. Once the cache has ended nobody is asked: with its
    /// pool the stream may be gone.
    #[inline(always)]
    fn stream_is_the_same(&self) -> bool {
        match self.declared {
            true => !process::disturbed() || self.backend.usable(),
            false => !self.is_ended() && self.backend.is_still(self.stream.handle, self.line),
        }
    }
}

impl Pool {
    /// Opens a cache for the calling thread and a stream. None: the pool or the stream has none.
    pub fn open_cache(&self, stream: StreamHandle) -> Option<ThreadCache> {
        self.open_cache_in(stream, false)
    }

    /// The same in a free, which allocates nothing: None, too, if none is at hand.
    pub fn open_cache_in_free(&self, stream: StreamHandle) -> Option<ThreadCache> {
        self.open_cache_in(stream, true)
    }

    fn open_cache_in(&self, stream: StreamHandle, in_free: bool) -> Option<ThreadCache> {
        if !self.has_caches() {
            return None;
        }
        let line = self.backend.timeline(stream).ok()?;
        let named = self.name(stream).ok()?;
        if line.capture.is_some() || named.line.is_some_and(|named| named != line) {
            return None;
        }
        let mut heap = self.books_for(&named).ok()?;
        let arena = index(&mut heap, named);
        let cache = heap.open_cache(this_thread(), stream, arena, in_free)?;
        if !self.config.declared_streams {
            cache.gate.asks();
        }
        Some(ThreadCache {
            cache,
            backend: self.backend.inner().clone(),
            stream: named,
            line,
            declared: self.config.declared_streams,
        })
    }

    /// Gives back what a cache keeps. It serves nobody any more.
    pub fn close_cache(&self, cache: &ThreadCache) {
        if let Ok(mut heap) = self.books() {
            heap.close_cache(&cache.cache);
        }
    }

    /// May threads have caches?
    pub fn has_caches(&self) -> bool {
        self.config.thread_caches && !self.watched
    }

    /// Has nothing been called, where threads may have caches?
    pub fn is_new(&self) -> bool {
        self.has_caches() && self.books_to_read().is_ok_and(|heap| heap.is_new())
    }

    /// Is the caller the only thread that calls the pool, as far as that matters to what it keeps? (Who asks calls it.)
    pub fn is_sole(&self) -> bool {
        self.books_to_read().is_ok_and(|heap| heap.is_sole())
    }

    /// The handle of a stream will come to mean something else.
    pub fn stream_changed(&self, stream: StreamHandle) {
        // whoever else records events on streams within reach holds it, too, and may have this one on its list
        let _grow = Turn::take(self);
        if let Ok(mut heap) = self.books() {
            heap.end_uses(stream);
        }
        self.cover(|_| true);
        if let Ok(mut heap) = self.books() {
            heap.close_caches_of(stream);
            heap.lose_reach(stream);
        }
    }

    /// May events be recorded on this stream in calls that do not name it?
    pub(super) fn reaches(&self, stream: StreamHandle) -> bool {
        match self.config.declared_streams {
            true => !self.backend.is_of_thread(stream),
            false => self.backend.is_built_in(stream),
        }
    }

    /// Who is this? The cache knows where the program declares its streams, or the backend was just asked.
    #[inline(always)]
    pub(super) fn known<'a>(&self, own: Option<&'a ThreadCache>, asked: Asked) -> Option<&'a Named> {
        match own {
            Some(own)
                if (own.declared || asked == Asked::Yes) && !own.is_ended() && self.backend.usable() =>
            {
                Some(&own.stream)
            }
            _ => None,
        }
    }

    /// The caller's cache, if its stream is still the one that the call names; else it is closed.
    #[inline(always)]
    pub(super) fn still<'a>(
        &self,
        heap: &mut Heap,
        own: Option<&'a ThreadCache>,
        stream: &Named,
    ) -> Option<&'a ThreadCache> {
        let own = own?;
        if !own.is_of(stream) {
            heap.close_cache(&own.cache);
            return None;
        }
        if own.is_ended() {
            return None;
        }
        own.cache.call(false);
        Some(own)
    }

    /// Takes back what the calling thread keeps, until it may serve a request of `len` bytes.
    pub(super) fn flush_own(
        &self,
        own: Option<&ThreadCache>,
        (len, align): (u64, u64),
        stream: Named,
    ) -> Result<(), Error> {
        let Some(own) = own else { return Ok(()) };
        let mut heap = self.books()?;
        let arena = index_for_alloc(&mut heap, stream);
        let enough = |heap: &Heap| heap.fit(len, align, arena).is_some();
        heap.flush(Whose::Thread(own.cache.owner), enough);
        Ok(())
    }

    /// Takes back what other threads keep: first those of the same stream, then all.
    pub(super) fn flush_others(&self, (len, align): (u64, u64), stream: Named) -> Result<(), Error> {
        let mut heap = self.books()?;
        let arena = index_for_alloc(&mut heap, stream);
        let enough = |heap: &Heap| heap.fit(len, align, arena).is_some();
        if !(heap.flush(Whose::Stream(arena), enough) && enough(&heap)) {
            heap.flush(Whose::All, enough);
        }
        Ok(())
    }
}
