//! What single calls of a pool cost: hits, misses, batches. The backend only counts, so that it is the pool's own work.
//! Replacement among many live blocks is in `live.rs`, whole traces are in `replay.rs`.
//!
//! `cargo bench --bench calls -- [--sample-count N] [NAME...]`

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use std::sync::Arc;
use weir::backend::Backend;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const STREAM: StreamHandle = StreamHandle(1);
const OTHER: StreamHandle = StreamHandle(2);
const BATCH: usize = 64;

fn main() {
    divan::main();
}

fn pool(config: Config) -> Pool {
    let backend: Arc<dyn Backend> = Counting::new(false);
    Pool::new(config, backend).expect("a pool")
}

fn alloc(pool: &Pool, bytes: u64, stream: StreamHandle) -> Addr {
    pool.alloc(black_box(bytes), 0, stream).expect("memory")
}

fn free(pool: &Pool, at: Addr, stream: StreamHandle) {
    pool.free(black_box(at), stream).expect("a live block");
}

/// A block that is free already, of each kind: of a slab, an extent, many pages.
#[divan::bench(sample_size = 1000, args = [256, 4 * KIB, 64 * KIB, MIB, 256 * MIB])]
fn hit(bencher: Bencher, bytes: u64) {
    let pool = pool(Config::default());
    let keep = alloc(&pool, bytes, STREAM);
    bencher.bench_local(|| {
        let at = alloc(&pool, bytes, STREAM);
        free(&pool, at, STREAM);
    });
    free(&pool, keep, STREAM);
}

/// The same from several threads at once, all on one stream.
#[divan::bench(sample_size = 1000, args = [4 * KIB, MIB], threads = [1, 2, 4, 8])]
fn hit_by_threads(bencher: Bencher, bytes: u64) {
    let pool = pool(Config::default());
    bencher.bench(|| {
        let at = alloc(&pool, bytes, STREAM);
        free(&pool, at, STREAM);
    });
}

/// A block that another stream freed.
#[divan::bench(sample_size = 1000, args = [4 * KIB, MIB])]
fn hit_across_streams(bencher: Bencher, bytes: u64) {
    let pool = pool(Config::default());
    bencher.bench_local(|| {
        let at = alloc(&pool, bytes, STREAM);
        free(&pool, at, OTHER);
    });
}

/// The first block of a pool: pages are created.
#[divan::bench(args = [4 * KIB, MIB, 256 * MIB])]
fn miss_that_grows(bencher: Bencher, bytes: u64) {
    bencher
        .with_inputs(|| pool(Config::default()))
        .bench_local_values(|pool| {
            alloc(&pool, bytes, STREAM);
            pool // which ends outside of the measured time
        });
}

/// A block for which there is no room in one place: the pages of sixteen free blocks, each between two that are live,
/// are moved together.
#[divan::bench]
fn miss_that_moves_pages(bencher: Bencher) {
    let scattered = || {
        let pool = pool(Config {
            max_bytes: 32 * 16 * MIB,
            ..Config::default()
        });
        let blocks: Vec<Addr> = (0..32).map(|_| alloc(&pool, 16 * MIB, STREAM)).collect();
        for &at in blocks.iter().step_by(2) {
            free(&pool, at, STREAM);
        }
        pool
    };
    let gather = |pool: Pool| {
        alloc(&pool, 16 * 16 * MIB, STREAM);
        pool
    };
    assert!(gather(scattered()).stats().expect("stats").pages_moved > 0);
    bencher.with_inputs(scattered).bench_local_values(gather);
}

/// As many blocks by single calls as the next one has in a batch.
#[divan::bench(sample_size = 20, args = [4 * KIB, MIB])]
fn single_calls(bencher: Bencher, bytes: u64) {
    let pool = pool(Config::default());
    let mut blocks = [Addr(0); BATCH];
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for at in &mut blocks {
            *at = alloc(&pool, bytes, STREAM);
        }
        for &at in &blocks {
            free(&pool, at, STREAM);
        }
    });
}

#[divan::bench(sample_size = 20, args = [4 * KIB, MIB])]
fn batch(bencher: Bencher, bytes: u64) {
    let pool = pool(Config::default());
    let sizes = [bytes; BATCH];
    let mut blocks = [Addr(0); BATCH];
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        pool.alloc_batch(black_box(&sizes), STREAM, &mut blocks)
            .expect("memory");
        pool.free_batch(&blocks, STREAM).expect("live blocks");
    });
}

#[divan::bench]
fn stats(bencher: Bencher) {
    let pool = pool(Config::default());
    alloc(&pool, MIB, STREAM);
    bencher.bench_local(|| pool.stats().expect("stats"));
}
