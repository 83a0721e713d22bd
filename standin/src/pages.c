#include "pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"
#include "devices.h"

/* The last part of the name of a file of its own: what an importer in another process must know. */
#define OWN_FILE "weir-standin-pages-of-device-"

struct handles pages_handles = {.kind = "memory handle"};

static struct shared_file {
    bool open;
    int file;
    off_t next;
} shared_files[PLACES];

struct pages *pages_of(CUmemGenericAllocationHandle handle) {
    struct pages *pages = handle_object(&pages_handles, (void *)(uintptr_t)handle);
    if (pages->references == 0) {
        rule_broken("memory handle %#llx has been released", handle);
    }
    return pages;
}

static void pages_free(struct pages *pages) {
    if (pages->own_file) {
        close(pages->file);
    } else {
        fallocate(pages->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pages->offset, (off_t)pages->bytes);
    }
    if (!pages->imported) {
        device_give(pages->device, pages->bytes);
    }
    handle_free(&pages_handles, (void *)(uintptr_t)pages->handle);
    history_end(&pages->history);
    free(pages);
}

void pages_unmapped(struct pages *pages) {
    if (--pages->mappings == 0 && pages->references == 0) {
        pages_free(pages);
    }
}

/* Offsets are never used again: a sparse file has more than any test needs. */
static void take_part_of_file(struct pages *pages) {
    struct shared_file *shared = &shared_files[pages->device->ordinal];
    if (!shared->open) {
        shared->file = memfd_create("weir-standin-device", MFD_CLOEXEC);
        if (shared->file < 0 || ftruncate(shared->file, (off_t)1 << 60) != 0) {
            cannot_go_on("no file for a device's memory");
        }
        shared->open = true;
    }
    pages->file = shared->file;
    pages->offset = shared->next;
    shared->next += (off_t)pages->bytes;
}

static CUresult take_file(struct pages *pages) {
    char name[64];
    snprintf(name, sizeof name, OWN_FILE "%d", pages->device->ordinal);
    pages->file = memfd_create(name, MFD_CLOEXEC);
    if (pages->file < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (ftruncate(pages->file, (off_t)pages->bytes) != 0) {
        close(pages->file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pages->own_file = true;
    return CUDA_SUCCESS;
}

CUresult pages_check_prop(const CUmemAllocationProp *prop) {
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->allocFlags.compressionType > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int place;
    CUresult result = place_of(&prop->location, &place);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return ((int)prop->requestedHandleTypes & ~known) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUmemGenericAllocationHandle pages_keep(const struct pages *made) {
    struct pages *pages = must_alloc(sizeof *pages);
    *pages = *made;
    pages->references = 1;
    pages->handle = (CUmemGenericAllocationHandle)(uintptr_t)handle_new(&pages_handles, pages);
    return pages->handle;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    ENTER(cuMemCreate);
    REQUIRE(handle != NULL && flags == 0 && bytes > 0 && bytes % settings.granularity == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(pages_check_prop(prop));
    bool on_host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    struct pages pages = {.bytes = bytes, .prop = *prop};
    pages.device = on_host ? device_host() : device_numbered(prop->location.id);
    TRY(device_take(pages.device, bytes));
    if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE) {
        take_part_of_file(&pages);
    } else {
        CUresult result = take_file(&pages);
        if (result != CUDA_SUCCESS) {
            device_give(pages.device, bytes);
            LEAVE(result);
        }
    }
    *handle = pages_keep(&pages);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(cuMemRelease);
    REQUIRE(handle != 0, CUDA_ERROR_INVALID_VALUE);
    struct pages *pages = pages_of(handle);
    TRY(call_refused(&pages->excused));
    if (--pages->references == 0 && pages->mappings == 0) {
        pages_free(pages);
    }
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    ENTER(cuMemGetAllocationGranularity);
    REQUIRE(bytes != NULL && (unsigned)option <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, CUDA_ERROR_INVALID_VALUE);
    TRY(pages_check_prop(prop));
    *bytes = settings.granularity;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    ENTER(cuMemGetAllocationPropertiesFromHandle);
    REQUIRE(prop != NULL && handle != 0, CUDA_ERROR_INVALID_VALUE);
    *prop = pages_of(handle)->prop;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    ENTER(cuMemExportToShareableHandle);
    REQUIRE(shareable != NULL && handle != 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
    const struct pages *pages = pages_of(handle);
    REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE((pages->prop.requestedHandleTypes & type) != 0, CUDA_ERROR_INVALID_VALUE);
    int file = fcntl(pages->file, F_DUPFD_CLOEXEC, 0);
    REQUIRE(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)shareable = file;
    LEAVE(CUDA_SUCCESS);
}

/* The device of a file that a stand-in exported, in this process or another; -1 if it is none of those. */
static int device_of_file(int file) {
    char path[32], name[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length < 0) {
        return -1;
    }
    name[length] = '\0';
    const char *at = strstr(name, OWN_FILE);
    return at == NULL ? -1 : atoi(at + strlen(OWN_FILE));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
    ENTER(cuMemImportFromShareableHandle);
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    int given = (int)(intptr_t)shareable;
    struct stat status;
    struct device *device = device_numbered(device_of_file(given));
    REQUIRE(device != NULL && fstat(given, &status) == 0, CUDA_ERROR_INVALID_VALUE);
    struct pages pages = {.device = device, .bytes = (size_t)status.st_size, .own_file = true, .imported = true};
    pages.file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    REQUIRE(pages.file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    pages.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    pages.prop.requestedHandleTypes = type;
    pages.prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    *handle = pages_keep(&pages);
    LEAVE(CUDA_SUCCESS);
}

static void forget(void *object, void *data) {
    struct pages *pages = object;
    (void)data;
    if (pages->own_file) {
        close(pages->file);
    }
    history_end(&pages->history);
    free(pages);
}

void pages_end(void) {
    handles_each(&pages_handles, forget, NULL);
    handles_end(&pages_handles);
    for (int i = 0; i < PLACES; i++) {
        if (shared_files[i].open) {
            close(shared_files[i].file);
        }
    }
}
