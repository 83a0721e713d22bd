//! The end of a pool: what was left behind is reported, everything is given back, and nothing is called that
//! is not there any more.

use crate::common::hook::Hooked;
use crate::common::real::{Stream, alone, pool};
use crate::common::{M, config};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::backend::host::{HostBackend, streams};
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::Config;
use weir::pool::{Attribute, Leaked, Pool};

const HOST: StreamHandle = StreamHandle(0);

fn bare(config: Config) -> (Pool, Arc<Faulty>) {
    let faulty = Faulty::new(Counting::new(true));
    let pool = Pool::new(config, Arc::clone(&faulty) as _).expect("a pool");
    (pool, faulty)
}

#[test]
fn live_blocks_are_reported_largest_first() {
    let (pool, faulty) = bare(config());
    let sizes = [100, 5 * M, 300, 2 * M, 70_000, 1 << 20, 9 * M, 256, 256, 33_000];
    let blocks: Vec<Addr> = sizes
        .iter()
        .map(|&bytes| pool.alloc(bytes, 0, HOST).expect("a block"))
        .collect();
    pool.free(blocks[3], HOST).expect("a live block");
    let used = pool.stats().expect("stats").used;
    let leaked = pool.end();
    assert_eq!((leaked.blocks, leaked.bytes), (9, used));
    assert_eq!(leaked.largest.len(), 8);
    assert_eq!(leaked.largest[0], (blocks[6], 9 * M));
    assert_eq!(leaked.largest[1], (blocks[1], 5 * M));
    assert!(
        leaked
            .largest
            .is_sorted_by_key(|block| std::cmp::Reverse(block.1))
    );
    faulty.assert_empty();
}

#[test]
fn a_thousand_leaked_blocks_are_counted_exactly() {
    let (pool, faulty) = bare(config());
    for number in 0..1000 {
        pool.alloc(number * 97, 0, HOST).expect("a block");
    }
    let used = pool.stats().expect("stats").used;
    let leaked = pool.end();
    assert_eq!(
        (leaked.blocks, leaked.bytes, leaked.largest.len()),
        (1000, used, 8)
    );
    assert!(
        leaked.largest.iter().all(|block| block.1 >= 992 * 97),
        "{leaked:?}"
    );
    faulty.assert_empty();
}

#[test]
fn after_the_end_every_call_says_so_and_none_is_made() {
    let (pool, faulty) = bare(config());
    let at = pool.alloc(100, 0, HOST).expect("a block");
    assert_eq!(pool.end().blocks, 1);
    faulty.assert_empty();
    let over = Error::PoolDestroyed { handle: 0 };
    assert_eq!(pool.alloc(100, 0, HOST), Err(over.clone()));
    assert_eq!(pool.alloc(100 * M, 0, HOST), Err(over.clone()));
    assert_eq!(pool.alloc_batch(&[1], HOST, &mut [Addr(0)]), Err(over.clone()));
    assert_eq!(pool.free(at, HOST), Err(over.clone()));
    assert_eq!(pool.free_batch(&[at], HOST), Err(over.clone()));
    assert_eq!(pool.free_synced(at), Err(over.clone()));
    assert_eq!(pool.record_stream(at, HOST), Err(over.clone()));
    assert_eq!(pool.warmup(&[1], &[1], HOST), Err(over.clone()));
    assert_eq!(pool.trim(0), Err(over.clone()));
    assert_eq!(pool.squeeze(), Err(over.clone()));
    assert_eq!(pool.stats(), Err(over.clone()));
    assert_eq!(pool.reset_peaks(), Err(over.clone()));
    assert_eq!(pool.attribute(Attribute::UsedCurrent), Err(over.clone()));
    assert_eq!(pool.set_attribute(Attribute::ReleaseThreshold, 0), Err(over));
    assert_eq!((pool.block_size(at), pool.contains(at)), (None, false));
    pool.event_recorded(EventHandle(1), pool.mark_stream(HOST));
    pool.stream_waits(HOST, pool.mark_event(EventHandle(1)));
    pool.synchronized(pool.mark_all());
    pool.event_destroyed(EventHandle(1));
    pool.validate();
    assert_eq!(pool.end(), Leaked::default(), "a second end finds nothing");
    drop(pool);
    faulty.assert_empty();
}

#[test]
fn without_a_driver_the_books_are_kept_and_no_call_is_made() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    // some of everything: events, a block that another stream holds back, slabs, dormant mappings
    let blocks: Vec<Addr> = (0..8)
        .map(|n| pool.alloc(n * 3 * M + 100, 0, one.0).expect("a block"))
        .collect();
    let gate = one.gate();
    pool.record_stream(blocks[7], two.0).expect("a live block");
    pool.free(blocks[7], one.0).expect("a live block");
    pool.free(blocks[6], one.0).expect("a live block");
    pool.alloc(M, 0, two.0).expect("a block");
    faulty.unload();
    assert_eq!(pool.free(blocks[0], one.0), Ok(256));
    assert_eq!(pool.free_synced(blocks[1]), Ok(3 * M + 512));
    // a batch with a wrong pointer changes nothing here either
    let batch = [blocks[2], Addr(64)];
    assert_eq!(
        pool.free_batch(&batch, one.0),
        Err(Error::UnknownPointer(Addr(64)))
    );
    assert_eq!(pool.free_batch(&[blocks[2]], one.0), Ok(()));
    assert_eq!(pool.free(blocks[2], one.0), Err(Error::DoubleFree(blocks[2])));
    assert_eq!(pool.alloc(100, 0, one.0), Err(Error::Unloaded));
    assert_eq!(pool.alloc(1 << 30, 0, one.0), Err(Error::Unloaded));
    assert_eq!(pool.record_stream(blocks[3], two.0), Err(Error::Unloaded));
    let _ = pool.trim(0);
    let _ = pool.squeeze();
    pool.event_recorded(EventHandle(1), pool.mark_stream(one.0));
    pool.stream_waits(two.0, pool.mark_event(EventHandle(1)));
    pool.synchronized(pool.mark_all());
    pool.validate();
    assert_eq!(
        pool.stats().expect("stats").allocations - pool.stats().expect("stats").frees,
        4
    );
    assert_eq!(pool.end().blocks, 4);
    drop(pool);
    assert_eq!(faulty.calls_when_gone(), 0);
    drop(gate);
    one.synchronize();
}

#[test]
fn the_end_waits_for_queued_work() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let at = pool.alloc(16 * M, 0, one.0).expect("a block");
    let gate = one.gate();
    one.write(at, 16 * M, 1);
    pool.free(at, one.0).expect("a live block");
    pool.free(pool.alloc(M, 0, two.0).expect("a block"), two.0)
        .expect("a live block");
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        gate.open();
    });
    // a page that went too early would fault under the write
    assert_eq!(pool.end().blocks, 0);
    opener.join().expect("no panic");
    faulty.assert_empty();
}

#[test]
fn a_pool_that_ends_while_an_event_is_recorded_leaves_none_behind() {
    let _alone = alone();
    let host = HostBackend::new().expect("the host backend");
    let faulty = Faulty::new(host as Arc<dyn Backend>);
    let hooked = Hooked::new(Arc::clone(&faulty) as _);
    let pool = Arc::new(Pool::new(config(), Arc::clone(&hooked) as _).expect("a pool"));
    let (one, two) = (Stream::new(), Stream::new());
    let at = pool.alloc(16 * M, 0, one.0).expect("a block");
    pool.free(pool.alloc(100, 0, two.0).expect("a block"), two.0)
        .expect("a live block");
    let gate = one.gate();
    let opener = std::sync::Mutex::new(Some(gate));
    hooked.after(Call::Record, {
        let pool = Arc::clone(&pool);
        move || {
            drop(opener.lock().expect("no panic").take());
            assert_eq!(pool.end().blocks, 0);
        }
    });
    pool.free(at, one.0).expect("a live block");
    assert!(hooked.is_done(), "an event was recorded");
    drop(pool);
    faulty.assert_empty();
}

#[test]
fn a_pool_that_ends_during_a_miss_fails_the_request() {
    let faulty = Faulty::new(Counting::new(true));
    let hooked = Hooked::new(Arc::clone(&faulty) as _);
    let pool = Arc::new(Pool::new(config(), Arc::clone(&hooked) as _).expect("a pool"));
    let (sender, receiver) = std::sync::mpsc::channel();
    hooked.before(Call::Create, {
        let pool = Arc::clone(&pool);
        // it has to wait for the miss: on a thread of its own
        move || {
            sender
                .send(thread::spawn(move || pool.end()))
                .expect("a receiver")
        }
    });
    let answer = pool.alloc(16 * M, 0, HOST);
    let leaked = receiver.recv().expect("a thread").join().expect("no panic");
    match answer {
        Ok(at) => assert_eq!(leaked.largest, [(at, 16 * M)]),
        Err(error) => assert_eq!(error, Error::PoolDestroyed { handle: 0 }),
    }
    drop(pool);
    faulty.assert_empty();
}

#[test]
fn create_and_end_again_and_again() {
    let _alone = alone();
    let stream = Stream::new();
    for round in 0..50 {
        let (pool, faulty) = pool(Config {
            initial_bytes: round % 3 * 4 * M,
            ..config()
        });
        let at = pool.alloc(4 * M, 0, stream.0).expect("a block");
        stream.write(at, 4 * M, round);
        if round % 2 == 0 {
            pool.free(at, stream.0).expect("a live block");
        }
        assert_eq!(pool.end().blocks, round % 2);
        faulty.assert_empty();
    }
    streams::synchronize(stream.0).expect("a live stream");
}
