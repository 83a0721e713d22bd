#include "devices.h"

#include "calls.h"
#include "contexts.h"

static struct device devices[PLACES];

void devices_prepare(void) {
    for (int i = 0; i < settings.devices; i++) {
        devices[i].ordinal = i;
        devices[i].memory = settings.memory;
    }
    devices[HOST].ordinal = HOST;
    devices[HOST].memory = settings.memory;
}

struct device *device_numbered(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < settings.devices ? &devices[ordinal] : NULL;
}

struct device *device_host(void) { return &devices[HOST]; }

CUresult place_of(const CUmemLocation *location, int *place) {
    if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && settings.version >= 12020) {
        *place = HOST;
        return location->id >= 0 && location->id < settings.nodes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    *place = location->id;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return device_numbered(location->id) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_take(struct device *device, uint64_t bytes) {
    uint64_t taken = device->used + device->held;
    if (taken > device->memory || bytes > device->memory - taken) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    device->used += bytes;
    return CUDA_SUCCESS;
}

void device_give(struct device *device, uint64_t bytes) { device->used -= bytes; }

CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount);
    REQUIRE(count != NULL, CUDA_ERROR_INVALID_VALUE);
    *count = settings.devices;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(cuDeviceGet);
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(ordinal) != NULL, CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(cuDeviceGetName);
    REQUIRE(name != NULL && length > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)length, "stand-in device %d", device);
    LEAVE(CUDA_SUCCESS);
}

static void uuid_of(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "stand-in device", 15);
    uuid->bytes[15] = (char)device;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid);
    REQUIRE(uuid != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    uuid_of(uuid, device);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid_v2);
    REQUIRE(uuid != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    uuid_of(uuid, device);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2);
    REQUIRE(bytes != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    *bytes = device_numbered(device)->memory;
    LEAVE(CUDA_SUCCESS);
}

static CUresult attribute_of(int *value, CUdevice_attribute attribute, const struct device *device) {
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = 16 + device->ordinal;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = settings.vmm && settings.version >= 10020;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = settings.vmm && settings.version >= 12020 && settings.nodes > 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        /* Each card is near another node. */
        *value = settings.version >= 12020 && settings.nodes > 0 ? device->ordinal % settings.nodes : -1;
        return CUDA_SUCCESS;
    default:
        /* What there is none of; a number beyond all attributes is an error. */
        *value = 0;
        return (int)attribute > 0 && (int)attribute < 200 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    REQUIRE(value != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(device) != NULL, CUDA_ERROR_INVALID_DEVICE);
    LEAVE(attribute_of(value, attribute, device_numbered(device)));
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER(cuDeviceCanAccessPeer);
    REQUIRE(can != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_numbered(device) != NULL && device_numbered(peer) != NULL, CUDA_ERROR_INVALID_DEVICE);
    *can = settings.peer[device][peer];
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER(cuMemGetInfo_v2);
    struct context *context;
    TRY(context_current(&context));
    const struct device *device = context->device;
    uint64_t taken = device->used + device->held;
    if (free != NULL) {
        *free = taken < device->memory ? device->memory - taken : 0;
    }
    if (total != NULL) {
        *total = device->memory;
    }
    LEAVE(CUDA_SUCCESS);
}

static struct device *controlled(CUdevice ordinal) {
    driver_prepare();
    struct device *device = device_numbered(ordinal);
    if (device == NULL) {
        rule_broken("there is no device %d", ordinal);
    }
    return device;
}

void standin_lose_device(CUdevice ordinal) {
    struct device *device = controlled(ordinal);
    books_lock();
    device->lost = true;
    books_unlock();
}

void standin_reset_device(CUdevice ordinal) {
    struct device *device = controlled(ordinal);
    books_lock();
    context_reset_primary(device);
    device->lost = false;
    books_unlock();
}

void standin_set_memory(CUdevice ordinal, uint64_t bytes) {
    struct device *device = controlled(ordinal);
    books_lock();
    device->memory = bytes;
    books_unlock();
}

void standin_hold_memory(CUdevice ordinal, uint64_t bytes) {
    struct device *device = controlled(ordinal);
    books_lock();
    device->held = bytes;
    books_unlock();
}

void standin_set_peer(CUdevice ordinal, CUdevice peer, int allowed) {
    controlled(ordinal);
    controlled(peer);
    books_lock();
    settings.peer[ordinal][peer] = allowed != 0;
    books_unlock();
}

void standin_set_mapping_limit(uint64_t mappings) {
    driver_prepare();
    books_lock();
    settings.mapping_limit = mappings;
    books_unlock();
}
