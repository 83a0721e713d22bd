//! Host streams and events where the driver's are meant: it would look for its own at those addresses, so it is not asked.
//! The stand-in ends the process at a handle that it never gave.

use crate::common::cuda::handle;
use crate::common::standin::{Device, alone, ok, open, stream};
use std::ptr::null_mut;
use weir::base::error::Error;
use weir::base::units::{Addr, EventHandle, StreamHandle};
use weir::config::{Config, MemoryKind};
use weir::lifecycle::copies::{self, Copy};
use weir::lifecycle::registry::POOLS;
use weir::lifecycle::{end, order, share};

fn is_of_the_stream<T: std::fmt::Debug>(result: Result<T, Error>, stream: StreamHandle) -> bool {
    match result {
        Err(Error::InvalidStream(at, why)) => at == stream && why.contains("host"),
        other => {
            eprintln!("{other:?}");
            false
        }
    }
}

fn is_of_the_event<T: std::fmt::Debug>(result: Result<T, Error>, event: EventHandle) -> bool {
    match result {
        Err(Error::InvalidEvent(at, why)) => at == event.0 && why.contains("weir_host_event_create"),
        other => {
            eprintln!("{other:?}");
            false
        }
    }
}

/// What a pool of a device is asked, on a host stream.
fn asked_of_a_pool(pool: usize, on: StreamHandle) {
    let pool = POOLS.get(pool).unwrap();
    let block = pool.alloc(100, 0, StreamHandle(0)).unwrap();
    assert!(is_of_the_stream(pool.alloc(100, 0, on), on));
    assert!(is_of_the_stream(pool.alloc_batch(&[100], on, &mut [Addr(0)]), on));
    assert!(is_of_the_stream(pool.record_stream(block, on), on));
    assert!(is_of_the_stream(pool.free(block, on), on));
    assert!(is_of_the_stream(pool.free_batch(&[block], on), on));
    pool.free(block, StreamHandle(0)).unwrap();
}

/// What knows host streams, too, on one that was destroyed.
fn asked_of_all(on: StreamHandle) {
    let (source, mut target) = (vec![1u8; 8], vec![2u8; 8]);
    let copy = Copy {
        to: Addr(target.as_mut_ptr().expose_provenance() as u64),
        from: Addr(source.as_ptr().expose_provenance() as u64),
        bytes: 8,
    };
    let never = || Box::new(|| panic!("called"));
    assert!(is_of_the_stream(order::stream_synchronize(on), on));
    assert!(is_of_the_stream(order::capture_of(on), on));
    assert!(is_of_the_stream(copies::copy(copy, on), on));
    assert!(is_of_the_stream(copies::copy_hold(copy, on, never()), on));
    assert!(is_of_the_stream(copies::defer(on, never()), on));
    assert!(is_of_the_stream(
        copies::copy_staged(copy, on, || Ok(Config::default())),
        on
    ));
    assert_eq!(target, [2; 8]);
}

fn refused() {
    let device = Device::open(0);
    let config = Config {
        ipc_handle_types: if shares() { 1 } else { 0 },
        ..Config::default()
    };
    assert_eq!(config.memory, MemoryKind::Device);
    let pool = end::create(config).unwrap();
    let (theirs, mut user) = (stream(), null_mut());
    ok!(event_create(&raw mut user, 2));
    let on = handle(theirs);
    let user = EventHandle(user.expose_provenance());
    let (host, event) = (order::stream_create().unwrap(), order::event_create().unwrap());
    let with_the_drivers_event = || {
        assert!(is_of_the_stream(order::event_record(user, host), host));
        assert!(is_of_the_stream(order::stream_wait_event(host, user), host));
    };
    asked_of_a_pool(pool, host);
    with_the_drivers_event();
    if shares() {
        assert!(is_of_the_event(share::export_event(pool, event), event));
    }
    order::stream_destroy(host).unwrap();
    order::event_destroy(event).unwrap();
    asked_of_a_pool(pool, host);
    with_the_drivers_event();
    asked_of_all(host);
    assert!(is_of_the_event(order::event_record(event, on), event));
    assert!(is_of_the_event(order::stream_wait_event(on, event), event));
    assert!(is_of_the_event(order::event_synchronize(event), event));
    if shares() {
        assert!(is_of_the_event(share::export_event(pool, event), event));
    }
    assert_eq!(end::destroy(pool), Ok(()));
    ok!(event_destroy(std::ptr::with_exposed_provenance_mut(user.0)));
    ok!(stream_destroy(theirs));
    drop(device);
    assert_eq!(open(), "");
}

/// A driver that cannot say what is captured cannot share either.
fn shares() -> bool {
    std::env::var_os("WEIR_STANDIN_VERSION").is_none()
}

#[test]
fn the_driver_is_not_asked_about_host_streams_and_events() {
    alone(
        "the_driver_is_not_asked_about_host_streams_and_events",
        &[],
        refused,
    );
}

#[test]
fn nor_is_one_that_knows_no_captures() {
    let old = [("WEIR_STANDIN_VERSION", "9000")];
    alone("nor_is_one_that_knows_no_captures", &old, refused);
}
