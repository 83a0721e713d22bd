//! The windows that requests were given before, so that a request which comes again finds the place where its pages
//! are still mapped.
//!
//! The window that the same request of the round before was given comes first: so a pool that is in the same state as
//! before chooses as it did before, whatever was mapped since. Then those of about its length, the earliest first.
//!
//! Invariants: `lengths` and `order` hold the same windows, `turns` and `turned` the same keys; `MOST` of each at most.
//! No lock of its own: the heap's. Caller: `plan`.

use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, VecDeque};

/// Windows remembered; the oldest are forgotten.
const MOST: usize = 4096;
/// Windows of one length remembered, and considered for one request.
const LOOK: usize = 256;

/// Windows by length.
#[derive(Debug, Default)]
pub struct Windows {
    /// Length, number, first address.
    lengths: BTreeSet<(u64, u64, u64)>,
    /// The same, by number.
    order: VecDeque<(u64, u64, u64)>,
    made: u64,
    /// First address of the latest window by turn and length.
    turns: FxHashMap<(u64, u64), u64>,
    /// Their keys, oldest first.
    turned: VecDeque<(u64, u64)>,
}

impl Windows {
    /// A request of `len` bytes, the allocation `turn` of a round, was given the window that starts at `start`. Is it the
    /// first one of that length?
    pub fn note(&mut self, turn: u64, len: u64, start: u64) -> bool {
        if self.turns.insert((turn, len), start).is_none() {
            if self.turns.len() > MOST {
                self.turns.remove(&self.turned.pop_front().expect("a turn"));
            }
            self.turned.push_back((turn, len));
        }
        let (mut same, mut first) = (0, None);
        for &window in self.lengths.range((len, 0, 0)..(len + 1, 0, 0)) {
            if window.2 == start {
                return false;
            }
            same += 1;
            first = first.or(Some(window));
        }
        if let Some(oldest) = first.filter(|_| same == LOOK) {
            self.lengths.remove(&oldest);
            self.order.retain(|window| *window != oldest);
        } else if self.order.len() == MOST {
            let oldest = self.order.pop_front().expect("a window");
            self.lengths.remove(&oldest);
        }
        let window = (len, self.made, start);
        self.made += 1;
        self.lengths.insert(window);
        self.order.push_back(window);
        same == 0
    }

    /// First address of the window that the same allocation was given in the round before.
    pub fn at(&self, turn: u64, len: u64) -> Option<u64> {
        self.turns.get(&(turn, len)).copied()
    }

    /// First addresses of windows of at least `len` bytes, the shortest first.
    pub fn of(&self, len: u64) -> impl Iterator<Item = u64> + '_ {
        self.lengths
            .range((len, 0, 0)..)
            .map(|window| window.2)
            .take(LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_of_the_shortest_come_first() {
        let mut windows = Windows::default();
        for (len, start) in [(8, 100), (9, 300), (8, 50), (8, 100), (7, 10)] {
            windows.note(0, len, start);
        }
        assert_eq!(windows.of(8).collect::<Vec<_>>(), [100, 50, 300]);
        assert_eq!(windows.of(10).count(), 0);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut windows = Windows::default();
        for start in 0..MOST as u64 + 2 {
            windows.note(start, start, start);
        }
        assert_eq!(windows.of(0).next(), Some(2));
        assert_eq!((windows.lengths.len(), windows.order.len()), (MOST, MOST));
        for start in 0..LOOK as u64 + 1 {
            windows.note(0, 1 << 40, start);
        }
        assert_eq!(windows.of(1 << 40).next(), Some(1));
        assert_eq!(windows.lengths.len(), windows.order.len());
    }
}
