//! Every call of the driver is made to fail in turn, while programs run on a pool of the CUDA backend with work on its
//! streams. The stand-in ends the process if a rule of stream order is broken or anything is left open.

use crate::common::M;
use crate::common::cuda::{handle, options, place_of, try_backend};
use crate::common::standin::{Device, Object, all_calls, alone, control, ok, open, order, rest, stream};
use weir::backend::cuda::Options;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::pool::{Attribute, Pool};

const U: u64 = 8 * M;
const STREAMS: usize = 3;

/// One step; streams and blocks by number. Blocks keep their number when others are freed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(u64, usize),
    Free(usize),
    /// On another stream, which the program has ordered.
    FreeOn(usize, usize),
    FreeSynced(usize),
    /// Used on another stream, too.
    Share(usize, usize),
    Batch(usize),
    Warmup(u64, u64, usize),
    /// The second stream waits for the first, and the pool is told.
    Order(usize, usize),
    Threshold(u64),
    Trim(u64),
    Squeeze,
    Access(bool),
}
use Step::{Access, Alloc, Batch, Free, FreeOn, FreeSynced, Order, Share, Squeeze, Threshold, Trim, Warmup};

/// When the next fault comes.
struct Fault {
    /// Calls of the pool until then; 0: it has come.
    left: u64,
    code: i32,
}

impl Fault {
    /// Makes a call of the pool's, in which a call of the driver may fail. True if it did.
    fn during<T>(&mut self, call: impl FnOnce() -> T) -> (T, bool) {
        control!(reset_faults());
        if self.left > 0 {
            control!(fail_any(self.left, self.code));
        }
        let result = call();
        let made = all_calls();
        control!(reset_faults());
        let came = self.left > 0 && made >= self.left;
        self.left = self.left.saturating_sub(made);
        (result, came)
    }
}

struct Block {
    at: Addr,
    stream: usize,
}

struct World {
    pool: Pool,
    streams: [Object; STREAMS],
    blocks: Vec<Option<Block>>,
    fault: Fault,
    plain: bool,
}

fn new_pool(config: &Config, plain: bool) -> Result<Pool, Error> {
    let place = place_of(config);
    let backend = try_backend(Options {
        plain,
        place,
        ..options()
    });
    Pool::new(
        config.clone(),
        backend.map_err(|error| Error::Backend(error.to_string()))?,
    )
}

fn known(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory(_) | Error::Backend(_))
}

impl World {
    fn new(program: &Program, code: i32, nth: u64) -> World {
        let mut fault = Fault { left: nth, code };
        let (pool, _) = fault.during(|| new_pool(&program.config, program.plain));
        let pool = pool.unwrap_or_else(|error| {
            assert!(known(&error), "{error:?}");
            fault
                .during(|| new_pool(&program.config, program.plain))
                .0
                .expect("a pool, once the driver is well")
        });
        World {
            pool,
            streams: [(); STREAMS].map(|()| stream()),
            blocks: Vec::new(),
            fault,
            plain: program.plain,
        }
    }

    fn stream(&self, number: usize) -> StreamHandle {
        handle(self.streams[number])
    }

    /// Work that uses the block: a piece of each of its pages.
    fn use_block(&self, at: Addr, stream: usize) {
        let bytes = self.pool.block_size(at).expect("a live block");
        rest(self.streams[stream], 100);
        for piece in (0..bytes).step_by(2 << 20) {
            let length = (bytes - piece).min(64);
            ok!(fill(at.0 + piece, 0x55, length as usize, self.streams[stream]));
        }
    }

    fn enter(&mut self, at: Addr, stream: usize) {
        self.use_block(at, stream);
        self.blocks.push(Some(Block { at, stream }));
    }

    fn at(&self, block: usize) -> (Addr, usize) {
        let block = self.blocks[block].as_ref().expect("a live block");
        (block.at, block.stream)
    }

    /// Makes the step's call, or tries it again if it failed: Err says why it did.
    fn call<T>(&mut self, call: impl Fn(&Pool) -> Result<T, Error>) -> T {
        let World { pool, fault, .. } = self;
        let (first, came) = fault.during(|| call(pool));
        pool.validate();
        match first {
            Ok(done) => done,
            Err(error) => {
                assert!(came && known(&error), "{error:?}");
                let (again, _) = fault.during(|| call(pool));
                pool.validate();
                again.unwrap_or_else(|again| panic!("{again:?} once the driver is well, after {error:?}"))
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Alloc(bytes, number) => {
                let stream = self.stream(number);
                let at = self.call(|pool| pool.alloc(bytes, 0, stream));
                self.enter(at, number);
            }
            Free(block) => {
                let (at, number) = self.at(block);
                let stream = self.stream(number);
                self.call(|pool| pool.free(at, stream));
                self.blocks[block] = None;
            }
            FreeOn(block, number) => {
                let (at, from) = self.at(block);
                order(self.streams[from], self.streams[number]);
                let stream = self.stream(number);
                self.call(|pool| pool.free(at, stream));
                self.blocks[block] = None;
            }
            FreeSynced(block) => {
                let (at, number) = self.at(block);
                ok!(stream_synchronize(self.streams[number]));
                self.call(|pool| pool.free_synced(at));
                self.blocks[block] = None;
            }
            Share(block, number) => {
                let (at, from) = self.at(block);
                order(self.streams[from], self.streams[number]);
                let stream = self.stream(number);
                self.call(|pool| pool.record_stream(at, stream));
                self.use_block(at, number);
                // the program's own order between the two uses
                order(self.streams[number], self.streams[from]);
            }
            Batch(number) => {
                let stream = self.stream(number);
                let places = self.call(|pool| {
                    let mut places = [Addr(0); 4];
                    pool.alloc_batch(&[100, 3000, 20_000, M], stream, &mut places)?;
                    Ok(places)
                });
                for at in places {
                    self.enter(at, number);
                }
            }
            Warmup(bytes, count, number) => {
                let stream = self.stream(number);
                self.call(|pool| pool.warmup(&[bytes], &[count], stream));
            }
            Order(from, to) => {
                let event = EventHandle(1);
                let (first, second) = (self.stream(from), self.stream(to));
                let (mark, _) = self.fault.during(|| self.pool.mark_stream(first));
                self.pool.event_recorded(event, mark);
                let mark = self.pool.mark_event(event);
                order(self.streams[from], self.streams[to]);
                self.fault.during(|| self.pool.stream_waits(second, mark));
            }
            Threshold(bytes) => self.call(|pool| pool.set_attribute(Attribute::ReleaseThreshold, bytes)),
            Trim(keep) => self.call(|pool| pool.trim(keep)),
            Squeeze => drop(self.call(|pool| pool.squeeze())),
            Access(given) => {
                use weir::backend::Access;
                let access = if given { Access::ReadWrite } else { Access::None };
                if !self.plain {
                    self.call(|pool| pool.set_access(1, access));
                }
            }
        }
    }

    /// Ends everything. True if the fault has come.
    fn end(mut self) -> bool {
        let live = self.blocks.iter().flatten().count() as u64;
        let (leaked, _) = self.fault.during(|| self.pool.end());
        assert_eq!(leaked.blocks, live);
        drop(self.pool);
        for stream in self.streams {
            ok!(stream_destroy(stream));
        }
        self.fault.left == 0
    }
}

#[derive(Clone)]
struct Program {
    name: &'static str,
    config: Config,
    plain: bool,
    steps: Vec<Step>,
}

fn programs() -> Vec<Program> {
    let config = Config {
        memory: MemoryKind::Device,
        ..Config::default()
    };
    let program = |name, steps: &[Step]| Program {
        name,
        config: config.clone(),
        plain: false,
        steps: steps.to_vec(),
    };
    let small = program(
        "small blocks, batches, a warm-up",
        &[
            Batch(0),
            Warmup(512, 100, 1),
            Alloc(512, 1),
            FreeOn(1, 1),
            Share(2, 2),
            Free(2),
            Batch(1),
            Free(4),
            Trim(0),
            Squeeze,
        ],
    );
    let moving = program(
        "pages move, and are given back",
        &[
            Alloc(2 * U, 0),
            Alloc(4 * U, 0),
            Alloc(2 * U, 0),
            Alloc(6 * U, 0),
            Access(true),
            Alloc(2 * U, 0),
            Free(1),
            Free(3),
            Alloc(9 * U, 0),
            Free(5),
            Alloc(10 * U, 1),
            Access(false),
            Share(6, 2),
            Free(6),
            Trim(8 * U),
            FreeSynced(0),
            Squeeze,
            Alloc(12 * U, 0),
        ],
    );
    let mut limit = program(
        "at the limit, with other streams' memory",
        &[
            Alloc(8 * U, 0),
            Alloc(4 * U, 1),
            Alloc(4 * U, 2),
            Free(0),
            Alloc(6 * U, 1),
            Order(0, 2),
            Free(1),
            Alloc(5 * U, 2),
            Free(2),
            Free(3),
            Alloc(10 * U, 0),
        ],
    );
    limit.config.max_bytes = 16 * U;
    let mut threshold = program(
        "a threshold",
        &[
            Alloc(8 * U, 0),
            Alloc(8 * U, 1),
            Threshold(4 * U),
            Free(0),
            Alloc(2 * U, 1),
            FreeSynced(1),
            Alloc(2 * U, 2),
            Free(2),
            Free(3),
        ],
    );
    threshold.config.initial_bytes = 4 * U;
    let mut apart = program(
        "blocks in one handle",
        &[
            Alloc(U, 0),
            Alloc(300, 1),
            Alloc(3 * U, 0),
            Free(2),
            Alloc(2 * U, 1),
            Trim(0),
            Squeeze,
        ],
    );
    apart.config.blocks_in_one_page = true;
    let mut plain = program(
        "plain memory",
        &[
            Batch(1),
            Alloc(2 * U, 0),
            Alloc(300, 1),
            Free(4),
            Alloc(3 * U, 1),
            Free(0),
            Trim(0),
            Squeeze,
        ],
    );
    plain.plain = true;
    let mut pinned = moving.clone();
    pinned.name = "pinned memory";
    pinned.config.memory = MemoryKind::Pinned;
    // memory that cannot be mapped at the first try is registered, which all devices reach
    pinned.steps.retain(|step| !matches!(step, Access(_)));
    let mut registered = plain.clone();
    registered.name = "registered memory";
    registered.config.memory = MemoryKind::Pinned;
    vec![small, moving, limit, threshold, apart, plain, pinned, registered]
}

/// Runs a program while the nth call fails. True if there were that many.
fn run(program: &Program, code: i32, nth: u64) -> bool {
    let mut world = World::new(program, code, nth);
    for &step in &program.steps {
        world.apply(step);
    }
    world.end()
}

#[test]
fn each_call_of_the_driver_fails_once() {
    alone("each_call_of_the_driver_fails_once", &[], || {
        let device = Device::open(0);
        // what is open besides: the reference of this test
        let before = open();
        for program in programs() {
            assert!(!run(&program, 999, u64::MAX), "no fault comes");
            for code in [2, 999] {
                let mut nth = 1;
                while run(&program, code, nth) {
                    // the stand-in forgives the reference of whoever it refused to take one back from
                    let left = open();
                    assert!(
                        left == before || left.is_empty(),
                        "{}, call {nth} with {code}: {left}",
                        program.name
                    );
                    nth += 1;
                }
                eprintln!("{}: {} calls failed with {code}", program.name, nth - 1);
                assert!(nth > 30, "{nth} calls");
            }
        }
        drop(device);
    });
}

/// Runs a program until the nth call answers 4: nothing may be called after that, and everything still has an answer.
fn unloads(program: &Program, nth: u64) -> bool {
    let config = Config {
        initial_bytes: 0,
        ..program.config.clone()
    };
    let pool = new_pool(&config, program.plain).expect("a pool");
    let stream = stream();
    let on = handle(stream);
    control!(reset_faults());
    control!(fail_any(nth, 4));
    let mut blocks = Vec::new();
    let mut gone = false;
    for bytes in [100, U, 3 * U, 100] {
        match pool.alloc(bytes, 0, on) {
            Ok(at) => blocks.push(at),
            Err(error) => {
                assert_eq!(error, Error::Unloaded);
                gone = true;
            }
        }
    }
    let mut free = |at| assert!(pool.free(at, on).is_ok());
    blocks.drain(..2.min(blocks.len())).for_each(&mut free);
    let squeezed = pool.squeeze();
    gone |= squeezed.is_err();
    assert!(matches!(squeezed, Ok(_) | Err(Error::Unloaded)));
    blocks.drain(..).for_each(&mut free);
    pool.validate();
    let left = control!(faults_left());
    let made = all_calls();
    assert!(
        left > 0 || made == nth,
        "{made} calls were made, and call {nth} said that the driver is gone"
    );
    assert_eq!(pool.end().blocks, 0);
    let _ = gone;
    left == 0 && {
        assert_eq!(all_calls(), nth, "calls at the end");
        assert_eq!(pool.alloc(1, 0, on).map_err(|_| ()), Err(()));
        true
    }
}

#[test]
fn nothing_is_called_once_the_driver_says_that_it_is_gone() {
    let name = "nothing_is_called_once_the_driver_says_that_it_is_gone";
    if crate::common::standin::is_alone() {
        let nth = std::env::var("WEIR_TEST_NTH").unwrap().parse().unwrap();
        let _device = std::mem::ManuallyDrop::new(Device::open(0));
        let came = unloads(&programs()[0], nth);
        eprintln!("{}", if came { "it came" } else { "it did not come" });
        return;
    }
    // a driver that is gone stays gone: a process each
    for nth in 1.. {
        let nth_text = nth.to_string();
        let variables = [("WEIR_TEST_NTH", nth_text.as_str()), ("WEIR_STANDIN_LEAKS", "0")];
        let output = crate::common::standin::again(name, &variables);
        let said = crate::common::standin::stderr(&output);
        assert!(output.status.success(), "call {nth}: {said}");
        if !said.contains("it came") {
            assert!(nth > 30, "{nth} calls");
            break;
        }
    }
}
