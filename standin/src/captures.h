/* Stream captures: which streams take part, and which calls they refuse.
 *
 * A call that is refused because of a capture invalidates it, as with the real driver; only questions after the state
 * of a capture do not. The virtual memory calls are never refused (measured on a driver of CUDA 13.0). */
#ifndef STANDIN_CAPTURES_H
#define STANDIN_CAPTURES_H

#include "events.h"
#include "graphs.h"
#include "streams.h"

#pragma GCC visibility push(hidden)

struct capture {
    struct capture *next;
    uint64_t id;
    CUstreamCaptureMode mode;
    uint64_t thread; /* where it was begun */
    struct stream *origin;
    struct graph *graph;
    bool invalid;
};

/* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the thread's mode and the captures in progress forbid unsafe calls. */
CUresult captures_refuse_unsafe(void);
/* ... if a stream of the context captures: it cannot be synchronised as a whole. */
CUresult captures_refuse_context(const struct context *context);
/* ... if this stream captures: what it holds is not scheduled. Asking is unsafe besides. */
CUresult captures_refuse_stream(const struct stream *stream);
/* ... if this stream captures, and nothing else. */
CUresult captures_refuse_captured(const struct stream *stream);
/* CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if a blocking stream of the context captures. */
CUresult captures_refuse_legacy(const struct context *context, bool invalidate);
/* The capture with this id if it is still in progress. */
struct capture *capture_numbered(uint64_t id);
void capture_invalidate(struct capture *capture);

/* Queues the operation, or makes a node of it if the stream captures. Takes the operation. */
CUresult submit(struct stream *stream, struct operation *operation);
/* cuEventRecord and cuStreamWaitEvent where a capture is concerned. `done`: nothing is left to do. */
CUresult capture_record(struct stream *stream, struct event *event, bool *done);
CUresult capture_wait(struct stream *stream, struct event *event, bool *done);

/* The stream is destroyed. */
void captures_leave(struct stream *stream);
/* The context is destroyed. */
void captures_drop(const struct context *context);
uint64_t captures_open(void);
void captures_end(void);

#pragma GCC visibility pop
#endif
