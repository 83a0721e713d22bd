/* One thing for a device to do, queued on a stream or kept in a graph, and the memory that it uses. */
#ifndef STANDIN_OPERATIONS_H
#define STANDIN_OPERATIONS_H

#include "devices.h"

#pragma GCC visibility push(hidden)

struct use {
    uintptr_t at;
    size_t bytes;
    bool writes;
};

enum operation_kind { DO_NOTHING, DO_FILL, DO_COPY, DO_CALL };

struct operation {
    enum operation_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    uint32_t value;
    unsigned width; /* of the value: 1 or 4 bytes */
    CUhostFn function;
    void *data;
    void *staging; /* owned: what was copied from pageable memory when the call was made */
    struct use *uses; /* owned */
    size_t use_count;
};

void operation_add_use(struct operation *operation, uintptr_t at, size_t bytes, bool writes);
/* A copy of its own, for a graph that is instantiated. */
struct operation operation_copy(const struct operation *operation);
void operation_end(struct operation *operation);
/* Does it write host memory, where the program may look without asking the driver? */
bool operation_writes_host(const struct operation *operation);
/* What the host may learn while it is done, by a function of its own or in its memory: that all before it is, and it
 * itself, too, unless it is a function that stands for a device's work. */
enum tidings { NO_TIDINGS, OF_ALL_BEFORE, OF_ITSELF } operation_tells(const struct operation *operation);
/* May a device do it now? Breaks a rule if not. */
void operation_check(const struct operation *operation, const struct device *device, const char *where);
/* Does it. Outside the lock. */
void operation_run(const struct operation *operation);

#pragma GCC visibility pop
#endif
