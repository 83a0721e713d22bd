/* What every part of the stand-in shares: the lock, the thread's state, the settings, and how a broken rule ends
 * the process.
 *
 * One lock (`books`) guards all state; a call holds it from call_enter to call_leave, and work that is queued runs
 * outside it. Nothing here is exported: the names would otherwise be anybody's to replace. */
#ifndef STANDIN_BASE_H
#define STANDIN_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda_api.h"
#include "../standin.h"

#pragma GCC visibility push(hidden)

#define MAX_DEVICES 16
/* Where memory may be, and who may reach it: the cards, and behind them the host. */
#define HOST MAX_DEVICES
#define PLACES (MAX_DEVICES + 1)
#define MAX_CONTEXT_STACK 32


/* What the driver keeps for each thread. Small, and in the static block: it must not need memory at a thread's end. */
struct thread {
    uint64_t id;                            /* 0: not asked for yet */
    int call;                               /* the call being made, for messages; -1: none */
    CUstreamCaptureMode capture_mode;       /* thread's mode, cuThreadExchangeStreamCaptureMode */
    CUresult injected;                      /* a giving-back call that is to fail, see `call_refused` */
    bool in_host_function;                  /* a host function is running here */
    int depth;                              /* contexts on the stack */
    CUcontext stack[MAX_CONTEXT_STACK];
};

extern _Thread_local struct thread this_thread __attribute__((tls_model("initial-exec")));
extern pthread_mutex_t books;

uint64_t thread_id(void);

/* From the environment, read once. */
struct settings {
    int version;
    int devices;
    int nodes; /* of the host's memory */
    uint64_t memory;
    uint64_t granularity;
    uint64_t mapping_limit;
    uint64_t host_shares; /* of a page of the host's memory */
    bool vmm;
    bool leaks;
    enum { UNLOAD_NEVER, UNLOAD_ABORTS, UNLOAD_RETURNS } unload_at_exit;
    bool forked_returns;
    bool peer[MAX_DEVICES][MAX_DEVICES];
};
extern struct settings settings;

/* Reads the settings and makes what all else needs. Any entry point may be the first one. */
void driver_prepare(void);

/* Ends the process with "standin: <call>: <message>": a rule was broken that the real driver would not tell of. */
void rule_broken(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* The same for what the stand-in itself cannot go on without. */
void cannot_go_on(const char *what) __attribute__((noreturn));

/* malloc and its like, that do not return without memory. */
void *must_alloc(size_t bytes);
void *must_grow(void *old, size_t bytes);

static inline void books_lock(void) { pthread_mutex_lock(&books); }
static inline void books_unlock(void) { pthread_mutex_unlock(&books); }

#pragma GCC visibility pop
#endif
