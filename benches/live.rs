//! How the cost of a call grows with the number of live blocks: random replacement among N blocks, over the
//! counting backend, so that only the pool's own work is measured.
//!
//! `cargo bench --bench live -- [--rounds R] [--live N]`. Time grows with cache misses as well; instructions per pair,
//! which do not, are the difference that rounds make to `valgrind --tool=callgrind`.

use std::time::Instant;
use weir::backend::Backend;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAM: StreamHandle = StreamHandle(0);
const PAIRS: usize = 200_000;

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

/// The median over the rounds of nanoseconds per free and alloc.
fn churn(live: usize, low: u32, high: u32, count: usize) -> f64 {
    let backend: std::sync::Arc<dyn Backend> = Counting::new(false);
    let pool = Pool::new(Config::default(), backend).expect("a pool");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut blocks: Vec<Addr> = (0..live)
        .map(|_| pool.alloc(random.size(low, high), 0, STREAM).expect("memory"))
        .collect();
    let draws: Vec<(usize, u64)> = (0..PAIRS)
        .map(|_| (random.below(live as u64) as usize, random.size(low, high)))
        .collect();
    let mut rounds: Vec<f64> = (0..=count)
        .map(|_| {
            let start = Instant::now();
            for &(index, bytes) in &draws {
                pool.free(blocks[index], STREAM).expect("a live block");
                blocks[index] = pool.alloc(bytes, 0, STREAM).expect("memory");
            }
            start.elapsed().as_nanos() as f64 / PAIRS as f64
        })
        .skip(1)
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[count / 2]
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
        "{:>10} {:>22} {:>22}",
        "live", "256 B - 32 KiB, ns/pair", "32 KiB - 1 MiB, ns/pair"
    );
    for live in counts {
        let (small, medium) = (churn(live, 8, 15, rounds), churn(live, 15, 20, rounds));
        println!("{live:>10} {small:>22.1} {medium:>22.1}");
    }
}
