//! Several streams make rounds together: they are answered by heart, and no stream gets memory that another one's work may still use, whatever
//! comes between and however far each stream has come.

use crate::common::op::{Op, STREAMS, Setup, random_op};
use crate::common::player::{Call, Guest, Player, Round, asked};
use crate::common::random::Random;
use crate::common::run::Run;
use crate::common::sim::FIRST_STREAM;
use crate::common::threads::{self, Threads};
use weir::backend;
use weir::base::units::StreamHandle;
use weir::config::Config;

const SEEDS: u64 = 1200;

fn setup(declared: bool) -> Setup {
    Setup {
        declared,
        first_has_cache: false,
        ..Setup::default()
    }
}

/// A device that has always done what was queued.
fn play_idly(run: &mut Run, player: &mut Player, round: &Round) {
    for call in 0..round.calls.len() {
        player.play(run, round, call..call + 1);
        (0..STREAMS as u8).for_each(|stream| run.get_on_with(stream));
    }
}

/// They take memory over from each other, for which events are asked; but no page moves any more. Streams that are not declared have them
/// recorded in calls that name them.
#[test]
fn rounds_of_several_streams_are_by_heart() {
    for declared in [true, false] {
        let (mut by_heart, mut events, mut frees) = (0, 0, 0);
        for seed in 0..40 {
            let random = &mut Random(seed + 1);
            let mut run = Run::new(&setup(declared));
            run.exact_peaks = false;
            let streams = 2 + seed % 3;
            let round = Round::of_several(random, 150, 24, streams);
            let mut player = Player::new(&round);
            for _ in 0..60 {
                play_idly(&mut run, &mut player, &round);
            }
            if run.pool.is_replaying() {
                by_heart += 1;
                let before = run.pool.stats().expect("stats");
                play_idly(&mut run, &mut player, &round);
                let after = run.pool.stats().expect("stats");
                assert!(run.pool.is_replaying());
                assert_eq!(after.misses, before.misses);
                assert_eq!(after.maps, before.maps);
                events += after.event_calls - before.event_calls;
                frees += after.frees - before.frees;
            }
            run.check_now();
            run.end();
        }
        assert!(by_heart >= 30, "declared {declared}: {by_heart} of 40");
        assert!(events > 0, "declared {declared}: nothing was taken over");
        // an event, looks at it, and what is forgotten
        assert!(events < 2 * frees, "declared {declared}: {events} for {frees}");
    }
}

/// Blocks that one stream after the other has, on a device that does what is queued now and then.
fn play_behind(run: &mut Run, player: &mut Player, round: &Round, pace: &mut Random) {
    for call in 0..round.calls.len() {
        player.play(run, round, call..call + 1);
        if pace.one_in(4) {
            let stream = StreamHandle(FIRST_STREAM + pace.below(STREAMS as u64) as usize);
            run.sim.advance(stream, 1 + pace.below(3));
        }
    }
    (0..STREAMS as u8).for_each(|stream| run.get_on_with(stream));
}

/// Where streams wait for each other they do so by heart, whatever the device has done by then, and when something else comes between.
#[test]
fn streams_that_wait_for_each_other_do_so_by_heart() {
    for declared in [true, false] {
        let (mut by_heart, mut waits, mut frees, mut disturbed) = (0, 0, 0, 0);
        for seed in 0..40 {
            let random = &mut Random(seed + 1);
            let mut run = Run::new(&setup(declared));
            run.exact_peaks = false;
            let streams = 2 + seed as u8 % 3;
            let mut round = Round::of_several(random, 150, 24, u64::from(streams));
            for (on, asked) in round.on.iter_mut().zip(&mut round.asked) {
                *asked += 64 << 10; // of no slab
                on.1 = (on.0 + 1) % streams;
            }
            let mut player = Player::new(&round);
            let pace = &mut Random(seed + 100);
            for _ in 0..60 {
                play_behind(&mut run, &mut player, &round, pace);
            }
            if !run.pool.is_replaying() {
                run.end();
                continue;
            }
            let (before, waited) = (run.pool.stats().expect("stats"), run.sim.waits());
            play_behind(&mut run, &mut player, &round, pace);
            let after = run.pool.stats().expect("stats");
            assert!(run.pool.is_replaying());
            assert_eq!((after.misses, after.maps), (before.misses, before.maps));
            by_heart += 1;
            waits += run.sim.waits() - waited;
            frees += after.frees - before.frees;
            for _ in 0..12 {
                let here = random.below(round.calls.len() as u64) as usize;
                if random.one_in(3) {
                    let call =
                        [backend::call::Call::Record, backend::call::Call::Wait][random.below(2) as usize];
                    let why = backend::BackendError::Other("on purpose".into());
                    run.faulty.fail_nth_of(call, 1 + random.below(4), why);
                }
                player.play(&mut run, &round, 0..here);
                disturbed += u32::from(run.pool.is_replaying());
                run.faulty.heal();
                run.step(&random_op(random, run.blocks(), 30));
                player.play(&mut run, &round, here..round.calls.len());
                run.check_now();
                (0..3).for_each(|_| play_behind(&mut run, &mut player, &round, pace));
            }
            run.end();
        }
        assert!(by_heart >= 30, "declared {declared}: {by_heart} of 40");
        assert!(disturbed >= 100, "declared {declared}: {disturbed}");
        assert!(
            waits > 0 && waits < frees,
            "declared {declared}: {waits} for {frees}"
        );
    }
}

/// Where each stream has what it needs nothing is asked of the driver, and the device may be behind.
#[test]
fn streams_that_share_nothing_make_no_call() {
    let mut run = Run::new(&setup(true));
    run.exact_peaks = false;
    let random = &mut Random(7);
    let mut round = Round::of_several(random, 150, 24, 2);
    // of one length on each: there is always a block that the stream has freed itself
    for (on, asked) in round.on.iter_mut().zip(&mut round.asked) {
        on.1 = on.0;
        *asked = (1 + 2 * u64::from(on.0)) << 20;
    }
    let mut player = Player::new(&round);
    for turn in 0..60 {
        match turn < 40 {
            true => play_idly(&mut run, &mut player, &round),
            false => player.play(&mut run, &round, 0..round.calls.len()),
        }
    }
    assert!(run.pool.is_replaying());
    let before = run.pool.stats().expect("stats");
    player.play(&mut run, &round, 0..round.calls.len());
    let after = run.pool.stats().expect("stats");
    assert!(run.pool.is_replaying());
    assert_eq!(after.event_calls, before.event_calls);
    run.end();
}

/// A block is handed out by heart while work from before is queued on it, and goes back unused: whoever gets it next waits for that work.
#[test]
fn a_block_that_was_not_used_is_behind_the_work_before() {
    for (place, declared) in [
        (0, true),
        (0, false),
        (STREAMS as u8, true),
        (STREAMS as u8, false),
    ] {
        let mut run = Run::new(&setup(declared));
        run.exact_peaks = false;
        let length = |block: u64| {
            if block == 0 {
                11 << 20
            } else {
                (block % 7 + 1) << 20
            }
        };
        // the first one lasts from round to round; of the others the first stream has half, and then the second one, which takes them over
        let again = [Call::Free(0), Call::Alloc(50), Call::Alloc(51), Call::Alloc(0)];
        let both = |from, to| (from..to).map(Call::Alloc).chain((from..to).map(Call::Free));
        let later = (30..50)
            .map(Call::Alloc)
            .chain(again)
            .chain((30..52).map(Call::Free));
        let mut round = Round::of((0..52).map(length).collect(), both(1, 30).chain(later).collect());
        round.on[30..].fill((1, 1));
        let mut player = Player::new(&round);
        for _ in 0..40 {
            play_idly(&mut run, &mut player, &round);
        }
        assert!(run.pool.is_replaying());
        let here = round.calls.iter().position(|call| matches!(call, Call::Free(0)));
        let here = here.expect("it is freed");
        for call in 0..here {
            player.play(&mut run, &round, call..call + 1);
            (0..2).for_each(|stream| run.get_on_with(stream));
        }
        // what the first stream does with it is queued still when it is handed out again
        run.touch_quietly(player.at[0]);
        player.play(&mut run, &round, here..here + 3);
        let at = run.alloc_quietly_for(round.asked[0], 0, false);
        assert!(run.pool.is_replaying());
        match place {
            0 => run.free_synced_quietly(at, 0),
            // one that never has work
            _ => run.free_quietly_elsewhere(at, (0, place)),
        }
        run.alloc_quietly_on(round.asked[0], 1);
        run.end();
    }
}

/// Calls of threads that take turns are recorded together. One ends, and nobody knows its stream any more.
#[test]
fn a_stream_that_is_forgotten_makes_no_round() {
    for seed in 0..200 {
        let random = &mut Random(seed);
        let config = Config {
            declared_streams: seed % 4 != 0,
            ..crate::common::config()
        };
        let mut threads = Threads::new(config, 100 + random.below(400), 0, seed);
        for thread in 0..4 {
            threads.add(threads::round(40, 16, &mut Random(seed * 100 + thread)));
        }
        for _ in 0..3 {
            threads.run(80 * random.below(60) as usize);
            threads.end_thread(0);
        }
        threads.run(4000);
        threads.pool.validate();
    }
}

/// Streams get on when they like, and all else happens, too.
#[test]
fn whatever_comes_between_no_work_overlaps() {
    let (mut disturbed, mut late) = (0, 0);
    for seed in 0..SEEDS {
        let random = &mut Random(seed + 1);
        let mut setup = setup(seed % 2 == 0);
        setup.first_has_cache = seed % 8 < 4;
        setup.max_bytes = if random.one_in(4) { 900 << 20 } else { 0 };
        let mut run = Run::new(&setup);
        run.exact_peaks = false;
        let (blocks, most) = (40 + random.below(60) as usize, 4 + random.below(16) as usize);
        let streams = 2 + random.below(3);
        let round = Round::of_several(random, blocks, most, streams);
        let mut player = Player::new(&round);
        player.batches = random.one_in(4).then_some(Random(seed + 1));
        player.synced = random.one_in(8).then_some(Random(seed + 2));
        player.turn = random.one_in(4).then(|| 70 + random.below(100) as usize);
        if streams < 3 && random.one_in(3) {
            player.guest = Some(Guest::new(seed + 1, 40, true));
        }
        // one call in so many finds a stream with work, which it goes on having for a while
        let busy = [0, 400, 100, 30][random.below(4) as usize];
        let mut behind: [u64; STREAMS] = [0; STREAMS];
        for turn in 0..50 {
            let calls = round.calls.len();
            let step = random.below(calls as u64) as usize;
            let mut play = |run: &mut Run, random: &mut Random, from: usize, to: usize| {
                for call in from..to {
                    player.play(run, &round, call..call + 1);
                    if busy > 0 && random.one_in(busy) {
                        behind[random.below(STREAMS as u64) as usize] = random.below(60);
                    }
                    for (stream, calls) in behind.iter_mut().enumerate() {
                        match *calls {
                            0 => run.get_on_with(stream as u8),
                            _ => *calls -= 1,
                        }
                    }
                    late += usize::from(run.pool.is_replaying() && behind.iter().any(|&calls| calls > 0));
                }
            };
            play(&mut run, random, 0, step);
            if turn > 6 && random.one_in(if run.pool.is_replaying() { 4 } else { 30 }) {
                disturbed += usize::from(run.pool.is_replaying());
                for _ in 0..1 + random.below(3) {
                    let op = match random.below(3) {
                        0 => Op::Alloc {
                            bytes: asked(random),
                            align: 0,
                            stream: random.below(STREAMS as u64) as u8,
                            touch: true,
                        },
                        1 => Op::FreeOn {
                            pick: random.next() as u16,
                            stream: random.below(2) as u8,
                            hooks: random.one_in(2),
                        },
                        _ => random_op(random, run.blocks(), 30),
                    };
                    run.step(&op);
                }
            }
            play(&mut run, random, step, calls);
            if random.one_in(3) {
                run.check_now();
            }
        }
        run.end();
    }
    let least = SEEDS as usize / 2;
    assert!(disturbed >= least && late >= least, "{disturbed} and {late}");
}
