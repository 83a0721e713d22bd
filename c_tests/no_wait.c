/* While one stream stands still no call waits for it, but squeeze, the synchronise functions and destroy: nobody opens
 * the gate before the end, so a call that waited would never return. */
#include "streams.h"

static gate closed;
static weir_stream busy, idle_stream;

static void no_limit(void) {
    weir_pool *pool = check_pool(0), *fresh, *shared;
    weir_pool_options o = check_options(0);
    void *in_use, *small, *large, *second, *p, *q, *recorded, *batch[3];
    size_t sizes[] = {1000, 5 * MiB, 40 * MiB}, counts[] = {50, 2, 1};
    weir_event event = event_new();
    CHECK_OK(weir_pool_alloc(pool, 16 * MiB, busy, &in_use));
    CHECK_OK(weir_pool_alloc(pool, 8 * MiB, idle_stream, &recorded));
    queue_gate(busy, &closed);
    job write = job_over(in_use, 16 * MiB, 1), check = job_over(in_use, 16 * MiB, 1);
    queue_write(busy, &write);
    queue_check(busy, &check);

    CHECK_OK(weir_pool_alloc(pool, 1000, busy, &small));
    CHECK_OK(weir_pool_alloc(pool, 64 * MiB, idle_stream, &large));
    CHECK_OK(weir_pool_alloc(pool, 64 * MiB, busy, &second));
    CHECK_OK(weir_pool_free(pool, in_use, busy));
    CHECK_OK(weir_pool_alloc(pool, 16 * MiB, idle_stream, &q));
    CHECK(q != in_use);
    CHECK_OK(weir_pool_free(pool, q, idle_stream));
    CHECK_OK(weir_pool_record_stream(pool, recorded, busy));
    CHECK_OK(weir_pool_free(pool, recorded, idle_stream));
    CHECK_OK(weir_pool_alloc_batch(pool, sizes, 3, idle_stream, batch));
    CHECK_OK(weir_pool_free_batch(pool, batch, 3, idle_stream));
    CHECK_OK(weir_pool_warmup(pool, sizes, counts, 3, idle_stream));
    CHECK_OK(weir_event_record(event, busy));
    CHECK_OK(weir_stream_synchronize(idle_stream)); /* waits, but not for the other one */

    weir_pool_stats before = CHECK_STATS(pool);
    CHECK_OK(weir_pool_free(pool, large, idle_stream));
    CHECK_OK(weir_stream_synchronize(idle_stream));
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK(CHECK_STATS(pool).reserved_bytes + 48 * MiB <= before.reserved_bytes); /* pages at its ends may be shared */
    CHECK_OK(weir_pool_set_release_threshold(pool, 0));
    CHECK_OK(weir_pool_free(pool, second, busy));
    CHECK_OK(weir_pool_free(pool, small, busy));

    CHECK_OK(weir_default_pool(check_device(), &shared));
    CHECK_OK(weir_pool_create(&o, &fresh));
    CHECK_OK(weir_pool_alloc(fresh, 32 * MiB, idle_stream, &p));
    CHECK_OK(weir_pool_free(fresh, p, idle_stream));
    CHECK_OK(weir_stream_wait_event(idle_stream, event));
    CHECK_OK(weir_pool_alloc(pool, 16 * MiB, idle_stream, &p));
    CHECK_OK(weir_pool_free(pool, p, idle_stream));
    CHECK(!atomic_load(&closed.open) && !job_done(&write));

    atomic_store(&closed.open, 1);
    CHECK_OK(weir_pool_destroy(pool)); /* waits */
    stream_wait(busy);
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_destroy(fresh));
    event_end(event);
}

/* Free room in pieces: pages move for either stream. */
static void pages_move(void) {
    enum { PIECES = 16 };
    const size_t piece = 4 * MiB;
    weir_pool *pool = check_pool(PIECES * piece);
    void *pieces[PIECES], *p, *q;
    job writes[PIECES], checks[PIECES], write, check;
    atomic_store(&closed.open, 0);
    for (int i = 0; i < PIECES; i++) {
        weir_stream s = i % 4 < 2 ? busy : idle_stream;
        CHECK_OK(weir_pool_alloc(pool, piece, s, &pieces[i]));
        writes[i] = job_over(pieces[i], piece, (uint64_t)i);
        checks[i] = writes[i];
        queue_write(s, &writes[i]);
    }
    stream_wait(busy);
    stream_wait(idle_stream);
    for (int i = 0; i < PIECES; i++) {
        CHECK_GOOD(writes[i]);
    }
    queue_gate(busy, &closed);
    for (int i = 0; i < PIECES; i += 4) {
        queue_check(busy, &checks[i]); /* reads the old address after the page has moved */
        CHECK_OK(weir_pool_free(pool, pieces[i], busy));
        CHECK_OK(weir_pool_free(pool, pieces[i + 2], idle_stream));
    }
    weir_pool_stats before = CHECK_STATS(pool);
    CHECK_OK(weir_pool_alloc(pool, 2 * piece, idle_stream, &p));
    write = check = job_over(p, 2 * piece, 1000);
    queue_write(idle_stream, &write);
    queue_check(idle_stream, &check);
    stream_wait(idle_stream);
    CHECK_GOOD(check);
    weir_pool_stats after = CHECK_STATS(pool);
    CHECK(after.pages_moved > before.pages_moved);
    CHECK_OK(weir_pool_alloc(pool, 2 * piece, busy, &q));
    CHECK(CHECK_STATS(pool).pages_moved > after.pages_moved);
    write = check = job_over(q, 2 * piece, 2000);
    queue_write(busy, &write);
    queue_check(busy, &check);
    CHECK_OK(weir_pool_free(pool, q, busy));
    CHECK(!atomic_load(&closed.open));

    atomic_store(&closed.open, 1);
    stream_wait(busy);
    CHECK_GOOD(check);
    for (int i = 0; i < PIECES; i += 4) {
        CHECK_GOOD(checks[i]);
    }
    for (int i = 1; i < PIECES; i += 2) {
        weir_stream s = i % 4 < 2 ? busy : idle_stream;
        queue_check(s, &checks[i]);
        stream_wait(s);
        CHECK_GOOD(checks[i]);
        CHECK_OK(weir_pool_free(pool, pieces[i], s));
    }
    CHECK_OK(weir_pool_free(pool, p, idle_stream));
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    busy = stream_new();
    idle_stream = stream_new();
    no_limit();
    pages_move();
    stream_end(busy);
    stream_end(idle_stream);
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
