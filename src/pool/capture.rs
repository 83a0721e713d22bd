//! Captures: the pool asks to hear of the end of their graphs, and gives their memory to everybody then.

use super::{Named, Pool};
use crate::alloc::heap::Heap;
use crate::backend::Backend;
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use crate::base::units::CaptureId;

impl Pool {
    /// The books, which the caller has, for a call that names a stream which is being captured.
    #[cold]
    pub(super) fn books_in_capture<'a>(
        &'a self,
        mut heap: RankedGuard<'a, Heap>,
        stream: Named,
        capture: CaptureId,
    ) -> Result<RankedGuard<'a, Heap>, Error> {
        if heap.is_released(capture) {
            return Err(Error::Capture(format!(
                "capture {} was released to the pool, but stream {} is still being captured; release it when the \
                 graph is gone",
                capture.0, stream.handle
            )));
        }
        if heap.hears_of(capture) {
            drop(heap);
            // where nobody can tell, the program has to
            let _ = self.backend.watch_graph(stream.handle, capture);
            heap = self.books()?;
        }
        Ok(heap)
    }

    /// The graph of a capture is gone, with all that was made of it, and its launches are complete: what was
    /// handed out in the capture, and freed since, is everybody's. A capture that took nothing from the pool is
    /// none of its concern.
    pub fn release_capture(&self, capture: CaptureId) -> Result<(), Error> {
        let mut heap = self.books()?;
        heap.release_capture(capture);
        self.keep_to_threshold(heap);
        Ok(())
    }

    /// Does so for graphs that are gone by what the backend heard.
    pub(super) fn hear_of_graphs(&self) {
        self.backend.graphs_gone(&mut |capture| {
            if let Ok(mut heap) = self.books() {
                heap.release_capture(capture);
            }
        });
    }
}
