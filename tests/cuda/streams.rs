//! How the CUDA backend sees streams, events and captures, on the stand-in driver: each test in a process of its own,
//! with nothing left open at its end.

use crate::common::M;
use crate::common::cuda::{G, Gate, LEGACY, PER_THREAD, backend, handle, line};
use crate::common::standin::{
    Device, alone, calls, capture_mode, control, current, delay, end_capture, fail, ok, stream,
};
use std::ptr::null_mut;
use std::time::Duration;
use weir::backend::{Access, Backend, BackendError, Event};
use weir::base::units::{EventHandle, StreamHandle};
use weir::config::Config;
use weir::lifecycle::registry::POOLS;
use weir::lifecycle::{end, order};
use weir::pool::Pool;

#[test]
fn recycled_handles_are_other_streams() {
    alone("recycled_handles_are_other_streams", &[], || {
        let device = Device::open(0);
        let b = backend();
        let first = stream();
        let id = line(&b, handle(first));
        assert_eq!(line(&b, handle(first)), id);
        ok!(stream_destroy(first));
        let second = stream();
        assert_eq!(first, second, "the stand-in recycles handles");
        assert_ne!(line(&b, handle(second)), id);
        ok!(stream_destroy(second));
        b.close();
        drop(device);
    });
}

#[test]
fn streams_that_are_named_in_turn_are_looked_at_once() {
    alone("streams_that_are_named_in_turn_are_looked_at_once", &[], || {
        let device = Device::open(0);
        let b = backend();
        let streams = [(); 4].map(|()| stream());
        let looks = || calls("cuStreamGetCtx");
        let before = looks();
        let ids = streams.map(|one| line(&b, handle(one)));
        assert_eq!(looks(), before + 4);
        for _ in 0..10 {
            assert_eq!(streams.map(|one| line(&b, handle(one))), ids);
        }
        assert_eq!(looks(), before + 4);
        // another pool may not know the context
        let other = backend();
        assert_eq!(streams.map(|one| line(&other, handle(one))), ids);
        assert_eq!(looks(), before + 8);
        other.close();
        for one in streams {
            ok!(stream_destroy(one));
        }
        b.close();
        drop(device);
    });
}

#[test]
fn default_streams_are_those_of_the_context_and_of_the_thread() {
    alone(
        "default_streams_are_those_of_the_context_and_of_the_thread",
        &[],
        || {
            let b = backend();
            // no context is current: the pool's device is meant
            let (legacy, own) = (line(&b, LEGACY), line(&b, PER_THREAD));
            assert_eq!(line(&b, StreamHandle(1)), legacy);
            assert_ne!(legacy, own);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(line(&b, LEGACY), legacy);
                    assert_ne!(line(&b, PER_THREAD), own);
                });
            });
            assert_eq!(current(), null_mut());
            let device = Device::open(0);
            assert_eq!((line(&b, LEGACY), line(&b, PER_THREAD)), (legacy, own));
            drop(device);
            // another device's: another stream, on which work can be followed as well
            let device = Device::open(1);
            let theirs = line(&b, LEGACY);
            assert_ne!(theirs, legacy);
            let event = b.record(LEGACY).unwrap();
            b.synchronize(event).unwrap();
            assert_eq!(b.query(event), Ok(true));
            b.forget(event);
            b.close();
            drop(device);
        },
    );
}

#[test]
fn streams_of_other_devices_are_known_and_those_of_other_contexts_refused() {
    let name = "streams_of_other_devices_are_known_and_those_of_other_contexts_refused";
    alone(name, &[], || {
        let other = Device::open(1);
        let theirs = stream();
        let b = backend();
        let id = line(&b, handle(theirs));
        let gate = Gate::on(theirs);
        let event = b.record(handle(theirs)).unwrap();
        assert_eq!(b.query(event), Ok(false));
        b.wait(LEGACY, event).unwrap();
        let behind = b.record(LEGACY).unwrap();
        assert_eq!(b.query(behind), Ok(false));
        drop(gate);
        b.synchronize(behind).unwrap();
        assert_eq!(b.query(event), Ok(true));
        b.forget(event);
        b.forget(behind);
        assert_eq!(line(&b, handle(theirs)), id);

        let mut own_context = null_mut();
        ok!(context_create(&raw mut own_context, 0, 0));
        let foreign = stream();
        for stream in [handle(foreign), LEGACY, PER_THREAD] {
            assert!(
                matches!(b.timeline(stream), Err(BackendError::InvalidStream(why)) if why.contains("primary")),
                "{stream}"
            );
        }
        ok!(stream_destroy(foreign));
        ok!(context_destroy(own_context));
        ok!(context_set(other.1));
        ok!(stream_destroy(theirs));
        b.close();
        drop(other);
    });
}

#[test]
fn events_follow_the_work_and_survive_their_stream() {
    alone("events_follow_the_work_and_survive_their_stream", &[], || {
        let device = Device::open(0);
        let b = backend();
        let (first, second) = (stream(), stream());
        let gate = Gate::on(first);
        let event = b.record(handle(first)).unwrap();
        assert_ne!(event, Event::COMPLETE);
        assert_eq!(b.query(event), Ok(false));
        b.wait(handle(second), event).unwrap();
        b.wait(handle(second), Event::COMPLETE).unwrap();
        let behind = b.record(handle(second)).unwrap();
        ok!(stream_destroy(first));
        b.forget(event); // what waits goes on waiting
        assert_eq!(b.query(behind), Ok(false));
        drop(gate);
        b.synchronize(behind).unwrap();
        assert_eq!(b.query(behind), Ok(true));
        // an event is used again
        let made = calls("cuEventCreate");
        let again = b.record(handle(second)).unwrap();
        assert_eq!((again, calls("cuEventCreate")), (event, made));
        b.forget(again);
        b.forget(behind);
        b.forget(Event::COMPLETE);
        ok!(stream_destroy(second));
        b.close();
        drop(device);
    });
}

#[test]
fn everything_is_waited_for_destroyed_streams_and_other_devices_included() {
    let name = "everything_is_waited_for_destroyed_streams_and_other_devices_included";
    alone(name, &[], || {
        let (one, two) = (Device::open(1), Device::open(0));
        let b = backend();
        for (device, access) in [(&two, None), (&one, Some(Access::Read))] {
            if let Some(access) = access {
                b.set_access(device.0, access).unwrap();
            }
            ok!(context_set(device.1));
            let busy = stream();
            let gate = Gate::on(busy);
            ok!(stream_destroy(busy));
            let opened = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    opened.store(true, std::sync::atomic::Ordering::SeqCst);
                    drop(gate);
                });
                b.synchronize_all().unwrap();
                assert!(
                    opened.load(std::sync::atomic::Ordering::SeqCst),
                    "device {}",
                    device.0
                );
            });
        }
        // on a full card there is another way
        fail("cuMemAlloc", 1, 2);
        b.synchronize_all().unwrap();
        assert!(calls("cuMemFreeHost") > 0);
        ok!(context_set(null_mut()));
        b.close();
        ok!(context_set(two.1));
        drop((one, two));
    });
}

/// A call, or several, of the backend.
type Step<'a> = &'a dyn Fn() -> Result<(), BackendError>;

#[test]
fn the_current_context_and_the_capture_mode_are_left_as_they_were() {
    let name = "the_current_context_and_the_capture_mode_are_left_as_they_were";
    alone(name, &[], || {
        let (other, own) = (Device::open(1), Device::open(0));
        let mine = stream();
        let b = backend();
        let all = || {
            let mut all = Vec::new();
            let steps: [(&str, Step); 7] = [
                ("timeline", &|| b.timeline(handle(mine)).map(drop)),
                ("per thread", &|| b.timeline(PER_THREAD).map(drop)),
                ("record", &|| b.record(handle(mine)).map(|event| b.forget(event))),
                ("legacy", &|| b.record(LEGACY).map(|event| b.forget(event))),
                ("wait", &|| {
                    let event = b.record(handle(mine))?;
                    let waited = b.wait(PER_THREAD, event);
                    let seen = b.query(event);
                    let done = b.synchronize(event);
                    b.forget(event);
                    waited.and(seen.map(drop)).and(done)
                }),
                ("synchronize_all", &|| b.synchronize_all()),
                ("access", &|| {
                    b.set_access(1, Access::ReadWrite)?;
                    b.synchronize_all()?;
                    b.set_access(1, Access::None)
                }),
            ];
            for (name, step) in steps {
                all.push((name, step()));
            }
            all
        };
        for context in [own.1, other.1, null_mut()] {
            ok!(context_set(context));
            for (name, result) in all() {
                assert_eq!(result, Ok(()), "{name}");
            }
            assert_eq!((current(), capture_mode()), (context, 0));
            // and when any of the calls fails
            control!(reset_faults());
            let mut nth = 1;
            loop {
                control!(fail_any(nth, 999));
                let _ = all();
                let left = control!(faults_left());
                control!(reset_faults());
                assert_eq!(current(), context, "call {nth} failed");
                assert_eq!(capture_mode(), 0, "call {nth} failed");
                if left > 0 {
                    break;
                }
                nth += 1;
            }
            assert!(nth > 30, "{nth} calls");
        }
        ok!(context_set(own.1));
        ok!(stream_destroy(mine));
        b.close();
        drop((other, own));
    });
}

/// `cuStreamBeginCapture`'s modes.
const MODES: [u32; 3] = [0, 1, 2];

#[test]
fn a_stream_that_waits_for_nobody_by_itself_tells_whether_it_has_work() {
    const WORKS: Option<bool> = Some(true);
    const IDLE: Option<bool> = Some(false);
    let name = "a_stream_that_waits_for_nobody_by_itself_tells_whether_it_has_work";
    alone(name, &[], || {
        let device = Device::open(0);
        let b = backend();
        let (one, other) = (stream(), stream());
        let id = line(&b, handle(one));
        assert_eq!(b.has_work(handle(one), id), IDLE);
        let gate = Gate::on(other);
        let theirs = line(&b, handle(other));
        let both = || (b.has_work(handle(one), id), b.has_work(handle(other), theirs));
        assert_eq!(both(), (IDLE, WORKS));
        // another one by the same name, and the other way round
        let crossed = (b.has_work(handle(one), theirs), b.has_work(handle(other), id));
        assert_eq!(crossed, (None, None));
        let event = b.record(handle(other)).unwrap();
        b.wait(handle(one), event).unwrap();
        assert_eq!(both(), (WORKS, WORKS), "what it waits for is no work of its own");
        drop(gate);
        b.synchronize(event).unwrap();
        ok!(stream_synchronize(one));
        assert_eq!(both(), (IDLE, IDLE));
        b.forget(event);

        // those that wait for the legacy stream by themselves are left to events
        let mut blocking = null_mut();
        ok!(stream_create(&raw mut blocking, 0));
        for stream in [handle(blocking), PER_THREAD] {
            let id = line(&b, stream);
            assert_eq!(b.has_work(stream, id), None, "{stream}");
        }

        // itself tells of them, too, and of no others
        let legacy = line(&b, LEGACY);
        let idle = || {
            let answers = [StreamHandle(1), LEGACY].map(|name| b.has_work(name, legacy));
            assert_eq!(answers[0], answers[1]);
            answers[0]
        };
        let crossed = (b.has_work(LEGACY, id), b.has_work(handle(one), legacy));
        assert_eq!((idle(), crossed), (IDLE, (None, None)));
        for (stream, tells) in [(one, false), (blocking, true), (null_mut(), true)] {
            let gate = Gate::on(stream);
            assert_eq!(idle(), Some(tells), "{stream:?}");
            // as an event does
            let event = b.record(LEGACY).unwrap();
            if tells {
                assert_eq!(b.query(event), Ok(false));
                drop(gate);
                b.synchronize(event).unwrap();
            } else {
                b.synchronize(event).unwrap();
                drop(gate);
            }
            b.forget(event);
            ok!(stream_synchronize(stream));
            assert_eq!(idle(), IDLE);
        }
        for (captured, tells) in [(one, true), (blocking, false)] {
            ok!(stream_begin_capture(captured, 0));
            assert_eq!(
                idle(),
                tells.then_some(false),
                "a capture that it must not wait for, and stays whole"
            );
            end_capture(captured);
        }
        for call in ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuStreamQuery"] {
            fail(call, 1, 1);
            assert_eq!(b.has_work(LEGACY, legacy), None, "{call}");
        }
        assert_eq!(idle(), IDLE);

        // a capture stays whole, and a call that fails says nothing
        ok!(stream_begin_capture(one, 0));
        let captured = line(&b, handle(one));
        assert_eq!(b.has_work(handle(one), captured), None);
        assert_eq!(both(), (None, IDLE));
        end_capture(one);
        for call in ["cuStreamQuery", "cuStreamGetId"] {
            fail(call, 1, 1);
            assert_eq!(b.has_work(handle(one), id), None, "{call}");
        }
        // of which kind a stream is is asked once
        let fresh = stream();
        let (its, asked) = (line(&b, handle(fresh)), calls("cuStreamGetFlags"));
        fail("cuStreamGetFlags", 1, 1);
        assert_eq!(b.has_work(handle(fresh), its), None);
        for _ in 0..3 {
            assert_eq!(b.has_work(handle(fresh), its), IDLE);
            assert_eq!(b.has_work(handle(blocking), line(&b, handle(blocking))), None);
        }
        assert_eq!(calls("cuStreamGetFlags"), asked + 2, "of the blocking one above");
        ok!(stream_destroy(fresh));
        assert_eq!(b.has_work(handle(one), id), IDLE);
        for stream in [one, other, blocking] {
            ok!(stream_destroy(stream));
        }
        b.close();
        assert_eq!(b.has_work(handle(one), id), None, "the pool has ended");
        drop(device);
    });
}

#[test]
fn captures_are_told_apart_and_never_harmed() {
    alone("captures_are_told_apart_and_never_harmed", &[], || {
        let device = Device::open(0);
        let b = backend();
        let captured = stream();
        let mut blocking = null_mut();
        ok!(stream_create(&raw mut blocking, 0));
        let mut seen = Vec::new();
        for (mode, target) in MODES
            .into_iter()
            .flat_map(|mode| [(mode, captured), (mode, blocking)])
        {
            let before = line(&b, handle(target));
            assert_eq!(before.capture, None);
            let pending = b.record(handle(target)).unwrap();
            b.synchronize(pending).unwrap();
            ok!(stream_begin_capture(target, mode));
            let inside = line(&b, handle(target));
            let capture = inside.capture.expect("a capture");
            assert!(!seen.contains(&capture), "{capture:?} again");
            seen.push(capture);
            assert_eq!(line(&b, handle(target)), inside);
            // refused here, before the driver would end the capture
            assert!(matches!(
                b.record(handle(target)),
                Err(BackendError::Capturing(_))
            ));
            assert!(matches!(
                b.wait(handle(target), pending),
                Err(BackendError::Capturing(_))
            ));
            // the legacy stream itself is not captured, but cannot be used beside a blocking stream that is
            assert_eq!(line(&b, LEGACY).capture, None);
            let legacy = b.record(LEGACY);
            match target == blocking {
                true => assert!(matches!(legacy, Err(BackendError::Capturing(_)))),
                false => b.forget(legacy.unwrap()),
            }
            // all else works on this thread and on others
            let work = || {
                assert_eq!(b.query(pending), Ok(true));
                b.synchronize(pending).unwrap();
                b.synchronize_all().unwrap();
                let (at, page) = (b.reserve(G).unwrap(), b.create(G).unwrap());
                b.map(at, page, G).unwrap();
                b.unmap(at, G).unwrap();
                b.release(page, G).unwrap();
                b.unreserve(at, G).unwrap();
            };
            work();
            std::thread::scope(|scope| scope.spawn(work).join().unwrap());
            let mut status = 0;
            ok!(stream_capture_status(target, &raw mut status));
            assert_eq!(status, 1, "the capture was harmed");
            end_capture(target);
            assert_eq!(line(&b, handle(target)), before);
            b.forget(pending);
        }
        ok!(stream_destroy(captured));
        ok!(stream_destroy(blocking));
        b.close();
        drop(device);
    });
}

#[test]
fn a_handle_used_again_is_behind_the_work_of_the_old_one_where_streams_have_no_ids() {
    let name = "a_handle_used_again_is_behind_the_work_of_the_old_one_where_streams_have_no_ids";
    alone(name, &[("WEIR_STANDIN_VERSION", "11080")], || {
        let device = Device::open(0);
        let b = backend();
        let old = stream();
        let id = line(&b, handle(old));
        let gate = Gate::on(old);
        assert_eq!(line(&b, handle(old)), id);
        ok!(stream_destroy(old));
        let new = stream();
        assert_eq!(old, new);
        assert_eq!(line(&b, handle(new)), id);
        let event = b.record(handle(new)).unwrap();
        assert_eq!(b.query(event), Ok(false), "the handle stands for both");
        drop(gate);
        b.synchronize(event).unwrap();
        b.forget(event);
        // a capture is left alone
        ok!(stream_begin_capture(new, 0));
        assert!(line(&b, handle(new)).capture.is_some());
        end_capture(new);
        ok!(stream_destroy(new));
        b.close();
        drop(device);
    });
}

#[test]
fn a_handle_that_comes_again_on_another_device_is_another_stream_where_streams_have_no_ids() {
    let name = "a_handle_that_comes_again_on_another_device_is_another_stream_where_streams_have_no_ids";
    alone(name, &[("WEIR_STANDIN_VERSION", "11080")], || {
        let (other, device) = (Device::open(1), Device::open(0));
        let pool = Pool::new(Config::default(), backend()).expect("a pool");
        pool.set_access(1, Access::ReadWrite).unwrap();
        let old = stream();
        let block = pool.alloc(M, 0, handle(old)).unwrap();
        let gate = Gate::on(old);
        ok!(fill(block.0, 1, M as usize, old));
        pool.free(block, handle(old)).unwrap();
        ok!(stream_destroy(old));
        ok!(context_set(other.1));
        let new = stream();
        assert_eq!(old, new, "the stand-in recycles handles");
        // the stand-in ends the process if it is the old stream's block and nothing waits for that
        let block = pool.alloc(M, 0, handle(new)).unwrap();
        ok!(fill(block.0, 2, M as usize, new));
        drop(gate);
        ok!(stream_synchronize(new));
        pool.free(block, handle(new)).unwrap();
        ok!(stream_destroy(new));
        assert_eq!(pool.end().blocks, 0);
        ok!(context_set(device.1));
        drop(device);
        drop(other);
    });
}

/// The wait is for the new record then, of which the pool hears when both have returned.
#[test]
fn an_event_that_is_recorded_while_a_stream_is_made_to_wait_for_it_orders_nothing_else() {
    let name = "an_event_that_is_recorded_while_a_stream_is_made_to_wait_for_it_orders_nothing_else";
    alone(name, &[], || {
        let device = Device::open(0);
        let pool = end::create(Config {
            max_bytes: 16 * M,
            ..Config::default()
        })
        .expect("a pool");
        let known = POOLS.get(pool).expect("a pool");
        let [at_work, idle, third] = [(); 3].map(|()| stream());
        let mut event = null_mut();
        ok!(event_create(&raw mut event, 2));
        let event = EventHandle(event.expose_provenance());
        let block = known.alloc(12 * M, 0, handle(at_work)).unwrap();
        let gate = Gate::on(at_work);
        ok!(fill(block.0, 1, 12 * M as usize, at_work));
        known.free(block, handle(at_work)).unwrap();
        order::event_record(event, handle(at_work)).unwrap();
        delay("cuStreamWaitEvent", 1, 300_000);
        let waiting = handle(third);
        let waits = std::thread::spawn(move || order::stream_wait_event(waiting, event));
        std::thread::sleep(Duration::from_millis(100));
        order::event_record(event, handle(idle)).unwrap();
        assert_eq!(waits.join().expect("no panic"), Ok(()));
        // the stand-in ends the process if it is the block of the stream at work and nothing waits for that
        let block = known.alloc(12 * M, 0, handle(third)).unwrap();
        ok!(fill(block.0, 2, 12 * M as usize, third));
        drop(gate);
        ok!(stream_synchronize(third));
        known.free(block, handle(third)).unwrap();
        drop(known);
        assert_eq!(end::destroy(pool), Ok(()));
        ok!(event_destroy(std::ptr::with_exposed_provenance_mut(event.0)));
        for one in [at_work, idle, third] {
            ok!(stream_destroy(one));
        }
        drop(device);
    });
}
