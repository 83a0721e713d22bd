//! A set of small integers with "the greatest member not above", in time logarithmic to base 64: a tree of
//! words as in van Emde Boas' idea, flattened (each bit of a level says whether a word of the level below
//! is not zero).

/// The set.
#[derive(Debug)]
pub struct BitTree {
    /// A bit for each integer.
    bits: Vec<u64>,
    /// The levels above, the lowest first.
    above: Vec<Vec<u64>>,
}

impl BitTree {
    /// The empty set of integers below `len`.
    pub fn new(len: usize) -> BitTree {
        let bits = vec![0; len.div_ceil(64).max(1)];
        let (mut words, mut above) = (bits.len(), Vec::new());
        while words > 1 {
            words = words.div_ceil(64);
            above.push(vec![0; words]);
        }
        BitTree { bits, above }
    }

    /// Adds an integer.
    #[inline]
    pub fn insert(&mut self, at: usize) {
        let word = &mut self.bits[at / 64];
        if std::mem::replace(word, *word | 1 << (at % 64)) == 0 {
            self.insert_above(at / 64);
        }
    }

    fn insert_above(&mut self, mut at: usize) {
        for level in &mut self.above {
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
    #[inline]
    pub fn remove(&mut self, at: usize) {
        let word = &mut self.bits[at / 64];
        *word &= !(1 << (at % 64));
        if *word == 0 {
            self.remove_above(at / 64);
        }
    }

    fn remove_above(&mut self, mut at: usize) {
        for level in &mut self.above {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// Is this a member?
    #[inline]
    pub fn contains(&self, at: usize) -> bool {
        self.bits[at / 64] >> (at % 64) & 1 != 0
    }

    /// The greatest member that is not above `at`.
    #[inline]
    pub fn at_or_below(&self, at: usize) -> Option<usize> {
        let word = self.bits[at / 64] & u64::MAX >> (63 - at % 64);
        match word {
            0 => self.before(at / 64),
            word => Some(at / 64 * 64 + 63 - word.leading_zeros() as usize),
        }
    }

    /// The greatest member in words before this one.
    fn before(&self, word: usize) -> Option<usize> {
        let mut index = word;
        for (height, level) in self.above.iter().enumerate() {
            // only what lies before counts
            let word = level[index / 64] & !(u64::MAX << (index % 64));
            if word != 0 {
                let greatest = |word: u64| 63 - word.leading_zeros() as usize;
                let mut found = index / 64 * 64 + greatest(word);
                for below in self.above[..height].iter().rev() {
                    found = found * 64 + greatest(below[found]);
                }
                return Some(found * 64 + greatest(self.bits[found]));
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
            assert_eq!(tree.contains(ask), model.contains(&ask));
        }
    }
}
