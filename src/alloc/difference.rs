//! By which blocks what is in use differs after some calls from what was in use before them.
//!
//! If these are a round, a block that went and one that came to the same place are the same only if each came as many calls before the round's
//! end: two blocks of a length may have changed places, and the next call frees one of them. They may even have come at the same turn, as a
//! step's result does that is kept until the next one is there.

use super::note::{Extent, Note};
use super::tape::Step;

/// A block, and how many calls before the end of a round it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lasting {
    at: u64,
    block: Extent,
    /// None: that was before anything was recorded, or does not matter.
    came: Option<usize>,
}

/// Blocks that were in use before the first of these calls and are not after the last one, and the other way round, by address.
pub fn difference<'a>(
    calls: impl ExactSizeIterator<Item = &'a Note> + Clone,
    is_round: bool,
) -> [Vec<(u64, Extent)>; 2] {
    let lasting = |note: &Note, came: Option<usize>| Lasting {
        at: note.at,
        block: note.block(),
        came: came.filter(|_| is_round),
    };
    let (mut gone, mut born) = (Vec::new(), Vec::new());
    let mut lasts = vec![true; calls.len()];
    for (number, note) in calls.clone().enumerate() {
        if let Step::Free { .. } = note.step() {
            match note.age().and_then(|age| number.checked_sub(age)) {
                Some(came) => lasts[came] = false,
                None => gone.push(lasting(note, note.age().map(|age| age - number))),
            }
        }
    }
    for (number, note) in calls.clone().enumerate() {
        if let (Step::Alloc { .. }, true) = (note.step(), lasts[number]) {
            born.push(lasting(note, Some(calls.len() - number)));
        }
    }
    gone.sort_unstable();
    born.sort_unstable();
    // what went and came again is there
    [(&gone, &born), (&born, &gone)].map(|(these, those)| {
        let only = these.iter().filter(|one| those.binary_search(one).is_err());
        only.map(|one| (one.at, one.block)).collect()
    })
}
