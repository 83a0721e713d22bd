//! When does the program do the same again? A round begins where least is in use, and comes again if the next one has about as many calls:
//! which call finds the least in use depends on what threads keep.
//! Where as little is in use several times in a round it has parts, and comes again when the same parts do.
//!
//! No lock of its own: the heap's.

/// The least in use is looked for in so many of the heap's allocations at least, and in as many as there were before.
const SHORT: u64 = 256;
const LONG: u64 = 1 << 16;
/// A round has no more parts.
const PARTS: usize = 16;
/// It takes long until so many calls come twice: rounds of more are believed to when the least is in use again.
pub const BELIEVED: u64 = 1 << 12;
/// Rounds of more calls are none where threads' caches serve most of them: to record one takes longer than many by heart save.
const LONGEST: u64 = 1 << 18;
/// So small a part of all calls are allocations that the heap serves where threads' caches serve most of them.
const DEAR: u64 = 16;
/// So small a part of what is needed is hardly anything.
const HARDLY: u64 = 256;
/// Two parts are alike if one has no more calls than the other but for so small a part.
pub const ALIKE: u64 = 16;

/// Allocations and frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Allocations.
    pub allocs: u64,
    /// Frees.
    pub frees: u64,
}

impl Calls {
    /// Those that are not among these.
    pub fn since(self, before: Calls) -> Calls {
        Calls {
            allocs: self.allocs.wrapping_sub(before.allocs),
            frees: self.frees.wrapping_sub(before.frees),
        }
    }

    /// Both.
    pub fn all(self) -> u64 {
        self.allocs.wrapping_add(self.frees)
    }
}

/// What is known of them.
#[derive(Debug)]
pub struct Rounds {
    /// The least in use at an allocation of late...
    low: u64,
    /// ...but not beyond so many of the heap's.
    until: u64,
    /// Clearly more was in use since.
    left: bool,
    /// All calls when a part began, and the heap's allocations.
    begun: (Calls, u64),
    /// Calls of the latest parts, and how many were the heap's allocations, the last one first.
    parts: Vec<(u64, u64)>,
    /// The least in use ever, and since `forget`.
    least: [Option<Least>; 2],
}

/// The least in use, and all calls and the heap's allocations when it last was.
type Least = (u64, Calls, u64);

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds {
            low: u64::MAX,
            until: 0,
            left: false,
            begun: Default::default(),
            parts: Vec::with_capacity(2 * PARTS),
            least: [None; 2],
        }
    }
}

/// Are there about as many of these as of those?
pub fn alike(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / ALIKE
}

/// Of so many calls, so many were allocations of the heap's: did threads' caches serve most of them? Then it is hardly dearer than to know
/// them by heart.
pub fn is_cached(of_heap: u64, calls: u64) -> bool {
    of_heap < calls / DEAR
}

impl Rounds {
    /// So many allocations were the heap's, no less than so much may be in use, and the pool needs so much: may a part begin?
    #[inline(always)]
    pub fn may_begin(&mut self, made: u64, least: u64, needed: u64) -> bool {
        !self.is_far(least, needed) || made >= self.until
    }

    /// No less than so much may be in use: is that far from the least?
    #[inline(always)]
    pub fn is_far(&mut self, least: u64, needed: u64) -> bool {
        let far = least > self.low.saturating_add(needed / HARDLY);
        self.left |= far;
        far
    }

    /// So much is in use, after so many calls. Gives the calls of the latest round, about, if it came twice, or is long.
    pub fn sees(&mut self, used: u64, now: Calls, made: u64, needed: u64) -> Option<u64> {
        let hardly = needed / HARDLY;
        if used > self.low.saturating_add(hardly) {
            self.left = true;
            if made < self.until {
                return None;
            }
            self.low = u64::MAX; // so little may never be in use again
        }
        let since_least = self.since_least(used, (now, made), hardly);
        if used < self.low {
            let new = self.low - used > hardly;
            self.low = used;
            if new {
                self.parts.clear();
                self.begin(now, made);
                return since_least.filter(|&part| part > BELIEVED);
            }
        }
        if !self.left {
            return None;
        }
        self.parts.truncate(2 * PARTS - 1);
        let (begun, before) = self.begun;
        let part = (now.since(begun).all(), made.saturating_sub(before)); // those of a batch may be taken back
        self.parts.insert(0, part);
        self.begin(now, made);
        let round = &self.parts[..self.parts_of_round()?];
        let calls: u64 = round.iter().map(|part| part.0).sum();
        let of_heap = round.iter().map(|part| part.1).sum();
        (calls <= LONGEST || !is_cached(of_heap, calls)).then_some(calls)
    }

    /// How many of the latest parts are a round: those that came twice, or the last one if it is long.
    fn parts_of_round(&self) -> Option<usize> {
        let parts = &self.parts;
        let twice = |&count: &usize| (0..count).all(|part| alike(parts[part].0, parts[part + count].0));
        let came_twice = (1..=parts.len() / 2).find(twice);
        came_twice.or_else(|| parts.first().is_some_and(|part| part.0 > BELIEVED).then_some(1))
    }

    /// Calls since so little was in use last, if that is as little as ever, or as since `forget`.
    fn since_least(&mut self, used: u64, at: (Calls, u64), hardly: u64) -> Option<u64> {
        let [ever, late] = self.least.each_mut().map(|least| since(least, used, at, hardly));
        ever.or(late)
    }

    fn begin(&mut self, now: Calls, made: u64) {
        (self.begun, self.left) = ((now, made), false);
        self.until = made + made.clamp(SHORT, LONG);
    }

    /// Nothing is known of the latest calls, but that there were so many: what was replayed may be a part of a longer round. Not if `several`
    /// streams made it, whose longer rounds hardly come again as they were: they had better be seen as they are now.
    pub fn forget(&mut self, now: Calls, made: u64, several: bool) {
        self.parts.clear();
        (self.begun, self.least[1]) = ((now, made), None);
        if several {
            self.least[0] = None;
        }
    }
}

/// Calls since as little as the least was in use last, if it is now, and threads' caches did not serve most of them.
fn since(least: &mut Option<Least>, used: u64, (now, made): (Calls, u64), hardly: u64) -> Option<u64> {
    let before = least.filter(|least| used <= least.0.saturating_add(hardly));
    if before.is_some() || least.is_none() {
        *least = Some((used, now, made));
    }
    let (_, then, of_them) = before?;
    let calls = now.since(then).all();
    (!is_cached(made.saturating_sub(of_them), calls)).then_some(calls) // those of a batch may be taken back
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen of rounds whose allocations find so much in use.
    fn see(rounds: &mut Rounds, used: &[u64], times: u64) -> Option<u64> {
        let mut seen = None;
        let mut made = rounds.begun.0.allocs;
        for _ in 0..times {
            for &used in used {
                made += 1;
                let now = Calls {
                    allocs: made,
                    frees: made,
                };
                seen = match rounds.may_begin(made, used, 100) {
                    true => rounds.sees(used, now, made, 100).or(seen),
                    false => seen,
                };
            }
        }
        seen
    }

    #[test]
    fn a_round_is_seen_when_it_came_twice() {
        let round = [5, 9, 7, 8];
        assert_eq!(see(&mut Rounds::default(), &round, 2), None);
        assert_eq!(see(&mut Rounds::default(), &round, 3), Some(8));
    }

    #[test]
    fn a_round_of_parts_is_seen_as_a_whole() {
        let mut rounds = Rounds::default();
        assert_eq!(see(&mut rounds, &[5, 9, 5, 7, 8, 9], 8), Some(12));
    }

    /// The program begins with nothing, and keeps something for ever.
    #[test]
    fn a_low_that_never_comes_back_is_forgotten() {
        let mut rounds = Rounds::default();
        assert_eq!(see(&mut rounds, &[0], 1), None);
        let seen = see(&mut rounds, &[50, 90, 70], 200);
        assert_eq!(seen, Some(6));
    }

    /// It is so long that less than later on was in use when it began.
    #[test]
    fn a_long_round_is_seen_when_as_little_is_in_use_as_ever() {
        let round = |least: u64| [least].into_iter().chain((0..BELIEVED).map(|at| 50 + at));
        let again = |least| {
            see(
                &mut Rounds::default(),
                &round(0).chain([least]).collect::<Vec<u64>>(),
                1,
            )
        };
        assert_eq!(again(0), Some(2 * round(0).count() as u64));
        assert_eq!(again(20), None, "more than ever");
    }

    /// What is replayed meanwhile is not looked at. The program began with less in use than it will ever have again, or comes back to that.
    #[test]
    fn a_long_round_is_seen_though_parts_of_it_were_replayed() {
        let cases = [
            (50, false, 6 * BELIEVED),
            (0, false, 8 * BELIEVED),
            (0, true, 6 * BELIEVED),
        ];
        for (then, several, seen) in cases {
            let mut rounds = Rounds::default();
            let calls = |count: u64| Calls {
                allocs: count,
                frees: count,
            };
            let mut sees = |used, made| rounds.sees(used, calls(made), made, 100);
            sees(0, 0);
            sees(90, SHORT);
            rounds.forget(calls(BELIEVED), BELIEVED, several);
            let mut sees = |used, made| rounds.sees(used, calls(made), made, 100);
            sees(50, BELIEVED);
            sees(90, 3 * BELIEVED); // so long that there may never be less again
            assert_eq!(sees(then, 4 * BELIEVED), Some(seen));
        }
    }

    #[test]
    fn a_long_round_that_a_cache_served_is_not_hurried_on() {
        let again = |made: u64| {
            let mut rounds = Rounds::default();
            let calls = |count: u64| Calls {
                allocs: count,
                frees: count,
            };
            rounds.sees(0, calls(0), 0, 100);
            // so little was in use for the last time long ago
            rounds.sees(50, calls(SHORT), SHORT, 100);
            rounds.sees(0, calls(10_000), made, 100)
        };
        assert_eq!(again(10_000), Some(20_000));
        assert_eq!(again(20_000 / DEAR), Some(20_000));
        assert_eq!(again(20_000 / DEAR - 1), None);
    }

    /// Parts of so many calls, so many of which are the heap's allocations: the round that is seen.
    fn parts_of(calls: u64, made: u64) -> Option<u64> {
        let mut rounds = Rounds::default();
        let mut seen = None;
        for part in 0..4 {
            let now = |more| Calls {
                allocs: part * calls + more,
                frees: 0,
            };
            rounds.is_far(90, 100); // since the last one began
            seen = rounds.sees(50, now(0), part * made, 100).or(seen);
        }
        seen
    }

    #[test]
    fn a_round_that_is_too_long_is_none_where_caches_serve_it() {
        let long = LONGEST + ALIKE;
        assert_eq!(parts_of(LONGEST, LONGEST / DEAR - 1), Some(LONGEST));
        assert_eq!(parts_of(long, long / DEAR), Some(long));
        assert_eq!(parts_of(long, long / DEAR - 1), None);
    }

    /// What threads keep serves some of the first allocations, and not always the same.
    #[test]
    fn a_low_that_is_seen_now_earlier_and_now_later_is_one() {
        let mut rounds = Rounds::default();
        let (early, late) = ([1000, 1001, 9000, 7000], [1001, 9000, 7000, 9000]);
        let mut made = 0;
        let mut seen = None;
        for round in 0..4 {
            for used in if round % 2 == 0 { early } else { late } {
                made += 20;
                let now = Calls {
                    allocs: made,
                    frees: made,
                };
                if rounds.may_begin(made, used, 10_000) {
                    seen = rounds.sees(used, now, made, 10_000).or(seen);
                }
            }
        }
        assert!(seen.is_some_and(|seen| alike(seen, 160)), "{seen:?}");
    }

    #[test]
    fn what_never_comes_again_is_no_round() {
        let used: Vec<u64> = (1..5000u64).map(|at| at * at % 5003).collect();
        assert_eq!(see(&mut Rounds::default(), &used, 1), None);
    }
}
