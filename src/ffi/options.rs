//! The options struct: defaults, environment, checks.

use super::args;
use super::guard::{InChild, guard};
use super::status::weir_status;
use super::types::{
    WEIR_NUMA_NEAREST, device_memory, memory, weir_device_memory, weir_oom_callback, weir_pool,
};
use crate::base::error::Error;
use crate::config::{Config, DeviceMemory, MemoryKind, OomCallback, Reuse};
use crate::lifecycle::environment;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Options of a pool. Fill it with weir_pool_options_init, then change what you need. It may grow at its end in
/// later versions.
#[repr(C)]
pub struct weir_pool_options {
    /// sizeof(weir_pool_options), as passed to weir_pool_options_init.
    pub struct_size: usize,
    /// A weir_memory. Default: WEIR_MEMORY_DEVICE.
    pub memory: i32,
    /// The GPU's ordinal, also of the one that pinned memory is for; ignored for host memory. Default: 0.
    pub device: i32,
    /// Bytes of memory that the pool never exceeds; 0: no limit. Default: 0.
    pub max_bytes: u64,
    /// Bytes: free memory above this is given back at synchronises that the pool sees, and at frees; with
    /// WEIR_DEVICE_MEMORY_PLAIN such a call may wait for running kernels. Default: UINT64_MAX, which is never reached.
    pub release_threshold: u64,
    /// Bytes of memory taken when the pool is created. Default: 0.
    pub initial_bytes: u64,
    /// 0 or 1: reuse across streams that an event, told by weir_event_record and weir_stream_wait_event, has
    /// ordered. Default: 1.
    pub reuse_follow_event_dependencies: i32,
    /// 0 or 1: reuse of blocks whose stream is seen to have completed its work. (Of one that was declared to end, see
    /// `declared_streams`, in any case: nobody else could have them.) Default: 1.
    pub reuse_allow_opportunistic: i32,
    /// 0 or 1: the pool may make the asking stream wait for the freeing one. Default: 1.
    pub reuse_allow_internal_dependencies: i32,
    /// How other processes will get at the memory: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), which weir_pool_export
    /// needs, and for device memory CU_MEM_HANDLE_TYPE_FABRIC (8), or 0 if they will not. Host memory that is shared has a
    /// file descriptor for each page. Must be 0 for pinned memory. Default: 0.
    pub ipc_handle_types: u32,
    /// A fraction from 0 to 16: the pool grows rather than moves free pages while it holds at most (1 + slack)
    /// times the peak in use. Beyond that, where pages are not moved (WEIR_DEVICE_MEMORY_PLAIN, one_handle_blocks), wholly free
    /// ones that are too short for a request are given back before a longer one is made for it; of plain memory that may wait for
    /// running kernels. Default: 0.025.
    pub slack: f64,
    /// Asked before a request fails; may be NULL. Default: NULL.
    pub on_oom: weir_oom_callback,
    /// Handed to on_oom.
    pub on_oom_user: *mut c_void,
    /// Shown in messages and reports; copied; NULL: "pool". Default: NULL.
    pub name: *const c_char,
    /// A weir_device_memory, for device and pinned memory. Default: WEIR_DEVICE_MEMORY_MAPPED.
    pub device_memory: i32,
    /// 0 or 1: network cards can reach device memory (GPUDirect RDMA). Default: 0.
    pub gpu_direct_rdma: i32,
    /// 0 or 1: every block lies in one handle of the driver (in one page, on the host), for those who register blocks
    /// by it, such as NCCL. Pages are then never moved, and the pool holds more memory than it would. Default: 0.
    pub one_handle_blocks: i32,
    /// Must be 0.
    pub reserved: i32,
    /// 0 or 1: each thread keeps blocks that it freed for its next requests on the same stream; such calls take no
    /// lock. What threads keep serves any request of the pool before the pool grows beyond 128 MiB and twice what was in use at once, or at
    /// all if it has a limit. Default: 1.
    pub thread_caches: i32,
    /// 0 or 1: the program promises to call weir_stream_changed before it destroys or captures a stream that it named to
    /// this pool, and names the built-in streams with the context of the pool's device current. The driver is then not
    /// asked at each call, and an event is recorded when somebody needs one and not at each free, which is most of what a
    /// call costs. Default: 0.
    pub declared_streams: i32,
    /// Bytes: while the pool grows, a thread of its own keeps so much free memory mapped ahead of use, so that requests
    /// find it and need not wait for the driver; what the pool holds is greater by that much at most. It never goes beyond
    /// max_bytes, release_threshold or what the device has, and makes no request fail or wait for more than the mapping of
    /// a page. The thread starts when the pool first grows, sleeps when it does not grow, and ends with the pool. 0: none;
    /// otherwise at least a page (2 MiB) and at most max_bytes. Default: 0.
    pub growth_ahead: u64,
    /// The host's NUMA node that pinned memory comes from, or WEIR_NUMA_NEAREST: the one nearest to the GPU, or, where the
    /// driver does not say which (before CUDA 12.2), the calling thread's. Default: WEIR_NUMA_NEAREST.
    pub numa_node: i32,
    /// Must be 0.
    pub reserved_numa: i32,
}

/// The size of the struct when it was first published; it has only grown since.
const FIRST_SIZE: usize = 88;
const _: () = assert!(FIRST_SIZE <= size_of::<weir_pool_options>());

fn check_size(given: usize) -> Result<(), Error> {
    let most = size_of::<weir_pool_options>();
    if (FIRST_SIZE..=most).contains(&given) {
        return Ok(());
    }
    Err(Error::StructSize {
        what: "weir_pool_options",
        given,
        least: FIRST_SIZE,
        most,
    })
}

fn from_config(config: &Config) -> weir_pool_options {
    let memory = match config.memory {
        MemoryKind::Device => super::types::weir_memory::WEIR_MEMORY_DEVICE,
        MemoryKind::Pinned => super::types::weir_memory::WEIR_MEMORY_PINNED,
        MemoryKind::Host => super::types::weir_memory::WEIR_MEMORY_HOST,
    };
    weir_pool_options {
        struct_size: size_of::<weir_pool_options>(),
        memory: memory as i32,
        device: config.device,
        max_bytes: config.max_bytes,
        release_threshold: config.release_threshold,
        initial_bytes: config.initial_bytes,
        reuse_follow_event_dependencies: config.reuse.event_dependencies.into(),
        reuse_allow_opportunistic: config.reuse.opportunistic.into(),
        reuse_allow_internal_dependencies: config.reuse.internal_dependencies.into(),
        ipc_handle_types: config.ipc_handle_types,
        slack: config.slack,
        on_oom: None,
        on_oom_user: std::ptr::null_mut(),
        name: std::ptr::null(),
        device_memory: match config.device_memory {
            DeviceMemory::Mapped => weir_device_memory::WEIR_DEVICE_MEMORY_MAPPED as i32,
            DeviceMemory::Plain => weir_device_memory::WEIR_DEVICE_MEMORY_PLAIN as i32,
        },
        gpu_direct_rdma: config.gpu_direct_rdma.into(),
        one_handle_blocks: config.blocks_in_one_page.into(),
        reserved: 0,
        thread_caches: config.thread_caches.into(),
        declared_streams: config.declared_streams.into(),
        growth_ahead: config.growth_ahead,
        numa_node: config.numa_node.unwrap_or(WEIR_NUMA_NEAREST),
        reserved_numa: 0,
    }
}

/// The defaults with the environment applied.
pub(super) fn defaults() -> Result<Config, Error> {
    let mut config = environment::config(environment::process_variable)?;
    config.name = "pool".into();
    Ok(config)
}

/// A pool's handle, as its out-of-memory callback learns it: 0 until the pool has one.
pub(super) type HandleCell = Arc<AtomicUsize>;

/// The configuration that a caller's options ask for.
///
/// # Safety
/// `options` is NULL or points to a struct that begins with its size, with a name that is NULL or a C string.
pub(super) unsafe fn read(options: *const weir_pool_options) -> Result<(Config, HandleCell), Error> {
    let cell = HandleCell::default();
    if options.is_null() {
        return Ok((defaults()?, cell));
    }
    if !options.is_aligned() {
        return Err(Error::InvalidArgument(
            "options is not aligned: pass a weir_pool_options".into(),
        ));
    }
    // SAFETY: not NULL, aligned, and every version of the struct begins with its size.
    let size = unsafe { (&raw const (*options).struct_size).read() };
    check_size(size)?;
    let mut given = from_config(&Config::default());
    // SAFETY: `size` bytes exist at both places; every field accepts every value that C can store there.
    unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut given).cast::<u8>(), size) };
    let name = if given.name.is_null() {
        "pool".to_owned()
    } else {
        // SAFETY: not NULL, so it is the caller's C string.
        unsafe { CStr::from_ptr(given.name) }
            .to_string_lossy()
            .into_owned()
    };
    let memory = memory(given.memory)?;
    let shares = match memory {
        MemoryKind::Device => u32::MAX, // the device knows
        MemoryKind::Host => 1,
        MemoryKind::Pinned => 0,
    };
    if given.ipc_handle_types & !shares != 0 {
        return Err(Error::NotSupported(format!(
            "ipc_handle_types is {:#x}, but pinned memory cannot be shared by handles, and host memory by file descriptors \
             alone; pass 0, or 1 for host memory",
            given.ipc_handle_types
        )));
    }
    for (name, value) in [
        ("reserved", given.reserved),
        ("reserved_numa", given.reserved_numa),
    ] {
        if value != 0 {
            return Err(Error::InvalidArgument(format!(
                "{name} is {value}; pass 0, as weir_pool_options_init does"
            )));
        }
    }
    if !(given.slack >= 0.0 && given.slack.is_finite()) {
        return Err(Error::InvalidArgument(format!(
            "slack is {}, which is no fraction of at least 0; 0.025 is the default",
            given.slack
        )));
    }
    let config = Config {
        memory,
        device: given.device,
        max_bytes: given.max_bytes,
        release_threshold: given.release_threshold,
        initial_bytes: given.initial_bytes,
        growth_ahead: given.growth_ahead,
        reuse: Reuse {
            event_dependencies: switch(
                given.reuse_follow_event_dependencies,
                "reuse_follow_event_dependencies",
            )?,
            opportunistic: switch(given.reuse_allow_opportunistic, "reuse_allow_opportunistic")?,
            internal_dependencies: switch(
                given.reuse_allow_internal_dependencies,
                "reuse_allow_internal_dependencies",
            )?,
        },
        slack: given.slack,
        numa_node: numa_node(given.numa_node)?,
        device_memory: device_memory(given.device_memory)?,
        gpu_direct_rdma: switch(given.gpu_direct_rdma, "gpu_direct_rdma")?,
        ipc_handle_types: given.ipc_handle_types,
        blocks_in_one_page: switch(given.one_handle_blocks, "one_handle_blocks")?,
        thread_caches: switch(given.thread_caches, "thread_caches")?,
        declared_streams: switch(given.declared_streams, "declared_streams")?,
        name,
        on_oom: on_oom(&given, &cell),
    };
    Ok((config, cell))
}

fn numa_node(given: i32) -> Result<Option<i32>, Error> {
    match given {
        WEIR_NUMA_NEAREST => Ok(None),
        0.. => Ok(Some(given)),
        _ => Err(Error::InvalidArgument(format!(
            "numa_node is {given}; pass a node's number, or WEIR_NUMA_NEAREST (-1)"
        ))),
    }
}

fn switch(given: i32, what: &str) -> Result<bool, Error> {
    match given {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::InvalidArgument(format!("{what} is {other}; pass 0 or 1"))),
    }
}

fn on_oom(given: &weir_pool_options, cell: &HandleCell) -> Option<OomCallback> {
    let call = given.on_oom?;
    // An integer because a closure that other threads call may not hold a pointer; its provenance is C's.
    let user = given.on_oom_user.expose_provenance();
    let cell = cell.clone();
    Some(Arc::new(move |bytes| {
        let pool: *mut weir_pool = args::pool(cell.load(Ordering::Acquire));
        // SAFETY: the caller of weir_pool_create gave this function for this use, with its argument.
        let again = || unsafe { call(std::ptr::with_exposed_provenance_mut(user), pool, bytes as usize) };
        !pool.is_null() && again() != 0
    }))
}

/// Fills `options` with the defaults, then applies the environment: WEIR_MAX_BYTES, WEIR_RELEASE_THRESHOLD,
/// WEIR_INITIAL_BYTES and WEIR_GROWTH_AHEAD (bytes; K, M, G and T are powers of 1024), WEIR_SLACK (a fraction), WEIR_DEVICE_MEMORY (mapped
/// or plain), WEIR_NUMA_NODE (a number; -1: the nearest),
/// WEIR_THREAD_CACHES and WEIR_DECLARED_STREAMS (0 or 1), and WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES, WEIR_REUSE_ALLOW_OPPORTUNISTIC and
/// WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES (0 or 1).
///
/// `struct_size` is sizeof(weir_pool_options) of the header the program was built with. Any thread may call it,
/// also in a forked child.
///
/// Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_STRUCT_SIZE for a size that this library does not know (nothing is
/// written); WEIR_ERROR_INVALID_ARGUMENT for a malformed variable, which the message names (the struct then has
/// the defaults without the environment).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pool_options_init(
    options: *mut weir_pool_options,
    struct_size: usize,
) -> weir_status {
    guard("weir_pool_options_init", InChild::Serve, || {
        if options.is_null() {
            return Err(Error::NullPointer {
                what: "options",
                hint: "pass the address of a weir_pool_options",
            });
        }
        check_size(struct_size)?;
        let (config, result) = match defaults() {
            Ok(config) => (config, Ok(())),
            Err(error) => (Config::default(), Err(error)),
        };
        let mut filled = from_config(&config);
        filled.struct_size = struct_size;
        // SAFETY: the caller has `struct_size` bytes there, and `filled` is at least that long.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), options.cast(), struct_size)
        };
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> weir_pool_options {
        from_config(&Config {
            memory: MemoryKind::Host,
            ..Config::default()
        })
    }

    fn accepted(options: &weir_pool_options) -> Result<Config, Error> {
        // SAFETY: a whole struct with a NULL or static name.
        unsafe { read(options) }.map(|(config, _)| config)
    }

    #[test]
    fn the_first_published_size_is_accepted_for_ever() {
        assert_eq!(FIRST_SIZE, 88);
        for size in [
            0,
            8,
            FIRST_SIZE - 1,
            size_of::<weir_pool_options>() + 1,
            usize::MAX,
        ] {
            let options = weir_pool_options {
                struct_size: size,
                ..given()
            };
            assert!(matches!(accepted(&options), Err(Error::StructSize { given, .. }) if given == size));
        }
        assert!(
            accepted(&weir_pool_options {
                struct_size: FIRST_SIZE,
                ..given()
            })
            .is_ok()
        );
    }

    #[test]
    fn every_field_arrives() {
        let config = accepted(&weir_pool_options {
            device: 3,
            max_bytes: 1,
            release_threshold: 2,
            initial_bytes: 3,
            growth_ahead: 4,
            reuse_follow_event_dependencies: 0,
            reuse_allow_internal_dependencies: 0,
            slack: 0.5,
            name: c"mine".as_ptr(),
            ..given()
        })
        .unwrap();
        assert_eq!(
            (config.memory, config.device, config.name.as_str()),
            (MemoryKind::Host, 3, "mine")
        );
        assert_eq!(
            (config.max_bytes, config.release_threshold, config.initial_bytes),
            (1, 2, 3)
        );
        assert_eq!(config.growth_ahead, 4);
        let reuse = Reuse {
            event_dependencies: false,
            opportunistic: true,
            internal_dependencies: false,
        };
        assert_eq!((config.reuse, config.slack), (reuse, 0.5));
        assert_eq!(accepted(&given()).unwrap().name, "pool");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let refused = |options: weir_pool_options| assert!(accepted(&options).is_err());
        refused(weir_pool_options { memory: 7, ..given() });
        refused(weir_pool_options {
            reuse_allow_opportunistic: 2,
            ..given()
        });
        refused(weir_pool_options {
            reuse_follow_event_dependencies: -1,
            ..given()
        });
        refused(weir_pool_options {
            slack: f64::NAN,
            ..given()
        });
        refused(weir_pool_options {
            slack: -0.1,
            ..given()
        });
        refused(weir_pool_options {
            numa_node: -2,
            ..given()
        });
        refused(weir_pool_options {
            reserved_numa: 1,
            ..given()
        });
        refused(weir_pool_options {
            ipc_handle_types: 8,
            ..given()
        });
    }

    #[test]
    fn the_callback_gets_its_argument_and_the_pools_handle() {
        unsafe extern "C" fn callback(user: *mut c_void, pool: *mut weir_pool, bytes: usize) -> i32 {
            // SAFETY: the test passes a counter of this type.
            let seen = unsafe { &*user.cast::<AtomicUsize>() };
            seen.store(pool.addr() + bytes, Ordering::Relaxed);
            1
        }
        let seen = AtomicUsize::new(0);
        let user = (&raw const seen).cast_mut().cast();
        let options = weir_pool_options {
            on_oom: Some(callback),
            on_oom_user: user,
            ..given()
        };
        // SAFETY: a whole struct with a NULL name.
        let (config, cell) = unsafe { read(&options) }.unwrap();
        let call = config.on_oom.unwrap();
        assert!(!call(7), "no pool yet, so nobody is asked");
        assert_eq!(seen.load(Ordering::Relaxed), 0);
        cell.store(1000, Ordering::Release);
        assert!(call(7));
        assert_eq!(seen.load(Ordering::Relaxed), 1007);
    }
}
