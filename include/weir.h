/**
 * @file weir.h
 * weir: a stream-ordered memory pool for GPU, pinned and plain host memory.
 *
 *   weir_pool_options options;
 *   weir_pool_options_init(&options, sizeof options);
 *   options.memory = WEIR_MEMORY_HOST;
 *   weir_pool *pool;
 *   if (weir_pool_create(&options, &pool) != WEIR_OK) { puts(weir_last_error()); return 1; }
 *   void *block;
 *   if (weir_pool_alloc(pool, 4096, stream, &block) == WEIR_OK) {
 *     // ... queue work on stream that uses block ...
 *     weir_pool_free(pool, block, stream); // at once: later work on stream may reuse the memory
 *   }
 *   weir_pool_destroy(pool);
 *
 * Errors. Every function but the text getters, and those with the signatures of PyTorch and CuPy, returns a weir_status. A
 * call that fails leaves a message in weir_last_error() and, unless its comment says otherwise, changes nothing. Outputs
 * are written only on success. Misuse (a pointer freed twice, an unknown pointer, a stale handle, NULL) is an error and
 * never aborts. No exception or panic leaves a function, but the exception that weir_torch_alloc_or_throw is for. Every
 * function may return WEIR_ERROR_INTERNAL: a defect of weir. "The pool errors" are those of every function that is given
 * a pool: WEIR_ERROR_NULL_POINTER, WEIR_ERROR_INVALID_POOL, WEIR_ERROR_POOL_DESTROYED, WEIR_ERROR_FINALIZED,
 * WEIR_ERROR_FORKED, and, while the process is exiting, WEIR_ERROR_UNLOADED.
 *
 * Threads. Every function may be called from any thread at any time, on the same pool too, and from callbacks and
 * functions that run on host streams, but not from a signal handler. A function blocks only where its comment says that it
 * waits. A thread that may be cancelled (pthread_cancel) disables that around its calls: a cancellation taken up within one
 * ends the process.
 *
 * Stream order. A block belongs to the stream named when it was allocated. Freed on a stream, its memory is for that
 * stream at once, even while queued work still uses it; another stream gets it only when that work is complete or
 * ordered before its own. Work on a second stream must be told with weir_pool_record_stream, or ordered before the
 * free by the program. A pool learns of the program's ordering through weir_event_record, weir_stream_wait_event and
 * the three synchronize functions: use them in place of the driver's. A stream may be destroyed right after the last
 * call that names it.
 *
 * Ownership. weir_pool_create gives one reference, which weir_pool_destroy or weir_pool_release ends; default pools
 * are weir's own. Blocks belong to the caller until freed. Texts belong to weir. Arrays, options and names that are
 * passed in are read during the call only.
 *
 * The end. At exit weir ends the default pools and the threads of host streams. Pools that the program created are
 * the program's to destroy; freeing and destroying still work in static destructors. In a forked child, allocating
 * is WEIR_ERROR_FORKED; freeing, destroying, releasing and weir_finalize succeed and do nothing.
 *
 * Units. Sizes are bytes. Structs that begin with struct_size may grow in later versions; set it to sizeof.
 */

#ifndef WEIR_H
#define WEIR_H

/* Generated from src/ffi by cbindgen; change it there (tests/header.rs). */

#include <stddef.h>
#include <stdint.h>

/** The host as a stream. What is allocated on it is used by no queued work any more, so the host may touch it at once, and
 * any stream. What is freed on it may be used by no queued work, unless weir has queued that work itself (weir_copy_async)
 * or was told of it (weir_pool_record_stream). No work can be queued on it. */
#ifdef __cplusplus
#define WEIR_STREAM_HOST (reinterpret_cast<weir_stream>(~static_cast<uintptr_t>(0)))
#else
#define WEIR_STREAM_HOST ((weir_stream)~(uintptr_t)0)
#endif

/**
 * A copy's source may change when the call returns.
 */
#define WEIR_COPY_STAGED 1

/**
 * A copy's ends are held until a function has been called.
 */
#define WEIR_COPY_HOLD 2

/**
 * The device number of plain host memory.
 */
#define WEIR_DEVICE_HOST -1

/**
 * The NUMA node nearest to a pool's GPU.
 */
#define WEIR_NUMA_NEAREST -1

/**
 * Major version of this header.
 */
#define WEIR_VERSION_MAJOR 0

/**
 * Minor version of this header.
 */
#define WEIR_VERSION_MINOR 1

/**
 * Patch version of this header.
 */
#define WEIR_VERSION_PATCH 0

/**
 * What a call returns. Everything but WEIR_OK leaves a message in weir_last_error(). Numbers never change
 * meaning; new ones are added at the end.
 */
typedef enum {
  /**
   * Success.
   */
  WEIR_OK = 0,
  /**
   * An argument that no other status describes; the message names it.
   */
  WEIR_ERROR_INVALID_ARGUMENT = 1,
  /**
   * A required pointer was NULL.
   */
  WEIR_ERROR_NULL_POINTER = 2,
  /**
   * A struct_size that this library does not know.
   */
  WEIR_ERROR_STRUCT_SIZE = 3,
  /**
   * The handle was never a pool's.
   */
  WEIR_ERROR_INVALID_POOL = 4,
  /**
   * The pool was destroyed.
   */
  WEIR_ERROR_POOL_DESTROYED = 5,
  /**
   * The pool was ended by weir_finalize, or at exit.
   */
  WEIR_ERROR_FINALIZED = 6,
  /**
   * There is no memory for this request. The pool is unchanged and usable.
   */
  WEIR_ERROR_OUT_OF_MEMORY = 7,
  /**
   * The size can never be served.
   */
  WEIR_ERROR_SIZE_TOO_LARGE = 8,
  /**
   * The alignment is not a power of two, or too large.
   */
  WEIR_ERROR_INVALID_ALIGNMENT = 9,
  /**
   * The pointer lies in no pool's memory.
   */
  WEIR_ERROR_UNKNOWN_POINTER = 10,
  /**
   * The pointer lies inside a block, not at its start.
   */
  WEIR_ERROR_INTERIOR_POINTER = 11,
  /**
   * The block was freed before.
   */
  WEIR_ERROR_DOUBLE_FREE = 12,
  /**
   * The block belongs to another pool.
   */
  WEIR_ERROR_WRONG_POOL = 13,
  /**
   * The stream cannot be used.
   */
  WEIR_ERROR_INVALID_STREAM = 14,
  /**
   * The event cannot be used.
   */
  WEIR_ERROR_INVALID_EVENT = 15,
  /**
   * Not available for this kind of pool, or in this version.
   */
  WEIR_ERROR_NOT_SUPPORTED = 16,
  /**
   * This machine has no usable GPU driver.
   */
  WEIR_ERROR_DRIVER_UNAVAILABLE = 17,
  /**
   * A call of the driver or the operating system failed; the message has its name and code.
   */
  WEIR_ERROR_BACKEND = 18,
  /**
   * The driver is gone because the process is exiting.
   */
  WEIR_ERROR_UNLOADED = 19,
  /**
   * The device lost its contents.
   */
  WEIR_ERROR_DEVICE_LOST = 20,
  /**
   * Called in a forked child: the pool belongs to the parent.
   */
  WEIR_ERROR_FORKED = 21,
  /**
   * The pool is gone, but blocks were still allocated from it; the message lists them.
   */
  WEIR_ERROR_LIVE_BLOCKS = 22,
  /**
   * The work is not complete yet.
   */
  WEIR_ERROR_NOT_READY = 23,
  /**
   * A defect of weir itself; please report the message.
   */
  WEIR_ERROR_INTERNAL = 24,
  /**
   * Refused because a stream is being captured into a graph, or a wrong use of a capture.
   */
  WEIR_ERROR_CAPTURE = 25,
  /**
   * What another process exported is gone: the block was freed, the event destroyed, the pool or its process ended.
   */
  WEIR_ERROR_STALE = 26,
} weir_status;

/**
 * Where a pool's memory lives.
 */
typedef enum {
  /**
   * Memory of a GPU.
   */
  WEIR_MEMORY_DEVICE = 0,
  /**
   * Page-locked host memory: a GPU reads and writes it, and copies to and from it are asynchronous. Its streams are
   * the GPU's. The host touches a block when no queued work uses its memory: name WEIR_STREAM_HOST to get such a one.
   */
  WEIR_MEMORY_PINNED = 1,
  /**
   * Plain host memory.
   */
  WEIR_MEMORY_HOST = 2,
} weir_memory;

/**
 * How device memory is come by.
 */
typedef enum {
  /**
   * Pages that are mapped where they are needed (cuMemCreate, cuMemMap): a pool holds hardly more than the program
   * uses, and gives nothing back that would wait for running kernels. A device or driver that cannot map pages gets
   * plain memory.
   */
  WEIR_DEVICE_MEMORY_MAPPED = 0,
  /**
   * Segments from cuMemAlloc, for those who need it: cuIpcGetMemHandle, many MPI libraries; of pinned memory, segments
   * registered by cuMemHostRegister. Giving a segment back waits for running kernels.
   */
  WEIR_DEVICE_MEMORY_PLAIN = 1,
} weir_device_memory;

/**
 * Switches and figures of a pool, with the numbers of CUDA's cudaMemPoolAttr.
 */
typedef enum {
  /**
   * 0 or 1: reuse across streams that an event, told by weir_event_record and weir_stream_wait_event, has
   * ordered.
   */
  WEIR_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  /**
   * 0 or 1: reuse of blocks whose stream is seen to have completed its work.
   */
  WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC = 2,
  /**
   * 0 or 1: the pool may make the asking stream wait for the freeing one.
   */
  WEIR_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  /**
   * Bytes: free memory above this is given back at synchronises that the pool sees, and at frees.
   */
  WEIR_ATTRIBUTE_RELEASE_THRESHOLD = 4,
  /**
   * Bytes of memory held now; read only.
   */
  WEIR_ATTRIBUTE_RESERVED_CURRENT = 5,
  /**
   * Bytes of memory held at most; set it to 0 to begin anew.
   */
  WEIR_ATTRIBUTE_RESERVED_HIGH = 6,
  /**
   * Bytes in live blocks now; read only.
   */
  WEIR_ATTRIBUTE_USED_CURRENT = 7,
  /**
   * Bytes in live blocks at most; set it to 0 to begin anew.
   */
  WEIR_ATTRIBUTE_USED_HIGH = 8,
} weir_attribute;

/**
 * What another device may do with a pool's memory.
 */
typedef enum {
  /**
   * Nothing.
   */
  WEIR_ACCESS_NONE = 0,
  /**
   * Read.
   */
  WEIR_ACCESS_READ = 1,
  /**
   * Read and write.
   */
  WEIR_ACCESS_READ_WRITE = 3,
} weir_access;

/**
 * A pool. The value is a checked number and never dereferenced: using one that was destroyed is an error, not
 * a crash.
 */
typedef struct weir_pool weir_pool;

/**
 * Called when a request is about to fail, without any lock held; it may call weir (free, trim, ...) from the
 * same thread. `user` is on_oom_user of the pool's options, `bytes` what was asked for. Nonzero: try once more.
 * It must not throw or unwind. It is not called while the pool is being created.
 */
typedef int (*weir_oom_callback)(void *user, weir_pool *pool, size_t bytes);

/**
 * Options of a pool. Fill it with weir_pool_options_init, then change what you need. It may grow at its end in
 * later versions.
 */
typedef struct {
  /**
   * sizeof(weir_pool_options), as passed to weir_pool_options_init.
   */
  size_t struct_size;
  /**
   * A weir_memory. Default: WEIR_MEMORY_DEVICE.
   */
  int32_t memory;
  /**
   * The GPU's ordinal, also of the one that pinned memory is for; ignored for host memory. Default: 0.
   */
  int32_t device;
  /**
   * Bytes of memory that the pool never exceeds; 0: no limit. Default: 0.
   */
  uint64_t max_bytes;
  /**
   * Bytes: free memory above this is given back at synchronises that the pool sees, and at frees; with
   * WEIR_DEVICE_MEMORY_PLAIN such a call may wait for running kernels. Default: UINT64_MAX, which is never reached.
   */
  uint64_t release_threshold;
  /**
   * Bytes of memory taken when the pool is created. Default: 0.
   */
  uint64_t initial_bytes;
  /**
   * 0 or 1: reuse across streams that an event, told by weir_event_record and weir_stream_wait_event, has
   * ordered. Default: 1.
   */
  int32_t reuse_follow_event_dependencies;
  /**
   * 0 or 1: reuse of blocks whose stream is seen to have completed its work. (Of one that was declared to end, see
   * `declared_streams`, in any case: nobody else could have them.) Default: 1.
   */
  int32_t reuse_allow_opportunistic;
  /**
   * 0 or 1: the pool may make the asking stream wait for the freeing one. Default: 1.
   */
  int32_t reuse_allow_internal_dependencies;
  /**
   * How other processes will get at the memory: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (1), which weir_pool_export
   * needs, and for device memory CU_MEM_HANDLE_TYPE_FABRIC (8), or 0 if they will not. Host memory that is shared has a
   * file descriptor for each page. Must be 0 for pinned memory. Default: 0.
   */
  uint32_t ipc_handle_types;
  /**
   * A fraction from 0 to 16: the pool grows rather than moves free pages while it holds at most (1 + slack)
   * times the peak in use. Beyond that, where pages are not moved (WEIR_DEVICE_MEMORY_PLAIN, one_handle_blocks), wholly free
   * ones that are too short for a request are given back before a longer one is made for it; of plain memory that may wait for
   * running kernels. Default: 0.025.
   */
  double slack;
  /**
   * Asked before a request fails; may be NULL. Default: NULL.
   */
  weir_oom_callback on_oom;
  /**
   * Handed to on_oom.
   */
  void *on_oom_user;
  /**
   * Shown in messages and reports; copied; NULL: "pool". Default: NULL.
   */
  const char *name;
  /**
   * A weir_device_memory, for device and pinned memory. Default: WEIR_DEVICE_MEMORY_MAPPED.
   */
  int32_t device_memory;
  /**
   * 0 or 1: network cards can reach device memory (GPUDirect RDMA). Default: 0.
   */
  int32_t gpu_direct_rdma;
  /**
   * 0 or 1: every block lies in one handle of the driver (in one page, on the host), for those who register blocks
   * by it, such as NCCL. Pages are then never moved, and the pool holds more memory than it would. Default: 0.
   */
  int32_t one_handle_blocks;
  /**
   * Must be 0.
   */
  int32_t reserved;
  /**
   * 0 or 1: each thread keeps blocks that it freed for its next requests on the same stream; such calls take no
   * lock. What threads keep serves any request of the pool before the pool grows beyond 128 MiB and twice what was in use at once, or at
   * all if it has a limit. Default: 1.
   */
  int32_t thread_caches;
  /**
   * 0 or 1: the program promises to call weir_stream_changed before it destroys or captures a stream that it named to
   * this pool, and names the built-in streams with the context of the pool's device current. The driver is then not
   * asked at each call, and an event is recorded when somebody needs one and not at each free, which is most of what a
   * call costs. Default: 0.
   */
  int32_t declared_streams;
  /**
   * Bytes: while the pool grows, a thread of its own keeps so much free memory mapped ahead of use, so that requests
   * find it and need not wait for the driver; what the pool holds is greater by that much at most. It never goes beyond
   * max_bytes, release_threshold or what the device has, and makes no request fail or wait for more than the mapping of
   * a page. The thread starts when the pool first grows, sleeps when it does not grow, and ends with the pool. 0: none;
   * otherwise at least a page (2 MiB) and at most max_bytes. Default: 0.
   */
  uint64_t growth_ahead;
  /**
   * The host's NUMA node that pinned memory comes from, or WEIR_NUMA_NEAREST: the one nearest to the GPU, or, where the
   * driver does not say which (before CUDA 12.2), the calling thread's. Default: WEIR_NUMA_NEAREST.
   */
  int32_t numa_node;
  /**
   * Must be 0.
   */
  int32_t reserved_numa;
} weir_pool_options;

/**
 * A stream: a CUstream or cudaStream_t, a host stream, or NULL for the default stream. For a host pool any
 * value that is not a live host stream is a stream with nothing in flight. For a device pool NULL and 1 are the legacy
 * default stream and 2 (cudaStreamPerThread) is the calling thread's, of the context that is current or, if none is,
 * of the pool's GPU; other streams must be of a GPU's primary context. WEIR_STREAM_HOST is the host, for every pool: what
 * is allocated on it no queued work uses any more, what is freed on it no stream's work may still use.
 */
typedef void *weir_stream;

/**
 * What is called when work is complete. It must not throw or unwind.
 */
typedef void (*weir_callback)(void *arg);

/**
 * Counters of a pool at one moment. It may grow at its end in later versions. Always
 * reserved_bytes = used_bytes + cached_bytes + free_bytes + pending_bytes + idle_bytes, and
 * allocations - frees = live blocks.
 */
typedef struct {
  /**
   * sizeof(weir_pool_stats), set by the caller.
   */
  size_t struct_size;
  /**
   * Bytes in live blocks, rounded up as they were allocated.
   */
  uint64_t used_bytes;
  /**
   * Highest used_bytes since creation or the last weir_pool_reset_peaks. Where several threads keep freed blocks it is
   * the highest that was seen, which can miss a peak by a 256th, or by what those threads keep.
   */
  uint64_t used_bytes_peak;
  /**
   * Bytes of memory held.
   */
  uint64_t reserved_bytes;
  /**
   * Highest reserved_bytes since creation or the last weir_pool_reset_peaks.
   */
  uint64_t reserved_bytes_peak;
  /**
   * Free bytes inside slabs of small blocks, and in blocks that threads keep for their next requests.
   */
  uint64_t cached_bytes;
  /**
   * Free bytes that are ready for a stream.
   */
  uint64_t free_bytes;
  /**
   * Freed bytes that wait until another stream's work is complete.
   */
  uint64_t pending_bytes;
  /**
   * Bytes of memory that is in no usable address range just now.
   */
  uint64_t idle_bytes;
  /**
   * Bytes of the largest contiguous free extent; while calls are answered as in the round before, those that it had when that began.
   */
  uint64_t largest_free_bytes;
  /**
   * Blocks ever allocated.
   */
  uint64_t allocations;
  /**
   * Blocks ever freed.
   */
  uint64_t frees;
  /**
   * Requests that failed, but for those refused because of an argument.
   */
  uint64_t failures;
  /**
   * Requests served at once.
   */
  uint64_t cache_hits;
  /**
   * Requests for which memory had to be found.
   */
  uint64_t cache_misses;
  /**
   * Pages made usable at another address.
   */
  uint64_t pages_moved;
  /**
   * Pages created.
   */
  uint64_t page_creates;
  /**
   * Pages given back.
   */
  uint64_t page_releases;
  /**
   * Mappings made.
   */
  uint64_t page_maps;
  /**
   * Mappings removed.
   */
  uint64_t page_unmaps;
  /**
   * Events recorded, queried or waited for, and streams asked whether they have work.
   */
  uint64_t event_calls;
  /**
   * Calls of the driver or the operating system.
   */
  uint64_t driver_calls;
  /**
   * Times all free memory was given back, by request or before failing.
   */
  uint64_t squeezes;
  /**
   * 1 - largest_free_bytes / free_bytes; 0 if nothing is free.
   */
  double fragmentation;
} weir_pool_stats;

/**
 * An event: a CUevent or cudaEvent_t, or a host event.
 */
typedef void *weir_event;

/**
 * Work for a host stream. It must not throw or unwind.
 */
typedef void (*weir_host_function)(void *arg);

/**
 * Names a block or an event of one process in another. It can be copied and sent by any means (a pipe, shared memory,
 * MPI, a file); only who has imported the pool can use it. Its bytes are weir's own.
 */
typedef struct {
  /**
   * Weir's own.
   */
  uint8_t bytes[128];
} weir_ipc_token;

/**
 * Tells on which stream a program works now; it is asked on the thread that allocates or frees. It must not throw or
 * unwind.
 */
typedef weir_stream (*weir_current_stream)(void);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that runs, such as "1.2.3"; compare it with the WEIR_VERSION_* macros of the
 * header the program was built with. Static text, never freed.
 */
const char *weir_version(void);

/**
 * The name of a status, such as "WEIR_ERROR_OUT_OF_MEMORY"; "unknown status" for any other number. Static
 * text, never freed.
 */
const char *weir_status_name(int status);

/**
 * The message of this thread's last failed call: what was asked, why it failed, the numbers, and what to try.
 * "" if none has failed. At most 1023 bytes of UTF-8. It belongs to weir, stays as it is through calls that
 * succeed, and is valid until the next call that fails on the same thread, or the thread ends. There is room for the messages
 * of 2,048 threads at once; a thread beyond these, and one whose thread-specific data is being destroyed, may be told only that
 * there is none.
 */
const char *weir_last_error(void);

/**
 * Fills `options` with the defaults, then applies the environment: WEIR_MAX_BYTES, WEIR_RELEASE_THRESHOLD,
 * WEIR_INITIAL_BYTES and WEIR_GROWTH_AHEAD (bytes; K, M, G and T are powers of 1024), WEIR_SLACK (a fraction), WEIR_DEVICE_MEMORY (mapped
 * or plain), WEIR_NUMA_NODE (a number; -1: the nearest),
 * WEIR_THREAD_CACHES and WEIR_DECLARED_STREAMS (0 or 1), and WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES, WEIR_REUSE_ALLOW_OPPORTUNISTIC and
 * WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES (0 or 1).
 *
 * `struct_size` is sizeof(weir_pool_options) of the header the program was built with. Any thread may call it,
 * also in a forked child.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_STRUCT_SIZE for a size that this library does not know (nothing is
 * written); WEIR_ERROR_INVALID_ARGUMENT for a malformed variable, which the message names (the struct then has
 * the defaults without the environment).
 */
weir_status weir_pool_options_init(weir_pool_options *options,
                                   size_t struct_size);

/**
 * Creates a pool and gives the caller its only reference. `options` NULL means the defaults and the environment,
 * as weir_pool_options_init gives them. The options are copied.
 *
 * With WEIR_NVTX=1 in the environment (0 or unset: off) a pool of device memory takes it as with
 * WEIR_DEVICE_MEMORY_PLAIN, and tells the tool that NVTX_INJECTION64_PATH names of every block, with the size that was
 * asked for: compute-sanitizer then reports a write past a block's end, and a block that is never freed. The CUDA
 * runtime must have been initialised before. Memory with live blocks is not given back when such a pool ends.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_STRUCT_SIZE; WEIR_ERROR_INVALID_ARGUMENT for a value out of range;
 * WEIR_ERROR_NOT_SUPPORTED for ipc_handle_types or gpu_direct_rdma that the device does not have,
 * when 1024 pools are live, or for a tool that knows nothing of NVTX's memory extension;
 * WEIR_ERROR_DRIVER_UNAVAILABLE if no CUDA driver can be used: the library libcuda.so.1, or what WEIR_CUDA_LIBRARY
 * names, is opened by the first pool that needs it; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_OUT_OF_MEMORY if
 * initial_bytes cannot be had, WEIR_ERROR_SIZE_TOO_LARGE if nobody could have them; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED;
 * WEIR_ERROR_FORKED.
 */
weir_status weir_pool_create(const weir_pool_options *options,
                             weir_pool **pool);

/**
 * Ends a pool whatever its references: waits for work queued on its freed blocks and gives all memory back. NULL
 * is fine. Every later use of the handle is WEIR_ERROR_POOL_DESTROYED. In a forked child it does nothing; so it
 * does for a pool that weir ended itself at exit.
 *
 * Errors: WEIR_ERROR_LIVE_BLOCKS if blocks were still allocated (their memory is gone, and the message lists
 * them); WEIR_ERROR_INVALID_POOL; WEIR_ERROR_POOL_DESTROYED; WEIR_ERROR_FINALIZED; WEIR_ERROR_BACKEND, and the pool lives on, if
 * it is of host memory and the caller a function that runs on a host stream, which would wait for itself.
 */
weir_status weir_pool_destroy(weir_pool *pool);

/**
 * Adds a reference, to be given back by weir_pool_release.
 *
 * Errors: the pool errors.
 */
weir_status weir_pool_retain(weir_pool *pool);

/**
 * Gives a reference back; the last one destroys the pool, as weir_pool_destroy does. NULL is fine.
 *
 * Errors: as weir_pool_destroy.
 */
weir_status weir_pool_release(weir_pool *pool);

/**
 * Gives the default pool of a device, the same for the whole process, and creates it at first use with the
 * defaults and the environment. `device` is a GPU's ordinal, or WEIR_DEVICE_HOST for plain host memory. The
 * handle is borrowed: weir ends the pool at exit or in weir_finalize, and the caller releases nothing.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for a device that cannot exist or a malformed
 * variable; WEIR_ERROR_DRIVER_UNAVAILABLE; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_OUT_OF_MEMORY; WEIR_ERROR_BACKEND;
 * WEIR_ERROR_UNLOADED if it does not exist and the process is exiting; WEIR_ERROR_FORKED.
 */
weir_status weir_default_pool(int device,
                              weir_pool **pool);

/**
 * Gives the default pool of page-locked memory for a GPU, the same for the whole process, and creates it at first use with
 * the defaults and the environment. Copies with WEIR_COPY_STAGED go through it. The handle is borrowed, as that of
 * weir_default_pool.
 *
 * Errors: those of weir_default_pool; WEIR_ERROR_INVALID_ARGUMENT also for WEIR_DEVICE_HOST.
 */
weir_status weir_default_pinned_pool(int device,
                                     weir_pool **pool);

/**
 * Makes a pool the current one of a device; NULL returns to the default pool. The pool is not retained: when it
 * ends, the device returns to its default.
 *
 * Errors: WEIR_ERROR_INVALID_ARGUMENT for a device that cannot exist or a pool of other memory;
 * WEIR_ERROR_INVALID_POOL; WEIR_ERROR_POOL_DESTROYED; WEIR_ERROR_FINALIZED; WEIR_ERROR_FORKED.
 */
weir_status weir_device_set_pool(int device,
                                 weir_pool *pool);

/**
 * Gives the current pool of a device: what weir_device_set_pool set, or else the default. The handle is
 * borrowed.
 *
 * Errors: as weir_default_pool.
 */
weir_status weir_device_get_pool(int device, weir_pool **pool);

/**
 * Tells where a pool's memory is: `memory` gets a weir_memory, and `device` the GPU's ordinal, or WEIR_DEVICE_HOST
 * where there is none. Either may be NULL.
 *
 * Errors: the pool errors.
 */
weir_status weir_pool_get_memory(weir_pool *pool,
                                 int32_t *memory,
                                 int *device);

/**
 * Waits until the functions that were deferred by weir_stream_defer have been called. Then ends every pool of the
 * process, whatever its references, and all host streams and events, after the work queued on them; gives all memory
 * back. Safe to call twice, from several threads, at exit, and after the driver is gone, but not from a function that runs
 * on a host stream or was deferred; in a forked child it does nothing. Afterwards pool handles from before answer
 * WEIR_ERROR_FINALIZED, and the next use of weir starts anew.
 *
 * Errors: WEIR_ERROR_LIVE_BLOCKS if blocks were still allocated (every pool is gone all the same, and the message lists
 * them), or if a pool stays because a stream is being captured, which the message says.
 */
weir_status weir_finalize(void);

/**
 * Makes `counts[i]` blocks of `sizes[i]` bytes, for every i below `n`, available to `stream` so that allocating
 * them needs no growth. The arrays may be NULL if `n` is 0.
 *
 * Errors: those of weir_pool_alloc; WEIR_ERROR_INVALID_ARGUMENT for an impossible `n`, or counts that add up to more than 2^32.
 */
weir_status weir_pool_warmup(weir_pool *pool,
                             const size_t *sizes,
                             const size_t *counts,
                             size_t n,
                             weir_stream stream);

/**
 * Gives free memory back until the pool holds at most `min_bytes_to_keep` bytes or nothing more can be given back. What
 * another process has imported is not free (weir_pool_export_pointer). Nor goes what may still be in use by queued work: of
 * memory freed on created streams that are not declared up to a 16th of the pool may count as that until such a stream is
 * named again, or the program is seen to wait for it.
 * Waits for no work, except that WEIR_DEVICE_MEMORY_PLAIN is memory that the driver may take back only when running
 * kernels, whosever they are, have ended.
 *
 * Errors: the pool errors; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED.
 */
weir_status weir_pool_trim(weir_pool *pool,
                           size_t min_bytes_to_keep);

/**
 * Gives everything back that is free: waits for the work that freed blocks still wait for, and empties caches.
 * `released`, which may be NULL, gets the number of bytes.
 *
 * Errors: the pool errors; WEIR_ERROR_BACKEND, also for a pool of host memory in a function that runs on a host stream;
 * WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED.
 */
weir_status weir_pool_squeeze(weir_pool *pool,
                              size_t *released);

/**
 * Sets WEIR_ATTRIBUTE_RELEASE_THRESHOLD to `bytes`; UINT64_MAX is never reached.
 *
 * Errors: the pool errors.
 */
weir_status weir_pool_set_release_threshold(weir_pool *pool, uint64_t bytes);

/**
 * Sets an attribute, a weir_attribute.
 *
 * Errors: the pool errors; WEIR_ERROR_INVALID_ARGUMENT for an attribute that does not exist or is read only, or a
 * value that it cannot have.
 */
weir_status weir_pool_set_attribute(weir_pool *pool,
                                    int32_t attribute,
                                    uint64_t value);

/**
 * Reads an attribute, a weir_attribute. Of memory used and reserved it tells what weir_pool_get_stats would.
 *
 * Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for an attribute that does not
 * exist.
 */
weir_status weir_pool_get_attribute(weir_pool *pool,
                                    int32_t attribute,
                                    uint64_t *value);

/**
 * Allocates `bytes` for use on `stream`, aligned to 256 bytes. 0 bytes give a pointer of their own. Work queued on
 * `stream` from now on may use the block; other streams must be ordered behind this call by the program.
 * Before it fails for lack of memory it waits for all queued work, whose memory may then serve it.
 *
 * Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_OUT_OF_MEMORY; WEIR_ERROR_SIZE_TOO_LARGE;
 * WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED.
 */
weir_status weir_pool_alloc(weir_pool *pool,
                            size_t bytes,
                            weir_stream stream,
                            void **ptr);

/**
 * Like weir_pool_alloc, aligned to `alignment` bytes: a power of two, or 0 for 256.
 *
 * Errors: those of weir_pool_alloc; WEIR_ERROR_INVALID_ALIGNMENT.
 */
weir_status weir_pool_alloc_aligned(weir_pool *pool,
                                    size_t bytes,
                                    size_t alignment,
                                    weir_stream stream,
                                    void **ptr);

/**
 * Says that a block is also used on `stream`: once freed, it also waits for the work queued there until then.
 *
 * Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_UNKNOWN_POINTER; WEIR_ERROR_INTERIOR_POINTER;
 * WEIR_ERROR_DOUBLE_FREE for a block that is not live; WEIR_ERROR_WRONG_POOL; WEIR_ERROR_INVALID_STREAM;
 * WEIR_ERROR_UNLOADED.
 */
weir_status weir_pool_record_stream(weir_pool *pool, void *ptr, weir_stream stream);

/**
 * Frees a block: its memory is for `stream` at once, and for other streams when the work queued on `stream` until
 * now is known to be complete or ordered before theirs. NULL is fine. It allocates no memory, unless what is
 * reserved is above the release threshold and memory is given back, or calls were answered as in the round before and this is the
 * first that differs; a call that fails has changed nothing. Once the process is exiting, and in a forked child, it does nothing where nothing is
 * left to do.
 *
 * Errors: WEIR_ERROR_NULL_POINTER for the pool; WEIR_ERROR_INVALID_POOL; WEIR_ERROR_POOL_DESTROYED;
 * WEIR_ERROR_FINALIZED; WEIR_ERROR_UNKNOWN_POINTER; WEIR_ERROR_INTERIOR_POINTER; WEIR_ERROR_DOUBLE_FREE;
 * WEIR_ERROR_WRONG_POOL; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST.
 */
weir_status weir_pool_free(weir_pool *pool,
                           void *ptr,
                           weir_stream stream);

/**
 * Frees a block all use of which is over, on every stream: its memory is for any stream at once, but what the calling thread
 * keeps for the stream that the block was allocated on, as weir_pool_free would, is for that one before others. NULL is fine.
 *
 * Errors: those of weir_pool_free, but for WEIR_ERROR_INVALID_STREAM.
 */
weir_status weir_pool_free_synced(weir_pool *pool,
                                  void *ptr);

/**
 * Sets what another GPU may do with the pool's memory, now and later: a weir_access. It is for all of the pool's memory
 * or, if the call fails, for none. Work of that GPU that uses the memory must be complete before access is taken from
 * it. The pool's own GPU always reads and writes, which cannot be changed.
 *
 * Errors: the pool errors; WEIR_ERROR_INVALID_ARGUMENT for an access that does not exist;
 * WEIR_ERROR_NOT_SUPPORTED for a host pool, for WEIR_DEVICE_MEMORY_PLAIN (but every GPU reads and writes such pinned
 * memory), for a GPU that does not exist or cannot
 * reach the pool's, and for the pool's own; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED.
 */
weir_status weir_pool_set_access(weir_pool *pool,
                                 int device,
                                 int32_t access);

/**
 * Tells what a GPU may do with the pool's memory: a weir_access.
 *
 * Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_NOT_SUPPORTED for a host pool, for a GPU that does not
 * exist, and for GPUs other than the pool's own with WEIR_DEVICE_MEMORY_PLAIN; WEIR_ERROR_UNLOADED.
 */
weir_status weir_pool_get_access(weir_pool *pool,
                                 int device,
                                 int32_t *access);

/**
 * Queues a copy of `bytes` from `src` to `dst` on `stream`. Either end may be memory of a GPU or of the host, of a pool or
 * of anybody else. On a driver's stream it is the driver's copy (cuMemcpyAsync), on a host stream the stream's thread makes
 * it, and on a stream with nothing in flight it is made at once. The two ends do not overlap. A driver makes a copy between two
 * places of the host's memory before the call returns, when the stream has done all before it.
 *
 * Blocks of pinned pools, and on host streams of host pools, may be freed as soon as the call has returned, on any stream,
 * by weir_pool_free_synced too: their memory serves nobody before the copy is complete, so that the next owner may write it
 * without asking. Any other memory must stay until then, and blocks of device pools follow the order of streams. In a
 * capture the block belongs to the graph, as by weir_pool_record_stream.
 *
 * WEIR_COPY_STAGED: the source may change, or go, when the call returns. Host memory is copied in pieces to page-locked
 * memory of the default pinned pool of the stream's GPU (weir_default_pinned_pool; on a host stream, of a host pool of
 * weir's own), by several threads if it is much, while the stream copies the pieces before; where all pieces are on their way
 * behind a slow stream the call waits for it. To pageable memory the copy is complete when the call returns. If there is
 * no memory for pieces, and for a copy between two places of pageable memory, or of GPUs, it is a copy without the flag
 * that the call waits for. On a host stream blocks of host pools are what a GPU's memory is elsewhere; between two places of other
 * memory the source is read at once, and the target written in the order of the stream. A staged copy that failed may have been made in part. Copies of at most 64 KiB share blocks of
 * 512 KiB of that pool, one for each stream at a time, which are kept for the next ones until the pool is asked for memory
 * that it has not at hand, is trimmed, or is asked for its figures.
 *
 * Any thread may call it. Errors: WEIR_ERROR_NULL_POINTER (unless `bytes` is 0); WEIR_ERROR_INVALID_ARGUMENT for flags that
 * do not exist, and for WEIR_COPY_HOLD, which is weir_copy_async_hold's; WEIR_ERROR_DOUBLE_FREE if an end lies in memory
 * of a host or pinned pool that is no live block's; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for a staged copy on a
 * stream that is captured; WEIR_ERROR_BACKEND, also for a staged copy that would have to wait for the host stream whose
 * function asks for it, and of which nothing is made; WEIR_ERROR_DEVICE_LOST, also if that happened while the call waited;
 * WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_copy_async(void *dst,
                            const void *src,
                            size_t bytes,
                            weir_stream stream,
                            uint32_t flags);

/**
 * Like weir_copy_async, for an end that somebody else owns, such as memory that another library has page-locked:
 * `release(arg)` is called when the copy is complete. `flags` is 0 or WEIR_COPY_HOLD, which mean the same.
 *
 * `release` is called once if the call succeeds, and never if it fails; then the copy may have been queued all the same
 * (WEIR_ERROR_BACKEND, WEIR_ERROR_DEVICE_LOST), so wait for the stream before the memory goes. How it is called
 * weir_stream_defer says.
 *
 * Errors: those of weir_copy_async; WEIR_ERROR_NULL_POINTER for `release`; WEIR_ERROR_CAPTURE for a stream that is
 * captured; WEIR_ERROR_UNLOADED also while weir_finalize waits for the functions deferred before.
 */
weir_status weir_copy_async_hold(void *dst,
                                 const void *src,
                                 size_t bytes,
                                 weir_stream stream,
                                 uint32_t flags,
                                 weir_callback release,
                                 void *arg);

/**
 * Has `callback(arg)` called once the work queued on `stream` until now is complete, for what must outlive it.
 *
 * It is called by a thread of weir's own, with no lock held and outside of the driver's callbacks, so it may call weir and
 * the driver; it must not call weir_finalize nor exit, and should be short, because one thread calls all. Functions of one
 * stream are called in the order in which they were deferred; a slow stream holds back no other's. The stream may be
 * destroyed at once. If the device is lost they are called, since nothing runs any more. All have been called when
 * weir_finalize returns, and at exit before the driver goes; both wait for the work. A forked child calls none.
 *
 * Any thread may call it. Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for a stream that
 * is captured; WEIR_ERROR_BACKEND, also if there is no thread; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED, also while
 * weir_finalize waits for those deferred before; WEIR_ERROR_FORKED. `callback` is then never called.
 */
weir_status weir_stream_defer(weir_stream stream,
                              weir_callback callback,
                              void *arg);

/**
 * Page-locks memory that the program owns, so that copies from and to it are asynchronous and GPUs reach it, by
 * cuMemHostRegister; memory that is page-locked already is only noted. The memory must stay until weir_host_unregister or
 * weir_finalize. It takes about 40 ms for a GiB of memory that was touched before. The driver is opened if nobody has.
 *
 * Any thread may call it. Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for memory that overlaps with what is
 * registered, or of which a part is page-locked already; WEIR_ERROR_NOT_SUPPORTED for a GPU's memory; WEIR_ERROR_DRIVER_UNAVAILABLE; WEIR_ERROR_BACKEND;
 * WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_host_register(void *ptr,
                               size_t bytes);

/**
 * Ends what weir_host_register began, after all work queued on the GPUs that pools use. The memory is the program's as
 * before. NULL is fine; in a forked child it does nothing. While another thread registers that memory, or ends its
 * registration, the call waits for that.
 *
 * Errors: WEIR_ERROR_INVALID_ARGUMENT if nothing is registered that begins at `ptr`; WEIR_ERROR_BACKEND;
 * WEIR_ERROR_UNLOADED.
 */
weir_status weir_host_unregister(void *ptr);

/**
 * Allocates `count` blocks of `sizes[i]` bytes into `ptrs[i]`, each as weir_pool_alloc would: all of them, or none
 * and `ptrs` unchanged. The arrays may be NULL if `count` is 0.
 *
 * Errors: those of weir_pool_alloc; WEIR_ERROR_INVALID_ARGUMENT for an impossible count.
 */
weir_status weir_pool_alloc_batch(weir_pool *pool,
                                  const size_t *sizes,
                                  size_t count,
                                  weir_stream stream,
                                  void **ptrs);

/**
 * Frees `count` blocks, each as weir_pool_free would: all of them, or none. NULL entries are fine, and so is a NULL
 * array if `count` is 0.
 *
 * Errors: those of weir_pool_free; WEIR_ERROR_INVALID_ARGUMENT for an impossible count.
 */
weir_status weir_pool_free_batch(weir_pool *pool,
                                 void *const *ptrs,
                                 size_t count,
                                 weir_stream stream);

/**
 * Writes the counters of this moment to `stats`, whose struct_size the caller has set to
 * sizeof(weir_pool_stats). Cheap enough to call often; it takes the pool's locks. Where blocks are lent to other
 * processes it first has the pool's thread for these take back what they have freed.
 *
 * Errors: the pool errors; WEIR_ERROR_NULL_POINTER; WEIR_ERROR_STRUCT_SIZE.
 */
weir_status weir_pool_get_stats(weir_pool *pool,
                                weir_pool_stats *stats);

/**
 * The peaks of the statistics begin anew at the current values.
 *
 * Errors: the pool errors.
 */
weir_status weir_pool_reset_peaks(weir_pool *pool);

/**
 * Records `event` behind the work queued on `stream`, and every pool learns of it: blocks freed on `stream` before
 * this call are for any stream that waits for the event. For the driver's handles it makes the driver's call, on the
 * calling thread and in its current context. Pools know of an event what this function told them last, so record it by
 * this function always, or by the driver's always. One of the driver's that was destroyed and made anew with the old handle has to be
 * recorded by this function before it is waited for by weir's: they cannot tell it from the old one. Of an event that two threads record at
 * the same time, or one while another waits for it, pools know nothing until it is recorded again.
 *
 * Errors: WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for the default stream while a
 * blocking stream is captured; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_event_record(weir_event event,
                              weir_stream stream);

/**
 * Makes `stream` wait for `event` before any work queued on it later, without blocking the caller, and every pool
 * learns of it. An event that was never recorded is complete. For the driver's handles it makes the driver's call.
 *
 * Errors: as weir_event_record.
 */
weir_status weir_stream_wait_event(weir_stream stream,
                                   weir_event event);

/**
 * Says that a stream is about to be destroyed, or to be captured (also by waiting for an event of a capture). A pool
 * with `declared_streams` then no longer touches the stream, and keeps nothing for it, until a call names it again; no
 * call may name it between this one and what it announces. Other pools find out by themselves. A stream that no pool
 * knows is fine.
 *
 * Errors: WEIR_ERROR_FORKED.
 */
weir_status weir_stream_changed(weir_stream stream);

/**
 * Blocks until the work queued on `stream` is complete, and every pool learns of it: blocks freed on `stream`
 * before this call are for any stream. It waits for the driver's streams by the driver's call; if no context is current
 * the default streams are those of each GPU that has a pool. While no pool has opened a driver, a stream that is not a
 * live host stream has nothing in flight. The release threshold is applied.
 *
 * Errors: WEIR_ERROR_INVALID_STREAM; WEIR_ERROR_CAPTURE for a stream that is captured, and as weir_event_record: the
 * capture goes on; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_stream_synchronize(weir_stream stream);

/**
 * Blocks until the work before the last record of `event` is complete, and every pool learns of it. The release
 * threshold is applied.
 *
 * Errors: WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_CAPTURE for an event that was recorded in a capture, which the driver
 * may end for it; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_event_synchronize(weir_event event);

/**
 * Blocks until all work queued on any stream is complete, and every pool learns of it: on host streams, on each GPU that
 * has a pool, and in the context that is current. The release threshold is applied. In a current context that no pool
 * knows the driver's call ends the captures there.
 *
 * Errors: WEIR_ERROR_CAPTURE if it did; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_UNLOADED;
 * WEIR_ERROR_FORKED.
 */
weir_status weir_device_synchronize(void);

/**
 * Tells which capture the work queued on `stream` goes into now: the driver's id of it (as cuStreamGetCaptureInfo
 * gives it), which no other capture ever has, or 0 if the stream is not being captured. Host streams never are, and
 * without a CUDA driver in use nothing is. Any thread may ask; no capture is harmed.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_CAPTURE if the capture was invalidated; WEIR_ERROR_INVALID_STREAM;
 * WEIR_ERROR_NOT_SUPPORTED for a capture with a driver before CUDA 10.1; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST;
 * WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_stream_get_capture(weir_stream stream,
                                    uint64_t *capture);

/**
 * Says that the graph of a capture is gone: it and every executable graph made from it are destroyed, and their
 * launches are complete. `capture` is the id that weir_stream_get_capture gave while the stream was captured. A driver for CUDA
 * 11.3 or later says so by itself, on a thread of its own, and the pool hears of it in requests that need memory and in trim,
 * squeeze and statistics: with it this call is for those who want the memory back at once.
 *
 * A block allocated on a stream that is being captured belongs to the graph, which uses it anew on each launch.
 * Freed on a stream of the same capture, its memory serves later requests of that stream in that capture, and
 * nobody else; freed elsewhere, it serves nobody. This call gives all such memory back to the pool: what was freed
 * is then for any stream, as soon as the stream it was freed on has done its work. Blocks still allocated stay so.
 * A capture that took nothing from the pool, or is known to be gone, is fine. Until the graph is gone the pool keeps its memory
 * mapped; trim and squeeze leave it alone.
 *
 * Too early a call cannot be seen here, but the pool refuses every later call that names a stream which still is
 * being captured so (WEIR_ERROR_CAPTURE). The release threshold is applied.
 *
 * Errors: the pool errors.
 */
weir_status weir_pool_release_capture(weir_pool *pool,
                                      uint64_t capture);

/**
 * Creates a host stream: work queued on it runs in order, on a thread of its own. The caller destroys it.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_host_stream_create(weir_stream *stream);

/**
 * Destroys a host stream. What was queued on it still runs; pools may hold blocks that were freed on it. In a
 * forked child it does nothing.
 *
 * Errors: WEIR_ERROR_INVALID_STREAM if it is not a live host stream.
 */
weir_status weir_host_stream_destroy(weir_stream stream);

/**
 * Queues `function(arg)` on a host stream. Whatever `arg` points to must live until the function has returned. The
 * function runs on another thread and may call weir, but must not wait for its own stream, nor call weir_finalize or exit.
 *
 * Errors: WEIR_ERROR_NULL_POINTER for the function; WEIR_ERROR_INVALID_STREAM if it is not a live host stream;
 * WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_host_stream_enqueue(weir_stream stream,
                                     weir_host_function function,
                                     void *arg);

/**
 * Blocks until the work queued on a host stream is complete; every pool learns of it, as by
 * weir_stream_synchronize.
 *
 * Errors: WEIR_ERROR_INVALID_STREAM if it is not a live host stream; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_host_stream_synchronize(weir_stream stream);

/**
 * Creates a host event. It is complete until weir_event_record records it. The caller destroys it.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_BACKEND; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_host_event_create(weir_event *event);

/**
 * Destroys a host event; streams that wait for it still do. In a forked child it does nothing.
 *
 * Errors: WEIR_ERROR_INVALID_EVENT if it is not a live host event.
 */
weir_status weir_host_event_destroy(weir_event event);

/**
 * Tells without blocking whether the work before the last record of a host event is complete: WEIR_OK if it is,
 * WEIR_ERROR_NOT_READY if it is not, which leaves no message.
 *
 * Errors: WEIR_ERROR_INVALID_EVENT if it is not a live host event; WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_host_event_query(weir_event event);

/**
 * Makes a pool importable by other processes, and gives a file descriptor that stands for it. Give it to any number of
 * them: with weir_ipc_send_descriptor, with an SCM_RIGHTS message of your own, or by inheritance (it is close-on-exec: clear
 * that for a child that calls exec). The caller owns it and
 * closes it when it has been given to all; importers keep what they have. Whoever has it can read and write every
 * block that is exported by a token, and the pages that these lie in.
 *
 * The pool must have been created with `ipc_handle_types` = 1, with mapped device memory or host memory. It stays a pool
 * like any other: it trims, squeezes and moves what no importer has. The first export starts a thread that answers
 * importers; it sleeps otherwise, and ends with the pool. Then importers find the pool gone, but keep the blocks they
 * have: memory lives until the last process has let it go.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_NOT_SUPPORTED for a pool made without ipc_handle_types = 1, or an imported
 * one; WEIR_ERROR_STALE once a process has called shutdown(2) on a descriptor that this function gave, which is so for all of
 * them, or the program has closed descriptors that it did not open, the pool's among them (where these are an importer's alone,
 * what that one has stays lent until the pool ends); WEIR_ERROR_BACKEND if there are no descriptors or threads left;
 * WEIR_ERROR_DEVICE_LOST; the pool errors.
 */
weir_status weir_pool_export(weir_pool *pool,
                             int *descriptor);

/**
 * Makes a pool of what another process exports. `descriptor` is what weir_pool_export gave there; it stays the caller's,
 * who may close it after the call. The pool is of the same device, found by its UUID whatever its ordinal is here, and is
 * the caller's as if created. It holds only blocks that weir_pool_import_pointer brings: every call that allocates
 * fails. Its `reserved_bytes` are the pages that are mapped for such blocks, and no other addresses are taken. It can be
 * imported more than once, also in the process that exports it. Waits for the exporting process's answer, 20 s at most.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for a descriptor that is not a pool's, or is of another
 * version of weir; WEIR_ERROR_STALE if the exporting pool or process has ended, or somebody has called shutdown(2) on the
 * descriptor; WEIR_ERROR_NOT_SUPPORTED for a device that this process cannot see, or when 1024 pools are live;
 * WEIR_ERROR_DRIVER_UNAVAILABLE; WEIR_ERROR_DEVICE_LOST; WEIR_ERROR_BACKEND, also if there are no descriptors left;
 * WEIR_ERROR_UNLOADED; WEIR_ERROR_FORKED.
 */
weir_status weir_pool_import(int descriptor,
                             weir_pool **pool);

/**
 * Fills `token` with what another process needs to use a live block of the pool, at any offset of which it then can; the
 * same each time. It is good until the block is freed. The content is in no stream order with what the other process
 * does: synchronize, or have it wait for an event (weir_pool_export_event).
 *
 * A block that another process has imported and this one frees keeps its memory: it counts as `pending_bytes`, and
 * serves no other request, until each importer has freed it, or ended. Its token is stale at once.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; as weir_pool_export; WEIR_ERROR_UNKNOWN_POINTER, WEIR_ERROR_INTERIOR_POINTER,
 * WEIR_ERROR_DOUBLE_FREE and WEIR_ERROR_WRONG_POOL as weir_pool_free.
 */
weir_status weir_pool_export_pointer(weir_pool *pool,
                                     void *ptr,
                                     weir_ipc_token *token);

/**
 * Maps a block of another process into this one. `pool` is what weir_pool_import gave, `token` what
 * weir_pool_export_pointer filled; `ptr` receives the block's address here, which differs. Only the pages that the
 * block lies in are mapped; each call maps them anew. Readable and writable on the pool's device at once, without order
 * to anything queued; see weir_pool_set_access for other devices.
 *
 * The block is the caller's until freed with weir_pool_free (or any of its kind) on this pool, in stream order: once the
 * work queued on that stream by then is complete, and a later call of the pool has seen it (weir_pool_trim will do, a
 * synchronize by weir's function, or weir_pool_free_synced at once), it is unmapped, and the exporter may reuse its
 * memory if it has freed it, too. Destroying the pool waits for all work and does so for every block. Waits for the
 * exporting process's answer, 20 s at most.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for bytes that are no token, or of another pool than
 * the imported one; WEIR_ERROR_STALE if the block was freed, or the exporting pool or process has ended;
 * WEIR_ERROR_NOT_SUPPORTED for a pool that is not imported; WEIR_ERROR_BACKEND; WEIR_ERROR_DEVICE_LOST; the pool errors.
 */
weir_status weir_pool_import_pointer(weir_pool *pool,
                                     const weir_ipc_token *token,
                                     void **ptr);

/**
 * Fills `token` with what another process needs to use an event of this one. For a device pool it is a CUevent or
 * cudaEvent_t that was created for this: with CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING. For a host pool it is any
 * host event; what was recorded before this call is not seen by others. The event stays the caller's; the token is good
 * until it is destroyed.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; as weir_pool_export; WEIR_ERROR_INVALID_EVENT; WEIR_ERROR_BACKEND for an event that
 * was not created for this; WEIR_ERROR_DEVICE_LOST.
 */
weir_status weir_pool_export_event(weir_pool *pool,
                                   weir_event event,
                                   weir_ipc_token *token);

/**
 * Opens an event of another process. `pool` is what weir_pool_import gave, `token` what weir_pool_export_event filled.
 * One process records it, any can wait for it and query it: for both directions use two. A record in one process is seen
 * by calls in another that come after it, so tell the other process that it was made. `event` receives one that is the
 * caller's: a CUevent, ended by cuEventDestroy, or a host event, ended by weir_host_event_destroy. Waits for the exporting
 * process's answer, 20 s at most.
 *
 * A host event is complete when all that was recorded with it is, and once the process that recorded it has ended; 256
 * records may be in flight. That another process records it as well is WEIR_ERROR_BACKEND. The driver does not see that.
 *
 * Errors: as weir_pool_import_pointer, with WEIR_ERROR_STALE for a host event that was destroyed; a CUevent that was is the
 * driver's to refuse, which is WEIR_ERROR_BACKEND.
 */
weir_status weir_pool_import_event(weir_pool *pool,
                                   const weir_ipc_token *token,
                                   weir_event *event);

/**
 * Sends a file descriptor to another process through a connected Unix socket of the program's, of any type. Both stay the
 * caller's. Waits until there is room in the socket. The other process calls weir_ipc_receive_descriptor, or takes the
 * SCM_RIGHTS of a message with one byte.
 *
 * Works in a forked child, too.
 *
 * Errors: WEIR_ERROR_INVALID_ARGUMENT for a negative number; WEIR_ERROR_BACKEND with the system's error.
 */
weir_status weir_ipc_send_descriptor(int socket,
                                     int descriptor);

/**
 * Receives a file descriptor that weir_ipc_send_descriptor sent; waits for it. The caller owns and closes it. It closes
 * on exec. Works in a forked child, too.
 *
 * Errors: WEIR_ERROR_NULL_POINTER; WEIR_ERROR_INVALID_ARGUMENT for a negative number; WEIR_ERROR_STALE if the other end
 * was closed or sent something else; WEIR_ERROR_BACKEND with the system's error, and if this process can have no more
 * descriptors: then the one that was sent may be lost.
 */
weir_status weir_ipc_receive_descriptor(int socket,
                                        int *descriptor);

/**
 * For torch.cuda.memory.CUDAPluggableAllocator in a torch.cuda.MemPool: `bytes` of the current pool of `device` for use
 * on `stream`, a stream of that device, aligned to 256 bytes. The current device stays as it is. 0 bytes give a pointer
 * of their own. The caller frees the block with weir_torch_free. Any thread may call it.
 *
 * Errors: NULL, for every error of weir_device_get_pool and weir_pool_alloc; weir_last_error has the message. A MemPool
 * makes torch.OutOfMemoryError of it, but as the allocator of all of PyTorch take weir_torch_alloc_or_throw, because
 * there PyTorch does not look.
 */
void *weir_torch_alloc(size_t bytes,
                       int device,
                       weir_stream stream);

/**
 * For torch.cuda.memory.CUDAPluggableAllocator and torch.cuda.memory.change_current_allocator: as weir_torch_alloc, but it
 * never returns NULL in a program that has loaded the C++ library libstdc++.so.6, as PyTorch has: it throws
 * std::runtime_error, which PyTorch makes a RuntimeError with weir's message; that of a lack of memory begins with "CUDA
 * out of memory". Where there is no such library it returns NULL. Call it from C++ only.
 *
 * Errors: the exception.
 */
void *weir_torch_alloc_or_throw(size_t bytes,
                                int device,
                                weir_stream stream);

/**
 * For torch.cuda.memory.CUDAPluggableAllocator: frees a block of weir_torch_alloc or weir_torch_alloc_or_throw, in the
 * order of `stream`, a stream of `device`. `bytes` is not looked at. NULL is fine. The current device stays as it is. Any
 * thread may call it, at any time: once the pool has ended, and in a forked child, it does nothing.
 *
 * Errors: those of weir_pool_free; weir_last_error has the message, and the block stays allocated.
 */
void weir_torch_free(void *block,
                     size_t bytes,
                     int device,
                     weir_stream stream);

/**
 * For CUDAPluggableAllocator's set_record_stream_fn, without which PyTorch's Tensor.record_stream does nothing: once
 * freed, the block also waits for the work queued on `stream` until then. A built-in stream is that of the block's device.
 * NULL and pointers that are not weir's are fine. Any thread may call it.
 *
 * Errors: those of weir_pool_record_stream; weir_last_error has the message.
 */
void weir_torch_record_stream(void *block,
                              weir_stream stream);

/**
 * For CUDAPluggableAllocator's set_reset_fn, which is torch.cuda.empty_cache: gives everything back that is free in the
 * current pools of the GPUs, after the work that freed blocks still wait for. Any thread may call it.
 *
 * Errors: those of weir_pool_squeeze; weir_last_error has the message.
 */
void weir_torch_empty_cache(void);

/**
 * For cupy.cuda.memory.CFunctionAllocator: `bytes` of the current pool of `device`, aligned to 256 bytes. The current
 * device stays as it is. The caller frees the block with weir_cupy_free and the same `param`. Any thread may call it.
 *
 * CuPy names no stream. `param` is NULL, or a weir_current_stream that tells CuPy's current one (python/weir.py passes
 * it): the block is for that stream, and wherever it is freed, its memory then waits for the work queued there. With NULL
 * it is for the legacy default stream and what waits for that, which non-blocking streams do not.
 *
 * Errors: NULL, for every error of weir_device_get_pool and weir_pool_alloc; weir_last_error has the message. CuPy does
 * not look: check MemoryPointer.ptr, as python/weir.py does.
 */
void *weir_cupy_malloc(void *param,
                       size_t bytes,
                       int device);

/**
 * For cupy.cuda.memory.CFunctionAllocator: frees a block of weir_cupy_malloc. NULL is fine. With a weir_current_stream
 * in `param` it is freed in the order of the stream that this tells now, and after the work on the stream that it was
 * allocated on. With NULL the call waits for all queued work, as cudaFree does. The current device stays as it is. Any
 * thread may call it, at any time: once the pool has ended, and in a forked child, it does nothing.
 *
 * Errors: those of weir_pool_free and weir_device_synchronize; weir_last_error has the message, and the block stays
 * allocated.
 */
void weir_cupy_free(void *param,
                    void *block,
                    int device);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WEIR_H */
