/* Trials: each runs in a process of its own, since the stand-in reads its settings once, and since many of its answers
 * are the end of the process. A trial says how that process must end, and what it must have said before. */
#ifndef STANDIN_TESTS_CHECK_H
#define STANDIN_TESTS_CHECK_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_api.h"
#include "standin.h"

#define MiB ((size_t)1 << 20)
#define PAGE (2 * MiB)

/* How a trial ends: by exit(0), by the report of what is open, or by the message of a broken rule. */
enum ending { WELL = 0, OPEN = 86, BROKEN = -SIGABRT };

struct trial {
    const char *name;
    void (*run)(void);
    enum ending ending;
    const char *says;           /* NULL: nothing at all */
    const char *environment[4]; /* "NAME=value" */
};

static inline void check_at(const char *file, int line, const char *what, long long got, long long want) {
    if (got != want) {
        fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", file, line, what, got, want);
        fflush(stderr);
        _exit(1);
    }
}

#define IS(got, want) check_at(__FILE__, __LINE__, #got, (long long)(got), (long long)(want))
#define CHECK(condition) check_at(__FILE__, __LINE__, #condition, !!(condition), 1)
#define OK(call) IS(call, CUDA_SUCCESS)

static inline void check_in_child(const struct trial *trial, int say) {
    for (int i = 0; i < 4 && trial->environment[i] != NULL; i++) {
        putenv((char *)trial->environment[i]);
    }
    dup2(say, STDERR_FILENO);
    close(say);
    trial->run();
    exit(0);
}

static inline bool under_valgrind(void) {
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded != NULL && strstr(preloaded, "vgpreload") != NULL;
}

/* Runs it; true if it ended as it must. valgrind's own lines ("==pid== ...") are none of the trial's. */
static inline bool check_trial(const struct trial *trial) {
    int pipes[2];
    fflush(NULL);
    if (pipe(pipes) != 0) {
        perror("pipe");
        return false;
    }
    pid_t child = fork();
    if (child == 0) {
        close(pipes[0]);
        check_in_child(trial, pipes[1]);
    }
    close(pipes[1]);
    static char said[1 << 16];
    size_t length = 0;
    for (ssize_t more; (more = read(pipes[0], said + length, sizeof said - 1 - length)) > 0;) {
        length += (size_t)more;
    }
    said[length] = '\0';
    close(pipes[0]);
    int status;
    waitpid(child, &status, 0);
    int ending = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    if (ending == 9 && under_valgrind()) {
        ending = OPEN; /* valgrind has its own number for that, and says where it all came from */
    }
    bool ended_well = ending == (int)trial->ending;
    bool said_well = trial->says != NULL ? strstr(said, trial->says) != NULL : strstr(said, "standin:") == NULL;
    if (!ended_well || !said_well) {
        fprintf(stderr, "%s: ended with %d, to be %d, and said: %s\n(to be: %s)\n", trial->name, ending, trial->ending,
                said, trial->says != NULL ? trial->says : "nothing");
    }
    return ended_well && said_well;
}

static inline int check_trials(const struct trial *trials, size_t count, const char *only) {
    size_t run = 0, bad = 0;
    for (size_t i = 0; i < count; i++) {
        if (only == NULL || strcmp(only, trials[i].name) == 0) {
            run++;
            bad += !check_trial(&trials[i]);
        }
    }
    printf("%zu trials, %zu bad\n", run, bad);
    return bad > 0 || run == 0;
}

#define MAIN(trials)                                                                                     \
    int main(int argc, char **argv) {                                                                    \
        return check_trials(trials, sizeof trials / sizeof *trials, argc > 1 ? argv[1] : NULL);          \
    }

/* ---- what most trials need ---- */

static inline CUcontext begin(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

static inline void end(void) {
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static inline CUmemAllocationProp pinned_on(int device) {
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static inline CUresult access_by(int device, CUdeviceptr at, size_t bytes, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return cuMemSetAccess(at, bytes, &access, 1);
}

static inline CUmemGenericAllocationHandle pages(size_t bytes) {
    CUmemAllocationProp prop = pinned_on(0);
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static inline CUdeviceptr reserved(size_t bytes) {
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    return at;
}

/* Memory that is there: an address range with one handle mapped over all of it, of which no reference is left. */
static inline CUdeviceptr mapped(size_t bytes) {
    CUdeviceptr at = reserved(bytes);
    CUmemGenericAllocationHandle handle = pages(bytes);
    OK(cuMemMap(at, bytes, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(access_by(0, at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return at;
}

static inline void unmapped(CUdeviceptr at, size_t bytes) {
    OK(cuMemUnmap(at, bytes));
    OK(cuMemAddressFree(at, bytes));
}

static inline CUstream stream_of(unsigned flags) {
    CUstream stream;
    OK(cuStreamCreate(&stream, flags));
    return stream;
}

static inline CUevent event_of(unsigned flags) {
    CUevent event;
    OK(cuEventCreate(&event, flags));
    return event;
}

/* An event for forks and joins of captures. */
static inline CUevent fork_event(void) {
    CUevent event = event_of(CU_EVENT_DISABLE_TIMING);
    standin_capture_event(event);
    return event;
}

/* Work that goes on until it is let go. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open, reached;
};
#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false}

static inline void gate_work(void *data) {
    struct gate *gate = data;
    pthread_mutex_lock(&gate->lock);
    gate->reached = true;
    pthread_cond_broadcast(&gate->changed);
    while (!gate->open) {
        pthread_cond_wait(&gate->changed, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}

static inline void gate_open(struct gate *gate) {
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static inline void gate_wait_reached(struct gate *gate) {
    pthread_mutex_lock(&gate->lock);
    while (!gate->reached) {
        pthread_cond_wait(&gate->changed, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}

static inline void *on_thread_main(void *data) {
    void (*run)(void) = *(void (**)(void))data;
    run();
    return NULL;
}

/* Runs it on another thread, to its end. */
static inline void on_thread(void (*run)(void)) {
    pthread_t thread;
    IS(pthread_create(&thread, NULL, on_thread_main, &run), 0);
    IS(pthread_join(thread, NULL), 0);
}

static inline const unsigned char *bytes_at(CUdeviceptr at) { return (const unsigned char *)(uintptr_t)at; }

#endif
