//! Rounds that several streams make together (`replay`): each call is on one of them, which is a *part* of the round, and memory goes from
//! one to another.
//!
//! In the round as it was recorded the host had seen, each time a stream got memory that another one had used, that this had done its
//! work. Of the next round that says nothing. So of a call that takes memory over the pool hears: it records an event on the stream that
//! used it last, unless one was recorded after that use, and looks whether it is complete. If it is not the replay ends, and the books serve
//! the request in some other way. (An event as late as possible covers the most: of intervals that each need a point within,
//! those that take the last point of the first one to end need the fewest; Gupta, Lee, Leung, "Efficient algorithms for interval graphs and
//! circular-arc graphs", 1982.)
//!
//! When the books make up for a replay each free byte becomes the stream's that used it last, under a fresh number. What was used before
//! that need not be known: who took it over had seen it complete.
//!
//! The streams are all that the pool knows. Each is within reach, so that an event can be recorded on it at any time, and none makes nearly
//! all calls (then the others may be `guests`). Slabs serve their owner: where another stream frees one of their blocks nothing is replayed.
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::guests::reach;
use super::heap::Heap;
use super::node::{Kind, NIL, NodeId};
use super::note::{Extent, Note};
use super::order::{COMMON, Uncovered};
use super::tape::{NO_PART, Progress, Step, part};
use super::uses::{Part, Uses};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::ops::Range;

/// So many streams at most.
const MANY: usize = 8;
/// So many cells (`uses`) are looked at to find out what is taken over, some tens of milliseconds.
const WORK: usize = 1 << 24;

/// A call takes over what another part used last, so many calls before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handover {
    step: usize,
    from: usize,
    ago: usize,
}

/// What is known of a stream's work in the replay. Calls are counted from the beginning of the round that was recorded.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// What it did in so many calls is complete.
    calls: u64,
    /// An event that is complete once the stream has come to the number was recorded after so many.
    waited_for: Option<(u64, u64)>,
}

/// Who used what last, and the cells of each block, all of its slab if it is of one.
struct Latest {
    uses: Uses,
    blocks: FxHashMap<(u64, u64), Vec<Range<usize>>>,
}

/// How far a replay had come at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    /// Which one it was.
    number: u64,
    calls: u64,
}

/// The streams whose calls are recorded or replayed.
#[derive(Debug, Default)]
pub struct Company {
    members: Vec<u32>,
    /// Of the round that is replayed, by step.
    handovers: Vec<Handover>,
    seen: Vec<Seen>,
    /// Calls of that round.
    round: u64,
    /// By what this replay is told from others.
    number: u64,
}

impl Company {
    /// Of these streams.
    pub fn new(members: Vec<u32>) -> Company {
        Company {
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

    /// A round is going to be replayed, with these handovers.
    fn begin(&mut self, round: usize, handovers: Vec<Handover>, number: u64) {
        (self.round, self.number) = (round as u64, number);
        self.handovers = handovers;
        self.seen = vec![Seen::default(); self.members.len()];
    }

    /// The calls of which the pool has to hear.
    pub fn heard(&self) -> Vec<usize> {
        let mut steps: Vec<usize> = self.handovers.iter().map(|handover| handover.step).collect();
        steps.dedup();
        steps
    }

    /// Calls until there.
    fn calls(&self, progress: Progress) -> u64 {
        (progress.rounds + 1) * self.round + progress.steps as u64
    }

    /// What the next call takes over: from which part, and after how many calls that had used it.
    fn next(&self, progress: Progress) -> impl Iterator<Item = (usize, u64)> + '_ {
        let first = self
            .handovers
            .partition_point(|handover| handover.step < progress.steps);
        let next = self.handovers[first..]
            .iter()
            .take_while(move |handover| handover.step == progress.steps);
        let calls = self.calls(progress);
        next.map(move |handover| (handover.from, calls - handover.ago as u64 + 1))
    }
}

/// Those of them, by step, that need an event of their own in each round. It has to cover what the others take over, too.
fn thin_out(handovers: Vec<Handover>) -> Vec<Handover> {
    let mut needed: Vec<Handover> = Vec::new();
    let mut latest: [Option<usize>; MANY] = [None; MANY];
    for handover in handovers {
        // before the first call of the round, if it is less than 0
        let used = handover.step as i64 - handover.ago as i64;
        let event = latest[handover.from].map(|event| &mut needed[event]);
        match event.filter(|event| event.step as i64 > used) {
            Some(event) => event.ago = event.ago.min((event.step as i64 - used) as usize),
            None => {
                latest[handover.from] = Some(needed.len());
                needed.push(handover);
            }
        }
    }
    needed
}

impl Heap {
    /// Are these calls of the streams whose calls are recorded or replayed?
    pub(super) fn is_member(&self, stream: u32) -> bool {
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
        let within_reach = |stream: u32| {
            let arena = self.arena(stream);
            arena.reach.is_some() && arena.id.capture.is_none()
        };
        let several =
            self.has_several_streams() && self.known_streams() <= MANY && !self.sharing.is_by_waits();
        several
            && self
                .streams()
                .all(|stream| within_reach(stream) && !self.is_main(stream))
    }

    /// A replay begins: each cache knows which part its stream is. Gives the calls of which the pool has to hear. None: it may not begin.
    pub(super) fn begin_company(&mut self, notes: &VecDeque<Note>) -> Option<Vec<usize>> {
        let handovers = match self.replay.company.is_several() {
            true => self.find_handovers(notes)?,
            false => Vec::new(),
        };
        for cache in self.caches() {
            let number = self.replay.company.part_of(cache.arena);
            cache.set_part(number.map_or(NO_PART, part));
        }
        self.replay.begun_before += 1;
        let number = self.replay.begun_before;
        self.replay.company.begin(notes.len(), handovers, number);
        Some(self.replay.company.heard())
    }

    /// What each allocation takes over. None: a slab's block is freed on another stream than the slab's, or it takes too long to find out.
    fn find_handovers(&self, notes: &VecDeque<Note>) -> Option<Vec<Handover>> {
        if !self.are_slabs_freed_at_home(notes) {
            return None;
        }
        let Latest { mut uses, blocks } = self.latest_uses(notes, 0);
        let cells = |note: &Note| {
            blocks[&reach(note.block(), note.at)]
                .iter()
                .map(Range::len)
                .sum::<usize>()
        };
        if notes.iter().map(cells).sum::<usize>() > WORK {
            return None;
        }
        let mut handovers = Vec::new();
        for (step, note) in notes.iter().enumerate() {
            let cells = &blocks[&reach(note.block(), note.at)];
            let mut ago = [0; MANY];
            if let Step::Alloc { .. } = note.step() {
                let users = cells.iter().flat_map(|cells| uses.users(cells.clone()));
                for last in users.filter(|&last| notes[last].part() != note.part()) {
                    // a call of this number is one of the round before
                    let since = (step + notes.len() - last - 1) % notes.len() + 1;
                    let ago = &mut ago[notes[last].part()];
                    *ago = match *ago {
                        0 => since,
                        before => since.min(before),
                    };
                }
            }
            for cells in cells {
                uses.set(cells.clone(), step);
            }
            let from = ago.into_iter().enumerate().filter(|&(_, ago)| ago > 0);
            handovers.extend(from.map(|(from, ago)| Handover { step, from, ago }));
        }
        Some(thin_out(handovers))
    }

    /// Does nobody free a slab's block but the stream whose slab it is?
    fn are_slabs_freed_at_home(&self, notes: &VecDeque<Note>) -> bool {
        let owner = |slab: u64| self.replay.company.part_of(self.slab_owner(slab)?);
        let mut owners: FxHashMap<u64, Option<usize>> = FxHashMap::default();
        notes.iter().all(|note| {
            let Some(slab) = note.block().slab else {
                return true;
            };
            match note.step() {
                Step::Alloc { .. } => {
                    owners.insert(slab, Some(note.part()));
                    true
                }
                Step::Free { .. } => *owners.entry(slab).or_insert_with(|| owner(slab)) == Some(note.part()),
            }
        })
    }

    /// Who used what last, when so many of the round's calls were made.
    fn latest_uses(&self, notes: &VecDeque<Note>, steps: usize) -> Latest {
        let mut blocks: FxHashMap<(u64, u64), Vec<Part>> = FxHashMap::default();
        for note in notes {
            let (at, bytes) = reach(note.block(), note.at);
            let parts = || self.parts(at, bytes).collect();
            blocks.entry((at, bytes)).or_insert_with(parts);
        }
        let all: Vec<Part> = blocks.values().flatten().copied().collect();
        let mut uses = Uses::new(&all);
        let cells = |parts: Vec<Part>| parts.into_iter().map(|part| uses.cells(part)).collect();
        let blocks: FxHashMap<(u64, u64), Vec<Range<usize>>> = blocks
            .into_iter()
            .map(|(block, parts)| (block, cells(parts)))
            .collect();
        let mut seen = FxHashSet::default();
        for step in (0..steps).rev().chain((steps..notes.len()).rev()) {
            let note = &notes[step];
            let block = reach(note.block(), note.at);
            if seen.insert(block) {
                let cells = blocks[&block].iter();
                cells.for_each(|cells| uses.set_before(cells.clone(), step));
            }
        }
        Latest { uses, blocks }
    }

    /// Streams of whose work the host must know more before the next call of the replay can be answered, if that is this one: those on
    /// which an event is to be recorded, if they have none yet.
    pub fn awaited(&mut self, own: &Cache, bytes: u64) -> Vec<u32> {
        let Some(progress) = self.replay.tape.progress() else {
            return Vec::new();
        };
        let asks = |note: &Note| part(note.part()) == own.part() && note.asks_for(bytes, note.part());
        if !self
            .replay
            .recording
            .notes()
            .get(progress.steps)
            .is_some_and(asks)
        {
            return Vec::new();
        }
        self.see_completed();
        let company = &self.replay.company;
        let missing = company
            .next(progress)
            .filter(|&(from, calls)| company.seen[from].calls < calls);
        missing.map(|(from, _)| company.members[from]).collect()
    }

    /// What was waited for may be complete.
    fn see_completed(&mut self) {
        for number in 0..self.replay.company.members.len() {
            let arena = &self.arenas[self.replay.company.members[number] as usize];
            let completed = arena.as_ref().map_or(u64::MAX, |arena| arena.completed);
            let seen = &mut self.replay.company.seen[number];
            if let Some((calls, number)) = seen.waited_for
                && completed >= number
            {
                seen.calls = seen.calls.max(calls);
                seen.waited_for = None;
            }
        }
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
        let same = self.replay.tape.is_on() && company.number == replayed.number;
        for (&member, seen) in company.members.iter().zip(&mut company.seen) {
            if same && stream.is_none_or(|stream| stream == member) {
                seen.calls = seen.calls.max(replayed.calls);
            }
        }
    }

    /// Of these streams those that need an event that covers all they have done until now: the next call needs it.
    pub fn cover_for_handover(&mut self, streams: &[u32]) -> Vec<Uncovered> {
        let Some(progress) = self.replay.tape.progress() else {
            return Vec::new();
        };
        let calls = self.replay.company.calls(progress);
        let mut uncovered = Vec::new();
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

    /// Each free byte that the round touches becomes the stream's that used it last before the replay's next step.
    pub(super) fn use_by_last(&mut self, notes: &VecDeque<Note>, steps: usize) {
        let Latest { uses, .. } = self.latest_uses(notes, steps);
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
        for &stream in &known {
            self.arena_mut(stream).advance();
        }
        // last what is everybody's: a stream's extent takes in such as lie beside it
        pieces.sort_by_key(|&(_, owner)| owner == COMMON);
        for (id, owner) in pieces {
            self.put_free(id, owner);
        }
        for stream in known {
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
        let handover = |step, from, ago| Handover { step, from, ago };
        company.begin(
            10,
            vec![handover(2, 1, 1), handover(2, 0, 3), handover(5, 0, 10)],
            1,
        );
        assert_eq!(company.heard(), [2, 5]);
        let next = |rounds, steps| company.next(Progress { rounds, steps }).collect::<Vec<_>>();
        assert_eq!(next(0, 0), []);
        // 12 calls were made, the latest of them the one that used it: so many have to be seen
        assert_eq!(next(0, 2), [(1, 12), (0, 10)]);
        assert_eq!(next(3, 2), [(1, 42), (0, 40)]);
        assert_eq!(next(0, 5), [(0, 6)]);
        assert_eq!((company.part_of(9), company.part_of(8)), (Some(1), None));
    }

    #[test]
    fn one_event_covers_all_that_was_used_before_it() {
        let handover = |step, from, ago| Handover { step, from, ago };
        let all = vec![
            handover(3, 0, 8),
            handover(5, 0, 4), // used by call 1: the event in call 3 has to cover that
            handover(6, 1, 1),
            handover(7, 0, 4), // used by call 3 itself, which comes after its event
            handover(9, 0, 5),
        ];
        let needed = [handover(3, 0, 2), handover(6, 1, 1), handover(7, 0, 3)];
        assert_eq!(thin_out(all), needed);
    }
}
