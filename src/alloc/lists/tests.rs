use super::*;

/// Does a request for so many grains get a block of so many?
fn gets(lists: &Lists, grains: u64, block: u64) -> bool {
    lists.push_larger(
        Larger {
            at: 1 << 30,
            grains: block,
        },
        0,
    );
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
