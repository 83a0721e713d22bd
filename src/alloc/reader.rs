//! Which thread reads the tape: one at a time, without a lock. Where threads take turns (`turns`), as a forward and a backward pass do, it
//! goes from hand to hand: to all others the way to it is shut, and who comes next has the last one outside first, with what it has read of
//! the tape. That takes a fence on all processors, some microseconds: so turns of a few calls do not pay.
//!
//! No lock of its own: the heap's.

use super::cache::Cache;
use super::gate::{Gate, Shut};
use super::heap::Heap;

/// A turn of so many calls pays...
const PAYS: u64 = 64;
/// ...and so many shorter ones in a replay do not matter.
const FEW: u64 = 8;

/// What became of it in a replay.
#[derive(Debug, Default)]
pub struct Reader {
    handed: u64,
    too_often: bool,
}

impl Reader {
    /// It goes to another thread after so many calls. False: it did that too often.
    fn hand_over(&mut self, calls: u64) -> bool {
        self.handed += 1;
        self.too_often = self.handed > calls / PAYS + FEW;
        !self.too_often
    }

    /// Did it go from thread to thread too often?
    pub fn goes_too_often(&self) -> bool {
        self.too_often
    }
}

impl Heap {
    /// Calls go by the tape. No thread is inside its cache any more; the caller is not.
    pub(super) fn shut_for_tape(&self, own: &Cache) {
        own.gate.shut(Shut::Taped);
        self.shut_out(own, |other| other != own, Shut::Taped);
    }

    /// A replay begins, and the caller reads the tape.
    pub(super) fn begin_to_read(&mut self, own: &Cache) {
        self.replay.reader = Reader::default();
        self.shut_out(own, |other| !self.reads_with(own, other), Shut::Away);
    }

    /// There comes a call of the thread of this cache, which reads the tape from now on. False: it may not.
    pub(super) fn may_read(&mut self, own: &Cache) -> bool {
        if !own.gate.is_shut(Shut::Away) {
            return true;
        }
        let calls = self.replayed_calls();
        let may = self.replay.reader.hand_over(calls);
        if may {
            self.shut_out(own, |other| !self.reads_with(own, other), Shut::Away);
            let same = self.caches().iter().filter(|other| self.reads_with(own, other));
            same.for_each(|cache| cache.gate.open(Shut::Away));
        }
        may
    }

    /// Does the same thread read the tape with both caches? It has one for each of the round's streams.
    fn reads_with(&self, own: &Cache, other: &Cache) -> bool {
        other.owner == own.owner && self.is_member(other.arena)
    }

    fn shut_out(&self, own: &Cache, which: impl Fn(&Cache) -> bool, why: Shut) {
        let others = self.caches().iter().filter(|cache| which(cache));
        match others.clone().any(|cache| cache.owner != own.owner) {
            true => Gate::shut_out(others.map(|cache| &cache.gate), why),
            // the caller is in none of them
            false => others.for_each(|cache| cache.gate.shut(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_from_thread_to_thread_as_often_as_that_pays() {
        let times = |turn: u64| {
            let mut reader = Reader::default();
            let times = (1..1000).take_while(|number| reader.hand_over(number * turn));
            (times.count() as u64, reader.goes_too_often())
        };
        assert_eq!(times(PAYS), (999, false));
        assert_eq!(times(0), (FEW, true));
        let (short, gone) = times(PAYS / 4);
        assert!(gone && (FEW..2 * FEW).contains(&short), "{short}");
    }
}
