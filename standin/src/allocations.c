#include "allocations.h"

#include <sys/mman.h>

#include "calls.h"
#include "mappings.h"
#include "streams.h"

struct ranges device_allocations, host_allocations;

static uint64_t last_id;

#define HOST_PAGE ((size_t)4096)

/* Whole pages each, so that a use after the free ends the program rather than changing somebody's data. */
static CUresult allocation_new(struct ranges *set, enum allocation_kind kind, struct context *context, size_t bytes,
                               void **out) {
    size_t mapped = (bytes + HOST_PAGE - 1) & ~(HOST_PAGE - 1);
    if (mapped < bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (kind == ON_DEVICE) {
        CUresult result = device_take(context->device, mapped);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        if (kind == ON_DEVICE) {
            device_give(context->device, mapped);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct allocation *allocation = must_alloc(sizeof *allocation);
    *allocation = (struct allocation){{(uintptr_t)at, bytes}, kind, context, ++last_id, mapped, false, {NULL, 0}};
    ranges_add(set, &allocation->range);
    *out = at;
    return CUDA_SUCCESS;
}

static void allocation_free(struct ranges *set, struct allocation *allocation) {
    ranges_remove(set, &allocation->range);
    if (allocation->kind == ON_DEVICE) {
        device_give(allocation->context->device, allocation->mapped);
    }
    if (allocation->mapped > 0) {
        munmap((void *)allocation->range.at, allocation->mapped);
    }
    history_end(&allocation->history);
    free(allocation);
}

static struct allocation *allocation_at(const struct ranges *set, uintptr_t at) {
    struct allocation *allocation = ranges_with(set, at);
    return allocation != NULL && allocation->range.at == at ? allocation : NULL;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    ENTER(cuMemAlloc_v2);
    struct context *context;
    void *at;
    REQUIRE(out != NULL && bytes > 0, CUDA_ERROR_INVALID_VALUE);
    TRY(context_current(&context));
    TRY(allocation_new(&device_allocations, ON_DEVICE, context, bytes, &at));
    *out = (uintptr_t)at;
    LEAVE(CUDA_SUCCESS);
}

/* Ends an allocation as the driver does, which first waits for all work of the context. Others may call meanwhile, so
 * the allocation is looked for again. On a lost device it is an error, and the memory is gone all the same. */
static CUresult give_back(struct ranges *set, uintptr_t at, enum allocation_kind kind) {
    struct allocation *allocation = allocation_at(set, at);
    if (allocation == NULL || allocation->kind != kind) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult refused = call_refused(&allocation->excused);
    if (refused != CUDA_SUCCESS) {
        return refused;
    }
    streams_drain(allocation->context);
    if (allocation_at(set, at) != allocation) {
        rule_broken("%p was freed twice at once", (void *)at);
    }
    bool lost = allocation->context->device->lost;
    allocation_free(set, allocation);
    return lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    ENTER(cuMemFree_v2);
    LEAVE(give_back(&device_allocations, at, ON_DEVICE));
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    ENTER(cuMemGetAddressRange_v2);
    const struct range *range = ranges_with(&device_allocations, at);
    if (range == NULL) {
        range = ranges_with(&mappings, at);
    }
    if (range == NULL) {
        range = ranges_with(&host_allocations, at);
    }
    REQUIRE(range != NULL, CUDA_ERROR_NOT_FOUND);
    if (base != NULL) {
        *base = range->at;
    }
    if (bytes != NULL) {
        *bytes = range->bytes;
    }
    LEAVE(CUDA_SUCCESS);
}

/* Says whose memory it is; opening it in another process is nothing that the tests need. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    ENTER(cuIpcGetMemHandle);
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    const struct allocation *allocation = ranges_with(&device_allocations, at);
    REQUIRE(allocation != NULL, CUDA_ERROR_INVALID_VALUE);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &allocation->id, sizeof allocation->id);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
    ENTER(cuMemHostAlloc);
    struct context *context;
    unsigned int known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    REQUIRE(out != NULL && bytes > 0 && (flags & ~known) == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(context_current(&context));
    TRY(allocation_new(&host_allocations, ON_HOST, context, bytes, out));
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *at) {
    ENTER(cuMemFreeHost);
    LEAVE(give_back(&host_allocations, (uintptr_t)at, ON_HOST));
}

CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned int flags) {
    ENTER(cuMemHostRegister_v2);
    struct context *context;
    REQUIRE(at != NULL && bytes > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)) == 0,
            CUDA_ERROR_NOT_SUPPORTED);
    TRY(context_current(&context));
    REQUIRE(ranges_overlapping(&host_allocations, (uintptr_t)at, bytes) == NULL,
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    struct allocation *allocation = must_alloc(sizeof *allocation);
    *allocation = (struct allocation){{(uintptr_t)at, bytes}, REGISTERED, context, ++last_id, 0, false, {NULL, 0}};
    ranges_add(&host_allocations, &allocation->range);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *at) {
    ENTER(cuMemHostUnregister);
    struct allocation *allocation = allocation_at(&host_allocations, (uintptr_t)at);
    REQUIRE(at != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(allocation != NULL && allocation->kind == REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    TRY(call_refused(&allocation->excused));
    const struct stream *stream =
        history_unseen(&allocation->history, allocation->range.at, allocation->range.bytes, NULL, false);
    if (stream != NULL) {
        rule_broken("%zu bytes at %p are unregistered, and nobody has seen the work on %s complete that uses them",
                    allocation->range.bytes, at, stream_name(stream));
    }
    bool lost = allocation->context->device->lost;
    allocation_free(&host_allocations, allocation);
    LEAVE(lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *at, unsigned int flags) {
    ENTER(cuMemHostGetDevicePointer_v2);
    REQUIRE(device != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(ranges_with(&host_allocations, (uintptr_t)at) != NULL, CUDA_ERROR_INVALID_VALUE);
    *device = (uintptr_t)at;
    LEAVE(CUDA_SUCCESS);
}

static void drop(struct ranges *set, const struct context *context) {
    for (size_t i = set->count; i > 0; i--) {
        struct allocation *allocation = (struct allocation *)set->items[i - 1];
        if (allocation->context == context) {
            allocation_free(set, allocation);
        }
    }
}

void allocations_drop(struct context *context) {
    drop(&device_allocations, context);
    drop(&host_allocations, context);
}

static void end(struct ranges *set) {
    while (set->count > 0) {
        allocation_free(set, (struct allocation *)set->items[set->count - 1]);
    }
    ranges_end(set);
}

void allocations_end(void) {
    end(&device_allocations);
    end(&host_allocations);
}
