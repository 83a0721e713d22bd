//! How many mappings are kept: those that no page is at home in go when they are too many, also where nobody looks at the streams.

use crate::common::random::Random;
use crate::common::sim::{FIRST_STREAM, Sim};
use crate::common::{M, config};
use std::collections::VecDeque;
use std::sync::Arc;
use weir::alloc::order::Reuse;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::observe::stats::Stats;
use weir::pool::Pool;

const STREAMS: [StreamHandle; 2] = [StreamHandle(FIRST_STREAM), StreamHandle(FIRST_STREAM + 1)];
/// Bytes in use.
const LIVE: u64 = 256 * M;

/// Blocks of any length replaced in turn, on streams that take what the other one has freed by waiting for it.
struct Rig {
    sim: Arc<Sim>,
    pool: Pool,
    random: Random,
    live: VecDeque<(Addr, u64, StreamHandle)>,
    bytes: u64,
    blocks: u64,
}

impl Rig {
    fn new(most: usize) -> Rig {
        let sim = Sim::new(STREAMS.len());
        sim.declare_streams();
        sim.limit_mappings_of_a_page(most);
        let config = Config {
            declared_streams: true,
            reuse: Reuse {
                event_dependencies: true,
                opportunistic: false,
                internal_dependencies: true,
            },
            ..config()
        };
        Rig {
            pool: Pool::new(config, sim.clone()).expect("a pool"),
            sim,
            random: Random(7),
            live: VecDeque::new(),
            bytes: 0,
            blocks: 0,
        }
    }

    fn replace(&mut self) {
        let bytes = M * self.random.log_uniform(6);
        while self.bytes + bytes > LIVE {
            let (at, bytes, stream) = self.live.pop_front().expect("a block");
            self.sim
                .naming(&[stream], || self.pool.free(at, stream))
                .expect("a live block");
            self.bytes -= bytes;
        }
        let stream = STREAMS[self.random.below(2) as usize];
        let at = self
            .sim
            .naming(&[stream], || self.pool.alloc(bytes, 0, stream))
            .expect("memory");
        self.blocks += 1;
        self.sim.touch(stream, self.blocks, at.0, bytes);
        self.live.push_back((at, bytes, stream));
        self.bytes += bytes;
        if self.blocks.is_multiple_of(256) {
            self.pool.validate();
        }
    }

    fn go_on(&mut self, requests: u64, mut look: impl FnMut(&Stats)) {
        for _ in 0..requests {
            self.replace();
            for stream in STREAMS {
                self.sim.advance(stream, 4);
            }
            look(&self.pool.stats().expect("stats"));
        }
    }
}

#[test]
fn mappings_go_though_nobody_looks_at_the_streams() {
    let mut rig = Rig::new(usize::MAX);
    let mut maps = 0;
    rig.go_on(40_000, |stats| {
        let budget = 64 * stats.page_creates.max(64);
        assert!(stats.maps - stats.unmaps <= budget, "{stats:?}");
        maps = stats.maps;
    });
    assert!(maps > 8000, "{maps}: far more than may be kept");
}

#[test]
fn pages_with_as_many_mappings_as_they_may_have_lose_some() {
    for most in [4, 32] {
        let mut rig = Rig::new(most);
        let mut unmaps = 0;
        rig.go_on(8000, |stats| unmaps = stats.unmaps);
        assert!(unmaps > 0, "{most}");
    }
}
