//! Chunks that short staged copies go through: whose they are, when they begin anew, and when their memory comes back.

use crate::common::{M, Pages, SLOT, config, limited};
use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use weir::backend::BackendError;
use weir::backend::fault::Faulty;
use weir::backend::staging::Moment;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Attribute, Chunk, Pool, SHORT};

const STREAM: StreamHandle = StreamHandle(0);
const LINE: (u64, u64) = (1, 1);
const OTHER: (u64, u64) = (1, 2);

/// A moment that is over when the test says so, or when somebody waits for it.
#[derive(Default)]
struct Told {
    over: AtomicBool,
    fails: AtomicBool,
    waits: AtomicU32,
}

impl Moment for Told {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
    fn wait(&self) -> Result<(), BackendError> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        if self.fails.load(Ordering::SeqCst) {
            return Err(BackendError::Other("nothing tells".into()));
        }
        self.over.store(true, Ordering::SeqCst);
        Ok(())
    }
}

fn pool(config: Config) -> (Pool, Arc<Faulty>) {
    let faulty = Faulty::new(Pages::Movable.memory());
    let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
    (pool, faulty)
}

/// A copy of so many bytes, which is complete at the moment: where it went through.
fn copy(pool: &Pool, line: (u64, u64), bytes: u64, moment: &Arc<Told>) -> Addr {
    let mut chunk = pool.chunk(line, bytes, STREAM).expect("a chunk");
    let at = chunk.piece(bytes);
    used_until(&mut chunk, moment);
    pool.keep_chunk(chunk);
    at
}

fn used_until(chunk: &mut Chunk, moment: &Arc<Told>) {
    let told = || Ok::<_, Infallible>(Arc::clone(moment) as _);
    let Ok(()) = chunk.used(STREAM, told);
}

fn end(pool: Pool, faulty: &Faulty) {
    pool.validate();
    assert_eq!(pool.end().blocks, 0);
    drop(pool);
    faulty.assert_empty();
}

fn used(pool: &Pool) -> u64 {
    pool.stats().expect("stats").used
}

fn live(pool: &Pool) -> u64 {
    let stats = pool.stats().expect("stats");
    stats.allocations - stats.frees
}

#[test]
fn copies_of_a_stream_share_a_chunk_and_no_bytes() {
    let (pool, faulty) = pool(config());
    let pending = Arc::new(Told::default());
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for n in 0..200 {
        let bytes = 1 + n * 331 % 4000;
        let line = if n % 3 == 0 { OTHER } else { LINE };
        let at = copy(&pool, line, bytes, &pending).0;
        assert!(
            ranges
                .iter()
                .all(|&(start, end)| at >= end || at + bytes <= start)
        );
        assert_eq!(at % 256, 0);
        ranges.push((at, at + bytes));
    }
    assert_eq!(live(&pool), 2, "one of each stream");
    pool.validate();
    end(pool, &faulty);
}

#[test]
fn a_full_chunk_begins_anew_once_its_copies_are_complete() {
    let (pool, faulty) = pool(config());
    let moment = Arc::new(Told::default());
    let first = copy(&pool, LINE, SHORT, &moment);
    for _ in 1..8 {
        copy(&pool, LINE, SHORT, &moment);
    }
    moment.over.store(true, Ordering::SeqCst);
    assert_eq!(copy(&pool, LINE, 1, &moment), first);
    assert_eq!(live(&pool), 0, "statistics have it given back");
    end(pool, &faulty);
}

#[test]
fn nobody_gets_a_chunk_whose_copies_are_under_way() {
    let (pool, faulty) = pool(config());
    let (pending, over) = (Arc::new(Told::default()), Arc::new(Told::default()));
    let at = copy(&pool, LINE, 100, &pending);
    over.over.store(true, Ordering::SeqCst);
    copy(&pool, OTHER, 100, &over);
    assert_eq!(live(&pool), 1, "that of the complete copy went");
    assert!(used(&pool) >= SHORT);
    pool.trim(0).expect("a trim");
    assert_eq!(pool.block_around(Addr(at.0 + 1)), Ok(at));
    assert_eq!(pending.waits.load(Ordering::SeqCst), 0);
    // the next copy goes on there
    assert_eq!(copy(&pool, LINE, 100, &pending), Addr(at.0 + 256));
    pool.squeeze().expect("a squeeze");
    assert_eq!(pending.waits.load(Ordering::SeqCst), 1);
    assert_eq!(pool.stats().expect("stats").reserved, 0);
    end(pool, &faulty);
}

#[test]
fn a_request_that_would_fail_gets_the_memory_of_chunks() {
    for complete in [true, false] {
        let (pool, faulty) = pool(limited(4 * SLOT));
        let moment = Arc::new(Told::default());
        copy(&pool, LINE, 100, &moment);
        moment.over.store(complete, Ordering::SeqCst);
        let block = pool.alloc(4 * SLOT, 0, STREAM).expect("all of the memory");
        assert_eq!(moment.waits.load(Ordering::SeqCst), u32::from(!complete));
        pool.free(block, STREAM).expect("a live block");
        end(pool, &faulty);
    }
}

#[test]
fn what_cannot_be_waited_for_is_kept() {
    let (pool, faulty) = pool(config());
    let moment = Arc::new(Told::default());
    moment.fails.store(true, Ordering::SeqCst);
    copy(&pool, LINE, 100, &moment);
    pool.squeeze().expect("a squeeze");
    assert_eq!((moment.waits.load(Ordering::SeqCst), live(&pool)), (1, 1));
    moment.over.store(true, Ordering::SeqCst);
    assert_eq!(live(&pool), 0);
    end(pool, &faulty);
}

#[test]
fn complete_copies_of_many_streams_keep_few_chunks() {
    let (pool, faulty) = pool(config());
    let over = Arc::new(Told::default());
    over.over.store(true, Ordering::SeqCst);
    for line in 0..1000 {
        copy(&pool, (2, line), 100, &over);
    }
    assert!(pool.attribute(Attribute::UsedHigh).expect("a figure") <= 10 * M);
    end(pool, &faulty);
}

#[test]
fn of_too_many_streams_the_oldest_loses_its_chunk() {
    let (pool, faulty) = pool(Config {
        initial_bytes: 32 * M, // a miss would have all of them go
        ..config()
    });
    let over = Arc::new(Told::default());
    over.over.store(true, Ordering::SeqCst);
    let first: Vec<Addr> = (0..16).map(|line| copy(&pool, (2, line), 100, &over)).collect();
    assert_eq!(copy(&pool, (2, 0), 100, &over), Addr(first[0].0 + 256));
    copy(&pool, (2, 16), 100, &over);
    assert_eq!(pool.block_size(first[1]), None);
    for line in (0..16).filter(|&line| line != 1) {
        let at = first[line as usize].0 + if line == 0 { 512 } else { 256 };
        assert_eq!(copy(&pool, (2, line), 100, &over), Addr(at));
    }
    end(pool, &faulty);
}

/// Some streams stand still, and others come and go.
#[test]
fn copies_under_way_do_not_have_others_kept() {
    let (pool, faulty) = pool(config());
    let (pending, over) = (Arc::new(Told::default()), Arc::new(Told::default()));
    over.over.store(true, Ordering::SeqCst);
    let under_way: Vec<Addr> = (0..40)
        .map(|line| copy(&pool, (2, line), 100, &pending))
        .collect();
    let passed: HashSet<Addr> = (0..400).map(|line| copy(&pool, (3, line), 100, &over)).collect();
    let is_live = |at: &&Addr| pool.block_size(**at).is_some();
    assert_eq!(under_way.iter().filter(is_live).count(), 40);
    let left = passed.iter().filter(is_live).count();
    assert!(left < 40, "{left} of {}", passed.len());
    pending.over.store(true, Ordering::SeqCst);
    end(pool, &faulty);
}

#[test]
fn figures_and_statistics_agree() {
    for attribute in [
        Attribute::UsedCurrent,
        Attribute::UsedHigh,
        Attribute::ReservedCurrent,
    ] {
        let (pool, faulty) = pool(Config {
            release_threshold: 0,
            ..config()
        });
        let moment = Arc::new(Told::default());
        let figure = || pool.attribute(attribute).expect("a figure");
        copy(&pool, LINE, 100, &moment);
        assert!(figure() >= SHORT);
        moment.over.store(true, Ordering::SeqCst);
        if attribute == Attribute::UsedHigh {
            pool.set_attribute(attribute, 0).expect("a reset");
        }
        assert_eq!(figure(), 0, "{attribute:?}");
        copy(&pool, LINE, 100, &moment);
        pool.reset_peaks().expect("a reset");
        let stats = pool.stats().expect("stats");
        assert_eq!((stats.used, stats.used_peak), (0, 0));
        assert_eq!((stats.reserved, stats.reserved_peak), (0, 0));
        end(pool, &faulty);
    }
}

/// A moment that asks a pool for something when it goes, as a driver's may ask the driver.
struct Asks(Arc<Pool>, Arc<AtomicBool>);

impl Moment for Asks {
    fn is_over(&self) -> bool {
        true
    }
    fn wait(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        let kept = self.0.chunk(LINE, 1, STREAM).is_ok();
        self.1.store(!kept, Ordering::SeqCst);
    }
}

#[test]
fn a_moment_goes_under_no_lock_of_the_pool_that_ends() {
    let (pool, faulty) = pool(config());
    let (pool, asked) = (Arc::new(pool), Arc::new(AtomicBool::new(false)));
    let mut chunk = pool.chunk(LINE, 1, STREAM).expect("a chunk");
    let asks = || Ok::<_, Infallible>(Arc::new(Asks(pool.clone(), asked.clone())) as _);
    let Ok(()) = chunk.used(STREAM, asks);
    pool.keep_chunk(chunk);
    assert_eq!(pool.end().blocks, 0);
    assert!(asked.load(Ordering::SeqCst), "the pool has ended");
    faulty.assert_empty();
}

#[test]
fn a_pool_that_has_ended_keeps_none() {
    let (pool, faulty) = pool(config());
    let pending = Arc::new(Told::default());
    copy(&pool, LINE, 100, &pending);
    let mut late = pool.chunk(OTHER, 1, STREAM).expect("a chunk");
    used_until(&mut late, &pending);
    let leaked = pool.end();
    assert_eq!(leaked.blocks, 1, "the one in somebody's hands");
    pool.keep_chunk(late);
    assert_eq!(Arc::strong_count(&pending), 1, "nobody keeps the moment");
    drop(pool);
    faulty.assert_empty();
}
