/* Memory that comes with its address: cuMemAlloc, and pinned or registered host memory. */
#ifndef STANDIN_ALLOCATIONS_H
#define STANDIN_ALLOCATIONS_H

#include "contexts.h"
#include "hazards.h"
#include "ranges.h"

#pragma GCC visibility push(hidden)

enum allocation_kind { ON_DEVICE, ON_HOST, REGISTERED };

struct allocation {
    struct range range;
    enum allocation_kind kind;
    struct context *context;
    uint64_t id;
    size_t mapped; /* bytes from mmap; 0: the program's own memory */
    bool excused;
    struct history history;
};

extern struct ranges device_allocations, host_allocations;

/* Frees what belongs to a context. */
void allocations_drop(struct context *context);
void allocations_end(void);

#pragma GCC visibility pop
#endif
