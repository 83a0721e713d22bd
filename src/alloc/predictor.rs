//! Where the next request of a stream may go: where it went the last time that it, and the requests before it, were the same.
//!
//! The latest requests are remembered, and for the lengths of each few in a row where they came last: a *finite context method*
//! (Sazeides, Smith, "The predictability of data values", 1997), whose answer is looked up once in a round. As long as requests go on like
//! those so many ago the next one is known to be like the one after these.
//!
//! No lock of its own: the heap's.

use rustc_hash::FxHasher;
use std::hash::Hasher;

/// Requests that are remembered, a power of two: a round has no more.
const PAST: usize = 1 << 12;
/// So many in a row tell where in a round a request is.
const LIKE: usize = 3;
/// So many in a row that were as before are no chance.
const SURE: u32 = 32;

/// What a stream asked for, and where it got that.
#[derive(Debug, Default)]
pub struct Predictor {
    /// The latest requests, the one with number n at n mod `PAST`: its bytes, and its place.
    past: Vec<(u64, u64)>,
    /// Requests so far.
    made: usize,
    /// The number of the latest request with such ones before it, by their hash; more than one may have the same.
    latest: Vec<u32>,
    /// Requests are the same as so many ago.
    ago: Option<usize>,
    /// So many in a row were as before.
    run: u32,
}

impl Predictor {
    /// Where the next request may go, if it is for so many bytes.
    pub fn place(&self, bytes: u64) -> Option<u64> {
        let ago = self.like(bytes, self.hash(bytes))?;
        self.before(ago).map(|past| past.1)
    }

    /// So many bytes were asked for, and are here.
    pub fn note(&mut self, bytes: u64, at: u64) {
        let hash = self.hash(bytes);
        self.ago = self.like(bytes, hash);
        self.run = match self.ago {
            Some(_) => self.run.saturating_add(1),
            None => 0,
        };
        if self.latest.is_empty() {
            self.latest = vec![0; PAST];
        }
        self.latest[hash] = self.made as u32;
        match self.past.len() < PAST {
            true => self.past.push((bytes, at)),
            false => self.past[self.made % PAST] = (bytes, at),
        }
        self.made += 1;
    }

    /// Have requests been as before for long?
    pub fn is_sure(&self) -> bool {
        self.run >= SURE
    }

    /// Was the latest one not as any before?
    pub fn is_lost(&self) -> bool {
        self.run == 0
    }

    /// The request of so many ago.
    fn before(&self, ago: usize) -> Option<(u64, u64)> {
        let there = ago > 0 && ago <= self.past.len();
        there.then(|| self.past[(self.made - ago) % PAST])
    }

    fn bytes_before(&self, ago: usize) -> Option<u64> {
        self.before(ago).map(|past| past.0)
    }

    /// How long ago a request for so many bytes, with such a `hash`, came after the same ones as now.
    fn like(&self, bytes: u64, hash: usize) -> Option<usize> {
        let same = |ago: &usize| self.bytes_before(*ago) == Some(bytes);
        let found = || {
            let latest = *self.latest.get(hash)?;
            let ago = (self.made as u32).wrapping_sub(latest) as usize;
            let all = (1..LIKE).all(|more| self.bytes_before(ago + more) == self.bytes_before(more));
            (all && self.bytes_before(ago + LIKE - 1).is_some()).then_some(ago)
        };
        self.ago.filter(same).or_else(|| found().filter(same))
    }

    /// Of the next request, if it is for so many bytes, and those before it.
    fn hash(&self, bytes: u64) -> usize {
        let mut hasher = FxHasher::default();
        hasher.write_u64(bytes);
        (1..LIKE).for_each(|ago| hasher.write_u64(self.bytes_before(ago).unwrap_or(0)));
        hasher.finish() as usize % PAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes these requests, the first of which goes to a place; gives those that were predicted to go where they went before.
    fn make(predictor: &mut Predictor, round: &[u64], at: u64) -> usize {
        let mut right = 0;
        for (number, &bytes) in round.iter().enumerate() {
            let place = at + number as u64;
            right += usize::from(predictor.place(bytes) == Some(place));
            predictor.note(bytes, place);
        }
        right
    }

    #[test]
    fn a_round_that_comes_again_is_predicted() {
        let mut predictor = Predictor::default();
        // some are alike
        let round: Vec<u64> = (0..500u64)
            .map(|number| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % 61)
            .collect();
        assert_eq!(make(&mut predictor, &round, 1000), 0);
        assert!(!predictor.is_sure());
        let right = make(&mut predictor, &round, 1000);
        assert!(right >= 490, "{right}");
        assert!(predictor.is_sure());
        assert_eq!(make(&mut predictor, &round, 1000), 500);
        make(&mut predictor, &round, 3000);
        assert_eq!(make(&mut predictor, &round, 3000), 500, "where it went last");
    }

    #[test]
    fn a_request_more_or_less_is_recovered_from() {
        let mut predictor = Predictor::default();
        let round: Vec<u64> = (0..100).collect();
        make(&mut predictor, &round, 0);
        make(&mut predictor, &round, 0);
        assert_eq!(predictor.place(7777), None);
        predictor.note(7777, 5);
        assert!(predictor.is_lost() && !predictor.is_sure());
        assert_eq!(make(&mut predictor, &round, 0), 100 - (LIKE - 1));
        assert_eq!(
            make(&mut predictor, &round[50..], 50),
            50 - (LIKE - 1),
            "half of it"
        );
    }

    #[test]
    fn of_what_has_no_order_nothing_is_predicted() {
        let mut predictor = Predictor::default();
        let mut random = 1u64;
        for number in 0..3 * PAST as u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let bytes = random >> 50;
            let place = predictor.place(bytes);
            assert!(place.is_none_or(|place| place < number));
            predictor.note(bytes, number);
            assert!(!predictor.is_sure());
        }
    }

    #[test]
    fn a_round_longer_than_what_is_remembered_is_not_known() {
        for (count, known) in [(PAST - LIKE, true), (PAST + 1, false)] {
            let mut predictor = Predictor::default();
            let round: Vec<u64> = (0..count as u64).collect();
            make(&mut predictor, &round, 0);
            make(&mut predictor, &round, 0);
            let right = make(&mut predictor, &round, 0);
            // some share their place in the table
            assert_eq!(right > count / 2, known, "{right} of {count}");
        }
    }
}
