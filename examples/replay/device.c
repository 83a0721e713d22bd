/* The driver is opened at run time, as weir does it, so that this program needs no CUDA to be built. The few types and
 * numbers are those of the CUDA Driver API reference. */
#include "device.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { CU_STREAM_NON_BLOCKING = 1 };

static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*device_get_name)(char *name, int length, int device);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int device;
    char name[128];
} cu;

static int failed(const char *call, int code) {
    fprintf(stderr, "replay: %s failed with code %d\n", call, code);
    return -1;
}

static int find(void *library, const char *name, void *place) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "replay: the driver has no %s\n", name);
        return -1;
    }
    *(void **)place = symbol;
    return 0;
}

int device_open(void) {
    const char *name = getenv("WEIR_CUDA_LIBRARY");
    void *library = dlopen(name != NULL && *name != '\0' ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "replay: %s\n", dlerror());
        return -1;
    }
    if (find(library, "cuInit", &cu.init) || find(library, "cuDeviceGet", &cu.device_get) ||
        find(library, "cuDeviceGetName", &cu.device_get_name) ||
        find(library, "cuDevicePrimaryCtxRetain", &cu.context_retain) ||
        find(library, "cuDevicePrimaryCtxRelease_v2", &cu.context_release) ||
        find(library, "cuCtxSetCurrent", &cu.context_set) || find(library, "cuStreamCreate", &cu.stream_create) ||
        find(library, "cuStreamDestroy_v2", &cu.stream_destroy)) {
        return -1;
    }
    void *context;
    int code;
    if ((code = cu.init(0)) != 0) {
        return failed("cuInit", code);
    }
    if ((code = cu.device_get(&cu.device, 0)) != 0) {
        return failed("cuDeviceGet", code);
    }
    if ((code = cu.device_get_name(cu.name, sizeof cu.name, cu.device)) != 0) {
        return failed("cuDeviceGetName", code);
    }
    if ((code = cu.context_retain(&context, cu.device)) != 0) {
        return failed("cuDevicePrimaryCtxRetain", code);
    }
    if ((code = cu.context_set(context)) != 0) {
        cu.context_release(cu.device);
        return failed("cuCtxSetCurrent", code);
    }
    return 0;
}

const char *device_name(void) { return cu.name; }

int device_stream_create(weir_stream *stream) {
    int code = cu.stream_create(stream, CU_STREAM_NON_BLOCKING);
    return code == 0 ? 0 : failed("cuStreamCreate", code);
}

int device_stream_destroy(weir_stream stream) {
    int code = cu.stream_destroy(stream);
    return code == 0 ? 0 : failed("cuStreamDestroy", code);
}

void device_close(void) {
    cu.context_set(NULL);
    cu.context_release(cu.device);
}
