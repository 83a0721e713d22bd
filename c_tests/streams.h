/* Work queued on host streams that writes and checks patterns, and gates that hold a stream back. */
#ifndef WEIR_C_TESTS_STREAMS_H
#define WEIR_C_TESTS_STREAMS_H

#include "check.h"
#include <pthread.h>
#include <time.h>

static inline void pause_ms(long ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* A stream stands still behind a closed gate. */
typedef struct {
    atomic_int open, reached;
} gate;

static inline void gate_wait(void *arg) {
    gate *g = (gate *)arg;
    atomic_store(&g->reached, 1);
    while (!atomic_load(&g->open)) {
        pause_ms(1);
    }
}

/* Opens a gate from another thread after a while, for calls that may wait. */
typedef struct {
    gate *gate;
    long ms;
    pthread_t thread;
} opener;

static inline void *opener_main(void *arg) {
    opener *o = (opener *)arg;
    pause_ms(o->ms);
    atomic_store(&o->gate->open, 1);
    return NULL;
}

static inline void opener_start(opener *o, gate *g, long ms) {
    o->gate = g;
    o->ms = ms;
    CHECK_EQUAL(pthread_create(&o->thread, NULL, opener_main, o), 0);
}

static inline void opener_join(opener *o) { pthread_join(o->thread, NULL); }

/* A pattern over a block: words that depend on their place and on a seed. */
typedef struct {
    uint64_t *words;
    size_t bytes;
    uint64_t seed;
    long ms; /* rest before the work */
    atomic_int done, bad;
} job;

static inline uint64_t pattern(uint64_t seed, size_t i) { return (seed + i) * 0x9e3779b97f4a7c15u; }

static inline void job_write(void *arg) {
    job *j = (job *)arg;
    pause_ms(j->ms);
    for (size_t i = 0; i < j->bytes / 8; i++) {
        j->words[i] = pattern(j->seed, i);
    }
    atomic_store(&j->done, 1);
}

static inline void job_check(void *arg) {
    job *j = (job *)arg;
    pause_ms(j->ms);
    for (size_t i = 0; i < j->bytes / 8; i++) {
        if (j->words[i] != pattern(j->seed, i)) {
            atomic_store(&j->bad, 1);
        }
    }
    atomic_store(&j->done, 1);
}

static inline job job_over(void *block, size_t bytes, uint64_t seed) {
    job j;
    memset(&j, 0, sizeof j);
    j.words = (uint64_t *)block;
    j.bytes = bytes;
    j.seed = seed;
    return j;
}

#define ENQUEUE(stream, function, arg) CHECK_OK(weir_host_stream_enqueue(stream, function, arg))
#define CHECK_GOOD(j) CHECK(atomic_load(&(j).done) && !atomic_load(&(j).bad))

#endif
