/* Graphs, as captures make them, and what is launched of them. */
#ifndef STANDIN_GRAPHS_H
#define STANDIN_GRAPHS_H

#include "streams.h"

#pragma GCC visibility push(hidden)

struct user_object;

/* Nodes come in an order in which each is behind those that it depends on. */
struct node {
    size_t index;
    struct operation operation;
    struct node **deps;
    size_t dep_count;
};

/* References of a graph to user objects. */
struct held {
    struct user_object *object;
    unsigned count;
};

struct graph {
    CUgraph handle;
    struct node **nodes;
    size_t count;
    struct held *held;
    size_t held_count;
    bool capturing; /* a capture still adds to it, and owns it */
    bool excused;
};

struct exec {
    CUgraphExec handle;
    struct graph *graph; /* its own copy */
    struct point last;   /* of the last launch: there is only one at a time */
    struct clock clock;  /* what came before that */
    unsigned references;
    bool excused;
};

extern struct handles graphs, execs;

struct graph *graph_new(void);
void graph_free(struct graph *graph);
/* Adds a node behind others. Takes the operation. */
struct node *graph_add(struct graph *graph, struct operation *operation, struct node *const *deps, size_t dep_count);

/* Does all nodes, each behind those that it depends on and otherwise the youngest first: a graph that relies on an
 * order which it does not ask for goes wrong. Lets go of the lock meanwhile. */
void exec_run(struct exec *exec, struct stream *stream, const struct work *work);
/* A launch is being queued, as the last work on its stream: so with all its nodes' uses of memory. */
void exec_queued(const struct exec *exec, struct stream *stream);
void exec_release(struct exec *exec);
void graphs_end(void);

#pragma GCC visibility pop
#endif
