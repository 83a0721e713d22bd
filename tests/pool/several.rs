//! Several streams in a pool: what they hand to each other is found again round by round, what each keeps for itself costs
//! no events, and what those leave that never call again is bounded.

use crate::common::device::Device;
use crate::common::hook::Hooked;
use crate::common::random::Random;
use crate::common::sim::{FIRST_STREAM, Sim};
use crate::common::threads::{Threads, replacement};
use crate::common::{K, M, config};
use crate::trace;
use crate::trace::late::Late;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::fault::Faulty;
use weir::backend::{Backend, BackendError};
use weir::base::units::{Addr, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::pool::{Attribute, Pool, ThreadCache};

/// A pool on whose streams nothing is queued: events are complete as soon as somebody looks. 0 is a built-in stream.
fn pool(declared: bool) -> (Pool, Arc<Late>) {
    let memory = Late::new(Counting::new(true), 0);
    let mut config = config();
    config.declared_streams = declared;
    (Pool::new(config, memory.clone()).expect("a pool"), memory)
}

fn alloc(pool: &Pool, cache: &ThreadCache, bytes: u64, stream: usize) -> Addr {
    let at = cache.alloc(bytes, 0).map(Ok);
    at.unwrap_or_else(|| pool.alloc_beside(Some(cache), bytes, 0, StreamHandle(stream)))
        .expect("memory")
}

fn free(pool: &Pool, cache: &ThreadCache, at: Addr, stream: usize) {
    if cache.free(at).is_none() {
        pool.free_beside(Some(cache), at, StreamHandle(stream))
            .expect("a live block");
    }
}

fn open(pool: &Pool, stream: usize) -> ThreadCache {
    pool.open_cache(StreamHandle(stream)).expect("a cache")
}

/// A stream that allocates and frees nothing itself has its events all the same: what it has used comes back.
#[test]
fn a_stream_that_only_uses_blocks_gives_them_back() {
    for (declared, user) in [(true, 2), (false, 2), (false, 0)] {
        let (pool, _) = pool(declared);
        let cache = open(&pool, 1);
        for number in 0..2000 {
            let at = alloc(&pool, &cache, (1 + number % 4) * M, 1);
            pool.record_stream(at, StreamHandle(user)).expect("a live block");
            free(&pool, &cache, at, 1);
        }
        let held = pool.attribute(Attribute::ReservedCurrent).expect("a figure");
        assert!(held <= 64 * M, "{held} B, declared: {declared}, on {user}");
        pool.close_cache(&cache);
        pool.validate();
    }
}

/// The events of blocks that are held back are forgotten again, though no request finds nothing.
#[test]
fn events_for_what_is_held_back_are_forgotten() {
    for bytes in [100, 48 * K, 3 * M] {
        let sim = Sim::new(2);
        sim.always_give_events();
        let mut config = config();
        config.declared_streams = true;
        let pool = Pool::new(config, sim.clone()).expect("a pool");
        let [one, two] = [0, 1].map(|index| StreamHandle(FIRST_STREAM + index));
        sim.naming(&[one, two], || {
            for _ in 0..2000 {
                let blocks: Vec<Addr> = (0..32)
                    .map(|_| pool.alloc(bytes, 0, one).expect("a block"))
                    .collect();
                for at in blocks {
                    pool.record_stream(at, two).expect("a live block");
                    pool.free(at, one).expect("a live block");
                }
                for stream in [one, two] {
                    pool.synchronized(pool.mark_stream(stream));
                }
            }
        });
        assert!(
            sim.events() < 200,
            "{} events for blocks of {bytes} B",
            sim.events()
        );
        pool.validate();
    }
}

/// However many blocks were held back since somebody looked: those that nothing uses any more are all there for a request.
#[test]
fn one_look_finds_all_that_is_used_no_more() {
    for declared in [true, false] {
        let (pool, _) = pool(declared);
        let blocks: Vec<Addr> = (0..2000)
            .map(|_| pool.alloc(M, 0, StreamHandle(1)).expect("memory"))
            .collect();
        for at in blocks {
            pool.record_stream(at, StreamHandle(2)).expect("a live block");
            pool.free(at, StreamHandle(1)).expect("a live block");
        }
        // both are named once more, so that they have their events
        for stream in [1, 2] {
            let at = pool.alloc(K, 0, StreamHandle(stream)).expect("memory");
            pool.free(at, StreamHandle(stream)).expect("a live block");
        }
        let held = || pool.attribute(Attribute::ReservedCurrent).expect("a figure");
        let before = held();
        let at = pool.alloc(1900 * M, 0, StreamHandle(3)).expect("memory");
        assert_eq!(held(), before, "declared: {declared}");
        pool.free(at, StreamHandle(3)).expect("a live block");
        pool.validate();
    }
}

/// A stream for each request, of whose end the pool is not told, nor of any wait: what they leave out of others' reach is bounded.
#[test]
fn streams_that_never_call_again_leave_little() {
    let (pool, _) = pool(false);
    let stays = pool.alloc(3 * M, 0, StreamHandle(0)).expect("memory");
    for number in 0..4000 {
        let stream = FIRST_STREAM + number;
        let cache = open(&pool, stream);
        let sizes = [(1 + number as u64 % 4) * M, 48 * K, 300];
        let blocks = sizes.map(|bytes| alloc(&pool, &cache, bytes, stream));
        blocks.into_iter().for_each(|at| free(&pool, &cache, at, stream));
        pool.close_cache(&cache);
    }
    let held = pool.attribute(Attribute::ReservedCurrent).expect("a figure");
    assert!(held <= 128 * M, "{held} B");
    pool.free(stays, StreamHandle(0)).expect("a live block");
    pool.validate();
}

/// The thread that looks does not run for a while, just after it was told that the stream is at work: when it goes on it looks again. So the
/// program is still known by heart.
#[test]
fn a_stream_without_work_is_not_taken_for_one_with_work() {
    for declared in [true, false] {
        let hooked = Hooked::new(Late::new(Counting::new(true), 18_000));
        let mut config = config();
        config.declared_streams = declared;
        let pool = Pool::new(config, hooked.clone()).expect("a pool");
        let caches = [1, 2].map(|stream| (open(&pool, stream), stream));
        let round = || {
            for (cache, stream) in &caches {
                let blocks: Vec<Addr> = (1..40)
                    .map(|length| alloc(&pool, cache, length * M, *stream))
                    .collect();
                blocks.into_iter().for_each(|at| free(&pool, cache, at, *stream));
                thread::sleep(Duration::from_micros(50)); // there is no work when the next one comes
            }
        };
        (0..40).for_each(|_| round());
        assert!(pool.is_replaying(), "declared: {declared}");
        // of streams that are not declared the event was recorded before, and is complete at the first look
        if declared {
            hooked.after(Call::Query, || thread::sleep(Duration::from_millis(5)));
            let (cache, stream) = &caches[0];
            let at = alloc(&pool, cache, M, *stream);
            assert!(hooked.is_done() && pool.is_replaying());
            free(&pool, cache, at, *stream);
        }
        caches.iter().for_each(|(cache, _)| pool.close_cache(cache));
    }
}

/// What is queued on a stream comes to its end in order, so few of its events tell how far it is.
#[test]
fn few_events_of_a_stream_are_looked_at() {
    let device = Device::new(1);
    let config = Config {
        max_bytes: 128 * M,
        ..config()
    };
    let pool = Pool::new(config, device.clone()).expect("a pool");
    let [one, two] = [1, 2].map(StreamHandle);
    let at = pool.alloc(M, 0, two).expect("memory");
    pool.free(at, two).expect("a live block");
    let blocks: Vec<Addr> = (0..15)
        .map(|_| pool.alloc(8 * M, 0, one).expect("memory"))
        .collect();
    for at in blocks {
        device.queue(one, 100_000);
        pool.free(at, one).expect("a live block");
    }
    let start = device.host(0);
    while device.host(0) < start + 1_200_000 {
        device.host(10_000);
    }
    let before = pool.stats().expect("stats");
    let at = pool.alloc(64 * M, 0, two).expect("what is complete");
    let after = pool.stats().expect("stats");
    let calls = after.event_calls - before.event_calls;
    assert!(calls <= 8, "{calls} calls for 15 events");
    assert_eq!(after.maps, before.maps, "it lies side by side");
    pool.free(at, two).expect("a live block");
}

/// One that is late once has the time; not one that has work again and again: the other one waits for it on the device, if it may.
#[test]
fn a_stream_is_waited_for_now_and_then() {
    late_streams(false);
    late_streams(true);
}

fn late_streams(waits: bool) {
    let device = Device::new(1);
    let mut config = config();
    config.declared_streams = true;
    let pool = Pool::new(config, device.clone()).expect("a pool");
    pool.set_attribute(Attribute::ReuseAllowInternalDependencies, u64::from(waits))
        .expect("an attribute");
    let caches = [1, 2].map(|stream| (open(&pool, stream), stream));
    let phase = |number: usize| {
        let (cache, stream) = &caches[number];
        let blocks: Vec<Addr> = (1..40)
            .map(|length| alloc(&pool, cache, length * M, *stream))
            .collect();
        blocks.into_iter().for_each(|at| free(&pool, cache, at, *stream));
    };
    let idle = || {
        device.wait_for_all();
        device.host(1_000_000);
    };
    for _ in 0..40 {
        [0, 1].into_iter().for_each(|number| {
            phase(number);
            idle();
        });
    }
    assert!(pool.is_replaying());
    device.queue(StreamHandle(2), 100_000);
    phase(0);
    assert!(pool.is_replaying(), "it has the time");
    device.queue(StreamHandle(1), 100_000);
    let (cache, stream) = &caches[1];
    let before = device.host(0);
    let at = alloc(&pool, cache, M, *stream);
    assert_eq!(pool.is_replaying(), waits, "not again so soon");
    assert!(
        device.host(0) - before < 50_000,
        "the host does not wait for the stream's work"
    );
    free(&pool, cache, at, *stream);
    caches.iter().for_each(|(cache, _)| pool.close_cache(cache));
}

#[test]
fn streams_that_hand_memory_to_each_other_come_to_rounds_without_page_calls() {
    let trace = trace::load("traces/prefetch-streams.trace.gz");
    for (declared, synchronizes, most) in [
        (false, false, 1800),
        (true, false, 750),
        (false, true, 1800),
        (true, true, 750),
    ] {
        let (pool, memory) = pool(declared);
        let streams: Vec<_> = (0..trace.streams)
            .map(|stream| trace::Stream::of(&pool, StreamHandle(stream)))
            .collect();
        let calls = || [Call::Create, Call::Map, Call::Unmap].map(|call| memory.calls(call));
        let events = || memory.calls(Call::Record) + memory.calls(Call::Query);
        let mut rounds = Vec::new();
        for _ in 0..10 {
            let (before, asked) = (calls(), events());
            let (_, failed) = trace::replay(&pool, &trace, &streams, || ());
            assert_eq!(failed, 0);
            if synchronizes {
                pool.synchronized(pool.mark_all());
            }
            pool.validate();
            let after = calls();
            rounds.push(([0, 1, 2].map(|call| after[call] - before[call]), events() - asked));
        }
        assert!(rounds[0].0[0] > 0);
        for (pages, events) in &rounds[7..] {
            let what = || format!("declared: {declared}, synchronizes: {synchronizes}, {rounds:?}");
            assert_eq!(*pages, [0; 3], "{}", what());
            assert!(*events <= most, "{}", what());
        }
        let held = pool.stats().expect("stats").reserved_peak as f64 / trace.peak as f64;
        assert!(held <= 1.03, "{held} times what was live, declared: {declared}");
    }
}

#[test]
fn streams_with_what_they_need_record_no_events() {
    let (pool, memory) = pool(false);
    let mut random = Random(3);
    let mut lines: Vec<(usize, ThreadCache, Vec<Addr>)> = (1..5)
        .map(|stream| (stream, open(&pool, stream), Vec::new()))
        .collect();
    let mut turn = |random: &mut Random, steps: u64| {
        let before = memory.calls(Call::Record);
        for _ in 0..steps {
            for (stream, cache, blocks) in &mut lines {
                if blocks.len() == 32 {
                    let at = blocks.swap_remove(random.below(32) as usize);
                    free(&pool, cache, at, *stream);
                }
                let bytes = 256 + random.below(256 * K);
                blocks.push(alloc(&pool, cache, bytes, *stream));
            }
        }
        pool.validate();
        memory.calls(Call::Record) - before
    };
    turn(&mut random, 20_000);
    let records = turn(&mut random, 20_000);
    assert!(records <= 800, "{records} events for 80,000 frees");
    for (stream, cache, blocks) in &mut lines {
        blocks.drain(..).for_each(|at| free(&pool, cache, at, *stream));
        pool.close_cache(cache);
    }
}

/// Blocks that no thread keeps come and go in no order, on streams each of which uses again what it has freed: hardly any request
/// looks for what others freed, so hardly any free needs an event, unless memory is to go back.
#[test]
fn events_become_few_where_no_request_looks_at_them() {
    for (count, release_threshold) in [(2, u64::MAX), (4, u64::MAX), (2, 0)] {
        let config = Config {
            memory: MemoryKind::Host,
            release_threshold,
            ..config()
        };
        let mut threads = Threads::new(config, 8, 0, count);
        for thread in 0..count {
            threads.add(replacement(
                32,
                20_000,
                256 * K..4 * M,
                &mut Random(10 * count + thread),
            ));
        }
        threads.run(20_000);
        let before = threads.pool.stats().expect("stats");
        threads.run(20_000);
        let after = threads.pool.stats().expect("stats");
        threads.pool.validate();
        let (events, frees) = (after.event_calls - before.event_calls, after.frees - before.frees);
        let few = release_threshold > 0;
        assert_eq!(
            events * 2 < frees,
            few,
            "{events} for {frees} frees, {count} threads"
        );
    }
}

/// An event is recorded outside the lock of the books, where the driver may take long. What others free meanwhile needs none for what that
/// one covers, unless it fails.
#[test]
fn what_an_event_covers_that_is_being_recorded_needs_no_other() {
    let [one, two] = [1, 2].map(StreamHandle);
    for (other, fails) in [(one, false), (two, false), (one, true), (two, true)] {
        let memory = Faulty::new(Late::new(Counting::new(true), 0));
        let hooked = Hooked::new(memory.clone());
        let pool = Arc::new(Pool::new(config(), hooked.clone()).expect("a pool"));
        let take = |mib: u64, stream| pool.alloc(mib * M, 0, stream).expect("memory");
        let give = |at, stream| assert!(pool.free(at, stream).is_ok());
        // nothing that is freed lies beside anything free
        let lasts = [(2048, one), (2048, two)].map(|(mib, stream)| (take(mib, stream), stream));
        let [large, short, next] = [(64, one), (1, other), (1, other)].map(|(mib, stream)| {
            let blocks = [mib, 1].map(|mib| take(mib, stream));
            (blocks, stream)
        });
        give(take(1, two), two); // it was not named since the other one was alone
        let records = || memory.calls(Call::Record);
        let before = records();
        hooked.before(Call::Record, {
            let pool = pool.clone();
            move || assert!(pool.free(short.0[0], other).is_ok())
        });
        if fails {
            memory.fail_nth_of(Call::Record, 1, BackendError::Other("no event".into()));
        }
        give(large.0[0], one);
        assert!(hooked.is_done());
        assert_eq!(records() - before, 1, "for the large one");
        pool.validate();
        give(next.0[0], other);
        assert_eq!(records() - before, if fails { 2 } else { 1 }, "{other:?}");
        pool.validate();
        for (at, stream) in [(large.0[1], one), (short.0[1], other), (next.0[1], other)] {
            give(at, stream);
        }
        lasts.into_iter().for_each(|(at, stream)| give(at, stream));
    }
}

#[test]
fn what_streams_leave_that_never_call_again_is_bounded() {
    let (pool, _) = pool(false);
    // at once, so that each has memory of its own
    let blocks: Vec<(usize, Addr)> = (0..120)
        .map(|number| {
            let stream = 1 + number % 40;
            let at = pool.alloc(8 * M, 0, StreamHandle(stream)).expect("memory");
            (stream, at)
        })
        .collect();
    let before = pool.stats().expect("stats").reserved;
    for (stream, at) in blocks {
        pool.free(at, StreamHandle(stream)).expect("a live block");
        pool.validate();
    }
    let next = StreamHandle(41);
    let blocks: Vec<Addr> = (0..120)
        .map(|_| pool.alloc(8 * M, 0, next).expect("memory"))
        .collect();
    let after = pool.stats().expect("stats").reserved;
    assert!(
        after as f64 <= before as f64 * 1.03,
        "{before} B were held, and {after} B later"
    );
    for at in blocks {
        pool.free(at, next).expect("a live block");
    }
}

/// What threads keep has no number until somebody looks, and whether there is anything new is seen by how much they kept.
#[test]
fn a_stream_that_has_freed_nothing_is_asked_for_no_event() {
    let (pool, memory) = pool(true);
    let mut cache = open(&pool, 1);
    let keep_three = |cache: &ThreadCache| {
        let blocks = [K, 2 * K, 3 * K].map(|bytes| alloc(&pool, cache, bytes, 1));
        blocks.iter().for_each(|&at| free(&pool, cache, at, 1));
    };
    // grows, so that it asks for all there is
    let mut held = Vec::new();
    let mut miss = || {
        let before = memory.calls(Call::Record);
        held.push(pool.alloc(256 * M, 0, StreamHandle(2)).expect("memory"));
        memory.calls(Call::Record) - before
    };
    keep_three(&cache);
    assert_eq!(miss(), 1);
    assert_eq!(miss(), 0, "nothing was freed since");
    // as many as the closed one had kept
    pool.close_cache(&cache);
    miss();
    cache = open(&pool, 1);
    keep_three(&cache);
    assert_eq!(miss(), 1, "there is something new");
    assert_eq!(miss(), 0);
    pool.close_cache(&cache);
    for at in held {
        pool.free(at, StreamHandle(2)).expect("a live block");
    }
}

/// Near the limit extents of pages that stay apart are not cut while other streams have shorter ones, nor are blocks kept.
#[test]
fn near_its_limit_a_pool_spares_what_cannot_be_put_together() {
    let mut failed = Vec::new();
    for seed in 1..=20 {
        let memory = Late::new(Counting::new(true), 0);
        let config = Config {
            max_bytes: 24 * M,
            blocks_in_one_page: true,
            ..config()
        };
        let pool = Pool::new(config, memory.clone()).expect("a pool");
        let caches: Vec<_> = (1..=4).map(|stream| open(&pool, stream)).collect();
        let mut random = Random(seed);
        let mut live = [None; 24];
        for step in 0..4000 {
            let place = random.below(live.len() as u64) as usize;
            if let Some((at, stream)) = live[place].take() {
                free(&pool, &caches[stream - 1], at, stream);
            }
            let most = if random.below(8) == 0 { 2 * M } else { 64 * K };
            let (bytes, stream) = (1 + random.below(most), 1 + random.below(4) as usize);
            let cache = &caches[stream - 1];
            let at = cache.alloc(bytes, 0).map(Ok);
            match at.unwrap_or_else(|| pool.alloc_beside(Some(cache), bytes, 0, StreamHandle(stream))) {
                Ok(at) => live[place] = Some((at, stream)),
                Err(error) => failed.push(format!("{seed} {step} {error}")),
            }
        }
    }
    assert!(failed.is_empty(), "{} {failed:#?}", failed.len());
}

/// What two streams do in a pool: the first frees a small block and many long ones, the second keeps a block.
fn freed_beside_a_small_one(config: Config) -> (Arc<Sim>, Pool, [StreamHandle; 2]) {
    let sim = Sim::new(2);
    let pool = Pool::new(config, sim.clone()).expect("a pool");
    let [one, two] = [0, 1].map(|index| StreamHandle(FIRST_STREAM + index));
    sim.naming(&[one, two], || {
        pool.alloc(100, 0, two).expect("a block");
        let small = pool.alloc(100, 0, one).expect("a block");
        let long: Vec<Addr> = (0..128)
            .map(|_| pool.alloc(4 * M, 0, one).expect("a block"))
            .collect();
        for at in long.into_iter().chain([small]) {
            pool.free(at, one).expect("a live block");
        }
    });
    let mark = sim.naming(&[one, two], || pool.mark_all());
    sim.synchronize_all().expect("no fault");
    sim.naming(&[], || pool.synchronized(mark));
    (sim, pool, [one, two])
}

#[test]
fn an_empty_slab_takes_no_memory_from_everybody() {
    let reserved = |pool: &Pool| pool.stats().expect("stats").reserved;
    let (sim, pool, [one, two]) = freed_beside_a_small_one(config());
    sim.destroy_stream(one);
    let before = reserved(&pool);
    sim.naming(&[two], || pool.alloc(256 * M, 0, two))
        .expect("a block");
    assert_eq!(reserved(&pool), before, "the other stream's blocks are free");
    pool.validate();

    let (_sim, pool, _) = freed_beside_a_small_one(config());
    pool.trim(0).expect("a trim");
    assert!(reserved(&pool) <= 16 * M, "{} B are left", reserved(&pool));
    pool.validate();

    let at_once = Config {
        release_threshold: 0,
        ..config()
    };
    let (_sim, pool, _) = freed_beside_a_small_one(at_once);
    assert!(reserved(&pool) <= 16 * M, "{} B are left", reserved(&pool));
    pool.validate();
}

/// Of a slab's blocks only one was ever handed out: the others are as they were in the extent that it was made from.
#[test]
fn an_empty_slab_keeps_the_order_of_what_it_was_made_from() {
    let sim = Sim::new(2);
    let pool = Pool::new(config(), sim.clone()).expect("a pool");
    let [one, two] = [0, 1].map(|index| StreamHandle(FIRST_STREAM + index));
    let small = sim.naming(&[one], || {
        let long = pool.alloc(8 * M, 0, one).expect("a block");
        sim.touch(one, 1, long.0, 8 * M);
        pool.free(long, one).expect("a live block");
        pool.alloc(100, 0, one).expect("a block")
    });
    let mark = sim.naming(&[two], || {
        pool.free(small, two).expect("a live block");
        pool.mark_stream(two)
    });
    sim.synchronize_with(&sim.now(two));
    sim.naming(&[], || pool.synchronized(mark));
    pool.trim(0).expect("a trim");
    for name in 2..1000 {
        let other = sim.naming(&[two], || pool.alloc(100, 0, two)).expect("a block");
        sim.naming(&[two], || sim.touch(two, name, other.0, 100));
    }
    pool.validate();
}

#[test]
fn a_block_that_outlives_its_cache_keeps_the_order_of_its_stream() {
    for (bytes, closes) in [(M, true), (100, true), (100, false)] {
        let sim = Sim::new(2);
        let pool = Pool::new(config(), sim.clone()).expect("a pool");
        let [one, two] = [0, 1].map(|index| StreamHandle(FIRST_STREAM + index));
        let at = sim.naming(&[one], || {
            let at = pool.alloc(bytes, 0, one).expect("a block");
            sim.touch(one, 1, at.0, bytes);
            let cache = pool.open_cache(one).expect("a cache");
            cache.free(at).expect("it keeps such blocks");
            assert_eq!(cache.alloc(bytes, 0), Some(at));
            if closes {
                pool.close_cache(&cache);
            }
            at
        });
        pool.trim(0).expect("a trim");
        // it was never used again: that use is over, the one before is queued
        pool.free_synced(at).expect("a live block");
        pool.trim(0).expect("a trim");
        for name in 2..5 {
            let other = sim.naming(&[two], || pool.alloc(bytes, 0, two)).expect("a block");
            sim.naming(&[two], || sim.touch(two, name, other.0, bytes));
        }
        pool.validate();
    }
}
