//! Rounds of programs on several streams, with what their thread keeps: each comes to one that makes no page call.

use crate::common::K;
use crate::common::random::Random;
use crate::common::rounds::{PACE, Rig, STEPS, lockstep, options, pipeline, powers, rings, tails, vectors};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir::alloc::order::Reuse;

/// One program at a time: how many mappings a pool may have depends on those of all host pools in the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn programs_that_do_the_same_again_come_to_rounds_without_page_calls() {
    let _alone = alone();
    type Program = fn(&mut Rig, &mut Random);
    let programs: [(&str, Program, f64); 5] = [
        ("powers", powers, 1.03),
        ("vectors", vectors, 1.05),
        // of fewer than 600 MiB what is lost at the ends of the driver's smallest pages is more
        ("pipeline", pipeline, 1.05),
        ("rings", rings, 1.03),
        ("tails", tails, 1.03),
    ];
    for (name, program, most) in programs {
        for (count, declared, tells, seed) in [
            (1, true, true, 12),
            (1, true, false, 14),
            (2, true, true, 5),
            (2, true, false, 5),
            (2, false, true, 2),
            (2, false, false, 2),
            (4, true, true, 8),
            (4, false, true, 5),
            (4, false, false, 5),
            (4, false, false, 308),
            (5, true, true, 6),
            (5, true, false, 6),
        ] {
            let mut rig = Rig::new(count, declared);
            rig.tells = tells;
            let (counts, held) = rig.rounds(18, program, seed);
            let what = || {
                format!(
                    "{name}, {count} streams, declared: {declared}, told: {tells}, held {held}: {counts:?}"
                )
            };
            assert!(counts[0] > 0, "{}", what());
            assert_eq!(counts[14..], [0; 4], "{}", what());
            assert!(held < most, "{}", what());
        }
    }
}

/// A round in which pages moved may be answered by heart from the next one on, but not before the pool has given back what only the first
/// layouts needed: after that it would keep it.
#[test]
fn what_is_known_by_heart_holds_no_more_than_it_needs() {
    let _alone = alone();
    for seed in 101..107 {
        for program in [pipeline, tails] {
            let mut rig = Rig::new(1, true);
            let (counts, held) = rig.rounds(24, program, seed);
            assert!(counts[0] > 0 && counts.ends_with(&[0; 8]), "{seed}: {counts:?}");
            assert!(rig.pool.is_replaying(), "{seed}");
            assert!(held < 1.035, "{seed}: {held}");
        }
    }
}

/// While a round is recorded no mapping goes for another one: what is mapped at all its places may be answered by heart at once.
#[test]
fn a_round_that_is_recorded_keeps_its_mappings() {
    let _alone = alone();
    let seeds = 201..=230;
    let last = |seed| {
        let (counts, _) = Rig::new(1, true).rounds(24, pipeline, seed);
        counts
            .iter()
            .rposition(|&calls| calls > 0)
            .expect("the first one")
    };
    let rounds: usize = seeds.clone().map(last).sum();
    let mean = rounds as f64 / seeds.count() as f64;
    assert!(
        mean < 5.3,
        "the last page call was made in round {mean} on average"
    );
}

/// Where the host is ahead of the streams, what is complete when a request comes differs from round to round. Streams that keep to
/// themselves settle all the same, without any look at each other, and hold what they need apart, and half as much more at most.
#[test]
fn busy_streams_come_to_rounds_without_page_calls() {
    type Program = fn(&mut Rig, &mut Random);
    let programs: [(&str, Program); 4] = [
        ("powers", powers),
        ("vectors", vectors),
        ("rings", rings),
        ("tails", tails),
    ];
    for (name, program) in programs {
        for (count, declared, tells, seed) in [
            (2, true, true, 5),
            (4, true, false, 8),
            (4, false, true, 5),
            (5, true, true, 6),
        ] {
            let mut rig = Rig::busy(count, declared, 20_000, 7);
            rig.tells = tells;
            let (counts, _) = rig.rounds(36, program, seed);
            let before = rig.pool.stats().expect("stats").event_calls;
            let (last, held) = rig.rounds(4, program, seed);
            let events = rig.pool.stats().expect("stats").event_calls - before;
            let what = || {
                format!(
                    "{name}, {count} streams, declared: {declared}, told: {tells}, held {held}, apart {}, events {events}: {counts:?}",
                    rig.apart()
                )
            };
            assert!(counts[0] > 0, "{}", what());
            assert_eq!(last, [0; 4], "{}", what());
            assert!(held < 1.5 * rig.apart(), "{}", what());
            assert!(!declared || events == 0, "{}", what());
        }
    }
}

/// Rounds that had the pool grow are rounds, too: sixteen, or four of busy streams, have to have passed before these come by memory otherwise.
#[test]
fn busy_streams_settle_though_the_pool_grows() {
    type Program = fn(&mut Rig, &mut Random);
    let programs: [(Program, usize, u64); 4] = [
        (lockstep, 2, 308),
        (lockstep, 4, 308),
        (lockstep, 4, 305),
        (powers, 2, 301),
    ];
    for (program, count, seed) in programs {
        let mut rig = Rig::busy(count, false, 20_000, seed);
        let (counts, held) = rig.rounds(36, program, seed);
        let what = || format!("{count} streams, seed {seed}, held {held}: {counts:?}");
        assert!(counts[0] > 0 && counts.ends_with(&[0; 20]), "{}", what());
        assert!(held < 1.5 * rig.apart(), "{}", what());
    }
}

/// Where streams are about as fast as the host, so that they are late many times in one round and in none of the next ten.
#[test]
fn streams_as_fast_as_the_host_come_to_rounds_without_page_calls() {
    type Program = fn(&mut Rig, &mut Random);
    let programs: [(&str, Program); 3] = [("vectors", vectors), ("pipeline", pipeline), ("rings", rings)];
    for (name, program) in programs {
        for (count, seed) in [(4, 301), (5, 301), (4, 302), (5, 302), (4, 303), (5, 303)] {
            let mut rig = Rig::busy(count, true, 3_000, seed);
            let (counts, held) = rig.rounds(36, program, seed);
            let what = || {
                let apart = rig.apart();
                format!("{name}, {count} streams, seed {seed}, held {held}, apart {apart}: {counts:?}")
            };
            assert!(counts[0] > 0 && counts.ends_with(&[0; 20]), "{}", what());
            assert!(held < 1.3 * rig.apart().max(1.0), "{}", what());
        }
    }
}

/// Where streams come to their end just when somebody looks, or just not, blocks that are passed from one to the other settle as well.
#[test]
fn streams_that_end_as_they_are_looked_at_come_to_rounds_without_page_calls() {
    for (count, work, seed) in [(2, 3_000, 301), (2, 3_000, 302), (4, 3_000, 301), (4, 5_000, 301)] {
        let mut rig = Rig::busy(count, false, work, seed);
        let (counts, held) = rig.rounds(36, pipeline, seed);
        let what = format!("{count} streams, work {work}, seed {seed}, held {held}: {counts:?}");
        assert!(counts[0] > 0 && counts.ends_with(&[0; 4]), "{what}");
        assert!(held < 1.3, "{what}");
    }
}

/// Rounds that have come to be known by heart while nothing was at work say nothing of streams that are: where the host waits for these for
/// much of its time it is found out that they had better keep to themselves. Then a round takes hardly longer than its host or its streams do.
#[test]
fn rounds_known_by_heart_do_not_go_on_waiting_for_streams() {
    for (count, work, seed) in [
        (2, 4_000, 8),
        (3, 4_000, 8),
        (4, 2_000, 5),
        (4, 4_000, 5),
        (4, 6_000, 12),
        (5, 2_000, 12),
        (5, 4_000, 8),
    ] {
        let (mut rig, counts, held) = at_work_by_heart(count, work, seed);
        let (took, least) = time_of_rounds(&mut rig, work, seed);
        let what = format!("{count} streams, work {work}, held {held}, {took} of {least} us: {counts:?}");
        assert!(took < 1.15 * least, "{what}");
        assert!(held < 1.35 * rig.apart(), "{what}, apart {}", rig.apart());
    }
}

/// Where it waits for little of its time they go on sharing.
#[test]
fn rounds_known_by_heart_go_on_sharing_where_they_hardly_wait() {
    for (count, work, seed) in [
        (2, 1_000, 8),
        (2, 1_500, 8),
        (3, 1_200, 12),
        (4, 1_000, 5),
        (5, 1_000, 12),
    ] {
        let (mut rig, counts, held) = at_work_by_heart(count, work, seed);
        let (took, least) = time_of_rounds(&mut rig, work, seed);
        let what = format!("{count} streams, work {work}, held {held}, {took} of {least} us: {counts:?}");
        assert!(counts.ends_with(&[0; 16]), "{what}");
        assert!(held < 1.03, "{what}");
        assert!(took < 1.3 * least, "{what}");
    }
}

/// However long they hardly did before.
#[test]
fn rounds_known_by_heart_that_come_to_wait_end_soon() {
    let (mut rig, _, held) = at_work_by_heart(3, 1_000, 8);
    rig.rounds(400, rings, 8);
    assert!(held < 1.03, "{held}");
    rig.work(4_000);
    let (counts, held) = rig.rounds(24, rings, 8);
    let (took, least) = time_of_rounds(&mut rig, 4_000, 8);
    assert!(took < 1.15 * least, "{held}, {took} of {least} us: {counts:?}");
}

/// Rounds that have come to be known by heart while nothing was at work, and 24 more with so much work a block: page calls of these, and what
/// is held.
fn at_work_by_heart(count: usize, work: u64, seed: u64) -> (Rig, Vec<u64>, f64) {
    let mut rig = Rig::busy(count, true, 0, 7);
    let (counts, held) = rig.rounds(16, rings, seed);
    assert!(counts.ends_with(&[0; 4]) && held < 1.03, "{held}: {counts:?}");
    rig.work(work);
    let (counts, held) = rig.rounds(24, rings, seed);
    (rig, counts, held)
}

/// Microseconds that one more round without a page call takes, of eight, and the least that its host or its streams take.
fn time_of_rounds(rig: &mut Rig, work: u64, seed: u64) -> (f64, f64) {
    let before = rig.micros();
    let (last, _) = rig.rounds(8, rings, seed);
    assert_eq!(last, [0; 8]);
    let each = PACE.max(work / rig.streams.len() as u64);
    ((rig.micros() - before) / 8.0, STEPS as f64 * each as f64 / 1e3)
}

/// However far the host is ahead: before the pool holds ever more, streams wait for each other on the device.
#[test]
fn busy_streams_hold_hardly_more_than_they_need_apart() {
    for (count, seed, chance) in [(3, 3, 7), (3, 4, 8), (5, 1, 8)] {
        let mut rig = Rig::busy(count, true, 100_000, chance);
        let (counts, held) = rig.rounds(20, powers, seed);
        let apart = rig.apart();
        let what = format!("{count} streams, seed {seed}: held {held}, apart {apart}: {counts:?}");
        assert!(held < 1.45 * apart, "{what}");
    }
}

/// What one stream frees another one gets by an event, or not at all: so where the peaks of streams add up to more than the peak of
/// all, rounds without any call hold more than that. A program may choose them.
#[test]
fn streams_that_share_nothing_come_to_rounds_without_any_call() {
    let _alone = alone();
    for program in [rings, vectors, powers] {
        let mut config = options(true);
        config.reuse = Reuse {
            opportunistic: false,
            internal_dependencies: false,
            ..config.reuse
        };
        let mut rig = Rig::with(config, 3);
        let (counts, _) = rig.rounds(24, program, 4);
        let before = rig.pool.stats().expect("stats");
        rig.rounds(2, program, 4);
        let after = rig.pool.stats().expect("stats");
        assert!(
            counts[0] > 0 && after.allocations > before.allocations,
            "{counts:?}"
        );
        assert_eq!(after.driver_calls, before.driver_calls, "{counts:?}");
    }
}

/// What the thread keeps at the end of a round lies wherever that left it, so it keeps nothing there until the pool has been at rest,
/// and serves requests again afterwards.
#[test]
fn caches_make_way_for_a_rest_and_no_longer() {
    let _alone = alone();
    let mut rig = Rig::new(1, true);
    let (counts, _) = rig.rounds(14, vectors, 2);
    assert_eq!(counts[10..], [0; 4], "{counts:?}");
    // until it is clear that the round does not come again
    let mut random = Random(2);
    for _ in 0..20_000 {
        let block = rig.alloc(4 * K + random.below(4 * K), 0, 0);
        rig.free(block);
    }
    let block = rig.alloc(4 * K, 0, 0);
    let at = block.0;
    rig.free(block);
    let allocations = rig.pool.stats().expect("stats").hits;
    let (_, cache) = &rig.streams[0];
    let kept = cache.alloc(4 * K, 0);
    assert_eq!(kept, Some(at), "kept for the next request");
    assert_eq!(rig.pool.stats().expect("stats").hits, allocations + 1);
    assert!(cache.free(at).is_some());
}

/// Each of the frees that lead to a low point has an event where the pool can record one only in calls that name the stream, but not
/// each of thousands.
#[test]
fn thousands_of_frees_in_a_row_have_few_events() {
    let _alone = alone();
    let mut rig = Rig::new(2, false);
    rig.rounds(3, powers, 3);
    let mut random = Random(5);
    let small: Vec<_> = (0..8000)
        .map(|number| rig.alloc(40_000 + number % 9000, number as usize % 2, number as usize % 2))
        .collect();
    let mut large = Vec::new();
    for number in 0..2001 {
        if large.len() == 20 {
            let block = large.swap_remove(random.below(20) as usize);
            rig.free(block);
        }
        large.push(rig.alloc((1 << (19 + random.below(9))) + 1, number % 2, number % 2));
    }
    let before = rig.pool.stats().expect("stats").event_calls;
    small.into_iter().for_each(|block| rig.free(block));
    let events = rig.pool.stats().expect("stats").event_calls - before;
    assert!((100..1000).contains(&events), "{events}");
    large.into_iter().for_each(|block| rig.free(block));
}

/// Mostly small blocks, and some of up to 128 MiB.
fn mixed(random: &mut Random) -> u64 {
    match random.below(10) {
        0 => (1 << 20) * random.log_uniform(7),
        _ => 256 * random.log_uniform(5),
    }
}

/// A round of up to 600 calls.
fn round(rig: &mut Rig, random: &mut Random) {
    let mut blocks = Vec::new();
    for _ in 0..20 + random.below(600) {
        let bytes = mixed(random);
        if random.below(100) < 55 && rig.live() + bytes < 500 << 20 {
            blocks.push(rig.alloc(bytes, 0, 0));
        } else if !blocks.is_empty() {
            let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
            rig.free(block);
        }
    }
    blocks.into_iter().for_each(|block| rig.free(block));
}

/// Programs that make their stream anew now and then, and wait behind the pool's back.
#[test]
fn a_stream_made_anew_uses_what_the_one_before_had() {
    let _alone = alone();
    for seed in 0..12 {
        let mut rig = Rig::new(1, true);
        let mut random = Random(seed);
        let mut blocks = Vec::new();
        let mut same = 0;
        for _ in 0..60_000 {
            match random.below(1000) {
                0..40 => {
                    same += u64::from(random.one_in(50));
                    round(&mut rig, &mut Random(100 * seed + same));
                }
                40..60 if blocks.is_empty() => rig.renew(0),
                60..500 => {
                    let bytes = mixed(&mut random);
                    if rig.live() + bytes < 1 << 30 {
                        blocks.push(rig.alloc(bytes, 0, 0));
                    }
                }
                _ if blocks.is_empty() => {}
                _ => {
                    let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                    rig.free(block);
                }
            }
        }
        let held = rig.pool.stats().expect("stats").reserved_peak as f64 / rig.peak as f64;
        assert!(held < 1.1, "seed {seed}: {held}");
        blocks.into_iter().for_each(|block| rig.free(block));
    }
}
