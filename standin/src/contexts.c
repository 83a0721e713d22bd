#include "contexts.h"

#include "allocations.h"
#include "calls.h"
#include "captures.h"
#include "events.h"
#include "exit.h"
#include "streams.h"

struct handles contexts = {.kind = "context"};

static uint64_t last_id;

CUresult context_named(CUcontext handle, struct context **context) {
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = handle_find(&contexts, handle);
    return *context == NULL || !(*context)->alive ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

static CUcontext current_handle(void) {
    return this_thread.depth > 0 ? this_thread.stack[this_thread.depth - 1] : NULL;
}

CUresult context_current(struct context **context) {
    *context = NULL;
    return context_named(current_handle(), context);
}

static struct context *context_new(struct device *device, bool primary) {
    struct context *context = must_alloc(sizeof *context);
    context->device = device;
    context->primary = primary;
    context->id = ++last_id;
    context->handle = handle_new(&contexts, context);
    context->alive = true;
    return context;
}

/* All that belongs to the context goes, when its work is done. Memory from cuMemCreate is no context's. */
static void context_empty(struct context *context) {
    streams_drain(context);
    context->alive = false;
    captures_drop(context);
    streams_drop(context);
    events_drop(context);
    allocations_drop(context);
    memset(context->peers, 0, sizeof context->peers);
    clock_end(&context->gone);
    clock_end(&context->gone_blocking);
}

void context_reset_primary(struct device *device) {
    if (device->primary != NULL && device->primary->alive) {
        context_empty(device->primary);
    }
}

static CUresult primary_release(CUdevice ordinal) {
    struct device *device = device_numbered(ordinal);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (device->retained == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUresult refused = call_refused(&device->retain_excused);
    if (refused != CUDA_SUCCESS) {
        return refused;
    }
    if (--device->retained == 0 && device->primary->alive) {
        /* The driver would tidy up; whoever left things behind is told. */
        exit_count_left_behind(device->primary);
        context_empty(device->primary);
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    ENTER(cuDevicePrimaryCtxRetain);
    struct device *device = device_numbered(ordinal);
    REQUIRE(context != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_DEVICE);
    /* Once it was reset, a lost device does not come back in this process (measured). */
    REQUIRE(!device->lost || (device->primary != NULL && device->primary->alive), CUDA_ERROR_ILLEGAL_ADDRESS);
    if (device->primary == NULL) {
        device->primary = context_new(device, true);
    } else if (!device->primary->alive) {
        device->primary->alive = true;
        device->primary->id = ++last_id;
    }
    device->retained++;
    *context = device->primary->handle;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease);
    LEAVE(primary_release(device));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    LEAVE(primary_release(device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    context_reset_primary(device_numbered(device));
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset_v2);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    context_reset_primary(device_numbered(device));
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active) {
    ENTER(cuDevicePrimaryCtxGetState);
    const struct device *device = device_numbered(ordinal);
    REQUIRE(flags != NULL && active != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = device->primary != NULL && device->primary->alive;
    LEAVE(CUDA_SUCCESS);
}

static void push(CUcontext handle) {
    if (this_thread.depth == MAX_CONTEXT_STACK) {
        rule_broken("%d contexts pushed and not popped", MAX_CONTEXT_STACK);
    }
    this_thread.stack[this_thread.depth++] = handle;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice ordinal) {
    struct device *device = device_numbered(ordinal);
    if (out == NULL || flags > 0xff) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (device == NULL) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = context_new(device, false)->handle;
    push(*out);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v2);
    LEAVE(create(context, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v4);
    REQUIRE(params == NULL, CUDA_ERROR_NOT_SUPPORTED);
    LEAVE(create(context, flags, device));
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
    ENTER(cuCtxDestroy_v2);
    struct context *context;
    TRY(context_named(handle, &context));
    REQUIRE(!context->primary, CUDA_ERROR_INVALID_CONTEXT);
    TRY(call_refused(&context->excused));
    context_empty(context);
    handle_free(&contexts, handle);
    free(context);
    if (current_handle() == handle) {
        this_thread.depth--;
    }
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER(cuCtxGetCurrent);
    REQUIRE(context != NULL, CUDA_ERROR_INVALID_VALUE);
    *context = current_handle();
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTER(cuCtxSetCurrent);
    if (handle == NULL) {
        this_thread.depth -= this_thread.depth > 0;
        LEAVE(CUDA_SUCCESS);
    }
    struct context *context;
    TRY(context_named(handle, &context));
    if (this_thread.depth == 0) {
        push(handle);
    }
    this_thread.stack[this_thread.depth - 1] = handle;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    ENTER(cuCtxPushCurrent_v2);
    struct context *context;
    TRY(context_named(handle, &context));
    push(handle);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(cuCtxPopCurrent_v2);
    REQUIRE(this_thread.depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (context != NULL) {
        *context = current_handle();
    }
    this_thread.depth--;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(cuCtxGetDevice);
    struct context *context;
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(context_current(&context));
    *device = context->device->ordinal;
    LEAVE(CUDA_SUCCESS);
}

/* NULL means the current one, in the calls that take a context since CUDA 12. */
static CUresult named_or_current(CUcontext handle, struct context **context) {
    return handle == NULL ? context_current(context) : context_named(handle, context);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
    ENTER(cuCtxGetDevice_v2);
    struct context *context;
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(named_or_current(handle, &context));
    *device = context->device->ordinal;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    ENTER(cuCtxGetId);
    struct context *context;
    REQUIRE(id != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(named_or_current(handle, &context));
    *id = context->id;
    LEAVE(CUDA_SUCCESS);
}

static CUresult synchronize(struct context *context) {
    if (context->device->lost) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    CUresult result = captures_refuse_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    streams_drain(context);
    return context->device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize);
    struct context *context;
    TRY(context_current(&context));
    LEAVE(synchronize(context));
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER(cuCtxSynchronize_v2);
    struct context *context;
    TRY(named_or_current(handle, &context));
    LEAVE(synchronize(context));
}

bool context_reaches(const struct device *from, const struct device *owner) {
    if (from == owner) {
        return true;
    }
    return from->primary != NULL && from->primary->peers[owner->ordinal];
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
    ENTER(cuCtxEnablePeerAccess);
    struct context *context, *peer;
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(context_current(&context));
    TRY(context_named(handle, &peer));
    REQUIRE(peer != context, CUDA_ERROR_INVALID_CONTEXT);
    int to = peer->device->ordinal;
    REQUIRE(settings.peer[context->device->ordinal][to], CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    REQUIRE(!context->peers[to], CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers[to] = true;
    LEAVE(CUDA_SUCCESS);
}

static void forget(void *object, void *data) {
    struct context *context = object;
    (void)data;
    clock_end(&context->gone);
    clock_end(&context->gone_blocking);
    free(context);
}

void contexts_end(void) {
    handles_each(&contexts, forget, NULL);
    handles_end(&contexts);
}
