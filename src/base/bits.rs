//! A set of small integers with "the greatest member not above", in time logarithmic to base 64: a tree of
//! words as in van Emde Boas' idea, flattened (each bit of a level says whether a word of the level below
//! is not zero).

/// The set.
#[derive(Debug)]
pub struct BitTree {
    /// Level 0 has a bit for each integer.
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    /// The empty set of integers below `len`.
    pub fn new(len: usize) -> BitTree {
        let mut levels = Vec::new();
        let mut words = len.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return BitTree { levels };
            }
            words = words.div_ceil(64);
        }
    }

    /// Adds an integer.
    pub fn insert(&mut self, mut at: usize) {
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was = *word;
            *word |= 1 << (at % 64);
            if was != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Takes an integer out.
    pub fn remove(&mut self, mut at: usize) {
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// The greatest member that is not above `at`.
    pub fn at_or_below(&self, at: usize) -> Option<usize> {
        let mut index = at;
        for (height, level) in self.levels.iter().enumerate() {
            // on the first level `at` itself counts; above it only what lies before does
            let keep = if height == 0 {
                u64::MAX >> (63 - index % 64)
            } else {
                !(u64::MAX << (index % 64))
            };
            let word = level[index / 64] & keep;
            if word != 0 {
                let mut found = index / 64 * 64 + 63 - word.leading_zeros() as usize;
                for below in self.levels[..height].iter().rev() {
                    found = found * 64 + 63 - below[found].leading_zeros() as usize;
                }
                return Some(found);
            }
            index /= 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_an_ordered_set() {
        let mut tree = BitTree::new(300_000);
        let mut model = BTreeSet::new();
        let mut random = 1u64;
        for step in 0..20_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = ((random >> 33) as usize % 300_000) >> (step % 3 * 6);
            if random >> 20 & 1 == 0 {
                tree.insert(at);
                model.insert(at);
            } else {
                tree.remove(at);
                model.remove(&at);
            }
            let ask = (random >> 13) as usize % 300_000;
            assert_eq!(tree.at_or_below(ask), model.range(..=ask).next_back().copied());
        }
    }
}
