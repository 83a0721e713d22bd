//! Copies through the C interface on the stand-in driver: every call of the driver fails once, in captures, and at the
//! end of a device.

use crate::common::cuda::Gate;
use crate::common::standin::{
    Device, Object, all_calls, alone, calls, control, delay, fail, ok, open, stream,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir::config::{Config, MemoryKind};
use weir::ffi::blocks::weir_pool_alloc;
use weir::ffi::copies::{
    weir_copy_async, weir_copy_async_hold, weir_host_register, weir_host_unregister, weir_stream_defer,
};
use weir::ffi::frees::{weir_pool_free, weir_pool_free_synced};
use weir::ffi::host_streams::weir_host_stream_enqueue;
use weir::ffi::pool::weir_finalize;
use weir::ffi::status::weir_status::{
    self, WEIR_ERROR_BACKEND, WEIR_ERROR_CAPTURE, WEIR_ERROR_DEVICE_LOST, WEIR_ERROR_FORKED,
    WEIR_ERROR_INVALID_ARGUMENT, WEIR_ERROR_INVALID_STREAM, WEIR_OK,
};
use weir::ffi::types::{WEIR_COPY_STAGED, weir_pool};
use weir::lifecycle::{end, order};

const BYTES: usize = 300 << 10;
static CALLED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn called(_: *mut c_void) {
    CALLED.fetch_add(1, Ordering::SeqCst);
}

fn pool(memory: MemoryKind) -> *mut weir_pool {
    let config = Config {
        memory,
        ..Config::default()
    };
    std::ptr::without_provenance_mut(end::create(config).expect("a pool"))
}

fn host() -> Object {
    std::ptr::without_provenance_mut(usize::MAX)
}

fn take(pool: *mut weir_pool, on: Object) -> *mut u8 {
    let mut at = std::ptr::null_mut();
    // SAFETY: a pool and a variable of ours.
    assert_eq!(unsafe { weir_pool_alloc(pool, BYTES, on, &raw mut at) }, WEIR_OK);
    at.cast()
}

/// All kinds of copies while the nth call from here fails. True if there were that many.
fn run(nth: u64, code: i32) -> bool {
    let (near, far, stream) = (pool(MemoryKind::Pinned), pool(MemoryKind::Device), stream());
    let (source, target) = (take(near, host()), take(far, stream));
    let mut pageable = vec![3u8; BYTES];
    let before = CALLED.load(Ordering::SeqCst);
    let mut promised = 0;
    control!(reset_faults());
    control!(fail_any(nth, code));
    // SAFETY: memory of the sizes that are said, until the streams are waited for below.
    unsafe {
        let (to, from) = (target.cast::<c_void>(), source.cast::<c_void>());
        let mut gone: Vec<weir_status> = Vec::new();
        gone.push(weir_copy_async(to, from, BYTES, stream, 0));
        gone.push(weir_copy_async(
            to,
            pageable.as_ptr().cast(),
            BYTES,
            stream,
            WEIR_COPY_STAGED,
        ));
        let held = weir_copy_async_hold(to, from, BYTES, stream, 0, Some(called), to);
        let deferred = weir_stream_defer(stream, Some(called), to);
        promised += u64::from(held == WEIR_OK) + u64::from(deferred == WEIR_OK);
        gone.push(weir_copy_async(
            pageable.as_mut_ptr().cast(),
            to,
            BYTES,
            stream,
            WEIR_COPY_STAGED,
        ));
        // short ones, too
        let short = pageable.as_mut_ptr().cast();
        for (to, from) in [(to, short), (short, to)] {
            gone.push(weir_copy_async(to, from, 5000, stream, WEIR_COPY_STAGED));
        }
        gone.extend([held, deferred]);
        let failures = gone.iter().filter(|&&status| status != WEIR_OK).count();
        assert!(failures <= 1, "{gone:?}");
    }
    let came = all_calls() >= nth;
    control!(reset_faults());
    ok!(stream_synchronize(stream));
    // SAFETY: live blocks, and nothing is in flight.
    unsafe {
        assert_eq!(weir_pool_free_synced(near, source.cast()), WEIR_OK);
        assert_eq!(weir_pool_free(far, target.cast(), stream), WEIR_OK);
    }
    ok!(stream_destroy(stream));
    assert_eq!(weir_finalize(), WEIR_OK, "call {nth} with {code}");
    assert_eq!(
        CALLED.load(Ordering::SeqCst) - before,
        promised,
        "call {nth} with {code}"
    );
    came
}

#[test]
fn each_call_of_the_driver_fails_once() {
    alone("each_call_of_the_driver_fails_once", &[], || {
        let device = Device::open(0);
        let before = open();
        assert!(!run(u64::MAX, 999));
        assert_eq!(open(), before);
        for code in [2, 999] {
            let mut nth = 1;
            while run(nth, code) {
                let left = open();
                assert!(
                    left == before || left.is_empty(),
                    "call {nth} with {code}: {left}"
                );
                nth += 1;
            }
            eprintln!("{nth} calls failed with {code}");
            assert!(nth > 30, "{nth} calls");
        }
        drop(device);
    });
}

#[test]
fn a_capture_takes_direct_copies_and_goes_on() {
    alone("a_capture_takes_direct_copies_and_goes_on", &[], || {
        let device = Device::open(0);
        let (near, far, stream) = (pool(MemoryKind::Pinned), pool(MemoryKind::Device), stream());
        let (source, target) = (take(near, host()), take(far, stream));
        let mut graph = std::ptr::null_mut();
        ok!(stream_begin_capture(stream, 0));
        // SAFETY: live blocks.
        unsafe {
            let (to, from) = (target.cast::<c_void>(), source.cast::<c_void>());
            assert_eq!(weir_copy_async(to, from, BYTES, stream, 0), WEIR_OK);
            let staged = weir_copy_async(to, from, BYTES, stream, WEIR_COPY_STAGED);
            assert_eq!(staged, WEIR_ERROR_CAPTURE);
            let held = weir_copy_async_hold(to, from, BYTES, stream, 0, Some(called), to);
            assert_eq!(held, WEIR_ERROR_CAPTURE);
            assert_eq!(weir_stream_defer(stream, Some(called), to), WEIR_ERROR_CAPTURE);
        }
        ok!(stream_end_capture(stream, &raw mut graph));
        // SAFETY: live blocks, of which the graph's is held back until its release.
        unsafe {
            assert_eq!(weir_pool_free_synced(near, source.cast()), WEIR_OK);
            assert_ne!(take(near, host()), source);
            assert_eq!(weir_pool_free(far, target.cast(), stream), WEIR_OK);
        }
        ok!(graph_destroy(graph));
        ok!(stream_destroy(stream));
        weir_finalize();
        drop(device);
    });
}

/// Nothing runs on a lost device, so nothing is waited for any more.
#[test]
fn a_lost_device_calls_what_was_deferred() {
    alone(
        "a_lost_device_calls_what_was_deferred",
        &[("WEIR_STANDIN_LEAKS", "0")],
        || {
            let device = std::mem::ManuallyDrop::new(Device::open(0));
            let (pool, stream) = (pool(MemoryKind::Pinned), stream());
            let (source, gate) = (take(pool, host()), Gate::on(stream));
            let at = source.cast();
            // SAFETY: a function that may be called with anything.
            let defer = || unsafe { weir_stream_defer(stream, Some(called), at) };
            assert_eq!(defer(), WEIR_OK);
            control!(lose_device(device.0));
            assert_eq!(defer(), WEIR_ERROR_DEVICE_LOST);
            drop(gate);
            // SAFETY: a live block, and nothing runs any more.
            assert_eq!(unsafe { weir_pool_free_synced(pool, at) }, WEIR_OK);
            weir_finalize();
            assert_eq!(CALLED.load(Ordering::SeqCst), 1);
        },
    );
}

/// A device that is lost has forgotten what was registered, and says so once.
#[test]
fn what_a_lost_device_has_registered_can_be_unregistered() {
    let name = "what_a_lost_device_has_registered_can_be_unregistered";
    alone(name, &[("WEIR_STANDIN_LEAKS", "0")], || {
        let device = std::mem::ManuallyDrop::new(Device::open(0));
        let memory = vec![0u8; BYTES];
        let at = memory.as_ptr().cast_mut().cast();
        // SAFETY: memory of that size, which stays.
        assert_eq!(unsafe { weir_host_register(at, BYTES) }, WEIR_OK);
        control!(lose_device(device.0));
        // SAFETY: as above.
        let said = [(); 2].map(|()| unsafe { weir_host_unregister(at) });
        assert_eq!(said, [WEIR_OK, WEIR_ERROR_INVALID_ARGUMENT]);
        weir_finalize();
    });
}

/// A copy that the call waits for, on a device that is lost meanwhile.
fn lost_during(test: &str, bytes: usize, to_host: bool) {
    alone(test, &[("WEIR_STANDIN_LEAKS", "0")], || {
        let device = std::mem::ManuallyDrop::new(Device::open(0)).0;
        let (pool, stream) = (pool(MemoryKind::Device), stream());
        let source = take(pool, stream);
        let mut pageable = vec![0u8; bytes];
        let target = match to_host {
            true => pageable.as_mut_ptr(),
            false => take(pool, stream),
        };
        // SAFETY: memory of that size, and nothing else is in flight.
        let copy =
            || unsafe { weir_copy_async(target.cast(), source.cast(), bytes, stream, WEIR_COPY_STAGED) };
        assert_eq!(copy(), WEIR_OK);
        let gate = Gate::on(stream);
        let loser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            control!(lose_device(device));
            drop(gate);
        });
        assert_eq!(copy(), WEIR_ERROR_DEVICE_LOST);
        loser.join().expect("a device that is lost");
        weir_finalize();
    });
}

/// A wait that fails twice says nothing of the copy.
#[test]
fn a_copy_that_cannot_be_waited_for_is_an_error() {
    alone("a_copy_that_cannot_be_waited_for_is_an_error", &[], || {
        let device = Device::open(0);
        let (pool, stream) = (pool(MemoryKind::Device), stream());
        let source = take(pool, stream);
        let other = take(pool, stream);
        let mut pageable = vec![0u8; BYTES];
        let at = pageable.as_mut_ptr();
        for (target, bytes) in [(at, 5000), (at, BYTES), (other, BYTES)] {
            let gate = Gate::on(stream);
            control!(reset_faults());
            for nth in 1..=2 {
                fail("cuEventSynchronize", nth, 999);
            }
            // SAFETY: memory of that size, until the stream is waited for below.
            let copied =
                unsafe { weir_copy_async(target.cast(), source.cast(), bytes, stream, WEIR_COPY_STAGED) };
            assert_eq!(copied, WEIR_ERROR_BACKEND);
            assert!(pageable.iter().all(|&byte| byte == 0));
            drop(gate);
            ok!(stream_synchronize(stream));
            control!(reset_faults());
        }
        // SAFETY: live blocks.
        unsafe {
            assert_eq!(weir_pool_free(pool, source.cast(), stream), WEIR_OK);
            assert_eq!(weir_pool_free(pool, other.cast(), stream), WEIR_OK);
        }
        ok!(stream_destroy(stream));
        assert_eq!(weir_finalize(), WEIR_OK);
        drop(device);
    });
}

#[test]
fn a_short_copy_tells_that_the_device_was_lost() {
    lost_during("a_short_copy_tells_that_the_device_was_lost", 5000, true);
}

#[test]
fn a_copy_in_pieces_tells_that_the_device_was_lost() {
    lost_during("a_copy_in_pieces_tells_that_the_device_was_lost", BYTES, true);
}

#[test]
fn a_copy_without_pieces_tells_that_the_device_was_lost() {
    lost_during(
        "a_copy_without_pieces_tells_that_the_device_was_lost",
        BYTES,
        false,
    );
}

/// Of blocks of its own pools weir knows what the driver would say of them.
#[test]
fn the_driver_is_asked_only_for_what_weir_does_not_know() {
    alone(
        "the_driver_is_asked_only_for_what_weir_does_not_know",
        &[],
        || {
            let device = Device::open(0);
            let (near, far, stream) = (pool(MemoryKind::Pinned), pool(MemoryKind::Device), stream());
            let (pinned, block) = (take(near, host()), take(far, stream));
            let mut pageable = vec![3u8; BYTES];
            let staged = |to: *mut u8, from: *const u8| {
                let before = calls("cuPointerGetAttributes");
                // SAFETY: memory of more than these bytes, until the stream is waited for below.
                let said = unsafe { weir_copy_async(to.cast(), from.cast(), 4096, stream, WEIR_COPY_STAGED) };
                assert_eq!(said, WEIR_OK);
                calls("cuPointerGetAttributes") - before
            };
            let device_sees = |at: *mut u8| {
                let mut byte = 0u8;
                ok!(copy_to_host((&raw mut byte).cast(), at.addr() as u64, 1));
                byte
            };
            assert_eq!(staged(block, pageable.as_ptr()), 1);
            ok!(stream_synchronize(stream));
            assert_eq!(device_sees(block), 3);
            // SAFETY: a block of the host's memory, which nobody uses yet.
            unsafe { pinned.write_bytes(5, BYTES) };
            assert_eq!(staged(block, pinned), 0);
            ok!(stream_synchronize(stream));
            assert_eq!(device_sees(block), 5);
            // not where a block begins
            assert_eq!(staged(block.wrapping_add(256), pinned.wrapping_add(256)), 1);
            assert_eq!(staged(pageable.as_mut_ptr(), block), 1);
            assert_eq!(pageable[..4097], [[5u8; 4096].as_slice(), &[3]].concat());
            ok!(stream_synchronize(stream));
            for (pool, at) in [(near, pinned), (far, block)] {
                // SAFETY: a live block.
                assert_eq!(unsafe { weir_pool_free(pool, at.cast(), stream) }, WEIR_OK);
            }
            ok!(stream_destroy(stream));
            assert_eq!(weir_finalize(), WEIR_OK);
            drop((pageable, device));
        },
    );
}

/// Letting go of memory waits for all work; other threads' registrations do not wait for that.
#[test]
fn who_waits_to_unregister_keeps_nobody_waiting() {
    alone("who_waits_to_unregister_keeps_nobody_waiting", &[], || {
        const PAGES: usize = 1 << 20;
        let device = Device::open(0);
        let (pool, stream) = (pool(MemoryKind::Device), stream());
        let block = take(pool, stream);
        let memory = [0, 1].map(|_| vec![0u8; PAGES]);
        let [first, second] = [0, 1].map(|nth: usize| memory[nth].as_ptr().expose_provenance());
        let at = std::ptr::with_exposed_provenance_mut::<c_void>;
        // SAFETY: memory that stays until the end.
        let register = move |place| unsafe { weir_host_register(at(place), PAGES) };
        // SAFETY: nothing uses the memory.
        let unregister = move |place| unsafe { weir_host_unregister(at(place)) };
        assert_eq!(register(first), WEIR_OK);
        let gate = Gate::on(stream);
        let waiting = std::thread::spawn(move || unregister(first));
        std::thread::sleep(Duration::from_millis(50));
        let (done, others) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let said = [register(second), register(first)];
            done.send(said).expect("a listener");
        });
        let said = others.recv_timeout(Duration::from_secs(20));
        let again = std::thread::spawn(move || unregister(first));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished() && !again.is_finished());
        drop(gate);
        assert_eq!(said, Ok([WEIR_OK, WEIR_ERROR_INVALID_ARGUMENT]));
        let both = [waiting, again].map(|thread| thread.join().expect("no panic"));
        assert_eq!(
            both,
            [WEIR_OK, WEIR_ERROR_INVALID_ARGUMENT],
            "it was registered once"
        );
        other.join().expect("no panic");
        // it is registered, or is not, when what another thread does with it has come to its end
        control!(reset_faults());
        let meanwhile = |other: Box<dyn FnOnce(usize) -> weir_status + Send>, call: &str| {
            delay(call, 1, 200_000);
            let other = std::thread::spawn(move || other(first));
            std::thread::sleep(Duration::from_millis(50));
            let said = unregister(first);
            (other.join().expect("no panic"), said)
        };
        assert_eq!(
            meanwhile(Box::new(register), "cuMemHostRegister"),
            (WEIR_OK, WEIR_OK)
        );
        assert_eq!(register(first), WEIR_OK);
        control!(reset_faults());
        for nth in 1..=2 {
            fail("cuMemHostUnregister", nth, 999);
        }
        assert_eq!(
            meanwhile(Box::new(unregister), "cuMemHostUnregister"),
            (WEIR_ERROR_BACKEND, WEIR_OK)
        );
        // one whose call fails is as it was
        control!(reset_faults());
        for nth in 1..=2 {
            fail("cuMemHostUnregister", nth, 999);
        }
        assert_eq!(unregister(second), WEIR_ERROR_BACKEND);
        assert_eq!(register(second), WEIR_ERROR_INVALID_ARGUMENT);
        fail("cuMemHostRegister", 1, 999);
        assert_eq!(register(first), WEIR_ERROR_BACKEND);
        control!(reset_faults());
        fail("cuMemHostRegister", 1, 712);
        assert_eq!(
            register(first),
            WEIR_ERROR_INVALID_ARGUMENT,
            "a part is locked already"
        );
        assert_eq!(unregister(second), WEIR_OK);
        assert_eq!(register(first), WEIR_OK);
        // SAFETY: a live block.
        assert_eq!(unsafe { weir_pool_free(pool, block.cast(), stream) }, WEIR_OK);
        ok!(stream_destroy(stream));
        assert_eq!(weir_finalize(), WEIR_OK);
        drop((memory, device));
    });
}

static STATUS: AtomicU64 = AtomicU64::new(u64::MAX);

/// A staged copy on a host stream.
struct Inner {
    to: Vec<u8>,
    from: Vec<u8>,
    on: Object,
}

unsafe extern "C" fn copy_within(inner: *mut c_void) {
    // SAFETY: what `refused_within` gave, which nobody else uses meanwhile.
    let inner = unsafe { &mut *inner.cast::<Inner>() };
    let (to, from) = (inner.to.as_mut_ptr().cast(), inner.from.as_ptr().cast());
    // SAFETY: memory of that size, until the stream is waited for.
    let said = unsafe { weir_copy_async(to, from, inner.from.len(), inner.on, WEIR_COPY_STAGED) };
    STATUS.store(said as u64, Ordering::SeqCst);
}

/// A function on a host stream asks for a staged copy there that it would have to wait for: nothing is queued.
fn refused_within(test: &str, variables: &[(&str, &str)], bytes: usize) {
    alone(test, variables, || {
        let on = order::stream_create().expect("a stream");
        let mut inner = Inner {
            to: vec![0; bytes],
            from: vec![1; bytes],
            on: std::ptr::without_provenance_mut(on.0),
        };
        let arg: *mut c_void = (&raw mut inner).cast();
        // SAFETY: a live stream, and what the function is for.
        let queued = unsafe { weir_host_stream_enqueue(inner.on, Some(copy_within), arg) };
        assert_eq!(queued, WEIR_OK);
        for _ in 0..2 {
            assert_eq!(order::stream_synchronize(on), Ok(())); // the function, and what it has queued
        }
        assert_eq!(STATUS.load(Ordering::SeqCst), WEIR_ERROR_BACKEND as u64);
        assert!(
            inner.to.iter().all(|&byte| byte == 0),
            "the copy was made all the same"
        );
        assert_eq!(weir_finalize(), WEIR_OK);
    });
}

#[test]
fn a_copy_that_waits_for_its_own_stream_is_not_queued() {
    let name = "a_copy_that_waits_for_its_own_stream_is_not_queued";
    refused_within(name, &[("WEIR_MAX_BYTES", "1")], 4096);
}

#[test]
fn a_copy_in_pieces_that_waits_for_its_own_stream_is_not_queued_in_part() {
    let name = "a_copy_in_pieces_that_waits_for_its_own_stream_is_not_queued_in_part";
    refused_within(name, &[], 20 << 20);
}

/// On a stream of a context that the program made nobody can be told when a copy is complete: none is queued.
#[test]
fn a_copy_that_nothing_could_be_told_of_is_not_queued() {
    alone("a_copy_that_nothing_could_be_told_of_is_not_queued", &[], || {
        let device = Device::open(0);
        let (mut to, from) = (vec![0u8; BYTES], vec![1u8; BYTES]);
        let mut own = std::ptr::null_mut();
        ok!(context_create(&raw mut own, 0, 0));
        for on in [stream(), std::ptr::null_mut()] {
            let (at, from) = (to.as_mut_ptr().cast::<c_void>(), from.as_ptr().cast());
            // SAFETY: memory of that size, until the stream is waited for.
            let said = unsafe {
                [
                    weir_copy_async_hold(at, from, BYTES, on, 0, Some(called), at),
                    weir_copy_async(at, from, BYTES, on, WEIR_COPY_STAGED),
                ]
            };
            ok!(stream_synchronize(on));
            assert_eq!(said, [WEIR_ERROR_INVALID_STREAM; 2]);
            assert!(to.iter().all(|&byte| byte == 0), "the copy was made all the same");
        }
        ok!(context_destroy(own));
        assert_eq!(weir_finalize(), WEIR_OK);
        drop(device);
    });
}

/// Where the driver was opened by a copy, and there never was a pool.
#[test]
fn a_child_forked_after_a_copy_calls_nothing() {
    alone("a_child_forked_after_a_copy_calls_nothing", &[], || {
        let device = Device::open(0);
        let on = stream();
        let (mut to, from) = (vec![0u8; BYTES], vec![1u8; BYTES]);
        // SAFETY: memory of that size, until the stream is waited for.
        let mut copy =
            || unsafe { weir_copy_async(to.as_mut_ptr().cast(), from.as_ptr().cast(), BYTES, on, 0) };
        assert_eq!(copy(), WEIR_OK);
        ok!(stream_synchronize(on));
        // SAFETY: the child calls what is to be shown to be harmless there, and ends without running exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // the stand-in ends the child at any call
            let said = copy();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(said != WEIR_ERROR_FORKED)) };
        }
        let mut status = -1;
        // SAFETY: the child made above, and a variable of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(to == from);
        ok!(stream_destroy(on));
        assert_eq!(weir_finalize(), WEIR_OK);
        drop(device);
    });
}
