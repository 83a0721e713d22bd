//! What a program that grows waits for: blocks of one size, some work between them, with memory made ahead of use and
//! without. The backend has no memory, but its calls take the time that they were measured to take on an H200
//! (docs/design.md, section 7), so that the worker and the program run side by side as they would there.
//!
//! `cargo bench --bench growth -- [--bytes N] [--ahead N]...`

use std::sync::Arc;
use std::time::{Duration, Instant};
use weir::backend::counting::Counting;
use weir::backend::{Backend, BackendError, Event};
use weir::base::units::{Addr, PageHandle, StreamHandle, StreamId, Timeline};
use weir::config::Config;
use weir::pool::Pool;

const MIB: u64 = 1 << 20;
const STREAM: StreamHandle = StreamHandle(1);
/// What is grown to.
const TOTAL: u64 = 4 << 30;
const RUNS: usize = 9;

/// A backend whose page calls take as long as a GPU's.
#[derive(Debug)]
struct Priced(Arc<Counting>);

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl Backend for Priced {
    fn name(&self) -> &'static str {
        "priced"
    }
    fn granularity(&self) -> u64 {
        self.0.granularity()
    }
    fn mapping_limit(&self) -> u64 {
        self.0.mapping_limit()
    }
    fn mappings_of_a_page(&self) -> usize {
        self.0.mappings_of_a_page()
    }
    fn usable(&self) -> bool {
        true
    }
    fn reserve(&self, bytes: u64) -> Result<Addr, BackendError> {
        self.0.reserve(bytes)
    }
    fn unreserve(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.0.unreserve(at, bytes)
    }
    fn create(&self, bytes: u64) -> Result<PageHandle, BackendError> {
        spin(Duration::from_nanos(7_000));
        self.0.create(bytes)
    }
    fn release(&self, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        self.0.release(page, bytes)
    }
    fn map(&self, at: Addr, page: PageHandle, bytes: u64) -> Result<(), BackendError> {
        spin(Duration::from_nanos(19_500));
        self.0.map(at, page, bytes)
    }
    fn unmap(&self, at: Addr, bytes: u64) -> Result<(), BackendError> {
        self.0.unmap(at, bytes)
    }
    fn timeline(&self, stream: StreamHandle) -> Result<Timeline, BackendError> {
        self.0.timeline(stream)
    }
    fn is_inert(&self, stream: StreamId) -> bool {
        self.0.is_inert(stream)
    }
    fn has_work(&self, stream: StreamHandle, line: Timeline) -> Option<bool> {
        self.0.has_work(stream, line)
    }
    fn record(&self, stream: StreamHandle) -> Result<Event, BackendError> {
        self.0.record(stream)
    }
    fn query(&self, event: Event) -> Result<bool, BackendError> {
        self.0.query(event)
    }
    fn wait(&self, stream: StreamHandle, event: Event) -> Result<(), BackendError> {
        self.0.wait(stream, event)
    }
    fn synchronize(&self, event: Event) -> Result<(), BackendError> {
        self.0.synchronize(event)
    }
    fn forget(&self, event: Event) {
        self.0.forget(event);
    }
    fn synchronize_all(&self) -> Result<(), BackendError> {
        self.0.synchronize_all()
    }
}

/// Mean, p50, p99, p99.9 and longest call of one run in ns, and misses.
fn run(bytes: u64, ahead: u64, work: Duration) -> [u64; 6] {
    let config = Config {
        growth_ahead: ahead,
        ..Config::default()
    };
    let pool = Pool::new(config, Arc::new(Priced(Counting::new(false)))).expect("a pool");
    let pool = Arc::new(pool);
    pool.employ();
    let mut times = Vec::new();
    for _ in 0..TOTAL / bytes {
        let start = Instant::now();
        pool.alloc(bytes, 0, STREAM).expect("memory");
        times.push(start.elapsed().as_nanos() as u64);
        spin(work);
    }
    let misses = pool.stats().expect("stats").misses;
    pool.end();
    let mean = times.iter().sum::<u64>() / times.len() as u64;
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    [mean, at(0.5), at(0.99), at(0.999), times[times.len() - 1], misses]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let given = |name: &str| -> Vec<u64> {
        let values = args.windows(2).filter(|pair| pair[0] == name);
        let values = values.map(|pair| pair[1].parse::<u64>().expect("bytes"));
        values.collect()
    };
    let bytes = given("--bytes").first().copied().unwrap_or(MIB);
    let aheads = match given("--ahead") {
        some if !some.is_empty() => some,
        _ => vec![0, 64 * MIB, 256 * MIB],
    };
    println!(
        "{} MiB in blocks of {bytes} B; ns a call, median of {RUNS} runs",
        TOTAL / MIB
    );
    println!("| work between, µs | ahead, MiB | mean | p50 | p99 | p99.9 | longest | misses |");
    println!("|---|---|---|---|---|---|---|---|");
    for work in [0, 5, 20] {
        for &ahead in &aheads {
            let mut runs: Vec<[u64; 6]> = (0..RUNS)
                .map(|_| run(bytes, ahead, Duration::from_micros(work)))
                .collect();
            let median = |column: usize, runs: &mut Vec<[u64; 6]>| {
                runs.sort_unstable_by_key(|run| run[column]);
                runs[RUNS / 2][column].to_string()
            };
            let cells: Vec<String> = (0..6).map(|column| median(column, &mut runs)).collect();
            println!("| {work} | {} | {} |", ahead / MIB, cells.join(" | "));
        }
    }
}
