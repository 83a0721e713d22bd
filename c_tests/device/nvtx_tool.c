/* See nvtx_tool.h. Names, numbers and structures are those of NVTX 3 (github.com/NVIDIA/NVTX: nvToolsExtMem.h,
 * nvtxDetail/nvtxTypes.h, nvtxDetail/nvtxExtTypes.h). */
#include "nvtx_tool.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The core. */
typedef void (*function)(void);
typedef struct {
    size_t struct_size;
    int (*get_module)(int module, function ***table, unsigned *size);
} callbacks;
typedef struct {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_tool_version)(uint32_t version);
} version_info;
enum { ETID_CALLBACKS = 1, ETID_VERSIONINFO = 3, MODULE_CORE2 = 5, CBID_DOMAIN_CREATE_A = 12 };

/* The memory extension. */
typedef struct {
    size_t id, slots;
    intptr_t *functions;
} segment;
typedef struct {
    uint16_t version, struct_size, module, compat;
    size_t segment_count;
    segment *segments;
    intptr_t (*get_export)(uint32_t);
    const void *info;
} module_info;
typedef struct {
    size_t size;
    const void *ptr;
} virtual_range;
typedef struct {
    uint16_t compat, struct_size;
    uint32_t reserved, usage, type;
    size_t desc_size;
    const void *desc;
    uint32_t category, message_type;
    const char *message;
} heap_desc;
typedef struct {
    uint16_t compat, struct_size;
    uint32_t type;
    void *heap;
    size_t count, desc_size;
    const void *descs;
    void **handles;
} regions_register;
typedef struct {
    uint16_t compat, struct_size;
    uint32_t ref_type;
    size_t count, ref_size;
    const void *const *refs;
} regions_unregister;
enum { COMPAT = 0x0102, SUB_ALLOCATOR = 1, VIRTUAL_ADDRESS = 1, REF_POINTER = 1, MOST_SLOTS = 63 };
enum { HEAP_REGISTER = 0, HEAP_UNREGISTER = 1, REGIONS_REGISTER = 3, REGIONS_UNREGISTER = 5 };

static void broken(const char *rule, uint64_t value) {
    fprintf(stderr, "nvtx tool: %s (%#llx)\n", rule, (unsigned long long)value);
    fflush(stderr);
    abort();
}
#define MUST(holds, value)                                                                                           \
    do {                                                                                                             \
        if (!(holds)) {                                                                                              \
            broken(#holds, (uint64_t)(value));                                                                       \
        }                                                                                                            \
    } while (0)

/* What is registered: ranges in the order of addresses. */
typedef struct {
    nvtx_tool_range *ranges;
    size_t count, room, ever;
} ranges;

static ranges heaps, regions;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char weir_domain;

/* The first range that ends behind an address. */
static size_t place(const ranges *all, uint64_t at) {
    size_t low = 0, high = all->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all->ranges[middle].at + all->ranges[middle].bytes <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void add(ranges *all, uint64_t at, uint64_t bytes) {
    size_t i = place(all, at);
    MUST(bytes > 0, at);
    MUST(i == all->count || all->ranges[i].at >= at + bytes, at);
    if (all->count == all->room) {
        all->room = all->room ? all->room * 2 : 64;
        all->ranges = realloc(all->ranges, all->room * sizeof *all->ranges);
        MUST(all->ranges != NULL, all->room);
    }
    memmove(all->ranges + i + 1, all->ranges + i, (all->count - i) * sizeof *all->ranges);
    all->ranges[i] = (nvtx_tool_range){at, bytes};
    all->count++;
    all->ever++;
}

static void take_out(ranges *all, uint64_t at) {
    size_t i = place(all, at);
    MUST(i < all->count && all->ranges[i].at == at, at);
    all->count--;
    memmove(all->ranges + i, all->ranges + i + 1, (all->count - i) * sizeof *all->ranges);
}

static size_t list(const ranges *all, nvtx_tool_range *out, size_t most) {
    pthread_mutex_lock(&lock);
    size_t count = all->count;
    if (count > 0 && most > 0) {
        memcpy(out, all->ranges, (count < most ? count : most) * sizeof *out);
    }
    pthread_mutex_unlock(&lock);
    return count;
}

size_t nvtx_tool_heaps(nvtx_tool_range *out, size_t most) { return list(&heaps, out, most); }
size_t nvtx_tool_regions(nvtx_tool_range *out, size_t most) { return list(&regions, out, most); }
size_t nvtx_tool_heaps_ever(void) { return heaps.ever; }
size_t nvtx_tool_regions_ever(void) { return regions.ever; }

/* A heap's name is its address. */
static void *heap_register(void *domain, const heap_desc *desc) {
    MUST(domain == &weir_domain || domain == NULL, (uintptr_t)domain);
    MUST(desc->compat == COMPAT && desc->struct_size == sizeof *desc && desc->reserved == 0, desc->struct_size);
    MUST(desc->usage == SUB_ALLOCATOR && desc->type == VIRTUAL_ADDRESS, desc->type);
    MUST(desc->desc_size == sizeof(virtual_range), desc->desc_size);
    MUST(desc->category == 0 && desc->message_type == 0 && desc->message == NULL, desc->message_type);
    const virtual_range *range = desc->desc;
    const char *accept = getenv("WEIR_TEST_TOOL_HEAPS");
    if (accept != NULL && strcmp(accept, "0") == 0) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    add(&heaps, (uintptr_t)range->ptr, range->size);
    pthread_mutex_unlock(&lock);
    return (void *)range->ptr;
}

static void heap_unregister(void *domain, void *heap) {
    MUST(domain == &weir_domain || domain == NULL, (uintptr_t)domain);
    pthread_mutex_lock(&lock);
    size_t i = place(&heaps, (uintptr_t)heap);
    MUST(i < heaps.count && heaps.ranges[i].at == (uintptr_t)heap, (uintptr_t)heap);
    size_t first = place(&regions, (uintptr_t)heap);
    MUST(first == regions.count || regions.ranges[first].at >= heaps.ranges[i].at + heaps.ranges[i].bytes,
         regions.ranges[first].at);
    take_out(&heaps, (uintptr_t)heap);
    pthread_mutex_unlock(&lock);
}

static void begin_regions(void *domain, const regions_register *desc) {
    MUST(domain == &weir_domain || domain == NULL, (uintptr_t)domain);
    MUST(desc->compat == COMPAT && desc->struct_size == sizeof *desc, desc->struct_size);
    MUST(desc->type == VIRTUAL_ADDRESS && desc->desc_size == sizeof(virtual_range), desc->desc_size);
    MUST(desc->handles == NULL && desc->count > 0, desc->count);
    const virtual_range *each = desc->descs;
    pthread_mutex_lock(&lock);
    size_t i = place(&heaps, (uintptr_t)desc->heap);
    MUST(i < heaps.count && heaps.ranges[i].at == (uintptr_t)desc->heap, (uintptr_t)desc->heap);
    nvtx_tool_range heap = heaps.ranges[i];
    for (size_t n = 0; n < desc->count; n++) {
        uint64_t at = (uintptr_t)each[n].ptr;
        MUST(at >= heap.at && at + each[n].size <= heap.at + heap.bytes, at);
        add(&regions, at, each[n].size);
    }
    pthread_mutex_unlock(&lock);
}

static void end_regions(void *domain, const regions_unregister *desc) {
    MUST(domain == &weir_domain || domain == NULL, (uintptr_t)domain);
    MUST(desc->compat == COMPAT && desc->struct_size == sizeof *desc, desc->struct_size);
    MUST(desc->ref_type == REF_POINTER && desc->ref_size == sizeof(void *), desc->ref_type);
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < desc->count; n++) {
        take_out(&regions, (uintptr_t)desc->refs[n]);
    }
    pthread_mutex_unlock(&lock);
}

static void *create_domain(const char *name) {
    MUST(strcmp(name, "weir") == 0, 0);
    return &weir_domain;
}

static const char *told(void) {
    const char *how = getenv("WEIR_TEST_TOOL");
    return how == NULL ? "" : how;
}

int InitializeInjectionNvtx2(const void *(*tables)(uint32_t)) {
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    if (strcmp(told(), "no_core") == 0) {
        return 0;
    }
    const callbacks *calls = tables(ETID_CALLBACKS);
    const version_info *version = tables(ETID_VERSIONINFO);
    MUST(calls->struct_size == sizeof *calls && version->struct_size == sizeof *version, calls->struct_size);
    MUST(version->version == 3, version->version);
    version->set_tool_version(3);
    MUST(tables(2) == NULL && calls->get_module(0, NULL, NULL) == 0 && calls->get_module(7, NULL, NULL) == 0, 0);
    for (int module = 1; module <= 6; module++) {
        function **table = NULL;
        unsigned size = 0;
        MUST(calls->get_module(module, &table, &size) == 1 && size == sizes[module], size);
        MUST(table[0] == NULL && table[size] == NULL, module);
        for (unsigned i = 1; i < size; i++) {
            MUST(table[i] != NULL && *table[i] == NULL, i);
        }
        if (module == MODULE_CORE2) {
            *table[CBID_DOMAIN_CREATE_A] = (function)create_domain;
        }
    }
    return 1;
}

int InitializeInjectionNvtxExtension(module_info *module) {
    if (strcmp(told(), "refuse") == 0) {
        return 0;
    }
    MUST(module->version == 3 && module->struct_size == sizeof *module, module->struct_size);
    MUST(module->module == 1 && module->compat == COMPAT && module->segment_count == 1, module->module);
    segment *only = module->segments;
    MUST(only->id == 1 && only->slots == MOST_SLOTS, only->slots);
    for (size_t i = 0; i < only->slots; i++) {
        MUST(only->functions[i] == 0, i);
    }
    only->functions[HEAP_REGISTER] = (intptr_t)heap_register;
    only->functions[HEAP_UNREGISTER] = (intptr_t)heap_unregister;
    if (strcmp(told(), "part") != 0) {
        only->functions[REGIONS_REGISTER] = (intptr_t)begin_regions;
        only->functions[REGIONS_UNREGISTER] = (intptr_t)end_regions;
    }
    return 1;
}

__attribute__((destructor)) static void forget(void) {
    free(heaps.ranges);
    free(regions.ranges);
    heaps = regions = (ranges){0};
}
