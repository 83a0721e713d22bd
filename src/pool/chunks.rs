//! Chunks: blocks of the pool that short staged copies go through one after the other, so that a short copy costs neither a
//! request nor a free.
//!
//! A chunk is one stream's, and in the hands of one caller while a copy goes through it. Its moment is behind all copies that
//! have: then whoever has it may begin it anew, or give it back, without naming a stream that may be gone. One that is full
//! before its moment is over is freed on its stream, as any block is. Chunks whose moment is over are given back by whatever
//! needs memory or counts it: a miss, trim, squeeze, statistics, the end; squeeze, and a miss that is not served otherwise,
//! wait for the others.
//!
//! Invariant: a chunk is a live block, and in the list, the one used last, or looked at in vain, at its end, or in one caller's hands.
//!
//! Locks: `chunks`, for a look at the list. Nothing is taken under it, and no driver is called. `passage`, shared by all copies through
//! the pool's memory, chunks or other blocks, for as long as they take: the end waits for them, since that memory goes with it.

use super::Pool;
use crate::alloc::heap::Heap;
use crate::alloc::order::COMMON;
use crate::backend::BackendError;
use crate::backend::staging::Moment;
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use crate::base::units::{Addr, StreamHandle};
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard};

/// The longest copy that goes through a chunk.
pub const SHORT: u64 = 64 << 10;
const CHUNK: u64 = 8 * SHORT;
/// Pieces begin at multiples of it.
const GRAIN: u64 = 256;
/// More chunks than that are kept only while their copies are under way.
const KEPT: usize = 16;
/// Who keeps one more looks at so many of the oldest: no more, since each look is a driver's call, and more than one, so
/// that there are ever fewer.
const LOOKS: usize = 2;

/// A block that short copies of one stream go through.
pub struct Chunk {
    at: Addr,
    used: u64,
    /// Two numbers that tell the stream from others.
    line: (u64, u64),
    /// Behind all copies through it; None: there were none.
    until: Option<Arc<dyn Moment>>,
}

impl Chunk {
    /// The next piece; the pool has seen to it that there is room.
    pub fn piece(&mut self, bytes: u64) -> Addr {
        let at = Addr(self.at.0 + self.used);
        self.used += bytes.next_multiple_of(GRAIN);
        at
    }

    /// A copy through it has just been queued on its stream. `moment` takes a moment there.
    pub fn used<E>(
        &mut self,
        stream: StreamHandle,
        moment: impl FnOnce() -> Result<Arc<dyn Moment>, E>,
    ) -> Result<(), E> {
        if !self.until.as_ref().is_some_and(|known| known.move_on(stream)) {
            self.until = Some(moment()?);
        }
        Ok(())
    }

    /// Waits for the copies through it.
    pub fn wait(&self) -> Result<(), BackendError> {
        self.until.as_ref().map_or(Ok(()), |moment| moment.wait())
    }

    fn is_over(&self) -> bool {
        self.until.as_ref().is_none_or(|moment| moment.is_over())
    }
}

impl Pool {
    /// A copy goes through the pool's memory, and the pool does not end meanwhile. None: it has ended.
    pub fn passage(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let held = self.passage.read().unwrap_or_else(PoisonError::into_inner);
        (!self.ended.load(Ordering::Relaxed)).then_some(held)
    }

    /// A chunk for a copy of at most [`SHORT`] bytes, in a call that names its stream. To be given to `keep_chunk` or
    /// `free_chunk`.
    pub fn chunk(&self, line: (u64, u64), bytes: u64, stream: StreamHandle) -> Result<Chunk, Error> {
        let mut chunks = self.chunks.lock();
        // whoever calls again has used it last
        let last = |has_room: fn(&Chunk, u64) -> bool| {
            chunks
                .iter()
                .rposition(|chunk| chunk.line == line && has_room(chunk, bytes))
        };
        let known = last(|chunk, bytes| chunk.used + bytes <= CHUNK).or_else(|| last(|_, _| true));
        let known = known.and_then(|place| chunks.remove(place));
        drop(chunks);
        if let Some(mut chunk) = known {
            if chunk.used + bytes <= CHUNK {
                return Ok(chunk);
            }
            if chunk.is_over() {
                chunk.used = 0;
                return Ok(chunk);
            }
            self.free_chunk(chunk, stream)?;
        }
        Ok(Chunk {
            at: self.alloc(CHUNK, 0, StreamHandle::HOST)?,
            used: 0,
            line,
            until: None,
        })
    }

    /// For the next copy on the stream. What is too many goes, the oldest first; one whose copies are under way is then as good
    /// as new.
    pub fn keep_chunk(&self, chunk: Chunk) {
        let mut chunks = self.put_chunk(chunk);
        for _ in 0..LOOKS {
            let oldest = (chunks.len() > KEPT).then(|| chunks.pop_front()).flatten();
            let Some(oldest) = oldest else { return };
            drop(chunks);
            self.give_back_chunk(oldest);
            chunks = self.chunks.lock();
        }
    }

    fn put_chunk(&self, chunk: Chunk) -> RankedGuard<'_, VecDeque<Chunk>> {
        let mut chunks = self.chunks.lock();
        if self.ended.load(Ordering::Relaxed) {
            // the end has been through the list: the chunk's memory is gone
            drop(chunks);
            drop(chunk);
            return self.chunks.lock();
        }
        chunks.push_back(chunk);
        chunks
    }

    /// Its memory is free when what is queued on the stream is complete. Tried twice, since nobody would do it later.
    pub fn free_chunk(&self, chunk: Chunk, stream: StreamHandle) -> Result<(), Error> {
        let free = || self.free(chunk.at, stream).map(drop);
        free().or_else(|_| free())
    }

    /// Gives back the chunks whose copies are complete; all of them, if it may `wait`. True if there were any.
    pub(super) fn give_back_chunks(&self, wait: bool) -> bool {
        let chunks = mem::take(&mut *self.chunks.lock());
        let mut any = false;
        for chunk in chunks {
            if wait {
                // whether it is over is asked next
                let _ = chunk.wait();
            }
            any |= self.give_back_chunk(chunk);
        }
        any
    }

    /// If its copies are complete.
    fn give_back_chunk(&self, chunk: Chunk) -> bool {
        if chunk.is_over() {
            return self.free_synced(chunk.at).is_ok();
        }
        drop(self.put_chunk(chunk));
        false
    }

    /// The pool ends: queued work is waited for before the memory goes. The caller holds the books, and drops what this gives
    /// when it does not: with a moment may go all that the driver has of it.
    pub(super) fn end_chunks(&self, heap: &mut Heap) -> VecDeque<Chunk> {
        let chunks = mem::take(&mut *self.chunks.lock());
        for chunk in &chunks {
            if let Ok(block) = heap.find_block(chunk.at.0) {
                self.part_with(chunk.at);
                let _ = heap.free(block, COMMON, true);
            }
        }
        chunks
    }
}
