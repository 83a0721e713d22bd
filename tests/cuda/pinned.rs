//! Pinned memory on the stand-in driver: how it is come by, whose it is, and when the host is given it.

use crate::common::M;
use crate::common::cuda::{Gate, backend, handle, options, try_backend};
use crate::common::random::Random;
use crate::common::standin::{Device, alone, calls, fail, ok, open, stream};
use std::collections::VecDeque;
use std::ptr::with_exposed_provenance_mut;
use weir::backend::cuda::{Options, Place};
use weir::backend::{Access, Backend, BackendError};
use weir::base::units::{Addr, CaptureId, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::pool::Pool;

const NEAREST: Place = Place::Host(None);
const REQUESTS: u64 = 20_000;

fn byte(at: Addr) -> *mut u8 {
    with_exposed_provenance_mut(at.0 as usize)
}

fn pinned(place: Place) -> Options {
    Options { place, ..options() }
}

fn pool(options: Options) -> Pool {
    let config = Config {
        memory: MemoryKind::Pinned,
        ..Config::default()
    };
    Pool::new(config, try_backend(options).expect("a backend")).expect("a pool")
}

/// A driver refuses a page for good that it was asked to map once too often. Here pages move with nearly each request, and whatever
/// was one's layout comes to be another's, so that without a limit of its own the pool asks for that after some thousand.
#[test]
fn a_page_is_mapped_no_more_often_than_the_driver_bears() {
    alone(
        "a_page_is_mapped_no_more_often_than_the_driver_bears",
        &[],
        || {
            let _device = Device::open(0);
            let (pool, stream, mut random) = (pool(pinned(NEAREST)), stream(), Random(1));
            pool.set_access(1, Access::ReadWrite).expect("any device may");
            let (mut live, mut used) = (VecDeque::new(), 0);
            for _ in 0..REQUESTS {
                let bytes = random.log_uniform(6) * M;
                while used + bytes > 400 * M {
                    let (at, bytes) = live.pop_front().expect("a block");
                    pool.free(at, handle(stream)).expect("a free");
                    used -= bytes;
                }
                live.push_back((pool.alloc(bytes, 0, handle(stream)).expect("a block"), bytes));
                used += bytes;
            }
            pool.validate();
            let stats = pool.stats().expect("stats");
            assert!(
                stats.maps > 64 * stats.page_creates,
                "pages were mapped again and again: {stats:?}"
            );
            for (at, _) in live {
                pool.free(at, handle(stream)).expect("a free");
            }
            drop(pool);
            ok!(stream_destroy(stream));
        },
    );
}

/// Writes on the host, and then on a stream, and looks.
fn both_sides_reach_it(pool: &Pool) {
    let stream = stream();
    let at = pool.alloc(20 * M, 0, handle(stream)).expect("a block");
    for offset in [0, 9 * M, 20 * M - 1] {
        // SAFETY: a block that no queued work uses.
        unsafe { byte(Addr(at.0 + offset)).write(7) };
    }
    ok!(fill(at.0 + 9 * M, 8, 1, stream));
    ok!(stream_synchronize(stream));
    // SAFETY: as above.
    let seen = [0, 9 * M, 20 * M - 1].map(|offset| unsafe { byte(Addr(at.0 + offset)).read() });
    assert_eq!(seen, [7, 8, 7]);
    pool.free(at, handle(stream)).expect("a free");
    ok!(stream_destroy(stream));
}

#[test]
fn it_is_mapped_where_the_driver_can() {
    alone("it_is_mapped_where_the_driver_can", &[], || {
        let device = Device::open(0);
        let before = open();
        let b = try_backend(pinned(NEAREST)).expect("a backend");
        assert!(!b.pages_have_addresses() && b.name() == "pinned");
        assert!(b.mapping_limit() < backend().mapping_limit());
        assert_eq!(b.access(0), Ok(Access::ReadWrite));
        assert_eq!(b.access(1), Ok(Access::None));
        b.set_access(1, Access::Read).expect("any device may");
        b.close();
        let pool = pool(pinned(Place::Host(Some(1))));
        both_sides_reach_it(&pool);
        assert_eq!(pool.end().blocks, 0);
        drop((pool, b));
        assert_eq!(calls("cuMemHostRegister_v2"), 0);
        let refused = try_backend(pinned(Place::Host(Some(9))));
        assert!(matches!(refused, Err(BackendError::Other(why)) if why.contains("NUMA node 9")));
        assert_eq!(open(), before);
        drop(device);
    });
}

#[test]
fn it_is_registered_where_the_driver_or_the_system_cannot_map_it() {
    let name = "it_is_registered_where_the_driver_or_the_system_cannot_map_it";
    alone(name, &[], || {
        let device = Device::open(0);
        let before = open();
        for code in [800, 801, 304] {
            fail("cuMemCreate", 1, code);
            let pool = pool(pinned(NEAREST));
            both_sides_reach_it(&pool);
            assert_eq!(pool.end().blocks, 0);
        }
        assert!(calls("cuMemHostRegister_v2") >= 3);
        let b = try_backend(Options {
            plain: true,
            ..pinned(NEAREST)
        });
        let b = b.expect("a backend");
        assert!(b.pages_have_addresses());
        assert_eq!(b.access(1), Ok(Access::ReadWrite), "registered for every device");
        assert_eq!(b.set_access(1, Access::ReadWrite), Ok(()));
        assert!(b.set_access(1, Access::None).is_err());
        b.close();
        // memory that cannot be had is no reason to take other memory
        fail("cuMemCreate", 1, 2);
        assert!(matches!(
            try_backend(pinned(NEAREST)),
            Err(BackendError::OutOfMemory(_))
        ));
        drop(b);
        assert_eq!(open(), before);
        drop(device);
    });
}

/// The driver fills what lies in several pages: it does not if weir gives the pages' device access before the host.
#[test]
fn blocks_of_several_pages_are_filled() {
    alone("blocks_of_several_pages_are_filled", &[], || {
        let device = Device::open(0);
        let (pool, stream) = (pool(pinned(NEAREST)), stream());
        let parts = [0; 8].map(|_| pool.alloc(7 * M, 0, handle(stream)).expect("a block"));
        assert!(pool.stats().expect("stats").page_creates > 1);
        for at in parts {
            pool.free(at, handle(stream)).expect("a free");
        }
        let at = pool.alloc(50 * M, 0, handle(stream)).expect("a block");
        ok!(fill(at.0, 8, 50 * M as usize, stream));
        ok!(stream_synchronize(stream));
        // SAFETY: a block that no queued work uses.
        assert_eq!(unsafe { byte(Addr(at.0 + 50 * M - 1)).read() }, 8);
        pool.free(at, handle(stream)).expect("a free");
        ok!(stream_destroy(stream));
        assert_eq!(pool.end().blocks, 0);
        drop((pool, device));
    });
}

#[test]
fn an_older_driver_registers_it() {
    let variables = [("WEIR_STANDIN_VERSION", "12010")];
    alone("an_older_driver_registers_it", &variables, || {
        let device = Device::open(0);
        let pool = pool(pinned(NEAREST));
        both_sides_reach_it(&pool);
        assert_eq!(pool.end().blocks, 0);
        assert!(calls("cuMemHostRegister_v2") > 0);
        drop(device);
    });
}

/// A stream has what it freed at once; the host, which queues nothing, when the work before is complete.
#[test]
fn the_host_is_given_what_no_work_uses() {
    alone("the_host_is_given_what_no_work_uses", &[], || {
        let device = Device::open(0);
        let (pool, stream) = (pool(pinned(NEAREST)), stream());
        let on = handle(stream);
        for bytes in [100, 5 * M] {
            let gate = Gate::on(stream);
            let at = pool.alloc(bytes, 0, on).expect("a block");
            pool.free(at, on).expect("a free");
            let by_host = pool.alloc(bytes, 0, StreamHandle::HOST).expect("a block");
            let by_stream = pool.alloc(bytes, 0, on).expect("a block");
            assert_eq!((by_stream, by_host == at), (at, false));
            pool.free(by_stream, on).expect("a free");
            pool.free(by_host, StreamHandle::HOST).expect("a free");
            pool.validate();
            drop(gate);
            ok!(stream_synchronize(stream));
        }
        ok!(stream_destroy(stream));
        assert_eq!(pool.end().blocks, 0);
        drop((pool, device));
    });
}

/// A copy that the pool has been told of is waited for, whatever the free says; and only it.
#[test]
fn what_a_copy_uses_is_held_back() {
    alone("what_a_copy_uses_is_held_back", &[], || {
        let device = Device::open(0);
        let (pool, slow, quick) = (pool(pinned(NEAREST)), stream(), stream());
        for bytes in [100, 5 * M] {
            for synced in [false, true] {
                let gate = Gate::on(slow);
                let block = |on| {
                    let at = pool.alloc(bytes, 0, StreamHandle::HOST).expect("a block");
                    ok!(fill(at.0, 1, 1, on));
                    pool.copy_queued(at, handle(on)).expect("a copy");
                    at
                };
                let (held, other) = (block(slow), block(quick));
                ok!(stream_synchronize(quick));
                // the end of a graph that has nothing to do with them changes nothing
                pool.release_capture(CaptureId(bytes + u64::from(synced)))
                    .expect("a graph");
                for at in [held, other] {
                    match synced {
                        true => pool.free_synced(at).expect("a free"),
                        false => pool.free(at, StreamHandle::HOST).expect("a free"),
                    };
                }
                pool.validate();
                let pending = pool.stats().expect("figures").pending;
                assert!((bytes..bytes + 2 * M).contains(&pending), "{pending} of {bytes}");
                drop(gate);
                ok!(stream_synchronize(slow));
                assert_eq!(pool.stats().expect("figures").pending, 0);
                pool.validate();
            }
        }
        ok!(stream_destroy(slow));
        ok!(stream_destroy(quick));
        assert_eq!(pool.end().blocks, 0);
        drop((pool, device));
    });
}
