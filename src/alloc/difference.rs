//! By which blocks what is in use differs after some calls from what was in use before them.
//!
//! A block that went and one that came to the same place are the same only if they came at the same turn: two blocks of a length may have
//! changed places, and the next call frees one of them.

use super::note::{Extent, Note};
use super::tape::Step;

/// A block, and the turn of the window at which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lasting {
    at: u64,
    block: Extent,
    /// None: it came before anything was recorded.
    turn: Option<usize>,
}

/// Blocks that were in use before the first of these calls and are not after the last one, and the other way round, by address. The first
/// call has this number, and calls come again after so many.
pub fn difference<'a>(
    calls: impl ExactSizeIterator<Item = &'a Note> + Clone,
    first: usize,
    round: usize,
) -> [Vec<(u64, Extent)>; 2] {
    let lasting = |number: usize, note: &Note| Lasting {
        at: note.at,
        block: note.block(),
        turn: note.age().map(|age| (first + number - age) % round),
    };
    let (mut gone, mut born) = (Vec::new(), Vec::new());
    let mut lasts = vec![true; calls.len()];
    for (number, note) in calls.clone().enumerate() {
        if let Step::Free { .. } = note.step() {
            match note.age().and_then(|age| number.checked_sub(age)) {
                Some(came) => lasts[came] = false,
                None => gone.push(lasting(number, note)),
            }
        }
    }
    for (number, note) in calls.enumerate() {
        if let (Step::Alloc { .. }, true) = (note.step(), lasts[number]) {
            born.push(lasting(number, note));
        }
    }
    gone.sort_unstable();
    born.sort_unstable();
    // what went and came again at its turn is there
    [(&gone, &born), (&born, &gone)].map(|(these, those)| {
        let only = these.iter().filter(|one| those.binary_search(one).is_err());
        only.map(|one| (one.at, one.block)).collect()
    })
}
