//! How the cost of a call grows with the number of live blocks, over the counting backend, so that only the pool's own
//! work is measured.
//!
//! `cargo bench --bench live -- [--replays R] [--rounds R] [--live N] [FILE.trace.gz...]`; 0 replays, or 0 rounds, leave
//! that part out.
//!
//! *Replay*: recorded traces, those in `traces/` if none is named, run in a pool that has N standing blocks of 256 B to
//! 1 MiB, whose free memory has been scattered by replacing them at random.
//!
//! *Churn*: random replacement among N blocks, where no call has to do with the one before: the harshest. The pairs are
//! timed in batches: the addresses of the blocks that a batch frees are read from the program's own table of N addresses
//! before the clock starts, and those of its new blocks are written to it after the clock has stopped, so that what
//! the program's table costs is not taken for the pool's. Everything the pool keeps is as cold as N makes it.
//!
//! Instructions: `valgrind --tool=callgrind --toggle-collect='*trace::replay*'`, or `'*replace*'`, divided by events.

mod trace;

use std::time::{Duration, Instant};
use trace::{Stream, Trace, load, replay};
use weir::backend::Backend;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAM: StreamHandle = StreamHandle(0);
const PAIRS: usize = 200_000;
const BATCH: usize = 100;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// How often every block is replaced, on average, before the rounds that count.
const TURNS: usize = 2;

/// Marsaglia's xorshift: the sizes and places must be the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// Log-uniform.
    fn size(&mut self, low: u32, high: u32) -> u64 {
        let octave = low + self.below(u64::from(high - low)) as u32;
        (1 << octave) + self.below(1 << octave)
    }
}

/// The blocks to replace, and the sizes of the new ones; those of a batch are different blocks.
fn draw(random: &mut Random, live: usize, low: u32, high: u32) -> Vec<(usize, u64)> {
    let mut drawn_in = vec![usize::MAX; live];
    (0..PAIRS)
        .map(|pair| {
            let index = loop {
                let index = random.below(live as u64) as usize;
                if std::mem::replace(&mut drawn_in[index], pair / BATCH) != pair / BATCH {
                    break index;
                }
            };
            (index, random.size(low, high))
        })
        .collect()
}

/// Replaces the drawn blocks. Nanoseconds per free and alloc.
#[inline(never)]
fn replace(pool: &Pool, blocks: &mut [Addr], draws: &[(usize, u64)]) -> f64 {
    let mut batch = [(Addr(0), 0); BATCH];
    let mut spent = Duration::ZERO;
    for drawn in draws.chunks(BATCH) {
        for (pair, &(index, bytes)) in batch.iter_mut().zip(drawn) {
            *pair = (blocks[index], bytes);
        }
        let start = Instant::now();
        for (at, bytes) in &mut batch {
            pool.free(*at, STREAM).expect("a live block");
            *at = pool.alloc(*bytes, 0, STREAM).expect("memory");
        }
        spent += start.elapsed();
        for (pair, &(index, _)) in batch.iter().zip(drawn) {
            blocks[index] = pair.0;
        }
    }
    spent.as_nanos() as f64 / draws.len() as f64
}

/// A pool with live blocks of random sizes, its free memory scattered as it will stay.
fn settled(random: &mut Random, live: usize, low: u32, high: u32) -> (Pool, Vec<Addr>) {
    let backend: std::sync::Arc<dyn Backend> = Counting::new(false);
    let pool = Pool::new(Config::default(), backend).expect("a pool");
    let mut blocks: Vec<Addr> = (0..live)
        .map(|_| pool.alloc(random.size(low, high), 0, STREAM).expect("memory"))
        .collect();
    for _ in 0..(TURNS * live).div_ceil(PAIRS) {
        replace(&pool, &mut blocks, &draw(random, live, low, high));
    }
    (pool, blocks)
}

/// Nanoseconds per free and alloc: the median over the rounds, and the best.
fn churn(live: usize, low: u32, high: u32, count: usize) -> (f64, f64) {
    let mut random = Random(SEED);
    let (pool, mut blocks) = settled(&mut random, live, low, high);
    let mut rounds: Vec<f64> = (0..count)
        .map(|_| replace(&pool, &mut blocks, &draw(&mut random, live, low, high)))
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[count / 2], rounds[0])
}

/// Nanoseconds per event of the best of some replays beside standing blocks, each trace in a pool of its own.
fn beside(live: usize, traces: &[Trace], replays: usize) -> Vec<f64> {
    let each = traces.iter().map(|trace| {
        let (pool, blocks) = settled(&mut Random(SEED), live, 8, 20);
        let stream = |name| Stream::of(&pool, StreamHandle(name));
        let streams: Vec<Stream> = (0..trace.streams).map(stream).collect();
        let nanos = (0..replays).map(|_| {
            let (nanos, failed) = replay(&pool, trace, &streams, || ());
            assert_eq!(failed, 0, "requests of {} failed", trace.name);
            nanos
        });
        let best = nanos.fold(f64::INFINITY, f64::min);
        for at in blocks {
            pool.free(at, STREAM).expect("a live block");
        }
        assert_eq!(pool.stats().expect("stats").used, 0);
        best
    });
    each.collect()
}

fn main() {
    let (mut rounds, mut replays) = (5, 30);
    let (mut counts, mut files) = (vec![1_000, 10_000, 100_000, 1_000_000], Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number");
        match arg.as_str() {
            "--rounds" => rounds = number(),
            "--replays" => replays = number(),
            "--live" => counts = vec![number()],
            "--bench" => {}
            _ => files.push(arg),
        }
    }
    if files.is_empty() {
        let names = ["gpt-train-fixed", "prefetch-streams", "resnet-varsize"];
        let root = env!("CARGO_MANIFEST_DIR");
        files.extend(names.map(|name| format!("{root}/traces/{name}.trace.gz")));
    }
    if replays > 0 {
        tell_replays(&counts, &files, replays);
    }
    if rounds > 0 {
        tell_churn(&counts, rounds);
    }
}

fn tell_replays(counts: &[usize], files: &[String], replays: usize) {
    let traces: Vec<Trace> = files.iter().map(|file| load(file)).collect();
    println!("replay: ns/event (times the first); the last column: how much log n has grown");
    for trace in &traces {
        println!(
            "  {}: up to {:.1} MiB live",
            trace.name,
            trace.peak as f64 / 1048576.0
        );
    }
    print!("{:>10}", "live");
    for trace in &traces {
        print!(" {:>22}", trace.name);
    }
    println!(" {:>6}", "log n");
    let mut first = Vec::new();
    for &live in counts {
        let nanos = beside(live, &traces, replays);
        if first.is_empty() {
            first = nanos.clone();
        }
        print!("{live:>10}");
        for (now, first) in nanos.iter().zip(&first) {
            print!(" {now:>14.1} {:>7}", format!("({:.2})", now / first));
        }
        println!(" {:>6.2}", (live as f64).ln() / (counts[0] as f64).ln());
    }
}

fn tell_churn(counts: &[usize], rounds: usize) {
    println!("churn: ns/pair, median (best)");
    println!("{:>10} {:>22} {:>22}", "live", "256 B - 32 KiB", "32 KiB - 1 MiB");
    for &live in counts {
        let (small, medium) = (churn(live, 8, 15, rounds), churn(live, 15, 20, rounds));
        println!(
            "{live:>10} {:>12.1} {:>9} {:>12.1} {:>9}",
            small.0,
            format!("({:.1})", small.1),
            medium.0,
            format!("({:.1})", medium.1)
        );
    }
}
