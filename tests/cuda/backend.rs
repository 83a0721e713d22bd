//! The CUDA backend's contract about memory, devices and drivers, on the stand-in driver: each test in a process of its
//! own, with nothing left open at its end.

use crate::common::cuda::{G, Gate, LEGACY, backend, byte_at, fill, handle, line, options, try_backend};
use crate::common::standin::{Device, alone, calls, current, fail, ok, open, stream};
use std::ptr::null_mut;
use weir::backend::cuda::{self, Options};
use weir::backend::{Access, Backend, BackendError};
use weir::base::units::Addr;

#[test]
fn a_page_is_the_same_memory_through_each_of_its_mappings() {
    alone(
        "a_page_is_the_same_memory_through_each_of_its_mappings",
        &[],
        || {
            let device = Device::open(0);
            let b = backend();
            assert_eq!((b.name(), b.granularity(), b.usable()), ("cuda", G, true));
            assert!(!b.pages_have_addresses() && !b.blocks_in_one_page());
            let at = b.reserve(8 * G).unwrap();
            assert_eq!(at.0 % G, 0);
            let page = b.create(2 * G).unwrap();
            let alias = Addr(at.0 + 4 * G);
            b.map(at, page, 2 * G).unwrap();
            b.map(alias, page, 2 * G).unwrap();
            fill(at, 7, 2 * G, null_mut());
            ok!(stream_synchronize(null_mut()));
            assert_eq!(byte_at(alias.0 + 2 * G - 1), 7);
            b.unmap(at, 2 * G).unwrap();
            b.unmap(alias, 2 * G).unwrap();
            // adjacent mappings go in one call
            let other = b.create(G).unwrap();
            b.map(at, page, 2 * G).unwrap();
            b.map(Addr(at.0 + 2 * G), other, G).unwrap();
            b.unmap(at, 3 * G).unwrap();
            b.release(page, 2 * G).unwrap();
            b.release(other, G).unwrap();
            b.unreserve(at, 8 * G).unwrap();
            b.close();
            assert_eq!(
                b.reserve(G),
                Err(BackendError::Unloaded),
                "a closed backend asks for nothing"
            );
            drop(device);
        },
    );
}

#[test]
fn the_granularity_is_asked_for() {
    let variables = [("WEIR_STANDIN_GRANULARITY", "8388608")];
    alone("the_granularity_is_asked_for", &variables, || {
        let b = backend();
        assert_eq!(b.granularity(), 8 << 20);
        b.close();
        assert_eq!(open(), "");
    });
}

#[test]
fn a_context_is_shared_and_released_when_the_last_pool_ends() {
    alone(
        "a_context_is_shared_and_released_when_the_last_pool_ends",
        &[],
        || {
            let active = || {
                let (mut flags, mut active) = (0, 0);
                ok!(context_state(0, &raw mut flags, &raw mut active));
                active
            };
            let (first, second) = (backend(), backend());
            assert_eq!(calls("cuDevicePrimaryCtxRetain"), 1);
            first.close();
            assert_eq!(active(), 1);
            assert_eq!(second.record(LEGACY).map(|event| second.forget(event)), Ok(()));
            drop(second); // without `close`, as when a pool could not be made
            assert_eq!(active(), 0);
            let third = backend();
            assert_eq!(active(), 1);
            let late = third.record(LEGACY).unwrap(); // by a call that finds the pool ended next
            third.close();
            third.close();
            assert_eq!(third.record(LEGACY), Err(BackendError::Unloaded));
            assert_eq!(active(), 1, "the event's context stays until it is back");
            third.forget(late);
            assert_eq!((active(), open()), (0, String::new()));
        },
    );
}

/// What the driver says a device may do with the page at an address.
fn granted(device: i32, at: Addr) -> u64 {
    let (mut flags, place) = (0, [1, device]);
    ok!(access(&raw mut flags, &raw const place, at.0));
    flags
}

#[test]
fn access_is_for_all_memory_now_and_later_or_for_none() {
    let variables = [("WEIR_STANDIN_DEVICES", "4"), ("WEIR_STANDIN_PEER", "0-1,0-2")];
    alone(
        "access_is_for_all_memory_now_and_later_or_for_none",
        &variables,
        || {
            let b = backend();
            let at = b.reserve(16 * G).unwrap();
            let pages: Vec<_> = (0..4).map(|_| b.create(G).unwrap()).collect();
            let place = |n: u64| Addr(at.0 + n * G);
            for n in 0..3 {
                b.map(place(n), pages[n as usize], G).unwrap();
            }
            assert_eq!(
                (b.access(0), b.access(1)),
                (Ok(Access::ReadWrite), Ok(Access::None))
            );
            b.set_access(1, Access::ReadWrite).unwrap();
            b.map(place(3), pages[3], G).unwrap();
            for n in 0..4 {
                assert_eq!(
                    (granted(0, place(n)), granted(1, place(n)), granted(2, place(n))),
                    (3, 3, 0)
                );
            }
            // an error in the middle: as before, everywhere
            for nth in 1..=4 {
                fail("cuMemSetAccess", nth, 999);
                assert!(matches!(
                    b.set_access(2, Access::ReadWrite),
                    Err(BackendError::Other(_))
                ));
                fail("cuMemSetAccess", nth, 999);
                assert!(b.set_access(1, Access::None).is_err());
                assert_eq!(
                    (b.access(1), b.access(2)),
                    (Ok(Access::ReadWrite), Ok(Access::None))
                );
                for n in 0..4 {
                    assert_eq!(
                        (granted(1, place(n)), granted(2, place(n))),
                        (3, 0),
                        "call {nth} failed"
                    );
                }
            }
            b.set_access(1, Access::Read).unwrap();
            b.set_access(2, Access::ReadWrite).unwrap();
            b.set_access(1, Access::None).unwrap();
            for n in 0..4 {
                assert_eq!((granted(1, place(n)), granted(2, place(n))), (0, 3));
            }
            // at once, and not at the next allocation
            for device in [3, 4, -1, i32::MAX] {
                let refused = b.set_access(device, Access::Read);
                assert!(
                    matches!(refused, Err(BackendError::NotSupported(_))),
                    "{device}: {refused:?}"
                );
            }
            assert!(b.access(4).is_err());
            assert!(matches!(
                b.set_access(0, Access::Read),
                Err(BackendError::NotSupported(_))
            ));
            b.set_access(0, Access::ReadWrite).unwrap();
            b.unmap(at, 4 * G).unwrap();
            for page in pages {
                b.release(page, G).unwrap();
            }
            b.unreserve(at, 16 * G).unwrap();
            b.close();
            assert_eq!(open(), "");
        },
    );
}

#[test]
fn memory_that_comes_with_its_address() {
    alone("memory_that_comes_with_its_address", &[], || {
        let b = try_backend(Options {
            plain: true,
            ..options()
        })
        .unwrap();
        assert!(b.pages_have_addresses() && b.blocks_in_one_page());
        let (at, page) = b.create_at(4 * G).unwrap();
        let device = Device::open(0);
        fill(at, 9, 4 * G, null_mut());
        ok!(stream_synchronize(null_mut()));
        assert_eq!(byte_at(at.0 + 4 * G - 1), 9);
        drop(device);
        assert!(matches!(b.create_at(1 << 60), Err(BackendError::OutOfMemory(_))));
        assert!(matches!(b.reserve(G), Err(BackendError::NotSupported(_))));
        assert!(matches!(
            b.set_access(1, Access::Read),
            Err(BackendError::NotSupported(_))
        ));
        b.release(page, 4 * G).unwrap();
        b.close();
        assert_eq!((open(), current()), (String::new(), null_mut()));
        let mapped = backend();
        assert!(matches!(mapped.create_at(G), Err(BackendError::NotSupported(_))));
        mapped.close();
    });
}

#[test]
fn a_device_that_maps_no_memory_gives_plain_memory() {
    let variables = [("WEIR_STANDIN_VMM", "0")];
    alone(
        "a_device_that_maps_no_memory_gives_plain_memory",
        &variables,
        || {
            let b = backend();
            assert!(b.pages_have_addresses());
            b.close();
            let exported = try_backend(Options {
                handle_types: 1,
                ..options()
            });
            assert!(matches!(exported, Err(BackendError::NotSupported(_))));
            assert_eq!(open(), "");
        },
    );
}

#[test]
fn handles_to_export_are_asked_of_the_device() {
    alone("handles_to_export_are_asked_of_the_device", &[], || {
        let posix = try_backend(Options {
            handle_types: 1,
            gpu_direct_rdma: true,
            ..options()
        })
        .unwrap();
        let page = posix.create(G).unwrap();
        posix.release(page, G).unwrap();
        posix.close();
        for (types, words) in [(8, "fabric"), (2, "0x2"), (9, "fabric"), (16, "0x10")] {
            match try_backend(Options {
                handle_types: types,
                ..options()
            }) {
                Err(BackendError::NotSupported(why)) => assert!(why.contains(words), "{why}"),
                other => panic!("{types}: {:?}", other.map(drop)),
            }
        }
        assert_eq!(open(), "");
    });
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    alone("a_device_that_does_not_exist_is_an_error", &[], || {
        for device in [2, -1, i32::MAX, i32::MIN] {
            let refused = try_backend(Options { device, ..options() }).map(drop);
            assert!(matches!(refused, Err(BackendError::NotSupported(_))), "{device}");
        }
    });
}

#[test]
fn results_mean_what_they_say() {
    alone("results_mean_what_they_say", &[], || {
        let b = backend();
        let failing = |code| {
            fail("cuMemCreate", 1, code);
            b.create(G).unwrap_err()
        };
        assert!(matches!(failing(2), BackendError::OutOfMemory(_)));
        assert!(matches!(failing(801), BackendError::NotSupported(_)));
        assert!(matches!(failing(900), BackendError::Capturing(_)));
        match failing(1) {
            BackendError::Other(why) => {
                assert!(
                    why.starts_with("cuMemCreate of 2097152 B: 1 CUDA_ERROR_INVALID_VALUE ("),
                    "{why}"
                )
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(failing(12345), BackendError::Other(why) if why.contains("12345")));
        fail("cuStreamGetId", 1, 400);
        let device = Device::open(0);
        let mine = stream();
        assert!(matches!(
            b.timeline(handle(mine)),
            Err(BackendError::InvalidStream(_))
        ));
        ok!(stream_destroy(mine));
        drop(device);
        b.close();
    });
}

#[test]
fn mappings_have_a_limit_that_the_pools_of_a_device_share() {
    alone(
        "mappings_have_a_limit_that_the_pools_of_a_device_share",
        &[],
        || {
            let (a, b) = (backend(), backend());
            let all = a.mapping_limit();
            let (at, page) = (a.reserve(4 * G).unwrap(), a.create(G).unwrap());
            a.map(at, page, G).unwrap();
            a.map(Addr(at.0 + G), page, G).unwrap();
            assert_eq!((a.mapping_limit(), b.mapping_limit()), (all, all - 2));
            a.unmap(at, 2 * G).unwrap();
            assert_eq!(b.mapping_limit(), all);
            fail("cuMemMap", 1, 2);
            assert!(matches!(a.map(at, page, G), Err(BackendError::OutOfMemory(_))));
            fail("cuMemSetAccess", 1, 2);
            assert!(matches!(a.map(at, page, G), Err(BackendError::OutOfMemory(_))));
            assert_eq!(b.mapping_limit(), all);
            a.release(page, G).unwrap();
            a.unreserve(at, 4 * G).unwrap();
            a.close();
            b.close();
            assert_eq!(open(), "");
        },
    );
}

/// One round of everything that does not depend on the driver's age.
fn serves() {
    let device = Device::open(0);
    let b = backend();
    let (first, second) = (stream(), stream());
    let one = line(&b, handle(first));
    assert_ne!(one, line(&b, handle(second)));
    assert_eq!(line(&b, handle(first)), one);
    // what holds a stream back is younger than the oldest of these drivers
    let gate = (std::env::var("WEIR_STANDIN_VERSION") != Ok("9000".into())).then(|| Gate::on(first));
    let event = b.record(handle(first)).unwrap();
    b.wait(handle(second), event).unwrap();
    assert!(gate.is_none() || b.query(event) == Ok(false));
    drop(gate);
    b.synchronize(event).unwrap();
    b.synchronize_all().unwrap();
    b.forget(event);
    let (at, page) = match b.pages_have_addresses() {
        true => b.create_at(G).unwrap(),
        false => {
            let (at, page) = (b.reserve(G).unwrap(), b.create(G).unwrap());
            b.map(at, page, G).unwrap();
            (at, page)
        }
    };
    fill(at, 3, G, null_mut());
    b.synchronize_all().unwrap();
    assert_eq!(byte_at(at.0), 3);
    if !b.pages_have_addresses() {
        b.unmap(at, G).unwrap();
        b.unreserve(at, G).unwrap();
    }
    b.release(page, G).unwrap();
    ok!(stream_destroy(first));
    ok!(stream_destroy(second));
    b.close();
    drop(device);
}

#[test]
fn drivers_of_all_ages_serve() {
    for version in [
        "9000", "10000", "10010", "10020", "11000", "11030", "12000", "12080",
    ] {
        alone(
            "drivers_of_all_ages_serve",
            &[("WEIR_STANDIN_VERSION", version)],
            serves,
        );
    }
}

#[test]
fn without_a_driver_the_message_says_what_was_tried() {
    if crate::common::standin::is_alone() {
        let why = cuda::open().expect_err("no driver");
        let words = std::env::var("WEIR_TEST_WORDS").unwrap();
        for word in words.split('|') {
            assert!(why.contains(word), "{word:?} is not in {why:?}");
        }
        return;
    }
    let name = "without_a_driver_the_message_says_what_was_tried";
    for (library, more, words) in [
        (
            Some("/nowhere/libcuda.so.1"),
            None,
            "/nowhere/libcuda.so.1|WEIR_CUDA_LIBRARY|cannot open",
        ),
        (
            Some(""),
            None,
            "libcuda.so.1|by default|cannot open|WEIR_CUDA_LIBRARY",
        ),
        (Some("libc.so.6"), None, "libc.so.6|no cuInit"),
        (
            None,
            Some(("WEIR_STANDIN_DEVICES", "0")),
            "cuInit|100 CUDA_ERROR_NO_DEVICE",
        ),
        (None, Some(("WEIR_STANDIN_FAIL", "cuInit:1:803")), "cuInit|803"),
        (
            None,
            Some(("WEIR_STANDIN_VERSION", "6050")),
            "6.5|cuDevicePrimaryCtxRetain",
        ),
    ] {
        let mut variables = vec![("WEIR_TEST_WORDS", words)];
        variables.extend(library.map(|library| ("WEIR_CUDA_LIBRARY", library)));
        variables.extend(more);
        let output = crate::common::standin::again(name, &variables);
        assert!(
            output.status.success(),
            "{}",
            crate::common::standin::stderr(&output)
        );
    }
}

#[test]
fn a_driver_that_was_not_there_is_looked_for_again() {
    let variables = [("WEIR_STANDIN_FAIL", "cuInit:1:802")];
    alone(
        "a_driver_that_was_not_there_is_looked_for_again",
        &variables,
        || {
            assert!(cuda::open().is_err());
            assert!(cuda::open().is_ok());
        },
    );
}
