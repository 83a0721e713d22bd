/* Work that a program queues: fills, copies and host functions. */
#include "calls.h"
#include "captures.h"
#include "reach.h"
#include "streams.h"

static CUresult fill(CUdeviceptr at, unsigned value, unsigned width, size_t count, CUstream handle) {
    struct stream *stream;
    CUresult result = stream_in_use(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (count == 0) {
        return CUDA_SUCCESS;
    }
    /* in a capture the real driver takes it, and refuses to make the graph */
    if (at % width != 0 || !reach_is_known(at) || !reach_can_fill(at, count * width)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operation operation = {.kind = DO_FILL, .to = (void *)(uintptr_t)at, .bytes = count * width};
    operation.value = value;
    operation.width = width;
    operation_add_use(&operation, at, operation.bytes, true);
    return submit(stream, &operation);
}

enum ends { ANY_TO_ANY, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

static bool ends_are_right(enum ends ends, uintptr_t to, uintptr_t from) {
    bool to_device = ends == HOST_TO_DEVICE || ends == DEVICE_TO_DEVICE;
    bool from_device = ends == DEVICE_TO_HOST || ends == DEVICE_TO_DEVICE;
    return to != 0 && from != 0 && (!to_device || reach_is_known(to)) && (!from_device || reach_is_known(from));
}

/* A copy from pageable memory is taken when the call is made, and one to pageable memory, or within the host's, has been done
 * when the call returns: so the documentation of the API's synchronisation behaviour. A captured copy has to wait for the
 * graph. */
static CUresult copy(enum ends ends, uintptr_t to, uintptr_t from, size_t bytes, CUstream handle, bool wait) {
    struct stream *stream;
    CUresult result = stream_in_use(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    if (!ends_are_right(ends, to, from)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct operation operation = {.kind = DO_COPY, .to = (void *)to, .from = (const void *)from, .bytes = bytes};
    operation_add_use(&operation, to, bytes, true);
    if (stream->capture == NULL && reach_is_pageable(from)) {
        operation.staging = memcpy(must_alloc(bytes), (const void *)from, bytes);
    } else {
        operation_add_use(&operation, from, bytes, false);
    }
    wait |= reach_is_pageable(to) || (reach_is_host(to) && reach_is_host(from));
    const struct device *device = stream->device;
    bool captured = stream->capture != NULL;
    result = submit(stream, &operation);
    if (result != CUDA_SUCCESS || captured || !wait) {
        return result;
    }
    stream_wait(stream);
    return device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream stream) {
    ENTER(cuMemsetD8Async);
    LEAVE(fill(at, value, 1, count, stream));
}

CUresult cuMemsetD32Async(CUdeviceptr at, unsigned int value, size_t count, CUstream stream) {
    ENTER(cuMemsetD32Async);
    LEAVE(fill(at, value, 4, count, stream));
}

/* Not asynchronous by name, but it does not wait for device memory to be filled. */
CUresult cuMemsetD32_v2(CUdeviceptr at, unsigned int value, size_t count) {
    ENTER(cuMemsetD32_v2);
    LEAVE(fill(at, value, 4, count, CU_STREAM_LEGACY));
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyAsync);
    LEAVE(copy(ANY_TO_ANY, to, from, bytes, stream, false));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyHtoDAsync_v2);
    LEAVE(copy(HOST_TO_DEVICE, to, (uintptr_t)from, bytes, stream, false));
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyDtoHAsync_v2);
    LEAVE(copy(DEVICE_TO_HOST, (uintptr_t)to, from, bytes, stream, false));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER(cuMemcpyDtoDAsync_v2);
    LEAVE(copy(DEVICE_TO_DEVICE, to, from, bytes, stream, false));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    ENTER(cuMemcpyHtoD_v2);
    LEAVE(copy(HOST_TO_DEVICE, to, (uintptr_t)from, bytes, CU_STREAM_LEGACY, true));
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    ENTER(cuMemcpyDtoH_v2);
    LEAVE(copy(DEVICE_TO_HOST, (uintptr_t)to, from, bytes, CU_STREAM_LEGACY, true));
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    ENTER(cuLaunchHostFunc);
    struct stream *stream;
    REQUIRE(function != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_in_use(handle, &stream));
    struct operation operation = {.kind = DO_CALL, .function = function, .data = data};
    operation.uses = stream->declared;
    operation.use_count = stream->declared_count;
    stream->declared = NULL;
    stream->declared_count = 0;
    LEAVE(submit(stream, &operation));
}
