//! Blocks that must still hold what was written to them after all other work has run.

use super::M;
use super::real::{Gate, Stream, Wrong, end};
use weir::backend::fault::Faulty;
use weir::backend::host::streams;
use weir::base::units::Addr;
use weir::pool::Pool;

/// What a small pool creates and moves whole.
pub const U: u64 = 8 * M;

pub fn reserved(pool: &Pool) -> u64 {
    pool.stats().expect("stats").reserved
}

/// A block freed on `stream` with a write still queued behind a gate.
pub fn freed_in_use(pool: &Pool, stream: &Stream, bytes: u64) -> (Addr, Gate) {
    let at = pool.alloc(bytes, 0, stream.0).expect("a block");
    let gate = stream.gate();
    stream.write(at, bytes, 1);
    pool.free(at, stream.0).expect("a live block");
    (at, gate)
}

/// A block taken on `stream` and written at once, if the stream may; it must still hold what was written after
/// all other work has run.
pub struct Taken {
    pub at: Addr,
    bytes: u64,
    wrong: Wrong,
}

pub fn take(pool: &Pool, stream: &Stream, bytes: u64) -> Taken {
    let at = pool.alloc(bytes, 0, stream.0).expect("a block");
    stream.write(at, bytes, 2);
    Taken {
        at,
        bytes,
        wrong: Wrong::default(),
    }
}

impl Taken {
    pub fn check(&self, stream: &Stream) {
        streams::synchronize_all().expect("streams");
        stream.expect(self.at, self.bytes, 2, &self.wrong);
        stream.synchronize();
        assert_eq!(self.wrong.count(), 0, "memory was handed out while it was in use");
    }
}

/// Frees the block and ends the pool.
pub fn finish(pool: Pool, faulty: &Faulty, taken: &[Taken]) {
    for block in taken {
        pool.free_synced(block.at).expect("a live block");
    }
    end(pool, faulty);
}

pub fn finish_after(pool: Pool, faulty: &Faulty, stream: &Stream, taken: Vec<Taken>) {
    taken.iter().for_each(|block| block.check(stream));
    finish(pool, faulty, &taken);
}
