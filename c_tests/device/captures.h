/* Stream captures and the graphs that come of them. */
#ifndef WEIR_C_TESTS_CAPTURES_H
#define WEIR_C_TESTS_CAPTURES_H

#include "../streams.h"

static const int capture_modes[] = {CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED};
enum { MODES = 3 };

/* An event that forks and joins captured streams. The stand-in driver takes any other event on a capturing stream for
 * one of the pool's and ends the program. */
static inline weir_event capture_event_new(void) {
    weir_event event = event_new();
    void (*declare)(CUevent);
    *(void **)&declare = dlsym(cu.library, "standin_capture_event");
    if (declare != NULL) {
        declare(event);
    }
    return event;
}

static inline int capture_status(weir_stream stream) {
    int status = -1;
    DEVICE_OK(cu.StreamIsCapturing(stream, &status));
    return status;
}

static inline uint64_t capture_begin(weir_stream stream, int mode) {
    uint64_t id = 0;
    CHECK_OK(weir_stream_get_capture(stream, &id));
    CHECK_EQUAL(id, 0);
    DEVICE_OK(cu.StreamBeginCapture(stream, mode));
    CHECK_OK(weir_stream_get_capture(stream, &id));
    CHECK(id != 0);
    return id;
}

/* The capture is still good, and becomes something that can be launched. */
typedef struct {
    CUgraph graph;
    CUgraphExec exec;
} captured;

static inline captured capture_end(weir_stream stream) {
    captured c = {NULL, NULL};
    CHECK_EQUAL(capture_status(stream), CAPTURE_STATUS_ACTIVE);
    DEVICE_OK(cu.StreamEndCapture(stream, &c.graph));
    CHECK(c.graph != NULL);
    DEVICE_OK(cu.GraphInstantiate(&c.exec, c.graph, 0));
    return c;
}

static inline void captured_end(captured *c) {
    DEVICE_OK(cu.GraphExecDestroy(c->exec));
    DEVICE_OK(cu.GraphDestroy(c->graph));
}

static inline void queue_fill(weir_stream stream, void *p, size_t bytes, unsigned word) {
    DEVICE_OK(cu.MemsetD32Async(device_address(p), word, bytes / 4, stream));
}

static inline void queue_copy(weir_stream stream, void *to, const void *from, size_t bytes) {
    DEVICE_OK(cu.MemcpyDtoDAsync(device_address(to), device_address(from), bytes, stream));
}

/* Are all words of page-locked memory `word`? */
static inline int words_are(const unsigned *words, size_t bytes, unsigned word) {
    for (size_t i = 0; i < bytes / 4; i++) {
        if (words[i] != word) {
            return 0;
        }
    }
    return 1;
}

#endif
