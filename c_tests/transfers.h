/* Copies that threads of soak.c have weir make, whose ends go as early as they may, and frees that it makes for them later. */
#ifndef WEIR_C_TESTS_TRANSFERS_H
#define WEIR_C_TESTS_TRANSFERS_H

#include "world.h"

static inline int plain_block(actor *a, size_t bytes, int home, block *b) {
    return have_block(a, some_pool(a), bytes, 256, a->streams[home], home, b);
}

/* A block is copied to another one, and goes at once. Of host memory it may on any stream, whatever that has to do. */
static inline void copy_block(actor *a, size_t bytes, int home) {
    block from, to;
    if (!plain_block(a, bytes, home, &from)) {
        return;
    }
    queue_words(a, &from);
    if (!plain_block(a, bytes, home, &to)) {
        CHECK_OK_AT_LAST(weir_pool_free(from.pool, from.p, from.stream));
        return;
    }
    CHECK_OK_AT_LAST(weir_copy_async(to.p, from.p, bytes, to.stream, 0));
    to.value = from.value;
    switch (is_of_host(from.pool) ? below(&a->random, 3) : 0) {
    case 0:
        CHECK_OK_AT_LAST(weir_pool_free(from.pool, from.p, from.stream));
        break;
    case 1:
        CHECK_OK_AT_LAST(weir_pool_free(from.pool, from.p, a->streams[below(&a->random, (unsigned)a->stream_count)]));
        break;
    default:
        CHECK_OK_AT_LAST(weir_pool_free_synced(from.pool, from.p));
    }
    keep_block(a, &to);
}

/* Memory of the program's is copied to a block, and changed at once; or a block to it, which is then complete. */
static inline void copy_staged(actor *a, size_t bytes, int home) {
    block b;
    if (!plain_block(a, bytes, home, &b)) {
        return;
    }
    char *memory = (char *)malloc(bytes);
    CHECK(memory != NULL);
    block words = b;
    words.p = memory;
    struct mark ends = ends_of(&words);
    if (one_in(&a->random, 2)) {
        b.value = (uint32_t)next_of(&a->random) | 1;
        *ends.from = *ends.to = b.value;
        CHECK_OK_AT_LAST(weir_copy_async(b.p, memory, bytes, b.stream, WEIR_COPY_STAGED));
    } else {
        queue_words(a, &b);
        CHECK_OK_AT_LAST(weir_copy_async(memory, b.p, bytes, b.stream, WEIR_COPY_STAGED));
        CHECK_EQUAL(*ends.from, b.value);
        CHECK_EQUAL(*ends.to, b.value);
    }
    *ends.from = *ends.to = 0;
    free(memory);
    keep_block(a, &b);
}

static inline void one_copy(actor *a, const habit *h) {
    size_t bytes = next_size(h, a->source, &a->random) / 8 + 8;
    int home = (int)below(a->source, (unsigned)a->stream_count);
    if (one_in(a->source, 3)) {
        copy_staged(a, bytes, home);
    } else {
        copy_block(a, bytes, home);
    }
}

typedef struct {
    weir_pool *pool;
    char *p;
} late_block;

static inline void free_late(void *arg) {
    late_block *late = (late_block *)arg;
    CHECK_OK_AT_LAST(weir_pool_free_synced(late->pool, late->p));
    free(late);
    world.deferred--;
}

/* A block goes when the work of its stream is complete. */
static inline void defer_free(const block *b) {
    late_block *late = (late_block *)malloc(sizeof *late);
    CHECK(late != NULL);
    *late = (late_block){b->pool, b->p};
    world.deferred++;
    CHECK_OK_AT_LAST(weir_stream_defer(b->stream, free_late, late));
}

#endif
