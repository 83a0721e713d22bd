#include "mappings.h"

#include <sys/mman.h>

#include "calls.h"
#include "streams.h"

struct ranges reservations, mappings;

/* Mappings that somebody has access to. */
static uint64_t accessible;

#define HOST_PAGE ((size_t)4096)

/* ---- reservations ---- */

static void *reserve(size_t bytes, size_t alignment, void *hint) {
    size_t more = bytes + alignment;
    if (more < bytes) {
        return NULL;
    }
    char *at = mmap(hint, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return NULL;
    }
    char *aligned = (char *)(((uintptr_t)at + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > at) {
        munmap(at, (size_t)(aligned - at));
    }
    if (aligned + bytes < at + more) {
        munmap(aligned + bytes, (size_t)(at + more - (aligned + bytes)));
    }
    return aligned;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
    ENTER(cuMemAddressReserve);
    REQUIRE(out != NULL && flags == 0 && bytes > 0 && bytes % HOST_PAGE == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((alignment & (alignment - 1)) == 0 && hint % HOST_PAGE == 0, CUDA_ERROR_INVALID_VALUE);
    if (alignment < settings.granularity) {
        alignment = settings.granularity;
    }
    void *at = reserve(bytes, alignment, (void *)(uintptr_t)hint);
    REQUIRE(at != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    struct reservation *reservation = must_alloc(sizeof *reservation);
    reservation->range = (struct range){(uintptr_t)at, bytes};
    ranges_add(&reservations, &reservation->range);
    *out = reservation->range.at;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
    ENTER(cuMemAddressFree);
    struct reservation *reservation = ranges_with(&reservations, at);
    REQUIRE(reservation != NULL && reservation->range.at == at && reservation->range.bytes == bytes,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(ranges_overlapping(&mappings, at, bytes) == NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(call_refused(&reservation->excused));
    munmap((void *)(uintptr_t)at, bytes);
    ranges_remove(&reservations, &reservation->range);
    free(reservation);
    LEAVE(CUDA_SUCCESS);
}

/* ---- mappings ---- */

/* The mappings that make up a range exactly. Returns their number, and the index of the first; 0: they do not. */
static size_t mappings_in(uintptr_t at, size_t bytes, size_t *first) {
    size_t index = ranges_from(&mappings, at);
    *first = index;
    for (uintptr_t next = at; index < mappings.count && mappings.items[index]->at == next; index++) {
        next += mappings.items[index]->bytes;
        if (next >= at + bytes) {
            return next == at + bytes ? index + 1 - *first : 0;
        }
    }
    return 0;
}

static struct mapping *mapping_at(size_t index) { return (struct mapping *)mappings.items[index]; }

/* Somebody whose queued work may still use this memory would be cut off. */
static void must_be_unused(const struct mapping *mapping, const struct device *device, bool writes_only,
                           const char *what) {
    const struct range *range = &mapping->range;
    const struct stream *stream =
        history_unseen(&mapping->pages->history, range->at, range->bytes, device, writes_only);
    if (stream != NULL) {
        rule_broken("%zu bytes at %p %s, and nobody has seen the work on %s complete that uses them", range->bytes,
                    (void *)range->at, what, stream_name(stream));
    }
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    ENTER(cuMemMap);
    REQUIRE(handle != 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(offset == 0, CUDA_ERROR_NOT_SUPPORTED);
    struct pages *pages = pages_of(handle);
    REQUIRE(bytes > 0 && bytes <= pages->bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(at % settings.granularity == 0 && bytes % settings.granularity == 0, CUDA_ERROR_INVALID_VALUE);
    const struct range *within = ranges_with(&reservations, at);
    REQUIRE(within != NULL && within->at + within->bytes - at >= bytes, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(ranges_overlapping(&mappings, at, bytes) == NULL, CUDA_ERROR_INVALID_VALUE);
    struct mapping *mapping = must_alloc(sizeof *mapping);
    mapping->range = (struct range){at, bytes};
    mapping->pages = pages;
    pages->mappings++;
    ranges_add(&mappings, &mapping->range);
    LEAVE(CUDA_SUCCESS);
}

static int protection(const struct mapping *mapping) {
    int all = 0;
    for (int i = 0; i < PLACES; i++) {
        all |= mapping->access[i];
    }
    return (all & 1 ? PROT_READ : PROT_NONE) | (all & 2 ? PROT_WRITE : 0);
}

/* What a mapping of the host's memory takes of what its pages can bear: one for each that has access, if the host has. */
static unsigned shares(const struct mapping *mapping) {
    unsigned count = 0;
    for (int i = 0; i < PLACES; i++) {
        count += mapping->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    return mapping->access[HOST] != CU_MEM_ACCESS_FLAGS_PROT_NONE ? count : 0;
}

static bool is_accessible(const struct mapping *mapping) { return protection(mapping) != PROT_NONE; }

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    ENTER(cuMemUnmap);
    size_t first, count = mappings_in(at, bytes, &first);
    REQUIRE(count > 0, CUDA_ERROR_INVALID_VALUE);
    bool excused = false;
    CUresult refused = call_refused(&excused);
    for (size_t i = first; i < first + count; i++) {
        mapping_at(i)->excused |= excused;
    }
    TRY(refused);
    for (size_t i = first; i < first + count; i++) {
        must_be_unused(mapping_at(i), NULL, false, "are unmapped");
    }
    if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
        cannot_go_on("unmapping");
    }
    for (; count > 0; count--) {
        struct mapping *mapping = mapping_at(first);
        accessible -= is_accessible(mapping);
        mapping->pages->shares -= shares(mapping);
        pages_unmapped(mapping->pages);
        ranges_remove(&mappings, &mapping->range);
        free(mapping);
    }
    LEAVE(CUDA_SUCCESS);
}

/* ---- access ---- */

static CUresult check_access(const CUmemAccessDesc *access, size_t count, const struct mapping *mapping) {
    for (size_t i = 0; i < count; i++) {
        int place, owner = mapping->pages->device->ordinal;
        CUresult result = place_of(&access[i].location, &place);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (place == HOST && owner != HOST) {
            return CUDA_ERROR_NOT_SUPPORTED; /* a card's memory is no memory of the processor's */
        }
        if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (place != owner && owner != HOST && !settings.peer[place][owner]) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    return CUDA_SUCCESS;
}

static void must_not_cut_off(const struct mapping *mapping, const CUmemAccessDesc *access) {
    int place = HOST;
    place_of(&access->location, &place);
    const struct device *device = device_numbered(place);
    if (device == NULL) {
        return; /* the host's own use is not known here */
    }
    unsigned before = mapping->access[place], after = access->flags;
    if (before & ~after & 1) {
        must_be_unused(mapping, device, false, "lose their access");
    } else if (before & ~after & 2) {
        must_be_unused(mapping, device, true, "become read-only");
    }
}

static bool show(const struct mapping *mapping) {
    const struct range *range = &mapping->range;
    const struct pages *pages = mapping->pages;
    return mmap((void *)range->at, range->bytes, protection(mapping), MAP_SHARED | MAP_FIXED, pages->file,
                pages->offset) != MAP_FAILED;
}

static CUresult set_access(struct mapping *mapping, const CUmemAccessDesc *access, size_t count) {
    struct pages *pages = mapping->pages;
    unsigned char before[PLACES];
    memcpy(before, mapping->access, sizeof before);
    bool was_accessible = is_accessible(mapping);
    unsigned had = shares(mapping);
    for (size_t i = 0; i < count; i++) {
        int place = HOST;
        place_of(&access[i].location, &place);
        mapping->access[place] = (unsigned char)access[i].flags;
        if (place == HOST) {
            mapping->host_late = i > 0;
        }
    }
    bool over = !was_accessible && is_accessible(mapping) && accessible >= settings.mapping_limit;
    pages->spoiled |= pages->shares - had + shares(mapping) > settings.host_shares;
    if (over || pages->spoiled || !show(mapping)) {
        memcpy(mapping->access, before, sizeof before);
        return pages->spoiled ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    accessible += is_accessible(mapping);
    accessible -= was_accessible;
    pages->shares += shares(mapping) - had;
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    ENTER(cuMemSetAccess);
    REQUIRE(access != NULL && count > 0, CUDA_ERROR_INVALID_VALUE);
    size_t first, found = mappings_in(at, bytes, &first);
    REQUIRE(found > 0, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = first; i < first + found; i++) {
        TRY(check_access(access, count, mapping_at(i)));
        for (size_t j = 0; j < count; j++) {
            must_not_cut_off(mapping_at(i), &access[j]);
        }
    }
    for (size_t i = first; i < first + found; i++) {
        /* What came before in the range keeps its access: nothing is promised about a failure. */
        TRY(set_access(mapping_at(i), access, count));
    }
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at) {
    ENTER(cuMemGetAccess);
    REQUIRE(flags != NULL && location != NULL, CUDA_ERROR_INVALID_VALUE);
    int place;
    TRY(place_of(location, &place));
    const struct mapping *mapping = ranges_with(&mappings, at);
    REQUIRE(mapping != NULL, CUDA_ERROR_INVALID_VALUE);
    *flags = mapping->access[place];
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at) {
    ENTER(cuMemRetainAllocationHandle);
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    const struct mapping *mapping = ranges_with(&mappings, (uintptr_t)at);
    REQUIRE(mapping != NULL, CUDA_ERROR_INVALID_VALUE);
    mapping->pages->references++;
    *handle = mapping->pages->handle;
    LEAVE(CUDA_SUCCESS);
}

void mappings_end(void) {
    for (size_t i = 0; i < reservations.count; i++) {
        munmap((void *)reservations.items[i]->at, reservations.items[i]->bytes);
    }
    ranges_end(&mappings);
    ranges_end(&reservations);
}
