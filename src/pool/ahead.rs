//! Growth off the critical path: a worker makes pages before anybody asks for them, so that requests of a program that
//! grows find memory and need not wait for the driver.
//!
//! Each pool has a worker of its own, started when it is first needed: pools end one by one and each joins its own, and
//! a slow driver holds up nobody else. It sleeps until a request has made pages, or a hit finds that a quarter of what
//! should be ahead is gone, and then makes one page after the other. `Grow` is held for one at a time, and the worker
//! never waits for it: where a request or anybody else has it, or waits for it, the worker leaves, and is called again when it is
//! let go.
//!
//! What it makes never goes beyond the pool's limit, its release threshold, or `growth_ahead` bytes that are wholly free.
//! Once a page could not be had it rests until a request has been able to grow again.
//!
//! Locks: `desk`, under which no other is taken. `Grow` is tried. The worker holds no lock while it sleeps, and the pool only
//! while it works, so that a pool that nobody ends does not live on by its worker.

use super::sources::PAGE_MIN;
use super::turn::Turn;
use super::{Growth, Pool};
use crate::alloc::heap::Heap;
use crate::alloc::order::COMMON;
use crate::alloc::size::round_down;
use crate::backend::{Backend, BackendError, process};
use crate::base::fair::FairGuard;
use crate::base::lock::{Rank, Ranked};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};

/// The worker is called when this part of what should be ahead is gone.
const REFILL: u64 = 4;
/// What the worker needs is less; the driver is called on it.
const STACK: usize = 512 << 10;

thread_local! {
    /// Is this thread some pool's worker? Has no destructor.
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// What the worker is to do.
#[derive(Debug, Default)]
struct Desk {
    wanted: bool,
    /// For good: it ends, and there will be none.
    closing: bool,
    thread: Option<JoinHandle<()>>,
}

/// How the worker is called.
#[derive(Debug)]
struct Bell {
    desk: Ranked<Desk>,
    rung: Condvar,
}

/// The pool's side of its worker.
#[derive(Debug)]
pub(super) struct Worker {
    bell: Arc<Bell>,
    /// Set by who may let the pool start a thread.
    pool: OnceLock<Weak<Pool>>,
    /// The worker has left before it was done.
    left: AtomicBool,
}

impl Worker {
    pub(super) fn new() -> Worker {
        let desk = Ranked::new(Rank::Desk, Desk::default());
        let rung = Condvar::new();
        Worker {
            bell: Arc::new(Bell { desk, rung }),
            pool: OnceLock::new(),
            left: AtomicBool::new(false),
        }
    }

    /// Calls the worker, and starts it if there is none. Without a thread for it nothing is made ahead.
    fn call(&self) {
        let Some(pool) = self.pool.get() else { return };
        let mut desk = self.bell.desk.lock();
        if desk.closing {
            return;
        }
        desk.wanted = true;
        if desk.thread.is_some() {
            self.bell.rung.notify_one();
            return;
        }
        let (bell, pool) = (Arc::clone(&self.bell), Weak::clone(pool));
        let thread = Builder::new().name("weir-ahead".into()).stack_size(STACK);
        desk.thread = thread.spawn(move || work(&bell, &pool)).ok();
    }
}

fn work(bell: &Bell, pool: &Weak<Pool>) {
    WORKS.set(true);
    process::work_in_background();
    loop {
        let mut desk = bell.desk.lock();
        while !desk.wanted && !desk.closing {
            desk = desk.wait(&bell.rung);
        }
        if desk.closing {
            return;
        }
        desk.wanted = false;
        drop(desk);
        let Some(pool) = pool.upgrade() else { return };
        pool.grow_ahead(|| bell.desk.lock().closing);
    }
}

impl Pool {
    /// Lets the pool have a worker, if its options ask for one. Not before this call.
    pub fn employ(self: &Arc<Pool>) {
        if let Some(worker) = &self.worker {
            let _ = worker.pool.set(Arc::downgrade(self));
        }
    }

    /// Ends the worker and the porter for good, and waits for them, as long as a page takes at most. Not in a forked
    /// child, where there are none.
    pub fn dismiss(&self) {
        self.dismiss_all(false);
    }

    /// The same; does the pool end?
    pub(super) fn dismiss_all(&self, ended: bool) {
        if process::forked() {
            return;
        }
        self.shut_door(ended);
        let Some(worker) = self.worker.as_ref() else {
            return;
        };
        let mut desk = worker.bell.desk.lock();
        desk.closing = true;
        let thread = desk.thread.take();
        worker.bell.rung.notify_one();
        drop(desk);
        // whoever drops the last reference to a pool ends it, and that may be its worker
        if let Some(thread) = thread.filter(|_| !WORKS.get()) {
            // a panic of its has been printed, and there is nobody else to tell
            let _ = thread.join();
        }
    }

    /// Something was allocated that was at hand: there may be too little ahead now.
    #[inline]
    pub(super) fn call_worker(&self, due: bool) {
        if due && let Some(worker) = &self.worker {
            worker.call();
        }
    }

    /// A miss is over. The pool grows if it made pages.
    pub(super) fn after_miss(&self, grow: Turn, made: u64) {
        let grown = grow.made > made;
        drop(grow);
        self.call_worker(grown);
    }

    /// `Grow` was let go: the worker is called if it has left because somebody had it.
    pub(super) fn call_back(&self) {
        if let Some(worker) = &self.worker {
            fence(Ordering::SeqCst);
            self.call_worker(worker.left.swap(false, Ordering::SeqCst));
        }
    }

    /// Makes pages until there is enough ahead.
    fn grow_ahead(&self, closing: impl Fn() -> bool) {
        while !closing() && self.backend.usable() {
            let Some(worker) = &self.worker else { return };
            let take = || self.grow.try_lock();
            let Some(mut grow) = take().or_else(|| self.leave(worker, take)) else {
                return;
            };
            let Ok(mut heap) = self.books() else { return };
            let Some(bytes) = self.due_ahead(&mut heap) else {
                return;
            };
            drop(heap);
            if !matches!(self.add_page(&mut grow, bytes), Ok(true)) {
                return; // and rests, as `due_ahead` has left it
            }
        }
    }

    /// `Grow` is not to be had. Whoever has it calls again, or has let it go meanwhile.
    fn leave<'a>(
        &'a self,
        worker: &Worker,
        take: impl Fn() -> Option<FairGuard<'a, Growth>>,
    ) -> Option<FairGuard<'a, Growth>> {
        if let Ok(mut heap) = self.books() {
            let taken = heap.taken() + self.page_ahead(&heap);
            heap.ahead.look_at(taken);
        }
        worker.left.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let grow = take();
        if grow.is_some() {
            worker.left.store(false, Ordering::SeqCst);
        }
        grow
    }

    /// Bytes of the page that is to be made now. None: there is enough ahead, or there may be no more.
    fn due_ahead(&self, heap: &mut Heap) -> Option<u64> {
        let wanted = self.config.growth_ahead;
        let page = self.page_ahead(heap);
        let at_hand = heap.at_hand(2 * wanted);
        heap.ahead.rest();
        if at_hand + page > wanted {
            // until clearly less is at hand: to be woken costs a request more than a hit does
            let least = wanted - page.max(wanted / REFILL);
            let taken = heap.taken() + at_hand.saturating_sub(least);
            heap.ahead.look_at(taken);
            return None;
        }
        let reserved = heap.stats.reserved;
        let below_threshold = heap.release_threshold.saturating_sub(reserved);
        (page <= self.left(reserved).min(below_threshold)).then_some(page)
    }

    /// Bytes of the pages that are made ahead: as large as those of requests, but four of them at least, unless they would
    /// be small, so that there is something at hand while one is made.
    fn page_ahead(&self, heap: &Heap) -> u64 {
        let whole = 1u64 << (63 - self.config.growth_ahead.leading_zeros());
        let most = (whole / 4).max(whole.min(PAGE_MIN));
        let peak = heap.needed;
        let usual = match self.apart {
            true => self.usual_page_apart(peak),
            false => self.page_sizes(peak, heap).1,
        };
        round_down(usual.min(most), self.backend.granularity())
    }

    /// Makes a page that is everybody's. False: there is no room for its mapping. The caller holds `grow`.
    fn add_page(&self, grow: &mut Growth, bytes: u64) -> Result<bool, BackendError> {
        if self.placed {
            return self.add_segment(bytes).map(|_| true);
        }
        self.make_room(grow, bytes)?;
        let Ok(mut heap) = self.books() else {
            return Err(BackendError::Unloaded);
        };
        if heap.pages.mapped >= self.mapping_budget(&heap) {
            return Ok(false);
        }
        let Some(mut plan) = heap.plan_ahead(bytes) else {
            return Ok(false);
        };
        drop(heap);
        let outcome = self.carry_out(&mut plan);
        let mut heap = self.heap.lock();
        if outcome.is_ok() {
            heap.count_moves(&plan);
        }
        heap.settle(plan, COMMON);
        heap.tune_caches();
        outcome.map(|()| true)
    }
}
