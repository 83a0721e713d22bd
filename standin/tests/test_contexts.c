/* Devices, contexts, versions and the functions that a version has. */
#include "check.h"

static void devices_are_told(void) {
    int count, can, value;
    CUdevice device;
    char name[64];
    size_t bytes;
    CUuuid first, second;
    IS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    IS(count, 3);
    OK(cuDeviceGet(&device, 2));
    IS(device, 2);
    IS(cuDeviceGet(&device, 3), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetName(name, sizeof name, 1));
    CHECK(strcmp(name, "stand-in device 1") == 0);
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    IS(bytes, (size_t)16 << 30);
    OK(cuDeviceGetUuid_v2(&first, 0));
    OK(cuDeviceGetUuid_v2(&second, 1));
    CHECK(memcmp(&first, &second, sizeof first) != 0);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    IS(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 1, 0));
    IS(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 0, 2));
    IS(can, 0);
    OK(cuDeviceCanAccessPeer(&can, 2, 0));
    IS(can, 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    IS(value, 1);
    IS(cuDeviceGetAttribute(&value, (CUdevice_attribute)5000, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 3), CUDA_ERROR_INVALID_DEVICE);
}

static void no_device(void) { IS(cuInit(0), CUDA_ERROR_NO_DEVICE); }

static void contexts_are_a_stack_of_the_thread(void) {
    CUcontext first, second, now;
    CUdevice device;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxGetCurrent(&now));
    CHECK(now == NULL);
    IS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxPushCurrent_v2(first));
    OK(cuCtxPushCurrent_v2(second));
    OK(cuCtxGetDevice(&device));
    IS(device, 1);
    OK(cuCtxSetCurrent(first)); /* in place of the top */
    OK(cuCtxPopCurrent_v2(&now));
    CHECK(now == first);
    OK(cuCtxGetCurrent(&now));
    CHECK(now == first);
    OK(cuCtxSetCurrent(NULL)); /* as a pop */
    IS(cuCtxPopCurrent_v2(&now), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxRelease_v2(1));
    IS(cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
}

static void a_primary_context_is_retained_and_reset(void) {
    unsigned flags;
    int active;
    unsigned long long before, after;
    CUcontext context = begin(), again;
    OK(cuCtxGetId(NULL, &before));
    CUevent e = event_of(0);
    CUstream s = stream_of(0);
    CUdeviceptr at, from_pages = mapped(PAGE);
    OK(cuMemAlloc_v2(&at, 100));
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(active, 0);
    IS(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuMemFree_v2(at), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuEventQuery(e), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuEventSynchronize(e), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuEventRecord(e, s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuEventDestroy_v2(e), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    /* Mapped memory belongs to no context. */
    IS(bytes_at(from_pages)[0], 0);
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    CHECK(again == context);
    OK(cuCtxGetId(context, &after));
    CHECK(before != after);
    IS(cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
    /* What was in it is remembered to have been, even now; of streams alone. */
    CUstreamCaptureStatus status;
    IS(cuStreamGetId(s, &after), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuStreamIsCapturing(s, &status), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuStreamSynchronize(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuStreamDestroy_v2(s), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(event_of(0) != e && stream_of(0) != s);
    OK(cuDevicePrimaryCtxReset_v2(0));
    unmapped(from_pages, PAGE);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void other_contexts_come_and_go(void) {
    CUcontext first = begin(), second, now;
    CUevent e;
    OK(cuCtxCreate_v2(&second, 0, 1));
    CHECK(second != first);
    OK(cuCtxGetCurrent(&now));
    CHECK(now == second);
    OK(cuEventCreate(&e, 0));
    OK(cuCtxDestroy_v2(second)); /* and the event with it */
    OK(cuCtxGetCurrent(&now));
    CHECK(now == first);
    IS(cuCtxSetCurrent(second), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    IS(cuCtxDestroy_v2(first), CUDA_ERROR_INVALID_CONTEXT);
    end();
}

static void peers_are_enabled_once(void) {
    CUcontext first = begin(), second;
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    IS(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxEnablePeerAccess(second, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(second, 0));
    IS(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuCtxSetCurrent(second));
    IS(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    /* The first device may write the second's memory now. */
    CUdeviceptr at;
    OK(cuMemAlloc_v2(&at, 64));
    OK(cuCtxSetCurrent(first));
    OK(cuMemsetD8Async(at, 1, 64, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuCtxSetCurrent(second));
    OK(cuMemFree_v2(at));
    OK(cuDevicePrimaryCtxRelease_v2(1));
    end();
}

static void functions_are_found_by_version(void) {
    int version;
    void *function;
    CUdriverProcAddressQueryResult status;
    OK(cuDriverGetVersion(&version));
    IS(version, 13000);
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
    CHECK(function == (void *)cuMemAlloc_v2);
    IS(status, CU_GET_PROC_ADDRESS_SUCCESS);
    OK(cuGetProcAddress_v2("cuCtxGetDevice", &function, 12080, 0, NULL));
    CHECK(function == (void *)cuCtxGetDevice);
    OK(cuGetProcAddress_v2("cuCtxGetDevice", &function, 13000, 0, NULL));
    CHECK(function == (void *)cuCtxGetDevice_v2); /* other parameters! */
    OK(cuGetProcAddress_v2("cuStreamGetCaptureInfo", &function, 11030, 0, NULL));
    CHECK(function == (void *)cuStreamGetCaptureInfo_v2);
    OK(cuGetProcAddress_v2("cuStreamGetCaptureInfo", &function, 12030, 0, NULL));
    CHECK(function == (void *)cuStreamGetCaptureInfo_v3);
    OK(cuGetProcAddress_v2("cuGraphInstantiate", &function, 11000, 0, NULL));
    CHECK(function == (void *)cuGraphInstantiate_v2);
    OK(cuGetProcAddress_v2("cuGraphInstantiate", &function, 12000, 0, NULL));
    CHECK(function == (void *)cuGraphInstantiateWithFlags);
    OK(cuGetProcAddress_v2("cuStreamGetId", &function, 11080, 0, &status));
    CHECK(function == NULL);
    IS(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress_v2("cuNothing", &function, 12000, 0, &status));
    CHECK(function == NULL);
    IS(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    IS(cuGetProcAddress_v2("cuInit", &function, 13010, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetProcAddress("cuMemMap", &function, 11030, 0));
    CHECK(function == (void *)cuMemMap);
    IS(cuGetProcAddress("cuNothing", &function, 11030, 0), CUDA_ERROR_NOT_FOUND);
}

static void an_older_driver_has_less(void) {
    void *function;
    unsigned long long id;
    CUcontext context;
    int version;
    OK(cuDriverGetVersion(&version));
    IS(version, 11000);
    IS(cuGetProcAddress("cuInit", &function, 11000, 0), CUDA_ERROR_NOT_SUPPORTED);
    IS(cuGetProcAddress_v2("cuInit", &function, 11000, 0, NULL), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    IS(cuStreamGetId(NULL, &id), CUDA_ERROR_NOT_SUPPORTED);
    IS(cuCtxGetId(NULL, &id), CUDA_ERROR_NOT_SUPPORTED);
    end();
}

static void the_oldest_with_virtual_memory(void) {
    CUcontext context;
    CUmemGenericAllocationHandle handle;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    IS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuCtxSetCurrent(context));
    CUdeviceptr at = mapped(PAGE);
    IS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at), CUDA_ERROR_NOT_SUPPORTED);
    unmapped(at, PAGE);
    OK(cuDevicePrimaryCtxRelease(0));
}

static void a_version_between(void) {
    void *function;
    OK(cuGetProcAddress("cuStreamGetCaptureInfo", &function, 11040, 0));
    CHECK(function == (void *)cuStreamGetCaptureInfo_v2);
    IS(cuGetProcAddress("cuStreamGetId", &function, 11040, 0), CUDA_ERROR_NOT_FOUND);
    IS(cuGetProcAddress_v2("cuInit", &function, 11040, 0, NULL), CUDA_ERROR_NOT_SUPPORTED);
}

static void results_have_names(void) {
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &text));
    CHECK(strcmp(text, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    IS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(text == NULL);
}

static const struct trial trials[] = {
    {"devices_are_told", devices_are_told, WELL, NULL, {"WEIR_STANDIN_DEVICES=3", "WEIR_STANDIN_PEER=0-1,2>0"}},
    {"no_device", no_device, WELL, NULL, {"WEIR_STANDIN_DEVICES=0"}},
    {"contexts_are_a_stack_of_the_thread", contexts_are_a_stack_of_the_thread, WELL, NULL, {NULL}},
    {"a_primary_context_is_retained_and_reset", a_primary_context_is_retained_and_reset, WELL, NULL, {NULL}},
    {"other_contexts_come_and_go", other_contexts_come_and_go, WELL, NULL, {NULL}},
    {"peers_are_enabled_once", peers_are_enabled_once, WELL, NULL, {"WEIR_STANDIN_PEER=0>1"}},
    {"functions_are_found_by_version", functions_are_found_by_version, WELL, NULL, {NULL}},
    {"an_older_driver_has_less", an_older_driver_has_less, WELL, NULL, {"WEIR_STANDIN_VERSION=11000"}},
    {"the_oldest_with_virtual_memory", the_oldest_with_virtual_memory, WELL, NULL, {"WEIR_STANDIN_VERSION=10020"}},
    {"a_version_between", a_version_between, WELL, NULL, {"WEIR_STANDIN_VERSION=11040"}},
    {"results_have_names", results_have_names, WELL, NULL, {NULL}},
    {"settings_must_be_numbers", results_have_names, BROKEN, "WEIR_STANDIN_MEMORY=much is no number", {"WEIR_STANDIN_MEMORY=much"}},
    {"settings_must_be_their_words", results_have_names, BROKEN, "WEIR_STANDIN_FORKED=maybe is none", {"WEIR_STANDIN_FORKED=maybe"}},
};
MAIN(trials)
