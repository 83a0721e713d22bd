/* What is open, for the report at exit. */
#ifndef STANDIN_LEAKS_H
#define STANDIN_LEAKS_H

#include "contexts.h"

#pragma GCC visibility push(hidden)

enum leak_kind {
    LEAK_CONTEXTS,
    LEAK_RETAINED,
    LEAK_STREAMS,
    LEAK_EVENTS,
    LEAK_CAPTURES,
    LEAK_GRAPHS,
    LEAK_EXECS,
    LEAK_USER_OBJECTS,
    LEAK_RESERVATIONS,
    LEAK_MAPPINGS,
    LEAK_HANDLES,
    LEAK_ALLOCATIONS,
    LEAK_HOST_ALLOCATIONS,
    LEAK_REGISTRATIONS,
    LEAK_KINDS
};

struct leaks {
    uint64_t count[LEAK_KINDS];
};

/* Adds what is open: all of it, or only what belongs to one context. What the driver refused to take back, by an
 * injected failure, is left out. */
void leaks_add(struct leaks *leaks, const struct context *context);
/* In words, "2 streams, 1 mapping". Returns how many things. */
uint64_t leaks_say(const struct leaks *leaks, char *text, size_t bytes);

#pragma GCC visibility pop
#endif
