/* The world of soak.c: a pool, threads and their blocks, and words that are written to blocks and compared later. */
#ifndef WEIR_C_TESTS_WORLD_H
#define WEIR_C_TESTS_WORLD_H

#include "device/captures.h"
#include "habits.h"

enum { MAX_THREADS = 6, MAX_STREAMS = 8, MAX_LIVE = 4096, EXCHANGE = 16, MARKS = 4096, HABITS = 3, LOOKS = 16, RECORDINGS = 3, RECORDED = 32 };

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct {
    char *p;
    size_t bytes;
    weir_pool *pool;
    weir_stream stream; /* behind its work on this one all its work is */
    int home;           /* which of the thread's streams that is */
    uint32_t value;     /* at both ends; 0: nothing was written */
    weir_event ready;   /* of a block that is offered to others */
} block;

/* Checks that are queued: what a block has at both ends is copied to `seen`, and compared when all the thread's streams were waited for. */
typedef struct {
    struct mark {
        uint32_t *from, *to, value;
    } all[MARKS];
    uint32_t *seen;
    int count;
} marks;

/* A capture of the thread's, which it launches now and then: its blocks, of which the first ones were not freed in it, and
 * what it has read at their ends. */
typedef struct {
    captured graph;
    uint64_t id;
    weir_pool *pool;
    block blocks[RECORDED]; /* their homes are their places in `seen` */
    int count, kept;
    uint32_t *seen;
    weir_stream stream; /* behind its work on this one all launches are */
} recording;

typedef struct {
    int number;
    unsigned queued; /* since all its streams were waited for */
    pthread_t thread;
    uint64_t random, round;
    uint64_t *source; /* where it draws from just now: a round draws the same each time */
    weir_stream streams[MAX_STREAMS];
    int stream_count, own_count; /* the first ones are its own */
    block live[MAX_LIVE];
    int count, emptying;
    size_t live_bytes;
    habit habits[HABITS];
    marks checks;
    weir_event event, fork; /* fork: for captures */
    recording recordings[RECORDINGS];
    _Atomic uint64_t calls;
} actor;

static struct {
    weir_pool *pool, *second; /* second: NULL where there is none */
    weir_pool_options options;
    int second_is_pinned;
    int threads, shared_count;
    int faults; /* does the stand-in driver let calls of the pool's fail? */
    int told;   /* is all order between streams told to the pool? */
    int steady; /* does each thread always do the same? */
    atomic_int recorded; /* has anybody made a graph? */
    weir_stream shared[2];
    unsigned steps, rare, lead; /* lead: pieces of work that the host is ahead by at most; 0: no matter how far */
    double until;
    _Atomic(block *) exchange[EXCHANGE];
    atomic_int deferred; /* frees to come */
    _Atomic uint64_t refused, again; /* again: calls that were made again */
    struct {
        double time;
        uint64_t calls;
        weir_pool_stats stats;
    } looks[LOOKS + 1];
    int look_count;
} world;
static actor actors[MAX_THREADS];

/* Is made again as long as a call of the driver's fails that was meant to: what fails has changed nothing. */
#define CHECK_OK_AT_LAST(call)                                                                                                 \
    do {                                                                                                                       \
        int check_status = (int)(call), check_tries = 0;                                                                       \
        while (world.faults && (check_status == WEIR_ERROR_BACKEND || check_status == WEIR_ERROR_OUT_OF_MEMORY) && check_tries < 300) { \
            check_tries++;                                                                                                     \
            world.again++;                                                                                                     \
            check_status = (int)(call);                                                                                        \
        }                                                                                                                      \
        CHECK_STATUS(WEIR_OK, check_status);                                                                                   \
    } while (0)

/* Only a pool with a limit may have no memory for a request, but where calls are made to fail. */
static inline int may_be_refused(weir_status status) {
    return (status == WEIR_ERROR_OUT_OF_MEMORY && (world.options.max_bytes > 0 || world.faults)) ||
           (status == WEIR_ERROR_BACKEND && world.faults);
}

/* A block without words. 0 if it is refused. */
static inline int have_block(actor *a, weir_pool *pool, size_t bytes, size_t aligned, weir_stream stream, int home, block *b) {
    void *p = NULL;
    a->calls++;
    weir_status status = weir_pool_alloc_aligned(pool, bytes, aligned, stream, &p);
    if (may_be_refused(status)) {
        world.refused++;
    } else {
        CHECK_OK(status);
        CHECK_EQUAL((uintptr_t)p % aligned, 0);
    }
    *b = (block){(char *)p, bytes, pool, stream, home, 0, NULL};
    return p != NULL;
}

static inline void keep_block(actor *a, const block *b) {
    a->live[a->count++] = *b;
    a->live_bytes += b->bytes;
}

/* The pool of a thread's next block. */
static inline weir_pool *some_pool(actor *a) { return world.second != NULL && one_in(a->source, 3) ? world.second : world.pool; }

static inline int is_of_host(const weir_pool *pool) {
    return check_memory() != WEIR_MEMORY_DEVICE || (pool == world.second && world.second_is_pinned);
}

static inline void wait_for(weir_stream stream) {
    if (check_on_device()) {
        CHECK_OK_AT_LAST(weir_stream_synchronize(stream));
    } else {
        stream_wait(stream);
    }
}

static inline void write_words(void *arg) {
    struct mark *m = (struct mark *)arg;
    *m->from = *m->to = m->value;
    free(m);
}
static inline void read_words(void *arg) {
    struct mark *m = (struct mark *)arg;
    uint32_t value[2] = {*m->from, *m->to};
    CHECK_EQUAL(value[0], m->value);
    CHECK_EQUAL(value[1], m->value);
    free(m);
}
static inline void host_words(weir_stream stream, weir_host_function function, const struct mark *words) {
    struct mark *m = (struct mark *)malloc(sizeof *m);
    CHECK(m != NULL);
    *m = *words;
    stream_queue(stream, function, m);
}
static inline struct mark ends_of(const block *b) {
    return (struct mark){(uint32_t *)b->p, (uint32_t *)(b->p + (b->bytes - 4) / 4 * 4), b->value};
}

/* The host waits for the work of all its streams if it is far ahead of it. */
static inline void keep_pace(actor *a) {
    if (world.lead == 0 || ++a->queued < world.lead) {
        return;
    }
    a->queued = 0;
    for (int i = 0; i < a->stream_count; i++) {
        if (!world.told && check_on_device()) {
            DEVICE_OK(cu.StreamSynchronize(a->streams[i]));
        } else {
            wait_for(a->streams[i]);
        }
    }
}

static inline void queue_words(actor *a, block *b) {
    keep_pace(a);
    b->value = (uint32_t)next_of(&a->random) | 1;
    struct mark m = ends_of(b);
    if (!check_on_device()) {
        host_words(b->stream, write_words, &m);
        return;
    }
    DEVICE_OK(cu.MemsetD32Async(device_address(m.from), m.value, 1, b->stream));
    DEVICE_OK(cu.MemsetD32Async(device_address(m.to), m.value, 1, b->stream));
}

static inline void compare_words(actor *a) {
    marks *c = &a->checks;
    if (c->count == 0) {
        return;
    }
    for (int i = 0; i < a->stream_count; i++) {
        wait_for(a->streams[i]);
    }
    uint32_t *seen = (uint32_t *)malloc(2 * MARKS * sizeof *seen);
    CHECK(seen != NULL);
    DEVICE_OK(cu.MemcpyDtoH(seen, device_address(c->seen), 2 * MARKS * sizeof *seen));
    for (int i = 0; i < c->count; i++) {
        CHECK_EQUAL(seen[2 * i], c->all[i].value);
        CHECK_EQUAL(seen[2 * i + 1], c->all[i].value);
    }
    free(seen);
    c->count = 0;
}

static inline void queue_compare(actor *a, const block *b, weir_stream stream) {
    struct mark m = ends_of(b);
    if (b->value == 0) {
        return;
    }
    if (!check_on_device()) {
        host_words(stream, read_words, &m);
        return;
    }
    marks *c = &a->checks;
    CUdeviceptr to = device_address(c->seen + 2 * c->count);
    c->all[c->count++] = m;
    DEVICE_OK(cu.MemcpyDtoDAsync(to, device_address(m.from), 4, stream));
    DEVICE_OK(cu.MemcpyDtoDAsync(to + 4, device_address(m.to), 4, stream));
    if (c->count == MARKS) {
        compare_words(a);
    }
}

/* Work of `then` waits for that of `first`. */
static inline void order(actor *a, weir_stream first, weir_stream then) {
    if (first == then) {
        return;
    }
    keep_pace(a);
    if (!world.told && check_on_device()) {
        DEVICE_OK(cu.EventRecord(a->event, first));
        DEVICE_OK(cu.StreamWaitEvent(then, a->event, 0));
        return;
    }
    CHECK_OK_AT_LAST(weir_event_record(a->event, first));
    CHECK_OK_AT_LAST(weir_stream_wait_event(then, a->event));
}

#endif
