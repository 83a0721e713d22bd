/* Every call leaves the caller's current context as it found it: with none, with the pool's own device's, with another
 * device's, with a stack of them; when it succeeds and when it fails; on threads that never had one. */
#include "../streams.h"

static weir_pool *fixed;
static weir_stream stream;
static CUcontext found;

static CUcontext current(void) {
    CUcontext context = NULL;
    DEVICE_OK(cu.CtxGetCurrent(&context));
    return context;
}
#define LEFT(status, call)          \
    do {                            \
        CHECK_STATUS(status, call); \
        CHECK(current() == found);  \
    } while (0)

static void every_call(void) {
    weir_pool *pool = NULL, *shared = NULL, *borrowed = NULL;
    weir_pool_options o = check_options(96 * MiB);
    weir_pool_stats s = {.struct_size = sizeof s};
    weir_event event;
    void *p, *q, *batch[2];
    size_t sizes[] = {1000, 3 * MiB}, counts[] = {10, 1}, released;
    uint64_t value, capture;
    int32_t access;
    found = current();

    LEFT(WEIR_OK, weir_pool_create(&o, &pool));
    LEFT(WEIR_OK, weir_pool_alloc(pool, 1000, stream, &p));
    LEFT(WEIR_OK, weir_pool_free(pool, p, stream));
    LEFT(WEIR_OK, weir_pool_alloc(pool, 40 * MiB, stream, &p));
    LEFT(WEIR_OK, weir_pool_alloc_aligned(pool, 5000, 4096, stream, &q));
    LEFT(WEIR_OK, weir_pool_record_stream(pool, p, stream));
    LEFT(WEIR_OK, weir_pool_free(pool, p, stream));
    LEFT(WEIR_OK, weir_pool_free_synced(pool, q));
    LEFT(WEIR_OK, weir_pool_alloc_batch(pool, sizes, 2, stream, batch));
    LEFT(WEIR_OK, weir_pool_free_batch(pool, batch, 2, stream));
    LEFT(WEIR_OK, weir_pool_warmup(pool, sizes, counts, 2, stream));
    LEFT(WEIR_OK, weir_stream_get_capture(stream, &capture));
    LEFT(WEIR_OK, weir_pool_trim(pool, 0));
    LEFT(WEIR_OK, weir_pool_alloc(pool, 60 * MiB, stream, &p));
    LEFT(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 60 * MiB, stream, &q)); /* having waited and squeezed */
    LEFT(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, &q, stream));
    LEFT(WEIR_OK, weir_pool_free(pool, p, stream));
    LEFT(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, p, stream));
    LEFT(WEIR_OK, weir_pool_set_release_threshold(pool, 0));
    LEFT(WEIR_OK, weir_pool_alloc(pool, 20 * MiB, stream, &p));
    LEFT(WEIR_OK, weir_pool_free_synced(pool, p));
    LEFT(WEIR_OK, weir_pool_squeeze(pool, &released));
    LEFT(WEIR_OK, weir_pool_get_stats(pool, &s));
    LEFT(WEIR_OK, weir_pool_get_attribute(pool, WEIR_ATTRIBUTE_USED_CURRENT, &value));
    LEFT(WEIR_OK, weir_pool_get_access(pool, 0, &access));
    LEFT(WEIR_OK, weir_pool_set_access(pool, 0, WEIR_ACCESS_READ_WRITE));
    CHECK(weir_pool_set_access(pool, 12345, WEIR_ACCESS_READ) != WEIR_OK);
    CHECK(current() == found);
    LEFT(WEIR_OK, weir_default_pool(0, &shared));
    LEFT(WEIR_OK, weir_device_set_pool(0, pool));
    LEFT(WEIR_OK, weir_device_get_pool(0, &borrowed));
    LEFT(WEIR_OK, weir_pool_destroy(pool));

    if (found == cu.context) { /* the driver wants one for these */
        LEFT(WEIR_OK, weir_stream_synchronize(stream));
        event = event_new();
        LEFT(WEIR_OK, weir_event_record(event, stream));
        LEFT(WEIR_OK, weir_stream_wait_event(stream, event));
        LEFT(WEIR_OK, weir_event_synchronize(event));
        LEFT(WEIR_OK, weir_device_synchronize());
        event_end(event);
    }
    LEFT(WEIR_OK, weir_pool_alloc(fixed, 8 * MiB, NULL, &p)); /* the default stream is that of the pool's device */
    LEFT(WEIR_OK, weir_pool_free(fixed, p, NULL));
}

static void *on_a_bare_thread(void *arg) {
    (void)arg;
    CHECK(current() == NULL);
    every_call();
    return NULL;
}

/* What the stand-in driver makes fail, at any of the calls of a growth, leaves it too. */
static void failing_calls(void) {
    static const char *const calls[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuEventCreate",
                                        "cuEventRecord"};
    void (*fail)(const char *, uint64_t, int), (*reset)(void);
    if (!device_is_standin()) {
        return;
    }
    *(void **)&fail = device_symbol("standin_fail");
    *(void **)&reset = device_symbol("standin_reset_faults");
    found = current();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        weir_pool *pool = check_pool(0);
        void *p = NULL;
        fail(calls[i], 1, 2);
        if (weir_pool_alloc(pool, 8 * MiB, stream, &p) == WEIR_OK) {
            CHECK(current() == found);
            CHECK_OK(weir_pool_free(pool, p, stream));
        }
        CHECK(current() == found);
        reset();
        LEFT(WEIR_OK, weir_pool_alloc(pool, 8 * MiB, stream, &p));
        LEFT(WEIR_OK, weir_pool_free(pool, p, stream));
        LEFT(WEIR_OK, weir_pool_destroy(pool));
    }
}

int main(void) {
    CUcontext other = NULL, popped;
    pthread_t thread;
    int devices = 0;
    program_begin();
    DEVICE_OK(cu.DeviceGetCount(&devices));
    stream = stream_new();
    fixed = check_pool(0);

    every_call();
    failing_calls();
    DEVICE_OK(cu.CtxSetCurrent(NULL));
    every_call();
    failing_calls();
    CHECK_EQUAL(pthread_create(&thread, NULL, on_a_bare_thread, NULL), 0);
    pthread_join(thread, NULL);
    if (devices > 1) {
        DEVICE_OK(cu.DevicePrimaryCtxRetain(&other, 1));
        DEVICE_OK(cu.CtxSetCurrent(other));
        every_call();
        failing_calls();
        /* Below the top of the stack nothing is disturbed either. */
        DEVICE_OK(cu.CtxPushCurrent(cu.context));
        DEVICE_OK(cu.CtxPushCurrent(other));
        every_call();
        DEVICE_OK(cu.CtxPopCurrent(&popped));
        CHECK(popped == other);
        every_call();
        DEVICE_OK(cu.CtxPopCurrent(&popped));
        CHECK(popped == cu.context && current() == other);
        DEVICE_OK(cu.CtxSetCurrent(NULL));
        DEVICE_OK(cu.DevicePrimaryCtxRelease(1));
    }
    CHECK_OK(weir_pool_destroy(fixed));
    found = current();
    LEFT(WEIR_OK, weir_finalize());
    DEVICE_OK(cu.CtxSetCurrent(cu.context));
    stream_end(stream);
    return program_end();
}
