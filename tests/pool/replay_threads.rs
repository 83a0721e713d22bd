//! Rounds by heart while other threads come: to use the pool at any moment, and to give its memory back.

use crate::common::cached::{keep_quick, replay_alloc_quick, replay_free_quick, take_quick};
use crate::common::hook::Hooked;
use crate::common::player::{Call, Round, asked};
use crate::common::random::Random;
use crate::common::{M, cached};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use weir::backend::call::Call as Driver;
use weir::backend::counting::Counting;
use weir::base::units::{Addr, StreamHandle};
use weir::config::Config;
use weir::pool::{Pool, ThreadCache};

const OWN: StreamHandle = StreamHandle(1);
const OTHER: StreamHandle = StreamHandle(2);
/// Longer than anything takes here.
const WHILE: Duration = Duration::from_secs(20);

/// Makes the calls of a round, each the way that a program's are made. Is told which blocks come and go.
fn play(
    (pool, cache): (&Pool, &ThreadCache),
    round: &Round,
    enter: impl Fn(Addr, u64),
    leave: impl Fn(Addr),
) {
    let mut at = vec![Addr(0); round.asked.len()];
    for &call in &round.calls {
        match call {
            Call::Alloc(block) => {
                let bytes = round.asked[block];
                let quick = cache.quick().and_then(|quick| {
                    let kept = replay_alloc_quick(quick, bytes);
                    kept.or_else(|| take_quick(quick, bytes)).map(Addr)
                });
                let kept = quick.or_else(|| cache.alloc(bytes, 0));
                at[block] =
                    kept.unwrap_or_else(|| pool.alloc_beside(Some(cache), bytes, 0, OWN).expect("memory"));
                enter(at[block], bytes);
            }
            Call::Free(block) | Call::FreeLast(block) => {
                leave(at[block]);
                let quick = cache.quick().and_then(|quick| {
                    let kept = replay_free_quick(quick, at[block]);
                    kept.or_else(|| keep_quick(quick, at[block]))
                });
                let kept = quick.or_else(|| match block % 5 {
                    0 => cache.free_synced(at[block]),
                    _ => cache.free(at[block]),
                });
                let freed = kept.map_or_else(
                    || match block % 5 {
                        0 => pool.free_synced(at[block]),
                        _ => pool.free_beside(Some(cache), at[block], OWN),
                    },
                    Ok,
                );
                freed.expect("live");
            }
        }
    }
}

/// Others come at any moment, while the owner's calls are answered: nobody ever has a block that overlaps another one's.
#[test]
fn others_may_come_at_any_moment() {
    for declared in [true, false] {
        for forgotten in [true, false] {
            others_come(declared, forgotten);
        }
    }
}

/// The other stream is one that comes to be known each time, or a guest.
fn others_come(declared_streams: bool, forgotten: bool) {
    let pool = Pool::new(
        Config {
            declared_streams,
            ..crate::common::config()
        },
        Counting::new(true),
    )
    .expect("a pool");
    let live = Mutex::new(BTreeMap::new());
    let enter = |at: Addr, bytes: u64| {
        let mut live = live.lock().expect("no panic");
        let before = live.range(..at.0 + bytes.max(1)).next_back();
        let apart = before.is_none_or(|(&other, &len)| other + len <= at.0);
        assert!(apart, "{bytes} B at {at:?} overlap {before:?}");
        live.insert(at.0, bytes.max(1));
    };
    let leave = |at: Addr| {
        live.lock().expect("no panic").remove(&at.0);
    };
    let replayed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let program = scope.spawn(|| {
            let cache = pool.open_cache(OWN).expect("a cache");
            let round = Round::new(&mut Random(7), 120, 20);
            for _ in 0..20_000 {
                play((&pool, &cache), &round, enter, leave);
                replayed.fetch_add(u64::from(pool.is_replaying()), Ordering::Relaxed);
            }
            pool.close_cache(&cache);
        });
        let mut random = Random(8);
        while !program.is_finished() {
            // long enough for a round to be learned again, mostly
            std::thread::sleep(std::time::Duration::from_micros(random.below(4000)));
            match random.below(4) {
                0 => drop(pool.stats().expect("stats")),
                1 => pool.trim(0).expect("a trim"),
                2 => pool.validate(),
                _ => {
                    let bytes = asked(&mut random);
                    let block = pool.alloc(bytes, 0, OTHER).expect("memory");
                    enter(block, bytes);
                    std::thread::sleep(std::time::Duration::from_micros(random.below(100)));
                    leave(block);
                    pool.free(block, OTHER).expect("live");
                    if forgotten {
                        let mark = pool.mark_all();
                        pool.synchronized(mark);
                    }
                }
            }
        }
    });
    let replayed = replayed.load(Ordering::Relaxed);
    assert!(replayed > 0);
    assert_eq!(pool.end().blocks, 0);
}

/// Pages that a trim has chosen are no longer the pool's to hand out, though they have their mappings still: no round is by heart that
/// was recorded on them. Its first calls, and a later round, as it may be.
#[test]
fn none_begins_while_pages_leave() {
    for before in [0, 1, 40] {
        let memory = Hooked::new(Counting::new(true));
        let pool = Pool::new(crate::common::config(), memory.clone()).expect("a pool");
        let cache = cached::cache(&pool);
        let spare = [(); 8].map(|()| cached::alloc(&pool, &cache, 40 * M).expect("memory"));
        for at in spare {
            cached::free(&pool, &cache, at).expect("live");
        }
        let round = Round::new(&mut Random(7), 120, 20);
        let turn = || {
            play((&pool, &cache), &round, |_, _| (), |_| ());
            pool.is_replaying()
        };
        for _ in 0..before {
            turn();
        }
        let (inside, begun) = channel();
        let (over, end) = channel();
        memory.before(Driver::Unmap, move || {
            inside.send(()).expect("somebody waits");
            // whoever needs memory would wait for this
            end.recv_timeout(WHILE).expect("served without it");
        });
        let keep = pool.stats().expect("stats").reserved - 40 * M;
        std::thread::scope(|scope| {
            let trim = scope.spawn(|| pool.trim(keep).expect("a trim"));
            begun.recv_timeout(WHILE).expect("a page leaves");
            assert!((0..40).all(|_| !turn()), "after {before} rounds");
            over.send(()).expect("it waits");
            trim.join().expect("no panic");
        });
        assert!(
            (0..200).any(|_| turn()),
            "after {before} rounds it is learned once that is over"
        );
        pool.validate();
        pool.close_cache(&cache);
        assert_eq!(pool.end().blocks, 0);
    }
}
