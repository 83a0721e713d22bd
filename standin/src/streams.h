/* Streams: a queue and a worker each. What a handle names and what is queued live apart: a destroyed stream's handle
 * is free at once, while its work goes on.
 *
 * Work is done in the order of its sequence numbers: `completed <= queued`, and a point of a stream is past when
 * `completed` has reached it. */
#ifndef STANDIN_STREAMS_H
#define STANDIN_STREAMS_H

#include "contexts.h"
#include "operations.h"

#pragma GCC visibility push(hidden)

struct capture;
struct node;
struct exec;

/* All work on a stream up to a number. Holds the stream. */
struct point {
    struct stream *stream; /* NULL: nothing */
    uint64_t sequence;
};

/* When something was done, for the events that time it. */
struct stamp {
    unsigned references;
    bool done;
    uint64_t nanoseconds;
};

struct work {
    struct work *next;
    uint64_t sequence;
    struct operation operation;
    struct exec *exec; /* a graph's launch, or NULL */
    struct point *waits;
    size_t wait_count;
    struct stamp *stamp;
};

enum stream_kind { STREAM_CREATED, STREAM_LEGACY, STREAM_OF_THREAD };

struct stream {
    struct stream *next; /* of all streams whose work is not over */
    CUstream handle;     /* NULL: destroyed, or it needs none */
    struct context *context;
    struct device *device;
    enum stream_kind kind;
    uint64_t id;
    uint64_t thread; /* whose per-thread stream it is */
    bool blocking;
    bool excused;
    unsigned references;

    struct work *first, *last;
    uint64_t queued, completed;
    pthread_cond_t arrived;   /* there is work, or the end */
    pthread_cond_t advanced;  /* `completed` has grown */
    pthread_t worker;
    bool has_worker;
    bool ended;  /* no more work comes */
    bool exited; /* the worker needs joining only */

    struct capture *capture;
    struct node **deps; /* what the next captured work comes after */
    size_t dep_count;
    struct use *declared; /* standin_declare_use, for the next host function */
    size_t declared_count;
};

extern struct handles streams;
extern struct stream *stream_list;

/* The stream that a call names: a created one or one of the built-in ones of the current context. */
CUresult stream_named(CUstream handle, struct stream **stream);
/* The same for a call that queues, waits or asks: refused on the legacy stream beside a blocking capture. */
CUresult stream_in_use(CUstream handle, struct stream **stream);
struct stream *stream_legacy(struct context *context);

/* Queues work behind what there is. Takes the operation, and the waits. */
void stream_queue(struct stream *stream, struct operation *operation, struct exec *exec, struct point *waits,
                  size_t wait_count, struct stamp *stamp);

struct point stream_point(struct stream *stream);
bool point_past(const struct point *point);
/* Waits until it is past; lets go of the lock meanwhile. */
void point_wait(const struct point *point);
void point_copy(struct point *to, const struct point *from);
void point_end(struct point *point);
void stamp_release(struct stamp *stamp);

/* Waits for all work now queued in a context. */
void streams_drain(struct context *context);
/* Takes all streams of a context away. */
void streams_drop(struct context *context);
/* The stream with queued work that uses these bytes, or NULL. `device`: of that device only. */
const struct stream *streams_using(uintptr_t at, size_t bytes, const struct device *device, bool writes_only);
/* What to call it in a message. The buffer is the thread's. */
const char *stream_name(const struct stream *stream);
/* Ends all workers, without doing what is still queued. */
void streams_end(void);
/* In a forked child, where the workers are not. */
void streams_forget_workers(void);

#pragma GCC visibility pop
#endif
