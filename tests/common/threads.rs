//! Threads that each make rounds of their own, on streams of their own, at the same time: how their calls follow on each other is
//! chance, and the same each time. A cache of a thread that has ended is nobody's, so one thread may use those of all.

use super::device::Device;
use super::random::Random;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

/// What a program does between two calls takes so many nanoseconds on average.
const PACE: u64 = 1000;

/// A call of a round.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Of so many bytes.
    Alloc { block: usize, bytes: u64 },
    /// On the stream of the thread so many after this one.
    Free { block: usize, on: usize },
}

/// A round of so many blocks of 4 KiB up to so many times as much, most of which are freed before the next ones come.
pub fn round(blocks: usize, bits: u32, random: &mut Random) -> Vec<Call> {
    let (mut calls, mut live) = (Vec::new(), Vec::new());
    for block in 0..blocks {
        let bytes = 4096 * random.log_uniform(bits);
        calls.push(Call::Alloc { block, bytes });
        live.push(block);
        while live.len() > 6 + random.below(6) as usize {
            let block = live.swap_remove(random.below(live.len() as u64) as usize);
            calls.push(Call::Free { block, on: 0 });
        }
    }
    calls.extend(live.into_iter().map(|block| Call::Free { block, on: 0 }));
    calls
}

/// So many blocks of these lengths, of which so many are replaced one after the other. They are there from the second round on.
#[allow(dead_code)] // not every program uses it
pub fn replacement(blocks: usize, replaced: usize, lengths: Range<u64>, random: &mut Random) -> Vec<Call> {
    let mut calls = Vec::new();
    for _ in 0..replaced {
        let block = random.below(blocks as u64) as usize;
        let bytes = lengths.start + random.below(lengths.end - lengths.start);
        calls.extend([Call::Free { block, on: 0 }, Call::Alloc { block, bytes }]);
    }
    calls
}

/// A thread.
pub struct Worker {
    pub stream: StreamHandle,
    pub cache: ThreadCache,
    pub calls: Vec<Call>,
    /// The next one of these.
    pub next: usize,
    blocks: Vec<(Addr, u64)>,
    /// Rounds made.
    pub rounds: u64,
}

/// A pool and the threads that use it.
pub struct Threads {
    pub pool: Pool,
    pub device: Arc<Device>,
    pub workers: Vec<Worker>,
    chance: Random,
    /// Whose turn it is, for so many calls.
    turn: (usize, u64),
    /// The longest turn.
    longest: u64,
    /// Work that is queued for each block, in nanoseconds.
    work: u64,
    live: u64,
    /// The most that was live.
    pub peak: u64,
}

/// The cache of a thread that has ended.
pub fn cache(pool: &Pool, stream: StreamHandle) -> ThreadCache {
    let opened = thread::scope(|scope| scope.spawn(|| pool.open_cache(stream)).join());
    opened.expect("no panic").expect("a cache")
}

impl Threads {
    /// None yet. Each makes up to so many calls at a time, for whose blocks so much work is queued.
    pub fn new(config: Config, longest: u64, work: u64, chance: u64) -> Threads {
        let device = Device::new(chance);
        Threads {
            pool: Pool::new(config, device.clone()).expect("a pool"),
            device,
            workers: Vec::new(),
            chance: Random(chance),
            turn: (0, 0),
            longest,
            work,
            live: 0,
            peak: 0,
        }
    }

    /// One more, with such a round, on a stream of its own.
    pub fn add(&mut self, calls: Vec<Call>) {
        let stream = StreamHandle(64 + self.workers.len());
        let blocks = calls.iter().map(|call| match *call {
            Call::Alloc { block, .. } | Call::Free { block, .. } => block + 1,
        });
        self.workers.push(Worker {
            stream,
            cache: cache(&self.pool, stream),
            blocks: vec![(Addr(0), 0); blocks.max().unwrap_or(0)],
            calls,
            next: 0,
            rounds: 0,
        });
    }

    /// A thread ends after its round.
    pub fn end_thread(&mut self, thread: usize) {
        while self.workers[thread].next > 0 {
            self.step(thread);
        }
        let ended = self.workers.remove(thread);
        self.pool.close_cache(&ended.cache);
        self.turn = (0, 0);
    }

    /// Makes so many calls, the threads' in turns.
    pub fn run(&mut self, calls: usize) {
        for _ in 0..calls {
            if self.turn.1 == 0 {
                let thread = self.chance.below(self.workers.len() as u64) as usize;
                self.turn = (thread, 1 + self.chance.below(self.longest));
            }
            self.turn.1 -= 1;
            self.step(self.turn.0);
        }
    }

    /// The next call of a thread, which waits for its stream at the end of its round.
    pub fn step(&mut self, thread: usize) {
        let worker = &mut self.workers[thread];
        match worker.calls[worker.next] {
            Call::Alloc { block, bytes } => {
                let (cache, stream) = (&worker.cache, worker.stream);
                let at = cache.alloc(bytes, 0).unwrap_or_else(|| {
                    let at = self.pool.alloc_beside(Some(cache), bytes, 0, stream);
                    at.expect("memory")
                });
                worker.blocks[block] = (at, bytes);
                self.device.host(PACE);
                if self.work > 0 {
                    self.device.queue(stream, self.work);
                }
                self.live += bytes;
                self.peak = self.peak.max(self.live);
            }
            Call::Free { block, on } => {
                let (at, bytes) = std::mem::take(&mut worker.blocks[block]);
                let other = (thread + on) % self.workers.len();
                let Worker { cache, stream, .. } = &self.workers[other];
                if at != Addr(0) && cache.free(at).is_none() {
                    let freed = self.pool.free_beside(Some(cache), at, *stream);
                    freed.expect("a live block");
                }
                self.live -= bytes;
            }
        }
        let worker = &mut self.workers[thread];
        worker.next += 1;
        if worker.next == worker.calls.len() {
            (worker.next, worker.rounds) = (0, worker.rounds + 1);
            let mark = self.pool.mark_stream(worker.stream);
            self.device.wait_for(worker.stream);
            self.pool.synchronized(mark);
        }
    }

    /// Page calls so far.
    pub fn page_calls(&self) -> u64 {
        let stats = self.pool.stats().expect("stats");
        stats.page_creates + stats.maps + stats.unmaps
    }

    /// What the threads need together that share nothing.
    pub fn apart(&self) -> u64 {
        let most = |worker: &Worker| {
            let (mut now, mut most, mut lengths) = (0, 0, vec![0; worker.blocks.len()]);
            for call in &worker.calls {
                match *call {
                    Call::Alloc { block, bytes } => {
                        lengths[block] = bytes;
                        now += bytes;
                        most = most.max(now);
                    }
                    Call::Free { block, .. } => now -= lengths[block],
                }
            }
            most
        };
        self.workers.iter().map(most).sum()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for worker in &self.workers {
            self.pool.close_cache(&worker.cache);
        }
    }
}
