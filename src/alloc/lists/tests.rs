use super::*;

static STATE: AtomicU64 = AtomicU64::new(0);

impl Lists {
    fn count(&self) -> usize {
        self.blocks().count()
    }

    /// What was set last.
    pub fn excess(&self) -> Excess {
        match (self.close.load(Relaxed), self.cost.load(Relaxed)) {
            (FAR, _) => Excess::Free,
            (_, PART) => Excess::Rare,
            _ => Excess::None,
        }
    }
}

/// Does a request for so many grains get a block of so many?
fn gets(lists: &Lists, grains: u64, block: u64) -> bool {
    lists.set_latest(block, (1 << 30, Site::of(&STATE)), 0);
    let taken = lists.pick_larger(grains * GRAIN).map(|larger| larger.grains);
    assert!(taken.is_none_or(|taken| taken == block));
    if taken.is_none() {
        lists.pop_longest().expect("put there just now");
    }
    assert_eq!(lists.count(), 0);
    taken.is_some()
}

#[test]
fn blocks_that_are_a_good_deal_longer_are_taken_as_far_as_is_allowed() {
    let lists = Lists::default();
    assert!(gets(&lists, 256, 256 + 16) && !gets(&lists, 256, 256 + 64));
    lists.set_excess(Excess::Free);
    assert!((0..1000).all(|_| gets(&lists, 256, 256 + 64)));
    assert!(!gets(&lists, 256, 256 + 65));
    lists.set_excess(Excess::None);
    assert!(!gets(&lists, 256, 256 + 64));
}

#[test]
fn rarely_is_a_64th_of_what_is_asked_for() {
    let lists = Lists::default();
    lists.set_excess(Excess::Rare);
    // what may be counted at the beginning, and what each of these requests adds
    let at_once = (0..1000).take_while(|_| gets(&lists, 256, 256 + 64)).count() as u64;
    assert_eq!(at_once, (SAVED + 256 * at_once.saturating_sub(1)) / (64 * PART));
    let after = |requests: u64| {
        (0..requests).for_each(|_| assert!(gets(&lists, 256, 256 + 1)));
        gets(&lists, 256, 256 + 64)
    };
    while after(0) {}
    assert!(!after(1));
    assert!(after(64 * PART / 256));
    let taken = (0..1600).filter(|_| after(0)).count();
    assert_eq!(taken, 100);
    // a pause is worth no more than so many grains
    assert!(after(100_000));
    assert!((0..1000).filter(|_| gets(&lists, 256, 256 + 64)).count() < 100);
}

/// A block that was put on a list when such ones were not long is not lost when they are, nor is the long one that comes then.
#[test]
fn what_becomes_long_later_is_still_there() {
    let lists = Lists::default();
    lists.set_long_from(LONG_AT_MOST);
    let block = |at: u64, grains: u64| Kept {
        at,
        piece: Piece::Large { grains },
        seq: 0,
        site: Site::of(&STATE),
    };
    // one on its list, and one that is the latest
    lists.push(block(1 << 30, 1000));
    lists.push(block(2 << 30, 1500));
    lists.set_long_from(LONG);
    lists.set_long(700, (3 << 30, Site::of(&STATE)), 0);
    assert_eq!(lists.long_bytes(), 700 * GRAIN);
    // from another cache, which had it on a list
    lists.push(block(4 << 30, 800));
    assert_eq!((lists.count(), lists.long_bytes()), (4, 700 * GRAIN));
    assert!(lists.pick_larger(1000 * GRAIN).is_none(), "the long one is not");
    let this = lists.pop_this(1 << 30, Piece::Large { grains: 1000 });
    assert_eq!(this.map(|kept| kept.at), Some(1 << 30));
    let all = std::iter::from_fn(|| lists.pop_longest().map(|kept| kept.at >> 30));
    assert_eq!(all.collect::<Vec<_>>(), [3, 2, 4], "the long one, then by length");
    assert_eq!(lists.count(), 0);
}

/// Of the blocks on lists a request gets one of the shortest that is long enough, and of those of a length the one that came last.
#[test]
fn a_request_gets_the_block_that_is_nearest() {
    for excess in [Excess::Free, Excess::None] {
        let lists = Lists::default();
        lists.set_long_from(LONG_AT_MOST);
        lists.set_excess(excess);
        let mut random = 1_u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        // those on lists and the one that came last, by length and address
        let (mut listed, mut latest) = (Vec::<(u64, u64)>::new(), None);
        // none, one, and one that is longer by more than 64 grains
        let mut found = [0; 3];
        for at in 1..60_000 {
            let grains = 64 + below(60) * below(34);
            let close = grains >> if excess == Excess::Free { FAR } else { CLOSE };
            let may = |block: &(u64, u64)| (grains..=grains + close).contains(&block.0);
            if below(2) == 0 && listed.len() < 300 {
                listed.extend(latest.replace((grains, at)));
                let piece = Piece::Large { grains };
                lists.push(Kept {
                    at,
                    piece,
                    seq: at,
                    site: Site::of(&STATE),
                });
                continue;
            }
            let nearest = listed
                .iter()
                .filter(|block| may(block))
                .map(|block| block.0)
                .min();
            let expected = match (latest, nearest) {
                (Some(last), _) if last.0 == grains => latest.take(),
                (_, Some(nearest)) => {
                    let place = listed.iter().rposition(|block| block.0 == nearest);
                    place.map(|place| listed.remove(place))
                }
                (last, None) if last.is_some_and(|last| may(&last)) => latest.take(),
                _ => None,
            };
            let got = lists.pick_larger(grains * GRAIN - below(GRAIN));
            assert_eq!(got.map(|got| (got.grains, got.at)), expected, "for {grains}");
            found[expected.map_or(0, |block| 1 + usize::from(block.0 > grains + 64))] += 1;
        }
        assert!(found[0] > 100 && found[1] > 10_000 && found[2] > 100, "{found:?}");
        let mut left: Vec<u64> = lists.blocks().map(|kept| kept.at).collect();
        let mut all: Vec<u64> = listed.into_iter().chain(latest).map(|block| block.1).collect();
        left.sort_unstable();
        all.sort_unstable();
        assert_eq!(left, all);
        let lengths: Vec<u64> =
            std::iter::from_fn(|| lists.pop_longest().map(|kept| kept.piece.bytes())).collect();
        assert!(lengths.is_sorted_by(|one, next| one >= next) && lengths.len() == all.len());
        assert_eq!(lists.count(), 0);
    }
}
