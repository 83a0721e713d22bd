#include "streams.h"

#include "calls.h"
#include "captures.h"
#include "graphs.h"
#include "hazards.h"
#include "worker.h"

struct handles streams = {.kind = "stream"};
struct stream *stream_list;

static uint64_t last_id;
static pthread_key_t thread_end;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;

void stream_release(struct stream *stream) {
    if (--stream->references > 0) {
        return;
    }
    pthread_cond_destroy(&stream->arrived);
    pthread_cond_destroy(&stream->advanced);
    clock_end(&stream->clock);
    free(stream->deps);
    free(stream->declared);
    free(stream);
}

void stamp_release(struct stamp *stamp) {
    if (stamp != NULL && --stamp->references == 0) {
        free(stamp);
    }
}

static struct stream *stream_new(struct context *context, enum stream_kind kind, bool blocking) {
    struct stream *stream = must_alloc(sizeof *stream);
    stream->context = context;
    stream->device = context->device;
    stream->kind = kind;
    stream->blocking = blocking;
    stream->id = ++last_id;
    stream->references = 1;
    pthread_cond_init(&stream->arrived, NULL);
    pthread_cond_init(&stream->advanced, NULL);
    stream->next = stream_list;
    stream_list = stream;
    return stream;
}

struct stream *stream_legacy(struct context *context) {
    if (context->legacy == NULL) {
        context->legacy = stream_new(context, STREAM_LEGACY, false);
    }
    return context->legacy;
}

/* A thread's streams end with it, behind their work. */
static void end_of_thread(void *data) {
    (void)data;
    books_lock();
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->kind == STREAM_OF_THREAD && stream->thread == this_thread.id && !stream->ended) {
            worker_dismiss(stream);
        }
    }
    books_unlock();
}

static void make_thread_end(void) {
    if (pthread_key_create(&thread_end, end_of_thread) != 0) {
        cannot_go_on("no key for the ends of threads");
    }
}

static struct stream *stream_of_thread(struct context *context) {
    uint64_t thread = thread_id();
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->kind == STREAM_OF_THREAD && stream->thread == thread && stream->context == context &&
            !stream->ended) {
            return stream;
        }
    }
    pthread_once(&thread_end_once, make_thread_end);
    pthread_setspecific(thread_end, &this_thread);
    struct stream *stream = stream_new(context, STREAM_OF_THREAD, true);
    stream->thread = thread;
    return stream;
}

CUresult stream_named(CUstream handle, struct stream **stream) {
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        return handle_look_up(&streams, handle, (void **)stream);
    }
    struct context *context;
    CUresult result = context_current(&context);
    if (result == CUDA_SUCCESS) {
        *stream = handle == CU_STREAM_PER_THREAD ? stream_of_thread(context) : stream_legacy(context);
    }
    return result;
}

CUresult stream_in_use(CUstream handle, struct stream **stream) {
    CUresult result = stream_named(handle, stream);
    if (result == CUDA_SUCCESS && (*stream)->kind == STREAM_LEGACY) {
        result = captures_refuse_legacy((*stream)->context, true);
    }
    if (result == CUDA_SUCCESS && (*stream)->device->lost) {
        result = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return result;
}

const char *stream_name(const struct stream *stream) {
    static _Thread_local char name[64];
    const char *destroyed = stream->ended ? ", destroyed" : "";
    if (stream->kind == STREAM_CREATED) {
        snprintf(name, sizeof name, "stream %llu (%p%s)", (unsigned long long)stream->id, (void *)stream->handle,
                 destroyed);
    } else {
        snprintf(name, sizeof name, "the %s stream", stream->kind == STREAM_LEGACY ? "legacy" : "per-thread");
    }
    return name;
}

/* ---- the queue ---- */

struct work *work_new(void) { return must_alloc(sizeof(struct work)); }

void work_add_wait(struct work *work, const struct point *point) {
    if (point_past(point)) {
        return;
    }
    work->waits = must_grow(work->waits, (work->wait_count + 1) * sizeof *work->waits);
    work->waits[work->wait_count++] = point_copy(point);
}

/* Orders a stream's next work behind all that another one has. */
static void come_after(struct stream *stream, struct work *work, struct stream *other) {
    struct point point = {other, other->queued};
    work_add_wait(work, &point);
    clock_add(&stream->clock, &point);
    clock_merge(&stream->clock, &other->clock);
}

/* The legacy stream's work comes after all that blocking streams have, and theirs after the legacy stream's. */
static void come_after_implied(struct stream *stream, struct work *work) {
    if (stream->blocking && stream->context->legacy != NULL) {
        come_after(stream, work, stream->context->legacy);
    }
    if (stream->kind != STREAM_LEGACY) {
        return;
    }
    clock_merge(&stream->clock, &stream->context->gone_blocking);
    for (struct stream *other = stream_list; other != NULL; other = other->next) {
        if (other->context == stream->context && other->blocking) {
            come_after(stream, work, other);
        }
    }
}

/* May the program learn from this work itself that it is done? It can look at its own memory. */
static bool tells(const struct work *work) {
    return work->exec != NULL || work->operation.kind == DO_CALL || operation_writes_host(&work->operation);
}

void stream_queue(struct stream *stream, struct work *work) {
    come_after_implied(stream, work);
    if (tells(work)) {
        work->before = clock_copy(&stream->clock);
    }
    work->sequence = ++stream->queued;
    if (work->exec != NULL) {
        exec_queued(work->exec, stream);
    } else {
        hazards_queued(stream, &work->operation);
    }
    if (stream->last != NULL) {
        stream->last->next = work;
    } else {
        stream->first = work;
    }
    stream->last = work;
    worker_wake(stream);
}

void stream_hand_over(struct stream *stream) {
    struct point point = {stream, stream->queued};
    if (stream->context != NULL) {
        clock_add(&stream->context->gone, &point);
        clock_merge(&stream->context->gone, &stream->clock);
    }
    if (stream->context != NULL && stream->blocking) {
        clock_add(&stream->context->gone_blocking, &point);
        clock_merge(&stream->context->gone_blocking, &stream->clock);
    }
    clock_end(&stream->clock);
}

/* ---- all of a context's ---- */

/* Does a synchronisation of `stream` (NULL: of the whole context) cover this one? */
static bool is_covered(const struct context *context, const struct stream *stream, const struct stream *other) {
    if (stream == NULL) {
        return other->context == context;
    }
    return other == stream || (stream->kind == STREAM_LEGACY && other->context == context && other->blocking);
}

/* Streams that are gone have no work left, but it was not seen until now. */
static void observe_gone(const struct context *context, const struct stream *stream) {
    if (stream == NULL) {
        clock_observe(&context->gone, NULL, 0);
    } else if (stream->kind == STREAM_LEGACY) {
        clock_observe(&context->gone_blocking, NULL, 0);
    }
}

static void wait_for_covered(const struct context *context, const struct stream *stream) {
    observe_gone(context, stream);
    struct covered {
        struct point point;
        struct clock clock;
    } *covered = NULL;
    size_t count = 0;
    for (struct stream *other = stream_list; other != NULL; other = other->next) {
        if (is_covered(context, stream, other)) {
            covered = must_grow(covered, (count + 1) * sizeof *covered);
            covered[count++] = (struct covered){point_of(other), clock_copy(&other->clock)};
        }
    }
    for (size_t i = 0; i < count; i++) {
        point_wait(&covered[i].point);
        clock_observe(&covered[i].clock, covered[i].point.stream, covered[i].point.sequence);
        point_end(&covered[i].point);
        clock_end(&covered[i].clock);
    }
    free(covered);
}

void stream_wait(struct stream *stream) { wait_for_covered(stream->context, stream); }

void streams_drain(struct context *context) { wait_for_covered(context, NULL); }

void streams_drop(struct context *context) {
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->context == context) {
            if (stream->handle != NULL) {
                handle_bury(&streams, stream->handle, NULL);
                stream->handle = NULL;
            }
            if (!stream->ended) {
                worker_dismiss(stream);
            }
            stream->context = NULL;
            stream->observed = stream->queued;
        }
    }
    context->legacy = NULL;
}

void streams_end(void) {
    books_lock();
    workers_abandon();
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (!stream->ended) {
            worker_dismiss(stream);
        }
    }
    books_unlock();
    /* No worker goes away while it is waited for here: all that are left are in the list, which only
     * workers_reap shortens. */
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        if (stream->has_worker) {
            pthread_join(stream->worker, NULL);
            stream->has_worker = false;
        }
        stream->context = NULL; /* nothing comes after it */
    }
    streams_forget_workers();
    workers_reap();
    handles_end(&streams);
}

void streams_forget_workers(void) {
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        stream->has_worker = false;
        stream->exited = true;
        /* They may have waiters that are not here: destroying them would wait for those. */
        pthread_cond_init(&stream->arrived, NULL);
        pthread_cond_init(&stream->advanced, NULL);
        while (stream->first != NULL) {
            struct work *next = stream->first->next;
            work_end(stream->first);
            stream->first = next;
        }
    }
}

static CUresult create(CUstream *out, unsigned int flags) {
    struct context *context;
    if (out == NULL || flags > CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    workers_reap();
    struct stream *stream = stream_new(context, STREAM_CREATED, !(flags & CU_STREAM_NON_BLOCKING));
    stream->handle = handle_new(&streams, stream);
    *out = stream->handle;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    ENTER(cuStreamCreate);
    LEAVE(create(stream, flags));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    ENTER(cuStreamCreateWithPriority);
    /* Out of range is clamped, and no order here depends on it. */
    (void)priority;
    LEAVE(create(stream, flags));
}

CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER(cuStreamDestroy_v2);
    REQUIRE(handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD, CUDA_ERROR_INVALID_HANDLE);
    struct stream *stream;
    TRY(stream_named(handle, &stream));
    TRY(call_refused(&stream->excused));
    captures_leave(stream);
    bool lost = stream->device->lost;
    handle_free(&streams, handle);
    stream->handle = NULL;
    worker_dismiss(stream);
    workers_reap();
    LEAVE(lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream handle) {
    ENTER(cuStreamQuery);
    struct stream *stream;
    TRY(stream_in_use(handle, &stream));
    TRY(captures_refuse_stream(stream));
    for (const struct stream *other = stream_list; other != NULL; other = other->next) {
        REQUIRE(!is_covered(stream->context, stream, other) || other->completed == other->queued, CUDA_ERROR_NOT_READY);
    }
    stream_wait(stream); /* which has nothing to wait for */
    LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle) {
    ENTER(cuStreamSynchronize);
    struct stream *stream;
    TRY(stream_in_use(handle, &stream));
    TRY(captures_refuse_stream(stream));
    struct device *device = stream->device;
    stream_wait(stream);
    LEAVE(device->lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags) {
    ENTER(cuStreamGetFlags);
    struct stream *stream;
    REQUIRE(flags != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_in_use(handle, &stream));
    TRY(captures_refuse_captured(stream));
    *flags = stream->blocking ? 0 : CU_STREAM_NON_BLOCKING;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    ENTER(cuStreamGetId);
    struct stream *stream;
    REQUIRE(id != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_in_use(handle, &stream));
    TRY(captures_refuse_captured(stream)); /* measured: even this question ends the capture */
    *id = stream->id;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
    ENTER(cuStreamGetCtx);
    struct stream *stream;
    REQUIRE(context != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_named(handle, &stream));
    *context = stream->context->handle;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
    ENTER(cuStreamGetCtx_v2);
    struct stream *stream;
    REQUIRE(context != NULL && green != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_named(handle, &stream));
    *context = stream->context->handle;
    *green = NULL;
    LEAVE(CUDA_SUCCESS);
}

void standin_declare_use(CUstream handle, const void *at, size_t bytes) {
    driver_prepare();
    books_lock();
    struct stream *stream;
    if (stream_named(handle, &stream) != CUDA_SUCCESS) {
        rule_broken("standin_declare_use: no context is current");
    }
    stream->declared = must_grow(stream->declared, (stream->declared_count + 1) * sizeof *stream->declared);
    stream->declared[stream->declared_count++] = (struct use){(uintptr_t)at, bytes, true};
    books_unlock();
}
