//! Programs that do the same again and again on several streams, with what their thread keeps.

use super::device::Device;
use super::random::Random;
use std::collections::VecDeque;
use std::sync::Arc;
use weir::backend::Backend;
use weir::backend::host::{HostBackend, streams};
use weir::base::units::{Addr, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::pool::{Pool, ThreadCache};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// A block, its bytes, and the stream that will free it.
pub type Block = (Addr, u64, usize);

/// Streams that the host is ahead of.
struct Busy {
    device: Arc<Device>,
    /// What is queued on a block's stream when it is handed out, in nanoseconds.
    work: u64,
}

/// A pool with some streams, and the thread's cache for each: of the host, on which nothing is at work, or busy ones.
pub struct Rig {
    pub pool: Pool,
    pub streams: Vec<(StreamHandle, ThreadCache)>,
    /// The pool hears that the program has waited for a stream. It need not.
    pub tells: bool,
    busy: Option<Busy>,
    live: u64,
    pub peak: u64,
    /// What each stream has taken more than it has been given, and the most of it.
    taken: Vec<(i64, i64)>,
}

impl Rig {
    pub fn new(count: usize, declared: bool) -> Rig {
        Rig::with(options(declared), count)
    }

    pub fn with(config: Config, count: usize) -> Rig {
        let stream = |_| streams::create().expect("a stream");
        let streams = (0..count).map(stream).collect();
        Rig::over(config, HostBackend::new().expect("host memory"), streams, None)
    }

    /// Streams on which so many nanoseconds of work are queued for each block. How long things take is by `chance`.
    pub fn busy(count: usize, declared: bool, work: u64, chance: u64) -> Rig {
        let device = Device::new(chance);
        let busy = Busy {
            device: device.clone(),
            work,
        };
        let streams = (64..64 + count).map(StreamHandle).collect();
        Rig::over(options(declared), device, streams, Some(busy))
    }

    /// From now on so many nanoseconds of work are queued for each block of busy streams, which can be asked for it.
    #[allow(dead_code)] // of rounds
    pub fn work(&mut self, nanos: u64) {
        let busy = self.busy.as_mut().expect("busy streams");
        busy.work = nanos;
        busy.device.tell();
    }

    fn over(
        config: Config,
        backend: Arc<dyn Backend>,
        streams: Vec<StreamHandle>,
        busy: Option<Busy>,
    ) -> Rig {
        let pool = Pool::new(config, backend).expect("a pool");
        let count = streams.len();
        let open = |stream| (stream, pool.open_cache(stream).expect("a cache"));
        let streams = streams.into_iter().map(open).collect();
        Rig {
            pool,
            streams,
            tells: true,
            busy,
            live: 0,
            peak: 0,
            taken: vec![(0, 0); count],
        }
    }

    /// The program ends a stream, which it declares, and makes another one.
    #[allow(dead_code)] // of rounds
    pub fn renew(&mut self, number: usize) {
        let (stream, cache) = &self.streams[number];
        self.pool.stream_changed(*stream);
        self.pool.close_cache(cache);
        streams::destroy(*stream).expect("its end");
        let stream = streams::create().expect("a stream");
        self.streams[number] = (stream, self.pool.open_cache(stream).expect("a cache"));
    }

    pub fn alloc(&mut self, bytes: u64, on: usize, freed_on: usize) -> Block {
        let (stream, cache) = &self.streams[on];
        let at = cache.alloc(bytes, 0);
        let at = at.unwrap_or_else(|| {
            self.pool
                .alloc_beside(Some(cache), bytes, 0, *stream)
                .expect("memory")
        });
        if let Some(busy) = &mut self.busy {
            busy.device.host(PACE);
            busy.device.queue(*stream, busy.work);
        }
        self.live += bytes;
        let (taken, most) = &mut self.taken[on];
        *taken += bytes as i64;
        *most = (*most).max(*taken);
        self.peak = self.peak.max(self.live);
        (at, bytes, freed_on)
    }

    pub fn free(&mut self, (at, bytes, on): Block) {
        let (stream, cache) = &self.streams[on];
        if cache.free(at).is_none() {
            self.pool
                .free_beside(Some(cache), at, *stream)
                .expect("a live block");
        }
        self.live -= bytes;
        self.taken[on].0 -= bytes as i64;
    }

    /// Page calls of each round of a program that waits for its streams after each, and what is held at last for the peak of what
    /// was live.
    pub fn rounds(
        &mut self,
        count: usize,
        program: impl Fn(&mut Rig, &mut Random),
        seed: u64,
    ) -> (Vec<u64>, f64) {
        let calls = |rig: &Rig| {
            let stats = rig.pool.stats().expect("stats");
            stats.page_creates + stats.maps + stats.unmaps
        };
        let mut counts = Vec::new();
        for _ in 0..count {
            let before = calls(self);
            self.taken.iter_mut().for_each(|taken| taken.0 = 0);
            program(self, &mut Random(seed));
            assert_eq!(self.live, 0);
            for &(stream, _) in &self.streams {
                let mark = self.pool.mark_stream(stream);
                match &self.busy {
                    Some(busy) => busy.device.wait_for_all(),
                    None => streams::synchronize(stream).expect("no work"),
                }
                if self.tells {
                    self.pool.synchronized(mark);
                }
            }
            self.pool.validate();
            counts.push(calls(self) - before);
        }
        let held = self.pool.stats().expect("stats").reserved;
        (counts, held as f64 / self.peak as f64)
    }

    /// Bytes in use.
    #[allow(dead_code)] // of rounds
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Microseconds of busy streams' time so far.
    #[allow(dead_code)] // of the survey
    pub fn micros(&self) -> f64 {
        let nanos = self.busy.as_ref().map_or(0, |busy| busy.device.host(0));
        nanos as f64 / 1e3
    }

    /// What streams that share nothing within a round need together, for the peak of what was live: without an event nobody can
    /// know that what one stream has freed may be another's, so no pool that asks for none holds less.
    pub fn apart(&self) -> f64 {
        self.taken.iter().map(|taken| taken.1).sum::<i64>() as f64 / self.peak as f64
    }
}

/// The default options, for host memory.
pub fn options(declared: bool) -> Config {
    Config {
        memory: MemoryKind::Host,
        declared_streams: declared,
        ..Config::default()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for (stream, cache) in &self.streams {
            self.pool.close_cache(cache);
            if self.busy.is_none() {
                streams::destroy(*stream).expect("its end");
            }
        }
    }
}

/// What the program does between two blocks takes so many nanoseconds on average.
pub const PACE: u64 = 1000;
pub const STEPS: usize = 1500;

/// Blocks of one byte more than a power of two, up to 256 MiB, on any stream: one that is live goes for each that comes.
pub fn powers(rig: &mut Rig, random: &mut Random) {
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..STEPS {
        if blocks.len() == 24 {
            let block = blocks.swap_remove(random.below(24) as usize);
            rig.free(block);
        }
        let stream = random.below(rig.streams.len() as u64) as usize;
        blocks.push(rig.alloc((1 << (8 + random.below(21))) + 1, stream, stream));
    }
    blocks.into_iter().for_each(|block| rig.free(block));
}

/// Vectors that grow by half until they are long, on the stream of each. The first ones are short: threads keep such blocks.
pub fn vectors(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let begin = |random: &mut Random| 20_000 + (1 << random.below(7)) * random.below(30_000);
    let mut vectors: Vec<Block> = Vec::new();
    for number in 0..40 {
        let bytes = begin(random);
        vectors.push(rig.alloc(bytes, number % count, number % count));
    }
    for _ in 0..STEPS {
        let vector = &mut vectors[random.below(40) as usize];
        let old = *vector;
        let grown = old.1 * 3 / 2;
        if grown > 300_000_000 {
            rig.free(old);
            *vector = rig.alloc(begin(random), old.2, old.2);
        } else {
            *vector = rig.alloc(grown, old.2, old.2);
            rig.free(old);
        }
    }
    vectors.into_iter().for_each(|block| rig.free(block));
}

/// Each block is freed on the stream after the one that it was allocated on, in the order in which they came.
pub fn pipeline(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut blocks: VecDeque<Block> = VecDeque::new();
    for _ in 0..STEPS {
        let stream = random.below(count as u64) as usize;
        let bytes = 64 * K * random.log_uniform(10);
        blocks.push_back(rig.alloc(bytes, stream, (stream + 1) % count));
        if blocks.len() > 24 {
            let block = blocks.pop_front().expect("one of many");
            rig.free(block);
        }
    }
    blocks.into_iter().for_each(|block| rig.free(block));
}

/// Each stream frees the oldest of its eight blocks.
pub fn rings(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut rings = vec![VecDeque::new(); count];
    for number in 0..STEPS {
        let stream = number % count;
        let block = rig.alloc(M * random.log_uniform(6), stream, stream);
        rings[stream].push_back(block);
        if rings[stream].len() > 8 {
            let block = rings[stream].pop_front().expect("one of many");
            rig.free(block);
        }
    }
    rings.into_iter().flatten().for_each(|block| rig.free(block));
}

/// The same, with small blocks that come first and go last: more than threads keep, and more than is in use when the pool comes to
/// rest.
pub fn tails(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut small = Vec::new();
    for number in 0..300 {
        let bytes = 50_000 + random.below(100_000);
        small.push(rig.alloc(bytes, number % count, number % count));
    }
    rings(rig, random);
    small.into_iter().for_each(|block| rig.free(block));
}

/// Every stream does the same at the same time: one of 24 blocks that it has goes for each that comes.
pub fn lockstep(rig: &mut Rig, random: &mut Random) {
    let count = rig.streams.len();
    let mut steps: Vec<Vec<Block>> = Vec::new();
    for _ in 0..STEPS / count {
        if steps.len() == 24 {
            let step = steps.swap_remove(random.below(24) as usize);
            step.into_iter().for_each(|block| rig.free(block));
        }
        let bytes = (1 << (8 + random.below(19))) + 1;
        let blocks = (0..count).map(|stream| rig.alloc(bytes, stream, stream));
        steps.push(blocks.collect());
    }
    steps.into_iter().flatten().for_each(|block| rig.free(block));
}
