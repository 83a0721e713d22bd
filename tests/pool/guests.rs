//! Other streams call while one stream's rounds are answered by heart: that goes on, and no stream gets memory that another one's work may
//! still use, whatever comes between.

use crate::common::op::{Op, STREAMS, random_op};
use crate::common::player::{Guest, Player, Round, asked, ready, setup_of};
use crate::common::random::Random;
use crate::common::run::Run;

const SEEDS: u64 = 1200;

/// A stream that calls now and then has memory of its own after a while, and ends nothing any more.
#[test]
fn rounds_are_by_heart_beside_a_stream_that_copies() {
    let mut kept = [0; 2];
    for seed in 0..80 {
        let declared = seed % 2 == 0;
        let random = &mut Random(seed / 2 + 1);
        let (mut run, round, mut player) = ready(declared, random);
        player.guest = Some(Guest::new(seed + 1, 60, true));
        let mut by_heart = 0;
        for turn in 0..80 {
            player.play(&mut run, &round, 0..round.calls.len());
            run.check_now();
            by_heart += u32::from(turn >= 60 && run.pool.is_replaying());
            if random.one_in(2) {
                run.get_on();
            }
        }
        kept[usize::from(declared)] += u32::from(by_heart >= 16);
        run.end();
    }
    assert!(kept.iter().all(|&kept| kept >= 30), "{kept:?} of 40 each");
}

/// The same where all else happens, too.
#[test]
fn whatever_comes_between_finds_the_books_right() {
    let mut disturbed = 0;
    for seed in 0..SEEDS {
        let random = &mut Random(seed + 1);
        let mut setup = setup_of(seed % 2 == 0);
        setup.first_has_cache = seed % 4 < 2;
        setup.max_bytes = if random.one_in(4) { 900 << 20 } else { 0 };
        let mut run = Run::new(&setup);
        let (blocks, most) = (40 + random.below(60) as usize, 4 + random.below(16) as usize);
        let round = Round::new(random, blocks, most);
        let mut player = Player::new(&round);
        player.guest = Some(Guest::new(seed + 1, 20 + random.below(60), random.one_in(2)));
        player.batches = random.one_in(4).then_some(Random(seed + 1));
        player.synced = random.one_in(4).then_some(Random(seed + 2));
        run.exact_peaks = false;
        for bytes in (0..random.below(6)).map(|_| asked(random)).collect::<Vec<_>>() {
            run.alloc_quietly(bytes);
        }
        for turn in 0..60 {
            let step = random.below(round.calls.len() as u64) as usize;
            player.play(&mut run, &round, 0..step);
            let seldom = match run.pool.is_replaying() {
                true => 4,
                false if turn < 10 => 12,
                false => 36,
            };
            if random.one_in(seldom) {
                disturbed += usize::from(run.pool.is_replaying());
                for _ in 0..1 + random.below(3) {
                    let op = match random.below(4) {
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
                        2 => Op::Share {
                            pick: random.next() as u16,
                            stream: random.below(2) as u8,
                        },
                        _ => random_op(random, run.blocks(), 30),
                    };
                    run.step(&op);
                }
            }
            player.play(&mut run, &round, step..round.calls.len());
            match random.below(3) {
                0 => {}
                1 => run.get_on(),
                _ => run.step(&Op::SyncStream {
                    stream: random.below(2) as u8,
                }),
            }
        }
        run.end();
    }
    assert!(
        disturbed >= SEEDS as usize / 2,
        "{disturbed} replays were disturbed"
    );
}
