/* Pages of the host's own memory, mapped by the calls that map a card's. */
#include "check.h"

static CUmemGenericAllocationHandle host_pages(size_t bytes, int node) {
    CUmemAllocationProp prop = pinned_on(0);
    prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, node};
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static CUresult access_by_both(CUdeviceptr at, size_t bytes) {
    CUmemAccessDesc access[] = {
        {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    return cuMemSetAccess(at, bytes, access, 2);
}

/* A page of the host's, mapped. */
static CUdeviceptr host_mapped(void) {
    CUdeviceptr at = reserved(PAGE);
    CUmemGenericAllocationHandle handle = host_pages(PAGE, 0);
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(access_by_both(at, PAGE));
    return at;
}

static void both_sides_see_one_page_at_two_addresses(void) {
    begin();
    int can, node;
    OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    OK(cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0));
    IS(can, 1);
    IS(node, 0);
    size_t before, after, total;
    OK(cuMemGetInfo_v2(&before, &total));
    CUdeviceptr at = reserved(2 * PAGE);
    CUmemGenericAllocationHandle handle = host_pages(PAGE, 1);
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    OK(cuMemMap(at + PAGE, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(access_by_both(at, 2 * PAGE));
    OK(cuMemGetInfo_v2(&after, &total));
    IS(after, before); /* the card pays nothing */
    unsigned type;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    IS(type, CU_MEMORYTYPE_HOST);
    memset((void *)(uintptr_t)at, 7, 16);
    IS(bytes_at(at + PAGE)[15], 7);
    OK(cuMemsetD8Async(at, 9, 16, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(bytes_at(at + PAGE)[15], 9);
    unmapped(at, 2 * PAGE);
    end();
}

/* Unmapping makes room as long as no more was ever asked for. */
static void a_page_bears_so_many_mappings_and_none_once_one_more_was_asked_for(void) {
    enum { MOST = 127 };
    begin();
    CUdeviceptr at = reserved((MOST + 1) * PAGE), last = at + MOST * PAGE;
    CUmemGenericAllocationHandle handle = host_pages(PAGE, 0);
    for (int i = 0; i < MOST; i++) {
        OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
        OK(access_by_both(at + i * PAGE, PAGE));
    }
    for (int i = 0; i < 2 * MOST; i++) {
        OK(cuMemUnmap(at, PAGE));
        OK(cuMemMap(at, PAGE, 0, handle, 0));
        OK(access_by_both(at, PAGE));
    }
    OK(cuMemMap(last, PAGE, 0, handle, 0));
    IS(access_by_both(last, PAGE), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(at, (MOST + 1) * PAGE));
    OK(cuMemMap(at, PAGE, 0, handle, 0));
    IS(access_by_both(at, PAGE), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(at, PAGE));
    OK(cuMemAddressFree(at, (MOST + 1) * PAGE));
    end();
}

/* It may be unmapped only when the work that uses it was seen to be over, as any page. */
static void a_copy_reads_it_when_it_runs(void) {
    begin();
    struct gate gate = GATE;
    CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
    CUdeviceptr at = host_mapped(), there = mapped(PAGE);
    memset((void *)(uintptr_t)at, 1, 16);
    OK(cuLaunchHostFunc(stream, gate_work, &gate));
    OK(cuMemcpyHtoDAsync_v2(there, (void *)(uintptr_t)at, 16, stream));
    memset((void *)(uintptr_t)at, 2, 16); /* the hazard: the copy has not been done */
    gate_open(&gate);
    OK(cuStreamSynchronize(stream));
    IS(bytes_at(there)[0], 2);
    OK(cuStreamDestroy_v2(stream));
    unmapped(at, PAGE);
    unmapped(there, PAGE);
    end();
}

static void work_a_while(void *done) {
    usleep(20000);
    *(volatile int *)done = 1;
}

/* It waits for what is queued before it; by way of a device nothing does. */
static void a_copy_within_it_is_made_before_the_call_returns(void) {
    begin();
    struct gate gate = GATE;
    CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
    CUdeviceptr at = host_mapped(), there = mapped(PAGE);
    char *pinned = NULL;
    OK(cuMemHostAlloc((void **)&pinned, 64, 0));
    strcpy(pinned, "first");
    int done = 0;
    OK(cuLaunchHostFunc(stream, work_a_while, &done));
    OK(cuMemcpyHtoDAsync_v2(at, pinned, 16, stream));
    IS(done, 1);
    OK(cuStreamQuery(stream));
    CHECK(strcmp((const char *)bytes_at(at), "first") == 0);
    OK(cuLaunchHostFunc(stream, gate_work, &gate));
    OK(cuMemcpyHtoDAsync_v2(there, pinned, 16, stream));
    OK(cuMemcpyDtoHAsync_v2((void *)(uintptr_t)(at + 64), there, 16, stream));
    IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    OK(cuStreamSynchronize(stream));
    CHECK(strcmp((const char *)bytes_at(at + 64), "first") == 0);
    OK(cuMemFreeHost(pinned));
    OK(cuStreamDestroy_v2(stream));
    unmapped(at, PAGE);
    unmapped(there, PAGE);
    end();
}

static void a_fill_over_two_pages_needs_the_host_first_on_the_list(void) {
    begin();
    CUdeviceptr at = reserved(2 * PAGE);
    for (int i = 0; i < 2; i++) {
        CUmemGenericAllocationHandle handle = host_pages(PAGE, 0);
        OK(cuMemMap(at + i * PAGE, PAGE, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    CUmemAccessDesc access[] = {
        {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
    };
    OK(access_by_both(at, 2 * PAGE));
    OK(cuMemsetD8Async(at, 1, PAGE, NULL));
    IS(cuMemsetD8Async(at, 1, PAGE + 1, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemsetD32Async(at + PAGE - 4, 1, 2, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(at, 2 * PAGE, access, 2));
    OK(cuMemsetD8Async(at, 1, 2 * PAGE, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(bytes_at(at)[2 * PAGE - 1], 1);
    unmapped(at, 2 * PAGE);
    end();
}

static void unmapped_too_early(void) {
    begin();
    struct gate gate = GATE;
    CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
    CUdeviceptr at = host_mapped(), there = mapped(PAGE);
    OK(cuLaunchHostFunc(stream, gate_work, &gate));
    OK(cuMemcpyHtoDAsync_v2(there, (void *)(uintptr_t)at, 16, stream));
    OK(cuMemUnmap(at, PAGE));
}

static void what_is_refused(void) {
    begin();
    CUmemAllocationProp prop = pinned_on(0);
    CUmemGenericAllocationHandle handle;
    prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 2};
    IS(cuMemCreate(&handle, PAGE, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    IS(cuMemCreate(&handle, PAGE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    CUdeviceptr at = mapped(PAGE);
    IS(access_by_both(at, PAGE), CUDA_ERROR_NOT_SUPPORTED); /* a card's memory for the host */
    unmapped(at, PAGE);
    end();
}

static void an_older_driver_has_none(void) {
    begin();
    int can;
    OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    IS(can, 0);
    CUmemAllocationProp prop = pinned_on(0);
    CUmemGenericAllocationHandle handle;
    prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    IS(cuMemCreate(&handle, PAGE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    end();
}

static const struct trial trials[] = {
    {"both_sides_see_one_page_at_two_addresses", both_sides_see_one_page_at_two_addresses, WELL, NULL, {NULL}},
    {"a_page_bears_so_many_mappings_and_none_once_one_more_was_asked_for",
     a_page_bears_so_many_mappings_and_none_once_one_more_was_asked_for, WELL, NULL, {NULL}},
    {"a_copy_within_it_is_made_before_the_call_returns", a_copy_within_it_is_made_before_the_call_returns, WELL, NULL, {NULL}},
    {"a_copy_reads_it_when_it_runs", a_copy_reads_it_when_it_runs, WELL, NULL, {NULL}},
    {"a_fill_over_two_pages_needs_the_host_first_on_the_list", a_fill_over_two_pages_needs_the_host_first_on_the_list, WELL, NULL,
     {NULL}},
    {"unmapped_too_early", unmapped_too_early, BROKEN, "nobody has seen the work", {NULL}},
    {"what_is_refused", what_is_refused, WELL, NULL, {NULL}},
    {"an_older_driver_has_none", an_older_driver_has_none, WELL, NULL, {"WEIR_STANDIN_VERSION=12010"}},
};
MAIN(trials)
