//! Rounds by heart. A program that does the same again makes the same calls, and each call gets the block that it got the last
//! time. Once a round has come twice, by the number of its calls (`rounds`), or once if it is long, the next one is recorded (`recording`); if
//! it ends with the very blocks in use that it began with, and no mapping was removed meanwhile, the calls that follow are answered from the
//! *tape* as long as they are the same, and the books stay as they were when the round began. The first calls of a program are recorded,
//! too: they may be a round (`first`).
//!
//! Rounds come to be alike by themselves, but for blocks that last until after the next ones of their kind came: these take turns, and push
//! others from their places. So once it is known how many calls a round has, and hardly any page moves, a call that is recorded gets
//! the block of the round before if that is free. Where rounds go on moving pages, and the pool holds too much, they are recorded until
//! they do not, or hardly, or it has given that back.
//!
//! To answer from the tape is safe because each address was free for that block at that step before: blocks in use at a step are the same as then,
//! and so are the pages behind their addresses, even if these were mapped elsewhere, too, later in that round. Everybody else comes through the lock
//! of the books, and ends the replay before anything: then the books *make up* for it, in no more time than it takes to free and to place the blocks by
//! which that moment differs from the beginning of a round; all that is free and that the round may touch counts as used by the stream until then.
//!
//! Only the calls of one stream, nearly all there are (`guests` are what others may make meanwhile), or of all streams (`company`), and where
//! one thread has caches, or threads take turns: where calls of several come in another order each time there is nothing to be learned by heart. A replay that was
//! worth it, or that had to end for a guest, is recorded on: what it knew shows where blocks belong (`guide`). Where the pool can record an
//! event only in calls that name the stream it hears of some frees, those after which hardly anything is in use, and records one there.
//!
//! Invariants: while calls are recorded or replayed the gates of all caches are shut; while they are replayed, nothing in the books changes
//! but what is guests'.
//! No lock of its own: the heap's. The tape is read without it, inside the owner's gate.

use super::cache::{Cache, ThreadId};
use super::company::{Begins, Company};
use super::first::First;
use super::gate::Shut;
use super::guests::Guests;
use super::heap::Heap;
use super::lists::LONG;
use super::note::Extent;
use super::order::COMMON;
use super::period::LAST;
use super::reader::Reader;
use super::recording::Recording;
use super::rounds::{Calls, Rounds, alike};
use super::takeover::Touches;
use super::tape::{Progress, Step, Tape};
use crate::base::units::Addr;
use std::mem;
use std::sync::Arc;

/// A round in which so much less is in use, of what is needed, is another one.
const PART: u64 = 64;
/// What was replayed so often was worth it.
const WORTH: u64 = 8;
/// After each round that was recorded in vain, or replayed less often, twice as many calls pass before one as long is recorded, up to those
/// of so many rounds (a power of two).
const SELDOM: u32 = 12;
/// Where nothing comes again no more than this part of all calls is recorded, but for the first time, and for rounds that half of them are.
const WASTE: u64 = 16;

/// Whose calls matter is looked at anew after so many of those that do not.
const SEEN: u32 = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    #[default]
    Watching,
    Recording,
    Replaying,
}

/// What is known of the program's rounds.
#[derive(Debug, Default)]
pub struct Replay {
    /// What caches answer from.
    pub tape: Arc<Tape>,
    pub(super) way: Way,
    rounds: Rounds,
    /// Whose calls are recorded or replayed, and what had been called when that began.
    pub(super) company: Company,
    pub(super) begun: Calls,
    /// Several streams may make rounds together; so many calls ago that was looked at last.
    pub(super) several: bool,
    /// Replays so far.
    pub(super) begun_before: u64,
    pub(super) looked: u32,
    /// The latest calls.
    pub recording: Recording,
    /// All calls of the program so far, as long as these are recorded.
    first: Option<First>,
    /// It is these that are replayed.
    is_first: bool,
    /// Calls of rounds that were recorded in vain, how often that was, and the calls that pass before such a round is recorded again.
    failed: u64,
    pub(super) failures: u32,
    not_before: u64,
    /// Calls that were recorded where there was no round at all.
    pub(super) wasted: u64,
    /// Whose thread reads the tape.
    pub(super) reader: Reader,
    /// Calls of other streams meanwhile.
    pub(super) guests: Guests,
    /// How far the replay had come when the peaks were reset.
    pub(super) peaks_from: Progress,
}

impl Replay {
    /// Is nothing recorded or replayed?
    #[inline(always)]
    pub fn is_watching(&self) -> bool {
        self.way == Way::Watching
    }

    /// Are first calls noted, among which a round was replayed? It may come again.
    pub fn had_round(&self) -> bool {
        self.way == Way::Recording && self.first.as_ref().is_some_and(First::had_round)
    }

    /// Do the books lag behind?
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.way == Way::Replaying
    }

    /// The stream whose calls are recorded or replayed, or the first of several.
    pub fn host(&self) -> u32 {
        self.company.host()
    }

    /// Are calls recorded that may be a round?
    fn records_round(&self) -> bool {
        self.recording.round() > 0
    }

    /// Is what is recorded a part of a round of so many calls, which had better be recorded?
    fn has_part_of(&self, round: Option<u64>, now: Calls) -> bool {
        let longer = round.filter(|&round| round / 2 > self.recording.round());
        longer.is_some_and(|round| self.is_worth_recording(round, now))
    }

    /// Is it, after so many calls, a round of about so many?
    fn is_worth_recording(&self, round: u64, now: Calls) -> bool {
        let known = alike(round, self.failed);
        let seldom = self.wasted <= now.all() / WASTE || round >= now.all() / 2;
        seldom && (!known || now.all() >= self.not_before)
    }

    /// A round of so many calls was recorded in vain, or replayed hardly.
    fn failed(&mut self, now: Calls, round: u64) {
        self.failures = match alike(round, self.failed) {
            true => (self.failures + 1).min(SELDOM),
            false => 1,
        };
        self.failed = round;
        self.not_before = now.all().saturating_add(round << self.failures);
    }
}

impl Heap {
    /// An allocation that the cache did not serve, and no tape: does a round begin?
    #[inline(always)]
    pub fn watch_rounds(&mut self, own: Option<&Arc<Cache>>) {
        let Some(had) = self.had_by_main(own) else {
            return self.look_for_company();
        };
        let least = had.saturating_sub(self.most_kept());
        if self
            .replay
            .rounds
            .may_begin(self.stats.allocations, least, self.needed)
        {
            self.consider_round(own);
        }
    }

    /// A stream calls that makes no rounds, as far as is known.
    #[inline(never)]
    fn look_for_company(&mut self) {
        self.replay.looked += 1;
        if self.replay.looked >= SEEN {
            self.see_threads();
        }
    }

    /// A batch was served: so much is in use at once.
    pub fn watch_batch(&mut self) {
        let used = self.used_now();
        self.replay.rounds.is_far(used, self.needed);
    }

    #[inline(never)]
    fn consider_round(&mut self, own: Option<&Arc<Cache>>) {
        let Some(had) = self.had_by_main(own) else { return };
        let used = had.saturating_sub(self.bytes_kept_beside(own));
        self.see_threads();
        let (now, made) = (self.calls(), self.stats.allocations);
        let again = self.replay.rounds.sees(used, now, made, self.needed);
        if let Some(first) = &mut self.replay.first
            && again.is_some_and(|round| first.has_many(round))
        {
            self.forget_first();
        }
        if self.replay.records_round() {
            let less = used + self.needed / PART < self.replay.recording.begun_with();
            if !less || self.replay.recording.is_guided() && !self.replay.has_part_of(again, now) {
                return;
            }
            self.forget_round(); // it was a part of a longer one
        }
        if now.all() == 0
            && let Some(own) = own
            && self.may_tape(own)
        {
            self.record(own, Recording::default());
            self.replay.first = Some(First::new(self.pages.changes));
            return;
        }
        let Some(round) = again else { return };
        // where each round has an event, or beside first calls, which would be given up for it soon
        let has_event = |own: &Arc<Cache>| self.is_beyond_reach(own.arena) && self.is_main(own.arena);
        let wanted = self.replay.first.is_none() && !own.is_some_and(has_event);
        let short = !wanted && round < LAST as u64;
        if !short
            && self.replay.is_worth_recording(round, now)
            && let Some(own) = own
            && self.may_tape(own)
            && let Some(recording) = Recording::new(round, used)
        {
            self.record(own, recording);
        }
    }

    fn record(&mut self, own: &Arc<Cache>, recording: Recording) {
        // first calls that were noted are some of these streams'
        if self.replay.is_watching() {
            self.replay.company = Company::new(self.company_of(own.arena));
        } else if !self.is_member(own.arena) {
            return;
        }
        self.shut_for_tape(own);
        (self.replay.way, self.replay.recording) = (Way::Recording, recording);
        self.replay.begun = self.own_calls();
        self.replay.guests.begin();
    }

    /// Is there nothing in sight by which the next round could differ without a call?
    fn may_tape(&self, own: &Arc<Cache>) -> bool {
        let may = match own.arena {
            COMMON => !self.has_streams(),
            arena => self.is_main(arena) || self.may_be_company(),
        };
        let unshared = self.also_used.is_empty() && self.limbo.is_empty();
        may && (unshared || self.has_several_streams()) // then what is shared must be apart
            && !self.is_above_threshold()
            && !self.is_crowded()
            && !self.has_several_threads()
            && !self.sharing.is_by_threads()
    }

    /// What is recorded is of no use: something happened that is not on the tape.
    pub(super) fn spoil_tape(&mut self) {
        if self.replay.way == Way::Recording {
            self.replay.first = None;
            self.stop_recording();
        }
    }

    /// The round that is recorded is none.
    fn stop_recording(&mut self) {
        let (now, recording) = (self.calls(), &self.replay.recording);
        match recording.has_period() {
            true => self.replay.failed(now, recording.round()),
            false => self.replay.wasted += recording.made(),
        }
        self.forget_round();
    }

    fn forget_round(&mut self) {
        self.replay.recording = Recording::default();
        self.go_on_recording();
    }

    fn forget_first(&mut self) {
        self.replay.first = None;
        self.go_on_recording();
    }

    /// Something may be recorded still.
    fn go_on_recording(&mut self) {
        self.replay.way = Way::Recording;
        if self.replay.first.is_none() && !self.replay.records_round() {
            self.watch_anew();
        }
    }

    /// The first calls came again so far: they and what follows may.
    fn resume_first(&mut self, recording: Recording, again: Progress) {
        let resume = |first: &mut First| first.resume(recording.into_notes(), again);
        let goes_on = self.replay.first.as_mut().is_some_and(resume);
        match goes_on {
            true => self.go_on_recording(),
            false => self.forget_first(),
        }
    }

    fn watch_anew(&mut self) {
        (self.replay.way, self.replay.recording, self.replay.first) = Default::default();
        self.let_in(Shut::Taped);
    }

    /// The cache of a call while calls are recorded or replayed. A call with none of the stream's cannot be on the tape.
    #[inline(always)]
    fn taped<'a>(&mut self, own: Option<&'a Arc<Cache>>) -> Option<&'a Arc<Cache>> {
        let own = own.filter(|own| self.is_member(own.arena));
        let Some(own) = own else {
            self.spoil_tape();
            return None;
        };
        let may = !self.replay.is_on() || self.may_read(own);
        may.then_some(own)
    }

    /// An allocation while calls are recorded or replayed: its block, if the tape has it, or the cache. More than `ample` memory is too much.
    /// A replay begins only where the pool is `settled`: no page is on its way between places where the books have it.
    #[inline(never)]
    pub fn alloc_taped(
        &mut self,
        own: Option<&Arc<Cache>>,
        bytes: u64,
        ample: &dyn Fn(&Heap) -> u64,
        settled: &dyn Fn() -> bool,
    ) -> Option<u64> {
        let own = self.taped(own)?;
        if self.replay.way == Way::Recording {
            self.consider_tape(own, ample, settled);
        }
        match self.replay.way {
            Way::Watching => None,
            Way::Recording if !own.gate.is_shut_only(Shut::Taped) => None,
            Way::Recording => {
                let part = self.replay.company.part_of(own.arena)?;
                let before = self.replay.recording.before(bytes, part);
                let same = before.and_then(|before| self.alloc_again(own, bytes, before));
                let at = same.or_else(|| own.take_inside(bytes, 0))?;
                self.note_alloc(own, at, bytes);
                Some(at)
            }
            Way::Replaying => {
                let may = self.awaited(own, bytes).is_empty();
                may.then(|| self.replay.tape.alloc_heard(own.part(), bytes))?
            }
        }
    }

    /// A recorded allocation that the cache did not serve: the block of the round before, if it is free, so that rounds come to be alike.
    #[inline(never)]
    pub fn alloc_before(&mut self, own: &Cache, bytes: u64) -> Option<u64> {
        if self.replay.way != Way::Recording {
            return None;
        }
        let part = self.replay.company.part_of(own.arena)?;
        let (at, block) = self.replay.recording.before(bytes, part)?;
        self.alloc_at(at, block, own.arena)
    }

    /// The same of one that the cache could serve: with that block, or the heap does.
    fn alloc_again(&mut self, own: &Cache, bytes: u64, (at, block): (u64, Extent)) -> Option<u64> {
        if let Some(at) = own.take_this(at, block.piece()) {
            return Some(at);
        }
        if bytes > LONG {
            return None;
        }
        self.serve(own.arena);
        let at = self.alloc_at(at, block, own.arena)?;
        self.stats.hits += 1;
        Some(at)
    }

    /// Before a recorded allocation: can what was recorded be replayed?
    fn consider_tape(&mut self, own: &Arc<Cache>, ample: &dyn Fn(&Heap) -> u64, settled: &dyn Fn() -> bool) {
        let sheds = |heap: &Heap| heap.will_shed(ample(heap)); // what is replayed sheds nothing any more
        self.consider_first(own, &sheds, settled);
        if self.replay.way == Way::Recording && self.replay.records_round() {
            let sheds = sheds(self);
            self.consider_recording(own, sheds, settled);
        }
    }

    /// The same of all calls so far.
    fn consider_first(
        &mut self,
        own: &Arc<Cache>,
        sheds: &dyn Fn(&Heap) -> bool,
        settled: &dyn Fn() -> bool,
    ) {
        let (crowded, of_heap) = (self.is_crowded(), self.stats.allocations);
        let Some(first) = &mut self.replay.first else {
            return;
        };
        if crowded || !first.goes_on(of_heap, self.pages.changes) {
            return self.forget_first();
        }
        if first.may_be_round()
            && !sheds(self)
            && settled()
            && let Some(first) = &mut self.replay.first
        {
            let made = first.made();
            let notes = first.guess();
            let noted = self.is_all_noted(own, Calls::default(), made);
            let touches = |notes| Some((self.touches_apart(&notes)?, notes));
            match notes.filter(|_| noted).and_then(touches) {
                Some((touches, notes)) => self.begin_replay(own, Recording::of_round(notes), &touches, true),
                None => self.spoil_tape(),
            }
        }
    }

    /// The same of a round.
    fn consider_recording(&mut self, own: &Arc<Cache>, sheds: bool, settled: &dyn Fn() -> bool) {
        let (changes, recording) = (self.pages.changes, &mut self.replay.recording);
        let goes_on = recording.goes_on();
        let whole = recording.is_whole(changes, sheds) || goes_on && recording.guesses_round(changes, sheds);
        if whole && !settled() {
            return; // it is looked at again
        }
        let made = recording.made();
        let noted = whole && self.is_all_noted(own, self.replay.begun, made);
        if noted {
            let recording = mem::take(&mut self.replay.recording);
            if let Some(touches) = self.touches_apart(recording.notes()) {
                return self.begin_replay(own, recording, &touches, false);
            }
            self.replay.recording = recording;
        }
        // what is a guest's just now may have another place the next time
        if whole && !noted || !goes_on {
            self.stop_recording();
        }
    }

    /// Is there nothing that speaks against a replay? Somebody may have come since then, and others' calls were not noted.
    fn is_all_noted(&self, own: &Arc<Cache>, begun: Calls, made: u64) -> bool {
        self.shut_for_tape(own);
        self.own_calls().since(begun).all() == made && self.may_tape(own)
    }

    fn begin_replay(&mut self, own: &Cache, mut recording: Recording, touches: &Touches, is_first: bool) {
        match self.begin_company(recording.notes(), touches) {
            Begins::Now => {}
            Begins::Later if is_first => return self.resume_first(recording, Progress::default()),
            begins => {
                self.replay.recording = recording;
                return if begins == Begins::Never {
                    self.spoil_tape()
                };
            }
        }
        recording.begin();
        self.begin_to_read(own);
        self.replay.guests.begin();
        self.replay
            .tape
            .begin(recording.steps(), self.replay.company.heard());
        (self.replay.recording, self.replay.is_first) = (recording, is_first);
        self.replay.way = Way::Replaying;
        self.look_for_peak();
        self.replay.peaks_from = Progress::default();
    }

    /// An allocation was served that is to be recorded.
    pub fn note_alloc(&mut self, own: &Cache, at: u64, bytes: u64) {
        if self.replay.way != Way::Recording {
            return;
        }
        if let Some(part) = self.replay.company.part_of(own.arena) {
            if let Some(first) = &mut self.replay.first {
                first.alloc(at, bytes, part);
            }
            if self.replay.records_round() {
                let extent = self.extent_at(at).expect("it was handed out");
                self.note(Step::Alloc { bytes, at }, part, extent);
            }
        }
    }

    /// Of a round.
    fn note(&mut self, step: Step, part: usize, block: Extent) {
        if self.replay.records_round() {
            self.replay.recording.note(step, part, block, self.pages.changes);
        }
    }

    /// As `alloc_taped`: gives the block's bytes if there is no more to be done but to record an event that covers this number.
    #[inline(never)]
    pub fn free_taped(&mut self, own: Option<&Arc<Cache>>, at: u64) -> Option<(u64, Option<u64>)> {
        let own = self.taped(own)?;
        match self.replay.way {
            Way::Watching => None,
            Way::Recording => {
                let bytes = self.record_free(own, at, true)?;
                Some((bytes, self.cover_kept(own.arena)))
            }
            Way::Replaying => {
                let (bytes, heard) = self.replay.tape.free_heard(own.part(), at)?;
                Some((bytes, heard.then(|| self.hear_replayed(own.arena))))
            }
        }
    }

    /// Notes a free while calls are recorded. Gives the block's bytes if the cache has kept it, which it `may`.
    #[inline]
    fn record_free(&mut self, own: &Cache, at: u64, may: bool) -> Option<u64> {
        let extent = self.extent_at(at)?; // whoever frees what is no block will hear of it
        let part = self.replay.company.part_of(own.arena)?;
        if let Some(first) = &mut self.replay.first {
            first.free(at, extent, part);
        }
        let bytes = extent.bytes;
        self.note(Step::Free { bytes, at }, part, extent);
        let open = may && own.gate.is_shut_only(Shut::Taped);
        open.then(|| own.keep_inside(at))?
    }

    /// The same where all use of the block is over, by a thread that need not name the stream: then the pool records no event. Of work that
    /// another stream had there before that says nothing, so what several streams make together has none of it.
    #[inline(never)]
    pub fn free_synced_taped(&mut self, thread: ThreadId, at: u64) -> Option<u64> {
        if self.replay.company.is_several() {
            self.spoil_tape();
            return None;
        }
        let arena = self.replay.host();
        let own = self
            .caches()
            .iter()
            .find(|own| own.arena == arena && own.owner == thread);
        match (own.cloned(), self.replay.is_on()) {
            (Some(own), true) => Some(self.replay.tape.free_heard(own.part(), at)?.0),
            (own, _) => {
                let own = self.taped(own.as_ref())?;
                self.record_free(own, at, !self.has_several_streams())
            }
        }
    }

    /// The same for a batch while calls are replayed: all of it, or nothing.
    #[inline(never)]
    pub fn free_batch_taped(&mut self, own: Option<&Arc<Cache>>, blocks: &[Addr]) -> Option<Option<u64>> {
        let own = self.taped(own)?;
        // it is off while calls are recorded
        let heard = self.replay.tape.free_all_heard(own.part(), blocks)?;
        Some(heard.then(|| self.hear_replayed(own.arena)))
    }

    /// No call is answered from the tape any more. Gives how far it came, if it was on.
    pub(super) fn end_tape(&mut self) -> Option<Progress> {
        if !self.replay.tape.is_on() {
            return None;
        }
        self.keep_out(Shut::Visit);
        let progress = self.replay.tape.end();
        self.let_in(Shut::Away);
        self.let_in(Shut::Visit);
        progress
    }

    /// A replay has ended: is something recorded still, or anew?
    pub(super) fn learn_from_replay(&mut self, progress: Progress) {
        let now = self.calls();
        let recording = mem::take(&mut self.replay.recording);
        let wrong = !recording.has_period() && progress.rounds == 0; // it was guessed
        if self.replay.is_first && wrong {
            return self.resume_first(recording, progress);
        }
        let round = recording.round();
        let disturbed = self.replay.reader.goes_too_often() || self.replay.guests.are_too_many();
        let for_guest = self.replay.guests.have_ended(progress);
        let worth = recording.rounds_until(progress) >= WORTH && !disturbed;
        let several = self.replay.company.is_several();
        if !wrong {
            self.replay.rounds.forget(now, self.stats.allocations, several);
            match worth {
                true => self.replay.failures = 0,
                false if for_guest => {}
                false => self.replay.failed(now, round),
            }
        }
        if self.replay.is_first && !worth && !for_guest && !several {
            return self.resume_first(recording, progress); // they may be a phase of what comes again
        }
        let first = self.replay.first.take().filter(|_| !self.replay.is_first);
        let again = |first: &mut First| first.repeat(recording.notes(), progress);
        self.replay.first = first.and_then(|mut first| again(&mut first).then_some(first));
        // one call that differs, as where a program looks now and then how far it came, is no reason to forget all
        if wrong || worth || for_guest {
            self.replay.recording = recording;
            self.replay.recording.resume(progress, self.pages.changes);
        }
        self.go_on_recording();
    }
}
