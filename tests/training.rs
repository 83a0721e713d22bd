//! The calls of a training step as PyTorch made them: from step to step the same, with weights that last, gradients that are kept until the
//! next forward pass and a result that is kept until the next one is there. They are known by heart after some steps.
//!
//! `data/gpt-steps.trace.gz`: 16 steps of `scripts/gpu-clients.py`'s model with 512 words each time, weir in the place of PyTorch's own
//! allocator (PyTorch 2.11, one H100, 2026-11-25). 156 calls make the model, then come 842 a step; from the 206th to the 687th they are those
//! of the thread of the backward pass.

mod common;

use flate2::read::GzDecoder;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::thread;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const STREAM: StreamHandle = StreamHandle(0);
const MODEL: usize = 156;
const STEP: usize = 842;
const BACKWARD: Range<usize> = 205..687;

/// A block, and its bytes where it is allocated.
type Call = (usize, Option<u64>);

fn calls() -> Vec<Call> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gpt-steps.trace.gz");
    let mut text = String::new();
    let file = File::open(path).expect("the trace");
    GzDecoder::new(file).read_to_string(&mut text).expect("text");
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).expect("a number");
    let call = |line: &str| {
        let mut words = line.split(' ');
        let alloc = words.next() == Some("a");
        let block = number(words.next()) as usize;
        (block, alloc.then(|| number(words.next())))
    };
    text.lines().map(call).collect()
}

/// Page calls of each step, and the first one that ended by heart. The cache is that of the thread whose call it is.
fn steps(declared_streams: bool, backward: bool) -> (Vec<u64>, Option<usize>) {
    let config = Config {
        declared_streams,
        ..common::config()
    };
    let pool = Pool::new(config, Counting::new(true)).expect("a pool");
    let open = |other: bool| match other {
        true => thread::scope(|scope| scope.spawn(|| pool.open_cache(STREAM)).join()).expect("no panic"),
        false => pool.open_cache(STREAM),
    };
    let mut caches: [Option<ThreadCache>; 2] = [None, None];
    let mut blocks = Vec::new();
    let mut play = |calls: &[Call], of: usize| {
        let own = caches[of].get_or_insert_with(|| open(of == 1).expect("a cache"));
        for &(block, bytes) in calls {
            blocks.resize(blocks.len().max(block + 1), Addr(0));
            match bytes {
                Some(bytes) => {
                    let kept = own.alloc(bytes, 0);
                    blocks[block] = kept
                        .unwrap_or_else(|| pool.alloc_beside(Some(own), bytes, 0, STREAM).expect("memory"));
                }
                None if own.free(blocks[block]).is_some() => {}
                None => drop(pool.free_beside(Some(own), blocks[block], STREAM).expect("live")),
            }
        }
    };
    let pages = || {
        let stats = pool.stats().expect("stats");
        stats.maps + stats.unmaps + stats.page_creates + stats.page_releases
    };
    let all = calls();
    let (model, all) = all.split_at(MODEL);
    play(model, 0);
    let (mut made, mut by_heart) = (Vec::new(), None);
    for (number, step) in all.chunks(STEP).enumerate() {
        let before = pages();
        play(&step[..BACKWARD.start], 0);
        play(&step[BACKWARD], usize::from(backward));
        play(&step[BACKWARD.end..], 0);
        made.push(pages() - before);
        if by_heart.is_none() && pool.is_replaying() {
            by_heart = Some(number);
        }
    }
    pool.validate();
    (made, by_heart)
}

#[test]
fn steps_are_by_heart_soon_and_move_no_page() {
    for declared in [true, false] {
        for backward in [true, false] {
            let (made, by_heart) = steps(declared, backward);
            assert!(
                made[8..].iter().all(|&made| made == 0),
                "{declared} {backward}: {made:?}"
            );
            let soon = by_heart.is_some_and(|number| number <= 10);
            assert!(soon, "{declared} {backward}: by heart in step {by_heart:?}");
        }
    }
}
