//! A round that was replayed shows where blocks belong while it is recorded again: a few calls more or less, as of a program that looks now
//! and then how far it came, do not change that. The next call is looked for near the place where the last one was.
//!
//! No lock of its own: the heap's.

use super::note::Note;
use super::tape::Step;
use std::collections::VecDeque;

/// Calls on both sides of a place that are looked at.
const NEAR: usize = 16;

/// The round, and how far the program came in it.
#[derive(Debug)]
pub struct Guide {
    round: Vec<Note>,
    next: usize,
}

impl Guide {
    /// These calls, of which so many were made.
    pub fn new(round: &VecDeque<Note>, steps: usize) -> Guide {
        Guide {
            round: round.iter().copied().collect(),
            next: steps,
        }
    }

    /// The call of the round that asks for so many bytes on that stream, if that is the next one.
    pub fn asks_for(&self, bytes: u64, part: usize) -> Option<&Note> {
        let place = self.find(|note| note.asks_for(bytes, part))?;
        Some(&self.round[place])
    }

    /// A call was made.
    pub fn follow(&mut self, step: Step, part: usize) {
        let is_it = |note: &Note| match (step, note.step()) {
            (Step::Alloc { bytes, .. }, _) => note.asks_for(bytes, part),
            (Step::Free { at, .. }, Step::Free { at: other, .. }) => at == other,
            _ => false,
        };
        if let Some(place) = self.find(is_it) {
            self.next = (place + 1) % self.round.len();
        }
    }

    /// The nearest one.
    fn find(&self, is_it: impl Fn(&Note) -> bool) -> Option<usize> {
        let count = self.round.len();
        let near = (0..=NEAR.min(count / 2)).flat_map(|way| [self.next + way, self.next + count - way]);
        near.map(|place| place % count)
            .find(|&place| is_it(&self.round[place]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::note::Extent;
    use super::*;

    fn alloc(bytes: u64) -> Step {
        Step::Alloc { bytes, at: bytes }
    }

    /// Where these calls are led: each asks for as many bytes as another one, and its block is there.
    fn led(calls: &[u64]) -> Vec<Option<u64>> {
        let block = Extent {
            bytes: 256,
            slab: None,
        };
        let round = (0..100).map(|bytes| Note::new(alloc(bytes), block, Some(0)));
        let mut guide = Guide::new(&round.collect(), 98);
        let lead = |&bytes: &u64| {
            let at = guide.asks_for(bytes, 0).map(|note| note.at);
            guide.follow(alloc(bytes), 0);
            at
        };
        calls.iter().map(lead).collect()
    }

    #[test]
    fn calls_more_or_less_do_not_lead_astray() {
        let known = |calls: &[u64]| calls.iter().map(|&bytes| Some(bytes)).collect::<Vec<_>>();
        let round = [98, 99, 0, 1, 2, 3];
        assert_eq!(led(&round), known(&round));
        let fewer = [98, 1, 2, 3, 14];
        assert_eq!(led(&fewer), known(&fewer));
        assert_eq!(
            led(&[98, 500, 501, 99, 0]),
            [Some(98), None, None, Some(99), Some(0)]
        );
        let ahead = [98, 5, 99, 0, 1];
        assert_eq!(led(&ahead), known(&ahead), "it comes back");
        assert_eq!(led(&[98, 60]), [Some(98), None], "that is another part of it");
    }
}
