//! Many blocks at once: all of them, or none. One look at the stream and one lock serve them all.

use super::{Asked, Named, Pool, ThreadCache, check_request, index_beside, index_for_alloc};
use crate::alloc::heap::Heap;
use crate::alloc::lists::LONG;
use crate::alloc::order::COMMON;
use crate::alloc::size::{MAX_REQUEST, MIN_ALIGN};
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use crate::base::units::{Addr, StreamHandle};

/// Which of a batch's blocks the thread's cache keeps. On the stack, since a free allocates nothing: a bit for each of the
/// first blocks; the cache keeps none of the others. A place with 0 counts as kept.
struct Kept([u64; Kept::FIRST / 64]);

impl Kept {
    const FIRST: usize = 4096;

    /// Has the cache keep what it can. The caller holds the books as long as it may be put back.
    fn by(own: Option<&ThreadCache>, blocks: &[Addr]) -> Kept {
        let mut kept = Kept([0; Kept::FIRST / 64]);
        if let Some(own) = own {
            let first = &blocks[..blocks.len().min(Kept::FIRST)];
            own.cache
                .keep_some(first, |number| kept.0[number / 64] |= 1 << (number % 64));
        }
        kept
    }

    /// The blocks that it does not keep.
    fn others<'a>(&'a self, blocks: &'a [Addr]) -> impl Iterator<Item = Addr> + Clone + 'a {
        let words = self.0.iter().chain(std::iter::repeat(&0));
        let parts = blocks.chunks(64).zip(words);
        let others = parts.flat_map(|(part, &kept)| Others { part, kept });
        others.filter(|at| at.0 != 0)
    }

    /// All of them are live again, the latest first, since it is the first of its list.
    fn put_back(&self, own: Option<&ThreadCache>, blocks: &[Addr]) {
        let Some(own) = own else { return };
        for (number, at) in blocks.iter().enumerate().take(Kept::FIRST).rev() {
            if at.0 != 0 && self.0[number / 64] >> (number % 64) & 1 != 0 {
                own.cache.put_back(at.0);
            }
        }
    }
}

/// Those of up to 64 places whose bits are not set.
#[derive(Clone)]
struct Others<'a> {
    part: &'a [Addr],
    kept: u64,
}

impl Iterator for Others<'_> {
    type Item = Addr;

    fn next(&mut self) -> Option<Addr> {
        let number = self.kept.trailing_ones();
        let &at = self.part.get(number as usize)?;
        self.kept |= 1 << number;
        Some(at)
    }
}

impl Pool {
    /// Allocates every size, or none. `out` has as many places as `sizes`.
    pub fn alloc_batch(&self, sizes: &[u64], stream: StreamHandle, out: &mut [Addr]) -> Result<(), Error> {
        out.fill(Addr(0));
        self.alloc_batch_beside(None, sizes, stream, out)
    }

    /// The same for a thread that has a cache for the stream. Places that are not 0 have their blocks from there; they are given
    /// back, too, if the others cannot be had.
    pub fn alloc_batch_beside(
        &self,
        own: Option<&ThreadCache>,
        sizes: &[u64],
        stream: StreamHandle,
        out: &mut [Addr],
    ) -> Result<(), Error> {
        self.alloc_all(own, sizes, stream, out)?;
        for (&at, &bytes) in out.iter().zip(sizes) {
            self.announced(at, bytes);
        }
        Ok(())
    }

    fn alloc_all(
        &self,
        own: Option<&ThreadCache>,
        sizes: &[u64],
        stream: StreamHandle,
        out: &mut [Addr],
    ) -> Result<(), Error> {
        assert_eq!(sizes.len(), out.len());
        if let Err(error) = self.fill_places(own, sizes, stream, out) {
            self.take_again(own, out)?;
            return Err(error);
        }
        Ok(())
    }

    /// Allocates for each place that is 0, until one cannot be had.
    fn fill_places(
        &self,
        own: Option<&ThreadCache>,
        sizes: &[u64],
        stream: StreamHandle,
        out: &mut [Addr],
    ) -> Result<(), Error> {
        for &bytes in sizes {
            check_request(bytes, 0)?;
        }
        let stream = match self.known(own, Asked::No) {
            Some(stream) => stream,
            None => &self.name(stream)?,
        };
        let mut heap = self.books_as_they_are();
        if !heap.replay.is_watching() {
            if heap.replay.had_round() && self.may_tape() {
                let own = own.filter(|own| own.is_of(stream) && !own.is_ended());
                heap.watch_rounds(own.map(|own| &own.cache));
            }
            drop(heap);
            self.fill_singly(own, sizes, stream, out)?;
            let mut heap = self.books_as_they_are();
            if heap.replay.had_round() {
                heap.watch_batch();
            }
            return Ok(());
        }
        if !self.is_in_order(&mut heap, stream) {
            drop(heap);
            heap = self.books_in_order(stream)?;
        }
        let own = self.still(&mut heap, own, stream);
        if self.may_tape() {
            heap.watch_rounds(own.map(|own| &own.cache));
            if !heap.replay.is_watching() {
                drop(heap);
                return self.fill_singly(own, sizes, stream, out);
            }
        }
        if let Some(own) = own
            && (heap.even_out(&own.cache) || out.iter().all(|place| place.0 == 0))
        {
            own.cache.take_batch(sizes, out);
        }
        let mut held = Some(heap);
        for (place, &bytes) in out.iter_mut().zip(sizes) {
            if place.0 == 0 {
                *place = self.alloc_next(&mut held, own, bytes, stream)?;
            }
        }
        let short = held.is_some_and(|mut heap| {
            heap.watch_batch();
            heap.is_look_due()
        });
        self.call_worker(short);
        Ok(())
    }

    /// The same while calls are recorded, or replayed up to here: each request of a batch is a call of its own.
    fn fill_singly(
        &self,
        own: Option<&ThreadCache>,
        sizes: &[u64],
        stream: &Named,
        out: &mut [Addr],
    ) -> Result<(), Error> {
        for (place, &bytes) in out.iter_mut().zip(sizes) {
            if place.0 == 0 {
                *place = self.alloc_beside(own, bytes, 0, stream.handle)?;
            }
        }
        Ok(())
    }

    /// The next block of a batch, for which the thread's cache had none. The books stay locked from one to the next as long as
    /// they can serve.
    fn alloc_next<'a>(
        &'a self,
        held: &mut Option<RankedGuard<'a, Heap>>,
        own: Option<&ThreadCache>,
        bytes: u64,
        stream: &Named,
    ) -> Result<Addr, Error> {
        let heap = match held {
            Some(heap) => heap,
            None => held.insert(self.books_for(stream)?),
        };
        let index = index_for_alloc(heap, *stream);
        if let Some(at) = heap.alloc(bytes, 0, index) {
            heap.stats.hits += 1;
            return Ok(Addr(at));
        }
        *held = None;
        self.miss(own, bytes, 0, *stream)
    }

    /// Takes blocks back that were handed to nobody, as if they had never been allocated.
    fn take_again(&self, own: Option<&ThreadCache>, blocks: &mut [Addr]) -> Result<(), Error> {
        if blocks.iter().all(|at| at.0 == 0) {
            return Ok(());
        }
        let mut heap = self.books()?;
        for at in blocks.iter_mut().filter(|at| at.0 != 0) {
            if !own.is_some_and(|own| own.cache.untake(at.0)) {
                let block = heap.find_block(at.0).expect("allocated above");
                // no work can use it
                heap.forget_uses(block);
                heap.free(block, COMMON, true)?;
                heap.stats.allocations -= 1;
                heap.stats.frees -= 1;
            }
            *at = Addr(0);
        }
        Ok(())
    }

    /// Frees every block, or none. Places with 0 are none.
    pub fn free_batch(&self, blocks: &[Addr], stream: StreamHandle) -> Result<(), Error> {
        self.free_batch_beside(None, blocks, stream)
    }

    /// The same for a thread whose cache for the stream could not keep all of them.
    pub fn free_batch_beside(
        &self,
        own: Option<&ThreadCache>,
        blocks: &[Addr],
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let named = match self.known(own, Asked::No) {
            Some(stream) => Some(*stream),
            None => self.name_for_free(stream)?,
        };
        let usable = named.is_some();
        let stream = &named.unwrap_or(Named {
            handle: stream,
            line: None,
            reach: false,
        });
        let own = own.filter(|_| usable);
        let mut heap = self.books_as_they_are();
        if !heap.replay.is_watching()
            && let Some(due) = self.free_batch_taped(&mut heap, own, blocks, stream)
        {
            if let (Some(_), Some(own)) = (due, own) {
                drop(heap);
                self.record_if(due, stream, own.cache.arena);
            }
            return Ok(());
        }
        if !self.is_plain(stream) {
            drop(heap);
            heap = self.books_for(stream)?;
        }
        let index = index_beside(&mut heap, own, stream);
        let own = self.still(&mut heap, own, stream);
        // what the cache keeps it has checked
        let kept = Kept::by(own, blocks);
        if let Err(error) = heap.check_batch(kept.others(blocks).map(|at| at.0)) {
            kept.put_back(own, blocks);
            return Err(error);
        }
        heap.hear_of(index);
        let mut longest = 0;
        for at in kept.others(blocks) {
            let block = heap.find_block(at.0)?;
            self.part_with(at);
            if !heap.replay.is_watching() && heap.free_taped(own.map(|own| &own.cache), at.0).is_some() {
                continue; // it is recorded, and kept
            }
            longest = heap.free(block, index, !usable)?.max(longest);
        }
        if let Some(own) = own {
            own.cache.note_batch(longest > 0);
            if longest > LONG {
                heap.flush_long(&own.cache);
            }
            heap.relieve(&own.cache);
        }
        if usable {
            self.after_frees(heap, stream, index);
        }
        Ok(())
    }

    /// Makes `counts[i]` blocks of `sizes[i]` allocatable on `stream` without growing.
    pub fn warmup(&self, sizes: &[u64], counts: &[u64], stream: StreamHandle) -> Result<(), Error> {
        let total = counts.iter().try_fold(0u64, |sum, &count| sum.checked_add(count));
        let total = total.filter(|&total| total <= 1 << 32).ok_or_else(|| {
            Error::InvalidArgument("the counts of weir_pool_warmup add up to more than 2^32 blocks".into())
        })?;
        let kinds = || sizes.iter().zip(counts);
        for (&bytes, _) in kinds().filter(|(_, count)| **count > 0) {
            check_request(bytes, 0)?;
        }
        let bytes = kinds().try_fold(0u64, |sum, (&bytes, &count)| {
            sum.checked_add(bytes.max(MIN_ALIGN).checked_mul(count)?)
        });
        let most = match self.config.max_bytes {
            0 => MAX_REQUEST,
            limit => limit,
        };
        // before there is a list of so many
        if bytes.is_none_or(|bytes| bytes > most) {
            return Err(self.shortage(bytes.unwrap_or(u64::MAX), stream, String::new())?);
        }
        let (mut each, mut blocks) = (Vec::new(), Vec::new());
        let room = each.try_reserve_exact(total as usize);
        room.and_then(|()| blocks.try_reserve_exact(total as usize))
            .map_err(|error| Error::Backend(format!("no room to list {total} blocks: {error}")))?;
        for (&bytes, &count) in kinds() {
            each.extend(std::iter::repeat_n(bytes, count as usize));
        }
        blocks.resize(total as usize, Addr(0));
        self.alloc_all(None, &each, stream, &mut blocks)?;
        let mut heap = self.books()?;
        for at in blocks {
            let block = heap.find_block(at.0)?;
            heap.forget_uses(block);
            heap.free(block, COMMON, true)?;
        }
        Ok(())
    }
}
