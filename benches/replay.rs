//! Replays recorded traces through a pool over the counting backend, or (`--host`) over host memory with a real
//! stream for each of the trace's: what the pool itself costs, how much
//! it holds, and what its page calls would cost on a GPU. *Kept* are the mappings there are after the replay.
//!
//! `cargo bench --bench replay -- [--capacity X] [--replays N] [--check] [--host] [--slack S] [--one-page]
//! [--with-addresses] [--late MICROSECONDS] [--declared] [--synchronize] FILE.trace.gz...`; with `--one-page` every block lies in one page, with
//! `--with-addresses` memory comes with its address, with `--late` events are complete so long after they were recorded,
//! and with `--synchronize` the host waits for the device after each replay.

mod trace;

use trace::late::Late;
use trace::{Stream, load, replay};
use weir::backend::Backend;
use weir::backend::call::Call;
use weir::backend::counting::Counting;
use weir::backend::host::{HostBackend, streams};
use weir::base::units::StreamHandle;
use weir::config::Config;
use weir::observe::stats::Stats;
use weir::pool::Pool;

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
    let (mut with_addresses, mut late, mut synchronize) = (false, None, false);
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
            "--late" => late = Some(value().parse::<f64>().expect("microseconds")),
            "--synchronize" => synchronize = true,
            "--declared" => config.declared_streams = true,
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
        "creates",
        "maps",
        "unmaps",
        "kept",
        "moved",
        "price ms",
        "failed"
    );
    for path in &files {
        let trace = load(path);
        let slow = late.map(|micros| Late::new(Counting::new(check), (micros * 1000.0) as u64));
        let backend: std::sync::Arc<dyn Backend> = if let Some(slow) = &slow {
            slow.clone()
        } else if host {
            HostBackend::new().expect("host memory")
        } else if with_addresses {
            Counting::with_addresses(check)
        } else {
            Counting::new(check)
        };
        let named: Vec<StreamHandle> = (0..trace.streams)
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
        let named: Vec<Stream> = named.iter().map(|&name| Stream::of(&pool, name)).collect();
        let mut before = Stats::default();
        let mut events_before = [0; 3];
        for number in 1..=replays {
            let after = || {
                if check {
                    pool.validate();
                }
            };
            let (nanos, failed) = replay(&pool, &trace, &named, after);
            if synchronize {
                pool.synchronized(pool.mark_all());
            }
            let now = pool.stats().expect("stats");
            println!(
                "{:<22} {:>2} {:>8.1} {:>9.1} {:>9.1} {:>7.4} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8.2} {:>6}",
                trace.name,
                number,
                nanos,
                trace.peak as f64 / 1048576.0,
                now.reserved_peak as f64 / 1048576.0,
                now.reserved_peak as f64 / trace.peak as f64,
                now.page_creates - before.page_creates,
                now.maps - before.maps,
                now.unmaps - before.unmaps,
                now.maps - now.unmaps,
                now.pages_moved - before.pages_moved,
                priced(&now, &before, with_addresses),
                failed
            );
            if let Some(slow) = &slow {
                let events = [Call::Record, Call::Query, Call::Wait].map(|call| slow.calls(call));
                let since = |kind: usize| events[kind] - events_before[kind];
                println!(
                    "{:25} records {}, queries {}, waits {}, calls {}, misses {}",
                    "",
                    since(0),
                    since(1),
                    since(2),
                    now.driver_calls - before.driver_calls,
                    now.misses - before.misses
                );
                events_before = events;
            }
            before = now;
        }
    }
}
