/* Contexts, and which one is current where. */
#ifndef STANDIN_CONTEXTS_H
#define STANDIN_CONTEXTS_H

#include "clocks.h"
#include "devices.h"
#include "handles.h"

#pragma GCC visibility push(hidden)

struct stream;

struct context {
    CUcontext handle;
    struct device *device;
    uint64_t id;
    bool alive; /* a primary context is not between its reset and the next retain */
    bool primary;
    bool excused;
    bool peers[MAX_DEVICES]; /* cuCtxEnablePeerAccess */
    struct stream *legacy;   /* made when first used */
    /* The last work of streams that are gone: of all, and of those that the legacy stream waits for. */
    struct clock gone, gone_blocking;
};

extern struct handles contexts;

/* The calling thread's current context, if it can be used. */
CUresult context_current(struct context **context);
/* The context of a handle, if it can be used. */
CUresult context_named(CUcontext handle, struct context **context);
/* Ends the primary context and all that belongs to it, if it is there. */
void context_reset_primary(struct device *device);
/* May what runs in `context` reach what cuMemAlloc gave on `owner`? */
bool context_reaches(const struct device *from, const struct device *owner);
void contexts_end(void);

#pragma GCC visibility pop
#endif
