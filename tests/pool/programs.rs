//! Programs of operations against a model; see `common::program`.

use crate::common::op::{LIMITS, Op, PLACES, Setup, random_op};
use crate::common::program::run;
use crate::common::random::Random;
use crate::common::run::Run;
use crate::common::sim::FIRST_STREAM;
use crate::common::{K, M, Pages};
use proptest::collection::vec;
use proptest::prelude::*;
use weir::backend::BackendError;
use weir::backend::call::Call;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0u64),
        8 => (0u32..15, any::<u64>()).prop_map(|(octave, rest)| (1u64 << octave) + rest % (1 << octave)),
        6 => (0u32..24, any::<u64>()).prop_map(|(octave, rest)| (1u64 << octave) + rest % (1 << octave)),
        2 => (0u32..29, any::<u64>()).prop_map(|(octave, rest)| (1u64 << octave) + rest % (1 << octave)),
        2 => (1u64..64).prop_map(|slots| slots * 2 * M),
    ]
}

fn align() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0u64), 1 => (8u32..17).prop_map(|shift| 1 << shift), 1 => Just(1 << 22)]
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0..PLACES;
    let pick = any::<u16>();
    prop_oneof![
        30 => (size(), align(), stream.clone(), any::<bool>())
            .prop_map(|(bytes, align, stream, touch)| Op::Alloc { bytes, align, stream, touch }),
        10 => pick.prop_map(|pick| Op::Free { pick }),
        8 => (pick, stream.clone(), any::<bool>())
            .prop_map(|(pick, stream, hooks)| Op::FreeOn { pick, stream, hooks }),
        3 => pick.prop_map(|pick| Op::FreeSynced { pick }),
        2 => pick.prop_map(|pick| Op::Touch { pick }),
        3 => (pick, stream.clone()).prop_map(|(pick, stream)| Op::Share { pick, stream }),
        3 => (pick, stream.clone(), any::<u8>()).prop_map(|(pick, stream, free)| Op::Copy { pick, stream, free }),
        2 => (vec(size(), 0..5), stream.clone()).prop_map(|(sizes, stream)| Op::Batch { sizes, stream }),
        2 => (pick, 0u8..6, stream.clone())
            .prop_map(|(pick, count, stream)| Op::FreeBatch { pick, count, stream }),
        1 => (size(), 0u8..5, stream.clone())
            .prop_map(|(bytes, count, stream)| Op::Warmup { bytes, count, stream }),
        1 => prop_oneof![Just(0u64), 0..512 * M].prop_map(|keep| Op::Trim { keep }),
        1 => Just(Op::Squeeze),
        2 => (0u8..4, stream.clone()).prop_map(|(event, stream)| Op::Record { event, stream }),
        2 => (0u8..4, stream.clone()).prop_map(|(event, stream)| Op::Wait { event, stream }),
        1 => (0u8..4).prop_map(|event| Op::SyncEvent { event }),
        1 => stream.clone().prop_map(|stream| Op::SyncStream { stream }),
        1 => Just(Op::SyncAll),
        2 => stream.clone().prop_map(|stream| Op::Delay { stream }),
        4 => (stream.clone(), 0u8..8).prop_map(|(stream, items)| Op::Advance { stream, items }),
        1 => stream.prop_map(|stream| Op::Recreate { stream }),
        1 => prop_oneof![Just(0u64), 0..256 * M, Just(u64::MAX)].prop_map(|bytes| Op::Threshold { bytes }),
        1 => (0u8..8).prop_map(|bits| Op::Policies { bits }),
        1 => Just(Op::ResetPeaks),
        2 => (pick, any::<u8>()).prop_map(|(pick, kind)| Op::Wrong { pick, kind }),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let pages = prop_oneof![2 => Just(Pages::Movable), 1 => Just(Pages::Apart), 1 => Just(Pages::Placed)];
    let limit = prop_oneof![2 => Just(0u64), 3 => 4 * M..600 * M];
    let capacity = prop_oneof![2 => Just(u64::MAX), 1 => 4 * M..600 * M];
    let initial = prop_oneof![3 => Just(0u64), 1 => 0..4 * M];
    let threshold = prop_oneof![3 => Just(u64::MAX), 1 => 0..64 * M];
    let slack = prop_oneof![Just(0.0), Just(0.01), Just(0.5)];
    let mappings = prop_oneof![2 => Just(1u64 << 20), 1 => 20u64..100];
    let of_a_page = prop_oneof![2 => Just(usize::MAX), 1 => 2usize..6];
    (
        pages,
        limit,
        capacity,
        initial,
        threshold,
        slack,
        0u8..8,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        mappings,
        of_a_page,
    )
        .prop_map(
            |(
                pages,
                limit,
                capacity,
                initial,
                release_threshold,
                slack,
                policies,
                always_events,
                watched,
                declared,
                mappings,
                mappings_of_a_page,
            )| Setup {
                pages,
                mappings,
                mappings_of_a_page,
                max_bytes: limit,
                capacity,
                initial_bytes: initial,
                release_threshold,
                slack,
                policies,
                always_events,
                watched,
                declared,
                ..Setup::default()
            },
        )
}

/// `PROPTEST_CASES` in the environment has the last word.
fn cases() -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 1500;
    }
    config
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_pool_agrees_with_the_model_after_every_step(setup in setup(), ops in vec(op(), 1..120)) {
        run(&setup, &ops);
    }
}

/// Steps of the long run; the invariants are checked once in a while.
const STEPS: u64 = 1_000_000;

#[test]
fn a_million_steps() {
    let seeds = 20;
    let mut refused = 0;
    for seed in 0..seeds {
        let mut random = Random(seed);
        let mut run = Run::new(&Setup {
            pages: [Pages::Movable, Pages::Apart, Pages::Movable, Pages::Placed][(seed % 4) as usize],
            max_bytes: LIMITS[(seed % 6) as usize],
            capacity: if seed % 7 == 3 { 96 * M } else { u64::MAX },
            initial_bytes: seed % 2 * (3 * K),
            mappings: if seed % 5 == 4 { 80 } else { 1 << 20 },
            mappings_of_a_page: if seed % 3 == 1 { 3 } else { usize::MAX },
            always_events: seed % 3 == 0,
            watched: seed % 5 < 2,
            declared: seed % 3 == 1,
            ..Setup::default()
        });
        run.validate = false;
        for step in 0..STEPS / seeds {
            let op = random_op(&mut random, run.blocks(), 150);
            run.step(&op);
            if step % 1000 == 0 {
                run.pool.validate();
            }
        }
        run.pool.validate();
        refused += run.refused;
        run.end();
    }
    assert!(refused > 1000, "the limits were reached: {refused}");
}

// What programs found once.

fn block(bytes: u64, stream: u8) -> Op {
    Op::Alloc {
        bytes,
        align: 0,
        stream,
        touch: true,
    }
}

#[test]
fn an_aligned_request_takes_what_was_mapped_for_it() {
    // the tightest extent is not aligned, and no other is longer than the request by the alignment
    let aligned = Op::Alloc {
        bytes: 0,
        align: 4 * M,
        stream: 0,
        touch: true,
    };
    run(
        &Setup::default(),
        &[block(0, 1), block(0, 0), Op::SyncStream { stream: 1 }, aligned],
    );
}

#[test]
fn memory_warmed_up_stays_behind_the_work_that_used_it() {
    let warmup = Op::Warmup {
        bytes: 4 * M,
        count: 1,
        stream: 0,
    };
    run(
        &Setup::default(),
        &[block(4 * M, 0), Op::Free { pick: 0 }, warmup, block(4 * M, 1)],
    );
}

#[test]
fn a_block_freed_unused_stays_behind_the_work_of_the_one_before_it() {
    let unused = Op::Alloc {
        bytes: 4 * M,
        align: 0,
        stream: 0,
        touch: false,
    };
    let free = Op::Free { pick: 0 };
    run(
        &Setup::default(),
        &[
            block(4 * M, 0),
            free,
            unused,
            Op::FreeSynced { pick: 0 },
            block(4 * M, 1),
        ],
    );
}

#[test]
fn a_batch_taken_back_stays_behind_the_work_that_used_its_memory() {
    let mut run = Run::new(&Setup::default());
    run.step(&block(4 * M, 0));
    run.step(&Op::Free { pick: 0 });
    let stream = StreamHandle(FIRST_STREAM);
    run.faulty
        .fail_nth_of(Call::Create, 1, BackendError::Other("on purpose".into()));
    let answer = run.sim.naming(&[stream], || {
        run.pool.alloc_batch(&[4 * M, 64 * M], stream, &mut [Addr(0); 2])
    });
    assert_eq!(answer, Err(Error::Backend("on purpose".into())));
    run.forgive_peak();
    run.step(&block(4 * M, 1));
    run.end();
}

#[test]
fn extents_join_across_one_that_was_everybodys() {
    let free = |pick| Op::Free { pick };
    run(
        &Setup::default(),
        &[
            block(M, 0),
            block(M, 4),
            block(2 * M, 0),
            // the stream's, everybody's, and then the stream's next to it
            free(0),
            free(0),
            free(0),
        ],
    );
}

#[test]
fn mappings_that_a_plan_counts_on_are_not_thinned_out() {
    let setup = Setup {
        mappings: 58,
        ..Setup::default()
    };
    run(
        &setup,
        &[
            block(10 * M, 2),
            block(0, 0),
            Op::FreeSynced { pick: 0 },
            block(108 * M, 0),
        ],
    );
}

/// Where mappings are few pages are long. What the device refuses in the last try is not the first that it refuses this request.
#[test]
fn pages_are_as_short_as_the_device_has_them() {
    let setup = Setup {
        capacity: 48 * M,
        slack: 0.0,
        policies: 4,
        watched: true,
        mappings: 32,
        ..Setup::default()
    };
    let unused = |bytes, align, stream| Op::Alloc {
        bytes,
        align,
        stream,
        touch: false,
    };
    let free_on = |pick, stream| Op::FreeOn {
        pick,
        stream,
        hooks: false,
    };
    let batch = |bytes, stream| Op::Batch {
        sizes: vec![bytes],
        stream,
    };
    let copy = |pick| Op::Copy {
        pick,
        stream: 0,
        free: 0,
    };
    run(
        &setup,
        &[
            unused(3 * M + 1, 0, 0),
            unused(0, 0, 0),
            unused(41 * M + 180_737, 0, 0),
            copy(6111),
            Op::FreeSynced { pick: 51318 },
            unused(272_897, 0, 0),
            Op::Squeeze,
            unused(1_430_529, 0, 0),
            unused(0, 0, 2),
            Op::Free { pick: 9632 },
            unused(0, 4 * M, 0),
            free_on(29132, 0),
            free_on(29670, 0),
            unused(0, 0, 1),
            batch(32_769, 0),
            Op::Free { pick: 1696 },
            Op::FreeBatch {
                pick: 0,
                count: 2,
                stream: 1,
            },
            free_on(0, 3),
            unused(0, 0, 1),
            Op::Warmup {
                bytes: 0,
                count: 1,
                stream: 0,
            },
            unused(42 * M, 4 * M, 0),
        ],
    );
}
