//! Who may touch a thread's cache: its owner, at every call and at no cost, or now and then somebody else.
//!
//! The owner says that it is inside, then looks whether the gate is shut; whoever shuts the gate does so first and then
//! looks whether the owner is inside. Each writes before it reads, so at least one of them sees the other (Dekker's
//! algorithm; the fences are `backend::fence`). The owner never waits: at a shut gate it turns round. The others wait
//! for the owner to come out, which takes it nanoseconds.
//!
//! Where the owner's calls are answered from the tape the gate is shut for the cache, and open to the tape: unless it is shut for another
//! reason, too.
//!
//! Invariant: while the gate is shut and `wait` has returned, the owner is not inside, but for the tape where that is the reason.
//! Lock: those who shut gates hold the pool's `Heap` lock from `shut` to `open`, so they exclude each other.

#[cfg(not(loom))]
use crate::backend::fence::{full, heavy, is_one_sided, light};
#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread::yield_now,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread::yield_now,
};

/// loom knows no fences that cost one side nothing.
#[cfg(loom)]
fn is_one_sided() -> bool {
    false
}
#[cfg(loom)]
fn light() {}
#[cfg(loom)]
fn full() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}
#[cfg(loom)]
fn heavy() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Why a gate is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Shut {
    /// Somebody is at work inside.
    Visit = 1,
    /// Nothing is to be kept just now.
    Idle = 2,
    /// The owner should come to the pool itself once.
    Call = 4,
    /// For good.
    Ended = 8,
    /// The owner's calls are recorded, or answered from the tape.
    Taped = 64,
    /// Another thread's are.
    Away = 128,
    /// The owner is told something, or waited for.
    Told = 256,
}

/// Beside the reasons: the owner needs a fence of its own. So one look finds that neither holds, as it nearly always is.
const FENCED: u32 = 16;
/// And: the owner has something to ask before it goes in.
const ASKS: u32 = 32;
/// Reasons that do not matter to who answers from the tape: it keeps nothing, and need not come to the pool.
const NOT_THE_TAPES: u32 = Shut::Idle as u32 | Shut::Call as u32;
const TAPED: u32 = Shut::Taped as u32;

/// The gate.
#[derive(Debug)]
pub struct Gate {
    inside: AtomicBool,
    /// Reasons, `FENCED` and `ASKS`.
    shut: AtomicU32,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            inside: AtomicBool::new(false),
            shut: AtomicU32::new(if is_one_sided() { 0 } else { FENCED }),
        }
    }
}

/// The owner is inside as long as it has this.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// The owner goes in, unless the gate is shut. Only one thread ever calls this.
    #[inline(always)]
    pub fn enter(&self) -> Option<Pass<'_>> {
        let word = self.enter_asked();
        let pass = Pass(self);
        (word == 0).then_some(pass)
    }

    /// The same where the owner needs no fence of its own and has nothing to ask; where it does, the gate is shut to it. Gives the word
    /// that says so, or 0 if it is open: the owner is inside in either case until it calls `leave`, so that what the word says of the
    /// tape holds as well.
    #[inline(always)]
    pub fn enter_quick(&self) -> u32 {
        self.inside.store(true, Ordering::Relaxed);
        light();
        self.shut.load(Ordering::Acquire)
    }

    /// Is the gate that gave this word open to the tape, though to nothing else?
    #[inline(always)]
    pub fn is_to_tape(word: u32) -> bool {
        word & !NOT_THE_TAPES == TAPED
    }

    /// The same where it may need a fence of its own, and has asked what it has to ask.
    #[inline(always)]
    pub fn enter_taped(&self) -> Option<Pass<'_>> {
        let word = self.enter_asked();
        let pass = Pass(self);
        Gate::is_to_tape(word).then_some(pass)
    }

    /// As `enter_quick`, where it may need a fence of its own, and has asked what it has to ask: the word says neither.
    #[inline(always)]
    pub fn enter_asked(&self) -> u32 {
        match self.enter_quick() {
            word if word & FENCED == 0 => word & !ASKS,
            _ => self.behind_fence(),
        }
    }

    #[cold]
    #[inline(never)]
    fn behind_fence(&self) -> u32 {
        full();
        self.shut.load(Ordering::Acquire) & !(FENCED | ASKS)
    }

    /// Is `enter_quick` of use? Else it lets nobody in.
    pub fn is_quick(&self) -> bool {
        self.shut.load(Ordering::Relaxed) & (FENCED | ASKS) == 0
    }

    /// From now on the owner has something to ask before it goes in.
    pub fn asks(&self) {
        self.shut.fetch_or(ASKS, Ordering::Relaxed);
    }

    /// Shuts the gate for a reason. The owner may still be inside until `wait` returns.
    pub fn shut(&self, why: Shut) {
        self.shut.fetch_or(why as u32, Ordering::Relaxed);
    }

    /// The reason is no more.
    pub fn open(&self, why: Shut) {
        self.shut.fetch_and(!(why as u32), Ordering::Release);
    }

    /// Is it shut for this reason?
    pub fn is_shut(&self, why: Shut) -> bool {
        self.shut.load(Ordering::Relaxed) & why as u32 != 0
    }

    /// Is it shut for this reason, and for no other?
    pub fn is_shut_only(&self, why: Shut) -> bool {
        self.shut.load(Ordering::Relaxed) & !(FENCED | ASKS) == why as u32
    }

    /// Shuts all these, and waits until their owners are outside.
    pub fn shut_out<'a>(gates: impl Iterator<Item = &'a Gate> + Clone, why: Shut) {
        gates.clone().for_each(|gate| gate.shut(why));
        Gate::announce();
        gates.for_each(Gate::wait);
    }

    /// Makes what `shut` did before visible to all owners. Once for any number of gates.
    pub fn announce() {
        heavy();
    }

    /// After `shut` and `announce`: waits until the owner is outside. What it did inside is then visible.
    pub fn wait(&self) {
        while self.inside.load(Ordering::Acquire) {
            yield_now();
        }
    }

    /// The owner goes out.
    #[inline(always)]
    pub fn leave(&self) {
        self.inside.store(false, Ordering::Release);
    }
}

impl Drop for Pass<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::backend::fence::prepare;

    #[test]
    fn to_the_tape_only_where_nobody_else_is_at_work() {
        prepare();
        let gate = Gate::default();
        let quick = |gate: &Gate| {
            let word = gate.enter_quick();
            gate.leave();
            match (word == 0, Gate::is_to_tape(word)) {
                (open, taped) if open == taped => {
                    assert!(!open, "two ways in");
                    None
                }
                (_, taped) => Some(taped),
            }
        };
        let (open, taped) = match is_one_sided() {
            true => (Some(false), Some(true)),
            false => (None, None), // a fence takes longer
        };
        assert_eq!(quick(&gate), open);
        assert!(gate.enter_taped().is_none(), "there is no tape");
        gate.shut(Shut::Taped);
        for beside in [Shut::Idle, Shut::Call] {
            gate.shut(beside);
            assert_eq!(quick(&gate), taped, "{beside:?}");
            assert!(gate.enter_taped().is_some(), "{beside:?}");
        }
        for apart in [Shut::Visit, Shut::Ended] {
            gate.shut(apart);
            assert_eq!(quick(&gate), None, "{apart:?}");
            assert!(gate.enter_taped().is_none(), "{apart:?}");
            gate.open(apart);
        }
        gate.asks();
        assert_eq!(quick(&gate), None, "it has something to ask");
        assert!(gate.enter_taped().is_some(), "it has asked");
        gate.open(Shut::Taped);
        assert!(gate.enter().is_none(), "it is still idle");
    }
}
