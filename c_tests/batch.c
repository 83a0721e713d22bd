/* Batches are all or nothing; a warmed-up pool serves the sizes it was told without growing. */
#include "contents.h"
#include <pthread.h>

static void batch(void) {
    weir_pool *pool = check_pool(16 * MiB), *other = check_pool(0);
    size_t sizes[32];
    void *ptrs[33], *foreign, *untouched = &untouched;
    for (int i = 0; i < 32; i++) {
        sizes[i] = (size_t)i * 1000;
    }
    CHECK_OK(weir_pool_alloc_batch(pool, sizes, 32, NULL, ptrs));
    for (int i = 0; i < 32; i++) {
        contents_fill(ptrs[i], i, sizes[i]);
        for (int k = 0; k < i; k++) {
            CHECK(ptrs[i] != ptrs[k]);
        }
    }
    CHECK_EQUAL(CHECK_STATS(pool).allocations, 32);
    CHECK_OK(weir_pool_alloc_batch(pool, NULL, 0, NULL, NULL));
    CHECK_OK(weir_pool_free_batch(pool, NULL, 0, NULL));

    /* One bad pointer among good ones: nothing is freed. */
    weir_pool_stats before = CHECK_STATS(pool);
    int on_stack;
    ptrs[32] = &on_stack;
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free_batch(pool, ptrs, 33, NULL));
    CHECK_UNCHANGED(pool, before);
    CHECK_OK(weir_pool_alloc(other, 100, NULL, &foreign));
    ptrs[32] = foreign;
    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_free_batch(pool, ptrs, 33, NULL));
    CHECK_UNCHANGED(pool, before);
    ptrs[32] = ptrs[3]; /* the same block twice */
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free_batch(pool, ptrs, 33, NULL));
    CHECK_UNCHANGED(pool, before);
    for (int i = 0; i < 32; i++) {
        CHECK(contents_are(ptrs[i], i, sizes[i]));
    }
    ptrs[32] = NULL; /* fine */
    CHECK_OK(weir_pool_free_batch(pool, ptrs, 33, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);

    /* The last of three does not fit: none is given. */
    size_t big[] = {6 * MiB, 6 * MiB, 6 * MiB};
    ptrs[0] = ptrs[1] = ptrs[2] = untouched;
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc_batch(pool, big, 3, NULL, ptrs));
    CHECK(ptrs[0] == untouched && ptrs[1] == untouched && ptrs[2] == untouched);
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    CHECK_OK(weir_pool_alloc_batch(pool, big, 2, NULL, ptrs));
    CHECK_OK(weir_pool_free_batch(pool, ptrs, 2, NULL));

    CHECK_OK(weir_pool_free(other, foreign, NULL));
    CHECK_OK(weir_pool_destroy(other));
    CHECK_OK(weir_pool_destroy(pool));
}

static void warmup(void) {
    weir_pool *pool = check_pool(0);
    size_t sizes[] = {1000, 40 * KiB, 3 * MiB};
    size_t counts[] = {200, 20, 4};
    void *ptrs[224];
    int n = 0;
    CHECK_OK(weir_pool_warmup(pool, sizes, counts, 3, NULL));
    weir_pool_stats before = CHECK_STATS(pool);
    CHECK_EQUAL(before.used_bytes, 0);
    CHECK(before.reserved_bytes >= 12 * MiB);
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < counts[k]; i++) {
            CHECK_OK(weir_pool_alloc(pool, sizes[k], NULL, &ptrs[n++]));
        }
    }
    weir_pool_stats after = CHECK_STATS(pool);
    CHECK_EQUAL(after.reserved_bytes, before.reserved_bytes);
    CHECK_EQUAL(after.page_creates, before.page_creates);
    CHECK_OK(weir_pool_free_batch(pool, ptrs, (size_t)n, NULL));
    CHECK_OK(weir_pool_destroy(pool));

    pool = check_pool(4 * MiB);
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_warmup(pool, sizes, counts, 3, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    CHECK(CHECK_STATS(pool).reserved_bytes_peak <= 4 * MiB);
    /* so many that a list of them would not fit into memory */
    size_t most = (size_t)1 << 32;
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_warmup(pool, sizes, &most, 1, NULL));
    most++;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_warmup(pool, sizes, &most, 1, NULL));
    CHECK_OK(weir_pool_destroy(pool));
}

/* Threads have each other's blocks as soon as these are free, and may use them: valgrind has heard of both in time. */
enum { THREADS = 4, BLOCKS = 64 };

static void *pass_on(void *arg) {
    weir_pool *pool = (weir_pool *)arg;
    size_t sizes[BLOCKS];
    void *ptrs[BLOCKS];
    int rounds = check_on_device() ? 20 : 200, step = check_on_device() ? 16 : 1; /* on a device each word is a copy */
    program_thread();
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            sizes[i] = 256 + (size_t)(round + i) % 5 * 5000;
        }
        CHECK_OK(weir_pool_alloc_batch(pool, sizes, BLOCKS, NULL, ptrs));
        for (int i = 0; i < BLOCKS; i += step) {
            word_put((uint64_t *)ptrs[i], sizes[i] / 8 - 1, (uint64_t)i);
        }
        for (int i = 0; i < BLOCKS; i += step) {
            CHECK_EQUAL(word_get((uint64_t *)ptrs[i], sizes[i] / 8 - 1), i);
        }
        CHECK_OK(weir_pool_free_batch(pool, ptrs, BLOCKS, NULL));
    }
    return NULL;
}

static void crowd(void) {
    weir_pool_options options = check_options(0);
    weir_pool *pool = NULL;
    pthread_t threads[THREADS];
    options.thread_caches = 0;
    CHECK_OK(weir_pool_create(&options, &pool));
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQUAL(pthread_create(&threads[i], NULL, pass_on, pool), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    batch();
    warmup();
    crowd();
    return program_end();
}
