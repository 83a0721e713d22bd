/* What the driver tells about an address. */
#include "allocations.h"
#include "calls.h"
#include "mappings.h"

struct about {
    bool known;
    bool on_device;
    bool mapped; /* from the virtual memory calls */
    struct range range;
    const struct allocation *allocation;
    const struct mapping *mapping;
    int device;
};

static struct about about(uintptr_t at) {
    struct about is = {.mapping = ranges_with(&mappings, at), .device = -1};
    if (is.mapping != NULL) {
        is.known = is.mapped = true;
        is.range = is.mapping->range;
        is.device = is.mapping->pages->device->ordinal;
        is.on_device = is.device != HOST;
        return is;
    }
    is.allocation = ranges_with(&device_allocations, at);
    is.on_device = is.allocation != NULL;
    if (!is.on_device) {
        is.allocation = ranges_with(&host_allocations, at);
    }
    if (is.allocation != NULL) {
        is.known = true;
        is.range = is.allocation->range;
        is.device = is.allocation->context->device->ordinal;
    }
    return is;
}

/* Writes the attribute; what it does not apply to is written as nothing. */
static CUresult tell(void *value, CUpointer_attribute attribute, uintptr_t at, const struct about *is) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* Mapped memory belongs to no context. */
        *(CUcontext *)value = is->allocation != NULL ? is->allocation->context->handle : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = !is->known ? 0 : is->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = is->known ? at : 0;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = is->known && !is->on_device ? (void *)at : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)value = is->allocation != NULL ? is->allocation->id : 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = !is->known ? -2 : is->device == HOST ? -1 : is->device;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(bool *)value = is->on_device && !is->mapped;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = is->range.at;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = is->range.bytes;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(bool *)value = is->known;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)value = is->mapped ? is->mapping->pages->prop.requestedHandleTypes : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(bool *)value = is->on_device && (!is->mapped || is->mapping->pages->prop.allocFlags.gpuDirectRDMACapable);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)value = !is->known   ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                             : is->mapped ? is->mapping->access[is->device]
                                          : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)value = NULL;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr at) {
    ENTER(cuPointerGetAttribute);
    struct about is = about(at);
    REQUIRE(value != NULL && is.known, CUDA_ERROR_INVALID_VALUE);
    LEAVE(tell(value, attribute, at, &is));
}

/* Unlike the one above it has an answer for any address. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values, CUdeviceptr at) {
    ENTER(cuPointerGetAttributes);
    REQUIRE(attributes != NULL && values != NULL, CUDA_ERROR_INVALID_VALUE);
    struct about is = about(at);
    for (unsigned i = 0; i < count; i++) {
        TRY(tell(values[i], attributes[i], at, &is));
    }
    LEAVE(CUDA_SUCCESS);
}
