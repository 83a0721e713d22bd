/* The stand-in driver goes while pools live. The first call that is answered with "deinitialized" is the last that weir
 * makes: any other one ends the program. */
#include "../streams.h"

int main(void) {
    program_begin();
    weir_pool *pool = check_pool(0), *other = check_pool(0), *late = NULL;
    void *p, *q, *of_other, *none = NULL;
    void (*unload_quietly)(void), (*unload)(void);
    *(void **)&unload_quietly = device_symbol("standin_unload_quietly");
    *(void **)&unload = device_symbol("standin_unload");
    CHECK_OK(weir_pool_alloc(pool, 4 * MiB, NULL, &p));
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &q));
    CHECK_OK(weir_pool_alloc(other, 1000, NULL, &of_other));
    unload_quietly();
    CHECK_STATUS(WEIR_ERROR_UNLOADED, weir_pool_alloc(pool, 256 * MiB, NULL, &none));
    unload();
    CHECK_STATUS(WEIR_ERROR_UNLOADED, weir_pool_alloc(pool, 1000, NULL, &none));
    CHECK_STATUS(WEIR_ERROR_UNLOADED, weir_pool_alloc(other, 1000, NULL, &none));
    CHECK(none == NULL);
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_free_synced(pool, q));
    CHECK_OK(weir_pool_free(other, of_other, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_OK(weir_pool_destroy(other));
    CHECK(weir_pool_create(NULL, &late) != WEIR_OK);
    CHECK_OK(weir_finalize());
    return check_end();
}
