//! A pool that is kept nearly full: what its requests cost there, and how many fail.
//!
//! `cargo bench --bench pressure -- [--from SEED] [--to SEED] [--requests N] [--gib N] [--only LENGTHS]`
//!
//! Blocks of all lengths between two bounds (log-uniform) come, and ones chosen at random go, so that a share of the limit is in use
//! at any time; a request that fails is counted and left out. `turns` changes the bounds four times. The backend only
//! counts; page calls are priced as the design has them (section 7).

#[path = "../tests/common/random.rs"]
#[allow(dead_code)]
mod random;

use random::Random;
use std::sync::Arc;
use std::time::Instant;
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAM: StreamHandle = StreamHandle(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Shares of the limit in use, in thousandths.
const FULL: [u64; 4] = [800, 900, 950, 970];
/// Bounds of lengths, one after the other.
const MIXES: [(&str, &[(u64, u64)]); 5] = [
    ("64K-256M", &[(64 * KIB, 256 * MIB)]),
    ("1M-64M", &[(MIB, 64 * MIB)]),
    ("64M-512M", &[(64 * MIB, 512 * MIB)]),
    ("256K-8M", &[(256 * KIB, 8 * MIB)]),
    (
        "turns",
        &[
            (16 * MIB, 256 * MIB),
            (256 * KIB, 4 * MIB),
            (4 * MIB, 512 * MIB),
            (4 * KIB, 16 * MIB),
        ],
    ),
];

/// Log-uniform.
fn between(low: u64, high: u64, random: &mut Random) -> u64 {
    let part = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    (low as f64 * (high as f64 / low as f64).powf(part)) as u64
}

/// Failed requests in 100, page calls of each kind a request, what they cost and the processor's time, in us.
struct Outcome {
    failed: f64,
    creates: f64,
    releases: f64,
    maps: f64,
    unmaps: f64,
    calls: f64,
    own: f64,
}

fn run(limit: u64, full: u64, bounds: &[(u64, u64)], requests: usize, seed: u64) -> Outcome {
    let backend = Counting::new(false);
    let config = Config {
        max_bytes: limit,
        ..Config::default()
    };
    let pool = Pool::new(config, Arc::clone(&backend) as Arc<dyn Backend>).expect("a pool");
    let mut random = Random(seed);
    let mut blocks: Vec<(Addr, u64)> = Vec::new();
    let (mut live, mut failed) = (0, 0);
    let most = limit / 1000 * full;
    let begun = Instant::now();
    for request in 0..requests {
        let (low, high) = bounds[request * bounds.len() / requests];
        let bytes = between(low, high, &mut random);
        while live + bytes > most {
            let chosen = random.next() as usize % blocks.len();
            let (at, bytes) = blocks.swap_remove(chosen);
            pool.free(at, STREAM).expect("a live block");
            live -= bytes;
        }
        match pool.alloc(bytes, 0, STREAM) {
            Ok(at) => {
                blocks.push((at, bytes));
                live += bytes;
            }
            Err(_) => failed += 1,
        }
    }
    let each = |count: u64| count as f64 / requests as f64;
    let [creates, releases, maps, unmaps] =
        [Call::Create, Call::Release, Call::Map, Call::Unmap].map(|kind| each(backend.calls(kind)));
    Outcome {
        failed: 100.0 * each(failed),
        creates,
        releases,
        maps,
        unmaps,
        calls: creates * 7.0 + releases * 8.0 + maps * 19.5 + unmaps * 13.0,
        own: begun.elapsed().as_secs_f64() * 1e6 / requests as f64,
    }
}

fn main() {
    let mut options = [("--from", 1), ("--to", 3), ("--requests", 20_000), ("--gib", 8)];
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut only = None;
    while let Some(word) = words.next() {
        let value = words.next();
        if word == "--only" {
            only = value;
            continue;
        }
        let number = value.and_then(|number| number.parse().ok());
        match (options.iter_mut().find(|option| option.0 == word), number) {
            (Some(option), Some(number)) => option.1 = number,
            _ => panic!(
                "expected --only and lengths, or --from, --to, --requests or --gib and a number, not {word}"
            ),
        }
    }
    let [(_, from), (_, to), (_, requests), (_, gib)] = options;
    println!(
        "{gib} GiB, {requests} requests, seeds {from} to {to}. A request: failed in 100, page calls, their price and the processor's time in us"
    );
    println!(
        "{:<10} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}",
        "lengths", "full", "failed", "creates", "releases", "maps", "unmaps", "us calls", "us own"
    );
    for (name, bounds) in MIXES {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        for full in FULL {
            let outcomes: Vec<Outcome> = (from..=to)
                .map(|seed| run(gib << 30, full, bounds, requests as usize, seed))
                .collect();
            let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
            println!(
                "{name:<10} {:>6.3} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>9.2} {:>9.2}",
                full as f64 / 1000.0,
                mean(|outcome| outcome.failed),
                mean(|outcome| outcome.creates),
                mean(|outcome| outcome.releases),
                mean(|outcome| outcome.maps),
                mean(|outcome| outcome.unmaps),
                mean(|outcome| outcome.calls),
                mean(|outcome| outcome.own),
            );
        }
    }
}
