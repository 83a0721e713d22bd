//! Memory of stream captures.
//!
//! What is handed out during a capture belongs to the graph: each launch uses it anew, until the graph is gone
//! for good: its owner says so, or the driver. A stream's part in a capture therefore has an arena of its own, a
//! *timeline* whose work is never complete. It takes memory from the common arena, never from its stream's own,
//! whose work the graph does not wait for; and what is freed on it serves only later requests of the same part.
//! When the owner releases the capture, all its timelines are complete at once, and their memory is everybody's.
//!
//! A block that was handed out in a capture counts as used on the timeline it was handed out on. Freed anywhere
//! but in its capture, it waits for the release as it would wait for any other stream's work.
//!
//! No lock of its own: the heap's.

use super::heap::{Block, Heap};
use crate::base::units::CaptureId;

/// Released captures that are remembered, so that their further use is seen to be a mistake.
const REMEMBERED: usize = 1024;
/// Captures that are remembered to be watched.
pub(super) const WATCHED: usize = 64;

impl Heap {
    /// The capture that an arena is part of.
    pub(super) fn capture_of(&self, index: u32) -> Option<CaptureId> {
        self.arena(index).id.capture
    }

    /// A block was handed out on a timeline; if it is a capture's, the block is the graph's.
    pub(super) fn born(&mut self, at: u64, index: u32) {
        let id = self.arena(index).id;
        if id.capture.is_some() {
            self.directory.set_special(at);
            self.users_of(at).born = Some(id);
        }
    }

    /// The block was handed to nobody, so no graph uses it.
    pub fn forget_uses(&mut self, block: Block) {
        let start = self.block_start(block);
        self.also_used.remove(&start);
    }

    /// Was this capture released?
    pub fn is_released(&self, capture: CaptureId) -> bool {
        self.released.contains(&capture)
    }

    /// Is this the first that the pool hears of a capture, whose graph is to be watched then? One that was forgotten is
    /// watched twice, which changes nothing.
    pub fn hears_of(&mut self, capture: CaptureId) -> bool {
        if self.watched.contains(&capture) {
            return false;
        }
        if self.watched.len() == WATCHED {
            self.watched.pop_front();
        }
        self.watched.push_back(capture);
        true
    }

    /// The graph is gone, and all its launches are complete: its memory is everybody's. Blocks of it that are
    /// live stay so.
    pub fn release_capture(&mut self, capture: CaptureId) {
        if self.is_released(capture) {
            return;
        }
        if self.released.len() == REMEMBERED {
            self.released.pop_front();
        }
        self.released.push_back(capture);
        self.also_used.retain(|_, users| {
            users.born = users.born.filter(|born| born.capture != Some(capture));
            users.streams.retain(|user| user.line.capture != Some(capture));
            users.use_it() || users.loan.number != 0
        });
        let parts = self
            .streams()
            .filter(|&index| self.capture_of(index) == Some(capture));
        for index in parts.collect::<Vec<_>>() {
            self.share_all_slabs(index);
            let arena = self.arena_mut(index);
            arena.completed = arena.seq;
        }
        self.absorb_complete(None);
    }
}
