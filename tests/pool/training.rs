//! The calls of a training step as PyTorch made them: from step to step the same, with weights that last, gradients that are kept until the
//! next forward pass and a result that is kept until the next one is there. They are known by heart after some steps.
//!
//! `data/gpt-steps.trace.gz`: 16 steps of `scripts/gpu-clients.py`'s model with 512 words each time, weir in the place of PyTorch's own
//! allocator (PyTorch 2.11, one H100, 2026-11-25). 156 calls make the model, then come 842 a step; from the 206th to the 687th they are those
//! of the thread of the backward pass.

use crate::common::cached;
use crate::common::device::Device;
use crate::common::recorded::{Call, recorded};
use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const STREAM: StreamHandle = StreamHandle(0);
const COPIES: StreamHandle = StreamHandle(65);
/// Nanoseconds of the device.
const STEP_TAKES: u64 = 1_000_000;
const MODEL: usize = 156;
const STEP: usize = 842;
const BACKWARD: Range<usize> = 205..687;

/// How it was called.
#[derive(Clone, Copy, Debug)]
struct How {
    declared: bool,
    /// The backward pass has a thread of its own.
    backward: bool,
    /// A stream of its own copies what a step reads, and has its memory.
    copies: bool,
}

/// Page calls so far.
fn pages(pool: &Pool) -> u64 {
    let stats = pool.stats().expect("stats");
    stats.maps + stats.unmaps + stats.page_creates + stats.page_releases
}

/// Page calls of each step, and the first one that ended by heart. The cache is that of the thread whose call it is, and the stream.
fn steps(how: How) -> (Vec<u64>, Option<usize>) {
    let config = Config {
        declared_streams: how.declared,
        ..crate::common::config()
    };
    let device = Device::new(1);
    let pool = match how.copies {
        true => Pool::new(config, device.clone()),
        false => Pool::new(config, Counting::new(true)), // nothing is ever at work
    };
    let pool = pool.expect("a pool");
    let open = |other: bool, stream| match other {
        true => thread::scope(|scope| scope.spawn(|| pool.open_cache(stream)).join()).expect("no panic"),
        false => pool.open_cache(stream),
    };
    let mut caches: [[Option<ThreadCache>; 2]; 2] = Default::default();
    let mut blocks = Vec::new();
    let mut play = |calls: &[Call], of: usize, copied: usize| {
        for &(block, bytes) in calls {
            let on = usize::from(how.copies && block == copied);
            let stream = [STREAM, COPIES][on];
            let own = caches[of][on].get_or_insert_with(|| open(of == 1, stream).expect("a cache"));
            blocks.resize(blocks.len().max(block + 1), Addr(0));
            match bytes {
                Some(bytes) => {
                    let kept = own.alloc(bytes, 0);
                    blocks[block] = kept
                        .unwrap_or_else(|| pool.alloc_beside(Some(own), bytes, 0, stream).expect("memory"));
                    if on == 1 {
                        pool.record_stream(blocks[block], STREAM).expect("live");
                    }
                }
                None if own.free(blocks[block]).is_some() => {}
                None => drop(pool.free_beside(Some(own), blocks[block], stream).expect("live")),
            }
        }
    };
    let all = recorded("tests/data/gpt-steps.trace.gz");
    let (model, all) = all.split_at(MODEL);
    play(model, 0, usize::MAX);
    let (mut made, mut by_heart) = (Vec::new(), None);
    for (number, step) in all.chunks(STEP).enumerate() {
        let before = pages(&pool);
        let (copied, backward) = (step[0].0, usize::from(how.backward));
        // the host is ahead by about a step
        device.queue(STREAM, STEP_TAKES);
        play(&step[..BACKWARD.start], 0, copied);
        play(&step[BACKWARD], backward, copied);
        play(&step[BACKWARD.end..], 0, copied);
        device.host(STEP_TAKES);
        made.push(pages(&pool) - before);
        if by_heart.is_none() && pool.is_replaying() {
            by_heart = Some(number);
        }
    }
    pool.validate();
    (made, by_heart)
}

/// All ways of it.
fn ways(copies: bool) -> impl Iterator<Item = How> {
    [(true, true), (true, false), (false, true), (false, false)]
        .into_iter()
        .map(move |(declared, backward)| How {
            declared,
            backward,
            copies,
        })
}

#[test]
fn steps_are_by_heart_soon_and_move_no_page() {
    for how in ways(false) {
        let (made, by_heart) = steps(how);
        assert!(made[8..].iter().all(|&made| made == 0), "{how:?}: {made:?}");
        let soon = by_heart.is_some_and(|number| number <= 10);
        assert!(soon, "{how:?}: by heart in step {by_heart:?}");
    }
}

/// The copying stream needs a few blocks, since what it frees is in use until the step is over. That is all that is called for.
#[test]
fn steps_are_by_heart_beside_a_stream_that_copies() {
    for how in ways(true) {
        let (made, by_heart) = steps(how);
        assert!(made[8..].iter().sum::<u64>() <= 4, "{how:?}: {made:?}");
        let soon = by_heart.is_some_and(|number| number <= 11);
        assert!(soon, "{how:?}: by heart in step {by_heart:?}");
    }
}

/// What was recorded from nothing to nothing, again and again, with blocks so many times as long: page calls of each time.
fn runs(path: &str, times: f64) -> Vec<u64> {
    let pool = Pool::new(crate::common::config(), Counting::new(true)).expect("a pool");
    let cache = cached::cache(&pool);
    let calls = recorded(path);
    let run = |_| {
        let (before, mut blocks) = (pages(&pool), BTreeMap::new());
        for &(block, bytes) in &calls {
            if let Some(bytes) = bytes {
                let bytes = (bytes as f64 * times) as u64;
                blocks.insert(block, cached::alloc(&pool, &cache, bytes).expect("memory"));
            } else if let Some(at) = blocks.remove(&block) {
                cached::free(&pool, &cache, at).expect("live");
            }
        }
        for (_, at) in blocks {
            cached::free(&pool, &cache, at).expect("live");
        }
        pages(&pool) - before
    };
    (0..5).map(run).collect()
}

/// They hold too much after the first or the second time, and shed that as soon as nothing is in use.
#[test]
fn runs_from_nothing_to_nothing_come_to_rest_soon() {
    let steps = [0.7, 1.0, 1.3, 1.7, 2.0].map(|times| ("tests/data/gpt-steps.trace.gz", times));
    for (path, times) in steps.into_iter().chain([("tests/data/crops.trace.gz", 1.7)]) {
        let made = runs(path, times);
        assert!(made[1] > 0 && made[3..] == [0; 2], "{path}, {times}: {made:?}");
    }
}
