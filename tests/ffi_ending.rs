//! Default pools, finalize and fork, in one test because they are the whole process's.

#![allow(unsafe_code)] // The C interface is called as C calls it.

use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use weir::ffi::blocks::*;
use weir::ffi::copies::weir_stream_defer;
use weir::ffi::frees::*;
use weir::ffi::host_streams::*;
use weir::ffi::options::*;
use weir::ffi::pool::*;
use weir::ffi::status::weir_status::*;
use weir::ffi::types::*;

fn host_pool(
    get: unsafe extern "C" fn(i32, *mut *mut weir_pool) -> weir::ffi::status::weir_status,
) -> *mut weir_pool {
    let mut pool = null_mut();
    // SAFETY: a variable for the result.
    assert_eq!(unsafe { get(WEIR_DEVICE_HOST, &mut pool) }, WEIR_OK);
    pool
}

fn own_pool() -> *mut weir_pool {
    let mut pool = null_mut();
    let mut options = std::mem::MaybeUninit::<weir_pool_options>::uninit();
    // SAFETY: room for the whole struct, which is then initialised, and a variable for the result.
    unsafe {
        assert_eq!(
            weir_pool_options_init(options.as_mut_ptr(), size_of::<weir_pool_options>()),
            WEIR_OK
        );
        (*options.as_mut_ptr()).memory = weir_memory::WEIR_MEMORY_HOST as i32;
        assert_eq!(weir_pool_create(options.as_ptr(), &mut pool), WEIR_OK);
    }
    pool
}

static CALLED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn called(_: *mut c_void) {
    CALLED.fetch_add(1, Ordering::SeqCst);
}

/// Runs on the stream that it is given.
unsafe extern "C" fn defer_late(stream: *mut c_void) {
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: a function that may be called with anything.
    let status = unsafe { weir_stream_defer(stream.cast(), Some(called), null_mut()) };
    assert_eq!(status, WEIR_OK);
}

#[test]
fn pools_of_the_process_begin_and_end() {
    // Threads that ask at once get the same pool.
    let all: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| host_pool(weir_default_pool).addr()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let default = without_provenance_mut(all[0]);
    assert!(all.iter().all(|handle| *handle == all[0]));
    assert_eq!(host_pool(weir_device_get_pool), default);

    // The current pool is what was set, until it ends.
    let own = own_pool();
    // SAFETY: handles are checked, and the rest are variables for results.
    unsafe {
        assert_eq!(weir_device_set_pool(WEIR_DEVICE_HOST, own), WEIR_OK);
        assert_eq!(weir_device_set_pool(3, own), WEIR_ERROR_INVALID_ARGUMENT);
        assert_eq!(
            (host_pool(weir_device_get_pool), host_pool(weir_default_pool)),
            (own, default)
        );
        assert_eq!(weir_device_set_pool(WEIR_DEVICE_HOST, null_mut()), WEIR_OK);
        assert_eq!(host_pool(weir_device_get_pool), default);
        assert_eq!(weir_device_set_pool(WEIR_DEVICE_HOST, own), WEIR_OK);
        assert_eq!(weir_pool_destroy(own), WEIR_OK);
        assert_eq!(host_pool(weir_device_get_pool), default);

        // Finalize ends all of them, from several threads at once; the next use starts anew.
        let own = own_pool();
        let mut at = null_mut();
        assert_eq!(weir_pool_alloc(own, 100, null_mut(), &mut at), WEIR_OK);
        let statuses: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| weir_finalize())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(
            statuses
                .iter()
                .filter(|status| **status == WEIR_ERROR_LIVE_BLOCKS)
                .count(),
            1
        );
        assert_eq!(statuses.iter().filter(|status| **status == WEIR_OK).count(), 3);
        assert_eq!(weir_finalize(), WEIR_OK);
        for pool in [own, default] {
            assert_eq!(
                weir_pool_alloc(pool, 1, null_mut(), &mut at),
                WEIR_ERROR_FINALIZED
            );
            assert_eq!(weir_pool_free(pool, at, null_mut()), WEIR_ERROR_FINALIZED);
            assert_eq!(weir_pool_destroy(pool), WEIR_ERROR_FINALIZED);
        }
        let fresh = host_pool(weir_default_pool);
        assert_ne!(fresh, default);
        assert_eq!(weir_pool_alloc(fresh, 1, null_mut(), &mut at), WEIR_OK);

        // In a forked child nothing is given back, and nothing is allocated.
        let child = libc::fork();
        if child == 0 {
            let mut other = null_mut();
            let right = weir_pool_free(fresh, at, null_mut()) == WEIR_OK
                && weir_pool_destroy(fresh) == WEIR_OK
                && weir_pool_release(fresh) == WEIR_OK
                && weir_finalize() == WEIR_OK
                && weir_pool_alloc(fresh, 1, null_mut(), &mut at) == WEIR_ERROR_FORKED
                && weir_pool_create(null(), &mut other) == WEIR_ERROR_FORKED
                && weir_default_pool(WEIR_DEVICE_HOST, &mut other) == WEIR_ERROR_FORKED;
            libc::_exit(i32::from(!right));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
        assert_eq!(
            weir_pool_free(fresh, at, null_mut()),
            WEIR_OK,
            "the parent's pool is as it was"
        );
        assert_eq!(weir_finalize(), WEIR_OK);

        // What a function on a host stream defers while it is waited for is called as well.
        let mut stream = null_mut();
        assert_eq!(weir_host_stream_create(&mut stream), WEIR_OK);
        assert_eq!(
            weir_host_stream_enqueue(stream, Some(defer_late), stream.cast()),
            WEIR_OK
        );
        assert_eq!(weir_finalize(), WEIR_OK);
        assert_eq!(CALLED.load(Ordering::SeqCst), 1);
    }
}
