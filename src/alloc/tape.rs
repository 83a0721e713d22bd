//! A round that comes again, call by call: where each allocation went, and what each free freed. As long as the program makes
//! the same calls they are answered from here, without the books, which stay as they were when the round began
//! (`replay` says when, and what follows a call that differs).
//!
//! A call is answered by its thread inside its gate, which is shut for all else, and moves the place on by a plain store: no
//! call pays for a locked instruction. Whoever ends the replay has that thread outside first, so each call was answered before that, or was not.
//!
//! The calls may be those of several streams (`company`): which of them a call is on is part of what it is.
//!
//! (Placing blocks where a recorded run had them: Sekiyama, Imai, Negishi, Kawachiya, "Profile-guided memory optimization for deep
//! neural networks", 2018. What is recorded here is the pool's own answers, which have held before.)
//!
//! Invariant: steps change only while the place is `OFF`.
//! Lock: the owner of the calls has the heap's, or is inside the gate of its cache (`Gate::enter_taped`, `Refused`); all others have the heap's, and the gate
//! is shut for them, too, but to read how far it came.

use crate::base::units::Addr;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
use std::hint::cold_path;
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of the longest round. (loom has few atomics.)
pub const STEPS: usize = if cfg!(loom) { 4 } else { 1 << 20 };
const CHUNK: usize = if cfg!(loom) { 4 } else { 1 << 10 };
const CHUNKS: usize = STEPS / CHUNK;

/// Place: | rounds 40 | step 24 |.
const STEP: u64 = (1 << 24) - 1;
const ROUND: u64 = STEP + 1;
const ROUNDS: u64 = OFF / ROUND;
const OFF: u64 = u64::MAX;

/// What a step is: the bytes asked for, or those of the block that is freed, whether it is the last one, whether it is an allocation,
/// whether the pool must hear of it, and on which of the round's streams it is.
const ALLOC: u64 = 1;
const LAST: u64 = 2;
const HEARD: u64 = 4;
const BYTES: u32 = 3;
const PART: u32 = 56;
/// So many bytes cannot be asked for.
const MANY: u64 = 1 << (PART - BYTES);

/// The stream of that number, as calls name it.
pub const fn part(number: usize) -> u64 {
    (number as u64) << PART
}
/// No stream of a round.
pub const NO_PART: u64 = u64::MAX << PART;

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
            chunks: Box::new([const { OnceLock::new() }; CHUNKS]),
        }
    }
}

impl Tape {
    /// The next call of the round, if it asks for so many bytes: where its block is.
    #[inline(always)]
    pub fn alloc(&self, part: u64, bytes: u64) -> Option<u64> {
        self.advance(|walk| walk.alloc(part, bytes))
    }

    /// The same for the pool, which may have had to hear of it.
    pub fn alloc_heard(&self, part: u64, bytes: u64) -> Option<u64> {
        self.advance(|walk| walk.alloc_heard(part, bytes))
    }

    /// The same if it frees that block, and the pool need not hear of it: its bytes.
    #[inline(always)]
    pub fn free(&self, part: u64, block: u64) -> Option<u64> {
        self.advance(|walk| walk.free(part, block))
    }

    /// The same for the pool: whether it had to hear of it, too.
    pub fn free_heard(&self, part: u64, block: u64) -> Option<(u64, bool)> {
        self.advance(|walk| walk.free_heard(part, block))
    }

    /// The next calls, if they ask for so many bytes each: where their blocks are. Otherwise no place of `out` is worth anything.
    pub fn alloc_all(&self, part: u64, sizes: &[u64], out: &mut [Addr]) -> bool {
        let all = self.advance(|walk| {
            for (place, &bytes) in out.iter_mut().zip(sizes) {
                *place = Addr(walk.alloc(part, bytes)?);
            }
            Some(())
        });
        all.is_some()
    }

    /// The same if they free these blocks, and the pool need not hear of one. Places with 0 are none.
    pub fn free_all(&self, part: u64, blocks: &[Addr]) -> bool {
        let all = self.advance(|walk| {
            for at in blocks.iter().filter(|at| at.0 != 0) {
                walk.free(part, at.0)?;
            }
            Some(())
        });
        all.is_some()
    }

    /// The same for the pool: whether it had to hear of one.
    pub fn free_all_heard(&self, part: u64, blocks: &[Addr]) -> Option<bool> {
        self.advance(|walk| {
            let mut heard = false;
            for at in blocks.iter().filter(|at| at.0 != 0) {
                heard |= walk.free_heard(part, at.0)?.1;
            }
            Some(heard)
        })
    }

    /// Goes over the next calls, and moves the place on if they are all what was asked for.
    #[inline(always)]
    fn advance<R>(&self, calls: impl FnOnce(&mut Walk) -> Option<R>) -> Option<R> {
        let place = self.place.load(Ordering::Relaxed);
        if place == OFF {
            return None;
        }
        let mut walk = Walk { tape: self, place };
        let answer = calls(&mut walk)?;
        self.place.store(walk.place, Ordering::Relaxed);
        Some(answer)
    }

    #[inline(always)]
    fn slot(&self, step: usize) -> Option<&Slot> {
        let Some(chunk) = self.chunks[step / CHUNK % CHUNKS].get() else {
            cold_path();
            return None;
        };
        Some(&chunk[step % CHUNK])
    }

    /// Has a replay begun, and not ended?
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.place.load(Ordering::Relaxed) != OFF
    }

    /// Begins to replay these calls, each of a `part`. Of those with these numbers, in ascending order, the pool must hear.
    pub fn begin(&self, steps: impl ExactSizeIterator<Item = (Step, u64)>, heard: &[usize]) {
        let count = steps.len();
        debug_assert!(!self.is_on() && count > 0 && count <= STEPS);
        let mut heard = heard.iter().copied().peekable();
        for (number, (step, part)) in steps.enumerate() {
            let empty = || Box::new(std::array::from_fn(|_| Slot::default()));
            let chunk = self.chunks[number / CHUNK].get_or_init(empty);
            let last = if number + 1 == count { LAST } else { 0 };
            let heard = heard.next_if_eq(&number).map_or(0, |_| HEARD);
            let (what, at) = match step {
                Step::Alloc { bytes, at } => (bytes << BYTES | ALLOC, at),
                Step::Free { bytes, at } => (bytes << BYTES, at),
            };
            debug_assert!(what < 1 << PART && part < NO_PART);
            chunk[number % CHUNK]
                .what
                .store(what | part | heard | last, Ordering::Relaxed);
            chunk[number % CHUNK].at.store(at, Ordering::Relaxed);
        }
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
    fn alloc(&mut self, part: u64, bytes: u64) -> Option<u64> {
        let wanted = bytes << BYTES | ALLOC | part;
        self.step(|what, at| (what & !LAST == wanted && bytes < MANY).then_some(at))
    }

    #[inline(always)]
    fn alloc_heard(&mut self, part: u64, bytes: u64) -> Option<u64> {
        let wanted = bytes << BYTES | ALLOC | part;
        self.step(|what, at| (what & !(LAST | HEARD) == wanted && bytes < MANY).then_some(at))
    }

    #[inline(always)]
    fn free(&mut self, part: u64, block: u64) -> Option<u64> {
        let of = NO_PART | ALLOC | HEARD;
        self.step(|what, at| (what & of == part && at == block).then_some((what & !NO_PART) >> BYTES))
    }

    #[inline(always)]
    fn free_heard(&mut self, part: u64, block: u64) -> Option<(u64, bool)> {
        let is_it = |what, at| what & (NO_PART | ALLOC) == part && at == block;
        self.step(|what, at| is_it(what, at).then_some(((what & !NO_PART) >> BYTES, what & HEARD != 0)))
    }

    #[inline(always)]
    fn step<R>(&mut self, is_it: impl FnOnce(u64, u64) -> Option<R>) -> Option<R> {
        let slot = self.tape.slot((self.place & STEP) as usize)?;
        let what = slot.what.load(Ordering::Relaxed);
        let answer = is_it(what, slot.at.load(Ordering::Relaxed))?;
        self.place = match what & LAST {
            0 => self.place + 1,
            _ => {
                cold_path(); // so that all other calls go straight on
                if self.place / ROUND == ROUNDS {
                    return None; // whoever ends it counts them
                }
                (self.place & !STEP) + ROUND
            }
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

    const SELF: u64 = part(1);

    fn tape() -> Tape {
        let steps = [
            Step::Alloc { bytes: 0, at: 512 },
            Step::Alloc { bytes: 7, at: 1024 },
            Step::Free { bytes: 256, at: 512 },
            Step::Free { bytes: 256, at: 1024 },
        ];
        let tape = Tape::default();
        tape.begin(steps.into_iter().map(|step| (step, SELF)), &[3]);
        tape
    }

    #[test]
    fn the_same_calls_are_answered_round_after_round() {
        let tape = tape();
        for rounds in 0..3 {
            assert_eq!(tape.alloc(SELF, 0), Some(512));
            assert_eq!(tape.alloc(SELF, 7), Some(1024));
            assert_eq!(tape.free(SELF, 512), Some(256));
            assert_eq!(tape.free(SELF, 1024), None, "the pool must hear of it");
            assert_eq!(tape.free_heard(SELF, 1024), Some((256, true)), "{rounds}");
        }
        assert_eq!(tape.alloc(SELF, 0), Some(512));
        assert_eq!(tape.end(), Some(Progress { rounds: 3, steps: 1 }));
        assert_eq!(tape.end(), None);
        assert_eq!(tape.alloc(SELF, 7), None, "it is off");
    }

    #[test]
    fn a_batch_is_answered_as_a_whole_or_not_at_all() {
        let tape = tape();
        let mut out = [Addr(0); 2];
        for rounds in 0..3 {
            assert!(!tape.alloc_all(SELF, &[0, 8], &mut out), "another length");
            assert!(tape.alloc_all(SELF, &[0, 7], &mut out));
            assert_eq!(out, [512, 1024].map(Addr));
            let blocks = [512, 0, 1024].map(Addr);
            assert_eq!(tape.free_all_heard(SELF, &[512, 512].map(Addr)), None, "twice");
            assert!(!tape.free_all(SELF, &blocks), "the pool must hear of it");
            assert_eq!(
                tape.progress(),
                Some(Progress { rounds, steps: 2 }),
                "nothing was freed"
            );
            match rounds {
                0 => assert_eq!(tape.free_all_heard(SELF, &blocks), Some(true)),
                // parts of a batch are batches
                _ => {
                    assert!(tape.free_all(SELF, &blocks[..2]));
                    assert_eq!(tape.free_all_heard(SELF, &blocks[2..]), Some(true));
                }
            }
        }
        // one that begins in a round and ends in the next one
        assert!(tape.alloc_all(SELF, &[0, 7], &mut out) && tape.free_all(SELF, &[Addr(512)]));
        assert!(!tape.alloc_all(SELF, &[0], &mut out), "a free is to come");
        assert_eq!(tape.free_heard(SELF, 1024), Some((256, true)));
        assert!(tape.alloc_all(SELF, &[], &mut []) && tape.free_all(SELF, &[Addr(0)]));
        assert_eq!(tape.end(), Some(Progress { rounds: 4, steps: 0 }));
        assert!(!tape.alloc_all(SELF, &[0], &mut out), "it is off");
    }

    #[test]
    fn a_call_that_differs_is_not_answered_and_changes_nothing() {
        let tape = tape();
        assert_eq!(tape.alloc(part(2), 0), None, "another stream's");
        assert_eq!(tape.alloc(NO_PART, 0), None, "no stream of the round's");
        assert_eq!(tape.alloc(SELF, 1), None, "another length");
        for high in 48..64 {
            assert_eq!(tape.alloc(SELF, 1 << high), None, "more than there is");
            assert_eq!(tape.alloc(part(0), 1 << high), None, "the same of another stream");
        }
        assert_eq!(
            tape.free(SELF, 512),
            None,
            "a free where an allocation is to come"
        );
        assert_eq!(tape.alloc(SELF, 0), Some(512));
        assert_eq!(tape.alloc(SELF, 7), Some(1024));
        assert_eq!(tape.free(SELF, 1024), None, "not its turn");
        assert_eq!(tape.alloc(SELF, 0), None, "an allocation where a free is to come");
        assert_eq!(tape.end(), Some(Progress { rounds: 0, steps: 2 }));
    }

    /// The pool hears of an allocation that takes memory over from another stream.
    #[test]
    fn each_call_is_on_its_stream() {
        let steps = [
            (Step::Alloc { bytes: 7, at: 512 }, part(0)),
            (Step::Free { bytes: 256, at: 512 }, part(1)),
            (Step::Alloc { bytes: 7, at: 512 }, part(0)),
            (Step::Free { bytes: 256, at: 512 }, part(0)),
        ];
        let tape = Tape::default();
        tape.begin(steps.into_iter(), &[2]);
        for _ in 0..3 {
            assert_eq!(tape.alloc(part(1), 7), None);
            assert_eq!(tape.alloc(part(0), 7), Some(512));
            assert_eq!(tape.free(part(0), 512), None);
            assert_eq!(tape.free_heard(part(0), 512), None);
            assert_eq!(tape.free(part(1), 512), Some(256));
            assert_eq!(tape.alloc(part(0), 7), None, "the pool must hear of it");
            assert_eq!(tape.alloc_heard(part(1), 7), None);
            assert_eq!(tape.alloc_heard(part(0), 7), Some(512));
            assert_eq!(tape.free(part(0), 512), Some(256));
        }
    }
}
