/* What a thread frees serves its next requests; it is no leak, comes back when the thread ends, and others get it when
 * they need it. */
#include "check.h"
#include <pthread.h>

enum { ROUNDS = 200 };

static weir_pool *shared;

static weir_pool *pool_of(uint64_t most, int declared) {
    weir_pool_options options = check_options(most);
    weir_pool *pool;
    options.declared_streams = declared;
    CHECK_OK(weir_pool_create(&options, &pool));
    return pool;
}

/* Enough calls that the thread has a cache, which at the end keeps some blocks. */
static void come_and_go(weir_pool *pool, weir_stream stream) {
    static const size_t sizes[] = {100, 3 * KiB, 40 * KiB, 200 * KiB, 3 * MiB};
    void *ptrs[5];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 5; i++) {
            CHECK_OK(weir_pool_alloc(pool, sizes[i], stream, &ptrs[i]));
        }
        for (int i = 0; i < 5; i++) {
            CHECK_OK(weir_pool_free(pool, ptrs[i], stream));
        }
    }
    weir_pool_stats stats = CHECK_STATS(pool);
    CHECK(stats.cache_hits >= ROUNDS);
}

static void reuse(weir_pool *pool, weir_stream stream) {
    come_and_go(pool, stream);
    void *first, *second;
    CHECK_OK(weir_pool_alloc(pool, 5000, stream, &first));
    CHECK_OK(weir_pool_free(pool, first, stream));
    CHECK_OK(weir_pool_alloc(pool, 5000, stream, &second));
    CHECK(first == second);
    CHECK_OK(weir_pool_free(pool, second, stream));
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, second, stream));
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_record_stream(pool, second, stream));
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
}

/* A batch is served by what the thread keeps, and goes there, as single blocks do: all of it or nothing. */
static void batches(weir_pool *pool) {
    static const size_t sizes[] = {100, 3 * KiB, 40 * KiB, 200 * KiB};
    void *ptrs[5], *others[4];
    come_and_go(pool, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_OK(weir_pool_alloc_batch(pool, sizes, 4, NULL, ptrs));
        ptrs[4] = ptrs[round % 4];
        weir_pool_stats before = CHECK_STATS(pool);
        CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free_batch(pool, ptrs, 5, NULL));
        CHECK_UNCHANGED(pool, before);
        ptrs[4] = NULL;
        CHECK_OK(weir_pool_free_batch(pool, ptrs, 5, NULL));
        CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, ptrs[round % 4], NULL));
        CHECK_OK(weir_pool_alloc_batch(pool, sizes, 4, NULL, others));
        for (int i = 0; i < 4; i++) {
            CHECK(others[i] == ptrs[i]);
        }
        CHECK_OK(weir_pool_free_batch(pool, others, 4, NULL));
    }
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
}

static void *worker(void *arg) {
    (void)arg;
    come_and_go(shared, NULL);
    void *mine;
    CHECK_OK(weir_pool_alloc(shared, 1000, NULL, &mine));
    return mine;
}

enum { HANDED = 64 };

static void *consumer(void *arg) {
    void **blocks = arg;
    weir_pool_stats before = CHECK_STATS(shared);
    for (int i = 0; i < HANDED; i++) {
        CHECK_OK(weir_pool_free(shared, blocks[i], NULL));
    }
    /* it keeps nearly all of them, though it allocates nothing */
    CHECK(CHECK_STATS(shared).cached_bytes >= before.cached_bytes + (HANDED - 16) * 40 * KiB);
    return NULL;
}

/* A thread that only frees has a cache, too. */
static void consumers(void) {
    void *blocks[HANDED];
    pthread_t id;
    shared = pool_of(0, 0);
    for (int i = 0; i < HANDED; i++) {
        CHECK_OK(weir_pool_alloc(shared, 40 * KiB, NULL, &blocks[i]));
    }
    CHECK_EQUAL(pthread_create(&id, NULL, consumer, blocks), 0);
    CHECK_EQUAL(pthread_join(id, NULL), 0);
    CHECK_EQUAL(CHECK_STATS(shared).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(shared));
}

static void threads(void) {
    shared = pool_of(16 * MiB, 0);
    void *all, *theirs[4];
    pthread_t ids[4];
    for (int i = 0; i < 4; i++) {
        CHECK_EQUAL(pthread_create(&ids[i], NULL, worker, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQUAL(pthread_join(ids[i], &theirs[i]), 0);
    }
    CHECK_EQUAL(CHECK_STATS(shared).used_bytes, 4 * 1024);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(weir_pool_free(shared, theirs[i], NULL));
    }
    come_and_go(shared, NULL);
    CHECK_OK(weir_pool_alloc(shared, 16 * MiB, NULL, &all)); /* all that any thread ever kept */
    CHECK_OK(weir_pool_free(shared, all, NULL));
    CHECK_OK(weir_pool_squeeze(shared, NULL));
    CHECK_EQUAL(CHECK_STATS(shared).reserved_bytes, 0);
    come_and_go(shared, NULL);
    CHECK_OK(weir_pool_destroy(shared)); /* what is kept is no live block */
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_alloc(shared, 100, NULL, &all));
}

static void declared(void) {
    weir_pool *pool = pool_of(0, 1);
    weir_stream stream;
    if (check_options(0).memory != WEIR_MEMORY_HOST) {
        reuse(pool, NULL); /* the driver's streams are in c_tests/device */
        CHECK_OK(weir_stream_changed(NULL));
        reuse(pool, NULL);
        CHECK_OK(weir_pool_destroy(pool));
        return;
    }
    CHECK_OK(weir_host_stream_create(&stream));
    reuse(pool, stream);
    CHECK_OK(weir_stream_changed(stream));
    CHECK_OK(weir_host_stream_destroy(stream));
    CHECK_OK(weir_host_stream_create(&stream));
    reuse(pool, stream);
    CHECK_OK(weir_stream_changed(stream));
    CHECK_OK(weir_stream_changed(NULL));
    CHECK_OK(weir_host_stream_destroy(stream));
    CHECK_OK(weir_pool_destroy(pool));
}

enum { STREAMS = 6, POOLS = 64, TURNS = 20 };

static weir_stream name_of(uintptr_t i, uintptr_t j) {
    return (weir_stream)(0x550000000000 + 0x150 * (977 * i + 7919 * j + 131 * j * j * j));
}

/* A thread has a cache for each of several streams, whatever their handles are: these are mere names, as of a framework's own streams. */
static void several(int declared) {
    if (check_options(0).memory != WEIR_MEMORY_HOST) {
        return;
    }
    for (uintptr_t i = 0; i < POOLS; i++) {
        weir_pool *pool = pool_of(0, declared);
        for (int turn = 0; turn < TURNS; turn++) {
            void *ptrs[STREAMS];
            for (uintptr_t j = 0; j < STREAMS; j++) {
                CHECK_OK(weir_pool_alloc(pool, 40 * KiB, name_of(i, j), &ptrs[j]));
            }
            for (uintptr_t j = 0; j < STREAMS; j++) {
                CHECK_OK(weir_pool_free(pool, ptrs[j], name_of(i, j)));
            }
        }
        CHECK_EQUAL(CHECK_STATS(pool).cached_bytes, STREAMS * 40 * KiB);
        CHECK_OK(weir_pool_destroy(pool));
    }
}

static void without(void) {
    weir_pool_options options = check_options(0);
    weir_pool *pool;
    void *ptr;
    options.thread_caches = 2;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_create(&options, &pool));
    CHECK_SAYS("thread_caches");
    options.thread_caches = 0;
    CHECK_OK(weir_pool_create(&options, &pool));
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_OK(weir_pool_alloc(pool, 5000, NULL, &ptr));
        CHECK_OK(weir_pool_free(pool, ptr, NULL));
        CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    }
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    weir_pool *pool = pool_of(0, 0);
    reuse(pool, NULL);
    batches(pool);
    CHECK_OK(weir_pool_destroy(pool));
    threads();
    consumers();
    declared();
    several(0);
    several(1);
    without();
    /* A cache outlives its pool, and the next pool has its own. */
    pool = pool_of(0, 0);
    come_and_go(pool, NULL);
    CHECK_OK(weir_finalize());
    pool = pool_of(0, 0);
    reuse(pool, NULL);
    CHECK_OK(weir_pool_destroy(pool));
    return check_end();
}
