//! How the cost of a call grows with the number of live blocks: random replacement among N blocks, over the
//! counting backend, so that only the pool's own work is measured.
//!
//! `cargo bench --bench live -- [--rounds R] [--live N]`. The pairs are timed in batches: the addresses of the blocks
//! that a batch frees are read from the program's own table of N addresses before the clock starts, and those of
//! its new blocks are written to it after the clock has stopped, so that what the program's table costs is not
//! taken for the pool's. Everything the pool keeps is as cold as N makes it. Instructions per pair are the difference
//! that rounds make to `valgrind --tool=callgrind`.

use std::time::{Duration, Instant};
use weir::backend::Backend;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAM: StreamHandle = StreamHandle(0);
const PAIRS: usize = 200_000;
const BATCH: usize = 100;
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

/// Nanoseconds per free and alloc: the median over the rounds, and the best.
fn churn(live: usize, low: u32, high: u32, count: usize) -> (f64, f64) {
    let backend: std::sync::Arc<dyn Backend> = Counting::new(false);
    let pool = Pool::new(Config::default(), backend).expect("a pool");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut blocks: Vec<Addr> = (0..live)
        .map(|_| pool.alloc(random.size(low, high), 0, STREAM).expect("memory"))
        .collect();
    // until free memory is scattered as it will stay
    let settle = (TURNS * live).div_ceil(PAIRS);
    let mut rounds: Vec<f64> = (0..settle + count)
        .map(|_| replace(&pool, &mut blocks, &draw(&mut random, live, low, high)))
        .skip(settle)
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[count / 2], rounds[0])
}

fn main() {
    let (mut rounds, mut counts) = (5, vec![1_000, 10_000, 100_000, 1_000_000]);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok()).expect("a number");
        match arg.as_str() {
            "--rounds" => rounds = number(),
            "--live" => counts = vec![number()],
            _ => {}
        }
    }
    println!(
        "{:>10} {:>32} {:>32}",
        "live", "256 B - 32 KiB, ns/pair (best)", "32 KiB - 1 MiB, ns/pair (best)"
    );
    for live in counts {
        let (small, medium) = (churn(live, 8, 15, rounds), churn(live, 15, 20, rounds));
        println!(
            "{live:>10} {:>22.1} {:>9} {:>22.1} {:>9}",
            small.0,
            format!("({:.1})", small.1),
            medium.0,
            format!("({:.1})", medium.1)
        );
    }
}
