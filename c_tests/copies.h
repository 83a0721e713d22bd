/* Both sides of copies: a pool of the host's memory that copies know, and memory that only a stream writes: the device's, or
 * on host streams the host's. */
#ifndef WEIR_C_TESTS_COPIES_H
#define WEIR_C_TESTS_COPIES_H

#include "streams.h"

typedef struct {
    weir_pool *near, *far;
    weir_stream stream;
} sides;

static inline weir_pool *pool_of(int memory, uint64_t max_bytes) {
    weir_pool_options options = check_options(max_bytes);
    weir_pool *pool = NULL;
    options.memory = check_on_device() ? memory : WEIR_MEMORY_HOST;
    CHECK_OK(weir_pool_create(&options, &pool));
    return pool;
}

static inline sides sides_open(void) {
    sides s = {pool_of(WEIR_MEMORY_PINNED, 0), pool_of(WEIR_MEMORY_DEVICE, 0), stream_new()};
    return s;
}

static inline void sides_close(sides *s) {
    stream_wait(s->stream);
    stream_end(s->stream);
    CHECK_OK(weir_pool_destroy(s->near));
    CHECK_OK(weir_pool_destroy(s->far));
}

static inline void *take(weir_pool *pool, size_t bytes, weir_stream stream) {
    void *block = NULL;
    CHECK_OK(weir_pool_alloc(pool, bytes, stream, &block));
    return block;
}

/* Is memory of the host filled with this? */
static inline int bytes_are(const void *at, int value, size_t bytes) {
    const unsigned char *byte = (const unsigned char *)at;
    for (size_t i = 0; i < bytes; i++) {
        if (byte[i] != (unsigned char)value) {
            return 0;
        }
    }
    return 1;
}

/* Lets a stream go that stands at a gate, and waits for it. */
static inline void gate_pass(gate *g, weir_stream stream) {
    atomic_store(&g->open, 1);
    stream_wait(stream);
}

#endif
