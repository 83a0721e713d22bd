/* Owners that outlive their pool, and pools that end with live blocks: defined, reported. To valgrind those
 * blocks are leaks, with the function that asked for them. */
#include "../contents.h"

__attribute__((noinline)) void *block_that_outlives_its_pool(weir_pool *pool, size_t bytes) {
    void *block;
    CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &block));
    return block;
}

int main(void) {
    program_begin();
    weir_pool *pool = check_pool(0);
    weir_pool_options named = check_options(0);
    void *a, *b, *c;
    named.name = "assembly";

    /* The pool goes, the owner still holds a block. */
    a = block_that_outlives_its_pool(pool, 1000);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_pool_destroy(pool));
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_free(pool, a, NULL));
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_free_synced(pool, a));
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_destroy(pool));

    /* The report has the pool's name, the count and the sizes. */
    CHECK_OK(weir_pool_create(&named, &pool));
    CHECK_OK(weir_pool_alloc(pool, 3 * MiB, NULL, &a));
    CHECK_OK(weir_pool_alloc(pool, 5 * MiB, NULL, &b));
    CHECK_OK(weir_pool_alloc(pool, 7 * MiB, NULL, &c));
    CHECK_OK(weir_pool_free(pool, b, NULL));
    uint64_t used = CHECK_STATS(pool).used_bytes;
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_pool_destroy(pool));
    CHECK_SAYS("assembly");
    CHECK_SAYS("2 blocks");
    CHECK_SAYS_NUMBER(used);
    CHECK_SAYS_NUMBER(3 * MiB);
    CHECK_SAYS_NUMBER(7 * MiB);

    /* The last release destroys, and reports the same way. */
    pool = check_pool(0);
    CHECK_OK(weir_pool_retain(pool));
    CHECK_OK(weir_pool_alloc(pool, 3 * MiB, NULL, &a));
    CHECK_OK(weir_pool_release(pool));
    CHECK_OK(weir_pool_alloc(pool, 3 * MiB, NULL, &b));
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_pool_release(pool));
    CHECK_SAYS("2 blocks");

    /* A new pool is not confused with the one whose place it took. */
    weir_pool *next = check_pool(0);
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_alloc(pool, 100, NULL, &a));
    CHECK_OK(weir_pool_alloc(next, 100, NULL, &a));
    CHECK_OK(weir_pool_free(next, a, NULL));
    CHECK_OK(weir_pool_destroy(next));
    return program_end();
}
