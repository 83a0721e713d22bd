/* Captures that threads of soak.c make, launch now and then, and give up, with memory allocated and freed in them. */
#ifndef WEIR_C_TESTS_RECORDINGS_H
#define WEIR_C_TESTS_RECORDINGS_H

#include "world.h"

/* A block is had and written in the capture. 0 if there is none. */
static inline int record_block(actor *a, const habit *h, recording *r, weir_stream stream) {
    block b;
    if (!have_block(a, r->pool, next_size(h, a->source, &a->random) / 8 + 8, 256, stream, r->count, &b)) {
        return 0;
    }
    b.value = (uint32_t)next_of(&a->random) | 1;
    struct mark m = ends_of(&b);
    DEVICE_OK(cu.MemsetD32Async(device_address(m.from), m.value, 1, stream));
    DEVICE_OK(cu.MemsetD32Async(device_address(m.to), m.value, 1, stream));
    r->blocks[r->count++] = r->blocks[r->kept]; /* those that are left come first */
    r->blocks[r->kept++] = b;
    return 1;
}

/* What a block of the capture has at its ends is read in it. */
static inline void record_read(const recording *r, int at) {
    const block *b = &r->blocks[at];
    struct mark m = ends_of(b);
    CUdeviceptr to = device_address(r->seen + 2 * b->home);
    DEVICE_OK(cu.MemcpyDtoDAsync(to, device_address(m.from), 4, b->stream));
    DEVICE_OK(cu.MemcpyDtoDAsync(to + 4, device_address(m.to), 4, b->stream));
}

/* One of the blocks that are left is read and freed in the capture, on its stream. */
static inline void record_free(actor *a, recording *r) {
    int at = (int)below(a->source, (unsigned)r->kept), last = --r->kept;
    block b = r->blocks[at];
    r->blocks[at] = r->blocks[last];
    r->blocks[last] = b;
    record_read(r, last);
    a->calls++;
    CHECK_OK_AT_LAST(weir_pool_free(r->pool, b.p, b.stream));
}

/* Orders `then` behind `first` in the capture: by the hooks, or by the driver's calls, of which the pool learns nothing. */
static inline void record_order(actor *a, weir_stream first, weir_stream then) {
    if (world.told) {
        CHECK_OK_AT_LAST(weir_event_record(a->fork, first));
        CHECK_OK_AT_LAST(weir_stream_wait_event(then, a->fork));
    } else {
        DEVICE_OK(cu.EventRecord(a->fork, first));
        DEVICE_OK(cu.StreamWaitEvent(then, a->fork, 0));
    }
}

static inline void record(actor *a, const habit *h, recording *r) {
    int first = (int)below(a->source, (unsigned)a->own_count), side = (int)below(a->source, (unsigned)a->own_count);
    weir_stream s = a->streams[first], t = a->streams[side], beside = a->streams[below(a->source, (unsigned)a->own_count)];
    memset(r->blocks, 0, sizeof r->blocks);
    r->count = r->kept = 0;
    r->pool = world.second != NULL && one_in(&a->random, 3) ? world.second : world.pool;
    order(a, r->stream, s); /* the last graph there may have read to the same place */
    r->stream = s;
    if (world.options.declared_streams) {
        CHECK_OK_AT_LAST(weir_stream_changed(s));
        CHECK_OK_AT_LAST(weir_stream_changed(t));
    }
    /* A global one forbids all threads what some here do. */
    DEVICE_OK(cu.StreamBeginCapture(s, capture_modes[below(&a->random, 2) + (world.threads > 1)]));
    CHECK_OK(weir_stream_get_capture(s, &r->id));
    CHECK(r->id != 0);
    if (s != t) {
        record_order(a, s, t);
    }
    for (unsigned i = 0; i < 2 * h->length && r->count < RECORDED; i++) {
        if (r->kept == 0 || one_in(a->source, 2)) {
            if (!record_block(a, h, r, one_in(a->source, 3) ? t : s)) {
                break;
            }
        } else {
            record_free(a, r);
        }
        if (beside != s && beside != t && one_in(&a->random, 4)) {
            block b;
            if (have_block(a, world.pool, next_size(h, a->source, &a->random), 256, beside, 0, &b)) {
                CHECK_OK_AT_LAST(weir_pool_free(b.pool, b.p, beside));
            }
        }
        if (one_in(&a->random, 64)) {
            CHECK_OK_AT_LAST(weir_pool_trim(r->pool, 0));
        }
    }
    for (int i = 0; i < r->kept; i++) {
        record_read(r, i);
    }
    if (s != t) {
        record_order(a, t, s);
    }
    r->graph = capture_end(s);
    world.recorded = 1;
}

/* Launches a graph behind its last launch, and has looked at what it has read. On one of the thread's own streams: where other
 * threads queue copies meanwhile a driver (580.159.04) keeps no order between a launch and what its thread queues behind it. */
static inline void launch(actor *a, recording *r) {
    weir_stream stream = a->streams[below(a->source, (unsigned)a->own_count)];
    order(a, r->stream, stream);
    r->stream = stream;
    keep_pace(a);
    DEVICE_OK(cu.MemsetD32Async(device_address(r->seen), 0, (size_t)(2 * r->count), stream));
    DEVICE_OK(cu.GraphLaunch(r->graph.exec, stream));
    for (int i = 0; i < r->count; i++) {
        block read = {(char *)(r->seen + 2 * r->blocks[i].home), 8, NULL, stream, 0, r->blocks[i].value, NULL};
        queue_compare(a, &read, stream);
    }
}

/* Gives a graph up, and the blocks that were not freed in it: the driver tells when its launches are over, or the program does. */
static inline void give_up(actor *a, recording *r) {
    int first = (int)below(&a->random, 2), tells = one_in(&a->random, 3);
    for (int i = 0; first && i < r->kept; i++) {
        CHECK_OK_AT_LAST(weir_pool_free(r->pool, r->blocks[i].p, r->stream));
    }
    if (tells) {
        wait_for(r->stream);
    }
    captured_end(&r->graph);
    if (tells) {
        CHECK_OK_AT_LAST(weir_pool_release_capture(r->pool, r->id));
    }
    for (int i = 0; !first && i < r->kept; i++) {
        CHECK_OK_AT_LAST(weir_pool_free(r->pool, r->blocks[i].p, r->stream));
    }
    r->id = 0;
}

/* One of the thread's graphs is made, launched or given up. */
static inline void one_graph(actor *a, const habit *h) {
    recording *r = &a->recordings[below(&a->random, RECORDINGS)];
    if (r->id == 0) {
        record(a, h, r);
    } else if (one_in(&a->random, 6)) {
        give_up(a, r);
        return;
    }
    launch(a, r);
}

#endif
