/* What the tests of stream order begin with: a block whose queued work stands still, freed on its stream. */
#ifndef WEIR_C_TESTS_SCENE_H
#define WEIR_C_TESTS_SCENE_H

#include "streams.h"

enum { EVENTS = 1, OPPORTUNISTIC = 2, INTERNAL = 4 };
static const size_t size = 4 * MiB;
/* Room for one block, and a page on which the pool first meets stream T. */
static const size_t one_block = 6 * MiB;

static inline weir_pool *pool_with(uint64_t max_bytes, int policies) {
    weir_pool_options o = check_options(max_bytes);
    o.reuse_follow_event_dependencies = !!(policies & EVENTS);
    o.reuse_allow_opportunistic = !!(policies & OPPORTUNISTIC);
    o.reuse_allow_internal_dependencies = !!(policies & INTERNAL);
    weir_pool *pool;
    CHECK_OK(weir_pool_create(&o, &pool));
    return pool;
}

/* A block on S that queued work writes and checks behind a closed gate, freed on S. */
typedef struct {
    weir_pool *pool;
    weir_stream s, t;
    gate gate;
    void *block;
    job write, check;
} scene;

static inline void scene_start(scene *c, uint64_t max_bytes, int policies) {
    memset(c, 0, sizeof *c);
    c->pool = pool_with(max_bytes, policies);
    c->s = stream_new();
    c->t = stream_new();
    CHECK_OK(weir_pool_alloc(c->pool, 1, c->t, &c->block));
    CHECK_OK(weir_pool_free(c->pool, c->block, c->t));
    CHECK_OK(weir_pool_alloc(c->pool, size, c->s, &c->block));
    c->write = job_over(c->block, size, 1);
    c->check = job_over(c->block, size, 1);
    c->check.ms = 20;
    queue_gate(c->s, &c->gate);
    queue_write(c->s, &c->write);
    queue_check(c->s, &c->check);
    CHECK_OK(weir_pool_free(c->pool, c->block, c->s));
}

static inline void scene_end(scene *c) {
    atomic_store(&c->gate.open, 1);
    stream_wait(c->s);
    stream_wait(c->t);
    CHECK_GOOD(c->write);
    CHECK_GOOD(c->check);
    CHECK_STATS(c->pool);
    stream_end(c->s);
    stream_end(c->t);
    CHECK_OK(weir_pool_destroy(c->pool));
}

/* Writes another pattern to `block` from work on `stream`, and checks it. */
static inline void use_on(weir_stream stream, void *block, job *write, job *check) {
    *write = job_over(block, size, 1000);
    *check = job_over(block, size, 1000);
    queue_write(stream, write);
    queue_check(stream, check);
}

#endif
