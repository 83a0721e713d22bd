//! How large pages are, by what became of the blocks so far.

use crate::common::sim::{FIRST_STREAM, Sim};
use crate::common::{K, M, config};
use std::sync::Arc;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::Pool;

const STREAM: StreamHandle = StreamHandle(FIRST_STREAM);
const OTHER: StreamHandle = StreamHandle(FIRST_STREAM + 1);

struct Rig {
    sim: Arc<Sim>,
    pool: Pool,
    blocks: Vec<Addr>,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let sim = Sim::new(2);
        Rig {
            pool: Pool::new(config, sim.clone()).expect("a pool"),
            sim,
            blocks: Vec::new(),
        }
    }

    /// Pages created for a block.
    fn alloc(&mut self, bytes: u64) -> u64 {
        self.alloc_on(STREAM, bytes)
    }

    fn alloc_on(&mut self, stream: StreamHandle, bytes: u64) -> u64 {
        let creates = || self.pool.stats().expect("stats").page_creates;
        let before = creates();
        let call = || self.pool.alloc(bytes, 0, stream);
        let at = self.sim.naming(&[stream], call).expect("memory");
        let made = creates() - before;
        self.blocks.push(at);
        self.pool.validate();
        made
    }

    fn free_on(&mut self, stream: StreamHandle) {
        let at = self.blocks.pop().expect("a block");
        let call = || self.pool.free(at, stream);
        self.sim.naming(&[stream], call).expect("a live block");
    }

    fn reserved(&self) -> u64 {
        self.pool.stats().expect("stats").reserved
    }
}

/// A pool that needs 1,200 MiB of blocks of which none was freed.
fn model(config: Config) -> Rig {
    let mut rig = Rig::new(config);
    for _ in 0..60 {
        rig.alloc(20 * M);
    }
    rig
}

/// Under what stays a page is as long as its block, up to a 48th of what is needed; nothing is held besides.
#[test]
fn what_stays_has_pages_of_its_own_length() {
    let mut rig = model(config());
    assert_eq!(rig.reserved(), 1200 * M);
    for bytes in [22 * M, 6 * M + 100 * K, 24 * M] {
        let before = rig.reserved();
        assert_eq!(rig.alloc(bytes), 1, "{bytes}");
        let more = rig.reserved() - before;
        assert!((bytes..bytes + 2 * M).contains(&more), "{more} for {bytes}");
    }
    assert_eq!(rig.alloc(100 * M), 4, "three of 26 to 28 MiB, and the rest");
}

/// Where blocks come back pages may have to move, so they are smaller.
#[test]
fn where_blocks_come_back_pages_are_smaller() {
    let mut rig = model(config());
    for _ in 0..30 {
        rig.alloc(K);
        rig.free_on(STREAM);
    }
    let made = rig.alloc(22 * M);
    assert!(made > 1, "{made} pages");
}

/// But as long as what they are made for all the same.
#[test]
fn where_blocks_come_back_pages_are_as_long_as_what_they_are_for() {
    let mut rig = Rig::new(config());
    for _ in 0..60 {
        rig.alloc(200 * M);
    }
    for _ in 0..70 {
        rig.free_on(STREAM);
        rig.alloc(200 * M);
    }
    let before = rig.reserved();
    assert_eq!(rig.alloc(44 * M), 1);
    assert_eq!(rig.reserved() - before, 44 * M);
}

/// Nor are there such pages where memory matters more than time, or where streams pass it on to each other.
#[test]
fn below_a_limit_and_with_several_streams_pages_are_smaller() {
    let limited = Config {
        max_bytes: 16384 * M,
        ..config()
    };
    let made = model(limited).alloc(22 * M);
    assert!(made > 1, "{made} pages");
    let mut rig = model(config());
    rig.alloc_on(OTHER, M);
    rig.free_on(OTHER); // else it would be forgotten
    let made = rig.alloc(22 * M);
    assert!(made > 1, "{made} pages");
}
