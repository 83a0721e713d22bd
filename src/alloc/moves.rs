//! What went to pages in rounds that are recorded: shall blocks be led back to where they were?
//!
//! Where many pages move they find their places by themselves, as a rule, and blocks with them. Where hardly any do it may be for ever, as
//! when a training step's large blocks push each other from place to place: there blocks are led at once, unless that makes more pages move.
//!
//! No lock of its own: the heap's.

use super::page::Changes;

/// They are few if so many calls come to one of them.
const FEW: u64 = 16;
/// At first more of them may move, to places where others were.
const MORE: u64 = 2;

/// Rounds are looked at one after the other.
#[derive(Debug, Default)]
pub struct Moves {
    /// Changes of mappings in the last one. None: none is over.
    last: Option<u64>,
    /// Calls, and changes, until its end.
    calls: usize,
    changes: u64,
    /// Blocks were led, and more pages moved.
    misled: bool,
}

impl Moves {
    /// Of rounds of so many calls hardly any page has moved until now, after so many.
    pub fn few_until(calls: usize, round: usize, changes: Changes) -> Moves {
        Moves {
            last: Some(round as u64 / FEW),
            calls,
            changes: changes.all(),
            misled: false,
        }
    }

    /// After so many calls: was that a round, of so many? Blocks were led in it if that was wanted and `may`.
    pub fn look(&mut self, calls: usize, round: usize, changes: Changes, may: bool) {
        if calls == 0 {
            self.changes = changes.all();
        } else if calls >= self.calls + round {
            let moved = changes.all() - self.changes;
            self.misled |= may && self.are_few(round) && self.last.is_some_and(|last| moved > MORE * last);
            (self.last, self.calls, self.changes) = (Some(moved), calls, changes.all());
        }
    }

    /// Were they few in the last round, and is it of use to lead blocks?
    pub fn are_few(&self, round: usize) -> bool {
        !self.misled && self.last.is_some_and(|last| last * FEW <= round as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether blocks are led in the round after each of these, of 160 calls each.
    fn led<const ROUNDS: usize>(moved: [u64; ROUNDS]) -> [bool; ROUNDS] {
        let (mut moves, mut changes, mut calls) = (Moves::default(), Changes::default(), 0);
        moves.look(0, 160, changes, true);
        moved.map(|moved| {
            changes.made += moved;
            for _ in 0..160 {
                calls += 1;
                moves.look(calls, 160, changes, true);
            }
            moves.are_few(160)
        })
    }

    #[test]
    fn blocks_are_led_where_few_pages_move_as_long_as_that_does_not_make_it_more() {
        assert_eq!(led([11, 10, 10, 0]), [false, true, true, true]);
        assert_eq!(led([5, 10, 20]), [true, true, false], "too many");
        assert_eq!(led([2, 5, 0, 0]), [true, false, false, false], "misled");
        assert_eq!(
            led([100, 0, 1, 0]),
            [false, true, false, false],
            "they were settled"
        );
    }
}
