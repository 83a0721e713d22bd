/* A stream destroyed while the pool holds blocks freed on it, with its work still in flight or done. */
#include "../streams.h"

static void destroyed(int in_flight) {
    weir_stream s, t;
    gate g = {0};
    opener o;
    void *p, *q, *small;
    weir_pool *pool = check_pool(0);
    s = stream_new();
    CHECK_OK(weir_pool_alloc(pool, 4 * MiB, s, &p));
    CHECK_OK(weir_pool_alloc(pool, 500, s, &small));
    job write = job_over(p, 4 * MiB, 1), check = job_over(p, 4 * MiB, 1);
    if (in_flight) {
        queue_gate(s, &g);
    }
    queue_write(s, &write);
    check.ms = 20;
    queue_check(s, &check);
    CHECK_OK(weir_pool_free(pool, p, s));
    CHECK_OK(weir_pool_free(pool, small, s));
    opener_start(&o, &g, 30); /* destroying may wait for the work, or not */
    stream_end(s);

    /* New streams, perhaps with the same handle, get the memory only when it is safe. */
    t = stream_new();
    CHECK_OK(weir_pool_alloc(pool, 4 * MiB, t, &q));
    job write2 = job_over(q, 4 * MiB, 9), check2 = job_over(q, 4 * MiB, 9);
    queue_write(t, &write2);
    check2.ms = 20;
    queue_check(t, &check2);
    stream_wait(t);
    CHECK_GOOD(check2);
    opener_join(&o);
    CHECK_OK(weir_device_synchronize());
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(pool, q, t));
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    if (!check_on_device()) {
        CHECK_STATUS(WEIR_ERROR_INVALID_STREAM, weir_host_stream_enqueue(s == t ? NULL : s, job_write, &write));
    }
    stream_end(t);
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    destroyed(1);
    destroyed(0);
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
