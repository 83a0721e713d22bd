/* Events: a point of a stream, or a place in a capture. */
#ifndef STANDIN_EVENTS_H
#define STANDIN_EVENTS_H

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

    uint64_t capture; /* id, if the last record was captured */
    struct node **nodes;
    size_t node_count;
};

extern struct handles events;

/* Forgets what the event was recorded on. */
void event_clear(struct event *event);
void events_drop(struct context *context);
void events_end(void);

#pragma GCC visibility pop
#endif
