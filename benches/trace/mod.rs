//! Recorded traces, and their replay through a pool.

#[allow(dead_code)] // not every program uses it
pub mod late;

use flate2::read::GzDecoder;
use std::io::Read;
use std::time::Instant;
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::pool::{Pool, ThreadCache};

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
    /// Streams, which have the numbers from 0 on.
    pub streams: usize,
}

/// Reads a trace.
pub fn load(path: &str) -> Trace {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let (mut ops, mut sizes, mut live, mut peak) = (Vec::new(), Vec::new(), 0u64, 0);
    let mut streams = 0;
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next();
        let mut number = || words.next().expect("a number").parse::<u64>().expect("a number");
        if kind == Some("a") {
            let (id, bytes, stream) = (number(), number(), number());
            streams = streams.max(stream as usize + 1);
            ops.push(Op::Alloc(id as u32, bytes, stream as usize));
            sizes.push(bytes);
            live += bytes;
            peak = peak.max(live);
        } else {
            let (id, stream) = (number(), number());
            live -= sizes[id as usize];
            streams = streams.max(stream as usize + 1);
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
        streams,
    }
}

/// A stream, and this thread's cache for it.
pub struct Stream(StreamHandle, Option<ThreadCache>);

impl Stream {
    /// The stream of that name, with a cache if the pool has caches.
    pub fn of(pool: &Pool, name: StreamHandle) -> Stream {
        Stream(name, pool.open_cache(name))
    }

    fn alloc(&self, pool: &Pool, bytes: u64) -> Result<Addr, Error> {
        let cache = self.1.as_ref();
        match cache.and_then(|cache| cache.alloc(bytes, 0)) {
            Some(at) => Ok(at),
            None => pool.alloc_beside(cache, bytes, 0, self.0),
        }
    }

    fn free(&self, pool: &Pool, at: Addr) {
        let cache = self.1.as_ref();
        if cache.and_then(|cache| cache.free(at)).is_none() {
            pool.free_beside(cache, at, self.0).expect("a live block");
        }
    }
}

/// One replay, everything freed at its end: nanoseconds per event, and how many requests failed. `after` is called after
/// each event. Never inlined, so that a profiler can be told to look at replays alone.
#[inline(never)]
pub fn replay(pool: &Pool, trace: &Trace, named: &[Stream], after: impl Fn()) -> (f64, u64) {
    let mut blocks = vec![(Addr(0), 0usize); trace.ids];
    let mut failed = 0;
    let start = Instant::now();
    for op in &trace.ops {
        match *op {
            Op::Alloc(id, bytes, stream) => match named[stream].alloc(pool, bytes) {
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
                    named[stream].free(pool, at);
                }
            }
        }
        after();
    }
    let nanos = start.elapsed().as_nanos() as f64 / trace.ops.len() as f64;
    for (at, stream) in blocks {
        if at.0 != 0 {
            named[stream].free(pool, at);
        }
    }
    (nanos, failed)
}
