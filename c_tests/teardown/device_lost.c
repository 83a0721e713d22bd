/* The device is lost (argument "lost", on the stand-in driver) or reset by the program ("reset") between an allocation
 * and its free: stale memory is never handed out again, frees balance the books, what can be given back is (the
 * stand-in ends the program if not), and a pool made after a reset works. */
#include "../streams.h"

enum { BLOCKS = 40 };

static void after_that(weir_pool *pool, void **blocks) {
    void *p = NULL;
    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 256 * MiB, CU_STREAM_PER_THREAD, &p));
    CHECK(weir_last_error()[0] != 0);
    printf("%s\n", weir_last_error());
    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 1000, NULL, &p)); /* one of that size is free */
    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 256 * MiB, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 4 * MiB, NULL, &p));
    CHECK(p == NULL);
    for (int i = 0; i < BLOCKS; i += 2) {
        switch (i % 6) {
        case 0: CHECK_OK(weir_pool_free(pool, blocks[i], NULL)); break;
        case 2: CHECK_OK(weir_pool_free_synced(pool, blocks[i])); break;
        default: CHECK_OK(weir_pool_free_batch(pool, &blocks[i], 1, NULL)); break;
        }
        CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, blocks[i], NULL));
    }
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    int trimmed = weir_pool_trim(pool, 0), squeezed = weir_pool_squeeze(pool, NULL);
    CHECK(trimmed == WEIR_OK || trimmed == WEIR_ERROR_DEVICE_LOST);
    CHECK(squeezed == WEIR_OK || squeezed == WEIR_ERROR_DEVICE_LOST);
    CHECK_OK(weir_pool_destroy(pool));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int reset = strcmp(argv[1], "reset") == 0;
    program_begin();
    weir_pool *pool = check_pool(0), *with_live_blocks = check_pool(0), *shared, *fresh;
    void *blocks[BLOCKS], *live, *of_shared, *p;
    CHECK_OK(weir_default_pool(0, &shared));
    CHECK_OK(weir_pool_alloc(shared, MiB, NULL, &of_shared));
    CHECK_OK(weir_pool_alloc(with_live_blocks, 16 * MiB, NULL, &live));
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(weir_pool_alloc(pool, i % 8 == 0 ? 4 * MiB : 1000, NULL, &blocks[i]));
        contents_fill(blocks[i], i, 1000);
    }
    for (int i = 1; i < BLOCKS; i += 2) {
        CHECK_OK(weir_pool_free(pool, blocks[i], NULL));
    }
    if (reset) {
        DEVICE_OK(cu.DevicePrimaryCtxReset(0));
    } else {
        void (*lose)(int);
        *(void **)&lose = device_symbol("standin_lose_device");
        lose(0);
    }
    after_that(pool, blocks);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_pool_destroy(with_live_blocks));
    CHECK_OK(weir_pool_free(shared, of_shared, NULL));
    CHECK_OK(weir_finalize());

    if (!reset) { /* a lost device does not come back in this process, and its events go with the context alone */
        DEVICE_OK(cu.DevicePrimaryCtxReset(0));
        CHECK(weir_pool_create(NULL, &fresh) == WEIR_ERROR_DEVICE_LOST || weir_pool_alloc(fresh, MiB, NULL, &p) != WEIR_OK);
        CHECK_OK(weir_finalize());
        DEVICE_OK(cu.DevicePrimaryCtxRelease(0));
        return check_end();
    }
    DEVICE_OK(cu.DevicePrimaryCtxRetain(&cu.context, 0));
    DEVICE_OK(cu.CtxSetCurrent(cu.context));
    fresh = check_pool(0);
    CHECK_OK(weir_pool_alloc(fresh, 16 * MiB, NULL, &p));
    contents_fill(p, 9, 16 * MiB);
    CHECK(contents_are(p, 9, 16 * MiB));
    CHECK_OK(weir_pool_free(fresh, p, NULL));
    CHECK_OK(weir_pool_destroy(fresh));
    CHECK_OK(weir_default_pool(0, &shared));
    CHECK_OK(weir_pool_alloc(shared, MiB, NULL, &p));
    CHECK_OK(weir_pool_free(shared, p, NULL));
    CHECK_OK(weir_finalize());
    (void)cu.DevicePrimaryCtxRelease(0); /* whether a reset takes the references along is the driver's affair */
    (void)cu.DevicePrimaryCtxRelease(0);
    return check_end();
}
