//! Blocks that go through the cache of a stream on which no work is ever in flight, but whose memory another stream's work still
//! uses: nobody else gets it before.

use crate::common::real::{Stream, Wrong, alone, end, pool};
use crate::common::{K, config};
use weir::backend::host::streams;
use weir::base::units::StreamHandle;
use weir::pool::ThreadCache;

const LEN: u64 = 100 * K;
/// No host stream's, so nothing is ever in flight on it.
const INERT: StreamHandle = StreamHandle(8);

enum Way {
    Heap,
    Cache,
    Batch,
}

/// A stream works on a block and frees it, gets its memory again, does nothing with it, and frees it on an inert stream.
fn freed_elsewhere(way: &Way) {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (own, other) = (Stream::new(), Stream::new());
    let cache: Option<ThreadCache> = match way {
        Way::Heap => None,
        Way::Cache | Way::Batch => pool.open_cache(INERT),
    };
    let first = pool.alloc(LEN, 0, own.0).expect("a block");
    let gate = own.gate();
    own.write(first, LEN, 1);
    pool.free(first, own.0).expect("a live block");
    let second = pool.alloc(LEN, 0, own.0).expect("a block");
    assert_eq!(first, second);
    match (way, &cache) {
        (Way::Batch, Some(cache)) => {
            if !cache.free_batch(&[second]) {
                pool.free_batch_beside(Some(cache), &[second], INERT)
                    .expect("a live block");
            }
        }
        (_, own) => {
            if own.as_ref().and_then(|own| own.free(second)).is_none() {
                pool.free_beside(own.as_ref(), second, INERT)
                    .expect("a live block");
            }
        }
    }
    cache.iter().for_each(|cache| pool.close_cache(cache));
    let third = pool.alloc(LEN, 0, other.0).expect("a block");
    other.write(third, LEN, 2);
    other.run_ahead();
    gate.open();
    streams::synchronize_all().expect("streams");
    let wrong = Wrong::default();
    other.expect(third, LEN, 2, &wrong);
    other.synchronize();
    assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
    pool.free_synced(third).expect("a live block");
    end(pool, &faulty);
}

#[test]
fn what_is_freed_on_an_inert_stream_is_still_behind_its_own() {
    freed_elsewhere(&Way::Heap);
    freed_elsewhere(&Way::Cache);
    freed_elsewhere(&Way::Batch);
}

/// The same by a free that says that all use of the block is over: there was none, but an earlier block's work is not.
#[test]
fn what_is_freed_unused_is_still_behind_the_work_before_it() {
    for of_other in [true, false] {
        let _alone = alone();
        let (pool, faulty) = pool(config());
        let (own, other) = (Stream::new(), Stream::new());
        // no cache's: so these calls are not recorded
        let first = pool.alloc(LEN, 0, own.0).expect("a block");
        let gate = own.gate();
        own.write(first, LEN, 1);
        pool.free(first, own.0).expect("a live block");
        let on = if of_other { other.0 } else { StreamHandle::HOST };
        let cache = pool.open_cache(on).expect("a cache");
        let second = pool.alloc(LEN, 0, own.0).expect("a block");
        assert_eq!(first, second);
        if cache.free_synced(second).is_none() {
            pool.free_synced(second).expect("a live block");
        }
        let third = match cache.alloc(LEN, 0) {
            Some(at) => at,
            None => pool.alloc_beside(Some(&cache), LEN, 0, on).expect("a block"),
        };
        assert_ne!(first, third, "queued work writes it");
        gate.open();
        streams::synchronize_all().expect("streams");
        pool.close_cache(&cache);
        pool.free_synced(third).expect("a live block");
        end(pool, &faulty);
    }
}

#[test]
fn the_host_gets_no_memory_that_a_cache_handed_out_while_it_is_in_use() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let own = Stream::new();
    let caches = [own.0, StreamHandle::HOST].map(|stream| pool.open_cache(stream).expect("a cache"));
    // no cache's: so these calls are not recorded
    pool.free_synced(pool.alloc(LEN, 0, own.0).expect("a block"))
        .expect("a live block");
    let first = pool
        .alloc_beside(Some(&caches[0]), LEN, 0, own.0)
        .expect("a block");
    let gate = own.gate();
    own.write(first, LEN, 1);
    caches[0].free(first).expect("kept");
    assert_eq!(caches[0].alloc(LEN, 0), Some(first));
    if caches[1].free(first).is_none() {
        pool.free_beside(Some(&caches[1]), first, StreamHandle::HOST)
            .expect("a live block");
    }
    let third = match caches[1].alloc(LEN, 0) {
        Some(at) => at,
        None => pool
            .alloc_beside(Some(&caches[1]), LEN, 0, StreamHandle::HOST)
            .expect("a block"),
    };
    assert_ne!(first, third, "the host has memory that queued work writes");
    gate.open();
    streams::synchronize_all().expect("streams");
    caches.iter().for_each(|cache| pool.close_cache(cache));
    pool.free_synced(third).expect("a live block");
    end(pool, &faulty);
}
