//! Calls of other streams while one stream's are recorded or replayed (`alloc::guests`): what of that concerns the pool.
//!
//! Lock: `heap`, which the callers hold.

use super::turn::Turn;
use super::{Named, Pool, ThreadCache, index};
use crate::alloc::heap::Heap;
use crate::base::error::Error;
use crate::base::lock::RankedGuard;
use crate::base::units::Addr;
use std::sync::atomic::Ordering;

impl Pool {
    /// A call while calls are recorded or replayed: the arena of its stream, if it is none of these.
    #[inline(always)]
    pub(super) fn guest(&self, heap: &mut Heap, own: Option<&ThreadCache>, stream: &Named) -> Option<u32> {
        let own = own.filter(|own| own.is_of(stream) && !own.is_ended());
        let known = own.map(|own| own.cache.arena);
        if known.is_some_and(|arena| heap.is_member(arena)) {
            return None;
        }
        self.guest_of(heap, known, stream)
    }

    /// The same where the stream has this arena, or none that is known, and makes none of these.
    #[cold]
    fn guest_of(&self, heap: &mut Heap, known: Option<u32>, stream: &Named) -> Option<u32> {
        let line = stream.line.filter(|line| line.capture.is_none())?;
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        let known = known.or_else(|| heap.known_stream(line));
        let index = match known {
            Some(index) => index,
            None => {
                // one that comes to be known is no guest of a replay that began before
                if heap.replay.is_on() {
                    heap.make_up();
                }
                index(heap, *stream)
            }
        };
        heap.is_guest(index).then_some(index)
    }

    /// A guest's allocation. None: it is for the books, which are right.
    #[cold]
    pub(super) fn alloc_as_guest<'a>(
        &'a self,
        mut heap: RankedGuard<'a, Heap>,
        guest: u32,
        (bytes, align): (u64, u64),
        stream: &Named,
    ) -> (RankedGuard<'a, Heap>, Option<Addr>) {
        let mut looked = heap.limbo.is_empty();
        while heap.replay.is_on() && heap.is_guest(guest) && heap.may_guest_call() {
            if let Some(at) = heap.alloc_as_guest(guest, bytes, align, looked) {
                let due = heap.event_due(guest);
                drop(heap);
                self.record_if(due, stream, guest);
                return (self.books_as_they_are(), Some(Addr(at)));
            }
            if looked {
                break;
            }
            drop(heap);
            let turn = Turn::take(self);
            self.cover_but_replayed(|_| true);
            self.confirm_for_guests();
            drop(turn);
            (heap, looked) = (self.books_as_they_are(), true);
        }
        if heap.replay.is_on() {
            heap.end_replay_for_guest();
        }
        if heap.is_guest(guest) {
            heap.admit_guest();
        }
        (heap, None)
    }

    /// The books, to enter a block as one that a stream uses, too: as they are while calls are replayed, if it is none of theirs.
    pub(super) fn books_to_share(&self, at: Addr, stream: &Named) -> Result<RankedGuard<'_, Heap>, Error> {
        let heap = self.books_as_they_are();
        let known = stream.line.is_some_and(|line| heap.known_stream(line).is_some());
        if heap.replay.is_on() && known && self.is_plain(stream) && heap.guests_block(at.0).is_some() {
            return Ok(heap);
        }
        drop(heap);
        self.books_for(stream)
    }

    /// What a guest frees: its bytes, and the number that an event is to cover. None: it is for the books, which are right.
    #[cold]
    pub(super) fn free_as_guest(&self, heap: &mut Heap, guest: u32, at: Addr) -> Option<(u64, Option<u64>)> {
        if heap.replay.is_on() {
            let freed = heap.may_guest_call().then(|| heap.free_as_guest(guest, at.0));
            match freed.flatten() {
                Some(bytes) => return Some((bytes, heap.event_due(guest))),
                None => heap.end_replay_for_guest(),
            }
        }
        if heap.is_guest(guest) {
            heap.admit_guest();
            heap.note_guest_free(at.0);
        }
        None
    }
}
