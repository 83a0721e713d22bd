//! What is freed, a block at a time.
//!
//! Lock: `heap`, which all of this takes.

use super::books::index_beside;
use super::cached::this_thread;
use super::turn::Turn;
use super::{Asked, Named, Pool, ThreadCache};
use crate::alloc::heap::Heap;
use crate::alloc::lists::{LONG, LONG_AT_MOST};
use crate::alloc::order::COMMON;
use crate::backend::Backend;
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use crate::base::units::{Addr, StreamHandle};

impl Pool {
    /// Frees a block: its memory is for `stream` at once, for others when ordered. Returns its size.
    pub fn free(&self, at: Addr, stream: StreamHandle) -> Result<u64, Error> {
        self.free_beside(None, at, stream)
    }

    /// The same for a thread whose cache for the stream could not keep the block.
    pub fn free_beside(
        &self,
        own: Option<&ThreadCache>,
        at: Addr,
        stream: StreamHandle,
    ) -> Result<u64, Error> {
        self.free_asked(own, Asked::No, at, stream)
    }

    /// The same if the cache may have asked whose the stream is.
    #[inline(always)]
    pub fn free_asked(
        &self,
        own: Option<&ThreadCache>,
        asked: Asked,
        at: Addr,
        stream: StreamHandle,
    ) -> Result<u64, Error> {
        let named;
        let stream = match self.known(own, asked) {
            Some(stream) => stream,
            None => match self.name_for_free(stream)? {
                Some(stream) => {
                    named = stream;
                    &named
                }
                None => return self.free_quietly(at),
            },
        };
        if let Some(bytes) = own.and_then(|own| own.hand_over(stream, at)) {
            return Ok(bytes);
        }
        let mut heap = self.books_as_they_are();
        if !heap.replay.is_watching()
            && let Some((bytes, due)) = self.free_taped(&mut heap, own, at, stream)
        {
            let held = heap.is_held_uncovered();
            drop(heap);
            if let Some((number, arena)) = due {
                self.record_if(Some(number), stream, arena);
            }
            self.cover_held(held);
            return Ok(bytes);
        }
        if !self.is_plain(stream) {
            drop(heap);
            heap = self.books_for(stream)?;
        }
        let block = heap.find_block_to_free(at.0)?;
        // before anything changes: a cache may keep it, or be about to
        let ended = heap.end(block)?;
        let index = index_beside(&mut heap, own, stream);
        heap.hear_of(index);
        self.part_with(at);
        let bytes = heap.free_ended(ended, index, false);
        if let Some(own) = self.still(&mut heap, own, stream) {
            if bytes > LONG {
                heap.flush_long(&own.cache);
                if bytes <= LONG_AT_MOST {
                    heap.note_full();
                }
            }
            heap.relieve(&own.cache);
        }
        self.after_frees(heap, stream, index);
        Ok(bytes)
    }

    /// Frees a block all use of which is over, on every stream, that no cache of the calling thread kept. Returns its size.
    pub fn free_synced(&self, at: Addr) -> Result<u64, Error> {
        if !self.backend.usable() {
            return self.free_quietly(at);
        }
        let mut heap = self.books_to_read()?;
        if !heap.replay.is_watching()
            && let Some(bytes) = Pool::taped(&mut heap, |heap| heap.free_synced_taped(this_thread(), at.0))
        {
            return Ok(bytes);
        }
        let block = heap.find_block_to_free(at.0)?;
        let ended = heap.end(block)?;
        self.part_with(at);
        let bytes = heap.free_ended(ended, COMMON, true);
        self.keep_to_threshold(heap);
        Ok(bytes)
    }

    /// Who frees? None: the backend is gone, or its device is lost; there no work runs any more.
    pub(super) fn name_for_free(&self, stream: StreamHandle) -> Result<Option<Named>, Error> {
        match self.name(stream) {
            Ok(stream) => Ok(Some(stream)),
            Err(_) if !self.backend.usable() || self.backend.is_lost() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells whoever watches that a block is no more, before its memory can be another one. The caller holds the books.
    #[inline]
    pub(super) fn part_with(&self, at: Addr) {
        if self.watched && self.backend.usable() {
            self.backend.block_freed(at);
        }
    }

    /// The backend is gone: only the books are kept, so that leaks are still counted rightly.
    fn free_quietly(&self, at: Addr) -> Result<u64, Error> {
        let mut heap = self.books()?;
        let block = heap.find_block_to_free(at.0)?;
        let ended = heap.end(block)?;
        self.part_with(at);
        Ok(heap.free_ended(ended, COMMON, true))
    }

    #[inline(always)]
    fn cover_held(&self, held: bool) {
        if held {
            self.cover_held_last();
        }
    }

    /// Records events on the streams that the block waits for which was held back last, if no miss is at work just then. It is part of a free,
    /// and allocates nothing.
    #[cold]
    fn cover_held_last(&self) {
        let Some(_grow) = Turn::try_take(self) else { return };
        for number in 0.. {
            let Ok(mut heap) = self.books_to_read() else {
                return;
            };
            let Some(stream) = heap.held_for(number) else {
                return;
            };
            let uncovered = heap.uncovered_of(stream);
            drop(heap);
            if let Some(uncovered) = uncovered {
                self.record_on(uncovered);
            }
        }
    }

    #[inline(always)]
    pub(super) fn after_frees(&self, mut heap: RankedGuard<'_, Heap>, stream: &Named, index: u32) {
        if self.importer.is_some() && index != COMMON {
            heap.want_event(index); // nobody may come later who needs one
        }
        let due = heap.event_due(index);
        let over = heap.is_above_threshold();
        let held = heap.is_held_uncovered();
        drop(heap);
        self.record_if(due, stream, index);
        self.cover_held(held);
        if over {
            self.apply_threshold();
        }
    }
}
