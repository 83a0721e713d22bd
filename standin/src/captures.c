#include "captures.h"

#include "calls.h"

static struct capture *captures;
static uint64_t last_id;

struct capture *capture_numbered(uint64_t id) {
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->id == id) {
            return capture;
        }
    }
    return NULL;
}

void capture_invalidate(struct capture *capture) { capture->invalid = true; }

/* ---- what a capture refuses ---- */

static bool forbids(const struct capture *capture) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || this_thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return false;
    }
    if (capture->thread == thread_id()) {
        return true;
    }
    return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && this_thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult captures_refuse_unsafe(void) {
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (forbids(capture)) {
            capture_invalidate(capture);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

/* Invalidates the captures of a context's streams, or of its blocking ones. Are there any? */
static bool any_in(const struct context *context, bool blocking_only, bool invalidate) {
    bool any = false;
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->capture != NULL && stream->context == context && (stream->blocking || !blocking_only)) {
            any = true;
            stream->capture->invalid |= invalidate;
        }
    }
    return any;
}

CUresult captures_refuse_context(const struct context *context) {
    return any_in(context, false, true) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult captures_refuse_legacy(const struct context *context, bool invalidate) {
    return any_in(context, true, invalidate) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult captures_refuse_captured(const struct stream *stream) {
    if (stream->capture == NULL) {
        return CUDA_SUCCESS;
    }
    capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult captures_refuse_stream(const struct stream *stream) {
    CUresult result = captures_refuse_captured(stream);
    return result != CUDA_SUCCESS ? result : captures_refuse_unsafe();
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode);
    REQUIRE(mode != NULL && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode before = this_thread.capture_mode;
    this_thread.capture_mode = *mode;
    *mode = before;
    LEAVE(CUDA_SUCCESS);
}

/* ---- what is captured ---- */

static void set_deps(struct stream *stream, struct node *const *nodes, size_t count) {
    free(stream->deps);
    stream->deps = NULL;
    stream->dep_count = count;
    if (count > 0) {
        stream->deps = memcpy(must_alloc(count * sizeof *nodes), nodes, count * sizeof *nodes);
    }
}

static void add_dep(struct stream *stream, struct node *node) {
    for (size_t i = 0; i < stream->dep_count; i++) {
        if (stream->deps[i] == node) {
            return;
        }
    }
    stream->deps = must_grow(stream->deps, (stream->dep_count + 1) * sizeof *stream->deps);
    stream->deps[stream->dep_count++] = node;
}

CUresult submit(struct stream *stream, struct operation *operation) {
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        struct work *work = work_new();
        work->operation = *operation;
        stream_queue(stream, work);
        return CUDA_SUCCESS;
    }
    if (capture->invalid) {
        operation_end(operation);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    struct node *node = graph_add(capture->graph, operation, stream->deps, stream->dep_count);
    set_deps(stream, &node, 1);
    return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event, bool *done) {
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        return CUDA_SUCCESS;
    }
    if (!event->for_captures) {
        rule_broken("event %p, which is an ordinary one, is recorded on %s, which is capturing", (void *)event->handle,
                    stream_name(stream));
    }
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    event_clear(event);
    event->capture = capture->id;
    event->node_count = stream->dep_count;
    if (stream->dep_count > 0) {
        size_t bytes = stream->dep_count * sizeof *stream->deps;
        event->nodes = memcpy(must_alloc(bytes), stream->deps, bytes);
    }
    *done = true;
    return CUDA_SUCCESS;
}

/* An ordinary event's work is outside the capture, and only the order within a stream may cross its boundary. */
static CUresult wait_for_ordinary(struct stream *stream, const struct event *event, bool *done) {
    if (stream->capture == NULL) {
        return CUDA_SUCCESS;
    }
    *done = true;
    if (stream->capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (event->point.stream == NULL) {
        return CUDA_SUCCESS;
    }
    capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
}

CUresult capture_wait(struct stream *stream, struct event *event, bool *done) {
    if (event->capture == 0) {
        return wait_for_ordinary(stream, event, done);
    }
    struct capture *capture = capture_numbered(event->capture);
    if (capture == NULL) {
        /* The capture is over: the event stands for nothing that is scheduled. */
        if (stream->capture != NULL) {
            capture_invalidate(stream->capture);
        }
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream->kind == STREAM_LEGACY) {
        capture_invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture != NULL && stream->capture != capture) {
        capture_invalidate(capture);
        capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    stream->capture = capture;
    for (size_t i = 0; i < event->node_count; i++) {
        add_dep(stream, event->nodes[i]);
    }
    *done = true;
    return CUDA_SUCCESS;
}

/* ---- beginning and end ---- */

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    ENTER(cuStreamBeginCapture_v2);
    struct stream *stream;
    REQUIRE((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_named(handle, &stream));
    REQUIRE(stream->kind != STREAM_LEGACY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(stream->capture == NULL, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = must_alloc(sizeof *capture);
    capture->id = ++last_id;
    capture->mode = mode;
    capture->thread = thread_id();
    capture->origin = stream;
    capture->graph = graph_new();
    capture->graph->capturing = true;
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    LEAVE(CUDA_SUCCESS);
}

static void leave(struct stream *stream) {
    stream->capture = NULL;
    set_deps(stream, NULL, 0);
}

/* Takes all streams out of the capture, which is no more. */
static struct graph *capture_over(struct capture *capture) {
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->capture == capture) {
            leave(stream);
        }
    }
    struct capture **at = &captures;
    while (*at != capture) {
        at = &(*at)->next;
    }
    *at = capture->next;
    struct graph *graph = capture->graph;
    graph->capturing = false;
    free(capture);
    return graph;
}

static void mark_joined(const struct node *node, bool *joined) {
    if (joined[node->index]) {
        return;
    }
    joined[node->index] = true;
    for (size_t i = 0; i < node->dep_count; i++) {
        mark_joined(node->deps[i], joined);
    }
}

/* Is every node one that the stream where it began now comes after? */
static bool all_joined(const struct capture *capture) {
    const struct stream *origin = capture->origin;
    bool *joined = must_alloc(capture->graph->count * sizeof *joined);
    for (size_t i = 0; i < origin->dep_count; i++) {
        mark_joined(origin->deps[i], joined);
    }
    bool all = true;
    for (size_t i = 0; i < capture->graph->count; i++) {
        all &= joined[i];
    }
    free(joined);
    return all;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    ENTER(cuStreamEndCapture);
    struct stream *stream;
    REQUIRE(out != NULL, CUDA_ERROR_INVALID_VALUE);
    *out = NULL;
    TRY(stream_named(handle, &stream));
    struct capture *capture = stream->capture;
    REQUIRE(capture != NULL, CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture->thread == thread_id(),
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (capture->origin != stream) {
        capture_invalidate(capture);
        LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    CUresult result = capture->invalid        ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : !all_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                              : CUDA_SUCCESS;
    struct graph *graph = capture_over(capture);
    if (result == CUDA_SUCCESS) {
        *out = graph->handle;
    } else {
        graph_free(graph);
    }
    LEAVE(result);
}

void captures_leave(struct stream *stream) {
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        return;
    }
    if (capture->origin == stream) {
        rule_broken("%s is destroyed before the end of the capture that began on it", stream_name(stream));
    }
    leave(stream);
}

void captures_drop(const struct context *context) {
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->capture != NULL && stream->context == context) {
            graph_free(capture_over(stream->capture));
        }
    }
}

uint64_t captures_open(void) {
    uint64_t count = 0;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        count++;
    }
    return count;
}

void captures_end(void) {
    while (captures != NULL) {
        graph_free(capture_over(captures));
    }
}

/* ---- questions ---- */

/* The stream, or what makes its state unspecified. Asking harms no capture. */
static CUresult stream_asked(CUstream handle, struct stream **stream) {
    CUresult result = stream_named(handle, stream);
    if (result == CUDA_SUCCESS && (*stream)->device->lost) {
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (result == CUDA_SUCCESS && (*stream)->kind == STREAM_LEGACY) {
        result = captures_refuse_legacy((*stream)->context, false);
    }
    return result;
}

static CUstreamCaptureStatus status_of(const struct stream *stream) {
    if (stream->capture == NULL) {
        return CU_STREAM_CAPTURE_STATUS_NONE;
    }
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    ENTER(cuStreamIsCapturing);
    struct stream *stream;
    REQUIRE(status != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_asked(handle, &stream));
    *status = status_of(stream);
    LEAVE(CUDA_SUCCESS);
}

static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **dependencies, size_t *count) {
    struct stream *stream;
    if (status == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = stream_asked(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *status = status_of(stream);
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return CUDA_SUCCESS;
    }
    if (id != NULL) {
        *id = stream->capture->id;
    }
    if (graph != NULL) {
        *graph = stream->capture->graph->handle;
    }
    if (dependencies != NULL) {
        *dependencies = (const CUgraphNode *)stream->deps;
    }
    if (count != NULL) {
        *count = stream->dep_count;
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    ENTER(cuStreamGetCaptureInfo);
    LEAVE(info(stream, status, id, NULL, NULL, NULL));
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count) {
    ENTER(cuStreamGetCaptureInfo_v2);
    LEAVE(info(stream, status, id, graph, dependencies, count));
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count) {
    ENTER(cuStreamGetCaptureInfo_v3);
    REQUIRE(edges == NULL || dependencies != NULL, CUDA_ERROR_INVALID_VALUE);
    if (edges != NULL) {
        *edges = NULL;
    }
    LEAVE(info(stream, status, id, graph, dependencies, count));
}
