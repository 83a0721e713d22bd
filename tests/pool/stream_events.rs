//! What events cover, and when pages go that queued work may use (`docs/design.md`), on real streams and real memory as in `stream_order`.

use crate::common::hook::Hooked;
use crate::common::real::{Stream, Wrong, alone, end, pool, synchronize};
use crate::common::taken::{Taken, U, finish, finish_after, freed_in_use, reserved, take};
use crate::common::{config, limited};
use std::sync::Arc;
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::backend::fault::Faulty;
use weir::backend::host::{HostBackend, streams};
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

// What an event covers.

#[test]
fn a_free_published_while_an_event_is_recorded_is_not_covered_by_it() {
    let _alone = alone();
    let host = HostBackend::new().expect("the host backend");
    let faulty = Faulty::new(host as Arc<dyn Backend>);
    let hooked = Hooked::new(Arc::clone(&faulty) as _);
    let pool = Arc::new(Pool::new(config(), Arc::clone(&hooked) as _).expect("a pool"));
    let (one, two) = (Arc::new(Stream::new()), Stream::new());
    let other = take(&pool, &two, 100);
    let first = pool.alloc(4 * U, 0, one.0).expect("a block");
    let second = pool.alloc(4 * U, 0, one.0).expect("a block");
    let (sender, gates) = std::sync::mpsc::channel();
    hooked.after(Call::Record, {
        let (pool, one) = (Arc::clone(&pool), Arc::clone(&one));
        move || {
            sender.send(one.gate()).expect("a receiver");
            one.write(second, 4 * U, 1);
            pool.free(second, one.0).expect("a live block");
        }
    });
    pool.free(first, one.0).expect("a live block");
    assert!(hooked.is_done());
    let taken = vec![take(&pool, &two, 4 * U), take(&pool, &two, 4 * U), other];
    two.synchronize();
    drop(gates);
    let pool = Arc::into_inner(pool).expect("the only owner");
    finish_after(pool, &faulty, &two, taken);
}

#[test]
fn an_event_recorded_before_its_stream_was_forgotten_covers_nothing_later() {
    let _alone = alone();
    let host = HostBackend::new().expect("the host backend");
    let faulty = Faulty::new(host as Arc<dyn Backend>);
    let hooked = Hooked::new(Arc::clone(&faulty) as _);
    let pool = Arc::new(Pool::new(config(), Arc::clone(&hooked) as _).expect("a pool"));
    let (one, two) = (Arc::new(Stream::new()), Stream::new());
    let other = take(&pool, &two, 100);
    let blocks: Vec<Addr> = (0..8)
        .map(|_| pool.alloc(4 * U, 0, one.0).expect("a block"))
        .collect();
    let (sender, gates) = std::sync::mpsc::channel();
    hooked.after(Call::Record, {
        let (pool, one) = (Arc::clone(&pool), Arc::clone(&one));
        move || {
            // all of the stream's memory becomes everybody's, and the pool forgets it
            let mark = pool.mark_all();
            streams::synchronize_all().expect("streams");
            pool.synchronized(mark);
            // the stream comes back, and its numbers begin anew
            let again = pool.alloc(4 * U, 0, one.0).expect("a block");
            sender.send(one.gate()).expect("a receiver");
            one.write(again, 4 * U, 1);
            pool.free(again, one.0).expect("a live block");
        }
    });
    pool.free_batch(&blocks, one.0).expect("live blocks");
    assert!(hooked.is_done());
    let mut taken: Vec<Taken> = (0..9).map(|_| take(&pool, &two, 4 * U)).collect();
    two.synchronize();
    drop(gates);
    taken.push(other);
    let pool = Arc::into_inner(pool).expect("the only owner");
    finish_after(pool, &faulty, &two, taken);
}

#[test]
fn a_hundred_frees_and_events_are_each_covered() {
    let _alone = alone();
    // events are thinned out, extents merge: none may count for work behind it
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let other = take(&pool, &two, 100);
    let blocks: Vec<Addr> = (0..100)
        .map(|_| pool.alloc(2 * U, 0, one.0).expect("a block"))
        .collect();
    let mut gates = Vec::new();
    for &at in &blocks {
        gates.push(one.gate());
        one.write(at, 2 * U, 1);
        pool.free(at, one.0).expect("a live block");
    }
    let mut taken = Vec::new();
    for gate in gates {
        gate.open();
        taken.push(take(&pool, &two, 2 * U));
        two.synchronize();
    }
    taken.push(other);
    finish_after(pool, &faulty, &two, taken);
}

// When pages go.

#[test]
fn pages_stay_while_queued_work_uses_them() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let other = take(&pool, &two, 100);
    let (_, gate) = freed_in_use(&pool, &one, 16 * U);
    let before = reserved(&pool);
    pool.trim(0).expect("a trim");
    assert_eq!(reserved(&pool), before, "in use");
    gate.open();
    one.synchronize();
    pool.trim(0).expect("a trim");
    assert!(reserved(&pool) <= U, "done");
    finish_after(pool, &faulty, &two, vec![other]);
}

#[test]
fn a_page_that_moved_stays_mapped_at_its_old_address() {
    let _alone = alone();
    let (pool, faulty) = pool(limited(12 * U));
    let (one, two) = (Stream::new(), Stream::new());
    let other = take(&pool, &two, 100);
    let blocks: Vec<Addr> = (0..5)
        .map(|_| pool.alloc(2 * U, 0, one.0).expect("a block"))
        .collect();
    let gate = one.gate();
    for &at in &blocks {
        one.write(at, 2 * U, 1);
    }
    for index in [0, 2, 4] {
        pool.free(blocks[index], one.0).expect("a live block");
    }
    // the pages of the gaps are mapped side by side elsewhere
    let taken = take(&pool, &one, 6 * U);
    assert!(pool.stats().expect("stats").pages_moved > 0);
    pool.trim(0).expect("a trim");
    pool.validate();
    let wrong = Wrong::default();
    one.expect(blocks[1], 2 * U, 1, &wrong);
    gate.open();
    taken.check(&one);
    assert_eq!(wrong.count(), 0);
    // now the old addresses may go
    for index in [1, 3] {
        pool.free(blocks[index], one.0).expect("a live block");
    }
    pool.free(taken.at, one.0).expect("a live block");
    pool.squeeze().expect("a squeeze");
    assert!(reserved(&pool) <= U);
    finish_after(pool, &faulty, &two, vec![other]);
}

// When the release threshold applies.

#[test]
fn the_threshold_applies_at_frees_and_synchronises_and_never_to_memory_in_use() {
    let _alone = alone();
    for threshold in [0, 8 * U, u64::MAX] {
        let (pool, faulty) = pool(Config {
            release_threshold: threshold,
            ..config()
        });
        let (one, two) = (Stream::new(), Stream::new());
        let other = take(&pool, &two, 100);
        let (_, gate) = freed_in_use(&pool, &one, 32 * U);
        let most = reserved(&pool);
        assert!(most >= 32 * U, "in use");
        gate.open();
        let check = || match threshold {
            0 => assert!(reserved(&pool) <= U),
            u64::MAX => assert_eq!(reserved(&pool), most),
            // within a page
            _ => assert!((threshold - U..=threshold).contains(&reserved(&pool))),
        };
        synchronize(&pool, &one);
        check();
        // and at a free
        let at = pool.alloc(32 * U, 0, one.0).expect("a block");
        one.synchronize();
        pool.free(at, one.0).expect("a live block");
        check();
        finish_after(pool, &faulty, &two, vec![other]);
    }
}

/// Of each length that small blocks have a stream keeps an empty slab to serve from, which keeps the page that it is in.
#[test]
fn small_blocks_that_were_freed_keep_nothing_above_the_threshold() {
    let _alone = alone();
    for count in [1, 3] {
        let (pool, faulty) = pool(Config {
            release_threshold: 0,
            ..config()
        });
        let streams: Vec<Stream> = (0..count).map(|_| Stream::new()).collect();
        for stream in &streams {
            let taken = [100, 4 * U, 1000, 4 * U, 10_000, 4 * U].map(|bytes| take(&pool, stream, bytes));
            for taken in taken {
                pool.free(taken.at, stream.0).expect("a live block");
            }
        }
        assert!(reserved(&pool) > 0, "in use");
        streams.iter().for_each(|stream| synchronize(&pool, stream));
        assert_eq!(reserved(&pool), 0, "{count} streams");
        end(pool, &faulty);
    }
}

#[test]
fn values_that_are_no_streams_share_what_is_free() {
    let _alone = alone();
    let (pool, faulty) = pool(limited(4 * U));
    let at = pool.alloc(4 * U, 0, StreamHandle(1)).expect("a block");
    pool.free(at, StreamHandle(1)).expect("a live block");
    assert_eq!(pool.alloc(4 * U, 0, StreamHandle(2)), Ok(at));
    pool.free(at, StreamHandle(77)).expect("a live block");
    let stream = Stream::new();
    let taken = take(&pool, &stream, 4 * U);
    taken.check(&stream);
    finish(pool, &faulty, &[taken]);
}
