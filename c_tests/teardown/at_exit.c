/* atexit(weir_finalize), registered before the first use of weir and after it (first argument). */
#include "../check.h"

static void finalize(void) {
    CHECK_OK(weir_finalize());
    CHECK_OK(weir_finalize());
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int before = strcmp(argv[1], "before") == 0;
    CHECK(before || strcmp(argv[1], "after") == 0);
    if (before) {
        CHECK_EQUAL(atexit(finalize), 0);
    }

    weir_pool *pool, *own = check_host_pool(0);
    weir_stream stream;
    void *p, *q;
    CHECK_OK(weir_default_pool(WEIR_DEVICE_HOST, &pool));
    CHECK_OK(weir_host_stream_create(&stream));
    CHECK_OK(weir_pool_alloc(pool, MiB, stream, &p));
    CHECK_OK(weir_pool_alloc(own, MiB, stream, &q));
    memset(p, 1, MiB);
    memset(q, 1, MiB);
    CHECK_OK(weir_pool_free(pool, p, stream));
    CHECK_OK(weir_pool_free(own, q, stream));

    if (!before) {
        CHECK_EQUAL(atexit(finalize), 0);
    }
    return check_end(); /* the stream and both pools are weir_finalize's to end */
}
