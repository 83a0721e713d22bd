/* Every misuse has its own status and a message that names the values, and changes nothing. */
#include "contents.h"

static weir_pool *pool, *other;
static void *block, *of_other;
static weir_pool_stats before, before_other;

#define NOTHING_CHANGED()                     \
    do {                                      \
        CHECK_UNCHANGED(pool, before);        \
        CHECK_UNCHANGED(other, before_other); \
    } while (0)

static const char *address(const void *p) {
    static char text[24];
    snprintf(text, sizeof text, "%" PRIxPTR, (uintptr_t)p);
    return text;
}

static void pointers(void) {
    int on_stack = 0;
    void *middle = (char *)block + 256;

    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, &on_stack, NULL));
    CHECK_SAYS(address(&on_stack));
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free_synced(pool, &on_stack));
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_record_stream(pool, &on_stack, NULL));
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, (void *)(uintptr_t)8, NULL));
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, (void *)UINTPTR_MAX, NULL));

    CHECK_STATUS(WEIR_ERROR_INTERIOR_POINTER, weir_pool_free(pool, middle, NULL));
    CHECK_SAYS(address(middle));
    CHECK_STATUS(WEIR_ERROR_INTERIOR_POINTER, weir_pool_free_synced(pool, middle));
    CHECK_STATUS(WEIR_ERROR_INTERIOR_POINTER, weir_pool_record_stream(pool, middle, NULL));

    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_free(pool, of_other, NULL));
    CHECK_SAYS(address(of_other));
    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_free_synced(pool, of_other));
    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_record_stream(pool, of_other, NULL));
    NOTHING_CHANGED();
}

/* Small blocks come from slabs and large ones from the page heap: both notice a second free. */
static void double_free(size_t bytes) {
    void *p;
    CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    before = CHECK_STATS(pool);
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, p, NULL));
    CHECK_SAYS(address(p));
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free_synced(pool, p));
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_record_stream(pool, p, NULL));
    NOTHING_CHANGED();
}

static void nulls(void) {
    void *untouched = &untouched, *p = untouched;
    size_t size = 1000, count = 1;
    weir_stream stream = NULL;
    weir_event event = NULL;

    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_create(NULL, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_alloc(pool, 1, NULL, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_alloc_aligned(pool, 1, 256, NULL, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_alloc(NULL, 1, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_alloc_aligned(NULL, 1, 256, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_free(NULL, block, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_free_synced(NULL, block));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_record_stream(NULL, block, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_record_stream(pool, NULL, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_alloc_batch(pool, NULL, 1, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_alloc_batch(pool, &size, 1, NULL, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_free_batch(pool, NULL, 1, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_warmup(pool, NULL, &count, 1, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_warmup(pool, &size, NULL, 1, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_get_stats(pool, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_get_attribute(pool, WEIR_ATTRIBUTE_USED_CURRENT, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_default_pool(WEIR_DEVICE_HOST, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_device_get_pool(WEIR_DEVICE_HOST, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_host_stream_create(NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_host_event_create(NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_retain(NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_trim(NULL, 0));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_release_capture(NULL, 1));
    CHECK_OK(weir_host_stream_create(&stream));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_host_stream_enqueue(stream, NULL, NULL));
    CHECK_OK(weir_host_stream_destroy(stream));
    (void)event;
    CHECK(p == untouched);
    NOTHING_CHANGED();
}

static void sizes(void) {
    void *untouched = &untouched, *p = untouched;
    CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, weir_pool_alloc(pool, SIZE_MAX, NULL, &p));
    CHECK_SAYS_NUMBER(SIZE_MAX);
    CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, weir_pool_alloc(pool, SIZE_MAX - 4096, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, weir_pool_alloc(pool, SIZE_MAX / 2 + 1, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, weir_pool_alloc_aligned(pool, SIZE_MAX - 1, 4096, NULL, &p));
    /* Also where the thread keeps blocks that are long enough. */
    for (int kept = 0; kept < 2; kept++) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ALIGNMENT, weir_pool_alloc_aligned(pool, 100, 3, NULL, &p));
        CHECK_SAYS_NUMBER(3);
        CHECK_STATUS(WEIR_ERROR_INVALID_ALIGNMENT, weir_pool_alloc_aligned(pool, 100, 384, NULL, &p));
        CHECK_STATUS(WEIR_ERROR_INVALID_ALIGNMENT, weir_pool_alloc_aligned(pool, 100, (SIZE_MAX >> 1) + 1, NULL, &p));
        void *kinds[4][2];
        for (int i = 0; i < 4; i++) {
            CHECK_OK(weir_pool_alloc_aligned(pool, i < 2 ? 100 : 400, i % 2 ? 512 : 0, NULL, &kinds[i][0]));
            CHECK_OK(weir_pool_alloc_aligned(pool, i < 2 ? 100 : 400, i % 2 ? 512 : 0, NULL, &kinds[i][1]));
        }
        for (int i = 0; i < 8; i++) CHECK_OK(weir_pool_free(pool, kinds[i / 2][i % 2], NULL));
    }
    size_t sizes[] = {100, SIZE_MAX};
    size_t counts[] = {1, SIZE_MAX};
    void *ptrs[] = {untouched, untouched};
    CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, weir_pool_alloc_batch(pool, sizes, 2, NULL, ptrs));
    CHECK(ptrs[0] == untouched && ptrs[1] == untouched);
    CHECK(weir_pool_warmup(pool, sizes, counts, 2, NULL) != WEIR_OK);
    counts[1] = 1;
    CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, weir_pool_warmup(pool, sizes, counts, 2, NULL));
    CHECK_SAYS_NUMBER(SIZE_MAX);
    counts[1] = 0;
    CHECK_OK(weir_pool_warmup(pool, sizes, counts, 2, NULL));
    CHECK(p == untouched);
}

static void structs_and_numbers(void) {
    weir_pool *created = NULL;
    weir_pool_options o = check_options(0);
    weir_pool_stats s = {.struct_size = 0};
    uint64_t value = 77;

    o.struct_size = 0;
    CHECK_STATUS(WEIR_ERROR_STRUCT_SIZE, weir_pool_create(&o, &created));
    CHECK_SAYS_NUMBER(0);
    CHECK_STATUS(WEIR_ERROR_STRUCT_SIZE, weir_pool_get_stats(pool, &s));

    o = check_options(0);
    o.memory = 99;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_create(&o, &created));
    CHECK_SAYS_NUMBER(99);
    o = check_options(0);
    o.slack = -1.0;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_create(&o, &created));
    o = check_options(0);
    o.memory = WEIR_MEMORY_HOST;
    o.ipc_handle_types = 8;
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_create(&o, &created));
    o = check_options(4 * MiB);
    o.initial_bytes = 64 * MiB;
    CHECK(weir_pool_create(&o, &created) != WEIR_OK);
    CHECK(created == NULL);

    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_get_attribute(pool, 99, &value));
    CHECK_SAYS_NUMBER(99);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_attribute(pool, 99, 0));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC, 2));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_USED_CURRENT, 0));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_RESERVED_CURRENT, 0));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_USED_HIGH, 5));
    CHECK_EQUAL(value, 77);
    NOTHING_CHANGED();
}

static void streams_and_events(void) {
    weir_event not_one = (weir_event)&not_one;
    if (!check_on_device()) { /* to a driver's, weir passes them on */
        CHECK_STATUS(WEIR_ERROR_INVALID_EVENT, weir_event_record(not_one, NULL));
        CHECK_STATUS(WEIR_ERROR_INVALID_EVENT, weir_stream_wait_event(NULL, not_one));
        CHECK_STATUS(WEIR_ERROR_INVALID_EVENT, weir_event_synchronize(not_one));
        /* Any other value is a stream with nothing in flight. */
        CHECK_OK(weir_stream_synchronize((weir_stream)&not_one));
    }
    CHECK_STATUS(WEIR_ERROR_INVALID_EVENT, weir_host_event_query(not_one));
    CHECK_STATUS(WEIR_ERROR_INVALID_EVENT, weir_host_event_destroy(not_one));
    CHECK_STATUS(WEIR_ERROR_INVALID_STREAM, weir_host_stream_destroy((weir_stream)&not_one));
    CHECK_STATUS(WEIR_ERROR_INVALID_STREAM, weir_host_stream_synchronize((weir_stream)&not_one));
    CHECK_STATUS(WEIR_ERROR_INVALID_STREAM, weir_host_stream_enqueue((weir_stream)&not_one, (weir_host_function)free, NULL));
    NOTHING_CHANGED();
}

static void every_call_fails(weir_pool *dead, int status) {
    void *untouched = &untouched, *p = untouched;
    size_t size = 100, count = 1;
    uint64_t value = 77;
    weir_pool_stats s = {.struct_size = sizeof s};
    CHECK_STATUS(status, weir_pool_alloc(dead, 100, NULL, &p));
    CHECK_STATUS(status, weir_pool_alloc_aligned(dead, 100, 512, NULL, &p));
    CHECK_STATUS(status, weir_pool_free(dead, block, NULL));
    CHECK_STATUS(status, weir_pool_free_synced(dead, block));
    CHECK_STATUS(status, weir_pool_record_stream(dead, block, NULL));
    CHECK_STATUS(status, weir_pool_alloc_batch(dead, &size, 1, NULL, &p));
    CHECK_STATUS(status, weir_pool_free_batch(dead, &block, 1, NULL));
    CHECK_STATUS(status, weir_pool_warmup(dead, &size, &count, 1, NULL));
    CHECK_STATUS(status, weir_pool_trim(dead, 0));
    CHECK_STATUS(status, weir_pool_squeeze(dead, &size));
    CHECK_STATUS(status, weir_pool_set_release_threshold(dead, 0));
    CHECK_STATUS(status, weir_pool_set_attribute(dead, WEIR_ATTRIBUTE_RELEASE_THRESHOLD, 0));
    CHECK_STATUS(status, weir_pool_get_attribute(dead, WEIR_ATTRIBUTE_USED_CURRENT, &value));
    CHECK_STATUS(status, weir_pool_get_stats(dead, &s));
    CHECK_STATUS(status, weir_pool_reset_peaks(dead));
    CHECK_STATUS(status, weir_pool_retain(dead));
    CHECK_STATUS(status, weir_pool_release(dead));
    CHECK_STATUS(status, weir_pool_destroy(dead));
    CHECK(p == untouched && value == 77);
}

int main(void) {
    program_begin();
    pool = check_pool(64 * MiB);
    other = check_pool(64 * MiB);
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &block));
    CHECK_OK(weir_pool_alloc(other, 4 * MiB, NULL, &of_other));
    before = CHECK_STATS(pool);
    before_other = CHECK_STATS(other);

    pointers();
    nulls();
    structs_and_numbers();
    streams_and_events();
    sizes();
    double_free(1000);
    double_free(5 * MiB);

    /* After all that the pool works. */
    void *p;
    CHECK_OK(weir_pool_alloc(pool, MiB, NULL, &p));
    contents_fill(p, 7, MiB);
    CHECK_OK(weir_pool_free(pool, p, NULL));

    /* A pool that never was, one destroyed, one finalised. */
    CHECK_STATUS(WEIR_ERROR_INVALID_POOL, weir_pool_alloc((weir_pool *)&p, 100, NULL, &p));
    every_call_fails((weir_pool *)(uintptr_t)0x123456789abcdef0, WEIR_ERROR_INVALID_POOL);
    weir_pool *dead = check_pool(0);
    CHECK_OK(weir_pool_destroy(dead));
    every_call_fails(dead, WEIR_ERROR_POOL_DESTROYED);

    CHECK_OK(weir_pool_free(pool, block, NULL));
    CHECK_OK(weir_pool_free(other, of_other, NULL));
    CHECK_OK(weir_finalize());
    every_call_fails(pool, WEIR_ERROR_FINALIZED);
    CHECK_OK(weir_finalize());
    return program_end();
}
