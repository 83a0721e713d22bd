//! Growth where pages stay apart: one page that holds the whole of what is needed, mapped where the pool wants it, or
//! where the device put it, and shorter ones that make way for it. And a look at what other streams freed, before an extent is cut near
//! the limit.

use super::sources::{PAGE_MAX, PAGE_MIN};
use super::turn::Turn;
use super::{Named, Pool, index_for_alloc};
use crate::alloc::heap::Heap;
use crate::alloc::plan::Sources;
use crate::alloc::size::{GRAIN, round_down};
use crate::backend::{Backend, BackendError};
use crate::base::error::Error;
use crate::base::lock::RankedGuard;

/// The usual page is this share of what the pool needs, within `PAGE_MIN` and `PAGE_MAX`. Free memory cannot be put
/// together across pages here, so what the page's size costs at its ends it more than gains in blocks that find
/// room beside each other.
const PAGE_SHARE: u64 = 4;
/// Short pages make way for long ones as long as no more than this part of a limit is needed. (At a half of it `prefetch-streams` failed 31
/// times below 1.05 times its peak rather than 9.)
const WAY: u64 = 3;

impl Pool {
    /// What is tried for a request of `len` bytes: a page of the usual size, then one of just the size that is needed.
    /// The second alone near the limit, where what is left over in one page may be missing for the next.
    pub(super) fn steps_apart(&self, len: u64) -> Result<Vec<Sources>, Error> {
        let slot = self.backend.granularity();
        let heap = self.books()?;
        let stats = heap.stats;
        let peak = heap.needed.max(heap.used_now() + len);
        drop(heap);
        let usual = self.usual_page_apart(peak);
        let near = self.near_limit(peak);
        let create = |page_min| Sources {
            wake: false,
            alias: false,
            join: false,
            create: self.left(stats.reserved),
            page_min,
            page_max: page_min,
            page_whole: 0,
            aside: false,
            exact: false,
        };
        let usual = (!near).then(|| create(usual));
        Ok(usual.into_iter().chain([create(slot)]).collect())
    }

    /// Before a page for `len` bytes takes the pool beyond what it may hold, wholly free ones make way, which were too short for it, or not
    /// known to be free, when the request looked last. There is an end to it, since a longer one does for shorter requests as well. Not where
    /// the limit may come near: what the pool may hold is given there, and all that is free goes before a request fails.
    pub(super) fn make_way(&self, len: u64) -> Result<(), Error> {
        let heap = self.books()?;
        let reserved = heap.stats.reserved;
        let peak = heap.needed.max(heap.used_now() + len);
        let none_is_made = heap.loose_page(len).is_some();
        let looks = heap.reuse.opportunistic;
        drop(heap);
        if none_is_made || self.needs_more_than(WAY, peak) {
            return Ok(());
        }
        let page = len.max(self.usual_page_apart(peak));
        let over = reserved.saturating_add(page).saturating_sub(self.ample(peak));
        if over == 0 {
            return Ok(());
        }
        if looks {
            self.poll_all();
        }
        // what cannot be given back stays in the pool
        let _ = self.give_back(reserved.saturating_sub(over), 0);
        Ok(())
    }

    /// Does a pool that needs so much have to mind memory rather than time?
    fn near_limit(&self, peak: u64) -> bool {
        self.needs_more_than(2, peak)
    }

    /// Does it need more than this part of its limit, or is the device short?
    fn needs_more_than(&self, part: u64, peak: u64) -> bool {
        let most = self.config.max_bytes;
        self.pressure.is_short() || most != 0 && peak > most / part
    }

    /// Bytes of a page in a pool that needs so much.
    pub(super) fn usual_page_apart(&self, peak: u64) -> u64 {
        let slot = self.backend.granularity();
        let usual = (peak / PAGE_SHARE).clamp(PAGE_MIN.max(slot), PAGE_MAX.max(slot));
        round_down(usual, slot)
    }

    /// What other streams freed may be everybody's by now: looks, if nobody waits for the driver just then.
    #[cold]
    pub(super) fn look_for_shorter(&self, stream: Named) -> Result<RankedGuard<'_, Heap>, Error> {
        let found = match Turn::try_take(self) {
            Some(_grow) => self.learn_what_is_safe(stream, false)?,
            None => false,
        };
        let mut heap = self.books()?;
        heap.has_looked(found);
        Ok(heap)
    }

    /// Creates a page that comes with its address, and serves from it before anybody else can. None: the sources do
    /// not suffice. The caller holds `grow`.
    pub(super) fn attempt_placed<T>(
        &self,
        len: u64,
        align: u64,
        stream: Named,
        sources: Sources,
        serve: impl FnOnce(&mut Heap, u32) -> T,
    ) -> Result<Option<T>, BackendError> {
        // room for the block wherever the page begins
        let need = len + align - GRAIN;
        let Ok(heap) = self.books() else {
            return Err(BackendError::Unloaded);
        };
        let page = heap.page_for(need, sources);
        drop(heap);
        let Some(bytes) = page else { return Ok(None) };
        let mut heap = self.add_segment(bytes)?;
        let index = index_for_alloc(&mut heap, stream);
        Ok(Some(serve(&mut heap, index)))
    }

    /// Creates a page that comes with its address. It is everybody's once the books are let go. The caller holds `grow`.
    pub(super) fn add_segment(&self, bytes: u64) -> Result<RankedGuard<'_, Heap>, BackendError> {
        let (at, handle) = self.heard(bytes, self.backend.create_at(bytes))?;
        if let Err(error) = self.directory.cover(at.0, bytes) {
            self.backend.release(handle, bytes)?;
            return Err(error);
        }
        if !at.0.is_multiple_of(GRAIN) {
            self.backend.release(handle, bytes)?;
            return Err(BackendError::Other(format!(
                "{} memory came at {at}, which is not aligned to {GRAIN} B",
                self.backend.name()
            )));
        }
        let mut heap = self.heap.lock();
        heap.add_segment(at.0, handle, bytes);
        Ok(heap)
    }
}
