#include "exit.h"

#include <unistd.h>

#include "allocations.h"
#include "calls.h"
#include "captures.h"
#include "events.h"
#include "faults.h"
#include "graphs.h"
#include "leaks.h"
#include "mappings.h"
#include "streams.h"
#include "user_objects.h"

enum state { FRESH, INITIALISED, GONE_LOUDLY, GONE_QUIETLY };

static enum state state; /* atomic: it is read before any lock is taken */
static bool forked;      /* a child of a process that had a driver */
static struct leaks left_behind;

static enum state state_now(void) { return __atomic_load_n(&state, __ATOMIC_ACQUIRE); }

static void set_state(enum state to) { __atomic_store_n(&state, to, __ATOMIC_RELEASE); }

bool driver_initialised(void) { return state_now() == INITIALISED; }

CUresult driver_gone(void) {
    if (state_now() == GONE_LOUDLY) {
        rule_broken("the driver has been unloaded");
    }
    if (state_now() == GONE_QUIETLY) {
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (forked && !settings.forked_returns) {
        rule_broken("this process was forked from one that uses the driver");
    }
    return forked ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

void standin_unload(void) { set_state(GONE_LOUDLY); }
void standin_unload_quietly(void) { set_state(GONE_QUIETLY); }

static void unload_at_exit(void) {
    if (!forked) {
        set_state(settings.unload_at_exit == UNLOAD_ABORTS ? GONE_LOUDLY : GONE_QUIETLY);
    }
}

CUresult cuInit(unsigned int flags) {
    ENTER(cuInit);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(settings.devices > 0, CUDA_ERROR_NO_DEVICE);
    if (state_now() == FRESH) {
        if (settings.unload_at_exit != UNLOAD_NEVER && atexit(unload_at_exit) != 0) {
            cannot_go_on("atexit");
        }
        set_state(INITIALISED);
    }
    LEAVE(CUDA_SUCCESS);
}

/* ---- fork ---- */

static void before_fork(void) {
    books_lock();
    faults_fork_before();
}

static void after_fork(void) {
    faults_fork_after();
    books_unlock();
}

/* The workers are the parent's. What this process copied of the books it only frees. */
static void in_child(void) {
    forked = state_now() != FRESH;
    streams_forget_workers();
    after_fork();
}

void exit_prepare(void) {
    if (pthread_atfork(before_fork, after_fork, in_child) != 0) {
        cannot_go_on("pthread_atfork");
    }
}

/* ---- the end ---- */

void exit_count_left_behind(const struct context *context) { leaks_add(&left_behind, context); }

uint64_t standin_open(char *text, size_t bytes) {
    driver_prepare();
    books_lock();
    struct leaks leaks = left_behind;
    leaks_add(&leaks, NULL);
    uint64_t count = leaks_say(&leaks, text, bytes);
    books_unlock();
    return count;
}

static void free_all(void) {
    user_objects_silence();
    streams_end();
    events_end();
    captures_end();
    graphs_end();
    user_objects_end();
    mappings_end();
    pages_end();
    allocations_end();
    contexts_end();
    faults_end();
}

/* Runs behind the program's exit handlers and static objects. An unloaded driver has taken everything with it, and a
 * forked child owns nothing. */
__attribute__((destructor)) static void at_end(void) {
    char text[512];
    bool check = state_now() == INITIALISED && !forked && settings.leaks;
    if (settings.version == 0) {
        return; /* nobody has made any call */
    }
    uint64_t open = check ? standin_open(text, sizeof text) : 0;
    set_state(GONE_LOUDLY);
    if (open > 0) {
        fflush(NULL);
        fprintf(stderr, "standin: still open at the end: %s\n", text);
        _exit(86);
    }
    free_all();
}
