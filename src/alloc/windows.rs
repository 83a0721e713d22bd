//! The windows that requests were given before, so that a request which comes again finds the place where its pages
//! are still mapped.
//!
//! The window that such a request was given when the very same bytes were free comes first. So a pool that comes to a state again
//! chooses as it did before, whatever was mapped since, and as all that follows is then as it was, too, a program that repeats
//! itself from such a state on maps no page twice. (Until there was this it was the window of the same allocation of the
//! round before, told by its number. But a round may have rounds within it, of as many allocations each.) Then those of about
//! its length, the earliest first.
//!
//! Invariants: `lengths` and `order` hold the same windows, `shapes` and `shaped` the same keys; `MOST` and `SHAPES` at most.
//! No lock of its own: the heap's. Caller: `plan`.

use super::shape::Shape;
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, VecDeque};

/// Windows remembered; the oldest are forgotten.
const MOST: usize = 4096;
/// States remembered, as many as a round has misses.
const SHAPES: usize = 1 << 14;
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
    /// First address of the latest window by what was free, and length.
    shapes: FxHashMap<(Shape, u64), u64>,
    /// Their keys, oldest first.
    shaped: VecDeque<(Shape, u64)>,
}

impl Windows {
    /// A request of `len` bytes was given the window that starts at `start`, with so much free. Is it the first one of that
    /// length?
    pub fn note(&mut self, shape: Shape, len: u64, start: u64) -> bool {
        if self.shapes.insert((shape, len), start).is_none() {
            if self.shapes.len() > SHAPES {
                self.shapes.remove(&self.shaped.pop_front().expect("a shape"));
            }
            self.shaped.push_back((shape, len));
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

    /// First address of the window that such a request was given when the same was free.
    pub fn at(&self, shape: Shape, len: u64) -> Option<u64> {
        self.shapes.get(&(shape, len)).copied()
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
        let shape = Shape::default();
        for (len, start) in [(8, 100), (9, 300), (8, 50), (8, 100), (7, 10)] {
            windows.note(shape, len, start);
        }
        assert_eq!(windows.of(8).collect::<Vec<_>>(), [100, 50, 300]);
        assert_eq!(windows.of(10).count(), 0);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut windows = Windows::default();
        let shape = |of: u64| {
            let mut shape = Shape::default();
            shape.add(0, of);
            shape
        };
        for start in 0..SHAPES as u64 + 2 {
            windows.note(shape(start), start, start);
        }
        assert_eq!(windows.of(0).next(), Some((SHAPES - MOST) as u64 + 2));
        let known = [1, 2, SHAPES as u64 + 1].map(|start| windows.at(shape(start), start));
        assert_eq!(known, [None, Some(2), Some(SHAPES as u64 + 1)]);
        assert_eq!(windows.shapes.len(), windows.shaped.len());
        assert_eq!((windows.lengths.len(), windows.order.len()), (MOST, MOST));
        for start in 0..LOOK as u64 + 1 {
            windows.note(shape(0), 1 << 40, start);
        }
        assert_eq!(windows.of(1 << 40).next(), Some(1));
        assert_eq!(windows.lengths.len(), windows.order.len());
    }
}
