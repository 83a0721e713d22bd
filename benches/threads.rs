//! Threads that each make rounds of their own, on a stream of their own, at the same time: pages that move, events, and what is held.
//!
//! `cargo bench --bench threads -- [--from SEED] [--to SEED] [--rounds N] [--threads N] [--blocks N] [--replaced N] [--turn N] [--work
//! MICROSECONDS] [--undeclared]`. A round has so many blocks of 4 KiB to 256 MiB that come and go, or so many of 256 KiB to 4 MiB that are
//! `--replaced` in no order, 32 at a time, and at its end its thread waits for its stream. The threads make up to `--turn` calls at a time, whose turn is next is chance, and the same each time; `--work` is queued for each
//! block, in virtual time.

#[path = "../tests/common/device.rs"]
#[allow(dead_code)]
mod device;
#[path = "../tests/common/random.rs"]
#[allow(dead_code)]
mod random;
#[path = "../tests/common/threads.rs"]
#[allow(dead_code)]
mod threads;

use random::Random;
use threads::{Threads, replacement, round};
use weir::config::{Config, MemoryKind};

fn main() {
    let mut options = [
        ("--from", 1),
        ("--to", 4),
        ("--rounds", 400),
        ("--threads", 4),
        ("--blocks", 40),
        ("--replaced", 0),
        ("--turn", 8),
        ("--work", 0),
    ];
    let mut declared = true;
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        if word == "--undeclared" {
            declared = false;
            continue;
        }
        let number = words.next().and_then(|number| number.parse().ok());
        match (options.iter_mut().find(|option| option.0 == word), number) {
            (Some(option), Some(number)) => option.1 = number,
            _ => panic!(
                "expected --undeclared, or --from, --to, --rounds, --threads, --blocks, --replaced, --turn or --work and a number, not {word}"
            ),
        }
    }
    let [
        (_, from),
        (_, to),
        (_, rounds),
        (_, count),
        (_, blocks),
        (_, replaced),
        (_, turn),
        (_, work),
    ] = options;
    assert!(
        from <= to && rounds > 0 && count > 0 && blocks > 0 && turn > 0,
        "--from is at most --to, and --rounds, --threads, --blocks and --turn are 1 at least"
    );
    let what = match replaced {
        0 => format!("with {blocks} blocks"),
        _ => format!("of {replaced} blocks replaced"),
    };
    println!(
        "{count} threads of {rounds} rounds {what}, up to {turn} calls at a time, {work} us of work for each block, declared: {declared}"
    );
    println!(
        "page calls of each tenth, event calls of the last, requests that found nothing in it and all, MiB: most in use, needed apart, held; their most"
    );
    for seed in from..=to {
        let config = Config {
            memory: MemoryKind::Host,
            declared_streams: declared,
            ..Config::default()
        };
        let mut threads = Threads::new(config, turn, work * 1000, seed);
        for thread in 0..count {
            let mut random = Random(seed * 1000 + thread);
            threads.add(match replaced {
                0 => round(blocks as usize, 16, &mut random),
                _ => replacement(32, replaced as usize, 256 << 10..4 << 20, &mut random),
            });
        }
        let calls: usize = threads.workers.iter().map(|worker| worker.calls.len()).sum();
        let (mut tenths, mut last) = (Vec::new(), [0; 3]);
        for _ in 0..10 {
            let (pages, before) = (threads.page_calls(), threads.pool.stats().expect("stats"));
            threads.run(calls * rounds as usize / 10);
            let after = threads.pool.stats().expect("stats");
            tenths.push(threads.page_calls() - pages);
            last = [
                after.event_calls - before.event_calls,
                after.misses - before.misses,
                after.allocations - before.allocations,
            ];
        }
        threads.pool.validate();
        let stats = threads.pool.stats().expect("stats");
        let mib = [threads.peak, threads.apart(), stats.reserved, stats.reserved_peak];
        println!("{seed:>4} {tenths:?} {last:?} {:?}", mib.map(|bytes| bytes >> 20));
    }
}
