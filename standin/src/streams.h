/* Streams: a queue and a worker each. What a handle names and what is queued live apart: a destroyed stream's handle
 * is free at once, while its work goes on.
 *
 * Work is done in the order of its sequence numbers: `completed <= queued`, and a point of a stream is past when
 * `completed` has reached it. */
#ifndef STANDIN_STREAMS_H
#define STANDIN_STREAMS_H

#include "clocks.h"
#include "contexts.h"
#include "operations.h"

#pragma GCC visibility push(hidden)

struct capture;
struct node;
struct exec;

/* When something was done, for the events that time it. */
struct stamp {
    unsigned references;
    bool done;
    uint64_t nanoseconds;
};

struct ipc_event;

struct work {
    struct work *next;
    uint64_t sequence;
    struct operation operation;
    struct exec *exec; /* a graph's launch, or NULL */
    struct point *waits;
    size_t wait_count;
    struct clock before; /* of work that the host may learn of by itself: what it then has seen, too */
    struct stamp *stamp; /* or NULL */
    struct ipc_event *tells; /* the event whose record `told` this is; or NULL */
    uint64_t told;
    struct ipc_event *awaits; /* the event whose record `awaited` comes before this; or NULL */
    uint64_t awaited;
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
    uint64_t observed; /* the host has seen this much complete */
    struct clock clock;
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

/* Work that does nothing yet, waits for nothing, and is nowhere. */
struct work *work_new(void);
/* Work waits for this before it is done. */
void work_add_wait(struct work *work, const struct point *point);
/* Queues work behind what there is. Takes it. */
void stream_queue(struct stream *stream, struct work *work);
/* Waits for what is queued now, and has seen it complete then. */
void stream_wait(struct stream *stream);
void stream_release(struct stream *stream);
/* The stream leaves the list: its context keeps what others may have to know of its work. */
void stream_hand_over(struct stream *stream);
void stamp_release(struct stamp *stamp);

/* Waits for all work now queued in a context. */
void streams_drain(struct context *context);
/* Takes all streams of a context away. */
void streams_drop(struct context *context);
/* What to call it in a message. The buffer is the thread's. */
const char *stream_name(const struct stream *stream);
/* Ends all workers, without doing what is still queued. */
void streams_end(void);
/* In a forked child, where the workers are not. */
void streams_forget_workers(void);

#pragma GCC visibility pop
#endif
