//! Rounds that several streams make together (`replay`): each call is on one of them, which is a *part* of the round, and memory goes from
//! one to another.
//!
//! In the round as it was recorded the host had seen, each time a stream got memory that another one had used, that this had done its
//! work. Of the next round that says nothing. So of a call that takes memory over (`takeover`) the pool hears: it looks (`look`) whether the
//! stream that used it last has no work, or an event of it is complete. If it is not, and the call's stream may not wait for it, the replay ends, and the books serve the request in some other way. The event is
//! recorded just then, or, where the pool can record one only in calls that name the stream, in one of its frees before,
//! of which the pool hears, too. The first round that is replayed needs some of the one that was recorded: it begins once the books have them.
//! Where streams wait for each other the call's stream waits for the event, complete or not, and elsewhere if that is seldom (`waited`).
//!
//! When the books make up for a replay each free byte becomes the stream's that used it last, under a fresh number. What was used before
//! that need not be known: who took it over had seen it complete, or waits for it.
//!
//! The streams are all that the pool knows, and none makes nearly all calls (then the others may be `guests`). Slabs serve their owner: where
//! another stream frees one of their blocks nothing is replayed.
//!
//! No lock of its own: the heap's.

use super::heap::Heap;
use super::look::{AtWork, SELDOM};
use super::node::{Kind, NIL, NodeId};
use super::note::{Extent, Note, low_points};
use super::order::COMMON;
use super::period::LAST;
use super::takeover::{Takeover, Touches};
use super::tape::{NO_PART, Progress, Step, part};
use super::waited::Waited;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// So many streams at most.
pub(super) const MANY: usize = 8;

/// What is known of a stream's work in the replay. Calls are counted from the beginning of the round that was recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// What it did in so many calls is complete.
    pub(super) calls: u64,
    /// An event that is complete once the stream has come to the number was recorded after so many.
    pub(super) waited_for: Option<(u64, u64)>,
    /// The same of the latest one that was recorded in a free of which the pool heard.
    heard: Option<(u64, u64)>,
}

/// May a round be replayed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    Now,
    /// Events are missing that streams may have at their next calls.
    Later,
    Never,
}

/// How far a replay had come at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    /// Which one it was.
    number: u64,
    pub(super) calls: u64,
}

/// The streams whose calls are recorded or replayed.
#[derive(Debug, Default)]
pub struct Company {
    members: Vec<u32>,
    /// Of the round that is replayed, by step.
    takeovers: Vec<Takeover>,
    /// The one that was looked for last: the next one is most likely the one after it.
    pub(super) latest: usize,
    /// Its calls that record an event for one of them, in order.
    events: Vec<usize>,
    /// Its calls of which the pool has to hear.
    heard: Vec<usize>,
    pub(super) seen: Vec<Seen>,
    /// Streams wait for each other on the device.
    pub(super) by_waits: bool,
    /// Each is told from all others where they take over, so that it may wait alone.
    pub(super) by_pairs: bool,
    pub(super) waited: Waited,
    /// While calls are recorded: the latest event of each was due after so many calls of the program, and covers that number.
    due: Vec<Option<(u64, u64)>>,
    /// A round is ready to be replayed but for events of its streams.
    wants_events: bool,
    /// Looks since the last one that took longer.
    pub(super) looks: u64,
    pub(super) at_work: AtWork,
    /// Calls of that round.
    pub(super) round: u64,
    /// By what this replay is told from others.
    number: u64,
}

impl Company {
    /// Of these streams.
    pub fn new(members: Vec<u32>) -> Company {
        Company {
            due: vec![None; members.len()],
            members,
            ..Company::default()
        }
    }

    /// The first of them.
    pub fn host(&self) -> u32 {
        self.members.first().copied().unwrap_or(COMMON)
    }

    /// All.
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Are they several?
    pub fn is_several(&self) -> bool {
        self.members.len() > 1
    }

    /// Which one that is, if it is one.
    pub fn part_of(&self, arena: u32) -> Option<usize> {
        self.members.iter().position(|&member| member == arena)
    }

    /// A round is going to be replayed, with these takeovers and calls of which the pool has to hear.
    fn begin(&mut self, round: usize, takeovers: Vec<Takeover>, heard: Vec<usize>) {
        self.round = round as u64;
        let events = takeovers.iter().filter_map(|takeover| takeover.event_step(round));
        self.events = events.collect();
        self.events.sort_unstable();
        (self.takeovers, self.heard) = (takeovers, heard);
        (self.wants_events, self.looks) = (false, SELDOM);
        self.at_work = AtWork::default();
        self.due.fill(None);
    }

    /// The calls of which the pool has to hear.
    pub fn heard(&self) -> &[usize] {
        &self.heard
    }

    /// Does a stream that is beyond reach need an event as soon as it has freed something?
    pub(super) fn wants_events(&self, stream: u32) -> bool {
        self.wants_events && self.part_of(stream).is_some()
    }

    /// While calls are recorded: an event is due on a stream that covers all it did in so many calls of the program, by that number.
    pub(super) fn event_is_due(&mut self, stream: u32, calls: u64, number: u64) {
        if let Some(part) = self.part_of(stream) {
            self.due[part] = Some((calls, number));
        }
    }

    /// A free of which the pool has heard was made: this number is for the event that it records.
    pub(super) fn hear(&mut self, stream: u32, progress: Progress, number: u64) {
        let calls = self.calls(progress);
        let step = (calls - 1) % self.round;
        let is_for_takeover = self.events.binary_search(&(step as usize)).is_ok();
        if let Some(part) = self.part_of(stream) {
            let seen = &mut self.seen[part];
            seen.heard = Some((calls, number));
            if is_for_takeover || seen.waited_for.is_none() {
                seen.waited_for = seen.heard;
            }
        }
    }

    /// What the pool heard last of a stream does not cover all that it has done until then.
    pub(super) fn forget_heard(&mut self, stream: u32) {
        if let Some(part) = self.part_of(stream) {
            self.seen[part].heard = None;
        }
    }

    /// Calls until there.
    pub(super) fn calls(&self, progress: Progress) -> u64 {
        (progress.rounds + 1) * self.round + progress.steps as u64
    }

    /// The first takeover in this step, or after it.
    pub(super) fn first_from(&self, step: usize) -> usize {
        let is_before = |takeover: &Takeover| takeover.step < step;
        let is_it = |&place: &usize| {
            let before = self.takeovers.get(..place).map(<[Takeover]>::last);
            before.is_some_and(|last| last.is_none_or(is_before))
                && !self.takeovers.get(place).is_some_and(is_before)
        };
        let near = [self.latest, self.latest + 1].into_iter().find(is_it);
        near.unwrap_or_else(|| self.takeovers.partition_point(is_before))
    }

    /// What the event covers that a call waits for which takes over what this stream used, and by which number.
    pub(super) fn covered(&self, stream: u32) -> Option<(Replayed, u64)> {
        let (calls, covers) = self.seen.get(self.part_of(stream)?)?.waited_for?;
        let number = self.number;
        Some((Replayed { number, calls }, covers))
    }

    /// Was that of this replay?
    pub(super) fn is_same(&self, replayed: Replayed) -> bool {
        self.number == replayed.number
    }

    /// What the next call takes over: from which part, and after how many calls that had used it.
    pub(super) fn next(&self, progress: Progress) -> impl Iterator<Item = (usize, u64)> + '_ {
        let first = self.first_from(progress.steps);
        let next = self.takeovers[first..]
            .iter()
            .take_while(move |takeover| takeover.step == progress.steps);
        let calls = self.calls(progress);
        next.map(move |takeover| (takeover.from, calls - takeover.ago as u64 + 1))
    }
}

impl Heap {
    /// Are these calls of the streams whose calls are recorded or replayed?
    pub fn is_member(&self, stream: u32) -> bool {
        self.replay.company.part_of(stream).is_some()
    }

    /// The streams that make a round together with this one: it alone if nearly all calls are its.
    pub(super) fn company_of(&self, stream: u32) -> Vec<u32> {
        match stream == COMMON || self.is_main(stream) {
            true => vec![stream],
            false => {
                let others = self.streams().filter(|&other| other != stream);
                std::iter::once(stream).chain(others).collect()
            }
        }
    }

    /// May several streams make rounds together?
    pub(super) fn may_be_company(&self) -> bool {
        let captured = |stream: u32| self.arena(stream).id.capture.is_some();
        let several = self.has_several_streams() && self.known_streams() <= MANY;
        several
            && self
                .streams()
                .all(|stream| !captured(stream) && !self.is_main(stream))
    }

    /// May these calls be replayed from now on? Then each cache knows which part its stream is.
    pub(super) fn begin_company(&mut self, notes: &VecDeque<Note>, touches: &Touches) -> Begins {
        let takeovers = match self.replay.company.is_several() {
            true => self.find_takeovers(notes, touches),
            false => Some(Vec::new()),
        };
        let Some(takeovers) = takeovers else {
            return Begins::Never;
        };
        let seen = self.seen_before(notes.len() as u64);
        let of_before = takeovers
            .iter()
            .filter(|takeover| takeover.waits_for_round_before());
        for &Takeover { step, from, ago, .. } in of_before {
            let needed = (notes.len() + step - ago) as u64 + 1;
            if seen[from].waited_for.is_none_or(|(calls, _)| calls < needed) {
                self.replay.company.wants_events = true;
                return Begins::Later;
            }
        }
        let mut heard = self.low_points(notes);
        let events = takeovers
            .iter()
            .filter_map(|takeover| takeover.event_step(notes.len()));
        heard.extend(takeovers.iter().map(|takeover| takeover.step).chain(events));
        heard.sort_unstable();
        heard.dedup();
        for cache in self.caches() {
            let number = self.replay.company.part_of(cache.arena);
            cache.set_part(number.map_or(NO_PART, part));
        }
        self.replay.begun_before += 1;
        let by_pairs = self.takes_over_by_pairs();
        let company = &mut self.replay.company;
        company.begin(notes.len(), takeovers, heard);
        (company.seen, company.number) = (seen, self.replay.begun_before);
        (company.by_waits, company.by_pairs) = (self.sharing.is_by_waits(), by_pairs);
        company.waited = Waited::default();
        Begins::Now
    }

    /// What is known of each stream's work when a round of so many calls begins that is to be replayed.
    fn seen_before(&self, round: u64) -> Vec<Seen> {
        let (now, company) = (self.calls().all(), &self.replay.company);
        let streams = company.members.iter().zip(&company.due);
        let event = |(&stream, &due): (&u32, &Option<(u64, u64)>)| {
            let (calls, number) = due.filter(|_| stream != COMMON)?;
            let recorded = self.arena(stream).recorded() >= number;
            Some((round.checked_sub(now - calls).filter(|_| recorded)?, number))
        };
        let seen = streams.map(|stream| Seen {
            waited_for: event(stream),
            ..Seen::default()
        });
        seen.collect()
    }

    /// On streams on which the pool can record an event only in calls that name them it hears of the frees after which they have hardly
    /// anything in use (`note`), and records one there.
    fn low_points(&self, notes: &VecDeque<Note>) -> Vec<usize> {
        let mut low = Vec::new();
        for (number, &stream) in self.replay.company.members.iter().enumerate() {
            if self.is_beyond_reach(stream) {
                let own = notes.iter().enumerate().filter(|(_, note)| note.part() == number);
                let (steps, notes): (Vec<usize>, VecDeque<Note>) = own.unzip();
                low.extend(low_points(&notes, LAST).into_iter().map(|place| steps[place]));
            }
        }
        low
    }

    /// The pool hears of a free that was replayed: the number for an event that covers all that the stream has freed until now.
    pub(super) fn hear_replayed(&mut self, stream: u32) -> u64 {
        let arena = self.arena_mut(stream);
        arena.advance();
        let number = arena.seq;
        if let Some(progress) = self.replay.tape.progress() {
            self.replay.company.hear(stream, progress, number);
        }
        number
    }

    /// How far a replay that several streams make has come.
    pub fn replayed(&self) -> Option<Replayed> {
        let company = &self.replay.company;
        let progress = self.replay.tape.progress().filter(|_| company.is_several())?;
        Some(Replayed {
            number: company.number,
            calls: company.calls(progress),
        })
    }

    /// The host has waited for all that this stream had done by then, or that all had.
    pub fn synchronized_with(&mut self, stream: Option<u32>, replayed: Replayed) {
        let company = &mut self.replay.company;
        let same = self.replay.tape.is_on() && company.is_same(replayed);
        for (&member, seen) in company.members.iter().zip(&mut company.seen) {
            if same && stream.is_none_or(|stream| stream == member) {
                seen.calls = seen.calls.max(replayed.calls);
            }
        }
    }

    /// The books have made up for what such streams did, which may never be named again: is there an event for all of it?
    pub(super) fn cover_replayed(&mut self, notes: &VecDeque<Note>, progress: Progress) {
        let here = self.replay.company.calls(progress);
        for number in 0..self.replay.company.members.len() {
            let stream = self.replay.company.members[number];
            if !self.is_beyond_reach(stream) {
                continue;
            }
            let frees = |calls: u64| {
                let note = &notes[(calls % notes.len() as u64) as usize];
                note.part() == number && matches!(note.step(), Step::Free { .. })
            };
            // all of a round at most: it has made the one of which the pool heard
            let is_last = |since: u64| !(since..here).any(frees);
            let heard = self.replay.company.seen[number].heard;
            let heard = heard.filter(|&(since, _)| is_last(since));
            match heard.is_some_and(|(_, number)| self.arena_mut(stream).is_covered_since(number)) {
                true => drop(self.count_uncovered(stream)),
                false => self.want_event(stream),
            }
        }
    }

    /// Each free byte that the round touches becomes the stream's that used it last before the replay's next step. What other streams have that
    /// made none of its calls stays theirs as it was: one that has ended would have no event for a fresh number.
    pub(super) fn use_by_last(&mut self, notes: &VecDeque<Note>, steps: usize) {
        let uses = self.latest_uses(notes, steps);
        let members = self.replay.company.members().to_vec();
        let known = |&&stream: &&u32| self.arenas[stream as usize].is_some();
        let known: Vec<u32> = members.iter().filter(known).copied().collect();
        let mut free: Vec<NodeId> = Vec::new();
        for &arena in [COMMON].iter().chain(&known) {
            free.extend(self.arena(arena).bins.descending(&self.space.nodes, 0));
        }
        let mut pieces: Vec<(NodeId, u32)> = Vec::new();
        for id in free {
            let (start, len, owner) = {
                let node = &self.space.nodes[id];
                (node.start, node.len, node.owner)
            };
            let mut cuts: Vec<(u64, u64, usize)> = Vec::new();
            let mut at = start;
            for (page, from, to) in self.parts(start, len) {
                cuts.extend(
                    uses.of((page, from, to))
                        .map(|(lo, hi, step)| (at + (lo - from), at + (hi - from), notes[step].part())),
                );
                at += to - from;
            }
            cuts.dedup_by(|next, last| {
                let joins = last.1 == next.0 && last.2 == next.2;
                if joins {
                    last.1 = next.1;
                }
                joins
            });
            self.pull_free(id);
            self.space.nodes[id].kind = Kind::Busy;
            let mut rest = id;
            for (from, to, number) in cuts {
                let piece = self.split_busy(rest, from);
                if piece != rest {
                    pieces.push((rest, owner));
                }
                rest = self.split_busy(piece, to);
                pieces.push((piece, members[number]));
            }
            if rest != NIL {
                pieces.push((rest, owner));
            }
        }
        let called: FxHashSet<u32> = notes.iter().map(|note| members[note.part()]).collect();
        for stream in known.iter().filter(|stream| called.contains(stream)) {
            self.arena_mut(*stream).advance();
        }
        // last what is everybody's: a stream's extent takes in such as lie beside it
        let kept = |heap: &Heap, (id, owner): (NodeId, u32)| {
            (owner != COMMON && !called.contains(&owner)).then(|| heap.space.nodes[id].seq)
        };
        pieces.sort_by_key(|&piece| (piece.1 == COMMON, kept(self, piece)));
        for piece @ (id, owner) in pieces {
            match kept(self, piece) {
                Some(seq) => self.put_free_since(id, owner, seq),
                None => self.put_free(id, owner),
            }
        }
        for stream in known.into_iter().filter(|stream| called.contains(stream)) {
            let seq = self.arena(stream).seq;
            self.note_all_small(stream, seq);
            self.pages.used_everywhere(stream, seq);
        }
    }

    /// So many of the round's calls were replayed: which stream's the allocations were.
    pub(super) fn count_replayed(&mut self, notes: &VecDeque<Note>, progress: Progress) {
        for (step, note) in notes.iter().enumerate() {
            if let Step::Alloc { .. } = note.step() {
                let stream = self.replay.company.members[note.part()];
                self.arena_mut(stream).served += progress.rounds + u64::from(step < progress.steps);
            }
        }
    }

    /// On which of the streams each of these blocks was freed, the first one at its address to be, or allocated, the last one to be, among so
    /// many of the round's calls.
    pub(super) fn streams_of(
        &self,
        notes: &VecDeque<Note>,
        steps: usize,
        blocks: &[(u64, Extent)],
        gone: bool,
    ) -> FxHashMap<u64, u32> {
        let wanted: FxHashSet<u64> = blocks.iter().map(|block| block.0).collect();
        let mut streams = FxHashMap::default();
        for note in notes.iter().take(steps).filter(|note| wanted.contains(&note.at)) {
            let stream = self.replay.company.members[note.part()];
            match (note.step(), gone) {
                (Step::Free { .. }, true) => drop(streams.entry(note.at).or_insert(stream)),
                (Step::Alloc { .. }, false) => drop(streams.insert(note.at, stream)),
                _ => {}
            }
        }
        streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_over_is_counted_from_round_to_round() {
        let mut company = Company::new(vec![7, 9]);
        let takeover = |step, from, ago| Takeover {
            step,
            by: 0,
            from,
            ago,
            event: 0,
        };
        let takeovers = vec![takeover(2, 1, 1), takeover(2, 0, 3), takeover(5, 0, 10)];
        company.begin(10, takeovers, vec![2, 5]);
        assert_eq!(company.heard(), [2, 5]);
        let next = |rounds, steps| company.next(Progress { rounds, steps }).collect::<Vec<_>>();
        assert_eq!(next(0, 0), []);
        // 12 calls were made, the latest of them the one that used it: so many have to be seen
        assert_eq!(next(0, 2), [(1, 12), (0, 10)]);
        assert_eq!(next(3, 2), [(1, 42), (0, 40)]);
        assert_eq!(next(0, 5), [(0, 6)]);
        assert_eq!((company.part_of(9), company.part_of(8)), (Some(1), None));
    }

    /// The event for what is taken over is not the one that was recorded after it: that may be complete too late.
    #[test]
    fn what_the_pool_hears_of_meanwhile_is_not_waited_for() {
        let mut company = Company::new(vec![7, 9]);
        company.seen = vec![Seen::default(); 2];
        let takeover = Takeover {
            step: 8,
            by: 0,
            from: 1,
            ago: 6,
            event: 5,
        };
        company.begin(10, vec![takeover], vec![1, 3, 5, 8]);
        let made = |steps| Progress { rounds: 2, steps };
        company.hear(9, made(2), 40);
        assert_eq!(company.seen[1].waited_for, Some((32, 40)), "there is none yet");
        company.hear(9, made(4), 41);
        company.hear(9, made(6), 42);
        company.hear(7, made(7), 5);
        let seen = &company.seen[1];
        assert_eq!((seen.waited_for, seen.heard), (Some((34, 41)), Some((36, 42))));
        // that is what the takeover asks for, and more: what was freed six calls before it
        assert_eq!(company.next(made(8)).collect::<Vec<_>>(), [(1, 33)]);
        company.forget_heard(9);
        assert_eq!(company.seen[1].heard, None);
    }
}
