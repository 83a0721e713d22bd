//! How many calls a round has: the latest ones are the same as those so long ago.

use super::note::Note;
use super::rounds::ALIKE;
use std::collections::VecDeque;

/// A round comes again if so many calls at least do.
pub const LAST: usize = 64;
/// Each call is compared with so many others at most, in the mean.
const EACH: usize = 32;

/// A round of about so many calls may have so many more or less.
pub fn near(round: usize) -> usize {
    round / ALIKE as usize
}

/// Were the calls since the first ones so long ago the same as those, but for a few of the first? (The latest few may be by chance: a
/// round, which was seen to have so many calls, has parts that are alike.)
pub fn is_same(notes: &VecDeque<Note>, round: usize, ago: usize) -> bool {
    let mut any = usize::MAX;
    is_same_within(notes, round, ago, &mut any)
}

/// The same if no more comparisons than these are needed, which become fewer.
fn is_same_within(notes: &VecDeque<Note>, round: usize, ago: usize, left: &mut usize) -> bool {
    let calls = notes.len().saturating_sub(ago);
    let pairs = notes.iter().skip(ago).zip(notes).skip(near(calls));
    let alike = pairs
        .take(*left)
        .take_while(|(one, other)| one.is_like(other))
        .count();
    let enough = calls - near(calls);
    *left -= (alike + 1).min(*left);
    calls >= LAST.min(round) && alike == enough
}

/// Are the latest calls, so many and as many as a round has, the same as those before them, where one has about so many?
pub fn came_again(notes: &[Note], about: usize, calls: usize) -> bool {
    let mut left = EACH * notes.len();
    let mut near = (0..=near(about)).flat_map(|off| [about + off, about - off]);
    near.any(|ago| {
        let calls = calls.max(ago);
        if ago == 0 || notes.len() < ago + calls {
            return false;
        }
        let pairs = notes.iter().rev().zip(notes.iter().rev().skip(ago));
        let alike = pairs
            .take(calls.min(left))
            .take_while(|(one, other)| one.is_like(other))
            .count();
        left -= (alike + 1).min(left);
        alike == calls
    })
}

/// How many calls ago was the same done as just now? About so many. (Of calls that are nearly all alike there is too much to be looked at.)
pub fn period(notes: &VecDeque<Note>, round: usize, about: usize) -> Option<usize> {
    let mut left = EACH * notes.len();
    // what was thought first, then what is more and less
    let mut near = (0..=near(about)).flat_map(|off| [about + off, about - off]);
    near.find(|&ago| ago > 0 && is_same_within(notes, round, ago, &mut left))
}

#[cfg(test)]
mod tests {
    use super::super::note::Extent;
    use super::super::tape::Step;
    use super::*;

    /// Calls that are all alike but for the fifth last and the one so long before.
    fn calls(about: usize, ago: usize) -> VecDeque<Note> {
        let count = about + near(about) + 2 * LAST;
        let block = Extent {
            bytes: 512,
            slab: None,
        };
        let other = [count - 5, count - 5 - ago];
        let step = |number| Step::Alloc {
            bytes: if other.contains(&number) { 512 } else { 256 },
            at: 0,
        };
        (0..count)
            .map(|number| Note::new(step(number), block, Some(0)))
            .collect()
    }

    #[test]
    fn calls_that_are_nearly_all_alike_are_not_compared_for_ever() {
        let about = 20_000;
        for (ago, found) in [(about + 10, true), (about - near(about) / 2, false)] {
            let notes = calls(about, ago);
            assert!(is_same(&notes, about, ago));
            assert_eq!(period(&notes, about, about), found.then_some(ago));
        }
    }
}
