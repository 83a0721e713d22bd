/* Events: a point of a stream, or a place in a capture. */
#ifndef STANDIN_EVENTS_H
#define STANDIN_EVENTS_H

#include "ipc_events.h"
#include "streams.h"

#pragma GCC visibility push(hidden)

struct event {
    CUevent handle;
    struct context *context;
    unsigned flags;
    bool excused;
    bool for_captures; /* standin_capture_event */

    struct point point;  /* the last record */
    struct clock clock;  /* what came before that */
    struct stamp *stamp; /* when it was done; NULL: never recorded, or not timed */

    struct ipc_event *ipc; /* what other processes see; NULL: they do not */
    bool opened;           /* by its handle, from another process */

    uint64_t capture; /* id, if the last record was captured */
    struct node **nodes;
    size_t node_count;
};

extern struct handles events;

/* A new event of a context, with a handle. */
struct event *event_new(struct context *context, unsigned flags);
/* The event of a handle, which has to be one. */
CUresult event_named(CUevent handle, struct event **event);
/* Forgets what the event was recorded on. */
void event_clear(struct event *event);
void events_drop(struct context *context);
void events_end(void);

#pragma GCC visibility pop
#endif
