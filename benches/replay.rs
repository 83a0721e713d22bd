//! Replays recorded traces through a pool over the counting backend, or (`--host`) over host memory with a real
//! stream for each of the trace's: what the pool itself costs, how much
//! it holds, and what its page calls would cost on a GPU.
//!
//! `cargo bench --bench replay -- [--capacity X] [--replays N] [--check] [--host] [--slack S] [--one-page]
//! [--with-addresses] FILE.trace.gz...`; with `--one-page` every block lies in one page, with `--with-addresses`
//! memory comes with its address.

use flate2::read::GzDecoder;
use std::io::Read;
use std::time::Instant;
use weir::backend::Backend;
use weir::backend::counting::Counting;
use weir::backend::host::{HostBackend, streams};
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::observe::stats::Stats;
use weir::pool::{Pool, ThreadCache};

enum Op {
    Alloc(u32, u64, usize),
    Free(u32, usize),
}

struct Trace {
    name: String,
    ops: Vec<Op>,
    ids: usize,
    peak: u64,
}

fn load(path: &str) -> Trace {
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

/// A stream, and this thread's cache for it.
struct Stream(StreamHandle, Option<ThreadCache>);

impl Stream {
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

/// One replay, everything freed at its end: nanoseconds per event, and how many requests failed.
fn replay(pool: &Pool, trace: &Trace, named: &[Stream], check: bool) -> (f64, u64) {
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
        if check {
            pool.validate();
        }
    }
    let nanos = start.elapsed().as_nanos() as f64 / trace.ops.len() as f64;
    for (at, stream) in blocks {
        if at.0 != 0 {
            named[stream].free(pool, at);
        }
    }
    (nanos, failed)
}

/// Milliseconds of page calls at the prices measured on an H200 (docs/design.md).
fn priced(now: &Stats, before: &Stats, with_addresses: bool) -> f64 {
    let (create, release) = if with_addresses { (28.0, 28.0) } else { (7.0, 8.0) };
    let micros = create * (now.page_creates - before.page_creates) as f64
        + 19.5 * (now.maps - before.maps) as f64
        + 13.0 * (now.unmaps - before.unmaps) as f64
        + release * (now.page_releases - before.page_releases) as f64;
    micros / 1000.0
}

fn main() {
    let (mut capacity, mut replays, mut check, mut files, mut host) = (None, 5, false, Vec::new(), false);
    let mut with_addresses = false;
    let mut config = Config::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--capacity" => capacity = Some(value().parse::<f64>().expect("a factor")),
            "--replays" => replays = value().parse().expect("a number"),
            "--slack" => config.slack = value().parse().expect("a share"),
            "--check" => check = true,
            "--host" => host = true,
            "--no-caches" => config.thread_caches = false,
            "--one-page" => config.blocks_in_one_page = true,
            "--with-addresses" => with_addresses = true,
            "--bench" => {}
            _ => files.push(arg),
        }
    }
    println!(
        "{:<22} {:>2} {:>8} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6}",
        "trace",
        "n",
        "ns/event",
        "live MiB",
        "held MiB",
        "ratio",
        "misses",
        "creates",
        "maps",
        "unmaps",
        "moved",
        "price ms",
        "failed"
    );
    for path in &files {
        let trace = load(path);
        let backend: std::sync::Arc<dyn Backend> = if host {
            HostBackend::new().expect("host memory")
        } else if with_addresses {
            Counting::with_addresses(check)
        } else {
            Counting::new(check)
        };
        let named: Vec<StreamHandle> = (0..8)
            .map(|number| {
                if host {
                    streams::create().expect("a stream")
                } else {
                    StreamHandle(number)
                }
            })
            .collect();
        let mut config = config.clone();
        config.max_bytes = capacity.map_or(0, |factor| (trace.peak as f64 * factor) as u64);
        let pool = Pool::new(config, backend).expect("a pool");
        let named: Vec<Stream> = named
            .into_iter()
            .map(|name| Stream(name, pool.open_cache(name)))
            .collect();
        let mut before = Stats::default();
        for number in 1..=replays {
            let (nanos, failed) = replay(&pool, &trace, &named, check);
            let now = pool.stats().expect("stats");
            println!(
                "{:<22} {:>2} {:>8.1} {:>9.1} {:>9.1} {:>7.4} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8.2} {:>6}",
                trace.name,
                number,
                nanos,
                trace.peak as f64 / 1048576.0,
                now.reserved_peak as f64 / 1048576.0,
                now.reserved_peak as f64 / trace.peak as f64,
                now.misses - before.misses,
                now.page_creates - before.page_creates,
                now.maps - before.maps,
                now.unmaps - before.unmaps,
                now.pages_moved - before.pages_moved,
                priced(&now, &before, with_addresses),
                failed
            );
            before = now;
        }
    }
}
