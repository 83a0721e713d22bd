/* User objects: what a graph holds for the program, and a call when nobody holds it any more. */
#ifndef STANDIN_USER_OBJECTS_H
#define STANDIN_USER_OBJECTS_H

#include "graphs.h"

#pragma GCC visibility push(hidden)

struct user_object {
    CUuserObject handle;
    void *pointer;
    CUhostFn destroy;
    uint64_t owned;  /* references of the program */
    uint64_t graphs; /* references of graphs and executable graphs */
    struct clock over; /* the launches of those that are gone, which the call tells to be complete */
    bool excused;
};

extern struct handles user_objects;

/* A copy of a graph holds what the graph does. */
void user_objects_retain_all(struct graph *copy, const struct graph *graph);
/* An executable graph goes, whose launches are complete. */
void user_objects_launched(const struct graph *graph, const struct point *last, const struct clock *before);
/* A graph goes. */
void user_objects_release_all(struct graph *graph);
/* The process ends: no callback is made any more. */
void user_objects_silence(void);
void user_objects_end(void);

#pragma GCC visibility pop
#endif
