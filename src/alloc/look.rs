//! Looks of a replay that several streams make (`company`): for which of them the next call has to know more before it takes over what
//! they used (`takeover`), and what was learned.
//!
//! Most streams that are looked at are done with it. So that costs little: one walk over what the call takes over, before it and after,
//! which allocates nothing, and one question for each stream. All else is for those that are not.
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::company::MANY;
use super::heap::Heap;
use super::note::Note;
use super::order::Uncovered;
use super::tape::part;
use crate::backend::Event;
use arrayvec::ArrayVec;
use std::time::{Duration, Instant};

/// Once in so many looks...
pub(super) const SELDOM: u64 = 64;
/// ...a stream has so many times as long to be seen without work: one without any may be late, and to end a replay costs more.
const LONGER: u32 = 10;

/// The host waits too much for its streams if it took so many looks at such as were at work, as many as are in vain in rounds that differ by
/// chance (`sharing`), and twice as many each time that a replay ended for that: where it comes to nothing it is soon seldom...
const LOOKS: u64 = 64;
/// ...in so many rounds, as many as these, or more...
const ROUNDS: u64 = 4;
/// ...and one part in so many of the time.
const PART_WAITED: u32 = 5;

/// What a replay has waited for streams that were at work, lately.
#[derive(Debug, Default)]
pub(super) struct AtWork {
    /// Streams were asked from then on, one of them said that it is, and the next look is for it.
    asked: Option<Instant>,
    /// When that was first, after how many calls, and until when the latest look took.
    since: Option<(Instant, u64, Instant)>,
    looks: u64,
    /// What these looks took, with the questions before them.
    waited: Duration,
}

impl AtWork {
    fn looked(&mut self, calls: u64, end: Instant) {
        let Some(start) = self.asked.take() else { return };
        let (first, from, _) = self.since.unwrap_or((start, calls, end));
        self.since = Some((first, from, end));
        self.looks += 1;
        self.waited += end - start;
    }

    /// Were there so many looks, in enough rounds of so many calls? It was much if they took much of the time; and it begins anew.
    fn was_much(&mut self, looks: u64, calls: u64, round: u64) -> bool {
        let Some((first, from, last)) = self.since else {
            return false;
        };
        if self.looks < looks || calls - from < ROUNDS * round {
            return false;
        }
        let waited = std::mem::take(self).waited;
        waited * PART_WAITED > last - first
    }
}

/// As many as may make a round together.
pub type Few<T> = ArrayVec<T, MANY>;

impl Heap {
    /// Streams of whose work the host must know more before the next call of the replay can be answered, if that is this one: those on
    /// which an event is to be recorded, if they have none yet.
    pub fn awaited(&mut self, own: &Cache, bytes: u64) -> Few<u32> {
        let mut awaited = Few::new();
        if !self.replay.company.is_several() {
            return awaited;
        }
        let Some(progress) = self.replay.tape.progress() else {
            return awaited;
        };
        let asks = |note: &Note| part(note.part()) == own.part() && note.asks_for(bytes, note.part());
        let next = self.replay.recording.notes().get(progress.steps);
        if !next.is_some_and(asks) {
            return awaited;
        }
        self.see_completed();
        let company = &mut self.replay.company;
        company.latest = company.first_from(progress.steps);
        let by = company.part_of(own.arena);
        for (from, calls) in company.next(progress) {
            let waits = by.map_or(0, |by| company.waited.of(by, from));
            if company.seen[from].calls.max(waits) < calls {
                awaited.push(company.members()[from]);
            }
        }
        awaited
    }

    /// What was waited for may be complete.
    fn see_completed(&mut self) {
        let company = &mut self.replay.company;
        for number in 0..company.seen.len() {
            if let Some((calls, covers)) = company.seen[number].waited_for {
                let arena = self.arenas[company.members()[number] as usize].as_ref();
                if arena.is_none_or(|arena| arena.completed >= covers) {
                    let seen = &mut company.seen[number];
                    seen.calls = seen.calls.max(calls);
                    seen.waited_for = None;
                }
            }
        }
    }

    /// Of these streams those that need an event that covers all they have done until now: the next call needs it.
    pub fn cover_for_takeover(&mut self, streams: &[u32]) -> Few<Uncovered> {
        let mut uncovered = Few::new();
        let Some(progress) = self.replay.tape.progress() else {
            return uncovered;
        };
        let calls = self.replay.company.calls(progress);
        for &stream in streams {
            let (Some(number), Some(arena)) = (
                self.replay.company.part_of(stream),
                self.arenas[stream as usize].as_mut(),
            ) else {
                continue;
            };
            // not `advance`: this is so whether threads have caches or not
            arena.tick(0);
            let (line, covers) = (arena.id, arena.seq);
            let Some(name) = arena.reach else { continue };
            self.replay.company.seen[number].waited_for = Some((calls, covers));
            uncovered.push((stream, line, name, covers));
        }
        uncovered
    }

    /// The event that a call waits for which needs a stream's work to be complete, and what it covers: the latest, or in a replay the one
    /// that is for what is taken over.
    pub fn awaited_event(&self, stream: u32) -> Option<(Event, u64)> {
        let events = &self.arenas[stream as usize].as_ref()?.events;
        let replay = self
            .replay
            .company
            .part_of(stream)
            .filter(|_| self.replay.is_on());
        let number = replay.and_then(|part| Some(self.replay.company.seen[part].waited_for?.1));
        let covers = |event: &&(Event, u64)| number.is_some_and(|number| event.1 >= number);
        events.iter().find(covers).or(events.back()).copied()
    }

    /// What is taken over is looked at: so many times as long as usual may that take.
    pub fn patience_for_takeover(&self) -> u32 {
        match self.replay.company.looks < SELDOM {
            true => 1,
            false => LONGER,
        }
    }

    /// It was, and took longer than usual, or not.
    pub fn looked_for_takeover(&mut self, longer: bool) {
        let looks = &mut self.replay.company.looks;
        *looks = if longer { 0 } else { *looks + 1 };
    }

    /// Has a stream said in this replay that it is at work? Then it matters what questions take.
    pub fn was_at_work_before_takeover(&self) -> bool {
        self.replay.company.at_work.since.is_some()
    }

    /// One of those to be looked at, which were asked from `start` on, has work left.
    pub fn is_at_work_before_takeover(&mut self, start: Instant) {
        self.replay.company.at_work.asked = Some(start);
    }

    /// They were looked at, until `end`.
    pub fn waited_for_takeover(&mut self, end: Instant) {
        let company = &mut self.replay.company;
        if let Some(progress) = self.replay.tape.progress() {
            let calls = company.calls(progress);
            company.at_work.looked(calls, end);
        }
    }

    /// Does the host spend its time on waiting for streams that are at work? Then the replay is to end, and rounds differ by chance: by heart
    /// it would never be found out that streams had better keep to themselves.
    pub fn waits_too_much(&mut self) -> bool {
        let looks = LOOKS << self.sharing.has_waited().min(u64::BITS / 2);
        let company = &mut self.replay.company;
        let Some(progress) = self.replay.tape.progress() else {
            return false;
        };
        let (calls, round) = (company.calls(progress), company.round);
        let too_much = self.sharing.is_by_looks() && company.at_work.was_much(looks, calls, round);
        if too_much {
            self.sharing.found_waiting();
            self.replay.recording.looked_in_vain();
        }
        too_much
    }
}
