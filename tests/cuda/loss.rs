//! What is left of a pool when its device is lost or reset, and in a forked child.

use crate::common::M;
use crate::common::cuda::{LEGACY, backend, handle};
use crate::common::standin::{Device, Object, all_calls, alone, calls, control, ok, open, rest, stream};
use std::ptr::null_mut;
use weir::backend::cuda::CudaBackend;
use weir::backend::{Backend, BackendError, Event};
use weir::base::error::Error;
use weir::base::units::{Addr, StreamHandle};
use weir::config::{Config, DeviceMemory, MemoryKind};
use weir::lifecycle::copies::{self, Copy};
use weir::lifecycle::registry::POOLS;
use weir::lifecycle::{defaults, end, order};
use weir::pool::Pool;

fn config(memory: DeviceMemory) -> Config {
    Config {
        memory: MemoryKind::Device,
        device_memory: memory,
        name: "lost".into(),
        ..Config::default()
    }
}

fn is_lost<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::DeviceLost(_)) => true,
        other => {
            eprintln!("{other:?}");
            false
        }
    }
}

/// Blocks of all sizes, some of them freed.
fn some_blocks(pool: usize, on: StreamHandle) -> Vec<Addr> {
    let pool = POOLS.get(pool).unwrap();
    let sizes = [100, 5000, M, 3 * M, 40 * M];
    let blocks: Vec<Addr> = sizes
        .iter()
        .map(|&bytes| pool.alloc(bytes, 0, on).unwrap())
        .collect();
    pool.free(blocks[1], on).unwrap();
    pool.free(blocks[3], on).unwrap();
    vec![blocks[0], blocks[4], blocks[2]]
}

/// Everything that may be asked of a pool whose device is lost.
fn afterwards(handle: usize, blocks: &[Addr], on: StreamHandle, mapped: bool) {
    let pool = POOLS.get(handle).unwrap();
    for bytes in [1, 100, M, 100 * M] {
        assert!(is_lost(pool.alloc(bytes, 0, on)), "{bytes} B");
        assert!(is_lost(pool.alloc(bytes, 0, StreamHandle(0))), "{bytes} B");
    }
    assert!(is_lost(pool.alloc_batch(&[100], on, &mut [Addr(0)])));
    assert!(is_lost(pool.record_stream(blocks[0], on)));
    assert!(pool.free(blocks[0], on).is_ok());
    assert!(matches!(pool.free(blocks[0], on), Err(Error::DoubleFree(_))));
    assert_eq!(pool.free_batch(&[blocks[1]], on), Ok(()));
    pool.validate();
    if mapped {
        assert!(pool.squeeze().unwrap() > 0);
    }
    assert!(pool.free_synced(blocks[2]).is_ok());
    let stats = pool.stats().unwrap();
    assert_eq!((stats.used, stats.allocations), (0, stats.frees));
    if mapped {
        pool.trim(0).unwrap();
        assert_eq!(pool.stats().unwrap().reserved, 0, "what is free was given back");
    }
    drop(pool);
    assert_eq!(end::destroy(handle), Ok(()));
}

fn lose(memory: DeviceMemory) {
    let device = std::mem::ManuallyDrop::new(Device::open(0));
    let on = stream();
    let pool = end::create(config(memory)).unwrap();
    let bystander = end::create(Config {
        device: 1,
        ..config(memory)
    })
    .unwrap();
    let blocks = some_blocks(pool, handle(on));
    control!(lose_device(0));
    afterwards(pool, &blocks, handle(on), memory == DeviceMemory::Mapped);
    // the driver refuses it for good, and says why
    assert!(is_lost(end::create(config(memory))));
    // other devices are well, but not the default streams of the context that is current
    let other = POOLS.get(bystander).unwrap();
    assert!(other.alloc(1, 0, StreamHandle(0)).is_err());
    ok!(context_set(null_mut()));
    for at in some_blocks(bystander, StreamHandle(0)) {
        other.free(at, StreamHandle(0)).unwrap();
    }
    drop(other);
    assert_eq!(end::destroy(bystander), Ok(()));
    assert_eq!(control!(stream_destroy(on)), 700);
    ok!(context_release(device.0));
    assert_eq!(open(), "");
}

#[test]
fn a_lost_device_is_reported_and_its_memory_given_back() {
    alone("a_lost_device_is_reported_and_its_memory_given_back", &[], || {
        lose(DeviceMemory::Mapped)
    });
}

#[test]
fn a_lost_device_takes_its_plain_memory_along() {
    alone("a_lost_device_takes_its_plain_memory_along", &[], || {
        lose(DeviceMemory::Plain)
    });
}

/// The free that learns of the loss is the last one of that memory: its address may be somebody else's at once.
#[test]
fn a_lost_device_is_asked_to_free_plain_memory_once() {
    alone("a_lost_device_is_asked_to_free_plain_memory_once", &[], || {
        std::mem::forget(Device::open(0));
        let pool = end::create(config(DeviceMemory::Plain)).unwrap();
        let known = POOLS.get(pool).unwrap();
        let block = known.alloc(4 * M, 0, LEGACY).unwrap();
        known.free(block, LEGACY).unwrap();
        assert_eq!(order::stream_synchronize(LEGACY), Ok(()));
        control!(lose_device(0));
        let asked = calls("cuMemFree");
        for _ in 0..2 {
            known.trim(0).unwrap();
            assert_eq!(known.stats().unwrap().reserved, 0);
        }
        assert_eq!(calls("cuMemFree"), asked + 1);
        drop(known);
        assert_eq!(end::destroy(pool), Ok(()));
        assert_eq!(calls("cuMemFree"), asked + 1);
        ok!(context_set(null_mut()));
        ok!(context_release(0));
        assert_eq!(open(), "");
    });
}

#[test]
fn a_device_that_was_reset_has_new_pools_and_the_old_ones_say_so() {
    let name = "a_device_that_was_reset_has_new_pools_and_the_old_ones_say_so";
    alone(name, &[], || {
        let device = Device::open(0);
        for memory in [DeviceMemory::Mapped, DeviceMemory::Plain] {
            let (default, pool) = (default_pool(), end::create(config(memory)).unwrap());
            let (on, lent) = (stream(), some_blocks(default, StreamHandle(0)));
            let blocks = some_blocks(pool, handle(on));
            ok!(context_reset(0));
            // nobody has told the pools, and the handle of the context is the old one
            let on = stream_after_reset(device.1);
            let fresh = end::create(config(memory)).unwrap();
            let new_blocks = some_blocks(fresh, handle(on));
            afterwards(pool, &blocks, handle(on), memory == DeviceMemory::Mapped);
            assert!(is_lost(POOLS.get(default).unwrap().alloc(1, 0, StreamHandle(0))));
            assert!(matches!(end::destroy(default), Err(Error::LiveBlocks(_))));
            drop(lent);
            // the new pool has kept what is its own
            let pool = POOLS.get(fresh).unwrap();
            for at in new_blocks {
                ok!(fill(at.0, 1, 100, on));
                pool.free(at, handle(on)).unwrap();
            }
            pool.squeeze().unwrap();
            drop(pool);
            assert_eq!(end::destroy(fresh), Ok(()));
            ok!(stream_destroy(on));
            ok!(context_release(0)); // that of `stream_after_reset`
        }
        std::mem::forget(device);
        ok!(context_set(null_mut()));
        ok!(context_release(0));
        assert_eq!(open(), "");
    });
}

fn default_pool() -> usize {
    defaults::default_pool(0, || Ok(Config::default())).unwrap()
}

/// The program goes on with the device as it would: the context is retained anew, and a stream made there.
fn stream_after_reset(before: Object) -> Object {
    let again = Device::open(0);
    assert_eq!(again.1, before, "a reset device has its old handle");
    std::mem::forget(again);
    stream()
}

#[test]
fn a_reset_is_seen_on_drivers_without_context_ids_while_nobody_has_come_back() {
    let name = "a_reset_is_seen_on_drivers_without_context_ids_while_nobody_has_come_back";
    alone(name, &[("WEIR_STANDIN_VERSION", "11080")], || {
        let pool = end::create(config(DeviceMemory::Mapped)).unwrap();
        let blocks = some_blocks(pool, StreamHandle(0));
        control!(reset_device(0));
        afterwards(pool, &blocks, StreamHandle(0), true);
        assert_eq!(open(), "");
    });
}

#[test]
fn the_order_hooks_tell_what_the_driver_says() {
    use weir::base::units::EventHandle;
    alone("the_order_hooks_tell_what_the_driver_says", &[], || {
        // nobody has opened the driver, and no hook does
        assert!(matches!(
            order::event_record(EventHandle(0x1000), StreamHandle(0)),
            Err(Error::InvalidEvent(..))
        ));
        assert_eq!(order::stream_synchronize(StreamHandle(0x1000)), Ok(()));
        assert_eq!(order::device_synchronize(), Ok(()));
        assert_eq!(order::capture_of(StreamHandle(0x1000)), Ok(None));
        assert_eq!(all_calls(), 0);

        let device = Device::open(0);
        let pool = end::create(config(DeviceMemory::Mapped)).unwrap();
        let (first, second) = (stream(), stream());
        let (mut event, host) = (null_mut(), order::event_create().unwrap());
        ok!(event_create(&raw mut event, 2));
        let user = EventHandle(event.expose_provenance());
        assert_eq!(order::event_record(user, handle(first)), Ok(()));
        assert_eq!(order::stream_wait_event(handle(second), user), Ok(()));
        assert_eq!(order::event_synchronize(user), Ok(()));
        assert_eq!(order::stream_synchronize(handle(second)), Ok(()));
        assert_eq!(order::device_synchronize(), Ok(()));
        // a host stream and the driver's event do not fit together
        let host_stream = order::stream_create().unwrap();
        for refused in [
            order::event_record(user, host_stream),
            order::stream_wait_event(host_stream, user),
        ] {
            assert!(matches!(refused, Err(Error::InvalidStream(..))), "{refused:?}");
        }
        assert_eq!(order::event_record(host, host_stream), Ok(()));
        assert_eq!(order::stream_synchronize(host_stream), Ok(()));
        for (call, code, is_right) in [
            (
                "cuEventRecord",
                400,
                (|e| matches!(e, Error::InvalidEvent(..))) as fn(&Error) -> bool,
            ),
            ("cuEventRecord", 900, |e| matches!(e, Error::Capture(_))),
            ("cuEventRecord", 999, |e| matches!(e, Error::Backend(_))),
            ("cuEventRecord", 719, |e| matches!(e, Error::DeviceLost(_))),
        ] {
            crate::common::standin::fail(call, 1, code);
            let error = order::event_record(user, handle(first)).unwrap_err();
            assert!(is_right(&error), "{code}: {error:?}");
        }
        crate::common::standin::fail("cuStreamSynchronize", 1, 400);
        assert!(matches!(
            order::stream_synchronize(handle(first)),
            Err(Error::InvalidStream(..))
        ));
        // the program's call failed, not the pool's: that goes on
        let pool_now = POOLS.get(pool).unwrap();
        let at = pool_now.alloc(100, 0, handle(first)).unwrap();
        pool_now.free(at, handle(first)).unwrap();
        drop(pool_now);
        assert_eq!(end::destroy(pool), Ok(()));
        order::event_destroy(host).unwrap();
        order::stream_destroy(host_stream).unwrap();
        ok!(event_destroy(event));
        ok!(stream_destroy(first));
        ok!(stream_destroy(second));
        drop(device);
        assert_eq!(open(), "");
    });
}

#[test]
fn a_forked_child_calls_nothing() {
    alone("a_forked_child_calls_nothing", &[], || {
        let pool = end::create(config(DeviceMemory::Mapped)).unwrap();
        let blocks = some_blocks(pool, StreamHandle(0));
        let known = POOLS.get(pool).unwrap();
        // SAFETY: the child calls what is to be shown to be harmless there, and ends without running exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // the stand-in ends the child at any call
            let quiet = known.free(blocks[0], StreamHandle(0)).is_ok()
                && known.alloc(100, 0, StreamHandle(0)) == Err(Error::Unloaded)
                && known.squeeze() == Err(Error::Unloaded)
                && known.end().blocks == 2;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if quiet { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: the child made above, and a variable of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        for at in blocks {
            known.free(at, StreamHandle(0)).unwrap();
        }
        drop(known);
        assert_eq!(end::destroy(pool), Ok(()));
        assert_eq!(open(), "");
    });
}

/// Resets the device, and has the program go on with it: the driver crashes on events of before, as the stand-in does.
fn reset(device: Device) {
    ok!(context_reset(0));
    std::mem::forget((stream_after_reset(device.1), device));
}

/// What names no stream: the pool finds out by itself, before it asks about an event that went with the context.
#[test]
fn events_of_before_a_reset_are_not_asked_about() {
    let acts: [fn(&Pool); 3] = [
        |pool| pool.trim(0).unwrap(),
        |pool| drop(pool.squeeze()),
        |pool| drop(pool.stats()),
    ];
    let name = "events_of_before_a_reset_are_not_asked_about";
    alone(name, &[("WEIR_STANDIN_LEAKS", "0")], || {
        for (act, memory) in acts
            .iter()
            .zip([MemoryKind::Device, MemoryKind::Device, MemoryKind::Pinned])
        {
            let device = Device::open(0);
            let pool = end::create(Config {
                memory,
                ..config(DeviceMemory::Mapped)
            })
            .unwrap();
            let known = POOLS.get(pool).unwrap();
            let blocks = [stream(), stream()].map(|on| (known.alloc(4 * M, 0, handle(on)).unwrap(), on));
            for (at, on) in blocks {
                rest(on, 1000);
                known.free(at, handle(on)).unwrap();
            }
            reset(device);
            act(&known);
            drop(known);
            assert_eq!(end::destroy(pool), Ok(()));
        }
    });
}

/// What short copies left behind is kept under the stream's name, which for a default stream is the same after a reset.
#[test]
fn copies_of_before_a_reset_are_not_asked_about() {
    let name = "copies_of_before_a_reset_are_not_asked_about";
    alone(name, &[("WEIR_STANDIN_LEAKS", "0")], || {
        type Act = fn(&dyn Fn() -> Result<(), Error>);
        let acts: [Act; 3] = [
            |_| POOLS.pools().for_each(|pool| drop(pool.stats())),
            |_| POOLS.pools().for_each(|pool| drop(pool.squeeze())),
            |copy| assert_eq!(copy(), Ok(())),
        ];
        for act in acts {
            let device = Device::open(0);
            let pool = end::create(config(DeviceMemory::Mapped)).unwrap();
            let source = [1u8; 100];
            let copied = Copy {
                to: POOLS.get(pool).unwrap().alloc(M, 0, StreamHandle(0)).unwrap(),
                from: Addr(source.as_ptr().expose_provenance() as u64),
                bytes: 100,
            };
            let copy = || copies::copy_staged(copied, StreamHandle(0), || Ok(Config::default()));
            assert_eq!(copy(), Ok(()));
            reset(device);
            act(&copy);
            assert!(matches!(end::finalize(), Err(Error::LiveBlocks(_))));
        }
    });
}

/// A backend looks for itself at each call that an event has to do with: the pool may have kept the stream's name.
#[test]
fn a_backend_uses_no_event_of_before_a_reset() {
    let name = "a_backend_uses_no_event_of_before_a_reset";
    alone(name, &[("WEIR_STANDIN_LEAKS", "0")], || {
        type Act = fn(&CudaBackend, Event) -> Result<(), BackendError>;
        let acts: [Act; 4] = [
            |backend, _| backend.record(LEGACY).map(drop),
            |backend, event| backend.wait(LEGACY, event),
            |backend, event| backend.query(event).map(drop),
            |backend, event| backend.synchronize(event),
        ];
        for act in acts {
            let device = Device::open(0);
            let backend = backend();
            let [kept, free] = [(); 2].map(|()| backend.record(LEGACY).unwrap());
            backend.forget(free); // for the next record
            reset(device);
            let said = act(&backend, kept);
            assert!(matches!(said, Err(BackendError::Lost(_))), "{said:?}");
            backend.close();
        }
    });
}
