/* Copies whose ends go away: direct, staged and held ones, and calls deferred until work is complete. */
#include "copies.h"

static const size_t sizes[] = {1, 100, 4 * KiB, 40 * KiB, 3 * MiB + 5};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* How a source is dropped while its copy is queued. */
enum dropping { ON_ITS_STREAM, ON_THE_HOST, SYNCED, DROPPINGS };

static void drop(weir_pool *pool, void *block, weir_stream stream, enum dropping how) {
    switch (how) {
    case ON_ITS_STREAM:
        CHECK_OK(weir_pool_free(pool, block, stream));
        break;
    case ON_THE_HOST:
        CHECK_OK(weir_pool_free(pool, block, WEIR_STREAM_HOST));
        break;
    default:
        CHECK_OK(weir_pool_free_synced(pool, block));
    }
}

/* Nobody gets the memory of a source before its copy is complete, not even in a request on the same stream. */
static void a_source_may_go_at_once(void) {
    sides s = sides_open();
    for (int i = 0; i < SIZES * DROPPINGS; i++) {
        size_t bytes = sizes[i % SIZES];
        gate g = {0};
        char *source = (char *)take(s.near, bytes, WEIR_STREAM_HOST), *target = (char *)take(s.far, bytes, s.stream);
        void *later[8];
        memset(source, 1, bytes);
        queue_gate(s.stream, &g);
        CHECK_OK(weir_copy_async(target, source, bytes, s.stream, 0));
        if (bytes > 50) { /* from the middle, too */
            CHECK_OK(weir_copy_async(target + 30, source + 30, 20, s.stream, 0));
        }
        drop(s.near, source, s.stream, (enum dropping)(i / SIZES));
        CHECK(CHECK_STATS(s.near).pending_bytes >= bytes);
        for (int j = 0; j < 8; j++) {
            later[j] = take(s.near, bytes, j % 2 ? s.stream : WEIR_STREAM_HOST);
            CHECK(later[j] != source);
            memset(later[j], 2, bytes);
        }
        gate_pass(&g, s.stream);
        CHECK(contents_are(target, 1, bytes));
        CHECK_EQUAL(CHECK_STATS(s.near).pending_bytes, 0);
        for (int j = 0; j < 8; j++) {
            CHECK_OK(weir_pool_free_synced(s.near, later[j]));
        }
        CHECK_OK(weir_pool_free(s.far, target, s.stream));
    }
    sides_close(&s);
}

static void a_target_may_go_at_once(void) {
    sides s = sides_open();
    const size_t bytes = 64 * KiB;
    gate g = {0};
    void *source = take(s.far, bytes, s.stream), *target = take(s.near, bytes, WEIR_STREAM_HOST);
    stream_wait(s.stream);
    contents_fill(source, 3, bytes);
    queue_gate(s.stream, &g);
    CHECK_OK(weir_copy_async(target, source, bytes, s.stream, 0));
    CHECK_OK(weir_pool_free_synced(s.near, target));
    void *next = take(s.near, bytes, WEIR_STREAM_HOST);
    CHECK(next != target);
    memset(next, 4, bytes);
    gate_pass(&g, s.stream);
    CHECK(bytes_are(next, 4, bytes));
    CHECK_OK(weir_pool_free(s.near, next, WEIR_STREAM_HOST));
    CHECK_OK(weir_pool_free(s.far, source, s.stream));
    sides_close(&s);
}

/* A staged copy's target, too. */
static void a_staged_target_may_go_at_once(void) {
    sides s = sides_open();
    const size_t all[] = {4 * KiB, 300 * KiB}; /* short, and in pieces that are all under way */
    for (int i = 0; i < 4; i++) {
        size_t bytes = all[i % 2];
        gate g = {0};
        opener o;
        void *source = malloc(bytes), *target = take(s.near, bytes, WEIR_STREAM_HOST), *later[8];
        memset(source, 3, bytes);
        queue_gate(s.stream, &g);
        if (check_on_device()) {
            opener_start(&o, &g, 20); /* a driver makes copies within the host's memory before the call returns */
        }
        CHECK_OK(weir_copy_async(target, source, bytes, s.stream, WEIR_COPY_STAGED));
        drop(s.near, target, s.stream, i < 2 ? SYNCED : ON_THE_HOST);
        free(source);
        for (int j = 0; j < 8; j++) {
            later[j] = take(s.near, bytes, WEIR_STREAM_HOST);
            CHECK(later[j] != target || atomic_load(&g.open));
            memset(later[j], 4, bytes);
        }
        if (check_on_device()) {
            opener_join(&o);
        }
        gate_pass(&g, s.stream);
        CHECK_EQUAL(CHECK_STATS(s.near).pending_bytes, 0);
        for (int j = 0; j < 8; j++) {
            CHECK(bytes_are(later[j], 4, bytes));
            CHECK_OK(weir_pool_free_synced(s.near, later[j]));
        }
    }
    sides_close(&s);
}

/* What was waited for is held back no longer; a slow stream holds back its own only; a stream may go at once. */
static void memory_comes_back_by_itself(void) {
    sides s = sides_open();
    weir_stream quick = stream_new();
    gate g = {0};
    void *slow = take(s.near, 1 * MiB, WEIR_STREAM_HOST), *fast = take(s.near, 2 * MiB, WEIR_STREAM_HOST);
    void *target = take(s.far, 1 * MiB, s.stream), *other = take(s.far, 2 * MiB, quick);
    memset(slow, 1, 1 * MiB);
    memset(fast, 1, 2 * MiB);
    queue_gate(s.stream, &g);
    CHECK_OK(weir_copy_async(target, slow, 1 * MiB, s.stream, 0));
    CHECK_OK(weir_copy_async(other, fast, 2 * MiB, quick, 0));
    stream_end(quick);
    CHECK_OK(weir_pool_free_synced(s.near, slow));
    CHECK_OK(weir_pool_free_synced(s.near, fast));
    for (int i = 0; CHECK_STATS(s.near).pending_bytes != 1 * MiB; i++) {
        CHECK(i < 10000);
        pause_ms(1);
    }
    CHECK(contents_are(other, 1, 2 * MiB));
    CHECK_OK(weir_pool_free_synced(s.far, other));
    gate_pass(&g, s.stream);
    CHECK_EQUAL(CHECK_STATS(s.near).pending_bytes, 0);
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
}

static void a_staged_source_may_change(void) {
    sides s = sides_open();
    const size_t all[] = {1, 4 * KiB, 300 * KiB, 1 * MiB + 3, 20 * MiB + 7};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t bytes = all[i];
        char *source = (char *)malloc(bytes);
        char *target = (char *)take(s.far, bytes, s.stream);
        memset(source, 5, bytes);
        CHECK_OK(weir_copy_async(target, source, bytes, s.stream, WEIR_COPY_STAGED));
        memset(source, 6, bytes);
        stream_wait(s.stream);
        CHECK(contents_are(target, 5, bytes));
        CHECK_OK(weir_copy_async(source, target, bytes, s.stream, WEIR_COPY_STAGED));
        CHECK(bytes_are(source, 5, bytes)); /* to pageable memory: complete */
        free(source);
        CHECK_OK(weir_pool_free(s.far, target, s.stream));
    }
    sides_close(&s);
}

/* A staged copy to memory of the program's is behind the work of its stream, which wrote the block, and complete. */
static void a_staged_copy_out_is_behind_the_work(void) {
    sides s = sides_open();
    const size_t all[] = {4 * KiB, 1 * MiB + 8, 20 * MiB + 8};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        size_t bytes = all[i];
        char *target = (char *)calloc(1, bytes), *block = (char *)take(s.far, bytes, s.stream);
        opener o;
        gate g = {0};
        job write = job_over(block, bytes, 77 + i), read = job_over(target, bytes, 77 + i);
        queue_gate(s.stream, &g);
        queue_write(s.stream, &write);
        opener_start(&o, &g, 20);
        CHECK_OK(weir_copy_async(target, block, bytes, s.stream, WEIR_COPY_STAGED));
        CHECK(!words_broken(read.words, &read));
        opener_join(&o);
        CHECK(job_done(&write));
        CHECK_OK(weir_pool_free(s.far, block, s.stream));
        free(target);
    }
    sides_close(&s);
    staging_end();
}

/* A short one does not wait for a stream that stands still, nor do more than there is room for in one piece of memory. */
static void a_staged_copy_does_not_wait(void) {
    sides s = sides_open();
    enum { COPIES = 300 };
    gate g = {0};
    char source[4 * KiB];
    char *target = (char *)take(s.far, COPIES * sizeof source, s.stream);
    queue_gate(s.stream, &g);
    for (int i = 0; i < COPIES; i++) {
        memset(source, i % 251, sizeof source);
        CHECK_OK(weir_copy_async(target + i * sizeof source, source, sizeof source, s.stream, WEIR_COPY_STAGED));
    }
    memset(source, 255, sizeof source);
    CHECK(!atomic_load(&g.open));
    gate_pass(&g, s.stream);
    for (int i = 0; i < COPIES; i++) {
        CHECK(contents_are(target + i * sizeof source, i % 251, sizeof source));
    }
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
}

/* What it goes through is nobody's before it is complete, and comes back by itself, also when the stream has gone. */
static void short_copies_keep_no_memory(void) {
    if (!check_on_device() || check_under("sanitizer")) {
        return; /* on the host nobody can ask for that pool; under compute-sanitizer a driver's call here waits for the gate */
    }
    sides s = sides_open();
    weir_pool *pool;
    weir_stream passing = stream_new();
    gate g = {0};
    char source[4 * KiB];
    void *target = take(s.far, sizeof source, s.stream);
    memset(source, 8, sizeof source);
    CHECK_OK(weir_default_pinned_pool(0, &pool));
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    queue_gate(passing, &g);
    CHECK_OK(weir_copy_async(target, source, sizeof source, passing, WEIR_COPY_STAGED));
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK(CHECK_STATS(pool).used_bytes >= sizeof source);
    stream_end(passing);
    atomic_store(&g.open, 1);
    for (int i = 0; CHECK_STATS(pool).used_bytes != 0; i++) {
        CHECK(i < 10000);
        pause_ms(1);
    }
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK(contents_are(target, 8, sizeof source));
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
}

/* Without memory for pieces the copy is complete when the call returns. */
static void without_staging_memory_it_waits(void) {
    sides s = sides_open();
    opener o;
    gate g = {0};
    char *source = (char *)malloc(1 * MiB);
    void *target = take(s.far, 1 * MiB, s.stream);
    memset(source, 7, 1 * MiB);
    queue_gate(s.stream, &g);
    opener_start(&o, &g, 50);
    setenv("WEIR_MAX_BYTES", "2M", 1); /* so that the pool for pieces, which is made now, cannot be made */
    setenv("WEIR_INITIAL_BYTES", "4M", 1);
    CHECK_OK(weir_copy_async(target, source, 1 * MiB, s.stream, WEIR_COPY_STAGED));
    CHECK(atomic_load(&g.open));
    CHECK(contents_are(target, 7, 1 * MiB));
    unsetenv("WEIR_MAX_BYTES");
    unsetenv("WEIR_INITIAL_BYTES");
    opener_join(&o);
    free(source);
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
}

typedef struct {
    weir_stream stream;
    char *from, *to;
    size_t bytes;
    weir_status status;
} inner_copy;

static void copy_from_within(void *arg) {
    inner_copy *copy = (inner_copy *)arg;
    copy->status = weir_copy_async(copy->to, copy->from, copy->bytes, copy->stream, WEIR_COPY_STAGED);
}

/* A function on a host stream may queue a copy there, but not wait for it. */
static void a_copy_within_work_of_its_stream(void) {
    if (check_on_device()) {
        return; /* a driver's host function may not call the driver */
    }
    const size_t bytes = 20 * MiB;
    inner_copy copy = {stream_new(), (char *)calloc(2, bytes), NULL, 40 * KiB, WEIR_OK};
    copy.to = copy.from + bytes;
    memset(copy.from, 5, bytes);
    CHECK_OK(weir_host_stream_enqueue(copy.stream, copy_from_within, &copy));
    stream_wait(copy.stream);
    stream_wait(copy.stream); /* for what the function has queued */
    CHECK_EQUAL(copy.status, WEIR_OK);
    CHECK(bytes_are(copy.to, 5, 40 * KiB));
    copy.bytes = bytes; /* more than can be under way at a time */
    memset(copy.to, 0, bytes);
    CHECK_OK(weir_host_stream_enqueue(copy.stream, copy_from_within, &copy));
    stream_wait(copy.stream);
    stream_wait(copy.stream); /* for what the function has queued */
    CHECK_EQUAL(copy.status, WEIR_ERROR_BACKEND);
    CHECK(bytes_are(copy.to, 0, bytes));
    sides s = sides_open();
    char *block = (char *)take(s.far, 40 * KiB, copy.stream), *from = copy.from;
    copy.from = block; /* to memory of the program's it would be complete */
    copy.bytes = 40 * KiB;
    CHECK_OK(weir_host_stream_enqueue(copy.stream, copy_from_within, &copy));
    stream_wait(copy.stream);
    stream_wait(copy.stream);
    CHECK_EQUAL(copy.status, WEIR_ERROR_BACKEND);
    CHECK(bytes_are(copy.to, 0, bytes));
    CHECK_OK(weir_pool_free(s.far, block, copy.stream));
    sides_close(&s);
    stream_end(copy.stream);
    free(from);
}

/* The pool that staged copies on a GPU's streams go through is anybody's. */
static void the_default_pinned_pool(void) {
    weir_pool *pool = NULL, *again = NULL;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_default_pinned_pool(WEIR_DEVICE_HOST, &pool));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_default_pinned_pool(0, NULL));
    if (check_on_device()) {
        int32_t memory = -1;
        int device = 5;
        CHECK_OK(weir_default_pinned_pool(0, &pool));
        CHECK_OK(weir_default_pinned_pool(0, &again));
        CHECK(pool == again);
        CHECK_OK(weir_pool_get_memory(pool, &memory, &device));
        CHECK_EQUAL(memory, WEIR_MEMORY_PINNED);
        CHECK_EQUAL(device, WEIR_DEVICE_HOST);
    }
}

static void mistakes(void) {
    sides s = sides_open();
    char *block = (char *)take(s.near, 8 * KiB, WEIR_STREAM_HOST), *target = (char *)take(s.far, 8 * KiB, s.stream);
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_copy_async(NULL, block, 1, s.stream, 0));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_copy_async(target, NULL, 1, s.stream, WEIR_COPY_STAGED));
    CHECK_OK(weir_copy_async(NULL, NULL, 0, s.stream, 0));
    CHECK_OK(weir_copy_async(NULL, NULL, 0, s.stream, WEIR_COPY_STAGED));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_copy_async(target, block, 1, s.stream, 4));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_copy_async(target, block, 1, s.stream, WEIR_COPY_HOLD));
    CHECK_SAYS("weir_copy_async_hold");
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT,
                 weir_copy_async_hold(target, block, 1, s.stream, WEIR_COPY_STAGED, gate_wait, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_copy_async_hold(target, block, 1, s.stream, 0, NULL, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_stream_defer(s.stream, NULL, NULL));
    CHECK_OK(weir_pool_free_synced(s.near, block));
    for (uint32_t flags = 0; flags <= WEIR_COPY_STAGED; flags += WEIR_COPY_STAGED) {
        CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_copy_async(target, block, 1, s.stream, flags));
        CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_copy_async(block, target, 1, s.stream, flags));
    }
    if (check_on_device()) {
        CHECK_STATUS(WEIR_ERROR_INVALID_STREAM, weir_copy_async(target, target, 1, WEIR_STREAM_HOST, 0));
        CHECK_STATUS(WEIR_ERROR_INVALID_STREAM, weir_stream_defer(WEIR_STREAM_HOST, gate_wait, NULL));
    }
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
}

/* A stream on which nothing is in flight: what is asked for has been done. */
static void without_a_stream(void) {
    if (check_on_device()) {
        return; /* there every stream is one */
    }
    char from[100], to[100] = {0};
    memset(from, 9, sizeof from);
    CHECK_OK(weir_copy_async(to, from, sizeof from, NULL, 0));
    CHECK(bytes_are(to, 9, sizeof to));
    memset(to, 0, sizeof to);
    CHECK_OK(weir_copy_async(to, from, sizeof from, WEIR_STREAM_HOST, WEIR_COPY_STAGED));
    CHECK(bytes_are(to, 9, sizeof to));
}

static void registered_memory(void) {
    if (!check_on_device()) {
        return;
    }
    sides s = sides_open();
    gate g = {0};
    char *memory = (char *)malloc(1 * MiB), *target = (char *)take(s.far, 1 * MiB, s.stream);
    CHECK_OK(weir_host_unregister(NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_host_register(NULL, 1));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_host_register(memory, 0));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_host_unregister(memory));
    CHECK_OK(weir_host_register(memory, 1 * MiB));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_host_register(memory + 4096, 4096));
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_host_register(target, 4096));
    memset(memory, 1, 1 * MiB);
    queue_gate(s.stream, &g);
    CHECK_OK(weir_copy_async(target, memory, 1 * MiB, s.stream, 0));
    memset(memory, 2, 1 * MiB); /* not staged by anybody: the copy has not been made */
    gate_pass(&g, s.stream);
    CHECK(contents_are(target, 2, 1 * MiB));
    CHECK_OK(weir_host_unregister(memory));
    /* what others have page-locked is only noted */
    void *theirs = NULL;
    DEVICE_OK(cu.MemHostAlloc(&theirs, 4096, 0));
    CHECK_OK(weir_host_register(theirs, 4096));
    CHECK_OK(weir_host_unregister(theirs));
    DEVICE_OK(cu.MemFreeHost(theirs));
    /* the rest would stay pageable */
    DEVICE_OK(cu.MemHostRegister(memory, 4096, 0));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_host_register(memory, 1 * MiB));
    CHECK(strstr(weir_last_error(), "page-locked already") != NULL);
    DEVICE_OK(cu.MemHostUnregister(memory));
    CHECK_OK(weir_host_register(memory, 4096)); /* and left to weir_finalize */
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
    CHECK_OK(weir_finalize());
    free(memory);
}

int main(void) {
    program_begin();
    a_source_may_go_at_once();
    a_target_may_go_at_once();
    memory_comes_back_by_itself();
    without_staging_memory_it_waits(); /* first: there is no pool for pieces yet */
    a_staged_target_may_go_at_once();
    a_staged_source_may_change();
    a_staged_copy_out_is_behind_the_work();
    a_staged_copy_does_not_wait();
    short_copies_keep_no_memory();
    a_copy_within_work_of_its_stream();
    the_default_pinned_pool();
    mistakes();
    without_a_stream();
    registered_memory();
    CHECK_OK(weir_finalize());
    return program_end();
}
