/* Calls that wait for work: their order, what they may do, and that all have been made when weir_finalize returns. Held
 * copies, whose release is such a call. */
#include "copies.h"

enum { CALLS = 100 };

typedef struct {
    atomic_int *count;
    int place, seen;
    weir_pool *pool;
    void *block;
    weir_stream stream;
    pthread_t thread;
} call;

/* Notes when it came, and gives back what it was given. */
static void note(void *arg) {
    call *c = (call *)arg;
    if (c->block != NULL) {
        CHECK_OK(weir_pool_free(c->pool, c->block, c->stream));
        c->block = NULL;
    }
    c->thread = pthread_self();
    c->seen = atomic_fetch_add(c->count, 1) + 1;
}

static void eventually(atomic_int *count, int wanted) {
    for (int i = 0; atomic_load(count) != wanted; i++) {
        CHECK(i < 20000);
        pause_ms(1);
    }
}

static void calls_come_in_order_behind_the_work(void) {
    weir_stream stream = stream_new();
    atomic_int count = 0;
    call calls[CALLS];
    gate g = {0};
    queue_gate(stream, &g);
    for (int i = 0; i < CALLS; i++) {
        calls[i] = (call){.count = &count};
        CHECK_OK(weir_stream_defer(stream, note, &calls[i]));
    }
    pause_ms(20);
    CHECK_EQUAL(atomic_load(&count), 0);
    atomic_store(&g.open, 1);
    eventually(&count, CALLS);
    for (int i = 0; i < CALLS; i++) {
        CHECK_EQUAL(calls[i].seen, i + 1);
        CHECK(!pthread_equal(calls[i].thread, pthread_self()));
    }
    stream_end(stream);
}

/* The stream may go at once. */
static void a_slow_stream_holds_back_nobody(void) {
    weir_stream slow = stream_new(), quick = stream_new();
    atomic_int slow_count = 0, quick_count = 0;
    call first = {.count = &slow_count}, second = {.count = &quick_count};
    gate g = {0};
    queue_gate(slow, &g);
    CHECK_OK(weir_stream_defer(slow, note, &first));
    CHECK_OK(weir_stream_defer(quick, note, &second));
    stream_end(quick);
    eventually(&quick_count, 1);
    CHECK_EQUAL(atomic_load(&slow_count), 0);
    if (check_under("sanitizer")) {
        atomic_store(&g.open, 1); /* under compute-sanitizer a stream's end waits for its work */
    }
    stream_end(slow);
    atomic_store(&g.open, 1);
    eventually(&slow_count, 1);
}

static void a_call_may_call_weir(void) {
    sides s = sides_open();
    atomic_int count = 0;
    call c = {.count = &count, .pool = s.far, .stream = s.stream};
    c.block = take(s.far, 1 * MiB, s.stream);
    CHECK_OK(weir_stream_defer(s.stream, note, &c));
    eventually(&count, 1);
    CHECK_EQUAL(CHECK_STATS(s.far).used_bytes, 0);
    sides_close(&s);
}

/* Somebody else's memory goes when the copy has been made. */
static void a_held_source_is_released(void) {
    sides s = sides_open();
    atomic_int count = 0;
    const size_t bytes = 256 * KiB;
    call c = {.count = &count};
    gate g = {0};
    void *theirs = NULL, *target = take(s.far, bytes, s.stream);
    if (check_on_device()) {
        DEVICE_OK(cu.MemHostAlloc(&theirs, bytes, 0));
    } else {
        theirs = malloc(bytes);
    }
    memset(theirs, 3, bytes);
    queue_gate(s.stream, &g);
    CHECK_OK(weir_copy_async_hold(target, theirs, bytes, s.stream, WEIR_COPY_HOLD, note, &c));
    pause_ms(10);
    CHECK_EQUAL(atomic_load(&count), 0);
    atomic_store(&g.open, 1);
    eventually(&count, 1);
    memset(theirs, 4, bytes);
    stream_wait(s.stream);
    CHECK(contents_are(target, 3, bytes));
    if (check_on_device()) {
        DEVICE_OK(cu.MemFreeHost(theirs));
    } else {
        free(theirs);
    }
    CHECK_OK(weir_pool_free(s.far, target, s.stream));
    sides_close(&s);
}

static void *opened_late(void *arg) {
    pause_ms(50);
    atomic_store(&((gate *)arg)->open, 1);
    return NULL;
}

/* All have been called when it returns, and the pools were still there for them. */
static void finalize_waits_for_all(void) {
    for (int round = 0; round < 3; round++) {
        weir_stream stream = stream_new();
        weir_pool *pool = check_pool(0);
        atomic_int count = 0;
        call calls[CALLS];
        gate g = {0};
        pthread_t opener;
        queue_gate(stream, &g);
        for (int i = 0; i < CALLS; i++) {
            calls[i] = (call){.count = &count, .pool = pool, .stream = stream};
            calls[i].block = take(pool, 4 * KiB, stream);
            CHECK_OK(weir_stream_defer(stream, note, &calls[i]));
        }
        CHECK_EQUAL(pthread_create(&opener, NULL, opened_late, &g), 0);
        CHECK_OK(weir_finalize());
        CHECK_EQUAL(atomic_load(&count), CALLS);
        pthread_join(opener, NULL);
        if (check_on_device()) {
            stream_end(stream);
        }
    }
}

static atomic_int at_exit;
static call last = {.count = &at_exit};

static void look_at_the_end(void) {
    if (atomic_load(&at_exit) != 1) {
        fprintf(stderr, "a deferred call was not made at exit\n");
        _exit(1);
    }
}

int main(void) {
    atexit(look_at_the_end); /* runs after weir's own handlers */
    program_begin();
    calls_come_in_order_behind_the_work();
    a_slow_stream_holds_back_nobody();
    a_call_may_call_weir();
    a_held_source_is_released();
    finalize_waits_for_all();
    /* nobody finalizes after this one: weir makes the call while the driver is there */
    weir_stream stream = stream_new();
    CHECK_OK(weir_stream_defer(stream, note, &last));
    stream_end(stream);
    return program_end();
}
