//! The windows that requests were given before, so that a request which comes again finds the place where its pages
//! are still mapped.
//!
//! Of one length the earliest come first: a pool that is in the same state as before then chooses as it did before,
//! whatever was mapped since.
//!
//! Invariant: `lengths` and `order` hold the same windows, `MOST` at most.
//! No lock of its own: the heap's. Caller: `plan`.

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
}

impl Windows {
    /// A request of `len` bytes was given the window that starts at `start`. Is it the first one of that length?
    pub fn note(&mut self, len: u64, start: u64) -> bool {
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
            windows.note(len, start);
        }
        assert_eq!(windows.of(8).collect::<Vec<_>>(), [100, 50, 300]);
        assert_eq!(windows.of(10).count(), 0);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut windows = Windows::default();
        for start in 0..MOST as u64 + 2 {
            windows.note(start, start);
        }
        assert_eq!(windows.of(0).next(), Some(2));
        assert_eq!((windows.lengths.len(), windows.order.len()), (MOST, MOST));
        for start in 0..LOOK as u64 + 1 {
            windows.note(1 << 40, start);
        }
        assert_eq!(windows.of(1 << 40).next(), Some(1));
        assert_eq!(windows.lengths.len(), windows.order.len());
    }
}
