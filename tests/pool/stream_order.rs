//! The rules of stream order (`docs/design.md`) on real streams and real memory: queued work that is held
//! back writes to its block late, and whoever was given the same memory too early sees it.

use crate::common::hook::Hooked;
use crate::common::real::{Recorded, Stream, Wrong, alone, end, pool, synchronize};
use crate::common::{M, config, limited};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::backend::fault::Faulty;
use weir::backend::host::{HostBackend, streams};
use weir::base::units::{Addr, StreamHandle};
use weir::config::{Config, Reuse};
use weir::pool::Pool;

/// What a small pool creates and moves whole.
const U: u64 = 8 * M;

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

fn reserved(pool: &Pool) -> u64 {
    pool.stats().expect("stats").reserved
}

/// A block freed on `stream` with a write still queued behind a gate.
fn freed_in_use(pool: &Pool, stream: &Stream, bytes: u64) -> (Addr, crate::common::real::Gate) {
    let at = pool.alloc(bytes, 0, stream.0).expect("a block");
    let gate = stream.gate();
    stream.write(at, bytes, 1);
    pool.free(at, stream.0).expect("a live block");
    (at, gate)
}

/// A block taken on `stream` and written at once, if the stream may; it must still hold what was written after
/// all other work has run.
struct Taken {
    at: Addr,
    bytes: u64,
    wrong: Wrong,
}

fn take(pool: &Pool, stream: &Stream, bytes: u64) -> Taken {
    let at = pool.alloc(bytes, 0, stream.0).expect("a block");
    stream.write(at, bytes, 2);
    Taken {
        at,
        bytes,
        wrong: Wrong::default(),
    }
}

impl Taken {
    fn check(&self, stream: &Stream) {
        streams::synchronize_all().expect("streams");
        stream.expect(self.at, self.bytes, 2, &self.wrong);
        stream.synchronize();
        assert_eq!(self.wrong.count(), 0, "memory was handed out while it was in use");
    }
}

/// Frees the block and ends the pool.
fn finish(pool: Pool, faulty: &Faulty, taken: &[Taken]) {
    for block in taken {
        pool.free_synced(block.at).expect("a live block");
    }
    end(pool, faulty);
}

// Streams end, and their handles come again.

#[test]
fn a_recycled_handle_is_another_stream() {
    let _alone = alone();
    let (pool, faulty) = pool(config());
    let old = Stream::new();
    let (_, gate) = freed_in_use(&pool, &old, 4 * U);
    let handle = old.0;
    drop(old);
    // another test may be quicker to get the handle
    let mut others = Vec::new();
    let new = loop {
        let stream = Stream::new();
        if stream.0 == handle || others.len() > 1000 {
            break stream;
        }
        others.push(stream);
    };
    let taken = take(&pool, &new, 4 * U);
    new.synchronize();
    gate.open();
    taken.check(&new);
    finish(pool, &faulty, &[taken]);
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

fn finish_after(pool: Pool, faulty: &Faulty, stream: &Stream, taken: Vec<Taken>) {
    taken.iter().for_each(|block| block.check(stream));
    finish(pool, faulty, &taken);
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
