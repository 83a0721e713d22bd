//! How many calls a round has: the latest ones are the same as those so long ago.

use super::note::Note;
use super::rounds::ALIKE;
use std::collections::VecDeque;

/// A round comes again if so many calls at least do.
pub const LAST: usize = 64;

/// A round of about so many calls may have so many more or less.
pub fn near(round: usize) -> usize {
    round / ALIKE as usize
}

/// Were the calls since the first ones so long ago the same as those, but for a few of the first? (The latest few may be by chance: a
/// round, which was seen to have so many calls, has parts that are alike.)
pub fn is_same(notes: &VecDeque<Note>, round: usize, ago: usize) -> bool {
    let calls = notes.len().saturating_sub(ago);
    let pairs = notes.iter().skip(ago).zip(notes);
    calls >= LAST.min(round) && pairs.skip(near(calls)).all(|(one, other)| one.is_like(other))
}

/// Are the latest calls, as many as about a round has, the same as those before them?
pub fn came_again(notes: &[Note], about: usize) -> bool {
    let mut near = (0..=near(about)).flat_map(|off| [about + off, about - off]);
    near.any(|ago| {
        let latest = notes.iter().rev().take(ago);
        let before = notes.iter().rev().skip(ago);
        ago > 0 && notes.len() >= 2 * ago && latest.zip(before).all(|(one, other)| one.is_like(other))
    })
}

/// How many calls ago was the same done as just now? About so many.
pub fn period(notes: &VecDeque<Note>, round: usize, about: usize) -> Option<usize> {
    // what was thought first, then what is more and less
    let mut near = (0..=near(about)).flat_map(|off| [about + off, about - off]);
    near.find(|&ago| ago > 0 && is_same(notes, round, ago))
}
