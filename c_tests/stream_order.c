/* Stream order, on streams that really run behind: what each case could break is seen in the contents of the
 * blocks, because the queued work writes them and checks them much later than the calls were made.
 *
 * Where a case has the limit `one_block`, a request succeeds by reusing the freed block or not at all. */
#include "scene.h"

static void same_stream_at_once(void) {
    scene c;
    job write, check;
    void *q;
    scene_start(&c, one_block, 0);
    CHECK_OK(weir_pool_alloc(c.pool, size, c.s, &q)); /* the gate is closed: this cannot have waited */
    CHECK(!atomic_load(&c.gate.open));
    use_on(c.s, q, &write, &check);
    CHECK_OK(weir_pool_free(c.pool, q, c.s));
    scene_end(&c);
    CHECK_GOOD(check);
}

static void other_stream_gets_other_memory(void) {
    scene c;
    job write, check;
    void *q;
    scene_start(&c, 0, EVENTS | OPPORTUNISTIC);
    CHECK_OK(weir_pool_alloc(c.pool, size, c.t, &q));
    use_on(c.t, q, &write, &check);
    stream_wait(c.t); /* T ran while S stood still: nothing ordered them */
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(c.pool, q, c.t));
    scene_end(&c);
}

static void event_hook_orders(void) {
    scene c;
    job write, check;
    void *q;
    weir_event e;
    scene_start(&c, one_block, EVENTS);
    e = event_new();
    CHECK_OK(weir_event_record(e, c.s));
    CHECK(!event_complete(e));
    CHECK_OK(weir_stream_wait_event(c.t, e));
    CHECK_OK(weir_pool_alloc(c.pool, size, c.t, &q));
    CHECK(!atomic_load(&c.gate.open));
    use_on(c.t, q, &write, &check);
    pause_ms(20);
    CHECK(!job_done(&write)); /* T really waits */
    CHECK_OK(weir_pool_free(c.pool, q, c.t));
    scene_end(&c);
    CHECK_GOOD(check);
    CHECK(event_complete(e));
    event_end(e);
}

/* An event recorded before the free says nothing about it. */
static void event_before_the_free_does_not_order(void) {
    weir_stream s, t;
    weir_event e;
    gate g = {0};
    void *p, *q;
    weir_pool *pool = pool_with(0, EVENTS);
    s = stream_new();
    t = stream_new();
    e = event_new();
    CHECK_OK(weir_event_record(e, s));
    CHECK_OK(weir_pool_alloc(pool, size, s, &p));
    job write = job_over(p, size, 1), check = job_over(p, size, 1), write2, check2;
    queue_gate(s, &g);
    queue_write(s, &write);
    check.ms = 20;
    queue_check(s, &check);
    CHECK_OK(weir_pool_free(pool, p, s));
    CHECK_OK(weir_stream_wait_event(t, e));
    CHECK_OK(weir_pool_alloc(pool, size, t, &q));
    use_on(t, q, &write2, &check2);
    stream_wait(t);
    CHECK_GOOD(check2);
    atomic_store(&g.open, 1);
    stream_wait(s);
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(pool, q, t));
    event_end(e);
    stream_end(s);
    stream_end(t);
    CHECK_OK(weir_pool_destroy(pool));
}

static void completed_work_is_seen(void) {
    scene c;
    job write, check;
    void *q;
    scene_start(&c, one_block, OPPORTUNISTIC);
    atomic_store(&c.gate.open, 1);
    while (!job_done(&c.check)) {
        pause_ms(1);
    }
    pause_ms(50); /* the worker has left the function, too */
    CHECK_OK(weir_pool_alloc(c.pool, size, c.t, &q));
    use_on(c.t, q, &write, &check);
    CHECK_OK(weir_pool_free(c.pool, q, c.t));
    scene_end(&c);
    CHECK_GOOD(check);
}

static void pool_makes_the_stream_wait(void) {
    scene c;
    job write, check;
    void *q;
    scene_start(&c, one_block, INTERNAL);
    CHECK_OK(weir_pool_alloc(c.pool, size, c.t, &q)); /* returns while the gate is closed */
    use_on(c.t, q, &write, &check);
    pause_ms(20);
    CHECK(!job_done(&write));
    CHECK_OK(weir_pool_free(c.pool, q, c.t));
    scene_end(&c);
    CHECK_GOOD(check);
}

enum { STREAM, EVENT, DEVICE, HOST_STREAM };

static void synchronise_orders(int how) {
    scene c;
    opener o;
    job write, check;
    weir_event e;
    void *q;
    scene_start(&c, one_block, 0);
    e = event_new();
    CHECK_OK(weir_event_record(e, c.s));
    opener_start(&o, &c.gate, 20);
    switch (how) {
    case STREAM: CHECK_OK(weir_stream_synchronize(c.s)); break;
    case EVENT: CHECK_OK(weir_event_synchronize(e)); break;
    case DEVICE: CHECK_OK(weir_device_synchronize()); break;
    default: stream_wait(c.s); break;
    }
    CHECK_GOOD(c.check);
    CHECK_OK(weir_pool_alloc(c.pool, size, c.t, &q));
    use_on(c.t, q, &write, &check);
    CHECK_OK(weir_pool_free(c.pool, q, c.t));
    opener_join(&o);
    scene_end(&c);
    CHECK_GOOD(check);
    event_end(e);
}

/* No policy, no room: the request either fails or has waited, but never shares. */
static void nothing_orders(void) {
    scene c;
    opener o;
    void *q = NULL;
    scene_start(&c, one_block, 0);
    opener_start(&o, &c.gate, 50);
    int status = weir_pool_alloc(c.pool, size, c.t, &q);
    if (status == WEIR_OK) {
        CHECK_GOOD(c.check);
        CHECK_OK(weir_pool_free(c.pool, q, c.t));
    } else {
        CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, status);
    }
    opener_join(&o);
    scene_end(&c);
}

static void recorded_stream_delays_reuse(void) {
    weir_stream s, t;
    gate g = {0};
    void *p, *q;
    weir_pool *pool = pool_with(0, EVENTS | OPPORTUNISTIC);
    s = stream_new();
    t = stream_new();
    CHECK_OK(weir_pool_alloc(pool, size, s, &p));
    job write = job_over(p, size, 1), check = job_over(p, size, 1), write2, check2;
    queue_write(s, &write);
    stream_wait(s);
    queue_gate(t, &g);
    queue_check(t, &check);
    CHECK_OK(weir_pool_record_stream(pool, p, t));
    CHECK_OK(weir_pool_free(pool, p, s));
    CHECK_OK(weir_pool_alloc(pool, size, s, &q)); /* S's own free, but T still reads it */
    use_on(s, q, &write2, &check2);
    stream_wait(s);
    CHECK_GOOD(check2);
    atomic_store(&g.open, 1);
    stream_wait(t);
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(pool, q, s));
    stream_end(s);
    stream_end(t);
    CHECK_OK(weir_pool_destroy(pool));
}

/* A block all use of which is over is for any stream at once, whatever else stands still. */
static void free_synced_is_for_everyone(void) {
    weir_stream s, t;
    gate g = {0};
    void *p, *q;
    weir_pool *pool = pool_with(size, 0);
    s = stream_new();
    t = stream_new();
    CHECK_OK(weir_pool_alloc(pool, size, s, &p));
    queue_gate(s, &g);
    CHECK_OK(weir_pool_free_synced(pool, p));
    CHECK_OK(weir_pool_alloc(pool, size, t, &q));
    CHECK_OK(weir_pool_free_synced(pool, q));
    atomic_store(&g.open, 1);
    stream_end(s);
    stream_end(t);
    CHECK_OK(weir_pool_destroy(pool));
}

/* The oldest of a ring of jobs, once it is done and was good. */
static job *job_again(job *j) {
    while (j->words != NULL && !job_done(j)) {
        pause_ms(1);
    }
    CHECK(!atomic_load(&j->bad));
    return j;
}

/* A few thousand blocks on four streams under a tight limit, every one written and checked by work that
 * runs late. */
static void storm(void) {
    enum { STREAMS = 4, LIVE = 24, JOBS = 128 };
    const int steps = check_under("valgrind") ? 400 : 4000;
    weir_pool *pool = pool_with(24 * MiB, EVENTS | OPPORTUNISTIC | INTERNAL);
    weir_stream streams[STREAMS];
    struct {
        void *p;
        size_t bytes;
        int stream;
        uint64_t seed;
    } live[LIVE];
    job *jobs = (job *)calloc(JOBS, sizeof *jobs);
    int n_jobs = 0;
    uint64_t random = 88172645463325252u;
    memset(live, 0, sizeof live);
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = stream_new();
    }
    for (int step = 0; step < steps; step++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int k = (int)(random % LIVE);
        if (live[k].p != NULL) {
            job *j = job_again(&jobs[n_jobs++ % JOBS]);
            *j = job_over(live[k].p, live[k].bytes, live[k].seed);
            queue_check(streams[live[k].stream], j);
            CHECK_OK(weir_pool_free(pool, live[k].p, streams[live[k].stream]));
            live[k].p = NULL;
        }
        size_t bytes = (random >> 8) % 8 == 0 ? (random >> 16) % (2 * MiB) + 8 : (random >> 16) % (64 * KiB) + 8;
        live[k].stream = (int)((random >> 48) % STREAMS);
        live[k].bytes = bytes;
        live[k].seed = random;
        CHECK_OK(weir_pool_alloc(pool, bytes, streams[live[k].stream], &live[k].p));
        job *j = job_again(&jobs[n_jobs++ % JOBS]);
        *j = job_over(live[k].p, bytes, random);
        j->ms = (random >> 56) % 64 == 0;
        queue_write(streams[live[k].stream], j);
        if (step % 256 == 0) {
            CHECK(CHECK_STATS(pool).reserved_bytes <= 24 * MiB);
        }
    }
    for (int k = 0; k < LIVE; k++) {
        if (live[k].p != NULL) {
            CHECK_OK(weir_pool_free(pool, live[k].p, streams[live[k].stream]));
        }
    }
    CHECK_OK(weir_device_synchronize());
    for (int i = 0; i < JOBS; i++) {
        CHECK_GOOD(jobs[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        stream_end(streams[i]);
    }
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    free(jobs);
}

int main(void) {
    program_begin();
    same_stream_at_once();
    other_stream_gets_other_memory();
    event_hook_orders();
    event_before_the_free_does_not_order();
    completed_work_is_seen();
    pool_makes_the_stream_wait();
    synchronise_orders(STREAM);
    synchronise_orders(EVENT);
    synchronise_orders(DEVICE);
    synchronise_orders(HOST_STREAM);
    nothing_orders();
    recorded_stream_delays_reuse();
    free_synced_is_for_everyone();
    storm();
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
