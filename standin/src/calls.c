#include "calls.h"

#include <unistd.h>

#include "captures.h"
#include "contexts.h"
#include "exit.h"
#include "faults.h"

const struct call_entry call_table[CALLS] = {
#define X(name, base, since, traits) {#name, #base, since, traits, (void *)name},
    STANDIN_CALLS(X)
#undef X
};

static CUresult allowed(const struct call_entry *entry) {
    unsigned traits = entry->traits;
    if ((traits & MAPS) && !settings.vmm) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct context *context = NULL;
    if (traits & (CONTEXT | STICKY)) {
        CUresult result = context_current(&context);
        if (result != CUDA_SUCCESS && (traits & CONTEXT)) {
            return result;
        }
    }
    if ((traits & STICKY) && context != NULL && context->device->lost) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (traits & UNSAFE) {
        return captures_refuse_unsafe();
    }
    return CUDA_SUCCESS;
}

CUresult call_enter(enum call call) {
    const struct call_entry *entry = &call_table[call];
    driver_prepare();
    this_thread.call = (int)call;
    this_thread.injected = CUDA_SUCCESS;
    CUresult result = driver_gone();
    if (result == CUDA_SUCCESS && this_thread.in_host_function && !(entry->traits & TELLS)) {
        result = CUDA_ERROR_NOT_PERMITTED;
    }
    if (result == CUDA_SUCCESS && entry->since > settings.version) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS && !(entry->traits & ANYTIME) && !driver_initialised()) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    }
    if (result == CUDA_SUCCESS) {
        uint64_t microseconds = 0;
        CUresult injected = faults_of(call, &microseconds);
        if (microseconds > 0) {
            usleep((useconds_t)microseconds);
        }
        if (injected != CUDA_SUCCESS && (entry->traits & GIVES_BACK)) {
            this_thread.injected = injected;
        } else {
            result = injected;
        }
    }
    if (result == CUDA_SUCCESS) {
        books_lock();
        result = allowed(entry);
        if (result != CUDA_SUCCESS) {
            books_unlock();
        }
    }
    if (result != CUDA_SUCCESS) {
        this_thread.call = -1;
    }
    return result;
}

CUresult call_leave(CUresult result) {
    books_unlock();
    this_thread.call = -1;
    return result;
}

CUresult call_refused(bool *excused) {
    CUresult result = this_thread.injected;
    if (result != CUDA_SUCCESS) {
        *excused = true;
        this_thread.injected = CUDA_SUCCESS;
    }
    return result;
}
