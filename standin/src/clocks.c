#include "clocks.h"

#include "streams.h"

struct point point_of(struct stream *stream) {
    stream->references++;
    return (struct point){stream, stream->queued};
}

bool point_past(const struct point *point) {
    return point->stream == NULL || point->stream->completed >= point->sequence;
}

void point_wait(const struct point *point) {
    while (!point_past(point)) {
        pthread_cond_wait(&point->stream->advanced, &books);
    }
}

struct point point_copy(const struct point *from) {
    if (from->stream != NULL) {
        from->stream->references++;
    }
    return *from;
}

void point_end(struct point *point) {
    if (point->stream != NULL) {
        stream_release(point->stream);
        point->stream = NULL;
    }
}

static bool is_observed(const struct point *point) {
    return point->stream == NULL || point->sequence <= point->stream->observed;
}

/* Leaves out what has been observed since it was added. */
static void prune(struct clock *clock) {
    size_t kept = 0;
    for (size_t i = 0; i < clock->count; i++) {
        if (is_observed(&clock->points[i])) {
            point_end(&clock->points[i]);
        } else {
            clock->points[kept++] = clock->points[i];
        }
    }
    clock->count = kept;
}

void clock_add(struct clock *clock, const struct point *point) {
    if (is_observed(point)) {
        return;
    }
    for (size_t i = 0; i < clock->count; i++) {
        if (clock->points[i].stream == point->stream) {
            if (clock->points[i].sequence < point->sequence) {
                clock->points[i].sequence = point->sequence;
            }
            return;
        }
    }
    prune(clock);
    clock->points = must_grow(clock->points, (clock->count + 1) * sizeof *clock->points);
    clock->points[clock->count++] = point_copy(point);
}

void clock_merge(struct clock *clock, const struct clock *other) {
    for (size_t i = 0; i < other->count; i++) {
        clock_add(clock, &other->points[i]);
    }
}

bool clock_covers(const struct clock *clock, const struct point *point) {
    if (is_observed(point)) {
        return true;
    }
    for (size_t i = 0; i < clock->count; i++) {
        if (clock->points[i].stream == point->stream) {
            return clock->points[i].sequence >= point->sequence;
        }
    }
    return false;
}

struct clock clock_copy(const struct clock *from) {
    struct clock copy = {NULL, 0};
    clock_merge(&copy, from);
    return copy;
}

void clock_end(struct clock *clock) {
    for (size_t i = 0; i < clock->count; i++) {
        point_end(&clock->points[i]);
    }
    free(clock->points);
    *clock = (struct clock){NULL, 0};
}

static void observe(struct stream *stream, uint64_t sequence) {
    if (stream != NULL && stream->observed < sequence) {
        stream->observed = sequence;
    }
}

void clock_observe(const struct clock *clock, struct stream *stream, uint64_t sequence) {
    observe(stream, sequence);
    for (size_t i = 0; i < clock->count; i++) {
        observe(clock->points[i].stream, clock->points[i].sequence);
    }
}
