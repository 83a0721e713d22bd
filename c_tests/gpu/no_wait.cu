/* Beside a kernel of two seconds every call of weir comes back at once: growth, page moves, trim, frees whose
 * memory is given back. Only squeeze, the synchronise functions and destroy wait, and those do. Prints what each
 * call took. */
#include "gpu.cuh"

static const double kernel_seconds = 2.0, too_long = 0.5;
static running *kernel;
static cudaStream_t busy, idle_stream;
static double slowest;
static const char *slowest_call;

/* Runs one call while the kernel runs, with its time. */
static void timed(const char *call, int status, double start) {
    double took = seconds_now() - start;
    check_status_at(__FILE__, __LINE__, call, status, WEIR_OK);
    printf("  %-66s %9.1f us\n", call, took * 1e6);
    check_true_at(__FILE__, __LINE__, "the kernel still runs", !kernel->over);
    check_true_at(__FILE__, __LINE__, call, took < too_long);
    if (took > slowest) {
        slowest = took;
        slowest_call = call;
    }
}
#define TIMED(what, call)                    \
    do {                                     \
        double timed_start = seconds_now();  \
        int timed_status = (int)(call);      \
        timed(what, timed_status, timed_start); \
    } while (0)

static void start_kernel(double seconds) {
    memset((void *)kernel, 0, sizeof *kernel);
    queue_run(busy, seconds, kernel);
    wait_until_begun(kernel);
}

/* Two pools: one without a limit, that grows, and one whose free room is in pieces, so that it moves pages. */
static const size_t piece = 16 * MiB;
enum { PIECES = 32 };

static void calls_that_do_not_wait(void) {
    weir_pool *pool = gpu_pool(0, "no limit"), *tight = gpu_pool(PIECES * piece, "in pieces"), *fresh = NULL, *shared = NULL;
    void *on_busy, *on_idle, *small, *second, *large, *p, *q, *pieces[PIECES], *batch[3], *recorded;
    size_t sizes[] = {1000, 5 * MiB, 70 * MiB}, counts[] = {100, 4, 1};
    weir_event event = NULL;
    cudaEvent_t made;
    weir_pool_stats before, after;
    int32_t access = 0;
    findings *found = host_visible<findings>();

    CUDA_OK(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    event = made;
    CHECK_OK(weir_default_pool(0, &shared));
    CHECK_OK(weir_pool_alloc(pool, 64 * MiB, busy, &on_busy));
    CHECK_OK(weir_pool_alloc(pool, 256 * MiB, idle_stream, &on_idle));
    CHECK_OK(weir_pool_alloc(pool, 8 * MiB, idle_stream, &recorded));
    for (int i = 0; i < PIECES; i++) {
        CHECK_OK(weir_pool_alloc(tight, piece, i % 4 < 2 ? busy : idle_stream, &pieces[i]));
        queue_write(i % 4 < 2 ? busy : idle_stream, pieces[i], piece, (uint64_t)i);
    }
    CUDA_OK(cudaDeviceSynchronize());

    printf("beside a kernel of %.1f s:\n", kernel_seconds);
    start_kernel(kernel_seconds);
    queue_write(busy, on_busy, 64 * MiB, 7); /* behind the kernel: the block is in use for all that follows */

    TIMED("alloc 1000 bytes, idle stream", weir_pool_alloc(pool, 1000, idle_stream, &p));
    TIMED("free it", weir_pool_free(pool, p, idle_stream));
    TIMED("alloc 1000 bytes, the kernel's stream", weir_pool_alloc(pool, 1000, busy, &small));
    before = CHECK_STATS(pool);
    TIMED("alloc 2 GiB, idle stream (growth)", weir_pool_alloc(pool, 2 * GiB, idle_stream, &large));
    after = CHECK_STATS(pool);
    CHECK(after.page_creates > before.page_creates);
    TIMED("alloc 512 MiB, the kernel's stream (growth)", weir_pool_alloc(pool, 512 * MiB, busy, &second));
    TIMED("free 64 MiB in use behind the kernel", weir_pool_free(pool, on_busy, busy));
    TIMED("alloc 64 MiB, idle stream, while the freed ones are in use", weir_pool_alloc(pool, 64 * MiB, idle_stream, &q));
    CHECK(q != on_busy);
    TIMED("free it", weir_pool_free(pool, q, idle_stream));
    TIMED("record_stream, the kernel's stream", weir_pool_record_stream(pool, recorded, busy));
    TIMED("free what was recorded", weir_pool_free(pool, recorded, idle_stream));
    TIMED("alloc_batch", weir_pool_alloc_batch(pool, sizes, 3, idle_stream, batch));
    TIMED("free_batch", weir_pool_free_batch(pool, batch, 3, idle_stream));
    TIMED("warmup", weir_pool_warmup(pool, sizes, counts, 3, idle_stream));
    TIMED("event_record, the kernel's stream", weir_event_record(event, busy));

    /* Every second pair of pieces is free, half of them on the kernel's stream: 4 pieces in one lie nowhere. */
    for (int i = 0; i < PIECES; i += 4) {
        TIMED("free a piece, the kernel's stream", weir_pool_free(tight, pieces[i], busy));
        TIMED("free a piece, idle stream", weir_pool_free(tight, pieces[i + 2], idle_stream));
    }
    before = CHECK_STATS(tight);
    TIMED("alloc 4 pieces in one, idle stream (pages move)", weir_pool_alloc(tight, 4 * piece, idle_stream, &p));
    after = CHECK_STATS(tight);
    CHECK(after.pages_moved > before.pages_moved);
    queue_write(idle_stream, p, 4 * piece, 1000);
    queue_check(idle_stream, p, 4 * piece, 1000, found);
    before = after;
    TIMED("alloc 4 pieces in one, the kernel's stream (pages move)", weir_pool_alloc(tight, 4 * piece, busy, &q));
    after = CHECK_STATS(tight);
    CHECK(after.pages_moved > before.pages_moved);
    queue_write(busy, q, 4 * piece, 2000);
    queue_check(busy, q, 4 * piece, 2000, found);
    TIMED("free, the kernel's stream", weir_pool_free(tight, q, busy));
    TIMED("free, idle stream", weir_pool_free(tight, p, idle_stream));

    TIMED("free 2 GiB, idle stream", weir_pool_free(pool, large, idle_stream));
    CUDA_OK(cudaStreamSynchronize(idle_stream)); /* so that there is something to give back */
    before = CHECK_STATS(pool);
    TIMED("trim to 0", weir_pool_trim(pool, 0));
    after = CHECK_STATS(pool);
    CHECK(after.page_releases > before.page_releases && after.reserved_bytes < before.reserved_bytes);
    CHECK_OK(weir_pool_set_release_threshold(pool, 0));
    before = CHECK_STATS(pool);
    TIMED("free 256 MiB, release threshold 0", weir_pool_free_synced(pool, on_idle));
    after = CHECK_STATS(pool);
    CHECK(after.page_releases > before.page_releases);
    TIMED("free 512 MiB, the kernel's stream, release threshold 0", weir_pool_free(pool, second, busy));

    TIMED("free 1000 bytes, the kernel's stream, release threshold 0", weir_pool_free(pool, small, busy));

    TIMED("get_stats", weir_pool_get_stats(pool, &after));
    TIMED("set_attribute", weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC, 1));
    TIMED("get_access", weir_pool_get_access(pool, 0, &access));
    TIMED("device_get_pool", weir_device_get_pool(0, &shared));
    TIMED("pool_create", weir_pool_create(NULL, &fresh));
    TIMED("alloc 1 GiB from the new pool", weir_pool_alloc(fresh, GiB, idle_stream, &p));
    TIMED("free it", weir_pool_free(fresh, p, idle_stream));
    TIMED("stream_wait_event, idle stream", weir_stream_wait_event(idle_stream, event));
    TIMED("alloc 64 MiB, idle stream, ordered behind the kernel", weir_pool_alloc(pool, 64 * MiB, idle_stream, &p));
    TIMED("free it", weir_pool_free(pool, p, idle_stream));
    CHECK(!kernel->over);
    printf("slowest: %s, %.1f us\n", slowest_call, slowest * 1e6);

    CUDA_OK(cudaDeviceSynchronize());
    for (int i = 0; i < PIECES; i++) { /* those that stayed are as they were */
        if (i % 2 != 0) {
            queue_check(idle_stream, pieces[i], piece, (uint64_t)i, found);
            CHECK_OK(weir_pool_free(tight, pieces[i], idle_stream));
        }
    }
    CUDA_OK(cudaDeviceSynchronize());
    check_nothing_broken(found);
    CHECK_OK(weir_pool_destroy(fresh));
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_OK(weir_pool_destroy(tight));
    CUDA_OK(cudaEventDestroy(made));
    CUDA_OK(cudaFreeHost(found));
}

enum { SQUEEZE, STREAM, EVENT, DEVICE, DESTROY, WAYS };
static const char *const ways[WAYS] = {"squeeze", "stream_synchronize", "event_synchronize", "device_synchronize", "destroy"};

/* These wait until the kernel is over. */
static void calls_that_wait(void) {
    printf("beside a kernel of 0.3 s, with a block freed behind it:\n");
    for (int way = 0; way < WAYS; way++) {
        weir_pool *pool = gpu_pool(0, "waits");
        cudaEvent_t event;
        void *p;
        CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CHECK_OK(weir_pool_alloc(pool, 64 * MiB, busy, &p));
        start_kernel(0.3);
        queue_write(busy, p, 64 * MiB, 1);
        CHECK_OK(weir_pool_free(pool, p, busy));
        CHECK_OK(weir_event_record(event, busy));
        CHECK(!kernel->over);
        double start = seconds_now();
        switch (way) {
        case SQUEEZE: CHECK_OK(weir_pool_squeeze(pool, NULL)); break;
        case STREAM: CHECK_OK(weir_stream_synchronize(busy)); break;
        case EVENT: CHECK_OK(weir_event_synchronize(event)); break;
        case DEVICE: CHECK_OK(weir_device_synchronize()); break;
        default: CHECK_OK(weir_pool_destroy(pool)); break;
        }
        printf("  %-66s %9.1f us\n", ways[way], (seconds_now() - start) * 1e6);
        CHECK(kernel->over);
        if (way == SQUEEZE) {
            CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
        }
        if (way != DESTROY) {
            CHECK_OK(weir_pool_destroy(pool));
        }
        CUDA_OK(cudaEventDestroy(event));
    }
}

int main(void) {
    print_device();
    load_kernels();
    kernel = host_visible<running>();
    CUDA_OK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    CUDA_OK(cudaStreamCreateWithFlags(&idle_stream, cudaStreamNonBlocking));
    calls_that_do_not_wait();
    calls_that_wait();
    CUDA_OK(cudaStreamDestroy(busy));
    CUDA_OK(cudaStreamDestroy(idle_stream));
    CUDA_OK(cudaFreeHost(kernel));
    CHECK_OK(weir_finalize());
    CUDA_OK(cudaDeviceReset());
    return check_end();
}
