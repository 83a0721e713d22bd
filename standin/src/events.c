#include "events.h"

#include <unistd.h>

#include "calls.h"
#include "captures.h"

struct handles events = {.kind = "event"};

void event_clear(struct event *event) {
    point_end(&event->point);
    clock_end(&event->clock);
    stamp_release(event->stamp);
    event->stamp = NULL;
    free(event->nodes);
    event->nodes = NULL;
    event->node_count = 0;
    event->capture = 0;
}

static void event_free(struct event *event) {
    event_clear(event);
    ipc_event_release(event->ipc);
    free(event);
}

CUresult event_named(CUevent handle, struct event **event) {
    if (handle == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = handle_look_up(&events, handle, (void **)event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return (*event)->context->device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

struct event *event_new(struct context *context, unsigned flags) {
    struct event *event = must_alloc(sizeof *event);
    event->context = context;
    event->flags = flags;
    event->handle = handle_new(&events, event);
    return event;
}

/* Is all that was recorded done? */
static bool is_past(const struct event *event) {
    return event->opened ? ipc_event_is_done(event->ipc, ipc_event_recorded(event->ipc)) : point_past(&event->point);
}

CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    ENTER(cuEventCreate);
    struct context *context;
    REQUIRE(out != NULL && flags <= 7, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!(flags & CU_EVENT_INTERPROCESS) || (flags & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_VALUE);
    TRY(context_current(&context));
    struct event *event = event_new(context, flags);
    if (flags & CU_EVENT_INTERPROCESS) {
        event->ipc = ipc_event_new();
    }
    *out = event->handle;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle) {
    ENTER(cuEventDestroy_v2);
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_HANDLE);
    struct event *event;
    TRY(handle_look_up(&events, handle, (void **)&event));
    TRY(call_refused(&event->excused));
    bool lost = event->context->device->lost;
    handle_free(&events, handle);
    event_free(event);
    LEAVE(lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTER(cuEventRecord);
    struct event *event;
    struct stream *stream;
    TRY(event_named(handle, &event));
    TRY(stream_in_use(stream_handle, &stream));
    REQUIRE(stream->context == event->context, CUDA_ERROR_INVALID_HANDLE);
    bool done = false;
    TRY(capture_record(stream, event, &done));
    REQUIRE(!done, CUDA_SUCCESS);
    struct stamp *stamp = NULL;
    if (!(event->flags & CU_EVENT_DISABLE_TIMING)) {
        stamp = must_alloc(sizeof *stamp);
        stamp->references = 2;
    }
    event_clear(event);
    struct work *work = work_new();
    work->stamp = event->stamp = stamp;
    if (event->ipc != NULL) {
        work->tells = ipc_event_share(event->ipc);
        work->told = ipc_event_record(event->ipc);
    }
    stream_queue(stream, work);
    event->point = point_of(stream);
    event->clock = clock_copy(&stream->clock);
    LEAVE(CUDA_SUCCESS);
}

/* An event in a capture is not scheduled: there is nothing to ask or wait for. */
static CUresult refuse_captured(const struct event *event) {
    if (event->capture == 0) {
        return CUDA_SUCCESS;
    }
    struct capture *capture = capture_numbered(event->capture);
    if (capture != NULL) {
        capture_invalidate(capture);
    }
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult cuEventQuery(CUevent handle) {
    ENTER(cuEventQuery);
    struct event *event;
    TRY(event_named(handle, &event));
    TRY(refuse_captured(event));
    TRY(captures_refuse_unsafe());
    REQUIRE(is_past(event), CUDA_ERROR_NOT_READY);
    if (!event->opened) {
        clock_observe(&event->clock, event->point.stream, event->point.sequence);
    }
    LEAVE(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent handle) {
    ENTER(cuEventSynchronize);
    struct event *event;
    TRY(event_named(handle, &event));
    TRY(refuse_captured(event));
    TRY(captures_refuse_unsafe());
    /* The event may be recorded again, or go, while this waits. */
    const struct device *device = event->context->device;
    if (event->opened) {
        struct ipc_event *ipc = ipc_event_share(event->ipc);
        uint64_t number = ipc_event_recorded(ipc);
        while (!ipc_event_is_done(ipc, number)) {
            books_unlock();
            usleep(200);
            books_lock();
        }
        ipc_event_release(ipc);
        LEAVE(device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
    }
    struct point point = point_copy(&event->point);
    struct clock clock = clock_copy(&event->clock);
    point_wait(&point);
    clock_observe(&clock, point.stream, point.sequence);
    point_end(&point);
    clock_end(&clock);
    LEAVE(device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    struct event *start, *end;
    CUresult result = milliseconds == NULL ? CUDA_ERROR_INVALID_VALUE : event_named(start_handle, &start);
    if (result == CUDA_SUCCESS) {
        result = event_named(end_handle, &end);
    }
    if (result == CUDA_SUCCESS) {
        result = refuse_captured(start);
    }
    if (result == CUDA_SUCCESS) {
        result = refuse_captured(end);
    }
    if (result == CUDA_SUCCESS) {
        result = captures_refuse_unsafe();
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (start->stamp == NULL || end->stamp == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!point_past(&start->point) || !point_past(&end->point)) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = (float)((double)((int64_t)(end->stamp->nanoseconds - start->stamp->nanoseconds)) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime);
    LEAVE(elapsed(milliseconds, start, end));
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime_v2);
    LEAVE(elapsed(milliseconds, start, end));
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
    ENTER(cuStreamWaitEvent);
    struct event *event;
    struct stream *stream;
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_in_use(stream_handle, &stream));
    TRY(event_named(handle, &event));
    bool done = false;
    TRY(capture_wait(stream, event, &done));
    REQUIRE(!done, CUDA_SUCCESS);
    if (event->opened) {
        REQUIRE(!is_past(event), CUDA_SUCCESS);
        struct work *work = work_new();
        work->awaits = ipc_event_share(event->ipc);
        work->awaited = ipc_event_recorded(event->ipc);
        stream_queue(stream, work);
        LEAVE(CUDA_SUCCESS);
    }
    clock_add(&stream->clock, &event->point);
    clock_merge(&stream->clock, &event->clock);
    REQUIRE(!point_past(&event->point), CUDA_SUCCESS);
    struct work *work = work_new();
    work_add_wait(work, &event->point);
    stream_queue(stream, work);
    LEAVE(CUDA_SUCCESS);
}

void standin_capture_event(CUevent handle) {
    driver_prepare();
    books_lock();
    struct event *event = handle_object(&events, handle);
    event->for_captures = true;
    books_unlock();
}

/* A primary context comes back, and then a driver crashes on an event of before (580.159.04). */
static void drop(void *object, void *data) {
    struct event *event = object;
    const struct context *context = data;
    if (event->context == context) {
        handle_bury(&events, event->handle, context->primary ? &context->alive : NULL);
        event_free(event);
    }
}

void events_drop(struct context *context) { handles_each(&events, drop, context); }

static void forget(void *object, void *data) {
    (void)data;
    event_free(object);
}

void events_end(void) {
    handles_each(&events, forget, NULL);
    handles_end(&events);
}
