//! The way into a pool's books: the lock, what is to be seen to before a call may use them, and which arena it is for.
//!
//! Inlined is what nearly every call needs. A result that has room for an error's text is otherwise written to memory and read
//! back in pieces of other sizes, for which the processor waits, several times a call. So for an allocation and a free the
//! guard of the lock is in none: they take any books, and ask for better ones where those will not do.
//!
//! Lock: `heap`, which most of this takes.

use super::cached::this_thread;
use super::{Named, Pool, ThreadCache};
use crate::alloc::heap::Heap;
use crate::alloc::order::COMMON;
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use std::sync::atomic::Ordering;

impl Pool {
    /// The books, unless the pool has ended.
    #[inline(always)]
    pub(super) fn books(&self) -> Result<RankedGuard<'_, Heap>, Error> {
        let heap = self.any_books();
        if self.ended.load(Ordering::Relaxed) {
            Err(Error::PoolDestroyed { handle: 0 })
        } else {
            Ok(heap)
        }
    }

    /// The same, even if it has.
    #[inline(always)]
    pub(super) fn any_books(&self) -> RankedGuard<'_, Heap> {
        let mut heap = self.books_as_they_are();
        if heap.replay.is_on() {
            heap.make_up();
        }
        heap
    }

    /// The same, though a round may be replayed that they know nothing of: for a call that may be part of it.
    #[inline(always)]
    pub(super) fn books_as_they_are(&self) -> RankedGuard<'_, Heap> {
        let caller = this_thread(); // before the lock, which others wait for
        let mut heap = self.heap.lock();
        heap.see_caller(caller);
        if heap.has_waited() {
            heap.note_wait();
        }
        heap.serve_nobody();
        heap
    }

    /// The books, for figures, and for moments on streams: they are no reason to end a replay. What is freed in it gets its numbers
    /// when the books make up for it, and so comes after all moments until then.
    pub(super) fn books_to_read(&self) -> Result<RankedGuard<'_, Heap>, Error> {
        let heap = self.books_as_they_are();
        match self.ended.load(Ordering::Relaxed) {
            true => Err(Error::PoolDestroyed { handle: 0 }),
            false => Ok(heap),
        }
    }

    /// The books, for a call that names a stream.
    pub(super) fn books_for(&self, stream: &Named) -> Result<RankedGuard<'_, Heap>, Error> {
        let heap = self.books()?;
        match stream.line.and_then(|line| line.capture) {
            None => Ok(heap),
            Some(capture) => self.books_in_capture(heap, *stream, capture),
        }
    }

    /// May the books be used for such a call as they are? Otherwise `books_for` says why not.
    #[inline(always)]
    pub(super) fn is_plain(&self, stream: &Named) -> bool {
        !self.ended.load(Ordering::Relaxed) && stream.line.is_none_or(|line| line.capture.is_none())
    }

    /// The books, for an allocation: the pool may have come to rest before, or given back what it does not need.
    #[cold]
    pub(super) fn books_in_order(&self, stream: &Named) -> Result<RankedGuard<'_, Heap>, Error> {
        self.check_allocates()?;
        let mut heap = self.books_for(stream)?;
        if heap.is_rest_due() {
            drop(heap);
            self.come_to_rest(*stream)?;
            heap = self.books_for(stream)?;
        }
        if heap.is_spare_due() {
            drop(heap);
            self.give_back_spare();
            heap = self.books_for(stream)?;
        }
        Ok(heap)
    }

    /// May they be used for an allocation as they are? Otherwise `books_in_order` sees to it.
    #[inline(always)]
    pub(super) fn is_in_order(&self, heap: &mut Heap, stream: &Named) -> bool {
        self.importer.is_none() && self.is_plain(stream) && !heap.is_rest_due() && !heap.is_spare_due()
    }
}

/// The arena of a named stream.
pub(super) fn index(heap: &mut Heap, stream: Named) -> u32 {
    let Some(line) = stream.line else { return COMMON };
    let index = heap.stream(line);
    if stream.reach && line.capture.is_none() && heap.arena(index).reach != Some(stream.handle) {
        heap.set_reach(index, Some(stream.handle));
    }
    index
}

/// The same for a thread that may have a cache for the stream. A cache that is open knows its arena.
#[inline(always)]
pub(super) fn index_beside(heap: &mut Heap, own: Option<&ThreadCache>, stream: &Named) -> u32 {
    match own {
        Some(own) if own.is_of(stream) && !own.is_ended() => own.cache.arena,
        _ => index(heap, *stream),
    }
}

/// The arena for an allocation: what the stream freed before is at hand.
pub(super) fn index_for_alloc(heap: &mut Heap, stream: Named) -> u32 {
    let index = index(heap, stream);
    heap.serve(index);
    index
}

#[cfg(test)]
mod tests {
    use crate::backend::host::{HostBackend, streams};
    use crate::base::units::{EventHandle, StreamHandle};
    use crate::config::{Config, MemoryKind};
    use crate::pool::Pool;

    fn pool() -> Pool {
        let config = Config {
            memory: MemoryKind::Host,
            ..Config::default()
        };
        Pool::new(config, HostBackend::new().expect("host memory")).expect("a pool")
    }

    /// A server that makes streams for a request each, two at a time: the books are no longer for those that have gone.
    #[test]
    fn streams_that_come_and_go_leave_nothing() {
        let pool = pool();
        let (mut least, mut most) = (usize::MAX, 0);
        for _ in 0..200 {
            let streams = [1, 2].map(|_| streams::create().expect("a stream"));
            for stream in streams {
                let at = pool.alloc(1 << 20, 0, stream).expect("memory");
                pool.free(at, stream).expect("a live block");
            }
            let known = pool.books().expect("its books").streams().count();
            (least, most) = (least.min(known), most.max(known));
            pool.synchronized(pool.mark_all());
            pool.validate();
            for stream in streams {
                streams::destroy(stream).expect("a stream");
            }
        }
        let arenas = pool.books().expect("its books").arenas.len();
        assert!(
            least > 0 && arenas <= most + 1,
            "{arenas} for {least} to {most} streams"
        );
    }

    /// A block that lasts is copied on streams made for a request each, and the pool hears of nothing else.
    #[test]
    fn streams_of_copies_are_forgotten() {
        let pool = pool();
        let lasts = pool.alloc(4096, 0, StreamHandle(0)).expect("memory");
        let copy = |stream| {
            streams::enqueue(stream, Box::new(|| ())).expect("work");
            pool.copy_queued(lasts, stream).expect("a live block");
        };
        let at_work = [1, 2].map(|_| streams::create().expect("a stream"));
        for _ in 0..1000 {
            let stream = streams::create().expect("a stream");
            at_work.into_iter().chain([stream]).for_each(copy);
            streams::synchronize(stream).expect("a stream");
            streams::destroy(stream).expect("a stream");
        }
        let arenas = pool.books().expect("its books").arenas.len();
        assert!(arenas < 200, "{arenas}");
        for stream in at_work {
            streams::destroy(stream).expect("a stream");
        }
        pool.free(lasts, StreamHandle(0)).expect("a live block");
        pool.validate();
    }

    /// Streams of which the pool hears no end, nor of a wait, that wait for each other: those that left nothing are forgotten, and few leave
    /// something.
    #[test]
    fn streams_that_wait_for_each_other_are_forgotten() {
        let pool = pool();
        let event = EventHandle(1);
        // so much that what streams may leave is much as well
        let stays = pool.alloc(16 << 30, 0, StreamHandle(0)).expect("memory");
        for number in 0..1000 {
            let streams = [1, 2].map(|_| streams::create().expect("a stream"));
            let caches = streams.map(|stream| pool.open_cache(stream).expect("a cache"));
            for length in 1..40 {
                let (from, to) = ((number + length) % 2, (number + length + 1) % 2);
                let bytes = (length as u64 * 1733) << (length % 11);
                let at = caches[from]
                    .alloc(bytes, 0)
                    .map(Ok)
                    .unwrap_or_else(|| pool.alloc_beside(Some(&caches[from]), bytes, 0, streams[from]));
                let at = at.expect("memory");
                pool.event_recorded(event, pool.mark_stream(streams[from]));
                pool.stream_waits(streams[to], pool.mark_event(event));
                if caches[to].free(at).is_none() {
                    pool.free_beside(Some(&caches[to]), at, streams[to])
                        .expect("a live block");
                }
            }
            caches.iter().for_each(|cache| pool.close_cache(cache));
            for stream in streams {
                streams::destroy(stream).expect("a stream");
            }
        }
        pool.free(stays, StreamHandle(0)).expect("a live block");
        pool.validate();
        let arenas = pool.books().expect("its books").arenas.len();
        assert!(arenas < 100, "{arenas}");
    }
}
