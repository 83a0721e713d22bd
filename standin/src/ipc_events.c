#include "ipc_events.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"
#include "events.h"

/* Records that are told apart: a test that has more in flight at once would be told wrong ones. */
#define RING 1024
#define MAGIC UINT64_C(0x746e657665)

struct ipc_page {
    _Atomic uint64_t recorded;
    _Atomic uint64_t done[RING];
};

struct ipc_event {
    unsigned references;
    int file;
    struct ipc_page *page;
};

/* What CUipcEventHandle has: any process of the same user can open the file by it. */
struct ipc_name {
    uint64_t magic, process, inode;
    int file, device;
};

static struct ipc_event *ipc_event_of(int file) {
    struct ipc_event *event = must_alloc(sizeof *event);
    event->references = 1;
    event->file = file;
    event->page = mmap(NULL, sizeof *event->page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (event->page == MAP_FAILED) {
        cannot_go_on("no page for an event");
    }
    return event;
}

struct ipc_event *ipc_event_new(void) {
    int file = memfd_create("weir-standin-event", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(struct ipc_page)) != 0) {
        cannot_go_on("no file for an event");
    }
    return ipc_event_of(file);
}

struct ipc_event *ipc_event_share(struct ipc_event *event) {
    event->references++;
    return event;
}

void ipc_event_release(struct ipc_event *event) {
    if (event != NULL && --event->references == 0) {
        munmap(event->page, sizeof *event->page);
        close(event->file);
        free(event);
    }
}

uint64_t ipc_event_record(struct ipc_event *event) {
    uint64_t number = ++event->page->recorded;
    if (number > RING && event->page->done[number % RING] != number - RING) {
        rule_broken("an event for other processes was recorded %d times, and none of that is done", RING);
    }
    return number;
}

uint64_t ipc_event_recorded(const struct ipc_event *event) { return event->page->recorded; }

void ipc_event_done(struct ipc_event *event, uint64_t number) { event->page->done[number % RING] = number; }

bool ipc_event_is_done(const struct ipc_event *event, uint64_t number) {
    return event->page->done[number % RING] >= number;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event_handle) {
    ENTER(cuIpcGetEventHandle);
    struct event *event;
    struct stat status;
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(event_named(event_handle, &event));
    REQUIRE(event->ipc != NULL && !event->opened, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(fstat(event->ipc->file, &status) == 0, CUDA_ERROR_OPERATING_SYSTEM);
    struct ipc_name name = {MAGIC, (uint64_t)getpid(), status.st_ino, event->ipc->file,
                            event->context->device->ordinal};
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &name, sizeof name);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle) {
    ENTER(cuIpcOpenEventHandle);
    struct ipc_name name;
    struct context *context;
    struct stat status;
    char path[64];
    REQUIRE(out != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(context_current(&context));
    memcpy(&name, handle.reserved, sizeof name);
    REQUIRE(name.magic == MAGIC, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(name.device == context->device->ordinal, CUDA_ERROR_INVALID_VALUE);
    snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)name.process, name.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(file >= 0, CUDA_ERROR_MAP_FAILED);
    if (fstat(file, &status) != 0 || status.st_ino != name.inode) {
        close(file);
        LEAVE(CUDA_ERROR_MAP_FAILED);
    }
    struct event *event = event_new(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    event->ipc = ipc_event_of(file);
    event->opened = true;
    *out = event->handle;
    LEAVE(CUDA_SUCCESS);
}
