/* A static destructor that frees, destroys and asks after the driver is gone. The backend or the stand-in driver is
 * told to act unloaded from its exit handler on and aborts on any call after that, so this program ending with
 * status 0 proves that there was none. A GPU's driver does not say when it goes: there requests may succeed, too. */
#include "../contents.h"

static weir_pool *pool, *never_destroyed_by_hand, *default_pool;
static void *block, *block_of_second, *block_of_default;

static void ask(size_t bytes) {
    void *p = NULL;
    int status = weir_pool_alloc(pool, bytes, NULL, &p);
    if (!check_unloads() && status == WEIR_OK) {
        CHECK_OK(weir_pool_free(pool, p, NULL));
        return;
    }
    CHECK_STATUS(WEIR_ERROR_UNLOADED, status);
    CHECK(p == NULL);
}

__attribute__((destructor)) static void after_exit_handlers(void) {
    ask(100);
    ask(64 * MiB);
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
    program_begin();
    CHECK(check_unloads() || (check_on_device() && !device_is_standin()));
    pool = check_pool(0);
    never_destroyed_by_hand = check_pool(0);
    CHECK_OK(weir_default_pool(check_device(), &default_pool));
    CHECK_OK(weir_pool_alloc(pool, MiB, NULL, &block));
    CHECK_OK(weir_pool_alloc(never_destroyed_by_hand, MiB, NULL, &block_of_second));
    CHECK_OK(weir_pool_alloc(default_pool, MiB, NULL, &block_of_default));
    return program_end();
}
