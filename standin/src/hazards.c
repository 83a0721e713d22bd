#include "hazards.h"

#include "allocations.h"
#include "mappings.h"
#include "streams.h"

static bool is_over(const struct access *access) {
    return access->who.sequence <= access->who.stream->observed || access->who.stream->device->lost;
}

static bool overlap(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

/* Does a later use by the same stream make this one superfluous? Whoever is behind that is behind this. */
static bool is_covered_by(const struct access *old, const struct access *new) {
    return old->who.stream == new->who.stream && old->at - old->offset == new->at - new->offset &&
           old->offset >= new->offset && old->offset + old->bytes <= new->offset + new->bytes &&
           (new->writes || !old->writes);
}

static void add(struct history *history, const struct access *new) {
    size_t kept = 0;
    for (size_t i = 0; i < history->count; i++) {
        struct access *old = &history->items[i];
        if (is_over(old) || is_covered_by(old, new)) {
            point_end(&old->who);
        } else {
            history->items[kept++] = *old;
        }
    }
    history->items = must_grow(history->items, (kept + 1) * sizeof *history->items);
    history->items[kept] = *new;
    history->items[kept].who = point_copy(&new->who);
    history->count = kept + 1;
}

static void must_be_ordered(const struct history *history, const struct stream *stream, const struct access *new) {
    for (size_t i = 0; i < history->count; i++) {
        const struct access *old = &history->items[i];
        if (old->who.stream == stream || is_over(old) || !(old->writes || new->writes) ||
            !overlap(old->offset, old->bytes, new->offset, new->bytes) || clock_covers(&stream->clock, &old->who)) {
            continue;
        }
        char other[64];
        snprintf(other, sizeof other, "%s", stream_name(old->who.stream));
        rule_broken("work on %s %s %zu bytes at %p, of which work on %s %s some at %p, and nothing orders the two",
                    stream_name(stream), new->writes ? "writes" : "reads", new->bytes, (void *)new->at, other,
                    old->writes ? "writes" : "reads", (void *)old->at);
    }
}

/* The memory at an address: its history, and where the part that lies there begins and ends. NULL: it is memory that
 * the driver knows nothing of. */
static struct history *memory_at(uintptr_t at, struct range *part) {
    struct mapping *mapping = ranges_with(&mappings, at);
    if (mapping != NULL) {
        *part = mapping->range;
        return &mapping->pages->history;
    }
    struct allocation *allocation = ranges_with(&device_allocations, at);
    if (allocation == NULL) {
        allocation = ranges_with(&host_allocations, at);
    }
    if (allocation == NULL) {
        return NULL;
    }
    *part = allocation->range;
    return &allocation->history;
}

static void use_queued(struct stream *stream, const struct use *use) {
    uintptr_t at = use->at, end = use->at + use->bytes;
    while (at < end) {
        struct range part;
        struct history *history = memory_at(at, &part);
        if (history == NULL) {
            return; /* what else is wrong with it is found when it is done */
        }
        uintptr_t part_end = part.at + part.bytes < end ? part.at + part.bytes : end;
        struct access access = {{stream, stream->queued}, at - part.at, part_end - at, at, use->writes};
        must_be_ordered(history, stream, &access);
        add(history, &access);
        at = part_end;
    }
}

void hazards_queued(struct stream *stream, const struct operation *operation) {
    for (size_t i = 0; i < operation->use_count; i++) {
        use_queued(stream, &operation->uses[i]);
    }
}

const struct stream *history_unseen(const struct history *history, uintptr_t at, size_t bytes,
                                    const struct device *device, bool writes_only) {
    for (size_t i = 0; i < history->count; i++) {
        const struct access *access = &history->items[i];
        if (!is_over(access) && overlap(access->at, access->bytes, at, bytes) && (access->writes || !writes_only) &&
            (device == NULL || access->who.stream->device == device)) {
            return access->who.stream;
        }
    }
    return NULL;
}

void history_end(struct history *history) {
    for (size_t i = 0; i < history->count; i++) {
        point_end(&history->items[i].who);
    }
    free(history->items);
    *history = (struct history){NULL, 0};
}
