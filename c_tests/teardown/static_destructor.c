/* A static destructor that frees, destroys and asks after the driver is gone. The backend is told to act
 * unloaded from its exit handler on (WEIR_TEST_HOST_UNLOAD=1) and aborts on any call after that, so this
 * program ending with status 0 proves that there was none. */
#include "../check.h"

static weir_pool *pool, *never_destroyed_by_hand, *default_pool;
static void *block, *block_of_second, *block_of_default;

__attribute__((destructor)) static void after_exit_handlers(void) {
    void *p = NULL;
    CHECK_STATUS(WEIR_ERROR_UNLOADED, weir_pool_alloc(pool, 100, NULL, &p));
    CHECK(p == NULL);
    CHECK_STATUS(WEIR_ERROR_UNLOADED, weir_pool_alloc(pool, 64 * MiB, NULL, &p));
    CHECK_OK(weir_pool_free(pool, block, NULL));
    CHECK_OK(weir_pool_destroy(pool));

    CHECK_OK(weir_pool_free_synced(never_destroyed_by_hand, block_of_second));
    int squeezed = weir_pool_squeeze(never_destroyed_by_hand, NULL);
    CHECK(squeezed == WEIR_OK || squeezed == WEIR_ERROR_UNLOADED);
    int trimmed = weir_pool_trim(never_destroyed_by_hand, 0);
    CHECK(trimmed == WEIR_OK || trimmed == WEIR_ERROR_UNLOADED);

    /* The default pool ended at exit; its owner's late free and destroy do no harm. */
    CHECK_OK(weir_pool_free(default_pool, block_of_default, NULL));
    CHECK_OK(weir_pool_destroy(default_pool));
    CHECK_OK(weir_finalize());
    printf("static destructor: ");
    check_end();
}

int main(void) {
    CHECK(getenv("WEIR_TEST_HOST_UNLOAD") != NULL);
    pool = check_host_pool(0);
    never_destroyed_by_hand = check_host_pool(0);
    CHECK_OK(weir_default_pool(WEIR_DEVICE_HOST, &default_pool));
    CHECK_OK(weir_pool_alloc(pool, MiB, NULL, &block));
    CHECK_OK(weir_pool_alloc(never_destroyed_by_hand, MiB, NULL, &block_of_second));
    CHECK_OK(weir_pool_alloc(default_pool, MiB, NULL, &block_of_default));
    return check_end();
}
