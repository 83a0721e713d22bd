//! A stream that is alone in its pool: it pays for no events as long as nobody else could use what it frees; and when
//! somebody else comes, what it left is found, and nothing is handed out too early. The streams are not declared.

use crate::common::random::Random;
use crate::common::real::{Stream, Wrong, alone, end, pool as real_pool};
use crate::common::{K, M, config};
use weir::backend::BackendError;
use weir::backend::call::Call;
use weir::backend::host::streams;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::pool::{Pool, ThreadCache};

const G: u64 = 1 << 30;

fn alloc(pool: &Pool, cache: Option<&ThreadCache>, bytes: u64, stream: StreamHandle) -> Addr {
    match cache.and_then(|cache| cache.alloc(bytes, 0)) {
        Some(at) => at,
        None => pool.alloc_beside(cache, bytes, 0, stream).expect("memory"),
    }
}

fn free(pool: &Pool, cache: Option<&ThreadCache>, at: Addr, stream: StreamHandle) {
    if cache.and_then(|cache| cache.free(at)).is_none() {
        pool.free_beside(cache, at, stream).expect("a live block");
    }
}

fn events(pool: &Pool) -> u64 {
    pool.stats().expect("stats").event_calls
}

#[test]
fn a_loop_on_one_stream_records_no_event() {
    let _alone = alone();
    let (pool, faulty) = real_pool(config());
    let one = Stream::new();
    let cache = pool.open_cache(one.0).expect("a cache");
    // what lasts: weights, say
    let lasting = alloc(&pool, Some(&cache), 3 * G, one.0);
    for bytes in [4 * K, 64 * K, M, 64 * M] {
        let first = alloc(&pool, Some(&cache), bytes, one.0);
        free(&pool, Some(&cache), first, one.0);
        let before = events(&pool);
        for _ in 0..1000 {
            let at = alloc(&pool, Some(&cache), bytes, one.0);
            free(&pool, Some(&cache), at, one.0);
        }
        assert_eq!(events(&pool) - before, 0, "{bytes}");
    }
    pool.close_cache(&cache);
    pool.free_synced(lasting).expect("a live block");
    end(pool, &faulty);
}

/// A stream by which a block is freed that a cache keeps has freed nothing: the pool does not know it afterwards.
#[test]
fn who_frees_twice_is_nobody_to_the_pool() {
    let _alone = alone();
    let (pool, faulty) = real_pool(config());
    let (one, two) = (Stream::new(), Stream::new());
    let lasting = alloc(&pool, None, 3 * G, one.0); // no cache's: so these calls are not recorded
    let cache = pool.open_cache(one.0).expect("a cache");
    for bytes in [4 * K, 64 * K, 200 * K] {
        let at = alloc(&pool, Some(&cache), bytes, one.0);
        assert!(cache.free(at).is_some());
        let before = pool.stats().expect("stats");
        assert_eq!(pool.free(at, two.0), Err(Error::DoubleFree(at)));
        assert_eq!(pool.free_synced(at), Err(Error::DoubleFree(at)));
        assert_eq!(pool.stats().expect("stats"), before, "{bytes}");
    }
    let before = events(&pool);
    for _ in 0..100 {
        let at = alloc(&pool, Some(&cache), 64 * M, one.0);
        free(&pool, Some(&cache), at, one.0);
    }
    assert_eq!(events(&pool) - before, 0, "it is alone still");
    pool.close_cache(&cache);
    pool.free_synced(lasting).expect("a live block");
    end(pool, &faulty);
}

/// Layers of a network, forward, then freed in reverse.
#[test]
fn a_stream_that_frees_much_at_a_time_records_few_events() {
    let _alone = alone();
    let (pool, faulty) = real_pool(config());
    let one = Stream::new();
    let steps = |count: u64| {
        let before = events(&pool);
        for _ in 0..count {
            let blocks: Vec<Addr> = (0..216)
                .map(|number| alloc(&pool, None, (8 + number % 9 * 7) * M, one.0))
                .collect();
            blocks.iter().rev().for_each(|&at| free(&pool, None, at, one.0));
            pool.validate();
        }
        events(&pool) - before
    };
    steps(3);
    // a 32nd of the pool each
    let events = steps(10);
    assert!((100..=500).contains(&events), "{events} for 2,160 frees");
    end(pool, &faulty);
}

/// Streams come and go, each with all of the memory. Gives the most that was held, for what was in use at once.
fn phases(count: u64, cached: bool, lasting: u64) -> f64 {
    let (pool, faulty) = real_pool(config());
    let mut random = Random(5);
    let mut kept = Vec::new();
    for phase in 0..count {
        let stream = Stream::new();
        let cache = cached.then(|| pool.open_cache(stream.0).expect("a cache"));
        let cache = cache.as_ref();
        kept.push(alloc(&pool, cache, lasting.max(1), stream.0));
        let mut blocks = Vec::new();
        for step in 0..2000 {
            let few = blocks.len() < 90;
            if blocks.len() < 110 && (few || random.one_in(2)) {
                // as much in each phase
                let bytes = [700, 20 * K, 100 * K, M, 5 * M, 40 * M][(step % 6) as usize];
                blocks.push(alloc(&pool, cache, bytes, stream.0));
            } else {
                let at = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                free(&pool, cache, at, stream.0);
            }
        }
        blocks.drain(..).for_each(|at| free(&pool, cache, at, stream.0));
        pool.validate();
        stream.synchronize();
        // it is destroyed, and nobody says so
        drop(stream);
        if let Some(cache) = cache
            && phase % 2 == 0
        {
            pool.close_cache(cache);
        }
    }
    let stats = pool.stats().expect("stats");
    kept.iter().for_each(|&at| drop(pool.free_synced(at)));
    end(pool, &faulty);
    stats.reserved_peak as f64 / stats.used_peak as f64
}

#[test]
fn what_a_stream_leaves_serves_the_next_one() {
    let _alone = alone();
    for cached in [false, true] {
        for lasting in [0, 50 * M] {
            let held = phases(2, cached, lasting);
            assert!(
                held <= 1.03,
                "{held} times what was in use, caches: {cached}, {lasting} B last"
            );
        }
    }
}

/// What lies between blocks that are kept, or were freed last, is not lost with them.
#[test]
fn what_an_event_covers_is_not_lost_by_what_is_freed_beside_it() {
    let _alone = alone();
    let (pool, faulty) = real_pool(config());
    let one = Stream::new();
    let cache = pool.open_cache(one.0).expect("a cache");
    let large: Vec<[Addr; 2]> = (0..32)
        .map(|_| [32 * M, 64 * K].map(|bytes| alloc(&pool, Some(&cache), bytes, one.0)))
        .collect();
    for [block, _] in &large {
        pool.free(*block, one.0).expect("a live block");
    }
    for [_, small] in &large {
        assert!(
            cache.free(*small).is_some(),
            "it keeps such blocks while it is alone"
        );
    }
    let before = pool.stats().expect("stats");
    // the stream is never named again
    drop(one);
    let two = Stream::new();
    let blocks: Vec<Addr> = (0..31).map(|_| alloc(&pool, None, 32 * M, two.0)).collect();
    pool.validate();
    let after = pool.stats().expect("stats");
    assert_eq!(
        after.reserved, before.reserved,
        "all but a 32nd is of use to others"
    );
    blocks.iter().for_each(|&at| free(&pool, None, at, two.0));
    pool.close_cache(&cache);
    end(pool, &faulty);
}

#[test]
fn a_stream_that_is_not_alone_any_more_keeps_what_events_need_not_cover() {
    let _alone = alone();
    let (pool, faulty) = real_pool(config());
    let one = Stream::new();
    // what is called from the first call on is not recorded, as that had no cache
    let first = alloc(&pool, None, K, one.0);
    free(&pool, None, first, one.0);
    let cache = pool.open_cache(one.0).expect("a cache");
    let two = Stream::new();
    let blocks = [K, 60 * K, M].map(|bytes| alloc(&pool, Some(&cache), bytes, one.0));
    let other = alloc(&pool, None, 100, two.0);
    let kept = blocks.map(|at| cache.free(at).is_some());
    assert_eq!(
        kept, [false; 3],
        "first it comes to the pool, which needs an event"
    );
    blocks.iter().for_each(|&at| free(&pool, Some(&cache), at, one.0));
    let blocks = [K, 60 * K, M].map(|bytes| alloc(&pool, Some(&cache), bytes, one.0));
    assert_eq!(blocks.map(|at| cache.free(at).is_some()), [true, true, false]);
    free(&pool, Some(&cache), blocks[2], one.0);
    pool.validate();
    // the other one is done with, and forgotten
    pool.free(other, two.0).expect("a live block");
    pool.trim(0).expect("a trim");
    let mark = pool.mark_all();
    pool.synchronized(mark);
    let blocks = [K, 60 * K, M].map(|bytes| alloc(&pool, Some(&cache), bytes, one.0));
    assert_eq!(
        blocks.map(|at| cache.free(at).is_some()),
        [true; 3],
        "it is alone again"
    );
    pool.close_cache(&cache);
    end(pool, &faulty);
}

/// Work is queued, no event was recorded, and another stream comes.
#[test]
fn nobody_else_is_given_what_no_event_covers() {
    let _alone = alone();
    for destroyed in [false, true] {
        let (pool, faulty) = real_pool(config());
        let stream = Stream::new();
        let cache = pool.open_cache(stream.0).expect("a cache");
        let lasting = alloc(&pool, Some(&cache), 256 * M, stream.0);
        let sizes = [3000, 60 * K, 200 * K, 2 * M, 300 * K];
        let blocks = sizes.map(|bytes| alloc(&pool, Some(&cache), bytes, stream.0));
        let recorded = faulty.calls(Call::Record);
        let gate = stream.gate();
        for (at, bytes) in blocks.into_iter().zip(sizes) {
            stream.write(at, bytes, 1);
            free(&pool, Some(&cache), at, stream.0);
        }
        assert_eq!(faulty.calls(Call::Record), recorded, "it is alone");
        let stream = (!destroyed).then_some(stream);
        let other = Stream::new();
        let wrong = Wrong::default();
        let mut taken = Vec::new();
        for _ in 0..200 {
            for bytes in sizes {
                let at = pool.alloc(bytes, 0, other.0).expect("memory");
                other.write(at, bytes, 2);
                taken.push((at, bytes));
            }
        }
        pool.validate();
        other.synchronize();
        gate.open();
        streams::synchronize_all().expect("streams");
        for &(at, bytes) in &taken {
            wrong.look(at, bytes, 2);
        }
        assert_eq!(wrong.count(), 0, "memory was handed out while it was in use");
        if let Some(stream) = stream {
            // the next call that names it records the event that is wanted
            let recorded = faulty.calls(Call::Record);
            let at = alloc(&pool, Some(&cache), 100, stream.0);
            assert_eq!(faulty.calls(Call::Record), recorded + 1);
            free(&pool, Some(&cache), at, stream.0);
        }
        pool.close_cache(&cache);
        taken.iter().for_each(|&(at, _)| drop(pool.free_synced(at)));
        pool.free_synced(lasting).expect("a live block");
        end(pool, &faulty);
    }
}

/// A round that is answered by heart, 64 MiB in blocks of several lengths.
fn play(pool: &Pool, cache: Option<&ThreadCache>, stream: StreamHandle, frees: usize) -> Vec<Addr> {
    let sizes = (0..100).map(|block: u64| (1 + block % 7) * 180 * K);
    let mut blocks: Vec<Addr> = sizes.map(|bytes| alloc(pool, cache, bytes, stream)).collect();
    blocks.drain(..frees).for_each(|at| free(pool, cache, at, stream));
    blocks
}

/// Its calls are answered by heart, so nothing it frees has a number, and it is destroyed: what it freed in whole rounds is the next one's.
#[test]
fn what_a_stream_did_by_heart_serves_the_next_one() {
    let _alone = alone();
    for (rest, fails) in [(0, false), (40, false), (0, true)] {
        let (pool, faulty) = real_pool(config());
        let one = Stream::new();
        let cache = pool.open_cache(one.0).expect("a cache");
        let learned = (0..50).any(|_| {
            play(&pool, Some(&cache), one.0, 100);
            pool.is_replaying()
        });
        assert!(learned);
        let before = pool.stats().expect("stats");
        for _ in 0..10 {
            play(&pool, Some(&cache), one.0, 100);
        }
        let after = pool.stats().expect("stats");
        assert!(pool.is_replaying());
        assert_eq!(
            after.event_calls - before.event_calls,
            10,
            "one for each round, and they may be all it ever has"
        );
        if fails {
            faulty.fail_from_of(Call::Record, 1, BackendError::Other("no event".into()));
        }
        let left = play(&pool, Some(&cache), one.0, 100 - rest);
        assert!(pool.is_replaying());
        one.synchronize();
        drop(one);
        let two = Stream::new();
        let taken = play(&pool, None, two.0, 0);
        pool.validate();
        let grown = pool.stats().expect("stats").reserved - after.reserved;
        match rest == 0 && !fails {
            true => assert_eq!(grown, 0, "all of it is covered"),
            false => assert!(grown > 0, "what was freed since nobody knows to be complete"),
        }
        faulty.heal();
        for at in taken {
            free(&pool, None, at, two.0);
        }
        left.into_iter().for_each(|at| free(&pool, None, at, two.0));
        pool.close_cache(&cache);
        end(pool, &faulty);
    }
}

/// What it has just freed may be a good deal of the pool before it has its event. That says nothing of streams that never call again.
#[test]
fn a_stream_that_frees_much_keeps_what_is_short() {
    let _alone = alone();
    for seed in 1..=4 {
        let (pool, faulty) = real_pool(config());
        let one = Stream::new();
        let first = alloc(&pool, None, 1, one.0); // no cache's: so these calls are not recorded
        free(&pool, None, first, one.0);
        let cache = pool.open_cache(one.0).expect("a cache");
        let random = &mut Random(seed);
        let mut blocks: Vec<(Addr, u64)> = Vec::new();
        let (mut kept, mut all) = (0, 0);
        for call in 0..60_000 {
            if blocks.len() == 256 {
                let (at, bytes) = blocks.swap_remove(random.below(256) as usize);
                let short = bytes <= 256 * K && call >= 20_000; // until then pages move, and memory is taken back for that
                let keeps = cache.free(at).is_some();
                if !keeps {
                    pool.free_beside(Some(&cache), at, one.0).expect("a live block");
                }
                (kept, all) = (kept + u32::from(short && keeps), all + u32::from(short));
            }
            let bytes = random.log_uniform(26);
            blocks.push((alloc(&pool, Some(&cache), bytes, one.0), bytes));
        }
        assert!(kept > all / 6 * 5, "{kept} of {all} with seed {seed}");
        pool.validate();
        blocks
            .into_iter()
            .for_each(|(at, _)| free(&pool, Some(&cache), at, one.0));
        pool.close_cache(&cache);
        end(pool, &faulty);
    }
}
