//! The exported functions, called as C calls them, on pools of host memory.

#![allow(unsafe_code)] // The C interface is called as C calls it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use weir::base::units::StreamHandle;
use weir::ffi::access::weir_pool_set_access;
use weir::ffi::batch::*;
use weir::ffi::blocks::*;
use weir::ffi::frees::*;
use weir::ffi::host_streams::*;
use weir::ffi::options::*;
use weir::ffi::order::*;
use weir::ffi::pool::*;
use weir::ffi::stats::*;
use weir::ffi::status::weir_status::{self, *};
use weir::ffi::text::*;
use weir::ffi::types::*;

const MIB: usize = 1 << 20;

/// Whoever makes host streams has it: the handle of one that was destroyed may come to be another test's.
static STREAMS: Mutex<()> = Mutex::new(());

fn message() -> String {
    // SAFETY: weir's own text.
    unsafe { CStr::from_ptr(weir_last_error()) }
        .to_str()
        .unwrap()
        .to_owned()
}

fn options() -> weir_pool_options {
    let mut options = std::mem::MaybeUninit::uninit();
    // SAFETY: room for the whole struct, which is then initialised.
    unsafe {
        assert_eq!(
            weir_pool_options_init(options.as_mut_ptr(), size_of::<weir_pool_options>()),
            WEIR_OK
        );
        let mut options = options.assume_init();
        options.memory = weir_memory::WEIR_MEMORY_HOST as i32;
        options
    }
}

fn create(options: &weir_pool_options) -> *mut weir_pool {
    let mut pool = null_mut();
    // SAFETY: initialised options and a variable.
    let status = unsafe { weir_pool_create(options, &mut pool) };
    assert_eq!(status, WEIR_OK, "{}", message());
    pool
}

fn alloc(pool: *mut weir_pool, bytes: usize, stream: weir_stream) -> *mut u8 {
    let mut at = null_mut();
    // SAFETY: a variable for the result.
    let status = unsafe { weir_pool_alloc(pool, bytes, stream, &mut at) };
    assert_eq!(status, WEIR_OK, "{}", message());
    at.cast()
}

fn free(pool: *mut weir_pool, at: *mut u8, stream: weir_stream) -> weir_status {
    // SAFETY: pools and blocks are checked, whatever they are.
    unsafe { weir_pool_free(pool, at.cast(), stream) }
}

fn destroy(pool: *mut weir_pool) -> weir_status {
    // SAFETY: handles are checked, whatever they are.
    unsafe { weir_pool_destroy(pool) }
}

fn stats(pool: *mut weir_pool) -> weir_pool_stats {
    // SAFETY: all zeros are a valid struct of numbers, and its size is set.
    unsafe {
        let mut stats: weir_pool_stats = std::mem::zeroed();
        stats.struct_size = size_of::<weir_pool_stats>();
        assert_eq!(weir_pool_get_stats(pool, &mut stats), WEIR_OK, "{}", message());
        stats
    }
}

#[test]
fn blocks_are_memory_and_come_back() {
    let pool = create(&options());
    let first = alloc(pool, 3 * MIB, null_mut());
    // SAFETY: a live block of this size.
    unsafe { first.write_bytes(7, 3 * MIB) };
    assert_eq!(free(pool, first, null_mut()), WEIR_OK);
    assert_eq!(
        alloc(pool, 3 * MIB, null_mut()),
        first,
        "freed on a stream, it is for that stream at once"
    );
    let (zero, other) = (alloc(pool, 0, null_mut()), alloc(pool, 0, null_mut()));
    assert!(!zero.is_null() && zero != other);
    for at in [first, zero, other, null_mut()] {
        assert_eq!(free(pool, at, null_mut()), WEIR_OK);
    }
    let now = stats(pool);
    assert_eq!((now.used_bytes, now.allocations, now.frees), (0, 4, 4));
    assert_eq!(
        now.reserved_bytes,
        now.used_bytes + now.cached_bytes + now.free_bytes + now.pending_bytes + now.idle_bytes
    );
    let mut released = 0;
    // SAFETY: a variable for the result.
    assert_eq!(unsafe { weir_pool_squeeze(pool, &mut released) }, WEIR_OK);
    assert_eq!(
        (released as u64, stats(pool).reserved_bytes),
        (now.reserved_bytes, 0)
    );
    assert_eq!(destroy(pool), WEIR_OK);
}

#[test]
fn misuse_of_pointers_is_told_apart() {
    let (pool, other) = (
        create(&weir_pool_options {
            name: c"first".as_ptr(),
            ..options()
        }),
        create(&options()),
    );
    let at = alloc(pool, MIB, null_mut());
    assert_eq!(
        free(pool, at.wrapping_add(8), null_mut()),
        WEIR_ERROR_INTERIOR_POINTER
    );
    assert_eq!(free(other, at, null_mut()), WEIR_ERROR_WRONG_POOL);
    assert!(
        message().starts_with("weir_pool_free: ") && message().contains("(first)"),
        "{}",
        message()
    );
    assert_eq!(
        free(pool, without_provenance_mut(64), null_mut()),
        WEIR_ERROR_UNKNOWN_POINTER
    );
    // SAFETY: blocks are checked, whatever they are.
    unsafe {
        assert_eq!(
            weir_pool_record_stream(other, at.cast(), null_mut()),
            WEIR_ERROR_WRONG_POOL
        );
        assert_eq!(weir_pool_free_synced(other, at.cast()), WEIR_ERROR_WRONG_POOL);
        let batch: [*mut c_void; 3] = [null_mut(), at.cast(), at.cast()];
        assert_eq!(
            weir_pool_free_batch(pool, batch.as_ptr(), 3, null_mut()),
            WEIR_ERROR_DOUBLE_FREE
        );
        assert_eq!(weir_pool_free_batch(pool, batch.as_ptr(), 2, null_mut()), WEIR_OK);
    }
    assert_eq!(free(pool, at, null_mut()), WEIR_ERROR_DOUBLE_FREE);
    assert_eq!((destroy(pool), destroy(other)), (WEIR_OK, WEIR_OK));
}

#[test]
fn handles_that_are_no_pool_are_errors() {
    let pool = create(&options());
    assert_eq!(destroy(pool), WEIR_OK);
    assert_eq!(destroy(null_mut()), WEIR_OK);
    let garbage = without_provenance_mut(0xdead_beef);
    for (handle, status) in [
        (null_mut(), WEIR_ERROR_NULL_POINTER),
        (pool, WEIR_ERROR_POOL_DESTROYED),
        (garbage, WEIR_ERROR_INVALID_POOL),
    ] {
        let (mut at, mut number, mut counters) = (null_mut(), 0u64, stats_of_size(192));
        // SAFETY: variables for the results; the handle is checked, whatever it is.
        unsafe {
            assert_eq!(weir_pool_alloc(handle, 1, null_mut(), &mut at), status);
            assert_eq!(weir_pool_alloc_aligned(handle, 1, 0, null_mut(), &mut at), status);
            assert_eq!(weir_pool_free(handle, null_mut(), null_mut()), status);
            assert_eq!(weir_pool_free_synced(handle, null_mut()), status);
            assert_eq!(weir_pool_free_batch(handle, null(), 0, null_mut()), status);
            assert_eq!(
                weir_pool_alloc_batch(handle, null(), 0, null_mut(), null_mut()),
                status
            );
            assert_eq!(weir_pool_warmup(handle, null(), null(), 0, null_mut()), status);
            assert_eq!(weir_pool_trim(handle, 0), status);
            assert_eq!(weir_pool_squeeze(handle, null_mut()), status);
            assert_eq!(weir_pool_retain(handle), status);
            assert_eq!(weir_pool_reset_peaks(handle), status);
            assert_eq!(weir_pool_set_release_threshold(handle, 0), status);
            assert_eq!(weir_pool_get_attribute(handle, 4, &mut number), status);
            assert_eq!(weir_pool_set_attribute(handle, 4, 0), status);
            assert_eq!(weir_pool_get_stats(handle, &mut counters), status);
            assert_eq!(weir_pool_set_access(handle, 0, 3), status);
            if !handle.is_null() {
                assert_eq!(weir_pool_release(handle), status);
                assert_eq!(weir_device_set_pool(WEIR_DEVICE_HOST, handle), status);
            }
        }
        assert!(at.is_null() && number == 0, "outputs are written only on success");
    }
}

fn stats_of_size(struct_size: usize) -> weir_pool_stats {
    // SAFETY: all zeros are a valid struct of numbers.
    weir_pool_stats {
        struct_size,
        ..unsafe { std::mem::zeroed() }
    }
}

#[test]
fn arguments_are_checked() {
    let pool = create(&options());
    let mut at = null_mut();
    // SAFETY: what is wrong is what is tested; everything else is valid.
    unsafe {
        assert_eq!(
            weir_pool_alloc(pool, 1, null_mut(), null_mut()),
            WEIR_ERROR_NULL_POINTER
        );
        for bytes in [usize::MAX, usize::MAX - 255, isize::MAX as usize] {
            assert_eq!(
                weir_pool_alloc(pool, bytes, null_mut(), &mut at),
                WEIR_ERROR_SIZE_TOO_LARGE,
                "{bytes:#x}"
            );
        }
        for alignment in [3, 768, usize::MAX, 1 << 63] {
            let status = weir_pool_alloc_aligned(pool, 1, alignment, null_mut(), &mut at);
            assert_eq!(status, WEIR_ERROR_INVALID_ALIGNMENT, "{alignment:#x}");
        }
        let sizes = [1usize, 2];
        assert_eq!(
            weir_pool_alloc_batch(pool, sizes.as_ptr(), 2, null_mut(), null_mut()),
            WEIR_ERROR_NULL_POINTER
        );
        assert_eq!(
            weir_pool_alloc_batch(pool, null(), 2, null_mut(), &mut at),
            WEIR_ERROR_NULL_POINTER
        );
        assert_eq!(
            weir_pool_alloc_batch(pool, sizes.as_ptr(), usize::MAX, null_mut(), &mut at),
            WEIR_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            weir_pool_record_stream(pool, null_mut(), null_mut()),
            WEIR_ERROR_NULL_POINTER
        );
        assert_eq!(weir_pool_set_attribute(pool, 9, 0), WEIR_ERROR_INVALID_ARGUMENT);
        assert_eq!(weir_pool_set_attribute(pool, 5, 0), WEIR_ERROR_INVALID_ARGUMENT);
        assert_eq!(weir_pool_set_access(pool, 0, 2), WEIR_ERROR_INVALID_ARGUMENT);
        assert_eq!(weir_pool_set_access(pool, 0, 3), WEIR_ERROR_NOT_SUPPORTED);
        for size in [0, 191, 193] {
            assert_eq!(
                weir_pool_get_stats(pool, &mut stats_of_size(size)),
                WEIR_ERROR_STRUCT_SIZE
            );
        }
        assert_eq!(weir_pool_create(&options(), null_mut()), WEIR_ERROR_NULL_POINTER);
        let mut none = null_mut();
        for (change, status) in [
            (
                weir_pool_options {
                    struct_size: 87,
                    ..options()
                },
                WEIR_ERROR_STRUCT_SIZE,
            ),
            (
                weir_pool_options {
                    memory: 9,
                    ..options()
                },
                WEIR_ERROR_INVALID_ARGUMENT,
            ),
            (
                weir_pool_options {
                    memory: 0,
                    ..options()
                },
                WEIR_ERROR_DRIVER_UNAVAILABLE,
            ),
            (
                weir_pool_options {
                    ipc_handle_types: 8,
                    ..options()
                },
                WEIR_ERROR_NOT_SUPPORTED,
            ),
            (
                weir_pool_options {
                    slack: f64::NAN,
                    ..options()
                },
                WEIR_ERROR_INVALID_ARGUMENT,
            ),
        ] {
            assert_eq!(weir_pool_create(&change, &mut none), status, "{}", message());
        }
        assert!(none.is_null() && at.is_null());
        assert_eq!(weir_pool_options_init(null_mut(), 88), WEIR_ERROR_NULL_POINTER);
        assert_eq!(weir_pool_options_init(&mut options(), 8), WEIR_ERROR_STRUCT_SIZE);
        for device in [-2, 64, c_int::MAX, c_int::MIN] {
            assert_eq!(weir_default_pool(device, &mut none), WEIR_ERROR_INVALID_ARGUMENT);
        }
        assert_eq!(weir_default_pool(0, &mut none), WEIR_ERROR_DRIVER_UNAVAILABLE);
    }
    assert_eq!(destroy(pool), WEIR_OK);
}

#[test]
fn references_are_counted_and_live_blocks_reported() {
    let pool = create(&options());
    let at = alloc(pool, 5 * MIB, null_mut());
    // SAFETY: handles are checked.
    unsafe {
        assert_eq!(weir_pool_retain(pool), WEIR_OK);
        assert_eq!(weir_pool_release(pool), WEIR_OK);
        assert_eq!(stats(pool).allocations, 1);
        assert_eq!(weir_pool_release(pool), WEIR_ERROR_LIVE_BLOCKS);
        assert!(
            message().contains("1 block ") && message().contains(&format!("{at:p}")),
            "{}",
            message()
        );
        assert_eq!(weir_pool_release(pool), WEIR_ERROR_POOL_DESTROYED);
    }
    assert_eq!(free(pool, at, null_mut()), WEIR_ERROR_POOL_DESTROYED);
}

#[test]
fn the_callback_may_free_and_trim_and_is_asked_until_it_gives_up() {
    struct Spare {
        block: *mut u8,
        asked: AtomicUsize,
    }
    unsafe extern "C" fn give(user: *mut c_void, pool: *mut weir_pool, bytes: usize) -> c_int {
        // SAFETY: the test passes this struct, and nobody else uses it meanwhile.
        let spare = unsafe { &mut *user.cast::<Spare>() };
        assert_eq!(bytes, 6 * MIB);
        spare.asked.fetch_add(1, Ordering::Relaxed);
        let block = std::mem::replace(&mut spare.block, null_mut());
        assert_eq!(free(pool, block, null_mut()), WEIR_OK);
        // SAFETY: handles are checked.
        let trimmed = unsafe { weir_pool_trim(pool, 0) };
        assert_eq!(trimmed, WEIR_OK);
        c_int::from(!block.is_null())
    }
    let mut spare = Spare {
        block: null_mut(),
        asked: AtomicUsize::new(0),
    };
    let user = (&raw mut spare).cast();
    let pool = create(&weir_pool_options {
        max_bytes: 8 << 20,
        on_oom: Some(give),
        on_oom_user: user,
        ..options()
    });
    spare.block = alloc(pool, 6 * MIB, null_mut());
    let second = alloc(pool, 6 * MIB, null_mut());
    assert_eq!(spare.asked.load(Ordering::Relaxed), 1);
    let mut third = null_mut();
    // SAFETY: a variable for the result.
    let status = unsafe { weir_pool_alloc(pool, 6 * MIB, null_mut(), &mut third) };
    assert_eq!(
        (status, spare.asked.load(Ordering::Relaxed)),
        (WEIR_ERROR_OUT_OF_MEMORY, 2)
    );
    assert!(message().contains("limit 8.00 MiB"), "{}", message());
    assert_eq!(
        (free(pool, second, null_mut()), destroy(pool)),
        (WEIR_OK, WEIR_OK)
    );
}

#[test]
fn attributes_batches_and_warmup_reach_the_pool() {
    let pool = create(&options());
    // SAFETY: variables and arrays of the sizes named.
    unsafe {
        let mut value = 9;
        assert_eq!(weir_pool_set_release_threshold(pool, 12345), WEIR_OK);
        assert_eq!(weir_pool_get_attribute(pool, 4, &mut value), WEIR_OK);
        assert_eq!(value, 12345);
        assert_eq!(weir_pool_set_attribute(pool, 4, u64::MAX), WEIR_OK);
        let (sizes, counts) = ([MIB, 300], [3usize, 10]);
        assert_eq!(
            weir_pool_warmup(pool, sizes.as_ptr(), counts.as_ptr(), 2, null_mut()),
            WEIR_OK
        );
        let warm = stats(pool).reserved_bytes;
        let mut blocks = [null_mut(); 3];
        assert_eq!(
            weir_pool_alloc_batch(pool, [MIB, 300, MIB].as_ptr(), 3, null_mut(), blocks.as_mut_ptr()),
            WEIR_OK
        );
        assert_eq!(stats(pool).reserved_bytes, warm);
        assert_eq!(
            weir_pool_free_batch(pool, blocks.as_ptr(), 3, null_mut()),
            WEIR_OK
        );
        // no array is so long, and a list of its blocks cannot be kept
        let status = weir_pool_alloc_batch(pool, sizes.as_ptr(), 1 << 48, null_mut(), blocks.as_mut_ptr());
        assert_eq!(status, WEIR_ERROR_BACKEND);
        assert!(
            message().contains("no room to list 281474976710656 blocks"),
            "{}",
            message()
        );
        let before = stats(pool).used_bytes_peak;
        assert!(before > 0);
        assert_eq!(weir_pool_reset_peaks(pool), WEIR_OK);
        assert_eq!(stats(pool).used_bytes_peak, 0);
    }
    assert_eq!(destroy(pool), WEIR_OK);
}

unsafe extern "C" fn wait_for_flag(flag: *mut c_void) {
    // SAFETY: the test passes a flag that outlives the stream.
    let flag = unsafe { &*flag.cast::<AtomicUsize>() };
    while flag.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
}

/// What it was told when it asked a pool for what waits for all host streams, on one of them.
struct Asked {
    pool: *mut weir_pool,
    said: [weir_status; 2],
}

unsafe extern "C" fn ask_for_the_end(asked: *mut c_void) {
    // SAFETY: the test's, which waits for the stream.
    let asked = unsafe { &mut *asked.cast::<Asked>() };
    // SAFETY: a live pool.
    asked.said = unsafe {
        [
            weir_pool_squeeze(asked.pool, null_mut()),
            weir_pool_destroy(asked.pool),
        ]
    };
}

#[test]
fn a_pool_does_not_end_on_a_host_stream_that_it_would_wait_for() {
    let _alone = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut stream, pool) = (null_mut(), create(&options()));
    let mut asked = Asked {
        pool,
        said: [WEIR_OK; 2],
    };
    // SAFETY: a variable for the result, and what the function is given stays until it has run.
    unsafe {
        assert_eq!(weir_host_stream_create(&mut stream), WEIR_OK);
        let at = (&raw mut asked).cast();
        assert_eq!(
            weir_host_stream_enqueue(stream, Some(ask_for_the_end), at),
            WEIR_OK
        );
        assert_eq!(weir_host_stream_synchronize(stream), WEIR_OK);
        assert_eq!(weir_host_stream_destroy(stream), WEIR_OK);
    }
    assert_eq!(asked.said, [WEIR_ERROR_BACKEND; 2]);
    let at = alloc(pool, 100, null_mut());
    assert_eq!((free(pool, at, null_mut()), destroy(pool)), (WEIR_OK, WEIR_OK));
}

#[test]
fn streams_events_and_hooks_order_reuse() {
    let _alone = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let off = weir_pool_options {
        reuse_allow_internal_dependencies: 0,
        reuse_allow_opportunistic: 0,
        ..options()
    };
    let pool = create(&off);
    let flag = AtomicUsize::new(0);
    let (mut first, mut second, mut event) = (null_mut(), null_mut(), null_mut());
    // SAFETY: variables for the results; the flag outlives the work queued.
    unsafe {
        assert_eq!(weir_host_stream_create(&mut first), WEIR_OK);
        assert_eq!(weir_host_stream_create(&mut second), WEIR_OK);
        assert_eq!(weir_host_event_create(&mut event), WEIR_OK);
        assert_eq!(weir_host_event_query(event), WEIR_OK);
        assert_eq!(
            weir_host_stream_enqueue(first, Some(wait_for_flag), (&raw const flag).cast_mut().cast()),
            WEIR_OK
        );
        let at = alloc(pool, MIB, first);
        assert_eq!(free(pool, at, first), WEIR_OK);
        let elsewhere = alloc(pool, MIB, second);
        assert_ne!(elsewhere, at, "work on the first stream may still use it");
        assert_eq!(free(pool, elsewhere, second), WEIR_OK);
        assert_eq!(weir_event_record(event, first), WEIR_OK);
        assert_eq!(weir_host_event_query(event), WEIR_ERROR_NOT_READY);
        assert_eq!(weir_stream_wait_event(second, event), WEIR_OK);
        // More than what the second stream has by itself.
        let all = [(); 24].map(|()| alloc(pool, MIB, second));
        assert!(all.contains(&at), "the second stream now waits for the first");
        for block in all {
            assert_eq!(free(pool, block, second), WEIR_OK);
        }
        flag.store(1, Ordering::Release);
        assert_eq!(weir_event_synchronize(event), WEIR_OK);
        assert_eq!(weir_host_event_query(event), WEIR_OK);
        assert_eq!(weir_stream_synchronize(first), WEIR_OK);
        assert_eq!(weir_host_stream_synchronize(second), WEIR_OK);
        assert_eq!(weir_stream_synchronize(without_provenance_mut(0x1234)), WEIR_OK);
        assert_eq!(weir_device_synchronize(), WEIR_OK);
        assert_eq!(weir_host_event_destroy(event), WEIR_OK);
        assert_eq!(weir_host_event_destroy(event), WEIR_ERROR_INVALID_EVENT);
        assert_eq!(weir_event_record(event, first), WEIR_ERROR_INVALID_EVENT);
        assert_eq!(weir_stream_wait_event(second, event), WEIR_ERROR_INVALID_EVENT);
        assert_eq!(weir_event_synchronize(event), WEIR_ERROR_INVALID_EVENT);
        assert_eq!(weir_host_event_query(event), WEIR_ERROR_INVALID_EVENT);
        assert_eq!(weir_host_stream_destroy(first), WEIR_OK);
        assert_eq!(weir_host_stream_destroy(first), WEIR_ERROR_INVALID_STREAM);
        assert_eq!(weir_host_stream_synchronize(first), WEIR_ERROR_INVALID_STREAM);
        assert_eq!(
            weir_host_stream_enqueue(first, Some(wait_for_flag), null_mut()),
            WEIR_ERROR_INVALID_STREAM
        );
        assert_eq!(
            weir_host_stream_enqueue(second, None, null_mut()),
            WEIR_ERROR_NULL_POINTER
        );
        assert_eq!(weir_host_stream_destroy(second), WEIR_OK);
    }
    assert_eq!(destroy(pool), WEIR_OK);
}

#[test]
fn threads_share_pools_that_come_and_go() {
    let shared = create(&options()).addr();
    std::thread::scope(|scope| {
        for thread in 1..5usize {
            scope.spawn(move || {
                let shared = without_provenance_mut(shared);
                for round in 0..50 {
                    let own = create(&options());
                    let (a, b) = (
                        alloc(shared, thread * 1000 + round, null_mut()),
                        alloc(own, 4096, null_mut()),
                    );
                    assert_eq!(
                        (free(shared, b, null_mut()), free(own, b, null_mut())),
                        (WEIR_ERROR_WRONG_POOL, WEIR_OK)
                    );
                    assert_eq!((destroy(own), free(shared, a, null_mut())), (WEIR_OK, WEIR_OK));
                    assert_eq!(free(own, b, null_mut()), WEIR_ERROR_POOL_DESTROYED);
                }
            });
        }
    });
    assert_eq!(destroy(without_provenance_mut(shared)), WEIR_OK);
}

/// What serves calls at once is a cache that the thread has: none once its stream has come to mean something else, or its pool has ended.
#[test]
fn the_nearest_cache_is_one_that_the_thread_has() {
    let _alone = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut options = options();
    options.declared_streams = 1;
    let pool = create(&options);
    let mut stream = null_mut();
    // SAFETY: a variable for the stream.
    assert_eq!(unsafe { weir_host_stream_create(&mut stream) }, WEIR_OK);
    let near = || weir::lifecycle::threads::nearest(pool.addr(), StreamHandle(stream.addr())).is_some();
    let call = |times: usize| {
        for _ in 0..times {
            assert_eq!(free(pool, alloc(pool, 4096, stream), stream), WEIR_OK);
        }
    };
    assert!(!near());
    call(40);
    assert!(near());
    // SAFETY: it takes any stream.
    assert_eq!(unsafe { weir_stream_changed(stream) }, WEIR_OK);
    call(1);
    assert!(!near(), "it has ended");
    call(40);
    assert!(near());
    // SAFETY: nobody calls it any more.
    assert_eq!(unsafe { weir_pool_destroy(pool) }, WEIR_OK);
    assert!(!near());
    // SAFETY: nor the stream.
    assert_eq!(unsafe { weir_host_stream_destroy(stream) }, WEIR_OK);
}
