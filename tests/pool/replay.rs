//! Rounds that come again are answered from the tape; whatever comes between, the books make up for it and are right, and no stream gets
//! memory that another one's work may still use.

use crate::common::cached::{STREAM, alloc, free};
use crate::common::op::{Op, PLACES, Setup, random_op};
use crate::common::player::{Call, Player, Round, asked, learn, ready, setup, setup_of};
use crate::common::random::Random;
use crate::common::run::Run;
use crate::common::{K, M, Pages, config};
use weir::backend::counting::Counting;
use weir::base::units::Addr;
use weir::config::Config;
use weir::pool::Pool;

/// Of programs that are disturbed.
const SEEDS: u64 = 1000;

/// What holds too much is not answered by heart before it has shed that: so it may hold more.
fn ample(first_has_cache: bool) -> Setup {
    Setup {
        slack: 0.3,
        first_has_cache,
        ..setup()
    }
}

/// Something else that happens: often another stream asks for what is free, at once. If `alone` it is on the same stream, or on none.
fn disturb(run: &mut Run, random: &mut Random, alone: bool) {
    let mut op = match random.below(4) {
        0 if random.one_in(2) => Op::Batch {
            sizes: (0..1 + random.below(3)).map(|_| asked(random)).collect(),
            stream: 0,
        },
        0 => Op::FreeBatch {
            pick: random.below(1 << 16) as u16,
            count: 1 + random.below(4) as u8,
            stream: 0,
        },
        1 => Op::Alloc {
            bytes: asked(random),
            align: 0,
            stream: random.below(u64::from(PLACES)) as u8,
            touch: true,
        },
        _ => random_op(random, run.blocks(), 30),
    };
    match &mut op {
        Op::Alloc { stream, .. }
        | Op::FreeOn { stream, .. }
        | Op::Share { stream, .. }
        | Op::Copy { stream, .. }
        | Op::Batch { stream, .. }
        | Op::FreeBatch { stream, .. }
        | Op::Warmup { stream, .. }
        | Op::Record { stream, .. }
        | Op::Wait { stream, .. }
            if alone =>
        {
            *stream = 0;
        }
        Op::Wrong { pick, .. } if alone => *pick = 0,
        _ => {}
    }
    run.step(&op);
}

#[test]
fn what_comes_again_is_answered_without_the_books() {
    let mut learned = [0; 2];
    for seed in 0..80 {
        // where streams are not declared the pool cannot record an event later: there are a few a round, and nothing else
        let declared = seed % 2 == 0;
        let random = &mut Random(seed / 2 + 1);
        let (mut run, round, mut player) = ready(declared, random);
        player.batches = (seed % 4 < 2).then_some(Random(seed + 1));
        if !learn(&mut run, &mut player, &round) {
            continue;
        }
        learned[usize::from(declared)] += 1;
        run.check_now();
        let before = run.pool.stats().expect("stats");
        for _ in 0..5 {
            let middle = random.below(round.calls.len() as u64) as usize;
            player.play(&mut run, &round, 0..middle);
            run.check_now();
            assert!(run.pool.is_replaying(), "seed {seed}: who reads ends nothing");
            player.play(&mut run, &round, middle..round.calls.len());
            assert!(run.pool.is_replaying(), "seed {seed}");
            run.get_on();
        }
        let after = run.pool.stats().expect("stats");
        let events = after.event_calls - before.event_calls;
        let most = 5 * round.calls.len() as u64 / 64;
        assert!(
            if declared {
                events == 0
            } else {
                (5..=most).contains(&events)
            },
            "{events}"
        );
        assert_eq!(after.driver_calls, before.driver_calls + events);
        assert_eq!(after.misses, before.misses);
        run.end();
    }
    assert!(
        learned.iter().all(|&learned| learned >= 32),
        "{learned:?} of 40 rounds each were learned"
    );
}

/// Blocks that last until after the next ones of their kind came take turns, and so do those whose places they take. They are led back to
/// where they were.
#[test]
fn rounds_that_overlap_come_to_be_alike() {
    let mut learned = 0;
    for seed in 0..40 {
        let random = &mut Random(seed + 1);
        let mut run = Run::new(&setup());
        let round = Round::overlapping(random, 150, 24, 3);
        let mut player = Player::new(&round);
        if learn(&mut run, &mut player, &round) {
            learned += 1;
            let before = run.pool.stats().expect("stats").driver_calls;
            for _ in 0..4 {
                player.play(&mut run, &round, 0..round.calls.len());
                run.check_now();
                run.get_on();
            }
            assert!(run.pool.is_replaying(), "seed {seed}");
            assert_eq!(run.pool.stats().expect("stats").driver_calls, before);
        }
        run.end();
    }
    assert!(learned >= 25, "{learned} of 40 rounds were learned");
}

/// A call more now and then, as of a program that looks how far it came, ends a replay, but what was known holds still.
#[test]
fn a_call_more_now_and_then_is_no_reason_to_begin_anew() {
    let (mut learned, mut soon) = (0, 0);
    for seed in 0..20 {
        let random = &mut Random(seed + 1);
        let (mut run, round, mut player) = ready(true, random);
        if learn(&mut run, &mut player, &round) {
            learned += 1;
            let again = (0..4).all(|_| {
                for _ in 0..10 {
                    player.play(&mut run, &round, 0..round.calls.len());
                }
                let step = random.below(round.calls.len() as u64) as usize;
                player.play(&mut run, &round, 0..step);
                let more = run.alloc_quietly(asked(random));
                assert!(!run.pool.is_replaying());
                player.play(&mut run, &round, step..round.calls.len());
                run.free_quietly(more);
                for _ in 0..2 {
                    player.play(&mut run, &round, 0..round.calls.len());
                    run.check_now();
                }
                run.pool.is_replaying()
            });
            soon += usize::from(again);
        }
        run.end();
    }
    assert!(learned >= 16 && soon >= 14, "{soon} of {learned}");
}

/// The peak of a round that is replayed may have been in the part of it that came before the peaks were reset.
#[test]
fn a_peak_that_was_reset_comes_again() {
    let mut replayed = 0;
    for rounds in 0..12 {
        let (mut run, round, mut player) = ready(true, &mut Random(3));
        let whole = 0..round.calls.len();
        for _ in 0..rounds {
            player.play(&mut run, &round, whole.clone());
        }
        for step in [whole.end / 3, whole.end * 2 / 3] {
            player.play(&mut run, &round, 0..step);
            run.step(&Op::ResetPeaks);
            player.play(&mut run, &round, step..whole.end);
        }
        for _ in 0..12 {
            player.play(&mut run, &round, whole.clone());
            run.check_now();
        }
        replayed += usize::from(run.pool.is_replaying());
        run.end();
    }
    assert!(replayed >= 10, "{replayed} of 12 were learned");
}

/// Who looks what each part of its work needs at most resets the peaks between. That ends nothing, and peaks are those of the calls since.
#[test]
fn peaks_that_are_reset_are_those_of_what_is_replayed_since() {
    let mut learned = 0;
    for seed in 0..40 {
        let random = &mut Random(seed + 1);
        let (mut run, round, mut player) = ready(true, random);
        let mut reset = Random(seed + 2);
        // also while it is watched and recorded
        learned += usize::from((0..100).any(|_| {
            let step = reset.below(round.calls.len() as u64) as usize;
            player.play(&mut run, &round, 0..step);
            run.step(&Op::ResetPeaks);
            player.play(&mut run, &round, step..round.calls.len());
            run.pool.is_replaying()
        }));
        let replays = run.pool.is_replaying();
        for _ in 0..30 {
            for _ in 0..random.below(3) {
                let step = random.below(round.calls.len() as u64) as usize;
                player.play(&mut run, &round, 0..step);
                if random.one_in(2) {
                    run.step(&Op::ResetPeaks);
                }
                run.check_now();
                player.play(&mut run, &round, step..round.calls.len());
            }
            run.check_now();
            assert_eq!(run.pool.is_replaying(), replays, "seed {seed}");
        }
        // the books make up for it in the middle of a round, and know
        let step = random.below(round.calls.len() as u64) as usize;
        player.play(&mut run, &round, 0..step);
        run.step(&Op::ResetPeaks);
        let end = step + random.below((round.calls.len() - step) as u64) as usize;
        player.play(&mut run, &round, step..end);
        run.alloc_quietly(1);
        run.check_now();
        assert!(!run.pool.is_replaying());
        run.end();
    }
    assert!(learned >= 32, "{learned} of 40 rounds were learned");
}

/// Blocks that are freed when all their use is over are by heart as well: not always the same ones, and without a word about streams.
#[test]
fn what_is_freed_when_all_is_over_comes_again() {
    let mut learned = [0; 2];
    for seed in 0..80 {
        let declared = seed % 2 == 0;
        let random = &mut Random(seed / 2 + 1);
        let (mut run, round, mut player) = ready(declared, random);
        player.synced = Some(Random(seed + 1));
        if learn(&mut run, &mut player, &round) {
            learned[usize::from(declared)] += 1;
            let before = run.pool.stats().expect("stats");
            for _ in 0..5 {
                player.play(&mut run, &round, 0..round.calls.len());
                run.check_now();
                assert!(run.pool.is_replaying(), "seed {seed}");
            }
            let after = run.pool.stats().expect("stats");
            assert_eq!(after.misses, before.misses);
            let events = after.event_calls - before.event_calls;
            assert!(!declared || events == 0, "{events}");
        }
        run.end();
    }
    assert!(
        learned.iter().all(|&learned| learned >= 32),
        "{learned:?} of 40 rounds each were learned"
    );
}

/// A program whose batches are of three lengths in turn: what comes again is three batches.
#[test]
fn rounds_that_take_turns_are_learned_together() {
    let mut run = Run::new(&setup());
    let batch = |length: u64| {
        let layer = [8, 24, 17, 4, 32, 8, 1].map(|part| part * 256 * K * length / 16);
        let asked: Vec<u64> = layer.into_iter().cycle().take(70).collect();
        let calls = (0..70).map(Call::Alloc).chain((0..70).rev().map(Call::Free));
        let calls = calls.collect();
        Round::of(asked, calls)
    };
    let rounds = [16, 17, 18].map(batch);
    let mut players: Vec<Player> = rounds.iter().map(Player::new).collect();
    let mut learned = false;
    for turn in 0..60 {
        let (round, player) = (&rounds[turn % 3], &mut players[turn % 3]);
        player.play(&mut run, round, 0..round.calls.len());
        run.get_on();
        learned |= turn > 40 && run.pool.is_replaying();
        assert!(!learned || run.pool.is_replaying(), "turn {turn}");
    }
    assert!(learned);
    run.end();
}

/// Steps in time: fields of one length, each kept until its next values are there. Each takes the place that the one before it left, so all
/// are where they were after as many steps as there are fields, and one.
#[test]
fn fields_that_take_each_others_places_are_learned() {
    for fields in 1..=8 {
        let mut run = Run::new(&ample(false));
        let (mut asked, mut calls) = (Vec::new(), Vec::new());
        for field in 0..fields {
            for between in 0..6 + field {
                calls.extend([Call::Alloc(asked.len()), Call::Free(asked.len())]);
                asked.push((3 + between as u64) * M);
            }
            calls.extend([Call::Alloc(asked.len()), Call::FreeLast(asked.len())]);
            asked.push(40 * M);
        }
        let round = Round::of(asked, calls);
        let mut player = Player::new(&round);
        assert!(learn(&mut run, &mut player, &round), "{fields} fields");
        for _ in 0..3 * fields {
            player.play(&mut run, &round, 0..round.calls.len());
            run.get_on();
        }
        assert!(run.pool.is_replaying(), "{fields} fields");
        run.end();
    }
}

/// Rounds of two kinds in turn, of as many calls, that begin alike: after the first one that is recorded it is a wrong guess that it comes
/// again, which is found out half-way. What was answered by then is recorded as if nothing had been.
#[test]
fn a_wrong_guess_is_no_hindrance() {
    let mut run = Run::new(&setup());
    let rounds = [M, 3 * M].map(|last| {
        let asked: Vec<u64> = (0..80)
            .map(|n| if n < 60 { M + n * 4 * K } else { last })
            .collect();
        let calls = (0..80).map(Call::Alloc).chain((0..80).rev().map(Call::Free));
        Round::of(asked, calls.collect())
    });
    let mut players: Vec<Player> = rounds.iter().map(Player::new).collect();
    let (mut guesses, mut learned) = (0, None);
    for turn in 0..16 {
        let (round, player) = (&rounds[turn % 2], &mut players[turn % 2]);
        player.play(&mut run, round, 0..30);
        let guessed = run.pool.is_replaying();
        player.play(&mut run, round, 30..round.calls.len());
        match (guessed, run.pool.is_replaying()) {
            (true, true) => learned = learned.or(Some(turn)),
            (true, false) => guesses += 1,
            _ => {}
        }
    }
    assert!(
        guesses == 1 && learned.is_some_and(|turn| turn < 10),
        "{guesses} {learned:?}"
    );
    run.end();
}

/// What begins with nothing in use and ends so is recorded in its second round, and answered by heart from the third on, though pages are
/// mapped in the second.
#[test]
fn a_long_round_is_known_by_heart_when_it_came_twice() {
    let mut learned = 0;
    for seed in 0..80 {
        let mut run = Run::new(&ample(false));
        let mut round = Round::new(&mut Random(seed + 1), 2500, 24);
        // which no cache serves: so it is the first call that finds the least in use
        round.asked[0] = 5 * M;
        let mut player = Player::new(&round);
        for _ in 0..2 {
            player.play(&mut run, &round, 0..round.calls.len());
        }
        assert!(!run.pool.is_replaying(), "it was not recorded yet");
        let before = run.pool.stats().expect("stats");
        player.play(&mut run, &round, 0..round.calls.len());
        let after = run.pool.stats().expect("stats");
        learned += usize::from(run.pool.is_replaying() && after.driver_calls == before.driver_calls);
        run.end();
    }
    // which ones are is chance
    assert!(learned >= 48, "{learned} of 80");
}

/// A run from nothing to nothing of so many steps of each of three kinds, from one to the next with less in use.
fn run_of_steps(steps: usize) -> Round {
    let random = &mut Random(7);
    let (mut asked, mut calls) = (vec![5 * M; 12], Vec::new());
    calls.extend((0..12).map(Call::Alloc));
    for kind in 0..3 {
        let step: Vec<u64> = (0..50).map(|_| 300 * K + random.below(4 * M)).collect();
        for _ in 0..steps {
            let from = asked.len();
            asked.extend(&step);
            calls.extend((from..from + 50).map(Call::Alloc));
            calls.extend((from..from + 50).rev().map(Call::Free));
        }
        calls.extend((4 * kind..4 * kind + 4).map(Call::Free));
    }
    Round::of(asked, calls)
}

/// Each kind of step is soon answered by heart, which ends where the next one begins; once the run has come twice it is known as a whole.
#[test]
fn a_run_whose_steps_are_known_is_learned_as_a_whole() {
    let round = run_of_steps(16);
    for first_has_cache in [true, false] {
        let mut run = Run::new(&ample(first_has_cache));
        let mut player = Player::new(&round);
        let mut by_heart = [0; 6];
        for by_heart in &mut by_heart {
            for from in (0..round.calls.len()).step_by(20) {
                player.play(&mut run, &round, from..(from + 20).min(round.calls.len()));
                *by_heart += usize::from(run.pool.is_replaying());
            }
        }
        let all = round.calls.len().div_ceil(20);
        assert!((all / 8..all).contains(&by_heart[0]), "steps: {by_heart:?}");
        assert_eq!(by_heart[4..], [all; 2], "{by_heart:?}");
        run.end();
    }
}

/// The same of one that is so long that other moments with little in use are taken for the least meanwhile, and that has more calls than the
/// first ones that are noted.
#[test]
fn a_long_run_is_learned_as_a_whole() {
    let round = run_of_steps(900);
    let pool = Pool::new(
        Config {
            slack: 0.3,
            ..config()
        },
        Counting::new(true),
    )
    .expect("a pool");
    let cache = pool.open_cache(STREAM).expect("a cache");
    let mut blocks = vec![Addr(0); round.asked.len()];
    let mut ended = [0; 4];
    for ended in &mut ended {
        for &call in &round.calls {
            match call {
                Call::Alloc(block) => {
                    blocks[block] = alloc(&pool, &cache, round.asked[block]).expect("memory")
                }
                Call::Free(block) | Call::FreeLast(block) => {
                    free(&pool, &cache, blocks[block]).expect("a live block");
                }
            }
            *ended += usize::from(!pool.is_replaying());
        }
    }
    assert!(
        ended[0] > 0 && ended[3] == 0,
        "{ended:?} of {} calls",
        round.calls.len()
    );
    pool.close_cache(&cache);
    pool.validate();
}

/// What a program does from its first call on until nothing is in use is known by heart when it begins again, unless pages were released.
#[test]
fn what_begins_and_ends_with_nothing_is_known_by_heart_at_once() {
    let mut learned = 0;
    for seed in 0..20 {
        let mut run = Run::new(&ample(true));
        let round = Round::new(&mut Random(seed + 1), 100 << (seed % 5), 24);
        let mut player = Player::new(&round);
        player.batches = (seed % 2 == 0).then_some(Random(seed + 1));
        player.play(&mut run, &round, 0..round.calls.len());
        let before = run.pool.stats().expect("stats");
        for _ in 0..3 {
            player.play(&mut run, &round, 0..round.calls.len() / 2);
            run.check_now();
            player.play(&mut run, &round, round.calls.len() / 2..round.calls.len());
            run.get_on();
        }
        let after = run.pool.stats().expect("stats");
        learned += usize::from(run.pool.is_replaying() && after.driver_calls == before.driver_calls);
        run.end();
    }
    assert!(learned >= 16, "{learned} of 20");
}

/// Rounds of three kinds, which begin alike and end with nothing in use, and then the first kind again and again: guesses are wrong at
/// first, and nothing is lost by that.
#[test]
fn a_program_that_begins_otherwise_each_time_is_guessed_about_in_vain() {
    let mut run = Run::new(&ample(true));
    let random = &mut Random(3);
    let rounds = [150, 170, 190].map(|blocks| {
        let mut round = Round::new(random, blocks, 24);
        round.asked[0] = 5 * M;
        round
    });
    let mut players: Vec<Player> = rounds.iter().map(Player::new).collect();
    let mut guesses = 0;
    for turn in 0..6 {
        let (round, player) = (&rounds[turn % 3], &mut players[turn % 3]);
        player.play(&mut run, round, 0..1);
        run.check_now();
        guesses += usize::from(run.pool.is_replaying());
        player.play(&mut run, round, 1..round.calls.len());
        run.check_now();
    }
    assert!((1..4).contains(&guesses), "{guesses}");
    assert!(learn(&mut run, &mut players[0], &rounds[0]));
    run.end();
}

/// At any step of a round, be it watched, recorded or replayed, something else happens; then everything is as if there were no replays.
#[test]
fn whatever_comes_between_finds_the_books_right() {
    let mut replayed = [0; 2];
    for seed in 0..SEEDS {
        let random = &mut Random(seed + 1000);
        let mut run = Run::new(&Setup {
            max_bytes: if random.one_in(4) { 220 * M } else { 0 },
            slack: if random.one_in(2) { 0.01 } else { 0.1 },
            mappings: if random.one_in(3) { 500 } else { 1 << 20 },
            mappings_of_a_page: if seed % 4 == 1 { 4 } else { usize::MAX },
            pages: match random.below(6) {
                0 => Pages::Apart,
                1 => Pages::Placed,
                _ => Pages::Movable,
            },
            first_has_cache: seed % 4 < 2,
            ..setup_of(seed % 2 == 0)
        });
        // threads that take turns have longer ones
        let in_turn = seed % 16 < 4;
        let (blocks, most) = (20 + random.below(60) as usize, 4 + random.below(16) as usize);
        let round = Round::new(random, if in_turn { 200 + blocks } else { blocks }, most);
        let mut player = Player::new(&round);
        player.batches = random.one_in(2).then_some(Random(seed + 1));
        player.synced = (seed % 8 < 4).then_some(Random(seed + 2));
        player.turn = in_turn.then_some(round.calls.len().div_ceil(2));
        run.exact_peaks = player.synced.is_none() && player.turn.is_none();
        let lasting: Vec<u64> = (0..random.below(6)).map(|_| asked(random)).collect();
        for bytes in lasting {
            run.alloc_quietly(bytes);
        }
        let alone = random.one_in(2);
        for turn in 0..60 {
            let step = random.below(round.calls.len() as u64) as usize;
            player.play(&mut run, &round, 0..step);
            // the more it has been left alone the likelier it is left alone
            let seldom = match run.pool.is_replaying() {
                true => 3,
                false if turn < 10 => 8,
                false => 24,
            };
            if random.one_in(seldom) {
                replayed[usize::from(in_turn)] += usize::from(run.pool.is_replaying());
                for _ in 0..1 + random.below(3) {
                    disturb(&mut run, random, alone);
                }
                run.check_now();
            }
            player.play(&mut run, &round, step..round.calls.len());
            match random.below(3) {
                0 => {}
                // the device gets on, and the pool hears of it or not
                1 => run.get_on(),
                _ => run.step(&Op::SyncStream { stream: 0 }),
            }
        }
        run.end();
    }
    let enough = replayed[0] >= SEEDS as usize * 3 / 4 && replayed[1] >= SEEDS as usize / 4;
    assert!(enough, "{replayed:?} replays were disturbed");
}
