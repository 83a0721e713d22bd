//! Pools that end while another thread is inside a call, on the stand-in driver.

use crate::common::standin::{Device, alone, delay, ok, stream};
use std::ffi::c_void;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir::ffi::blocks::weir_pool_alloc;
use weir::ffi::copies::{weir_copy_async, weir_copy_async_hold};
use weir::ffi::pool::{weir_finalize, weir_pool_create, weir_pool_destroy};
use weir::ffi::status::weir_status::{WEIR_ERROR_POOL_DESTROYED, WEIR_OK};
use weir::ffi::types::WEIR_COPY_STAGED;

const BYTES: usize = 300 << 10;
static CALLED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn called(_: *mut c_void) {
    CALLED.fetch_add(1, Ordering::SeqCst);
}

/// A copy that is being queued when weir_finalize begins is waited for, and its memory released.
#[test]
fn finalize_waits_for_a_copy_whose_function_has_a_place() {
    alone(
        "finalize_waits_for_a_copy_whose_function_has_a_place",
        &[],
        || {
            let device = Device::open(0);
            let on = stream();
            let (mut to, from) = (vec![0u8; BYTES], vec![1u8; BYTES]);
            let ends = (
                to.as_mut_ptr().expose_provenance(),
                from.as_ptr().expose_provenance(),
                on.expose_provenance(),
            );
            delay("cuMemcpyAsync", 1, 300_000);
            let copier = std::thread::spawn(move || {
                let [to, from, on] = [ends.0, ends.1, ends.2].map(std::ptr::with_exposed_provenance_mut);
                // SAFETY: memory of that size, which stays.
                unsafe { weir_copy_async_hold(to, from, BYTES, on.cast(), 0, Some(called), to) }
            });
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(weir_finalize(), WEIR_OK);
            let released = CALLED.load(Ordering::SeqCst);
            assert_eq!(copier.join().expect("no panic"), WEIR_OK);
            assert_eq!(released, 1);
            assert!(to == from);
            ok!(stream_destroy(on));
            drop(device);
        },
    );
}

/// A staged copy goes through memory of a pool of weir's own, which does not end before the copy has.
#[test]
fn finalize_waits_for_a_copy_that_goes_through_its_memory() {
    alone(
        "finalize_waits_for_a_copy_that_goes_through_its_memory",
        &[],
        || {
            let device = Device::open(0);
            let on = stream();
            for bytes in [1000, 8 << 20] {
                let (mut to, from, mut back) = (0, vec![1u8; bytes], vec![0u8; bytes]);
                ok!(memory_allocate(&raw mut to, bytes));
                let ends = (
                    to as usize,
                    from.as_ptr().expose_provenance(),
                    on.expose_provenance(),
                );
                let copy = move || {
                    let [to, from, on] = [ends.0, ends.1, ends.2].map(std::ptr::with_exposed_provenance_mut);
                    // SAFETY: memory of that size, which stays.
                    unsafe { weir_copy_async(to, from, bytes, on.cast(), WEIR_COPY_STAGED) }
                };
                assert_eq!(copy(), WEIR_OK);
                delay("cuMemcpyAsync", 1, 300_000);
                let copier = std::thread::spawn(copy);
                std::thread::sleep(Duration::from_millis(100));
                assert_eq!(weir_finalize(), WEIR_OK);
                assert_eq!(copier.join().expect("no panic"), WEIR_OK);
                ok!(stream_synchronize(on));
                ok!(copy_to_host(back.as_mut_ptr().cast(), to, bytes));
                assert!(back == from);
                ok!(memory_free(to));
            }
            assert_eq!(weir_finalize(), WEIR_OK);
            ok!(stream_destroy(on));
            drop(device);
        },
    );
}

/// A request that has asked the driver who its stream is finds no pool any more, though it asks the driver next.
#[test]
fn a_call_under_way_says_that_its_pool_was_destroyed() {
    alone("a_call_under_way_says_that_its_pool_was_destroyed", &[], || {
        let device = Device::open(0);
        let on = stream();
        let mut pool = null_mut();
        // SAFETY: the defaults, and a variable for the result.
        assert_eq!(unsafe { weir_pool_create(null(), &raw mut pool) }, WEIR_OK);
        delay("cuStreamGetId", 1, 300_000);
        let names = (pool.expose_provenance(), on.expose_provenance());
        let asker = std::thread::spawn(move || {
            let mut block = null_mut();
            let (pool, on) = (
                with_exposed_provenance_mut(names.0),
                with_exposed_provenance_mut(names.1),
            );
            // SAFETY: handles are checked, the stream stays, and the rest is a variable for the result.
            unsafe { weir_pool_alloc(pool, 4096, on, &raw mut block) }
        });
        std::thread::sleep(Duration::from_millis(100));
        // SAFETY: handles are checked.
        assert_eq!(unsafe { weir_pool_destroy(pool) }, WEIR_OK);
        assert_eq!(asker.join().expect("no panic"), WEIR_ERROR_POOL_DESTROYED);
        ok!(stream_destroy(on));
        drop(device);
    });
}
