//! Copies that weir has queued for the program: the memory that they use is handed out again only when they are complete,
//! however and whenever it is freed.
//!
//! That is more than stream order: the next owner of host memory may write it without any stream.

use super::turn::Turn;
use super::{Pool, translate};
use crate::alloc::directory::State;
use crate::alloc::limbo::User;
use crate::backend::Backend;
use crate::base::error::Error;
use crate::base::units::{Addr, StreamHandle};
use crate::config::MemoryKind;

impl Pool {
    /// Looks, if nobody else is about to, which of the work is complete that blocks are held back for: so that the host's
    /// memory comes back without a miss. A device's is left as it is, since a look changes where blocks will lie. Not in a
    /// free, which allocates nothing.
    pub(super) fn look_at_held(&self) {
        if self.config.memory == MemoryKind::Device || !self.backend.usable() {
            return;
        }
        if self.books_to_read().is_ok_and(|heap| heap.stats.pending > 0) {
            self.look_unless_busy();
        }
    }

    fn look_unless_busy(&self) {
        let Some(_grow) = Turn::try_take(self) else { return };
        match self.is_replaying() {
            true => self.confirm_for_guests(),
            false => drop(self.poll(None, true, false)),
        }
    }

    /// Figures are about to be read: what is over by now counts no more.
    pub(super) fn look_before_counting(&self) {
        self.hear_of_graphs();
        self.look_about();
        self.give_back_chunks(false);
        self.look_at_held();
    }

    /// May an address lie in the pool? Takes no lock.
    #[inline]
    pub fn may_contain(&self, at: Addr) -> bool {
        self.directory.covers(at.0)
    }

    /// Does a live block begin there? Takes no lock.
    #[inline]
    pub fn has_block_at(&self, at: Addr) -> bool {
        matches!(self.directory.state(at.0), State::Plain | State::Special)
    }

    /// The start of the live block that an address lies in.
    pub fn block_around(&self, at: Addr) -> Result<Addr, Error> {
        let heap = self.books()?;
        match heap.find_block(at.0) {
            Ok(_) => Ok(at),
            Err(Error::InteriorPointer { block, .. }) => Ok(block),
            Err(error) => Err(error),
        }
    }

    /// A copy that uses the block has just been queued on `stream`. A captured one is done by each launch of its graph.
    pub fn copy_queued(&self, block: Addr, stream: StreamHandle) -> Result<(), Error> {
        let named = self.name(stream)?;
        let Some(line) = named.line else { return Ok(()) };
        let mut heap = self.books_to_share(block, &named)?;
        let found = heap.find_block(block.0)?;
        if line.capture.is_some() {
            heap.record_use(found, User { line, reach: None });
            return Ok(());
        }
        let (index, number) = heap.note_copy(found, line);
        let many_came = heap.is_review_due();
        drop(heap);
        // recorded now, since the stream may be gone when the block is freed
        let event = self
            .backend
            .record(stream)
            .map_err(|error| translate(error, stream))?;
        self.add_event(event, number, index);
        if many_came {
            // streams made for a request each, of which the pool may hear nothing but their copies
            self.look_unless_busy();
        }
        Ok(())
    }
}
