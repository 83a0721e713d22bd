/* atexit(weir_finalize), registered before the first use of weir and after it (first argument). */
#include "../streams.h"

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
    program_begin();

    weir_pool *pool, *own = check_pool(0);
    weir_stream stream;
    void *p, *q;
    CHECK_OK(weir_default_pool(check_device(), &pool));
    stream = stream_new();
    CHECK_OK(weir_pool_alloc(pool, MiB, stream, &p));
    CHECK_OK(weir_pool_alloc(own, MiB, stream, &q));
    contents_fill(p, 1, MiB);
    contents_fill(q, 1, MiB);
    CHECK_OK(weir_pool_free(pool, p, stream));
    CHECK_OK(weir_pool_free(own, q, stream));
    if (check_on_device()) {
        stream_end(stream);
    }

    if (!before) {
        CHECK_EQUAL(atexit(finalize), 0);
    }
    return program_end(); /* both pools, and a host stream, are weir_finalize's to end */
}
