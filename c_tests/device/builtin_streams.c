/* The streams that CUDA makes itself, ordinary streams of both kinds, streams shared by many threads, and a stream
 * whose handle belonged to another one before. */
#include "../scene.h"

/* Asks for the only block there is room for while `gate` is closed: it can only be the one freed on `freed_on`. */
static void one_identity(weir_stream freed_on, weir_stream asked_on) {
    weir_pool *pool = pool_with(size, 0);
    gate g = {0};
    void *p, *q;
    CHECK_OK(weir_pool_alloc(pool, size, freed_on, &p));
    job write = job_over(p, size, 1), check = write, write2, check2;
    queue_gate(freed_on, &g);
    queue_write(freed_on, &write);
    queue_check(freed_on, &check);
    CHECK_OK(weir_pool_free(pool, p, freed_on));
    CHECK_OK(weir_pool_alloc(pool, size, asked_on, &q));
    CHECK(!atomic_load(&g.open));
    use_on(asked_on, q, &write2, &check2);
    CHECK_OK(weir_pool_free(pool, q, asked_on));
    atomic_store(&g.open, 1);
    CHECK_OK(weir_stream_synchronize(asked_on));
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    CHECK_GOOD(write2);
    CHECK_GOOD(check2);
    CHECK_OK(weir_pool_destroy(pool));
}

static void every_kind_of_stream(void) {
    CUstream blocking;
    weir_stream other = stream_new();
    DEVICE_OK(cu.StreamCreate(&blocking, CU_STREAM_DEFAULT));
    one_identity(NULL, NULL);
    one_identity(NULL, CU_STREAM_LEGACY); /* two names of one stream */
    one_identity(CU_STREAM_LEGACY, NULL);
    one_identity(CU_STREAM_PER_THREAD, CU_STREAM_PER_THREAD);
    one_identity(blocking, blocking);
    one_identity(other, other);
    DEVICE_OK(cu.StreamDestroy(blocking));
    stream_end(other);
}

/* What the pool relies on when it asks the legacy stream whether it has work, rather than for an event: the answer is of
 * the streams that it waits for, too, as an event there would be, and of no others. */
static void the_legacy_stream_tells_of_those_it_waits_for(void) {
    CUstream blocking;
    weir_stream other = stream_new();
    DEVICE_OK(cu.StreamCreate(&blocking, CU_STREAM_DEFAULT));
    const struct {
        weir_stream stream;
        CUresult answer;
    } all[] = {
        {blocking, CUDA_ERROR_NOT_READY},
        {CU_STREAM_LEGACY, CUDA_ERROR_NOT_READY},
        {CU_STREAM_PER_THREAD, CUDA_ERROR_NOT_READY},
        {other, CUDA_SUCCESS},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        gate g = {0};
        DEVICE_OK(cu.StreamQuery(NULL));
        queue_gate(all[i].stream, &g);
        CHECK_EQUAL(cu.StreamQuery(NULL), all[i].answer);
        CHECK_EQUAL(cu.StreamQuery(CU_STREAM_LEGACY), all[i].answer);
        atomic_store(&g.open, 1);
        CHECK_OK(weir_stream_synchronize(all[i].stream));
    }
    DEVICE_OK(cu.StreamQuery(CU_STREAM_LEGACY));
    DEVICE_OK(cu.StreamDestroy(blocking));
    stream_end(other);
}

/* Each thread has a per-thread default stream of its own under the same handle. */
typedef struct {
    weir_pool *pool;
    void *not_this;
} neighbour;

static void *on_own_default_stream(void *arg) {
    neighbour *n = (neighbour *)arg;
    void *p;
    job write, check;
    program_thread();
    CHECK_OK(weir_pool_alloc(n->pool, size, CU_STREAM_PER_THREAD, &p));
    CHECK(p != n->not_this);
    use_on(CU_STREAM_PER_THREAD, p, &write, &check);
    CHECK_OK(weir_stream_synchronize(CU_STREAM_PER_THREAD)); /* of this thread: the other one stands still */
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(n->pool, p, CU_STREAM_PER_THREAD));
    return NULL;
}

static void per_thread_streams_are_several(void) {
    weir_pool *pool = pool_with(0, EVENTS | OPPORTUNISTIC);
    gate g = {0};
    pthread_t thread;
    void *p;
    CHECK_OK(weir_pool_alloc(pool, size, CU_STREAM_PER_THREAD, &p));
    job write = job_over(p, size, 1), check = write;
    queue_gate(CU_STREAM_PER_THREAD, &g);
    queue_write(CU_STREAM_PER_THREAD, &write);
    queue_check(CU_STREAM_PER_THREAD, &check);
    CHECK_OK(weir_pool_free(pool, p, CU_STREAM_PER_THREAD));
    neighbour n = {pool, p};
    CHECK_EQUAL(pthread_create(&thread, NULL, on_own_default_stream, &n), 0);
    pthread_join(thread, NULL);
    CHECK(!atomic_load(&g.open));
    atomic_store(&g.open, 1);
    CHECK_OK(weir_stream_synchronize(CU_STREAM_PER_THREAD));
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_destroy(pool));
}

/* The handle of a destroyed stream names another one now. What the old one still has in flight is not over for it. */
static void recycled_handle(void) {
    weir_pool *pool = pool_with(0, EVENTS | OPPORTUNISTIC);
    gate g = {0};
    void *p, *q;
    job write2, check2;
    weir_stream old = stream_new();
    CHECK_OK(weir_pool_alloc(pool, size, old, &p));
    job write = job_over(p, size, 1), check = write;
    queue_gate(old, &g);
    queue_write(old, &write);
    check.ms = 20;
    queue_check(old, &check);
    CHECK_OK(weir_pool_free(pool, p, old));
    stream_end(old);

    weir_stream recycled = stream_new();
    CHECK(!device_is_standin() || recycled == old);
    CHECK_OK(weir_pool_alloc(pool, size, recycled, &q));
    CHECK(q != p);
    use_on(recycled, q, &write2, &check2);
    CHECK_OK(weir_stream_synchronize(recycled)); /* the new one has nothing to do with the old one's gate */
    CHECK_GOOD(write2);
    CHECK_GOOD(check2);
    CHECK(!atomic_load(&g.open));
    atomic_store(&g.open, 1);
    while (!job_done(&write) || !job_done(&check)) {
        pause_ms(1);
    }
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(pool, q, recycled));
    stream_end(recycled);
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

/* Many threads on two streams of a pool with little room: what one thread frees on a stream, another thread's event on
 * the same stream must not make anybody's before its time. */
typedef struct {
    weir_pool *pool;
    weir_stream stream;
    uint64_t seed;
} sharer;

static void wait_for_job(job *j) {
    while (!job_done(j)) {
        usleep(20);
    }
    CHECK_GOOD(*j);
}

static void *on_shared_stream(void *arg) {
    enum { BEHIND = 8 };
    sharer *me = (sharer *)arg;
    int rounds = check_under("valgrind") ? 60 : 600;
    job writes[BEHIND], checks[BEHIND];
    program_thread();
    for (int i = 0; i < rounds + BEHIND; i++) {
        int k = i % BEHIND;
        if (i >= BEHIND) {
            wait_for_job(&writes[k]);
            wait_for_job(&checks[k]);
        }
        if (i >= rounds) {
            continue;
        }
        size_t bytes = i % 4 == 0 ? 2000 : 64 * KiB + (size_t)(i % 5) * 100 * KiB;
        void *p;
        CHECK_OK(weir_pool_alloc(me->pool, bytes, me->stream, &p));
        writes[k] = checks[k] = job_over(p, bytes, me->seed + (uint64_t)i);
        queue_write(me->stream, &writes[k]);
        queue_check(me->stream, &checks[k]);
        CHECK_OK(weir_pool_free(me->pool, p, me->stream));
    }
    return NULL;
}

static void many_threads_on_two_streams(void) {
    enum { THREADS = 8 };
    weir_pool *pool = check_pool(32 * MiB);
    weir_stream streams[2] = {stream_new(), stream_new()};
    pthread_t threads[THREADS];
    sharer sharers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        sharers[i] = (sharer){pool, streams[i % 2], (uint64_t)i << 32};
        CHECK_EQUAL(pthread_create(&threads[i], NULL, on_shared_stream, &sharers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.allocations, s.frees);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK(s.reserved_bytes_peak <= 32 * MiB);
    stream_end(streams[0]);
    stream_end(streams[1]);
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    staging_give(staging_take(size), size);
    every_kind_of_stream();
    the_legacy_stream_tells_of_those_it_waits_for();
    per_thread_streams_are_several();
    recycled_handle();
    many_threads_on_two_streams();
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
