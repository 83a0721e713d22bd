//! Is a handle still the stream that it was, and not being captured? What the backend answers quickly is what a timeline would have said. On
//! the stand-in driver: each test in a process of its own.

use crate::common::cuda::{LEGACY, PER_THREAD, backend, handle, line};
use crate::common::standin::{Device, Object, alone, control, end_capture, fail, ok, stream};
use std::ptr::null_mut;
use weir::backend::Backend;
use weir::backend::cuda::CudaBackend;
use weir::base::units::{StreamHandle, Timeline};

/// Handles, and whose they were at first.
struct Named<'a> {
    backend: &'a CudaBackend,
    lines: Vec<(StreamHandle, Timeline)>,
}

impl Named<'_> {
    fn of(backend: &CudaBackend, handles: Vec<StreamHandle>) -> Named<'_> {
        let lines = handles.into_iter().map(|name| (name, line(backend, name)));
        Named {
            lines: lines.collect(),
            backend,
        }
    }

    /// Those that are another's now, or captured, are these and no others.
    fn changed(&self, when: &str, changed: &[StreamHandle]) {
        for &(name, line) in &self.lines {
            let still = !changed.contains(&name);
            assert_eq!(self.backend.is_still(name, line), still, "{when}: {name}");
            assert_eq!(self.backend.timeline(name) == Ok(line), still, "{when}: {name}");
        }
    }
}

fn blocking_stream() -> Object {
    let mut stream = null_mut();
    ok!(stream_create(&raw mut stream, 0));
    stream
}

#[test]
fn a_stream_is_the_same_until_it_is_another_one_or_captured() {
    alone(
        "a_stream_is_the_same_until_it_is_another_one_or_captured",
        &[],
        || {
            let b = backend();
            let unknown = Named::of(&b, vec![LEGACY, PER_THREAD]);
            unknown.changed("no context is current", &[]);
            let device = Device::open(0);
            let (apart, blocking) = (stream(), blocking_stream());
            let own = [apart, blocking].map(handle);
            let all = [own[0], own[1], LEGACY, StreamHandle(1), PER_THREAD];
            let named = Named::of(&b, all.to_vec());
            named.changed("at first", &[]);
            std::thread::scope(|scope| {
                let context = device.1.expose_provenance();
                let named = &named;
                scope.spawn(move || {
                    named.changed("on another thread, where no context is current", &[PER_THREAD]);
                    ok!(context_set(std::ptr::with_exposed_provenance_mut(context)));
                    named.changed("on another thread", &[PER_THREAD]);
                });
            });
            for (captured, name) in [
                (apart, own[0]),
                (blocking, own[1]),
                (std::ptr::without_provenance_mut(PER_THREAD.0), PER_THREAD),
            ] {
                ok!(stream_begin_capture(captured, 2));
                named.changed("captured", &[name]);
                let inside = line(&b, name);
                assert!(inside.capture.is_some() && b.is_still(name, inside), "{name}");
                end_capture(captured);
                assert!(!b.is_still(name, inside), "{name}");
                named.changed("as before", &[]);
            }
            // of another device, and of a context that is no primary one
            let other = Device::open(1);
            named.changed(
                "another device's is current",
                &[LEGACY, StreamHandle(1), PER_THREAD],
            );
            drop(other);
            let mut foreign = null_mut();
            ok!(context_create(&raw mut foreign, 0, 0));
            named.changed("another one is current", &[LEGACY, StreamHandle(1), PER_THREAD]);
            ok!(context_destroy(foreign));
            ok!(context_set(device.1));
            named.changed("as before", &[]);
            // the driver cannot tell
            for call in ["cuStreamIsCapturing", "cuStreamGetId"] {
                fail(call, 1, 1);
                fail(call, 2, 1);
                assert!(!b.is_still(named.lines[0].0, named.lines[0].1), "{call}");
                control!(reset_faults());
            }
            ok!(stream_destroy(apart));
            assert_eq!(stream(), apart, "the stand-in recycles handles");
            named.changed("recycled", &[own[0]]);
            ok!(stream_destroy(apart));
            ok!(stream_destroy(blocking));
            b.close();
            drop(device);
        },
    );
}

#[test]
fn a_device_that_was_reset_has_no_stream_of_before() {
    alone("a_device_that_was_reset_has_no_stream_of_before", &[], || {
        for again in [false, true] {
            let device = Device::open(0);
            let b = backend();
            let named = Named::of(&b, vec![LEGACY, PER_THREAD]);
            named.changed("at first", &[]);
            ok!(context_reset(0));
            if again {
                let mut context = null_mut();
                ok!(context_retain(&raw mut context, 0));
                assert_eq!(context, device.1, "the stand-in recycles handles");
                ok!(context_set(context));
            }
            // asked first, as a timeline would note that it is lost
            for &(name, line) in &named.lines {
                assert!(!b.is_still(name, line), "{name}");
            }
            named.changed("reset", &[LEGACY, PER_THREAD]);
            b.close();
            if again {
                ok!(context_release(0));
            }
            drop(device);
        }
    });
}

#[test]
fn a_lost_device_has_no_stream_of_before() {
    alone("a_lost_device_has_no_stream_of_before", &[], || {
        let device = std::mem::ManuallyDrop::new(Device::open(0));
        let b = backend();
        let named = Named::of(&b, vec![LEGACY, PER_THREAD]);
        named.changed("at first", &[]);
        control!(lose_device(0));
        assert!(b.record(LEGACY).is_err(), "a call that sees it");
        for &(name, line) in &named.lines {
            assert!(!b.is_still(name, line), "{name}");
        }
        named.changed("lost", &[LEGACY, PER_THREAD]);
        b.close();
        ok!(context_set(null_mut()));
        ok!(context_release(device.0));
    });
}

#[test]
fn streams_without_ids_are_known_by_their_handles() {
    let name = "streams_without_ids_are_known_by_their_handles";
    alone(name, &[("WEIR_STANDIN_VERSION", "11080")], || {
        let device = Device::open(0);
        let b = backend();
        let one = stream();
        let named = Named::of(&b, vec![handle(one), LEGACY, PER_THREAD]);
        named.changed("at first", &[]);
        ok!(stream_begin_capture(one, 2));
        named.changed("captured", &[handle(one)]);
        end_capture(one);
        named.changed("as before", &[]);
        ok!(stream_destroy(one));
        b.close();
        drop(device);
    });
}
