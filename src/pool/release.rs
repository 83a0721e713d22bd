//! Giving memory back: trim, squeeze, the release threshold, and the end of the pool.
//!
//! Only squeeze and the end wait for queued work. But memory that comes with its address may wait for it by itself
//! when it is released, so there trim and a release threshold may keep their caller waiting, too.

use super::turn::Turn;
use super::{Leaked, Pool};
use crate::alloc::flush::Whose;
use crate::alloc::heap::{Block, Heap};
use crate::alloc::node::{Kind, NIL};
use crate::alloc::order::Clock;
use crate::alloc::release::Leaving;
use crate::backend::{Backend, BackendError, process};
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use crate::base::units::{Addr, StreamHandle};
use std::sync::atomic::Ordering;

impl Pool {
    /// Gives back free memory, without waiting for any work unless the memory does so, until at most `keep` bytes are
    /// reserved.
    pub fn trim(&self, keep: u64) -> Result<(), Error> {
        self.books()?.let_guests_share();
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        self.look_about();
        self.give_back_chunks(false);
        let _grow = Turn::take(self);
        self.hear_of_graphs();
        self.poll_all();
        let mut heap = self.books()?;
        heap.forget_need();
        heap.flush(Whose::All, |_| false);
        heap.share_slabs();
        drop(heap);
        self.give_back(keep, 0)
            .1
            .map_err(|error| super::translate(error, StreamHandle(0)))
    }

    /// Waits for pending frees, gives back everything that is free, and returns how many bytes that was.
    pub fn squeeze(&self) -> Result<u64, Error> {
        self.books()?.let_guests_share();
        if !self.backend.usable() {
            return Err(Error::Unloaded);
        }
        self.look_about();
        self.give_back_chunks(true);
        let mut grow = Turn::take(self);
        self.hear_of_graphs();
        self.books()?.forget_need();
        Ok(self.give_back_all(&mut grow))
    }

    /// Lets go of the books, and gives memory back if they hold more than the release threshold allows.
    pub(super) fn keep_to_threshold(&self, heap: RankedGuard<'_, Heap>) {
        let over = heap.is_above_threshold();
        drop(heap);
        if over {
            self.apply_threshold();
        }
    }

    /// Gives back memory above the threshold, if no miss is at work just then.
    pub(super) fn apply_threshold(&self) {
        if !self.backend.usable() {
            return;
        }
        let Some(_grow) = Turn::try_take(self) else { return };
        self.poll_all();
        let Ok(mut heap) = self.books() else { return };
        let threshold = heap.release_threshold;
        heap.flush(Whose::All, |_| false);
        heap.tune_caches();
        drop(heap);
        // what could not be given back stays in the pool; the next free tries again
        let _ = self.give_back(threshold, 0);
    }

    /// Waits for all queued work and gives back all that is free then.
    pub(super) fn give_back_all(&self, grow: &mut Turn) -> u64 {
        if !self.backend.usable() {
            return 0;
        }
        // the second round is for slabs that the first one's waiting emptied
        for _ in 0..2 {
            if let Ok(mut heap) = self.books() {
                heap.flush(Whose::All, |_| false);
                heap.flush_slabs();
            }
            grow.wait_for_all();
            while self.confirm(&Clock::new(), None) {}
        }
        if let Ok(mut heap) = self.books() {
            heap.stats.squeezes += 1;
        }
        self.give_back(0, 0).0
    }

    /// Gives back free pages of at least `least` bytes until at most `keep` are reserved: how many bytes that were, and what
    /// went wrong, if anything did. The caller holds `grow`.
    pub(super) fn give_back(&self, keep: u64, least: u64) -> (u64, Result<(), BackendError>) {
        let Ok(mut heap) = self.books() else {
            return (0, Ok(()));
        };
        let leaving = heap.choose_leaving(keep, least);
        drop(heap);
        let (mut given, mut outcome) = (0, Ok(()));
        for leaving in leaving {
            if outcome.is_ok() {
                outcome = self.see_off(&leaving);
            }
            let mut heap = self.heap.lock();
            if outcome.is_ok() {
                heap.released(leaving.page);
                given += leaving.bytes;
            } else {
                heap.stays(&leaving);
            }
        }
        if let Ok(mut heap) = self.books() {
            heap.tune_caches();
        }
        (given, outcome)
    }

    fn see_off(&self, leaving: &Leaving) -> Result<(), BackendError> {
        // memory that came with its address goes with it
        let mappings = leaving.mappings.iter().filter(|_| !self.placed);
        for &(at, mapping) in mappings {
            self.backend.unmap(Addr(at), leaving.bytes)?;
            self.heap.lock().unmapped(mapping);
        }
        self.backend.release(leaving.handle, leaving.bytes)
    }

    /// Can the pool end now? Not while a capture forbids to wait for what is queued. Waits for it.
    pub fn may_end(&self) -> Result<(), Error> {
        if !self.backend.usable() {
            return Ok(());
        }
        match self.backend.synchronize_all() {
            Err(BackendError::Capturing(why)) => Err(Error::Capture(format!(
                "the pool cannot end while a stream is being captured ({why}); end the capture first"
            ))),
            _ => Ok(()),
        }
    }

    /// The process ends, and nobody has ended the pool.
    pub fn abandon(&self) {
        if self.backend.usable() {
            self.backend.abandon();
        }
    }

    /// Ends the pool: waits for queued work, gives all memory back, reports what was live. Later calls fail
    /// with `PoolDestroyed`; a second `end` finds nothing. If the backend is no longer usable no call is made.
    pub fn end(&self) -> Leaked {
        self.dismiss_all(true);
        // (in a forked child no copy goes on, and whose it was may be held for ever)
        let _passage = (!process::forked()).then(|| self.passage.write());
        let _grow = Turn::take(self);
        let mut heap = self.any_books();
        if self.ended.swap(true, Ordering::Relaxed) {
            return Leaked::default();
        }
        let chunks = self.end_chunks(&mut heap);
        let slot = heap.space.slot();
        let (reuse, threshold) = (heap.reuse, heap.release_threshold);
        let heap = {
            heap.end_caches();
            let empty = Heap::new(slot, reuse, threshold, heap.directory.clone());
            let old = std::mem::replace(&mut *heap, empty);
            drop(heap);
            old
        };
        drop(chunks);
        let leaked = live_blocks(&heap);
        if self.backend.usable() {
            self.give_up(heap);
        } else {
            self.backend.close();
        }
        self.stale.lock().clear();
        leaked
    }

    /// Gives back all that these books hold. A call that fails leaves its object to the end of the process.
    fn give_up(&self, heap: Heap) {
        let wait = || self.backend.synchronize_all();
        match wait().or_else(|_| wait()) {
            Ok(()) | Err(BackendError::Lost(_)) => {}
            // queued work may use the memory, and cannot be waited for: the process ends with both
            Err(_) => return,
        }
        for stream in heap.streams() {
            let events = heap.arena(stream).events.iter().map(|event| event.0);
            self.stale.lock().extend(events);
        }
        self.forget_stale();
        for (_, page) in heap.pages.iter() {
            for &mapping in page.mappings.iter().filter(|_| !self.placed) {
                let _ = self
                    .backend
                    .unmap(Addr(heap.pages.mapping(mapping).at), page.bytes);
            }
            let _ = self.backend.release(page.handle, page.bytes);
        }
        for range in heap.space.ranges.iter().filter(|_| !self.placed) {
            let _ = self.backend.unreserve(Addr(range.base), range.bytes);
        }
        self.backend.close();
    }
}

fn live_blocks(heap: &Heap) -> Leaked {
    let mut leaked = Leaked::default();
    let mut note = |at: u64, bytes: u64| {
        leaked.blocks += 1;
        leaked.bytes += bytes;
        leaked.largest.push((Addr(at), bytes));
        if leaked.largest.len() >= 64 {
            keep_largest(&mut leaked.largest);
        }
    };
    for range in &heap.space.ranges {
        let mut id = range.first;
        while id != NIL {
            let node = &heap.space.nodes[id];
            match node.kind {
                Kind::Live if heap.is_kept(Block::Large(id)) => {}
                Kind::Live => note(node.start, node.len),
                Kind::Slab => {
                    let blocks = heap.slabs.get(node.slab).blocks;
                    let live = |&index: &u16| {
                        heap.slabs.is_live(node.slab, index) && !heap.is_kept(Block::Small(node.slab, index))
                    };
                    for index in (0..blocks).filter(live) {
                        note(
                            heap.slabs.block_start(node.slab, index),
                            heap.slabs.block_bytes(node.slab),
                        );
                    }
                }
                _ => {}
            }
            id = node.next;
        }
    }
    keep_largest(&mut leaked.largest);
    leaked
}

fn keep_largest(blocks: &mut Vec<(Addr, u64)>) {
    blocks.sort_by_key(|&(at, bytes)| (std::cmp::Reverse(bytes), at));
    blocks.truncate(8);
}
