/* The process-wide pools, the current pool of a device, and weir_finalize in the middle of it all. */
#include "contents.h"

static void no_gpu_here(void) {
    weir_pool *pool = NULL;
    weir_pool_options o;
    CHECK_OK(weir_pool_options_init(&o, sizeof o));
    int status = weir_pool_create(&o, &pool);
    if (status == WEIR_OK) {
        CHECK_OK(weir_pool_destroy(pool)); /* there is one */
        return;
    }
    CHECK(status == WEIR_ERROR_DRIVER_UNAVAILABLE || status == WEIR_ERROR_NOT_SUPPORTED);
    CHECK(weir_last_error()[0] != 0);
    CHECK(pool == NULL);
    CHECK_STATUS(status, weir_default_pool(0, &pool));
    CHECK_STATUS(status, weir_device_get_pool(0, &pool));
    CHECK(pool == NULL);
}

static void one_default(void) {
    weir_pool *a, *b;
    CHECK_OK(weir_default_pool(check_device(), &a));
    CHECK_OK(weir_default_pool(check_device(), &b));
    CHECK(a == b);
    CHECK_OK(weir_device_get_pool(check_device(), &b));
    CHECK(a == b);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_default_pool(-2, &b));
    CHECK_SAYS("-2");
    CHECK(a == b);

    weir_pool *own = check_pool(0);
    CHECK_OK(weir_device_set_pool(check_device(), own));
    CHECK_OK(weir_device_get_pool(check_device(), &b));
    CHECK(b == own);
    CHECK_OK(weir_default_pool(check_device(), &b));
    CHECK(b == a);
    CHECK_OK(weir_device_set_pool(check_device(), NULL));
    CHECK_OK(weir_device_get_pool(check_device(), &b));
    CHECK(b == a);

    /* The current pool dies: the default takes its place. */
    CHECK_OK(weir_device_set_pool(check_device(), own));
    CHECK_OK(weir_pool_destroy(own));
    CHECK_OK(weir_device_get_pool(check_device(), &b));
    CHECK(b == a);
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_device_set_pool(check_device(), own));
}

static void finalize_and_start_anew(void) {
    weir_pool *before, *after;
    void *p;
    for (int round = 0; round < 3; round++) {
        CHECK_OK(weir_default_pool(check_device(), &before));
        CHECK_OK(weir_pool_alloc(before, MiB, NULL, &p));
        contents_fill(p, round, MiB);
        CHECK_OK(weir_pool_free(before, p, NULL));
        CHECK_OK(weir_finalize());
        CHECK_STATUS(WEIR_ERROR_FINALIZED, weir_pool_alloc(before, MiB, NULL, &p));
        CHECK_OK(weir_finalize());
        CHECK_OK(weir_default_pool(check_device(), &after));
        CHECK(after != before);
        CHECK_OK(weir_pool_alloc(after, MiB, NULL, &p));
        CHECK_OK(weir_pool_free(after, p, NULL));
    }
}

int main(void) {
    program_begin();
    no_gpu_here();
    one_default();
    finalize_and_start_anew();
    return program_end(); /* the default pool is left to the exit handler */
}
