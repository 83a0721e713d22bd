/* Work queued on streams that writes and checks patterns, and gates that hold a stream back; on host streams, or on
 * the driver's with the work done by copies.
 *
 * On a GPU the functions that the driver runs for streams may be run by one thread, one after the other. So only
 * gates and rests are such functions, nothing that another stream is waited for may rest, and at most one gate is
 * closed at a time. */
#ifndef WEIR_C_TESTS_STREAMS_H
#define WEIR_C_TESTS_STREAMS_H

#include "contents.h"
#include <pthread.h>
#include <time.h>

static inline void pause_ms(long ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* Streams and events of the memory under test. */
static inline weir_stream stream_new(void) {
    weir_stream stream = NULL;
    if (check_on_device()) {
        DEVICE_OK(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    } else {
        CHECK_OK(weir_host_stream_create(&stream));
    }
    return stream;
}

static inline void stream_end(weir_stream stream) {
    if (check_on_device()) {
        DEVICE_OK(cu.StreamDestroy(stream));
    } else {
        CHECK_OK(weir_host_stream_destroy(stream));
    }
}

/* Waits for a stream, and every pool learns of it. */
static inline void stream_wait(weir_stream stream) {
    if (check_on_device()) {
        CHECK_OK(weir_stream_synchronize(stream));
    } else {
        CHECK_OK(weir_host_stream_synchronize(stream));
    }
}

static inline void stream_queue(weir_stream stream, weir_host_function function, void *arg) {
    if (check_on_device()) {
        DEVICE_OK(cu.LaunchHostFunc(stream, function, arg));
    } else {
        CHECK_OK(weir_host_stream_enqueue(stream, function, arg));
    }
}

static inline weir_event event_new(void) {
    weir_event event = NULL;
    if (check_on_device()) {
        DEVICE_OK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
    } else {
        CHECK_OK(weir_host_event_create(&event));
    }
    return event;
}

static inline void event_end(weir_event event) {
    if (check_on_device()) {
        DEVICE_OK(cu.EventDestroy(event));
    } else {
        CHECK_OK(weir_host_event_destroy(event));
    }
}

static inline int event_complete(weir_event event) {
    if (check_on_device()) {
        CUresult result = cu.EventQuery(event);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
        return result == CUDA_SUCCESS;
    }
    weir_status status = weir_host_event_query(event);
    CHECK(status == WEIR_OK || status == WEIR_ERROR_NOT_READY);
    return status == WEIR_OK;
}

/* A stream stands still behind a closed gate. */
typedef struct {
    atomic_int open, reached;
} gate;

static inline void gate_wait(void *arg) {
    gate *g = (gate *)arg;
    atomic_store(&g->reached, 1);
    while (!atomic_load(&g->open)) {
        pause_ms(1);
    }
}

static inline void queue_gate(weir_stream stream, gate *g) { stream_queue(stream, gate_wait, g); }

/* Opens a gate from another thread after a while, unless somebody opens it before, for calls that may wait. */
typedef struct {
    gate *gate;
    long ms;
    pthread_t thread;
} opener;

static inline void *opener_main(void *arg) {
    opener *o = (opener *)arg;
    for (long ms = 0; ms < o->ms && !atomic_load(&o->gate->open); ms++) {
        pause_ms(1);
    }
    atomic_store(&o->gate->open, 1);
    return NULL;
}

static inline void opener_start(opener *o, gate *g, long ms) {
    o->gate = g;
    o->ms = ms;
    CHECK_EQUAL(pthread_create(&o->thread, NULL, opener_main, o), 0);
}

static inline void opener_join(opener *o) { pthread_join(o->thread, NULL); }

/* What copies that run behind need: page-locked host memory in powers of two, as much of the device's if the memory under
 * test is the host's, and events. Taken once, because the driver may wait when it gives such memory back, and handed out from
 * lists; the first word of a piece links it while free. */
enum { STAGING_MIB = 160, STAGING_EVENTS = 1024 };
typedef struct {
    char *start;
    CUdeviceptr twin; /* of `start`, on the device */
    size_t used;
    void *free_of[64];
    CUevent events[STAGING_EVENTS], free_events[STAGING_EVENTS];
    int event_count, free_event_count;
    pthread_mutex_t lock;
} staging_area;

static staging_area staging = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline int staging_class(size_t bytes) {
    int k = 6;
    while (((size_t)1 << k) < bytes) {
        k++;
    }
    return k;
}

static inline void *staging_take(size_t bytes) {
    int k = staging_class(bytes);
    pthread_mutex_lock(&staging.lock);
    if (staging.start == NULL) {
        DEVICE_OK(cu.MemHostAlloc((void **)&staging.start, STAGING_MIB * MiB, 0));
        if (check_memory() == WEIR_MEMORY_PINNED) {
            DEVICE_OK(cu.MemAlloc(&staging.twin, STAGING_MIB * MiB));
        }
    }
    void *piece = staging.free_of[k];
    if (piece != NULL) {
        staging.free_of[k] = *(void **)piece;
    } else {
        CHECK(staging.used + ((size_t)1 << k) <= STAGING_MIB * MiB);
        piece = staging.start + staging.used;
        staging.used += (size_t)1 << k;
    }
    pthread_mutex_unlock(&staging.lock);
    return piece;
}

static inline void staging_give(void *piece, size_t bytes) {
    int k = staging_class(bytes);
    pthread_mutex_lock(&staging.lock);
    *(void **)piece = staging.free_of[k];
    staging.free_of[k] = piece;
    pthread_mutex_unlock(&staging.lock);
}

static inline CUevent staging_event(void) {
    CUevent event = NULL;
    pthread_mutex_lock(&staging.lock);
    if (staging.free_event_count > 0) {
        event = staging.free_events[--staging.free_event_count];
    } else {
        CHECK(staging.event_count < STAGING_EVENTS);
        DEVICE_OK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
        staging.events[staging.event_count++] = event;
    }
    pthread_mutex_unlock(&staging.lock);
    return event;
}

static inline void staging_give_event(CUevent event) {
    pthread_mutex_lock(&staging.lock);
    staging.free_events[staging.free_event_count++] = event;
    pthread_mutex_unlock(&staging.lock);
}

/* For programs that used jobs, when no work is in flight any more. */
static inline void staging_end(void) {
    for (int i = 0; i < staging.event_count; i++) {
        DEVICE_OK(cu.EventDestroy(staging.events[i]));
    }
    if (staging.start != NULL) {
        DEVICE_OK(cu.MemFreeHost(staging.start));
    }
    if (staging.twin != 0) {
        DEVICE_OK(cu.MemFree(staging.twin));
    }
    staging = (staging_area){.lock = PTHREAD_MUTEX_INITIALIZER};
}

/* A pattern over a block: words that depend on their place and on a seed. On a device the words go through a piece of
 * page-locked memory, an event tells that the work is done, and whoever asks for the result compares. */
typedef struct {
    uint64_t *words;
    size_t bytes;
    uint64_t seed;
    long ms; /* rest before the work */
    atomic_int done, bad;
    uint64_t *staged;
    CUevent over;
    int checks;
} job;

static inline uint64_t pattern(uint64_t seed, size_t i) { return (seed + i) * 0x9e3779b97f4a7c15u; }

static inline job job_over(void *block, size_t bytes, uint64_t seed) {
    job j;
    memset(&j, 0, sizeof j);
    j.words = (uint64_t *)block;
    j.bytes = bytes;
    j.seed = seed;
    return j;
}

static inline void words_fill(uint64_t *words, const job *j) {
    for (size_t i = 0; i < j->bytes / 8; i++) {
        words[i] = pattern(j->seed, i);
    }
}

static inline int words_broken(const uint64_t *words, const job *j) {
    for (size_t i = 0; i < j->bytes / 8; i++) {
        if (words[i] != pattern(j->seed, i)) {
            return 1;
        }
    }
    return 0;
}

static inline void job_write(void *arg) {
    job *j = (job *)arg;
    pause_ms(j->ms);
    words_fill(j->words, j);
    atomic_store(&j->done, 1);
}

static inline void job_check(void *arg) {
    job *j = (job *)arg;
    pause_ms(j->ms);
    atomic_store(&j->bad, words_broken(j->words, j));
    atomic_store(&j->done, 1);
}

static inline void job_rest(void *arg) { pause_ms(((job *)arg)->ms); }

static inline void job_stage(weir_stream stream, job *j) {
    if (j->ms > 0) {
        stream_queue(stream, job_rest, j);
    }
    j->staged = (uint64_t *)staging_take(j->bytes);
    j->over = staging_event();
}

/* Queues a copy between a block and its job's piece. Within the host's memory a driver makes a copy before the call returns,
 * when the stream has done all before; by way of the device neither half of it waits. */
static inline void job_copy(weir_stream stream, job *j, int to_block) {
    CUdeviceptr block = device_address(j->words);
    size_t bytes = j->bytes / 8 * 8;
    if (staging.twin == 0) {
        DEVICE_OK(to_block ? cu.MemcpyHtoDAsync(block, j->staged, bytes, stream)
                           : cu.MemcpyDtoHAsync(j->staged, block, bytes, stream));
        return;
    }
    CUdeviceptr twin = staging.twin + (CUdeviceptr)((char *)j->staged - staging.start);
    DEVICE_OK(cu.MemcpyHtoDAsync(twin, to_block ? j->staged : j->words, bytes, stream));
    DEVICE_OK(cu.MemcpyDtoHAsync(to_block ? j->words : j->staged, twin, bytes, stream));
}

static inline void queue_write(weir_stream stream, job *j) {
    if (!check_on_device()) {
        stream_queue(stream, job_write, j);
        return;
    }
    job_stage(stream, j);
    words_fill(j->staged, j);
    job_copy(stream, j, 1);
    DEVICE_OK(cu.EventRecord(j->over, stream));
}

static inline void queue_check(weir_stream stream, job *j) {
    if (!check_on_device()) {
        stream_queue(stream, job_check, j);
        return;
    }
    job_stage(stream, j);
    j->checks = 1;
    job_copy(stream, j, 0);
    DEVICE_OK(cu.EventRecord(j->over, stream));
}

/* Is the work done? May be asked beside a capture. */
static inline int job_done(job *j) {
    if (j->staged != NULL) {
        int mode = CAPTURE_RELAXED;
        DEVICE_OK(cu.ThreadExchangeCaptureMode(&mode));
        int over = event_complete(j->over);
        DEVICE_OK(cu.ThreadExchangeCaptureMode(&mode));
        if (over) {
            atomic_store(&j->bad, j->checks && words_broken(j->staged, j));
            atomic_store(&j->done, 1);
            staging_give(j->staged, j->bytes);
            staging_give_event(j->over);
            j->staged = NULL;
        }
    }
    return atomic_load(&j->done);
}

#define CHECK_GOOD(j) CHECK(job_done(&(j)) && !atomic_load(&(j).bad))

#endif
