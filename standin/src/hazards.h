/* Who has used which memory lately: two uses of the same bytes, of which one writes, must be in some order; and memory
 * may go only when the host has seen the work that uses it complete. That the work happens to be over is not enough.
 *
 * Uses are kept with the memory itself, not with its address, since a page may have several; until the host has seen
 * the work complete. */
#ifndef STANDIN_HAZARDS_H
#define STANDIN_HAZARDS_H

#include "clocks.h"

#pragma GCC visibility push(hidden)

struct device;
struct operation;

struct access {
    struct point who;
    size_t offset; /* in the memory */
    size_t bytes;
    uintptr_t at; /* where it was addressed */
    bool writes;
};

struct history {
    struct access *items;
    size_t count;
};

/* Work is being queued, as the last on its stream. Breaks a rule if other work uses the same bytes and may come before
 * or after it. */
void hazards_queued(struct stream *stream, const struct operation *operation);
/* Somebody whose use of these addresses nobody has seen complete, or NULL. `device`: of that device only. */
const struct stream *history_unseen(const struct history *history, uintptr_t at, size_t bytes,
                                    const struct device *device, bool writes_only);
void history_end(struct history *history);

#pragma GCC visibility pop
#endif
