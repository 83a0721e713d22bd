/* Every entry point: its names, the CUDA version that brought it, and what is checked before it does anything.
 *
 * An entry point begins with ENTER and ends with LEAVE; in between it holds the lock. */
#ifndef STANDIN_CALLS_H
#define STANDIN_CALLS_H

#include "base.h"

#pragma GCC visibility push(hidden)

enum call_traits {
    ANYTIME = 1,     /* may be made before cuInit */
    TELLS = 2,       /* only tells; not counted among the calls that may fail */
    CONTEXT = 4,     /* needs a current context */
    STICKY = 8,      /* reports that the current context's device is lost */
    UNSAFE = 16,     /* refused beside a capture, see captures.c */
    GIVES_BACK = 32, /* takes its injected failure itself, by `call_refused` */
    MAPS = 64,       /* one of the virtual memory calls */
    IN_FLIGHT = CONTEXT | STICKY
};

/* X(exported name, base name for cuGetProcAddress, CUDA version, traits). Of the variants of one base name the
 * newest that the program asks for is found, so a line's order does not matter. */
#define STANDIN_CALLS(X)                                                                                              \
    X(cuGetErrorName, cuGetErrorName, 6000, ANYTIME | TELLS)                                                          \
    X(cuGetErrorString, cuGetErrorString, 6000, ANYTIME | TELLS)                                                      \
    X(cuInit, cuInit, 2000, ANYTIME)                                                                                  \
    X(cuDriverGetVersion, cuDriverGetVersion, 2020, ANYTIME | TELLS)                                                  \
    X(cuGetProcAddress, cuGetProcAddress, 11030, ANYTIME | TELLS)                                                     \
    X(cuGetProcAddress_v2, cuGetProcAddress, 12000, ANYTIME | TELLS)                                                  \
    X(cuDeviceGet, cuDeviceGet, 2000, 0)                                                                              \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000, 0)                                                                    \
    X(cuDeviceGetName, cuDeviceGetName, 2000, 0)                                                                      \
    X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, 0)                                                                      \
    X(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, 0)                                                                  \
    X(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, 0)                                                                 \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, 0)                                                            \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, 0)                                                          \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0)                                                    \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, GIVES_BACK)                                         \
    X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, GIVES_BACK)                                     \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0)                                                      \
    X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, 0)                                                  \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, 0)                                                \
    X(cuCtxCreate_v2, cuCtxCreate, 3020, 0)                                                                           \
    X(cuCtxCreate_v4, cuCtxCreate, 12050, 0)                                                                          \
    X(cuCtxDestroy_v2, cuCtxDestroy, 4000, GIVES_BACK)                                                                \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, 0)                                                                      \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, 0)                                                                      \
    X(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, 0)                                                                 \
    X(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, 0)                                                                   \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000, CONTEXT)                                                                  \
    X(cuCtxGetDevice_v2, cuCtxGetDevice, 13000, 0)                                                                    \
    X(cuCtxGetId, cuCtxGetId, 12000, 0)                                                                               \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, IN_FLIGHT)                                                            \
    X(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, 0)                                                                \
    X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, IN_FLIGHT)                                                  \
    X(cuMemGetInfo_v2, cuMemGetInfo, 3020, IN_FLIGHT)                                                                 \
    X(cuMemAlloc_v2, cuMemAlloc, 3020, IN_FLIGHT | UNSAFE)                                                            \
    X(cuMemFree_v2, cuMemFree, 3020, CONTEXT | UNSAFE | GIVES_BACK)                                                   \
    X(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020, CONTEXT)                                                   \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, IN_FLIGHT)                                                          \
    X(cuMemHostAlloc, cuMemHostAlloc, 2020, IN_FLIGHT | UNSAFE)                                                       \
    X(cuMemFreeHost, cuMemFreeHost, 2000, CONTEXT | UNSAFE | GIVES_BACK)                                              \
    X(cuMemHostRegister_v2, cuMemHostRegister, 6050, IN_FLIGHT | UNSAFE)                                              \
    X(cuMemHostUnregister, cuMemHostUnregister, 4000, CONTEXT | UNSAFE | GIVES_BACK)                                  \
    X(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, 3020, IN_FLIGHT)                                       \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, CONTEXT)                                                    \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, CONTEXT)                                                  \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020, MAPS)                                                          \
    X(cuMemAddressFree, cuMemAddressFree, 10020, MAPS | GIVES_BACK)                                                   \
    X(cuMemCreate, cuMemCreate, 10020, MAPS)                                                                          \
    X(cuMemRelease, cuMemRelease, 10020, MAPS | GIVES_BACK)                                                           \
    X(cuMemMap, cuMemMap, 10020, MAPS)                                                                                \
    X(cuMemUnmap, cuMemUnmap, 10020, MAPS | GIVES_BACK)                                                               \
    X(cuMemSetAccess, cuMemSetAccess, 10020, MAPS)                                                                    \
    X(cuMemGetAccess, cuMemGetAccess, 10020, MAPS)                                                                    \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, MAPS)                                      \
    X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, MAPS)                    \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, MAPS)                                          \
    X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, MAPS)                                        \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, MAPS)                                    \
    X(cuStreamCreate, cuStreamCreate, 2000, IN_FLIGHT)                                                                \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, IN_FLIGHT)                                        \
    X(cuStreamDestroy_v2, cuStreamDestroy, 4000, GIVES_BACK)                                                          \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, 0)                                                              \
    X(cuStreamQuery, cuStreamQuery, 2000, 0)                                                                          \
    X(cuStreamGetFlags, cuStreamGetFlags, 5050, 0)                                                                    \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, 0)                                                                  \
    X(cuStreamGetId, cuStreamGetId, 12000, 0)                                                                         \
    X(cuStreamGetCtx, cuStreamGetCtx, 9020, 0)                                                                        \
    X(cuStreamGetCtx_v2, cuStreamGetCtx, 12050, 0)                                                                    \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, 0)                                                             \
    X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010, 0)                                                       \
    X(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo, 11030, 0)                                                    \
    X(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo, 12030, 0)                                                    \
    X(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, IN_FLIGHT)                                                \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, CONTEXT)                                                         \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, 0)                                 \
    X(cuEventCreate, cuEventCreate, 2000, IN_FLIGHT)                                                                  \
    X(cuEventDestroy_v2, cuEventDestroy, 4000, GIVES_BACK)                                                            \
    X(cuEventRecord, cuEventRecord, 2000, 0)                                                                          \
    X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, IN_FLIGHT)                                                      \
    X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, IN_FLIGHT)                                                    \
    X(cuEventQuery, cuEventQuery, 2000, 0)                                                                            \
    X(cuEventSynchronize, cuEventSynchronize, 2000, 0)                                                                \
    X(cuEventElapsedTime, cuEventElapsedTime, 2000, 0)                                                                \
    X(cuEventElapsedTime_v2, cuEventElapsedTime, 12080, 0)                                                            \
    X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, IN_FLIGHT)                                                           \
    X(cuMemcpyAsync, cuMemcpyAsync, 4000, IN_FLIGHT)                                                                  \
    X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020, IN_FLIGHT)                                                       \
    X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020, IN_FLIGHT)                                                       \
    X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020, IN_FLIGHT)                                                       \
    X(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, IN_FLIGHT | UNSAFE)                                                        \
    X(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, IN_FLIGHT | UNSAFE)                                                        \
    X(cuMemsetD8Async, cuMemsetD8Async, 3020, IN_FLIGHT)                                                              \
    X(cuMemsetD32Async, cuMemsetD32Async, 3020, IN_FLIGHT)                                                            \
    X(cuMemsetD32_v2, cuMemsetD32, 3020, IN_FLIGHT | UNSAFE)                                                          \
    X(cuGraphInstantiate_v2, cuGraphInstantiate, 11000, IN_FLIGHT)                                                    \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, IN_FLIGHT)                                     \
    X(cuGraphLaunch, cuGraphLaunch, 10000, IN_FLIGHT)                                                                 \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, GIVES_BACK)                                                      \
    X(cuGraphDestroy, cuGraphDestroy, 10000, GIVES_BACK)                                                              \
    X(cuUserObjectCreate, cuUserObjectCreate, 11030, 0)                                                               \
    X(cuUserObjectRetain, cuUserObjectRetain, 11030, 0)                                                               \
    X(cuUserObjectRelease, cuUserObjectRelease, 11030, GIVES_BACK)                                                    \
    X(cuGraphRetainUserObject, cuGraphRetainUserObject, 11030, 0)                                                     \
    X(cuGraphReleaseUserObject, cuGraphReleaseUserObject, 11030, GIVES_BACK)

enum call {
#define X(name, base, since, traits) CALL_##name,
    STANDIN_CALLS(X)
#undef X
        CALLS
};

struct call_entry {
    const char *name;
    const char *base;
    int since;
    unsigned traits;
    void *function;
};
extern const struct call_entry call_table[CALLS];

static inline const char *call_name(int call) { return call_table[call].name; }

/* Counts the call, delays it, and refuses it where a rule that needs no argument says so. Holds the lock if it
 * returns CUDA_SUCCESS. */
CUresult call_enter(enum call call);
/* Lets go of the lock. */
CUresult call_leave(CUresult result);
/* The injected failure of a giving-back call, or CUDA_SUCCESS. What was to be given back is marked: that it stays is
 * then the driver's doing, and no leak. */
CUresult call_refused(bool *excused);

#define ENTER(call)                                       \
    do {                                                  \
        CUresult refused_ = call_enter(CALL_##call);      \
        if (refused_ != CUDA_SUCCESS) {                   \
            return refused_;                              \
        }                                                 \
    } while (0)
#define LEAVE(result) return call_leave(result)
/* Within a call: go on only if this went well. */
#define TRY(expression)                                   \
    do {                                                  \
        CUresult tried_ = (expression);                   \
        if (tried_ != CUDA_SUCCESS) {                     \
            LEAVE(tried_);                                \
        }                                                 \
    } while (0)
#define REQUIRE(condition, otherwise)                     \
    do {                                                  \
        if (!(condition)) {                               \
            LEAVE(otherwise);                             \
        }                                                 \
    } while (0)

#pragma GCC visibility pop
#endif
