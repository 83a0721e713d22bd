//! What is replayed (`replay`) adds to the figures, of which the books know nothing until they make up for it.
//!
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::note::Done;
use super::tape::{Progress, Step};
use crate::observe::stats::Stats;

impl Heap {
    /// Has nothing been called?
    pub fn is_new(&self) -> bool {
        self.calls().all() == 0
    }

    /// So many calls were replayed.
    pub(super) fn replayed_calls(&self) -> u64 {
        let progress = self.replay.tape.progress().unwrap_or_default();
        self.replay.recording.done(progress).calls.all()
    }

    /// Adds to the figures of the books what they know nothing of yet: where more is in use less is free. How long the longest extent
    /// of that is nobody knows.
    pub(super) fn add_replayed(&self, stats: &mut Stats) {
        let progress = self.replay.tape.progress().unwrap_or_default();
        let Done { calls, mut more } = self.replay.recording.done(progress);
        stats.allocations = stats.allocations.wrapping_add(calls.allocs);
        stats.hits = stats.hits.wrapping_add(calls.allocs);
        stats.frees = stats.frees.wrapping_add(calls.frees);
        stats.used = stats.used.wrapping_add_signed(more);
        stats.used_peak = stats.used_peak.max(self.replayed_peak(progress));
        for part in [&mut stats.free, &mut stats.cached, &mut stats.idle] {
            let left = part.saturating_add_signed(-more);
            more -= *part as i64 - left as i64;
            *part = left;
        }
    }

    /// The most that was in use in what was replayed since the peaks were reset; 0 if nothing was.
    pub(super) fn replayed_peak(&self, progress: Progress) -> u64 {
        let most = self.replay.recording.peak(self.replay.peaks_from, progress);
        most.map_or(0, |most| self.used_now().saturating_add_signed(most))
    }

    /// The peaks are reset. Gives what is in use now.
    pub(super) fn reset_replayed_peak(&mut self) -> u64 {
        let progress = self.replay.tape.progress().unwrap_or_default();
        self.replay.peaks_from = progress;
        let Done { more, .. } = self.replay.recording.done(progress);
        self.used_now().saturating_add_signed(more)
    }

    /// Bytes of the block that begins at an address, if one does. To ask ends no replay unless it was freed in it.
    pub fn bytes_at(&mut self, at: u64) -> Option<u64> {
        if let Some(progress) = self.replay.tape.progress() {
            match self.replay.recording.latest_of(at, progress.steps) {
                Some((Step::Alloc { .. }, block)) => return Some(block.bytes),
                Some((Step::Free { .. }, _)) => self.make_up(),
                None => {}
            }
        }
        let block = self.find_block(at).ok()?;
        Some(self.block_bytes(block))
    }

    /// The books change beside a replay. The peak is that of both together.
    pub(super) fn beside_replay<R>(&mut self, what: impl FnOnce(&mut Heap) -> R) -> R {
        let progress = self.replay.tape.progress().unwrap_or_default();
        let before = self.stats.used_peak.max(self.replayed_peak(progress));
        let answer = what(self);
        let used = self.reset_replayed_peak();
        self.set_used_peak(before.max(used));
        answer
    }
}
