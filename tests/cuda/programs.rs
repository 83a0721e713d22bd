//! Random programs on a pool of the CUDA backend, with work that runs when it runs: fills and copies on streams that
//! come and go. The stand-in ends the process when two pieces of work meet in a page without being in order, when a
//! page goes that somebody may still use, and when anything is left open; the contents are compared here.

use crate::common::M;
use crate::common::cuda::{handle, options, place_of, try_backend};
use crate::common::random::Random;
use crate::common::standin::{Device, Object, alone, control, ok, open, order, rest, stream};
use std::collections::BTreeMap;
use std::sync::Mutex;
use weir::backend::cuda::Options;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::pool::{Attribute, Pool};

const STREAMS: usize = 4;
const EVENTS: usize = 3;
/// Bytes of a block that are written and read: at its start, its end, and at the start of each page between.
const PIECE: u64 = 16;

fn new_pool(config: Config, plain: bool) -> Pool {
    let place = place_of(&config);
    let backend = try_backend(Options {
        plain,
        place,
        ..options()
    });
    let backend = backend.expect("a backend");
    Pool::new(config, backend).expect("a pool")
}

fn config() -> Config {
    Config {
        memory: MemoryKind::Device,
        ..Config::default()
    }
}

fn pieces(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..bytes).step_by(2 << 20).chain([bytes.saturating_sub(PIECE)]);
    starts.map(move |start| (start, (bytes - start).min(PIECE)))
}

#[derive(Debug)]
struct Block {
    at: Addr,
    bytes: u64,
    value: u8,
    place: usize,
}

/// What a copy brought, to be looked at when its stream has done it.
struct Copy {
    bytes: Box<[u8; PIECE as usize]>,
    length: usize,
    value: u8,
    block: Addr,
}

struct Program {
    random: Random,
    streams: [Object; STREAMS],
    events: [Object; EVENTS],
    blocks: BTreeMap<u64, Block>,
    copies: Vec<Copy>,
    refused: u64,
}

impl Program {
    fn new(seed: u64) -> Program {
        Program {
            random: Random(seed),
            streams: [(); STREAMS].map(|()| stream()),
            events: [(); EVENTS].map(|()| {
                let mut event = std::ptr::null_mut();
                ok!(event_create(&raw mut event, 2));
                event
            }),
            blocks: BTreeMap::new(),
            copies: Vec::new(),
            refused: 0,
        }
    }

    /// A stream of the program's: one of its own, or a default stream.
    fn stream(&self, place: usize) -> Object {
        match self.streams.get(place) {
            Some(&stream) => stream,
            None => std::ptr::without_provenance_mut(place - STREAMS), // 0, 1, 2
        }
    }

    fn place(&mut self) -> usize {
        self.random.below(STREAMS as u64 + 3) as usize
    }

    fn pick(&mut self) -> Option<u64> {
        let nth = self.random.below(self.blocks.len().max(1) as u64) as usize;
        self.blocks.keys().nth(nth).copied()
    }

    fn write(&mut self, block: &Block, place: usize) {
        let stream = self.stream(place);
        if self.random.one_in(3) {
            rest(stream, self.random.below(200) as usize);
        }
        for (start, length) in pieces(block.bytes) {
            ok!(fill(block.at.0 + start, block.value, length as usize, stream));
        }
    }

    /// Reads the block on a stream that is behind its writes.
    fn read(&mut self, block: &Block, place: usize) {
        let stream = self.stream(place);
        for (start, length) in pieces(block.bytes) {
            let mut copy = Copy {
                bytes: Box::default(),
                length: length as usize,
                value: block.value,
                block: block.at,
            };
            let to = copy.bytes.as_mut_ptr().cast();
            ok!(copy_to_host_async(
                to,
                block.at.0 + start,
                length as usize,
                stream
            ));
            self.copies.push(copy);
        }
    }

    fn alloc(&mut self, pool: &Pool, most: u32) {
        let place = self.place();
        // small ones are many, large ones fill the pool
        let bits = if self.random.one_in(6) { most } else { most - 6 };
        let bytes = self.random.log_uniform(bits);
        match pool.alloc(bytes, 0, handle(self.stream(place))) {
            Ok(at) => {
                let value = self.random.next() as u8;
                let block = Block {
                    at,
                    bytes,
                    value,
                    place,
                };
                self.write(&block, place);
                self.blocks.insert(at.0, block);
            }
            Err(Error::OutOfMemory(_)) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self, pool: &Pool, at: u64, place: usize) {
        let block = self.blocks.remove(&at).expect("a live block");
        if place != block.place {
            order(self.stream(block.place), self.stream(place));
        }
        self.read(&block, place);
        pool.free(block.at, handle(self.stream(place))).expect("a free");
    }

    /// All work is done: everything that was copied must be as it was written.
    fn compare(&mut self) {
        for copy in self.copies.drain(..) {
            let seen = &copy.bytes[..copy.length];
            assert!(
                seen.iter().all(|&byte| byte == copy.value),
                "the block at {} was filled with {}: {seen:?}",
                copy.block,
                copy.value
            );
        }
    }

    fn synchronize(&mut self, pool: &Pool) {
        let mark = pool.mark_all();
        for place in 0..STREAMS + 3 {
            ok!(stream_synchronize(self.stream(place)));
        }
        pool.synchronized(mark);
        self.compare();
    }

    fn step(&mut self, pool: &Pool, most: u32) {
        let event = self.random.below(EVENTS as u64) as usize;
        let (user, known) = (self.events[event], EventHandle(self.events[event].addr()));
        let place = self.place();
        let named = handle(self.stream(place));
        match self.random.below(100) {
            0..45 => self.alloc(pool, most),
            45..75 => {
                let Some(at) = self.pick() else { return };
                let place = self.blocks[&at].place;
                self.free(pool, at, place);
            }
            75..82 => {
                let Some(at) = self.pick() else { return };
                self.free(pool, at, place);
            }
            82..85 => {
                let Some(at) = self.pick() else { return };
                let block = self.blocks.remove(&at).expect("picked");
                self.read(&block, block.place);
                ok!(stream_synchronize(self.stream(block.place)));
                pool.free_synced(block.at).expect("a free");
            }
            85..88 => {
                // used on another stream, too: read there, while its own goes on to read it
                let Some(at) = self.pick() else { return };
                let block = self.blocks.remove(&at).expect("picked");
                order(self.stream(block.place), self.stream(place));
                pool.record_stream(block.at, named).expect("a live block");
                self.read(&block, place);
                self.blocks.insert(at, block);
            }
            88..91 => {
                let mark = pool.mark_stream(named);
                ok!(event_record(user, self.stream(place)));
                pool.event_recorded(known, mark);
            }
            91..94 => {
                let mark = pool.mark_event(known);
                ok!(stream_wait_event(self.stream(place), user, 0));
                pool.stream_waits(named, mark);
            }
            94 => {
                let mark = pool.mark_stream(named);
                ok!(stream_synchronize(self.stream(place)));
                pool.synchronized(mark);
            }
            95 => self.synchronize(pool),
            96 => pool.trim(self.random.log_uniform(28)).expect("a trim"),
            97 => {
                let bytes = if self.random.one_in(2) {
                    u64::MAX
                } else {
                    self.random.log_uniform(28)
                };
                pool.set_attribute(Attribute::ReleaseThreshold, bytes)
                    .expect("a threshold");
            }
            98 => {
                // another stream, with the handle of the old one
                let place = place % STREAMS;
                for block in self.blocks.values_mut().filter(|block| block.place == place) {
                    // the program must still be able to order its later use of these
                    order(self.streams[place], std::ptr::without_provenance_mut(1));
                    block.place = STREAMS;
                }
                ok!(stream_destroy(self.streams[place]));
                self.streams[place] = stream();
            }
            _ => drop(pool.squeeze().expect("a squeeze")),
        }
    }

    fn end(mut self, pool: &Pool) -> u64 {
        self.synchronize(pool);
        for stream in self.streams {
            ok!(stream_destroy(stream));
        }
        for event in self.events {
            ok!(event_destroy(event));
        }
        self.blocks.len() as u64
    }
}

fn run(seed: u64, config: Config, plain: bool, steps: u64, most: u32) -> u64 {
    let pool = new_pool(config, plain);
    let mut program = Program::new(seed);
    for step in 0..steps {
        program.step(&pool, most);
        if step % 16 == 0 {
            pool.validate();
        }
    }
    let refused = program.refused;
    let live = program.end(&pool);
    assert_eq!(pool.end().blocks, live);
    refused
}

#[test]
fn random_programs() {
    alone("random_programs", &[], || {
        let device = Device::open(0);
        let before = open();
        let mut refused = 0;
        for seed in 0..12 {
            let config = Config {
                max_bytes: [0, 96 * M, 192 * M][seed as usize % 3],
                blocks_in_one_page: seed % 4 == 3,
                ..config()
            };
            refused += run(seed, config, seed % 6 == 5, 5000, 27);
            assert_eq!(open(), before, "seed {seed}");
        }
        assert!(refused > 10, "the limits were reached: {refused}");
        drop(device);
    });
}

#[test]
fn random_programs_on_pinned_memory() {
    alone("random_programs_on_pinned_memory", &[], || {
        let device = Device::open(0);
        let before = open();
        let mut refused = 0;
        for seed in 300..308 {
            let config = Config {
                memory: MemoryKind::Pinned,
                max_bytes: [0, 96 * M][seed as usize % 2],
                ..config()
            };
            refused += run(seed, config, seed % 4 == 3, 4000, 27);
            assert_eq!(open(), before, "seed {seed}");
        }
        assert!(refused > 10, "the limits were reached: {refused}");
        drop(device);
    });
}

#[test]
fn random_programs_on_a_full_card() {
    let variables = [("WEIR_STANDIN_MEMORY", "268435456")];
    alone("random_programs_on_a_full_card", &variables, || {
        let device = Device::open(0);
        let before = open();
        let mut refused = 0;
        for seed in 100..106 {
            control!(hold_memory(0, (seed % 3) * 64 * M));
            refused += run(seed, config(), seed % 2 == 1, 4000, 28);
            assert_eq!(open(), before, "seed {seed}");
        }
        assert!(refused > 10, "the card was full: {refused}");
        drop(device);
    });
}

#[test]
fn random_programs_on_drivers_without_stream_ids() {
    let variables = [("WEIR_STANDIN_VERSION", "11080")];
    alone(
        "random_programs_on_drivers_without_stream_ids",
        &variables,
        || {
            let device = Device::open(0);
            for seed in 200..204 {
                let config = Config {
                    max_bytes: 128 * M,
                    ..config()
                };
                run(seed, config, false, 4000, 27);
            }
            drop(device);
        },
    );
}

#[test]
fn threads_share_a_pool_and_a_stream() {
    alone("threads_share_a_pool_and_a_stream", &[], || {
        let device = Device::open(0);
        let pool = new_pool(
            Config {
                max_bytes: 256 * M,
                ..config()
            },
            false,
        );
        let (shared, handed) = (stream().expose_provenance(), Mutex::new(Vec::new()));
        let context = device.1.expose_provenance();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (pool, handed) = (&pool, &handed);
                scope.spawn(move || {
                    ok!(context_set(std::ptr::with_exposed_provenance_mut(context)));
                    let common: Object = std::ptr::with_exposed_provenance_mut(shared);
                    let (mut random, own) = (Random(thread + 300), stream());
                    let mut mine = Vec::new();
                    for _ in 0..1500 {
                        let on = if random.one_in(3) { common } else { own };
                        if random.one_in(2) {
                            let octave = random.below(22) as u32;
                            let bytes = random.log_uniform(octave + 1);
                            if let Ok(at) = pool.alloc(bytes, 0, handle(on)) {
                                ok!(fill(at.0, thread as u8, bytes.min(64) as usize, on));
                                mine.push((at, on));
                            }
                        } else if let Some((at, on)) = mine.pop() {
                            if random.one_in(4) && on == common {
                                // another thread frees it, on the same stream
                                handed.lock().unwrap().push(at);
                            } else {
                                ok!(fill(at.0, thread as u8, 1, on));
                                pool.free(at, handle(on)).expect("a free");
                            }
                        }
                        let theirs = handed.lock().unwrap().pop();
                        if let Some(at) = theirs {
                            pool.free(at, handle(common)).expect("a free");
                        }
                        if random.one_in(100) {
                            let mark = pool.mark_stream(handle(own));
                            ok!(stream_synchronize(own));
                            pool.synchronized(mark);
                        }
                    }
                    for (at, on) in mine {
                        pool.free(at, handle(on)).expect("a free");
                    }
                    ok!(stream_synchronize(own));
                    ok!(stream_destroy(own));
                    ok!(context_set(std::ptr::null_mut()));
                });
            }
        });
        pool.validate();
        for at in handed.into_inner().unwrap() {
            pool.free(at, StreamHandle(shared)).expect("a free");
        }
        assert_eq!(pool.end().blocks, 0);
        ok!(stream_destroy(std::ptr::with_exposed_provenance_mut(shared)));
        drop(device);
    });
}
