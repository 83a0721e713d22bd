#include "worker.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "graphs.h"
#include "ipc_events.h"

static bool abandoned;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void work_end(struct work *work) {
    operation_end(&work->operation);
    for (size_t i = 0; i < work->wait_count; i++) {
        point_end(&work->waits[i]);
    }
    free(work->waits);
    clock_end(&work->before);
    stamp_release(work->stamp);
    ipc_event_release(work->tells);
    ipc_event_release(work->awaits);
    if (work->exec != NULL) {
        exec_release(work->exec);
    }
    free(work);
}

static void wait_for(const struct point *point) {
    while (!abandoned && !point_past(point)) {
        pthread_cond_wait(&point->stream->advanced, &books);
    }
}

void work_observe(struct stream *stream, const struct work *work, enum tidings tidings) {
    if (tidings != NO_TIDINGS) {
        clock_observe(&work->before, stream, tidings == OF_ITSELF ? work->sequence : work->sequence - 1);
    }
}

/* Other processes do not wake anybody here. */
static void wait_for_process(const struct work *work) {
    while (!abandoned && !ipc_event_is_done(work->awaits, work->awaited)) {
        books_unlock();
        usleep(200);
        books_lock();
    }
}

static bool is_off(const struct stream *stream) { return abandoned || stream->device->lost; }

/* The work stays first in the queue while it is done: whoever takes memory away meanwhile finds it there. */
static void perform(struct stream *stream, struct work *work) {
    for (size_t i = 0; i < work->wait_count; i++) {
        wait_for(&work->waits[i]);
    }
    if (work->awaits != NULL) {
        wait_for_process(work);
    }
    if (!is_off(stream) && work->exec != NULL) {
        exec_run(work->exec, stream, work);
    } else if (!is_off(stream)) {
        operation_check(&work->operation, stream->device, stream_name(stream));
        work_observe(stream, work, operation_tells(&work->operation));
        if (work->operation.kind != DO_NOTHING) {
            books_unlock();
            operation_run(&work->operation);
            books_lock();
        }
    }
    if (work->stamp != NULL) {
        work->stamp->done = true;
        work->stamp->nanoseconds = now();
    }
    if (work->tells != NULL) {
        ipc_event_done(work->tells, work->told);
    }
}

static void *worker_main(void *data) {
    struct stream *stream = data;
    books_lock();
    while (true) {
        while (stream->first == NULL && !stream->ended) {
            pthread_cond_wait(&stream->arrived, &books);
        }
        struct work *work = stream->first;
        if (work == NULL) {
            break;
        }
        perform(stream, work);
        stream->first = work->next;
        if (stream->first == NULL) {
            stream->last = NULL;
        }
        stream->completed = work->sequence;
        pthread_cond_broadcast(&stream->advanced);
        work_end(work);
    }
    stream->exited = true;
    books_unlock();
    return NULL;
}

void worker_wake(struct stream *stream) {
    if (stream->has_worker) {
        pthread_cond_signal(&stream->arrived);
        return;
    }
    /* The program's signals are the program's threads' to handle. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&stream->worker, NULL, worker_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        errno = error;
        cannot_go_on("no thread for a stream");
    }
    stream->has_worker = true;
}

void worker_dismiss(struct stream *stream) {
    stream->ended = true;
    if (stream->has_worker) {
        pthread_cond_signal(&stream->arrived);
    } else {
        stream->exited = true;
    }
}

void workers_reap(void) {
    for (struct stream **at = &stream_list; *at != NULL;) {
        struct stream *stream = *at;
        if (!stream->exited) {
            at = &stream->next;
            continue;
        }
        *at = stream->next;
        if (stream->has_worker) {
            /* It has nothing left to do that needs the lock. */
            pthread_join(stream->worker, NULL);
        }
        stream_hand_over(stream);
        stream_release(stream);
    }
}

void workers_abandon(void) {
    abandoned = true;
    for (struct stream *stream = stream_list; stream != NULL; stream = stream->next) {
        pthread_cond_broadcast(&stream->advanced);
    }
}
