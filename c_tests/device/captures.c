/* Graphs like those of a training step, captured in every mode on two streams that fork and join, with memory
 * allocated and freed inside. All are launched many times, each time with another input, side by side and while
 * other threads allocate, write, check and free in the same pool. Nobody may be given what a graph uses until its
 * owner says that it is gone. */
#include "captures.h"

enum { LAYERS = 6, SIDES = 2, OUTPUTS = 3 };
static const size_t growth = 64 * MiB;
/* Of an activation, and how often each graph is launched: the stand-in driver checks every byte's order, slowly. */
static size_t bytes = 2 * MiB;
static int replays = 100;
static weir_pool *pool;

typedef struct {
    weir_stream s, t;
    weir_event fork, join;
    uint64_t id;
    void *in, *out[OUTPUTS], *kept;
    unsigned *seen[OUTPUTS];
    captured graph;
} step;

static void *alloc_on(weir_stream stream, size_t n) {
    void *p = NULL;
    CHECK_OK(weir_pool_alloc(pool, n, stream, &p));
    return p;
}

static void free_on(weir_stream stream, void *p) { CHECK_OK(weir_pool_free(pool, p, stream)); }

static unsigned input(int replay, int mode) { return 0x10000u * (unsigned)(mode + 1) + (unsigned)replay; }
static const unsigned weight = 0xabcd1234u;

/* Orders `then` behind `first`: by weir's hooks, or by the driver's own calls, of which weir learns nothing. */
static void order(weir_event e, weir_stream first, weir_stream then, int hooks) {
    if (hooks) {
        CHECK_OK(weir_event_record(e, first));
        CHECK_OK(weir_stream_wait_event(then, e));
    } else {
        DEVICE_OK(cu.EventRecord(e, first));
        DEVICE_OK(cu.StreamWaitEvent(then, e, 0));
    }
}

static void capture_step(step *k, int mode, int hooks) {
    void *saved[LAYERS];
    uint64_t id = 0;
    k->id = capture_begin(k->s, mode);

    /* Forward: each layer's result is kept for the way back. */
    void *now = alloc_on(k->s, bytes);
    queue_copy(k->s, now, k->in, bytes);
    for (int i = 0; i < LAYERS; i++) {
        void *scratch = alloc_on(k->s, bytes / 2 + (size_t)i * 4096), *next = alloc_on(k->s, bytes);
        queue_fill(k->s, scratch, bytes / 2, 0xdead0000u + (unsigned)i);
        queue_copy(k->s, next, now, bytes);
        free_on(k->s, scratch);
        saved[i] = now;
        now = next;
    }

    /* Beside it a second stream prepares weights, and reads the input too. */
    order(k->fork, k->s, k->t, hooks);
    CHECK_OK(weir_stream_get_capture(k->t, &id));
    CHECK_EQUAL(id, k->id);
    void *w = alloc_on(k->t, bytes), *copy = alloc_on(k->t, bytes);
    queue_fill(k->t, w, bytes, weight);
    queue_copy(k->t, copy, k->in, bytes);
    queue_copy(k->t, k->out[1], w, bytes);
    queue_copy(k->t, k->out[2], copy, bytes);
    free_on(k->t, copy);

    /* Backward, with blocks larger than what the pool has: it grows during the capture. */
    void *large = alloc_on(k->s, growth);
    queue_fill(k->s, large, growth / 64, 0xbad);
    free_on(k->s, large);
    for (int i = LAYERS - 1; i >= 0; i--) {
        void *gradient = alloc_on(k->s, bytes);
        queue_copy(k->s, gradient, saved[i], bytes);
        queue_copy(k->s, now, gradient, bytes);
        free_on(k->s, saved[i]);
        free_on(k->s, gradient);
    }
    order(k->join, k->t, k->s, hooks);
    free_on(k->s, w); /* allocated on the second stream, freed on the first behind the join */
    queue_copy(k->s, k->out[0], now, bytes);
    k->kept = now; /* freed by ordinary calls, much later */
    k->graph = capture_end(k->s);
    CHECK_OK(weir_stream_get_capture(k->s, &id));
    CHECK_EQUAL(id, 0);
}

static void launch(step *k, int mode, int replay) {
    queue_fill(k->s, k->in, bytes, input(replay, mode));
    for (int i = 0; i < OUTPUTS; i++) {
        queue_fill(k->s, k->out[i], bytes, 0);
    }
    DEVICE_OK(cu.GraphLaunch(k->graph.exec, k->s));
    for (int i = 0; i < OUTPUTS; i++) {
        DEVICE_OK(cu.MemcpyDtoHAsync(k->seen[i], device_address(k->out[i]), bytes, k->s));
    }
}

static void check_results(step *k, int mode, int replay) {
    CHECK_OK(weir_stream_synchronize(k->s));
    CHECK(words_are(k->seen[0], bytes, input(replay, mode)));
    CHECK(words_are(k->seen[1], bytes, weight));
    CHECK(words_are(k->seen[2], bytes, input(replay, mode)));
}

/* The others: they hold a few blocks, each written, checked and freed, without a call that a capture would refuse. */
typedef struct {
    pthread_t thread;
    weir_stream stream;
    uint64_t random;
    long blocks;
} side;
static atomic_int stop;

static void *side_main(void *arg) {
    enum { HELD = 4 };
    side *me = (side *)arg;
    job writes[HELD], checks[HELD];
    void *blocks[HELD] = {NULL};
    program_thread();
    for (int i = 0; !atomic_load(&stop); i = (i + 1) % HELD) {
        if (blocks[i] != NULL) {
            while (!job_done(&writes[i]) || !job_done(&checks[i])) {
                usleep(50);
            }
            CHECK_GOOD(checks[i]);
            free_on(me->stream, blocks[i]);
        }
        me->random ^= me->random << 13, me->random ^= me->random >> 7, me->random ^= me->random << 17;
        size_t n = (size_t)(me->random % bytes) / 8 * 8 + 8;
        blocks[i] = alloc_on(me->stream, n);
        writes[i] = checks[i] = job_over(blocks[i], n, me->random);
        queue_write(me->stream, &writes[i]);
        queue_check(me->stream, &checks[i]);
        me->blocks++;
    }
    for (int i = 0; i < HELD; i++) {
        if (blocks[i] != NULL) {
            while (!job_done(&writes[i]) || !job_done(&checks[i])) {
                usleep(50);
            }
            CHECK_GOOD(checks[i]);
            free_on(me->stream, blocks[i]);
        }
    }
    return NULL;
}

static step new_step(void) {
    step k;
    memset(&k, 0, sizeof k);
    k.s = stream_new();
    k.t = stream_new();
    k.fork = capture_event_new();
    k.join = capture_event_new();
    k.in = alloc_on(k.s, bytes);
    for (int i = 0; i < OUTPUTS; i++) {
        k.out[i] = alloc_on(k.s, bytes);
        k.seen[i] = (unsigned *)staging_take(bytes);
    }
    return k;
}

static uint64_t squeezed(void) {
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    return CHECK_STATS(pool).reserved_bytes;
}

/* The driver says that the graph is gone when it likes, on a thread of its own. */
static void gone_from(uint64_t most) {
    for (int i = 0; i < 1000 && squeezed() > most; i++) {
        usleep(5000);
    }
    CHECK(squeezed() <= most);
}

static void training(int hooks) {
    step steps[MODES];
    side sides[SIDES];
    pool = check_pool(0);
    atomic_store(&stop, 0);
    for (int m = 0; m < MODES; m++) {
        steps[m] = new_step();
    }
    for (int i = 0; i < SIDES; i++) {
        sides[i] = (side){.stream = stream_new(), .random = 88172645463325252u + (unsigned)i};
        CHECK_EQUAL(pthread_create(&sides[i].thread, NULL, side_main, &sides[i]), 0);
    }
    for (int m = 0; m < MODES; m++) {
        capture_step(&steps[m], capture_modes[m], hooks);
    }
    for (int r = 0; r < replays; r++) {
        for (int m = 0; m < MODES; m++) {
            launch(&steps[m], m, r);
        }
        for (int m = 0; m < MODES; m++) {
            check_results(&steps[m], m, r);
        }
        if (r == replays / 2) { /* later launches still write to it: nobody may get it before the release */
            free_on(steps[0].s, steps[0].kept);
        }
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < SIDES; i++) {
        pthread_join(sides[i].thread, NULL);
        CHECK(sides[i].blocks >= 4);
        stream_end(sides[i].stream);
    }

    /* What the graphs use is not given back, until they are gone. */
    uint64_t held = squeezed(), used = CHECK_STATS(pool).used_bytes;
    CHECK(held >= used + growth);
    for (int m = 0; m < MODES; m++) {
        captured_end(&steps[m].graph);
        if (m == 0) { /* the program may say so, too */
            CHECK_OK(weir_pool_release_capture(pool, steps[m].id));
        }
        gone_from(held - LAYERS * bytes);
        held = squeezed();
    }
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, used);

    /* A block that is still live outlives its graph. */
    contents_fill(steps[1].kept, 5, bytes);
    contents_fill(steps[2].kept, 6, bytes);
    CHECK(contents_are(steps[1].kept, 5, bytes));
    free_on(steps[1].s, steps[1].kept);
    CHECK_OK(weir_pool_free_synced(pool, steps[2].kept));

    for (int m = 0; m < MODES; m++) {
        free_on(steps[m].s, steps[m].in);
        for (int i = 0; i < OUTPUTS; i++) {
            free_on(steps[m].s, steps[m].out[i]);
            staging_give(steps[m].seen[i], bytes);
        }
        event_end(steps[m].fork);
        event_end(steps[m].join);
        stream_end(steps[m].s);
        stream_end(steps[m].t);
    }
    CHECK_EQUAL(squeezed(), 0);
    CHECK_OK(weir_pool_destroy(pool));
}

/* Inside one capture memory is reused as on any stream: a loop needs no more than one round of it. */
static void reuse_inside(void) {
    weir_stream s = stream_new();
    pool = check_pool(0);
    uint64_t id = capture_begin(s, CAPTURE_GLOBAL);
    for (int i = 0; i < 20; i++) {
        void *a = alloc_on(s, growth), *b = alloc_on(s, 3000);
        queue_fill(s, a, 4096, 1);
        free_on(s, a);
        free_on(s, b);
    }
    CHECK(CHECK_STATS(pool).reserved_bytes <= growth + 16 * MiB);
    captured graph = capture_end(s);
    CHECK(squeezed() >= growth);
    captured_end(&graph);
    gone_from(0);
    CHECK_OK(weir_pool_release_capture(pool, id)); /* known already */
    CHECK_OK(weir_pool_destroy(pool));
    stream_end(s);
}

/* A block from before the capture, freed in it: the graph uses it, so it is nobody's until the release. */
static void freed_inside(void) {
    weir_stream s = stream_new(), u = stream_new();
    pool = check_pool(growth + 8 * MiB);
    void *p = alloc_on(s, growth), *q = NULL;
    capture_begin(s, CAPTURE_THREAD_LOCAL);
    queue_fill(s, p, 4096, 1);
    free_on(s, p);
    captured graph = capture_end(s);
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, growth, u, &q));
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, growth, s, &q));
    captured_end(&graph);
    gone_from(8 * MiB);
    q = alloc_on(u, growth);
    free_on(u, q);
    CHECK_OK(weir_pool_destroy(pool));
    stream_end(s);
    stream_end(u);
}

int main(void) {
    program_begin();
    if (device_is_standin()) {
        bytes = 128 * KiB;
        replays = 10;
    }
    training(1);
    training(0);
    reuse_inside();
    freed_inside();
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
