/* The driver is opened at run time, as weir does it, so that this program needs no CUDA to be built. The few types and
 * numbers are those of the CUDA Driver API reference. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
typedef unsigned long long device_address;

static struct {
    int (*init)(unsigned flags);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*fill)(device_address at, unsigned word, size_t words, void *stream);
    int (*fetch)(void *to, device_address from, size_t bytes, void *stream);
    int (*host_alloc)(void **place, size_t bytes, unsigned flags);
    int (*host_free)(void *place);
} cu;

static int device;

static int checked(const char *call, int code) {
    if (code != 0) {
        fprintf(stderr, "share_two_processes: %s failed with code %d\n", call, code);
        return -1;
    }
    return 0;
}

static int of_weir(const char *call, weir_status status) {
    if (status != WEIR_OK) {
        fprintf(stderr, "share_two_processes: %s: %s\n", call, weir_last_error());
        return -1;
    }
    return 0;
}

static int find(void *library, const char *name, void *place) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "share_two_processes: the driver has no %s\n", name);
        return -1;
    }
    *(void **)place = symbol;
    return 0;
}

int work_open(int on_device) {
    const char *name = getenv("WEIR_CUDA_LIBRARY");
    void *library, *context;
    device = on_device;
    if (!device) {
        return 0;
    }
    library = dlopen(name != NULL && *name != '\0' ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "share_two_processes: %s\n", dlerror());
        return -1;
    }
    if (find(library, "cuInit", &cu.init) || find(library, "cuDevicePrimaryCtxRetain", &cu.context_retain) ||
        find(library, "cuDevicePrimaryCtxRelease_v2", &cu.context_release) ||
        find(library, "cuCtxSetCurrent", &cu.context_set) || find(library, "cuStreamCreate", &cu.stream_create) ||
        find(library, "cuStreamDestroy_v2", &cu.stream_destroy) || find(library, "cuEventCreate", &cu.event_create) ||
        find(library, "cuEventDestroy_v2", &cu.event_destroy) || find(library, "cuMemsetD32Async", &cu.fill) ||
        find(library, "cuMemcpyDtoHAsync_v2", &cu.fetch) || find(library, "cuMemHostAlloc", &cu.host_alloc) ||
        find(library, "cuMemFreeHost", &cu.host_free)) {
        return -1;
    }
    return checked("cuInit", cu.init(0)) || checked("cuDevicePrimaryCtxRetain", cu.context_retain(&context, 0)) ||
                   checked("cuCtxSetCurrent", cu.context_set(context))
               ? -1
               : 0;
}

int work_stream_create(weir_stream *stream) {
    return device ? checked("cuStreamCreate", cu.stream_create(stream, CU_STREAM_NON_BLOCKING))
                  : of_weir("weir_host_stream_create", weir_host_stream_create(stream));
}

int work_stream_destroy(weir_stream stream) {
    return device ? checked("cuStreamDestroy", cu.stream_destroy(stream))
                  : of_weir("weir_host_stream_destroy", weir_host_stream_destroy(stream));
}

int work_event_create(weir_event *event) {
    return device ? checked("cuEventCreate", cu.event_create(event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))
                  : of_weir("weir_host_event_create", weir_host_event_create(event));
}

int work_event_destroy(weir_event event) {
    return device ? checked("cuEventDestroy", cu.event_destroy(event))
                  : of_weir("weir_host_event_destroy", weir_host_event_destroy(event));
}

/* Work of a host stream. */
struct job {
    void *to;
    const void *from; /* NULL: fill */
    size_t bytes;
    uint32_t word;
};

static void run(void *argument) {
    struct job *job = argument;
    if (job->from != NULL) {
        memcpy(job->to, job->from, job->bytes);
    } else {
        for (size_t i = 0; i < job->bytes / sizeof job->word; i++) {
            ((uint32_t *)job->to)[i] = job->word;
        }
    }
    free(job);
}

static int queue(weir_stream stream, struct job job) {
    struct job *own = malloc(sizeof *own);
    if (own == NULL) {
        fputs("share_two_processes: no memory\n", stderr);
        return -1;
    }
    *own = job;
    return of_weir("weir_host_stream_enqueue", weir_host_stream_enqueue(stream, run, own));
}

int work_fill(weir_stream stream, void *block, size_t bytes, uint32_t word) {
    if (device) {
        return checked("cuMemsetD32Async", cu.fill((uintptr_t)block, word, bytes / sizeof word, stream));
    }
    return queue(stream, (struct job){.to = block, .bytes = bytes, .word = word});
}

int work_fetch(weir_stream stream, void *to, const void *block, size_t bytes) {
    if (device) {
        return checked("cuMemcpyDtoHAsync", cu.fetch(to, (uintptr_t)block, bytes, stream));
    }
    return queue(stream, (struct job){.to = to, .from = block, .bytes = bytes});
}

int work_host_alloc(void **place, size_t bytes) {
    if (device) {
        return checked("cuMemHostAlloc", cu.host_alloc(place, bytes, 0));
    }
    *place = malloc(bytes);
    return *place == NULL ? checked("malloc", 12) : 0;
}

void work_host_free(void *place) {
    if (device) {
        cu.host_free(place);
    } else {
        free(place);
    }
}

void work_close(void) {
    if (device) {
        cu.context_set(NULL);
        cu.context_release(0);
    }
}
