//! What a pool knows of addresses does not grow with the addresses that it has used.
//!
//! One test, since it looks at the memory of the whole process.

mod common;
#[path = "../benches/trace/mod.rs"]
#[allow(dead_code)] // the benchmark uses more of it
mod trace;

use common::random::Random;
use common::{K, M, limited};
use std::fs;
use trace::late::Late;
use weir::backend::counting::Counting;
use weir::base::units::StreamHandle;
use weir::pool::Pool;

/// MiB of memory that the process has, of pages of 4 KiB.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("a proc file system");
    let pages = text.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.expect("a number") / 256
}

/// Three streams replace blocks in no order, some of them slabs', near the pool's limit: pages move again and again, to addresses that
/// are new, and old ones are unmapped.
#[test]
fn addresses_that_are_unmapped_are_forgotten() {
    let pool = Pool::new(limited(256 * M), Late::new(Counting::new(true), 0)).expect("a pool");
    let mut random = Random(1);
    let mut blocks = vec![None; 66];
    let mut replace = |count| {
        for _ in 0..count {
            let block = &mut blocks[random.below(66) as usize];
            if let Some((at, stream)) = block.take() {
                pool.free(at, stream).expect("a live block");
            }
            let stream = StreamHandle(1 + random.below(3) as usize);
            let bytes = match random.one_in(16) {
                true => 256 + random.below(32 * K),
                false => 4 * K + random.below(7 * M),
            };
            *block = pool.alloc(bytes, 0, stream).ok().map(|at| (at, stream));
        }
        pool.validate();
        resident()
    };
    let (first, last) = (replace(100_000), replace(400_000));
    assert!(last <= first + 8, "{first} MiB, and then {last}");
}
