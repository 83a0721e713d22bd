/* What must not be done during a capture is refused with an error, and the capture goes on as if it had not been
 * asked for. */
#include "captures.h"

static const size_t block = 8 * MiB;
static weir_pool *pool;
static weir_stream s;
static uint64_t id;

#define STILL_CAPTURING() CHECK_EQUAL(capture_status(s), CAPTURE_STATUS_ACTIVE)
#define REFUSED(call)                            \
    do {                                         \
        CHECK_STATUS(WEIR_ERROR_CAPTURE, call);  \
        CHECK(weir_last_error()[0] != 0);        \
        STILL_CAPTURING();                       \
    } while (0)

/* What waits for all work, or gives memory back, may be asked for: the capture's work is not queued anywhere yet. */
static void wait_and_give_back(weir_stream stream) {
    weir_pool *other = check_pool(0);
    void *p;
    CHECK_OK(weir_pool_alloc(other, 3 * block, stream, &p));
    CHECK_OK(weir_pool_free(other, p, stream));
    CHECK_OK(weir_pool_squeeze(other, NULL));
    STILL_CAPTURING();
    CHECK_EQUAL(CHECK_STATS(other).reserved_bytes, 0);
    CHECK_OK(weir_pool_alloc(other, 3 * block, stream, &p));
    CHECK_OK(weir_pool_free(other, p, stream));
    CHECK_OK(weir_pool_destroy(other));
    STILL_CAPTURING();
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    STILL_CAPTURING();
    CHECK_OK(weir_pool_trim(pool, 0));
    STILL_CAPTURING();
}

static void *from_another_thread(void *arg) {
    void *p;
    weir_stream own = (weir_stream)arg;
    program_thread();
    CHECK_OK(weir_pool_alloc(pool, 3 * block, own, &p)); /* growth, during somebody else's capture */
    CHECK_OK(weir_pool_free(pool, p, own));
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    wait_and_give_back(own);
    return NULL;
}

static void misuse(int mode) {
    pthread_t thread;
    weir_event inside = capture_event_new();
    weir_stream u = stream_new(), theirs = stream_new();
    void *p, *q = NULL, *outside;
    unsigned *seen = (unsigned *)staging_take(block);
    s = stream_new();
    pool = check_pool(10 * block);
    CHECK_OK(weir_pool_alloc(pool, block, u, &outside));
    id = capture_begin(s, mode);
    CHECK_OK(weir_pool_alloc(pool, block, s, &p));
    queue_fill(s, p, block, 77);
    queue_copy(s, outside, p, block);
    CHECK_OK(weir_event_record(inside, s));
    STILL_CAPTURING();

    REFUSED(weir_stream_synchronize(s));
    CHECK_OK(weir_device_synchronize()); /* what is captured is not queued anywhere */
    STILL_CAPTURING();
    wait_and_give_back(u);
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 20 * block, s, &q));
    STILL_CAPTURING();
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 20 * block, u, &q));
    STILL_CAPTURING();
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, &q, s));
    CHECK(q == NULL);
    CHECK_EQUAL(pthread_create(&thread, NULL, from_another_thread, theirs), 0);
    pthread_join(thread, NULL);
    STILL_CAPTURING();
    CHECK_OK(weir_pool_free(pool, p, s));
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, p, s));

    captured graph = capture_end(s);
    for (int i = 0; i < 3; i++) {
        queue_fill(s, outside, block, 0);
        DEVICE_OK(cu.GraphLaunch(graph.exec, s));
        DEVICE_OK(cu.MemcpyDtoHAsync(seen, device_address(outside), block, s));
        CHECK_OK(weir_stream_synchronize(s));
        CHECK(words_are(seen, block, 77));
    }
    captured_end(&graph);
    CHECK_OK(weir_pool_release_capture(pool, id));
    CHECK_OK(weir_pool_free(pool, outside, u));
    CHECK_OK(weir_pool_destroy(pool));
    staging_give(seen, block);
    event_end(inside);
    stream_end(s);
    stream_end(u);
    stream_end(theirs);
}

/* While a blocking stream is being captured nothing can be queued on the legacy stream, which would have to wait for it:
 * memory may be asked for and freed there all the same. */
static void legacy_stream(int mode) {
    static const uintptr_t names[] = {0, 1};
    weir_event event = event_new();
    void *p = NULL, *before;
    pool = check_pool(0);
    DEVICE_OK(cu.StreamCreate(&s, CU_STREAM_DEFAULT));
    CHECK_OK(weir_pool_alloc(pool, block, NULL, &before));
    id = capture_begin(s, mode);
    for (int i = 0; i < 2; i++) {
        weir_stream legacy = (weir_stream)names[i];
        CHECK_OK(weir_pool_alloc(pool, block, legacy, &p));
        STILL_CAPTURING();
        CHECK_OK(weir_pool_free(pool, p, legacy));
        STILL_CAPTURING();
        REFUSED(weir_event_record(event, legacy));
        REFUSED(weir_stream_wait_event(legacy, event));
        REFUSED(weir_stream_synchronize(legacy));
    }
    CHECK_OK(weir_pool_alloc(pool, block, CU_STREAM_PER_THREAD, &p));
    CHECK_OK(weir_pool_free(pool, p, CU_STREAM_PER_THREAD));
    CHECK_OK(weir_pool_free(pool, before, NULL));
    STILL_CAPTURING();
    CHECK_OK(weir_pool_alloc(pool, block, s, &p));
    queue_fill(s, p, block, 1);
    CHECK_OK(weir_pool_free(pool, p, s));
    captured graph = capture_end(s);
    captured_end(&graph);
    CHECK_OK(weir_pool_release_capture(pool, id));
    CHECK_OK(weir_pool_alloc(pool, block, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_destroy(pool));
    event_end(event);
    stream_end(s);
}

/* The program itself ends its capture by a forbidden call: the pool's memory comes back all the same. */
static void ended_by_the_program(int mode) {
    void *p, *q = NULL;
    CUgraph graph = NULL;
    weir_event inside = capture_event_new();
    s = stream_new();
    pool = check_pool(0);
    id = capture_begin(s, mode);
    CHECK_OK(weir_pool_alloc(pool, block, s, &p));
    /* Only the program knows where its event was recorded, and the driver may take this for the end. */
    CHECK_OK(weir_event_record(inside, s));
    CHECK_STATUS(WEIR_ERROR_CAPTURE, weir_event_synchronize(inside));
    CHECK(cu.StreamSynchronize(s) != CUDA_SUCCESS);
    CHECK_EQUAL(capture_status(s), CAPTURE_STATUS_INVALIDATED);
    if (weir_pool_alloc(pool, block, s, &q) == WEIR_OK) {
        CHECK_OK(weir_pool_free(pool, q, s));
    }
    DEVICE_STATUS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.StreamEndCapture(s, &graph));
    CHECK(graph == NULL);
    CHECK_OK(weir_pool_free(pool, p, s));
    CHECK_OK(weir_pool_release_capture(pool, id));
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    event_end(inside);
    stream_end(s);
}

/* Released before its end, a capture gets nothing more and gives nothing back, until it has ended. */
static void released_too_early(int mode) {
    void *p, *q = NULL;
    s = stream_new();
    pool = check_pool(0);
    id = capture_begin(s, mode);
    CHECK_OK(weir_pool_alloc(pool, block, s, &p));
    queue_fill(s, p, block, 1);
    CHECK_OK(weir_pool_release_capture(pool, id));
    REFUSED(weir_pool_alloc(pool, block, s, &q));
    REFUSED(weir_pool_free(pool, p, s));
    CHECK(q == NULL);
    captured graph = capture_end(s);
    captured_end(&graph);
    CHECK_OK(weir_pool_free(pool, p, s));
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    stream_end(s);
}

static void arguments(void) {
    uint64_t capture = 77;
    pool = check_pool(0);
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_stream_get_capture(NULL, NULL));
    CHECK_OK(weir_stream_get_capture(NULL, &capture));
    CHECK_EQUAL(capture, 0);
    CHECK_OK(weir_pool_release_capture(pool, 123456789)); /* took nothing from this pool */
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_release_capture(NULL, 1));
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_release_capture(pool, 1));
}

int main(void) {
    program_begin();
    staging_give(staging_take(block), block);
    for (int m = 0; m < MODES; m++) {
        misuse(capture_modes[m]);
        legacy_stream(capture_modes[m]);
        ended_by_the_program(capture_modes[m]);
        released_too_early(capture_modes[m]);
    }
    arguments();
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
