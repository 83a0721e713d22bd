//! How much more than it needs a pool may hold so that requests find a place without pages being moved.
//!
//! Moving pages holds memory down and costs microseconds a request. That is well spent where a few large requests do it, or
//! where layouts come back. Where one request in a few moves pages for a length that was never seen before, blocks come
//! and go in no order, and some more memory makes most moves needless; as it does where pages move on and on for known lengths. So the share grows step by step until requests
//! hardly move pages any more; then long extents are kept whole, and earlier windows are not looked for.
//!
//! No lock of its own: the heap's. Callers: `rest` counts moves; `pool::sources` asks for the share; `flush` ends it.

/// Requests that moved pages until the share may grow...
const REQUESTS: u64 = 16;
/// ...if they were one in so many at least.
const OFTEN: u64 = 16;
/// ...or, once it has grown, one in so many.
const STILL: u64 = 256;
/// So many requests of known lengths that moved pages, one after the other, end it: there is some order after all...
const AGAIN: u64 = 64;
/// ...or twice as many after each time that this turned out wrong, so often at most.
const DOUBTS: u32 = 16;
/// How much it grows at a time, and at most...
const STEP: f64 = 1.0 / 32.0;
const MOST: f64 = 1.0 / 4.0;
/// ...or, where the same calls come again and again, which move no page once there is enough, at most this, so many times as slowly.
const MOST_OF_ROUNDS: f64 = 1.0 / 2.0;
const SLOWLY: u64 = 16;

/// The share, and what it depends on.
#[derive(Debug, Default)]
pub struct Leeway {
    /// Of the peak in use.
    share: f64,
    /// What it was when a round of the program began like the one before.
    settled: f64,
    /// What it was when there seemed to be some order. If requests move pages as before, there was none: then it is that, and
    /// more.
    ended: f64,
    /// How often that was wrong.
    doubts: u32,
    /// Requests that moved pages since `since`.
    moved: u64,
    /// Latest moves whose layout was expected to come back.
    again: u64,
    /// Number of the allocation when counting began.
    since: u64,
}

impl Leeway {
    /// A request, the pool's allocation of that number, has moved pages. `again`: its layout is expected to come back. `rounds`: the calls
    /// come again, though their layouts do not.
    pub fn moved(&mut self, allocation: u64, again: bool, rounds: bool) {
        if again {
            self.again += 1;
            if self.is_any() && self.again >= AGAIN << self.doubts {
                (self.ended, self.share) = (self.share, 0.0);
            }
            return;
        }
        self.again = 0;
        self.moved += 1;
        let requests = if self.share < MOST {
            REQUESTS
        } else {
            REQUESTS * SLOWLY
        };
        if self.moved < requests {
            return;
        }
        let doubtful = self.ended > 0.0;
        let few = if self.is_any() || doubtful { STILL } else { OFTEN };
        if allocation.wrapping_sub(self.since) < requests * few {
            let most = if rounds {
                MOST_OF_ROUNDS
            } else {
                self.share.max(MOST)
            };
            self.share = (self.share.max(self.ended) + STEP).min(most);
            self.ended = 0.0;
            self.doubts = (self.doubts + u32::from(doubtful)).min(DOUBTS);
        }
        (self.moved, self.since) = (0, allocation);
    }

    /// The share of the peak in use that may be held beyond it, and beyond the slack.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The same for what is yet to be made. A round that comes again finds its layouts again if nothing is added: it may
    /// hold more only once it moves pages too often with what there is.
    pub fn to_create(&self) -> f64 {
        if self.share > self.settled {
            self.share
        } else {
            0.0
        }
    }

    /// A round of the program begins, like the one before or `again` not.
    pub fn begin_round(&mut self, again: bool) {
        self.settled = if again { self.share } else { 0.0 };
    }

    /// Do blocks come and go in no order?
    pub fn is_any(&self) -> bool {
        self.share > 0.0
    }

    /// Memory matters more.
    pub fn end(&mut self) {
        (self.share, self.settled, self.ended, self.doubts) = (0.0, 0.0, 0.0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many requests move pages, one in `few`.
    fn after(requests: u64, few: u64, again: bool, mut leeway: Leeway) -> Leeway {
        let first = leeway.since;
        (1..=requests).for_each(|number| leeway.moved(first + number * few, again, false));
        leeway
    }

    #[test]
    fn it_grows_while_requests_often_move_pages() {
        let rare = after(10 * REQUESTS, OFTEN, false, Leeway::default());
        assert!(!rare.is_any());
        let often = after(REQUESTS, OFTEN - 1, false, rare);
        assert_eq!(often.share(), STEP);
        let still = after(REQUESTS, STILL - 1, false, often);
        assert_eq!(still.share(), 2.0 * STEP);
        let rare = after(10 * REQUESTS, STILL, false, still);
        assert_eq!(rare.share(), 2.0 * STEP);
        assert_eq!(after(1000, 1, false, rare).share(), MOST);
    }

    #[test]
    fn it_ends_when_layouts_come_back() {
        let grown = after(REQUESTS, 1, false, Leeway::default());
        let shortly = after(AGAIN - 1, 1, true, grown);
        assert!(shortly.is_any());
        let grown = after(1, 1, false, shortly);
        assert!(after(AGAIN - 1, 1, true, grown).is_any());
        let grown = after(REQUESTS, 1, false, Leeway::default());
        assert!(!after(AGAIN, 1, true, grown).is_any());
    }

    /// What ended too early goes on where it was, and takes longer to end.
    #[test]
    fn an_end_that_was_wrong_is_doubted() {
        let grown = after(2 * REQUESTS, 1, false, Leeway::default());
        assert_eq!(grown.share(), 2.0 * STEP);
        let ended = after(AGAIN, 1, true, grown);
        assert!(!ended.is_any());
        let rare = after(10 * REQUESTS, STILL, false, ended);
        assert!(!rare.is_any(), "pages hardly move: there was some order");
        let wrong = after(REQUESTS, STILL - 1, false, rare);
        assert_eq!(wrong.share(), 3.0 * STEP);
        let known = after(2 * AGAIN - 1, 1, true, wrong);
        assert!(known.is_any());
        assert!(!after(1, 1, true, known).is_any());
    }

    #[test]
    fn a_round_that_comes_again_adds_nothing_unless_it_moves_pages_often() {
        let mut leeway = after(REQUESTS, 1, false, Leeway::default());
        leeway.begin_round(false);
        assert_eq!(leeway.to_create(), STEP);
        leeway.begin_round(true);
        let rare = after(REQUESTS, STILL, false, leeway);
        assert_eq!((rare.share(), rare.to_create()), (STEP, 0.0));
        let often = after(REQUESTS, 1, false, rare);
        assert_eq!(often.to_create(), 2.0 * STEP);
    }

    #[test]
    fn it_is_forgotten_where_memory_matters_more() {
        let mut ended = after(AGAIN, 1, true, after(REQUESTS, 1, false, Leeway::default()));
        ended.end();
        let rare = after(REQUESTS, OFTEN, false, ended);
        assert!(!rare.is_any());
    }

    /// Slowly, since it is enough once pages stay where they are.
    #[test]
    fn rounds_whose_layouts_do_not_come_back_may_have_more() {
        let full = after(1000, 1, false, Leeway::default());
        assert_eq!(full.share(), MOST);
        let rounds = |requests: u64, mut leeway: Leeway| {
            let first = leeway.since;
            (1..=requests).for_each(|number| leeway.moved(first + leeway.moved + number, false, true));
            leeway
        };
        let first = rounds(REQUESTS * SLOWLY - full.moved - 1, full);
        assert_eq!(first.share(), MOST);
        let more = rounds(1, first);
        assert_eq!(more.share(), MOST + STEP);
        let most = rounds(100 * REQUESTS * SLOWLY, more);
        assert_eq!(most.share(), MOST_OF_ROUNDS);
        let kept = after(1000, 1, false, most);
        assert_eq!(kept.share(), MOST_OF_ROUNDS, "pages would have to be given back");
    }
}
