/* The CUDA driver, opened at run time, for the C tests: no CUDA headers are needed, and the same program runs on a
 * GPU and on the stand-in driver. WEIR_CUDA_LIBRARY names the library, as it does for weir; else it is
 * libcuda.so.1. Names, types and numbers are those of the CUDA driver API's documentation. */
#ifndef WEIR_C_TESTS_DEVICE_H
#define WEIR_C_TESTS_DEVICE_H

#include "check.h"
#include <dlfcn.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUstream, *CUevent, *CUgraph, *CUgraphExec;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
};
enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
/* The built-in streams. */
#define CU_STREAM_LEGACY ((CUstream)(uintptr_t)1)
#define CU_STREAM_PER_THREAD ((CUstream)(uintptr_t)2)
enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };
enum { CAPTURE_STATUS_NONE = 0, CAPTURE_STATUS_ACTIVE = 1, CAPTURE_STATUS_INVALIDATED = 2 };

/* What the tests call: name without "cu", exported name, parameters. */
#define DRIVER_CALLS(CALL)                                                                             \
    CALL(Init, "cuInit", (unsigned flags))                                                             \
    CALL(DeviceGetCount, "cuDeviceGetCount", (int *count))                                             \
    CALL(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *can, CUdevice device, CUdevice peer))     \
    CALL(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))   \
    CALL(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                   \
    CALL(DevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", (CUdevice device))                       \
    CALL(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                      \
    CALL(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                        \
    CALL(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                   \
    CALL(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                   \
    CALL(CtxSynchronize, "cuCtxSynchronize", (void))                                                   \
    CALL(MemGetInfo, "cuMemGetInfo_v2", (size_t * left, size_t * total))                               \
    CALL(MemHostAlloc, "cuMemHostAlloc", (void **p, size_t bytes, unsigned flags))                     \
    CALL(MemFreeHost, "cuMemFreeHost", (void *p))                                                      \
    CALL(MemHostRegister, "cuMemHostRegister_v2", (void *p, size_t bytes, unsigned flags))             \
    CALL(MemHostUnregister, "cuMemHostUnregister", (void *p))                                          \
    CALL(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr * p, size_t bytes))                                   \
    CALL(MemFree, "cuMemFree_v2", (CUdeviceptr p))                                                     \
    CALL(MemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr to, const void *from, size_t bytes))              \
    CALL(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, CUdeviceptr from, size_t bytes))                    \
    CALL(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
    CALL(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    CALL(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
    CALL(MemsetD8Async, "cuMemsetD8Async", (CUdeviceptr p, unsigned char value, size_t count, CUstream stream)) \
    CALL(MemsetD32Async, "cuMemsetD32Async", (CUdeviceptr p, unsigned value, size_t count, CUstream stream)) \
    CALL(StreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))                          \
    CALL(StreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                       \
    CALL(StreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                  \
    CALL(StreamQuery, "cuStreamQuery", (CUstream stream))                                              \
    CALL(StreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))       \
    CALL(StreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, int *status))                     \
    CALL(StreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))                   \
    CALL(StreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph *graph))                    \
    CALL(ThreadExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))                  \
    CALL(EventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                              \
    CALL(EventDestroy, "cuEventDestroy_v2", (CUevent event))                                           \
    CALL(EventRecord, "cuEventRecord", (CUevent event, CUstream stream))                               \
    CALL(EventQuery, "cuEventQuery", (CUevent event))                                                  \
    CALL(LaunchHostFunc, "cuLaunchHostFunc", (CUstream stream, void (*function)(void *), void *arg))   \
    CALL(GraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) \
    CALL(GraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))                            \
    CALL(GraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec))                                   \
    CALL(GraphDestroy, "cuGraphDestroy", (CUgraph graph))

typedef struct {
#define CALL(name, symbol, parameters) CUresult(*name) parameters;
    DRIVER_CALLS(CALL)
#undef CALL
    CUresult (*GetErrorName)(CUresult result, const char **text);
    void *library;
    CUcontext context; /* device 0's primary one, which this program holds */
} device_driver;

static device_driver cu;

static inline void device_ok_at(const char *file, int line, const char *call, CUresult got, CUresult want) {
    check_counted();
    if (got != want) {
        const char *name = NULL;
        char detail[160];
        cu.GetErrorName(got, &name);
        snprintf(detail, sizeof detail, "got %d %s, want %d", got, name ? name : "?", want);
        check_failed(file, line, call, detail);
    }
}
#define DEVICE_STATUS(want, call) device_ok_at(__FILE__, __LINE__, #call, (call), (want))
#define DEVICE_OK(call) DEVICE_STATUS(CUDA_SUCCESS, call)

static inline void *device_symbol(const char *name) {
    void *symbol = dlsym(cu.library, name);
    check_true_at(__FILE__, __LINE__, name, symbol != NULL);
    return symbol;
}

/* Opens the driver and makes device 0's primary context current on this thread. */
static inline void device_open(void) {
    const char *library = getenv("WEIR_CUDA_LIBRARY");
    cu.library = dlopen(library != NULL ? library : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    check_true_at(__FILE__, __LINE__, "the driver can be opened", cu.library != NULL);
#define CALL(name, symbol, parameters) *(void **)&cu.name = device_symbol(symbol);
    DRIVER_CALLS(CALL)
#undef CALL
    *(void **)&cu.GetErrorName = device_symbol("cuGetErrorName");
    DEVICE_OK(cu.Init(0));
    DEVICE_OK(cu.DevicePrimaryCtxRetain(&cu.context, 0));
    DEVICE_OK(cu.CtxSetCurrent(cu.context));
}

/* What device_open took is given back. The library stays: dlclose is for those who know that nobody uses it. */
static inline void device_close(void) {
    DEVICE_OK(cu.CtxSetCurrent(NULL));
    DEVICE_OK(cu.DevicePrimaryCtxRelease(0));
}

/* Is it the stand-in, which has ways to misbehave on request? */
static inline int device_is_standin(void) { return dlsym(cu.library, "standin_fail") != NULL; }

static inline CUdeviceptr device_address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

#endif
