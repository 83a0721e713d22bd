//! The hand-off of events, in every interleaving that loom finds: a number is read under the lock of the books,
//! the event is recorded outside it, and is entered under it again. Meanwhile others free, poll, synchronise,
//! and see the stream forgotten. The books are the pool's own (`alloc::order`); the device is a counter.
//!
//! `make test-loom`

#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use weir::alloc::directory::{CELL, Directory, Marks};
use weir::alloc::gate::{Gate, Shut};
use weir::alloc::heap::Heap;
use weir::alloc::order::Clock;
use weir::alloc::size::GRAIN;
use weir::alloc::standing::{Sole, Standing};
use weir::alloc::tape::{Progress, Step, Tape, part};
use weir::backend::Event;
use weir::base::units::{StreamId, Timeline};
use weir::config::Reuse;

const STREAM: Timeline = Timeline::of(StreamId(7));

/// A free: the stream's index and the free's number, and how far the device must be before the memory may be
/// anybody's.
struct Free {
    index: u32,
    seq: u64,
    position: u64,
}

struct Pool {
    /// `Pool::heap`
    books: Mutex<(Heap, Vec<Free>)>,
    /// Work queued on the stream, and done.
    queued: AtomicU64,
    done: AtomicU64,
    eager: bool,
}

fn directory() -> std::sync::Arc<Directory> {
    std::sync::Arc::new(Directory::new().expect("room for it"))
}

impl Pool {
    fn new(eager: bool) -> Arc<Pool> {
        let reuse = Reuse {
            event_dependencies: true,
            opportunistic: eager,
            internal_dependencies: true,
        };
        Arc::new(Pool {
            books: Mutex::new((Heap::new(2 << 20, reuse, u64::MAX, directory()), Vec::new())),
            queued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            eager,
        })
    }

    /// An event stands for the work queued when it was recorded, as `Pool::record_if` has it.
    fn record(&self) -> Event {
        let position = self.queued.load(Ordering::SeqCst);
        if self.eager && self.done.load(Ordering::SeqCst) >= position {
            Event::COMPLETE
        } else {
            Event(position)
        }
    }

    /// `Pool::free` and `Pool::record_if`.
    fn free(&self) {
        // the last work that uses the block
        let position = self.queued.fetch_add(1, Ordering::SeqCst) + 1;
        let (index, due) = {
            let (heap, frees) = &mut *self.books.lock().unwrap();
            let index = heap.stream(STREAM);
            let seq = heap.arena_mut(index).tick(4 << 20);
            frees.push(Free { index, seq, position });
            (index, heap.event_due(index))
        };
        let Some(covers) = due else { return };
        let event = self.record();
        let mut books = self.books.lock().unwrap();
        books.0.add_event(index, event, covers, &mut Vec::new());
        self.check(&books);
    }

    /// `Pool::poll`
    fn poll(&self) {
        let events: Vec<(u32, Vec<(Event, u64)>)> = {
            let heap = &self.books.lock().unwrap().0;
            heap.streams()
                .map(|stream| (stream, heap.arena(stream).events.iter().copied().collect()))
                .collect()
        };
        let done = self.done.load(Ordering::SeqCst);
        let mut clock = Clock::new();
        for (stream, events) in events {
            let complete = events.iter().take_while(|event| event.0.0 <= done);
            if let Some(last) = complete.last() {
                clock.push((stream, last.1));
            }
        }
        self.confirm(&clock);
    }

    /// `Pool::mark_all`, the synchronise, and `Pool::synchronized`
    fn synchronize(&self) {
        let clock = self.books.lock().unwrap().0.clock_of_all();
        self.done
            .fetch_max(self.queued.load(Ordering::SeqCst), Ordering::SeqCst);
        self.confirm(&clock);
    }

    fn confirm(&self, clock: &Clock) {
        let mut books = self.books.lock().unwrap();
        books.0.complete(clock, &mut Vec::new());
        books.0.absorb_complete(None);
        self.check(&books);
    }

    /// What the books hold to be complete, the device has done.
    fn check(&self, (heap, frees): &(Heap, Vec<Free>)) {
        let done = self.done.load(Ordering::SeqCst);
        for free in frees {
            assert!(
                done >= free.position || !heap.is_complete(free.index, free.seq),
                "free {} of stream {} counts as complete at {done}, but waits for {}",
                free.seq,
                free.index,
                free.position
            );
        }
    }

    /// In the end no free is forgotten: after one more event on the stream all of them are everybody's.
    fn finish(&self) {
        self.free();
        self.synchronize();
        let (heap, frees) = &*self.books.lock().unwrap();
        assert!(frees.iter().all(|free| heap.is_complete(free.index, free.seq)));
    }
}

fn explore(eager: bool, tasks: &'static [fn(&Pool)]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let pool = Pool::new(eager);
        let threads: Vec<_> = tasks
            .iter()
            .map(|task| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || task(&pool))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        pool.finish();
    });
}

#[test]
fn an_event_covers_only_what_was_published_before() {
    for eager in [false, true] {
        explore(
            eager,
            &[Pool::free, Pool::free, |pool| {
                pool.done.store(1, Ordering::SeqCst);
                pool.poll();
            }],
        );
    }
}

#[test]
fn polls_and_synchronises_may_meet() {
    for eager in [false, true] {
        explore(
            eager,
            &[Pool::free, Pool::synchronize, |pool| {
                pool.poll();
                pool.free();
            }],
        );
    }
}

#[test]
fn a_stream_may_be_forgotten_and_come_back() {
    for eager in [false, true] {
        explore(
            eager,
            &[
                |pool| {
                    pool.free();
                    pool.free();
                },
                |pool| {
                    pool.synchronize();
                    pool.free();
                    pool.poll();
                },
            ],
        );
    }
}

/// A thread's cache and its visitor: never both inside, and each sees what the other did there.
#[test]
fn the_owner_and_a_visitor_are_never_in_a_cache_at_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let gate = Arc::new(Gate::default());
        let inside = Arc::new(AtomicU64::new(0));
        let kept = Arc::new(AtomicU64::new(0));
        let owner = {
            let (gate, inside, kept) = (Arc::clone(&gate), Arc::clone(&inside), Arc::clone(&kept));
            thread::spawn(move || {
                let mut done = 0;
                for _ in 0..2 {
                    if let Some(_pass) = gate.enter() {
                        assert_eq!(inside.swap(1, Ordering::Relaxed), 0);
                        kept.store(kept.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        inside.store(0, Ordering::Relaxed);
                        done += 1;
                    }
                }
                done
            })
        };
        gate.shut(Shut::Visit);
        Gate::announce();
        gate.wait();
        assert_eq!(inside.swap(2, Ordering::Relaxed), 0);
        let taken = kept.swap(0, Ordering::Relaxed);
        inside.store(0, Ordering::Relaxed);
        gate.open(Shut::Visit);
        let done = owner.join().unwrap();
        assert_eq!(taken + kept.load(Ordering::Relaxed), done);
    });
}

/// A thread that is alone in a pool, or on a stream, frees a block, and another one, with a cache for another stream, frees it, too: one of them
/// finds out.
#[test]
fn of_two_frees_one_is_right_while_a_second_thread_comes() {
    const AT: u64 = 1 << 30;
    const CLASS: usize = 3;
    for (small, sole) in [true, false]
        .into_iter()
        .flat_map(|small| [(small, Sole::OfPool), (small, Sole::OfStream)])
    {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let directory = directory();
            directory.cover(AT, 2 * CELL).expect("room");
            if small {
                directory.begin_run(AT, CLASS, 1);
                directory.begin_small(AT, CLASS);
            } else {
                directory.begin(AT, 2 * CELL, false);
                let site = directory.spot(AT).expect("a block").look().site();
                let grains = 2 * CELL / GRAIN;
                directory.hand_out_large((AT, site), grains, Marks::of(1).handed_out(true));
            }
            let alone = Arc::new((Gate::default(), Standing::of(&Marks::of(1))));
            alone.1.set(sole, &Marks::of(1));
            let books = Arc::new(Mutex::new(()));
            let other = {
                let (alone, books, directory) = (alone.clone(), books.clone(), directory.clone());
                thread::spawn(move || {
                    // who is alone in the pool hears of it as soon as anybody comes
                    if sole == Sole::OfPool {
                        let _books = books.lock().unwrap();
                        tell(&alone, &Marks::of(1));
                    }
                    let own = (Gate::default(), Standing::of(&Marks::of(2)));
                    if keep(&own, &directory, (AT, 2)).is_some() {
                        return true;
                    }
                    let _books = books.lock().unwrap();
                    if directory.reserved_for(AT) == Some(1) {
                        tell(&alone, &Marks::of(1));
                    }
                    directory.end(AT).is_ok()
                })
            };
            let own = keep(&alone, &directory, (AT, 1)).is_some() || {
                let _books = books.lock().unwrap();
                directory.end(AT).is_ok()
            };
            assert!(own != other.join().unwrap());
        });
    }
}

/// A thread that is alone on a stream frees for a second time what was a block of its slab, while that becomes another stream's: it keeps no
/// block of that one.
#[test]
fn what_was_looked_up_in_a_slab_is_not_used_when_that_is_anothers() {
    const AT: u64 = 1 << 30;
    const CLASS: usize = 3;
    loom::model(|| {
        let directory = directory();
        directory.cover(AT, 2 * CELL).expect("room");
        directory.begin_run(AT, CLASS, 1);
        let alone = Arc::new((Gate::default(), Standing::of(&Marks::of(1))));
        alone.1.set(Sole::OfStream, &Marks::of(1));
        let other = {
            let (alone, directory) = (alone.clone(), directory.clone());
            thread::spawn(move || {
                // as `Heap::see_run_end` has it
                Gate::shut_out(std::iter::once(&alone.0), Shut::Told);
                alone.0.open(Shut::Told);
                directory.end_run(AT, CLASS);
                directory.begin_run(AT, CLASS, 2);
                directory.begin_small(AT, CLASS);
                let own = (Gate::default(), Standing::of(&Marks::of(2)));
                own.1.set(Sole::OfStream, &Marks::of(2));
                thread::yield_now();
                keep(&own, &directory, (AT, 2)).is_some()
            })
        };
        assert!(keep(&alone, &directory, (AT, 1)).is_none());
        assert!(other.join().unwrap());
    });
}

/// As `Cache::keep` has it, in the cache for an arena.
fn keep((gate, standing): &(Gate, Standing), directory: &Directory, (at, arena): (u64, u32)) -> Option<()> {
    let _pass = gate.enter()?;
    let spot = directory.spot(at)?;
    let (look, marks) = (spot.look(), Marks::of(arena));
    match look.class(&marks) {
        Some(class) => spot.keep_small(class, standing).map(drop),
        None => look.keep_large(at, &marks, standing, |_| true).map(drop),
    }
}

/// As the heap tells the owner of a cache that it is not alone any more.
fn tell((gate, standing): &(Gate, Standing), marks: &Marks) {
    Gate::shut_out(std::iter::once(gate), Shut::Told);
    standing.set(Sole::No, marks);
    gate.open(Shut::Told);
}

/// A round of a tape whose blocks lie from `base` on.
fn round(base: u64) -> [Step; 3] {
    [
        Step::Alloc {
            bytes: 1,
            at: base + 512,
        },
        Step::Alloc {
            bytes: 1,
            at: base + 1024,
        },
        Step::Free {
            bytes: 512,
            at: base + 512,
        },
    ]
}

/// While the owner's calls are answered somebody ends the replay, and it begins anew with other blocks: each answer is one of those that
/// were counted when its replay ended, and has a block of that one.
#[test]
fn who_ends_a_replay_counts_what_was_answered() {
    const SELF: u64 = part(1);
    const LATER: u64 = 1 << 20;
    loom::model(|| {
        let both = Arc::new((Gate::default(), Tape::default()));
        both.0.shut(Shut::Taped);
        both.1.begin(round(0).into_iter().map(|step| (step, SELF)), &[]);
        let ends = {
            let both = both.clone();
            thread::spawn(move || {
                let (gate, tape) = &*both;
                gate.shut(Shut::Visit);
                Gate::announce();
                gate.wait();
                let first = tape.end().expect("it was on");
                tape.begin(round(LATER).into_iter().map(|step| (step, SELF)), &[]);
                gate.open(Shut::Visit);
                first
            })
        };
        let (gate, tape) = &*both;
        let alloc = || {
            let _pass = gate.enter_taped()?;
            tape.alloc(SELF, 1)
        };
        let free = |at| {
            let _pass = gate.enter_taped()?;
            tape.free(SELF, at)
        };
        let (mut first, mut later) = (0, 0);
        let mut count = |at: u64| if at < LATER { first += 1 } else { later += 1 };
        let last = alloc();
        last.into_iter().for_each(&mut count);
        alloc().into_iter().for_each(&mut count);
        if let Some(at) = last
            && free(at).is_some()
        {
            count(at);
        }
        let done = ends.join().unwrap();
        let steps = |progress: Progress| progress.rounds * 3 + progress.steps as u64;
        assert_eq!((steps(done), steps(tape.end().unwrap())), (first, later));
    });
}

/// Two threads whose calls are answered by turns, and who reads the tape has the other one outside: each answer is the next one.
#[test]
fn the_tape_goes_from_thread_to_thread() {
    const SELF: u64 = part(1);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let step = |number: u64| Step::Alloc {
            bytes: 1,
            at: number << 9,
        };
        let tape = Tape::default();
        tape.begin([1, 2, 3, 4].map(step).into_iter().map(|step| (step, SELF)), &[]);
        let gates = [Gate::default(), Gate::default()];
        gates.iter().for_each(|gate| gate.shut(Shut::Taped));
        gates[1].shut(Shut::Away);
        let all = Arc::new((tape, gates, Mutex::new(())));
        let calls = |own: usize| {
            let all = all.clone();
            move || {
                let (tape, gates, books) = &*all;
                let (gate, other) = (&gates[own], &gates[1 - own]);
                let alloc = || {
                    if let Some(_pass) = gate.enter_taped() {
                        return tape.alloc(SELF, 1);
                    }
                    let _books = books.lock().unwrap();
                    if gate.is_shut(Shut::Away) {
                        Gate::shut_out(std::iter::once(other), Shut::Away);
                        gate.open(Shut::Away);
                    }
                    tape.alloc(SELF, 1)
                };
                [alloc(), alloc()]
            }
        };
        let other = thread::spawn(calls(1));
        let own = calls(0)();
        let mut had = [own, other.join().unwrap()].concat();
        had.sort_unstable();
        assert_eq!(had, [1, 2, 3, 4].map(|number: u64| Some(number << 9)));
    });
}
