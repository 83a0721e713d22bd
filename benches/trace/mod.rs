//! Recorded traces, and their replay through a pool.

use flate2::read::GzDecoder;
use std::io::Read;
use std::time::Instant;
use weir::base::units::{Addr, StreamHandle};
use weir::pool::Pool;

enum Op {
    Alloc(u32, u64, usize),
    Free(u32, usize),
}

/// A recorded trace.
pub struct Trace {
    /// The file's name without its ending.
    pub name: String,
    ops: Vec<Op>,
    ids: usize,
    /// The most bytes that were live at once.
    pub peak: u64,
}

/// Reads a trace.
pub fn load(path: &str) -> Trace {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let (mut ops, mut sizes, mut live, mut peak) = (Vec::new(), Vec::new(), 0u64, 0);
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next();
        let mut number = || words.next().expect("a number").parse::<u64>().expect("a number");
        if kind == Some("a") {
            let (id, bytes, stream) = (number(), number(), number());
            ops.push(Op::Alloc(id as u32, bytes, stream as usize));
            sizes.push(bytes);
            live += bytes;
            peak = peak.max(live);
        } else {
            let (id, stream) = (number(), number());
            live -= sizes[id as usize];
            ops.push(Op::Free(id as u32, stream as usize));
        }
    }
    let name = path
        .rsplit('/')
        .next()
        .unwrap_or(path)
        .split('.')
        .next()
        .unwrap_or(path)
        .to_string();
    Trace {
        name,
        ops,
        ids: sizes.len(),
        peak,
    }
}

/// One replay, everything freed at its end: nanoseconds per event, and how many requests failed. `after` is called after
/// each event. Never inlined, so that a profiler can be told to look at replays alone.
#[inline(never)]
pub fn replay(pool: &Pool, trace: &Trace, named: &[StreamHandle], after: impl Fn()) -> (f64, u64) {
    let mut blocks = vec![(Addr(0), 0usize); trace.ids];
    let mut failed = 0;
    let start = Instant::now();
    for op in &trace.ops {
        match *op {
            Op::Alloc(id, bytes, stream) => match pool.alloc(bytes, 0, named[stream]) {
                Ok(at) => blocks[id as usize] = (at, stream),
                Err(error) => {
                    if failed == 0 {
                        eprintln!("{error}");
                    }
                    failed += 1;
                }
            },
            Op::Free(id, stream) => {
                let at = std::mem::take(&mut blocks[id as usize].0);
                if at.0 != 0 {
                    pool.free(at, named[stream]).expect("a live block");
                }
            }
        }
        after();
    }
    let nanos = start.elapsed().as_nanos() as f64 / trace.ops.len() as f64;
    for (at, stream) in blocks {
        if at.0 != 0 {
            pool.free(at, named[stream]).expect("a live block");
        }
    }
    (nanos, failed)
}
