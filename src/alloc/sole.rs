//! The one thread that calls a pool. As long as nobody else does, nobody frees a block that it is freeing at that moment, so its caches
//! find out without a locked instruction that a block was freed before.
//!
//! Whoever comes to the books is asked whether it is that thread. If it is not, all caches are told first, behind their shut gates: what
//! the thread does from then on it does as threads do that are not alone. It is alone again when it opens a cache and nobody else has one.
//! (Locks that are reserved for the thread that takes them: Kawachiya, Koseki, Onodera, "Lock reservation", 2002.)
//!
//! Invariant: if there is such a thread all caches are its own and know it; else none does.
//! No lock of its own: the heap's.

use super::cache::ThreadId;
use super::gate::Gate;
use super::heap::Heap;

impl Heap {
    /// A thread has opened a cache.
    pub(super) fn see_sole(&mut self, owner: ThreadId) {
        if self.caches().iter().all(|cache| cache.owner == owner) {
            self.sole = Some(owner);
            self.caches().iter().for_each(|cache| cache.gate.set_sole());
        }
    }

    /// Is there such a thread?
    pub fn is_sole(&self) -> bool {
        self.sole.is_some()
    }

    /// Somebody comes to the books: `caller` says who. What follows is of that thread alone only if it is the one.
    #[inline(always)]
    pub fn see_caller(&mut self, caller: impl FnOnce() -> ThreadId) {
        if let Some(sole) = self.sole
            && sole != caller()
        {
            self.end_sole();
        }
    }

    #[cold]
    #[inline(never)]
    fn end_sole(&mut self) {
        self.sole = None;
        Gate::end_sole(self.caches().iter().map(|cache| &cache.gate));
    }

    /// Checks the invariant.
    pub(super) fn validate_sole(&self) {
        for cache in self.caches() {
            assert!(
                self.sole.is_none_or(|sole| sole == cache.owner),
                "{:?}",
                self.sole
            );
            assert_eq!(
                cache.gate.is_sole(),
                self.sole.is_some(),
                "a cache of {:?}",
                cache.owner
            );
        }
    }
}
