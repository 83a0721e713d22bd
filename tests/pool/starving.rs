//! A request for which there is no memory but what another stream has freed, and goes on freeing: each free joins with what lies
//! beside it, under a new number, which no event and no wait of before covers. What is free has to be had all the same.

use crate::common::device::Device;
use crate::common::hook::Hooked;
use crate::common::random::Random;
use crate::common::{K, M, config};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use weir::alloc::order::Reuse;
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const ONE: StreamHandle = StreamHandle(1);
const OTHER: StreamHandle = StreamHandle(2);
/// What is queued takes a second.
const LONG: u64 = 1_000_000_000;
const LIMIT: u64 = 32 * M;

/// Other threads, which allocate or free a block on the other stream whenever somebody calls the driver.
struct Busy {
    device: Arc<Device>,
    pool: Weak<Pool>,
    inside: AtomicBool,
    live: Mutex<(Random, Vec<Addr>)>,
    frees: AtomicU64,
}

impl Busy {
    fn call(&self) {
        let Some(pool) = self.pool.upgrade() else { return };
        if self.inside.swap(true, Ordering::Relaxed) {
            return; // it is its own call
        }
        let mut live = self.live.lock();
        let (random, blocks) = &mut *live;
        for _ in 0..random.below(3) {
            blocks.extend(pool.alloc(64 * K, 0, OTHER));
        }
        for _ in 0..1 + random.below(3) {
            if blocks.len() > 3 || !blocks.is_empty() && random.below(2) == 0 {
                let at = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                self.device.queue(OTHER, LONG);
                pool.free(at, OTHER).expect("a live block");
                self.frees.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(live);
        self.inside.store(false, Ordering::Relaxed);
    }
}

/// The pool, all of which the other stream has freed with work left to do, and who goes on.
fn pool(config: Config, seed: u64) -> (Arc<Pool>, Arc<Hooked>, Arc<Busy>) {
    let device = Device::new(1);
    let backend = Hooked::new(device.clone());
    let pool = Arc::new(Pool::new(config, backend.clone() as Arc<dyn Backend>).expect("a pool"));
    let at = pool.alloc(LIMIT, 0, OTHER).expect("all of it");
    device.queue(OTHER, LONG);
    pool.free(at, OTHER).expect("a live block");
    let busy = Arc::new(Busy {
        device,
        pool: Arc::downgrade(&pool),
        inside: AtomicBool::new(false),
        live: Mutex::new((Random(seed), Vec::new())),
        frees: AtomicU64::new(0),
    });
    (pool, backend, busy)
}

fn limited(waits: bool) -> Config {
    Config {
        max_bytes: LIMIT,
        reuse: Reuse {
            internal_dependencies: waits,
            ..config().reuse
        },
        ..config()
    }
}

/// Whether the pool may have the stream wait on the device or the host has to wait.
#[test]
fn what_is_free_is_not_kept_from_others_by_more_frees() {
    for (seed, waits) in (1..=100).flat_map(|seed| [(seed, true), (seed, false)]) {
        let (pool, backend, busy) = pool(limited(waits), seed);
        for call in [Call::Record, Call::Query, Call::Wait, Call::SynchronizeAll] {
            for _ in 0..40 {
                let (before, after) = (busy.clone(), busy.clone());
                backend.before(call, move || before.call());
                backend.after(call, move || after.call());
            }
        }
        let at = pool.alloc(8 * M, 0, ONE);
        assert!(
            busy.frees.load(Ordering::Relaxed) > 0,
            "somebody was busy meanwhile"
        );
        pool.validate();
        let at = at.unwrap_or_else(|error| panic!("{seed} {waits}: 31 MiB are free: {error:?}"));
        // and afterwards, when nobody is busy any more, all is joined again
        busy.inside.store(true, Ordering::Relaxed);
        for at in busy.live.lock().1.drain(..) {
            pool.free(at, OTHER).expect("a live block");
        }
        pool.free(at, ONE).expect("a live block");
        busy.device.wait_for_all();
        let at = pool.alloc(LIMIT, 0, OTHER).expect("all of it");
        pool.validate();
        pool.free(at, OTHER).expect("a live block");
    }
}

/// One block beside all that is free is freed whenever the host begins to wait.
#[test]
fn what_is_freed_while_somebody_waits_joins_nothing_of_before() {
    let (pool, backend, busy) = pool(limited(false), 1);
    busy.inside.store(true, Ordering::Relaxed);
    let blocks: Vec<Addr> = (0..12)
        .map(|_| pool.alloc(64 * K, 0, OTHER).expect("its own memory"))
        .collect();
    let (left, all) = (Arc::new(Mutex::new(blocks.clone())), blocks.len());
    for _ in 0..all {
        let (busy, left) = (busy.clone(), left.clone());
        backend.before(Call::SynchronizeAll, move || {
            let Some(pool) = busy.pool.upgrade() else { return };
            let at = left.lock().pop().expect("one for each wait");
            busy.device.queue(OTHER, LONG);
            pool.free(at, OTHER).expect("a live block");
        });
    }
    let at = pool.alloc(8 * M, 0, ONE).expect("31 MiB are free");
    pool.validate();
    assert!(left.lock().len() < all, "the host has waited");
    assert!(left.lock().len() > all - 3, "and has got it soon");
    pool.free(at, ONE).expect("a live block");
}
