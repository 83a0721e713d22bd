/* Memory: ranges, pages, mappings, access; allocations and pinned memory; what fills, copies and pointers do. */
#include "check.h"

#include <sys/mman.h>
#include <sys/stat.h>

static size_t free_bytes(void) {
    size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    IS(total, 64 * MiB);
    return free;
}

static void pages_live_until_released_and_unmapped(void) {
    begin();
    CUdeviceptr at = reserved(2 * PAGE);
    CUmemGenericAllocationHandle handle = pages(PAGE);
    IS(free_bytes(), 64 * MiB - PAGE);
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    IS(free_bytes(), 64 * MiB - PAGE);
    CUmemGenericAllocationHandle again;
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 12345)));
    IS(again, handle);
    OK(cuMemUnmap(at, PAGE));
    IS(free_bytes(), 64 * MiB - PAGE);
    OK(cuMemRelease(again));
    IS(free_bytes(), 64 * MiB);
    IS(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(at, 2 * PAGE));
    at = mapped(PAGE); /* released already */
    IS(free_bytes(), 64 * MiB - PAGE);
    OK(cuMemUnmap(at, PAGE));
    IS(free_bytes(), 64 * MiB);
    OK(cuMemAddressFree(at, PAGE));
    end();
}

/* Blocks of the file behind a card's memory. */
static long long blocks_in_use(void) {
    for (int file = 3; file < 64; file++) {
        char path[32], name[64];
        struct stat status;
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        ssize_t length = readlink(path, name, sizeof name - 1);
        name[length > 0 ? length : 0] = '\0';
        if (strstr(name, "weir-standin-device") != NULL && fstat(file, &status) == 0) {
            return status.st_blocks;
        }
    }
    return -1;
}

static void memory_goes_back_to_the_system(void) {
    begin();
    CUdeviceptr at = mapped(PAGE);
    OK(cuMemsetD8Async(at, 1, PAGE, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(blocks_in_use(), PAGE / 512);
    unmapped(at, PAGE);
    IS(blocks_in_use(), 0);
    end();
}

static void one_page_at_two_addresses(void) {
    begin();
    CUdeviceptr at = reserved(2 * PAGE);
    CUmemGenericAllocationHandle handle = pages(PAGE);
    CUstream s = stream_of(0);
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    OK(cuMemMap(at + PAGE, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(access_by(0, at, 2 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8Async(at + 5000, 0xab, 1, s));
    OK(cuStreamSynchronize(s));
    IS(bytes_at(at + PAGE)[5000], 0xab);
    OK(cuMemUnmap(at, PAGE));
    IS(bytes_at(at + PAGE)[5000], 0xab);
    OK(cuMemUnmap(at + PAGE, PAGE));
    OK(cuMemAddressFree(at, 2 * PAGE));
    /* What comes next is fresh memory. */
    at = mapped(PAGE);
    IS(bytes_at(at)[5000], 0);
    unmapped(at, PAGE);
    OK(cuStreamDestroy_v2(s));
    end();
}

static void mapping_is_refused(void) {
    begin();
    CUdeviceptr at = reserved(4 * PAGE);
    CUmemGenericAllocationHandle handle = pages(2 * PAGE);
    IS(cuMemMap(at, PAGE, PAGE, handle, 0), CUDA_ERROR_NOT_SUPPORTED); /* an offset */
    IS(cuMemMap(at + 4096, PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemMap(at, PAGE + 4096, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemMap(at, 4 * PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* more than there is */
    IS(cuMemMap(at + 3 * PAGE, 2 * PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemMap(PAGE, PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* not reserved */
    OK(cuMemMap(at + PAGE, 2 * PAGE, 0, handle, 0));
    IS(cuMemMap(at, 2 * PAGE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* mapped already */
    IS(cuMemUnmap(at + PAGE, PAGE), CUDA_ERROR_INVALID_VALUE);          /* a part */
    IS(cuMemUnmap(at, 3 * PAGE), CUDA_ERROR_INVALID_VALUE);             /* with a hole */
    IS(access_by(0, at, 3 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
    IS(access_by(0, at + PAGE, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
    IS(access_by(7, at + PAGE, 2 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_DEVICE);
    IS(cuMemAddressFree(at, 4 * PAGE), CUDA_ERROR_INVALID_VALUE); /* something is mapped in it */
    OK(cuMemUnmap(at + PAGE, 2 * PAGE));
    IS(cuMemAddressFree(at, 3 * PAGE), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAddressFree(at + PAGE, 3 * PAGE), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(at, 4 * PAGE));
    IS(cuMemAddressFree(at, 4 * PAGE), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    end();
}

static void adjacent_mappings_go_together(void) {
    begin();
    CUdeviceptr at = reserved(3 * PAGE);
    for (int i = 0; i < 3; i++) {
        CUmemGenericAllocationHandle handle = pages(PAGE);
        OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    OK(access_by(0, at, 3 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD32_v2(at, 7, 3 * PAGE / 4));
    OK(cuStreamSynchronize(NULL));
    IS(bytes_at(at)[3 * PAGE - 4], 7);
    CUdeviceptr base;
    size_t bytes;
    OK(cuMemGetAddressRange_v2(&base, &bytes, at + PAGE + 5));
    IS(base, at + PAGE);
    IS(bytes, PAGE);
    OK(cuMemUnmap(at, 2 * PAGE));
    IS(cuMemUnmap(at + 2 * PAGE, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(at + 2 * PAGE, PAGE));
    OK(cuMemAddressFree(at, 3 * PAGE));
    end();
}

static void access_is_what_was_granted(void) {
    begin();
    unsigned long long flags;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, there = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUdeviceptr at = mapped(PAGE);
    OK(cuMemGetAccess(&flags, &here, at + 4096));
    IS(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemGetAccess(&flags, &there, at));
    IS(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    IS(access_by(1, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_DEVICE); /* no peer */
    standin_set_peer(1, 0, 1);
    OK(access_by(1, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ));
    OK(cuMemGetAccess(&flags, &there, at));
    IS(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
    OK(cuMemUnmap(at, PAGE));
    IS(cuMemGetAccess(&flags, &here, at), CUDA_ERROR_INVALID_VALUE);
    /* A new mapping begins without any. */
    CUmemGenericAllocationHandle handle = pages(PAGE);
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    OK(cuMemGetAccess(&flags, &here, at));
    IS(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuMemRelease(handle));
    unmapped(at, PAGE);
    end();
}

static void the_card_has_an_end(void) {
    begin();
    CUmemAllocationProp prop = pinned_on(0);
    CUmemGenericAllocationHandle all = pages(62 * MiB), more;
    IS(cuMemCreate(&more, 4 * MiB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr at;
    OK(cuMemAlloc_v2(&at, 2 * MiB));
    IS(cuMemAlloc_v2(&at, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(at));
    standin_hold_memory(0, 2 * MiB);
    IS(cuMemCreate(&more, 2 * MiB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    IS(free_bytes(), 0);
    standin_hold_memory(0, 0);
    IS(free_bytes(), 2 * MiB);
    /* The other card is another one. */
    prop = pinned_on(1);
    OK(cuMemCreate(&more, 64 * MiB, &prop, 0));
    OK(cuMemRelease(more));
    OK(cuMemRelease(all));
    standin_set_memory(0, MiB);
    prop = pinned_on(0);
    IS(cuMemCreate(&more, 2 * MiB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    end();
}

static void mappings_have_a_limit(void) {
    begin();
    standin_set_mapping_limit(2);
    CUdeviceptr at = reserved(3 * PAGE);
    CUmemGenericAllocationHandle handle = pages(PAGE);
    for (int i = 0; i < 3; i++) {
        OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
        IS(access_by(0, at + i * PAGE, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
           i < 2 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    }
    OK(access_by(0, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ)); /* counts no second time */
    OK(cuMemUnmap(at, PAGE));
    OK(access_by(0, at + 2 * PAGE, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    IS(access_by(0, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemUnmap(at, 3 * PAGE));
    OK(cuMemAddressFree(at, 3 * PAGE));
    OK(cuMemRelease(handle));
    end();
}

static void creating_is_refused(void) {
    begin();
    CUmemAllocationProp prop = pinned_on(0);
    CUmemGenericAllocationHandle handle;
    size_t granularity;
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    IS(granularity, 4 * MiB);
    IS(cuMemCreate(&handle, 2 * MiB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, 4 * MiB, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    IS(cuMemCreate(&handle, 4 * MiB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    prop = pinned_on(2);
    IS(cuMemCreate(&handle, 4 * MiB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop = pinned_on(0);
    prop.allocFlags.gpuDirectRDMACapable = 1;
    OK(cuMemCreate(&handle, 4 * MiB, &prop, 0));
    CUmemAllocationProp told;
    OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
    IS(told.allocFlags.gpuDirectRDMACapable, 1);
    OK(cuMemRelease(handle));
    CUdeviceptr at;
    IS(cuMemAddressReserve(&at, 4095, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAddressReserve(&at, 4 * MiB, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAddressReserve(&at, (size_t)1 << 62, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAddressReserve(&at, 4 * MiB, 64 * MiB, 0, 0));
    IS(at % (64 * MiB), 0);
    OK(cuMemAddressFree(at, 4 * MiB));
    end();
}

static void allocations_and_their_free_wait_for_work(void) {
    begin();
    CUdeviceptr at, base;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    size_t bytes;
    OK(cuMemAlloc_v2(&at, 1000));
    IS(at % 512, 0);
    OK(cuMemGetAddressRange_v2(&base, &bytes, at + 999));
    IS(base, at);
    IS(bytes, 1000);
    IS(cuMemGetAddressRange_v2(&base, &bytes, at + 1000), CUDA_ERROR_NOT_FOUND);
    CUipcMemHandle handle;
    OK(cuIpcGetMemHandle(&handle, at));
    CUdeviceptr from_pages = mapped(4 * MiB);
    IS(cuIpcGetMemHandle(&handle, from_pages), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 1000; i++) {
        OK(cuMemsetD8Async(at, i, 1000, s));
    }
    OK(cuMemFree_v2(at)); /* the rule of use in flight would end the process otherwise */
    OK(cuStreamQuery(s));
    IS(cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemFree_v2(0), CUDA_ERROR_INVALID_VALUE);
    unmapped(from_pages, 4 * MiB);
    OK(cuStreamDestroy_v2(s));
    end();
}

static void pinned_memory(void) {
    begin();
    void *at, *own = NULL;
    CUdeviceptr device;
    OK(cuMemHostAlloc(&at, 3000, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostGetDevicePointer_v2(&device, (char *)at + 5, 0));
    IS(device, (uintptr_t)at + 5);
    OK(cuMemsetD8Async(device, 9, 10, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(((char *)at)[14], 9);
    IS(cuMemHostAlloc(&own, 10, 0x80), CUDA_ERROR_INVALID_VALUE);
    own = mmap(NULL, MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IS(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemHostRegister_v2(own, MiB, 0));
    IS(cuMemHostRegister_v2((char *)own + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    IS(cuMemFreeHost(own), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(own));
    IS(cuMemHostUnregister(at), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemFreeHost(at));
    IS(cuMemFreeHost(at), CUDA_ERROR_INVALID_VALUE);
    munmap(own, MiB);
    end();
}

/* Ordinary memory is read when the copy is asked for and has been written when that call returns; pinned memory is
 * read and written when the stream gets there. */
static void copies_of_pageable_and_of_pinned_memory(void) {
    begin();
    struct gate gate = GATE;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    CUdeviceptr at = mapped(PAGE);
    char ordinary[16] = "first", *pinned;
    OK(cuMemHostAlloc((void **)&pinned, 16, 0));
    strcpy(pinned, "first");
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    OK(cuMemcpyHtoDAsync_v2(at, ordinary, 16, s));
    OK(cuMemcpyHtoDAsync_v2(at + 64, pinned, 16, s));
    OK(cuMemcpyDtoDAsync_v2(at + 128, at, 16, s));
    OK(cuMemcpyAsync(at + 192, at + 64, 16, s));
    strcpy(ordinary, "second");
    strcpy(pinned, "second");
    IS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    OK(cuMemcpyDtoHAsync_v2(ordinary, at, 16, s));
    CHECK(strcmp(ordinary, "first") == 0);
    CHECK(strcmp((const char *)bytes_at(at + 128), "first") == 0);
    CHECK(strcmp((const char *)bytes_at(at + 64), "second") == 0);
    CHECK(strcmp((const char *)bytes_at(at + 192), "second") == 0);
    OK(cuMemcpyHtoD_v2(at, "third", 6));
    OK(cuMemcpyDtoH_v2(ordinary, at, 6));
    CHECK(strcmp(ordinary, "third") == 0);
    IS(cuMemcpyHtoDAsync_v2((CUdeviceptr)(uintptr_t)ordinary, pinned, 4, s), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(pinned));
    OK(cuStreamDestroy_v2(s));
    unmapped(at, PAGE);
    end();
}

static void pointers_tell(void) {
    CUcontext context = begin(), told;
    CUdeviceptr allocated, from_pages = mapped(PAGE), start;
    unsigned type;
    int ordinal;
    size_t bytes;
    OK(cuMemAlloc_v2(&allocated, 100));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, allocated + 5));
    IS(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_CONTEXT, allocated));
    CHECK(told == context);
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, from_pages + 77));
    IS(start, from_pages);
    OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, from_pages + 77));
    IS(bytes, PAGE);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, from_pages));
    IS(ordinal, 0);
    bool legacy;
    OK(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, allocated));
    CHECK(legacy);
    OK(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, from_pages));
    CHECK(!legacy);
    CUdeviceptr own = (uintptr_t)&told;
    IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, own), CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type, &ordinal};
    OK(cuPointerGetAttributes(2, which, values, own));
    IS(type, 0);
    IS(ordinal, -2);
    OK(cuMemFree_v2(allocated));
    unmapped(from_pages, PAGE);
    end();
}

static void memory_is_shared_by_descriptor(void) {
    begin();
    CUmemAllocationProp prop = pinned_on(1);
    CUmemGenericAllocationHandle handle, imported;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    int file;
    OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    CHECK(imported != handle);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, imported));
    IS(prop.location.id, 1);
    CUdeviceptr at = reserved(2 * PAGE);
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    OK(cuMemMap(at + PAGE, PAGE, 0, imported, 0));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(imported));
    OK(access_by(1, at, 2 * PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    *(char *)(uintptr_t)at = 5;
    IS(bytes_at(at + PAGE)[0], 5);
    unmapped(at, 2 * PAGE);
    handle = pages(PAGE);
    IS(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       CUDA_ERROR_INVALID_VALUE); /* not asked for when it was made */
    OK(cuMemRelease(handle));
    IS(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       CUDA_ERROR_INVALID_VALUE);
    end();
}

static void without_virtual_memory(void) {
    begin();
    int can;
    CUdeviceptr at;
    OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    IS(can, 0);
    IS(cuMemAddressReserve(&at, PAGE, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemAlloc_v2(&at, PAGE));
    OK(cuMemFree_v2(at));
    end();
}

#define SMALL {"WEIR_STANDIN_MEMORY=67108864"}
static const struct trial trials[] = {
    {"pages_live_until_released_and_unmapped", pages_live_until_released_and_unmapped, WELL, NULL, SMALL},
    {"memory_goes_back_to_the_system", memory_goes_back_to_the_system, WELL, NULL, {NULL}},
    {"one_page_at_two_addresses", one_page_at_two_addresses, WELL, NULL, {NULL}},
    {"mapping_is_refused", mapping_is_refused, WELL, NULL, {NULL}},
    {"adjacent_mappings_go_together", adjacent_mappings_go_together, WELL, NULL, {NULL}},
    {"access_is_what_was_granted", access_is_what_was_granted, WELL, NULL, {"WEIR_STANDIN_PEER=none"}},
    {"the_card_has_an_end", the_card_has_an_end, WELL, NULL, SMALL},
    {"mappings_have_a_limit", mappings_have_a_limit, WELL, NULL, {NULL}},
    {"creating_is_refused", creating_is_refused, WELL, NULL, {"WEIR_STANDIN_GRANULARITY=4194304"}},
    {"allocations_and_their_free_wait_for_work", allocations_and_their_free_wait_for_work, WELL, NULL, {NULL}},
    {"pinned_memory", pinned_memory, WELL, NULL, {NULL}},
    {"copies_of_pageable_and_of_pinned_memory", copies_of_pageable_and_of_pinned_memory, WELL, NULL, {NULL}},
    {"pointers_tell", pointers_tell, WELL, NULL, {NULL}},
    {"memory_is_shared_by_descriptor", memory_is_shared_by_descriptor, WELL, NULL, {NULL}},
    {"without_virtual_memory", without_virtual_memory, WELL, NULL, {"WEIR_STANDIN_VMM=0"}},
};
MAIN(trials)
