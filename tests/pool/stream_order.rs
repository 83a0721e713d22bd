//! The rules of stream order (`docs/design.md`) on real streams and real memory: queued work that is held
//! back writes to its block late, and whoever was given the same memory too early sees it.

use crate::common::random::Random;
use crate::common::real::{Recorded, Stream, alone, end, pool, synchronize};
use crate::common::taken::{Taken, U, finish, finish_after, freed_in_use, reserved, take};
use crate::common::{M, config, limited};
use std::thread;
use std::time::Duration;
use weir::backend::call::Call;
use weir::backend::host::streams;
use weir::base::units::StreamHandle;
use weir::config::{Config, Reuse};
use weir::pool::Asked;

const NONE: Reuse = Reuse {
    event_dependencies: false,
    opportunistic: false,
    internal_dependencies: false,
};

fn with(reuse: Reuse, max_bytes: u64) -> Config {
    Config {
        reuse,
        ..limited(max_bytes)
    }
}

// Streams end, and their handles come again.

/// A stream that has this handle, which was another one's.
fn recycled(handle: StreamHandle) -> Stream {
    // another test may be quicker to get it
    let mut others = Vec::new();
    loop {
        let stream = Stream::new();
        if stream.0 == handle || others.len() > 1000 {
            return stream;
        }
        others.push(stream);
    }
}

#[test]
fn a_recycled_handle_is_another_stream() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let old = Stream::new();
    let (_, gate) = freed_in_use(&pool, &old, 4 * U);
    let handle = old.0;
    drop(old);
    let new = recycled(handle);
    let taken = take(&pool, &new, 4 * U);
    new.synchronize();
    gate.open();
    taken.check(&new);
    finish(pool, &faulty, &[taken]);
}

/// Calls as the exported functions make them: each asks once whose the stream is, by the cache or by the pool.
#[test]
fn a_call_asks_once_whose_its_stream_is() {
    let _alone = alone();
    let mut missed = [0, 0]; // by caches that have asked
    // caches may keep anything, or nothing
    for release_threshold in [u64::MAX, 0] {
        let (pool, faulty) = pool(Config {
            release_threshold,
            ..config()
        });
        let stream = Stream::new();
        let other = take(&pool, &stream, 100); // no cache's: so calls are not recorded
        let cache = pool.open_cache(stream.0).expect("a cache");
        let random = &mut Random(3);
        let mut blocks = Vec::new();
        let before = faulty.calls(Call::Timeline);
        for calls in 1..=10_000 {
            if blocks.len() == 100 || blocks.len() > 50 && random.one_in(3) {
                let at = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                if let Err(asked) = cache.free_rest(at) {
                    missed[0] += u32::from(asked == Asked::Yes);
                    let freed = pool.free_asked(Some(&cache), asked, at, stream.0);
                    freed.expect("a live block");
                }
            } else {
                let bytes = random.log_uniform(22);
                blocks.push(cache.alloc_rest(bytes, 0).unwrap_or_else(|asked| {
                    missed[1] += u32::from(asked == Asked::Yes);
                    let got = pool.alloc_asked(Some(&cache), asked, (bytes, 0), stream.0);
                    got.expect("memory")
                }));
            }
            assert_eq!(faulty.calls(Call::Timeline) - before, calls);
        }
        for at in blocks {
            pool.free_beside(Some(&cache), at, stream.0)
                .expect("a live block");
        }
        pool.close_cache(&cache);
        finish(pool, &faulty, &[other]);
    }
    assert!(missed.iter().all(|&times| times > 20), "{missed:?}");
}

/// The cache of the stream that had the handle before has asked, and that is not its own any more.
#[test]
fn a_cache_that_has_asked_about_a_recycled_handle_says_nothing() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let old = Stream::new();
    let cache = pool.open_cache(old.0).expect("a cache");
    let blocks = [1000, 100 << 10, 1000].map(|bytes| pool.alloc(bytes, 0, old.0).expect("a block"));
    assert!(blocks[1..].iter().all(|&at| cache.free(at).is_some()));
    let handle = old.0;
    drop(old);
    let new = recycled(handle);
    assert_eq!(new.0, handle);
    for bytes in [1000, 100 << 10] {
        assert_eq!(cache.alloc_rest(bytes, 0), Err(Asked::No), "{bytes}");
    }
    assert_eq!(cache.free_rest(blocks[0]), Err(Asked::No));
    let gate = new.gate();
    let freed = pool.free_asked(Some(&cache), Asked::No, blocks[0], handle);
    assert!(freed.is_ok() && cache.is_ended());
    gate.open();
    end(pool, &faulty);
}

#[test]
fn memory_of_a_destroyed_stream_is_used_again_when_its_work_is_done() {
    let _alone = alone();
    let (pool, faulty) = pool(limited(4 * U));
    let (old, new) = (Stream::new(), Stream::new());
    let (_, gate) = freed_in_use(&pool, &old, 4 * U);
    drop(old);
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        gate.open();
    });
    let taken = take(&pool, &new, 4 * U);
    taken.check(&new);
    opener.join().expect("no panic");
    finish(pool, &faulty, &[taken]);
}

// Whose the memory is that a stream has freed.

#[test]
fn the_freeing_stream_has_its_memory_at_once() {
    let _alone = alone();
    let (pool, faulty) = pool(with(NONE, 4 * U));
    let stream = Stream::new();
    let (at, gate) = freed_in_use(&pool, &stream, 4 * U);
    let calls = faulty.calls(Call::Wait) + faulty.calls(Call::SynchronizeAll);
    let taken = take(&pool, &stream, 4 * U);
    assert_eq!(taken.at, at);
    assert_eq!(
        faulty.calls(Call::Wait) + faulty.calls(Call::SynchronizeAll),
        calls
    );
    gate.open();
    taken.check(&stream);
    finish(pool, &faulty, &[taken]);
}

#[test]
fn opportunistic_reuse_looks_whether_the_work_is_done() {
    let _alone = alone();
    for on in [true, false] {
        let reuse = Reuse {
            opportunistic: on,
            ..NONE
        };
        let (pool, faulty) = pool(with(reuse, 0));
        let (one, two) = (Stream::new(), Stream::new());
        let other = take(&pool, &two, 100);
        let (at, gate) = freed_in_use(&pool, &one, 4 * U);
        // in use
        let early = take(&pool, &two, 4 * U);
        assert_ne!(early.at, at);
        two.synchronize();
        gate.open();
        early.check(&two);
        // done
        let before = reserved(&pool);
        let late = take(&pool, &two, 4 * U);
        assert_eq!(reserved(&pool) == before, on, "policy on: {on}");
        assert_eq!(faulty.calls(Call::Wait), 0);
        late.check(&two);
        finish(pool, &faulty, &[early, late, other]);
    }
}

#[test]
fn work_that_is_done_before_the_free_is_no_exception() {
    let _alone = alone();
    // the event is complete as soon as it is recorded: with the policy off that must not count either
    let (pool, faulty) = pool(with(NONE, 0));
    let (one, two) = (Stream::new(), Stream::new());
    let other = take(&pool, &two, 100);
    let at = pool.alloc(4 * U, 0, one.0).expect("a block");
    one.synchronize();
    pool.free(at, one.0).expect("a live block");
    let before = reserved(&pool);
    let taken = take(&pool, &two, 4 * U);
    assert!(reserved(&pool) > before);
    taken.check(&two);
    finish(pool, &faulty, &[taken, other]);
}

/// Where pages stay apart a request looks which of them could make way for a longer one: that tells no stream of another's work either.
#[test]
fn pages_that_make_way_are_no_exception() {
    let _alone = alone();
    for on in [true, false] {
        let reuse = Reuse {
            opportunistic: on,
            ..NONE
        };
        let config = Config {
            blocks_in_one_page: true,
            ..with(reuse, 0)
        };
        let (pool, faulty) = pool(config);
        let (one, two) = (Stream::new(), Stream::new());
        let other = take(&pool, &two, 100);
        let whole = pool.alloc(40 * M, 0, one.0).expect("a block");
        pool.free(whole, one.0).expect("a live block");
        let halves = [(); 2].map(|()| take(&pool, &one, 20 * M));
        one.synchronize();
        let [kept, done] = halves;
        pool.free(done.at, one.0).expect("a live block");
        let long = take(&pool, &two, 44 * M);
        let before = reserved(&pool);
        let late = take(&pool, &two, 20 * M);
        assert_eq!(reserved(&pool) == before, on, "policy on: {on}");
        late.check(&two);
        finish(pool, &faulty, &[kept, late, long, other]);
    }
}

#[test]
fn event_dependencies_make_memory_usable_before_its_work_is_done() {
    let _alone = alone();
    for on in [true, false] {
        let reuse = Reuse {
            event_dependencies: on,
            // which looks at the same clocks
            internal_dependencies: true,
            ..NONE
        };
        let (pool, faulty) = pool(with(reuse, 0));
        let (one, two) = (Stream::new(), Stream::new());
        let other = take(&pool, &two, 100);
        let (_, gate) = freed_in_use(&pool, &one, 4 * U);
        let before = reserved(&pool);
        let event = Recorded::on(&pool, &one);
        event.waited_for_by(&pool, &two);
        let taken = take(&pool, &two, 4 * U);
        assert_eq!(reserved(&pool) == before, on, "policy on: {on}");
        assert_eq!(faulty.calls(Call::SynchronizeAll), 0, "the host does not wait");
        gate.open();
        taken.check(&two);
        finish(pool, &faulty, &[taken, other]);
    }
}

#[test]
fn an_event_covers_what_was_freed_before_it_alone() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let early = pool.alloc(4 * U, 0, one.0).expect("a block");
    let late = pool.alloc(4 * U, 0, one.0).expect("a block");
    let gate = one.gate();
    one.write(early, 4 * U, 1);
    pool.free(early, one.0).expect("a live block");
    let event = Recorded::on(&pool, &one);
    let second = one.gate();
    one.write(late, 4 * U, 1);
    // the two extents become one
    pool.free(late, one.0).expect("a live block");
    event.waited_for_by(&pool, &two);
    let taken = [take(&pool, &two, 4 * U), take(&pool, &two, 4 * U)];
    gate.open();
    two.synchronize();
    second.open();
    taken.iter().for_each(|block| block.check(&two));
    finish(pool, &faulty, &taken);
}

#[test]
fn an_event_passes_on_what_its_stream_waited_for() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two, three) = (Stream::new(), Stream::new(), Stream::new());
    let other = take(&pool, &two, 100);
    let (_, gate) = freed_in_use(&pool, &one, 4 * U);
    let before = reserved(&pool);
    Recorded::on(&pool, &one).waited_for_by(&pool, &two);
    Recorded::on(&pool, &two).waited_for_by(&pool, &three);
    let taken = take(&pool, &three, 4 * U);
    assert_eq!(reserved(&pool), before);
    gate.open();
    taken.check(&three);
    finish(pool, &faulty, &[taken, other]);
}

#[test]
fn internal_dependencies_make_the_stream_wait_and_not_the_host() {
    let _alone = alone();
    for on in [true, false] {
        let reuse = Reuse {
            internal_dependencies: on,
            ..NONE
        };
        let (pool, faulty) = pool(with(reuse, 6 * U));
        let (one, two) = (Stream::new(), Stream::new());
        let other = take(&pool, &two, 100);
        let (_, gate) = freed_in_use(&pool, &one, 4 * U);
        let taken = if on {
            let taken = take(&pool, &two, 4 * U);
            assert_eq!(faulty.calls(Call::SynchronizeAll), 0, "the host does not wait");
            gate.open();
            taken
        } else {
            let opener = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                gate.open();
            });
            let taken = take(&pool, &two, 4 * U);
            opener.join().expect("no panic");
            taken
        };
        assert_eq!(faulty.calls(Call::Wait) > 0, on, "policy on: {on}");
        finish_after(pool, &faulty, &two, vec![taken, other]);
    }
}

#[test]
fn a_synchronise_covers_what_was_freed_before_it_began() {
    let _alone = alone();
    let (pool, faulty) = pool(with(NONE, 0));
    let (one, two) = (Stream::new(), Stream::new());
    let late = pool.alloc(6 * U, 0, one.0).expect("a block");
    // so that the two extents do not become one
    let between = take(&pool, &one, 2 * U);
    let (at, gate) = freed_in_use(&pool, &one, 4 * U);
    gate.open();
    // a free between the mark and the end of the synchronise is not covered
    let mark = pool.mark_stream(one.0);
    one.synchronize();
    let gate = one.gate();
    one.write(late, 6 * U, 1);
    pool.free(late, one.0).expect("a live block");
    pool.synchronized(mark);
    let taken = [take(&pool, &two, 4 * U), take(&pool, &two, 6 * U), between];
    assert_eq!(taken[0].at, at);
    two.synchronize();
    gate.open();
    taken.iter().for_each(|block| block.check(&two));
    finish(pool, &faulty, &taken);
}

#[test]
fn each_kind_of_synchronise_counts() {
    let _alone = alone();
    for kind in 0..3 {
        let (pool, faulty) = pool(with(NONE, 0));
        let (one, two) = (Stream::new(), Stream::new());
        let (at, gate) = freed_in_use(&pool, &one, 4 * U);
        gate.open();
        match kind {
            0 => synchronize(&pool, &one),
            1 => Recorded::on(&pool, &one).synchronize(&pool),
            _ => {
                let mark = pool.mark_all();
                streams::synchronize_all().expect("streams");
                pool.synchronized(mark);
            }
        }
        let taken = take(&pool, &two, 4 * U);
        assert_eq!(taken.at, at);
        taken.check(&two);
        finish(pool, &faulty, &[taken]);
    }
}

#[test]
fn a_recorded_use_holds_the_memory_back() {
    let _alone = alone();
    for bytes in [1000, 4 * U] {
        let (pool, faulty) = pool(config());
        let (one, two, three) = (Stream::new(), Stream::new(), Stream::new());
        let at = pool.alloc(bytes, 0, one.0).expect("a block");
        one.synchronize();
        let gate = two.gate();
        two.write(at, bytes, 1);
        pool.record_stream(at, two.0).expect("a live block");
        pool.free(at, one.0).expect("a live block");
        // not even for the freeing stream
        let taken = [take(&pool, &one, bytes), take(&pool, &three, bytes)];
        one.synchronize();
        three.synchronize();
        gate.open();
        taken[0].check(&one);
        taken[1].check(&three);
        // and afterwards for all: the next call that names the stream records the event
        let before = pool.stats().expect("stats").pending;
        assert!(before > 0);
        pool.free(pool.alloc(100, 0, two.0).expect("a block"), two.0)
            .expect("a live block");
        synchronize(&pool, &one);
        pool.trim(u64::MAX).expect("a trim");
        assert_eq!(pool.stats().expect("stats").pending, 0);
        finish(pool, &faulty, &taken);
    }
}

#[test]
fn a_small_block_freed_elsewhere_waits_for_that_stream() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let at = pool.alloc(1000, 0, one.0).expect("a block");
    // the second stream goes on with it
    one.synchronize();
    let gate = two.gate();
    two.write(at, 1000, 1);
    pool.free(at, two.0).expect("a live block");
    let taken: Vec<Taken> = (0..200).map(|_| take(&pool, &one, 1000)).collect();
    one.synchronize();
    gate.open();
    finish_after(pool, &faulty, &one, taken);
}
