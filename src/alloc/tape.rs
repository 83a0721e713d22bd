//! A round that comes again, call by call: where each allocation went, and what each free freed. As long as the program makes
//! the same calls they are answered from here, without the books, which stay as they were when the round began
//! (`replay` says when, and what follows a call that differs).
//!
//! A call is answered by its thread inside its gate, which is shut for all else, and moves the place on by a plain store: no
//! call pays for a locked instruction. Whoever ends the replay has that thread outside first, so each call was answered before that, or was not.
//!
//! (Placing blocks where a recorded run had them: Sekiyama, Imai, Negishi, Kawachiya, "Profile-guided memory optimization for deep
//! neural networks", 2018. What is recorded here is the pool's own answers, which have held before.)
//!
//! Invariant: steps change only while the place is `OFF`.
//! Lock: the owner of the calls has the heap's, or is inside the gate of its cache (`Gate::enter_taped`); all others have the heap's, and the gate
//! is shut for them, too, but to read how far it came.

use crate::base::units::Addr;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of the longest round. (loom has few atomics.)
pub const STEPS: usize = if cfg!(loom) { 4 } else { 1 << 18 };
const CHUNK: usize = if cfg!(loom) { 4 } else { 1 << 10 };
const CHUNKS: usize = STEPS / CHUNK;

/// Place: | rounds 40 | step 24 |.
const STEP: u64 = (1 << 24) - 1;
const ROUND: u64 = STEP + 1;
const ROUNDS: u64 = OFF / ROUND;
const OFF: u64 = u64::MAX;

/// What a step is: the bytes asked for, or those of the block that is freed, whether it is the last one, whether it is an allocation, and
/// whether the pool must hear of it.
const ALLOC: u64 = 1;
const LAST: u64 = 2;
const HEARD: u64 = 4;
const BYTES: u32 = 3;

#[derive(Debug, Default)]
struct Slot {
    what: AtomicU64,
    at: AtomicU64,
}

/// A call of the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes were asked for, and got at this address.
    Alloc {
        /// As asked for.
        bytes: u64,
        /// The block.
        at: u64,
    },
    /// This block was freed.
    Free {
        /// Its bytes.
        bytes: u64,
        /// The block.
        at: u64,
    },
}

/// How far a replay came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whole rounds.
    pub rounds: u64,
    /// Steps of the next one.
    pub steps: usize,
}

/// The round.
#[derive(Debug)]
pub struct Tape {
    place: AtomicU64,
    /// The stream's whose calls they are.
    arena: AtomicU64,
    /// Both lengths are powers of two, so that to look into them cannot fail.
    chunks: Box<[OnceLock<Box<[Slot; CHUNK]>>; CHUNKS]>,
}

/// A look at the next calls of the round.
struct Walk<'a> {
    tape: &'a Tape,
    place: u64,
}

impl Default for Tape {
    fn default() -> Tape {
        Tape {
            place: AtomicU64::new(OFF),
            arena: AtomicU64::new(0),
            chunks: Box::new([const { OnceLock::new() }; CHUNKS]),
        }
    }
}

impl Tape {
    /// The next call of the round, if it asks for so many bytes: where its block is.
    #[inline(always)]
    pub fn alloc(&self, arena: u32, bytes: u64) -> Option<u64> {
        self.advance(arena, |walk| walk.alloc(bytes))
    }

    /// The same if it frees that block, and the pool need not hear of it: its bytes.
    #[inline(always)]
    pub fn free(&self, arena: u32, block: u64) -> Option<u64> {
        self.advance(arena, |walk| walk.free(block))
    }

    /// The same for the pool: whether it had to hear of it, too.
    pub fn free_heard(&self, arena: u32, block: u64) -> Option<(u64, bool)> {
        self.advance(arena, |walk| walk.free_heard(block))
    }

    /// The next calls, if they ask for so many bytes each: where their blocks are. Otherwise no place of `out` is worth anything.
    pub fn alloc_all(&self, arena: u32, sizes: &[u64], out: &mut [Addr]) -> bool {
        let all = self.advance(arena, |walk| {
            for (place, &bytes) in out.iter_mut().zip(sizes) {
                *place = Addr(walk.alloc(bytes)?);
            }
            Some(())
        });
        all.is_some()
    }

    /// The same if they free these blocks, and the pool need not hear of one. Places with 0 are none.
    pub fn free_all(&self, arena: u32, blocks: &[Addr]) -> bool {
        let all = self.advance(arena, |walk| {
            for at in blocks.iter().filter(|at| at.0 != 0) {
                walk.free(at.0)?;
            }
            Some(())
        });
        all.is_some()
    }

    /// The same for the pool: whether it had to hear of one.
    pub fn free_all_heard(&self, arena: u32, blocks: &[Addr]) -> Option<bool> {
        self.advance(arena, |walk| {
            let mut heard = false;
            for at in blocks.iter().filter(|at| at.0 != 0) {
                heard |= walk.free_heard(at.0)?.1;
            }
            Some(heard)
        })
    }

    /// Goes over the next calls, and moves the place on if they are all what was asked for.
    #[inline(always)]
    fn advance<R>(&self, arena: u32, calls: impl FnOnce(&mut Walk) -> Option<R>) -> Option<R> {
        let place = self.place.load(Ordering::Relaxed);
        if place == OFF || self.arena.load(Ordering::Relaxed) != u64::from(arena) {
            return None;
        }
        let mut walk = Walk { tape: self, place };
        let answer = calls(&mut walk)?;
        self.place.store(walk.place, Ordering::Relaxed);
        Some(answer)
    }

    #[inline(always)]
    fn slot(&self, step: usize) -> Option<&Slot> {
        let chunk = self.chunks[step / CHUNK % CHUNKS].get()?;
        Some(&chunk[step % CHUNK])
    }

    /// Has a replay begun, and not ended?
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.place.load(Ordering::Relaxed) != OFF
    }

    /// Begins to replay these calls of a stream. Of the frees with these numbers, in ascending order, the pool must hear.
    pub fn begin(&self, arena: u32, steps: impl ExactSizeIterator<Item = Step>, heard: &[usize]) {
        let count = steps.len();
        debug_assert!(!self.is_on() && count > 0 && count <= STEPS);
        let mut heard = heard.iter().copied().peekable();
        for (number, step) in steps.enumerate() {
            let empty = || Box::new(std::array::from_fn(|_| Slot::default()));
            let chunk = self.chunks[number / CHUNK].get_or_init(empty);
            let last = if number + 1 == count { LAST } else { 0 };
            let heard = heard.next_if_eq(&number).map_or(0, |_| HEARD);
            let (what, at) = match step {
                Step::Alloc { bytes, at } => (bytes << BYTES | ALLOC, at),
                Step::Free { bytes, at } => (bytes << BYTES | heard, at),
            };
            chunk[number % CHUNK].what.store(what | last, Ordering::Relaxed);
            chunk[number % CHUNK].at.store(at, Ordering::Relaxed);
        }
        self.arena.store(arena.into(), Ordering::Relaxed);
        self.place.store(0, Ordering::Relaxed);
    }

    /// How far the replay has come by now. None: there is none.
    pub fn progress(&self) -> Option<Progress> {
        Progress::at(self.place.load(Ordering::Relaxed))
    }

    /// Ends the replay: no call is answered from now on. None: there was none.
    pub fn end(&self) -> Option<Progress> {
        Progress::at(self.place.swap(OFF, Ordering::Relaxed))
    }
}

impl Walk<'_> {
    #[inline(always)]
    fn alloc(&mut self, bytes: u64) -> Option<u64> {
        self.step(|what, at| (what & !LAST == bytes << BYTES | ALLOC).then_some(at))
    }

    #[inline(always)]
    fn free(&mut self, block: u64) -> Option<u64> {
        self.step(|what, at| (what & (ALLOC | HEARD) == 0 && at == block).then_some(what >> BYTES))
    }

    #[inline(always)]
    fn free_heard(&mut self, block: u64) -> Option<(u64, bool)> {
        self.step(|what, at| (what & ALLOC == 0 && at == block).then_some((what >> BYTES, what & HEARD != 0)))
    }

    #[inline(always)]
    fn step<R>(&mut self, is_it: impl FnOnce(u64, u64) -> Option<R>) -> Option<R> {
        let slot = self.tape.slot((self.place & STEP) as usize)?;
        let what = slot.what.load(Ordering::Relaxed);
        let answer = is_it(what, slot.at.load(Ordering::Relaxed))?;
        self.place = match what & LAST {
            0 => self.place + 1,
            _ if self.place / ROUND == ROUNDS => return None, // whoever ends it counts them
            _ => (self.place & !STEP) + ROUND,
        };
        Some(answer)
    }
}

impl Progress {
    fn at(place: u64) -> Option<Progress> {
        (place != OFF).then_some(Progress {
            rounds: place / ROUND,
            steps: (place & STEP) as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: u32 = 1;

    fn tape() -> Tape {
        let steps = [
            Step::Alloc { bytes: 0, at: 512 },
            Step::Alloc { bytes: 7, at: 1024 },
            Step::Free { bytes: 256, at: 512 },
            Step::Free { bytes: 256, at: 1024 },
        ];
        let tape = Tape::default();
        tape.begin(ARENA, steps.into_iter(), &[3]);
        tape
    }

    #[test]
    fn the_same_calls_are_answered_round_after_round() {
        let tape = tape();
        for rounds in 0..3 {
            assert_eq!(tape.alloc(ARENA, 0), Some(512));
            assert_eq!(tape.alloc(ARENA, 7), Some(1024));
            assert_eq!(tape.free(ARENA, 512), Some(256));
            assert_eq!(tape.free(ARENA, 1024), None, "the pool must hear of it");
            assert_eq!(tape.free_heard(ARENA, 1024), Some((256, true)), "{rounds}");
        }
        assert_eq!(tape.alloc(ARENA, 0), Some(512));
        assert_eq!(tape.end(), Some(Progress { rounds: 3, steps: 1 }));
        assert_eq!(tape.end(), None);
        assert_eq!(tape.alloc(ARENA, 7), None, "it is off");
    }

    #[test]
    fn a_batch_is_answered_as_a_whole_or_not_at_all() {
        let tape = tape();
        let mut out = [Addr(0); 2];
        for rounds in 0..3 {
            assert!(!tape.alloc_all(ARENA, &[0, 8], &mut out), "another length");
            assert!(tape.alloc_all(ARENA, &[0, 7], &mut out));
            assert_eq!(out, [512, 1024].map(Addr));
            let blocks = [512, 0, 1024].map(Addr);
            assert_eq!(tape.free_all_heard(ARENA, &[512, 512].map(Addr)), None, "twice");
            assert!(!tape.free_all(ARENA, &blocks), "the pool must hear of it");
            assert_eq!(
                tape.progress(),
                Some(Progress { rounds, steps: 2 }),
                "nothing was freed"
            );
            match rounds {
                0 => assert_eq!(tape.free_all_heard(ARENA, &blocks), Some(true)),
                // parts of a batch are batches
                _ => {
                    assert!(tape.free_all(ARENA, &blocks[..2]));
                    assert_eq!(tape.free_all_heard(ARENA, &blocks[2..]), Some(true));
                }
            }
        }
        // one that begins in a round and ends in the next one
        assert!(tape.alloc_all(ARENA, &[0, 7], &mut out) && tape.free_all(ARENA, &[Addr(512)]));
        assert!(!tape.alloc_all(ARENA, &[0], &mut out), "a free is to come");
        assert_eq!(tape.free_heard(ARENA, 1024), Some((256, true)));
        assert!(tape.alloc_all(ARENA, &[], &mut []) && tape.free_all(ARENA, &[Addr(0)]));
        assert_eq!(tape.end(), Some(Progress { rounds: 4, steps: 0 }));
        assert!(!tape.alloc_all(ARENA, &[0], &mut out), "it is off");
    }

    #[test]
    fn a_call_that_differs_is_not_answered_and_changes_nothing() {
        let tape = tape();
        assert_eq!(tape.alloc(ARENA + 1, 0), None, "another stream's");
        assert_eq!(tape.alloc(ARENA, 1), None, "another length");
        assert_eq!(
            tape.free(ARENA, 512),
            None,
            "a free where an allocation is to come"
        );
        assert_eq!(tape.alloc(ARENA, 0), Some(512));
        assert_eq!(tape.alloc(ARENA, 7), Some(1024));
        assert_eq!(tape.free(ARENA, 1024), None, "not its turn");
        assert_eq!(
            tape.alloc(ARENA, 0),
            None,
            "an allocation where a free is to come"
        );
        assert_eq!(tape.end(), Some(Progress { rounds: 0, steps: 2 }));
    }
}
