#include "leaks.h"

#include "allocations.h"
#include "captures.h"
#include "events.h"
#include "graphs.h"
#include "mappings.h"
#include "streams.h"
#include "user_objects.h"

static const char *const words[LEAK_KINDS][2] = {
    [LEAK_CONTEXTS] = {"context", "contexts"},
    [LEAK_RETAINED] = {"reference to a primary context", "references to primary contexts"},
    [LEAK_STREAMS] = {"stream", "streams"},
    [LEAK_EVENTS] = {"event", "events"},
    [LEAK_CAPTURES] = {"capture", "captures"},
    [LEAK_GRAPHS] = {"graph", "graphs"},
    [LEAK_EXECS] = {"executable graph", "executable graphs"},
    [LEAK_USER_OBJECTS] = {"user object", "user objects"},
    [LEAK_RESERVATIONS] = {"address range", "address ranges"},
    [LEAK_MAPPINGS] = {"mapping", "mappings"},
    [LEAK_HANDLES] = {"memory handle", "memory handles"},
    [LEAK_ALLOCATIONS] = {"device allocation", "device allocations"},
    [LEAK_HOST_ALLOCATIONS] = {"pinned allocation", "pinned allocations"},
    [LEAK_REGISTRATIONS] = {"registration", "registrations"},
};

struct count {
    struct leaks *leaks;
    const struct context *context; /* NULL: any */
};

static bool counts(const struct count *count, const struct context *context) {
    return count->context == NULL || count->context == context;
}

static void count_stream(void *object, void *data) {
    const struct stream *stream = object;
    struct count *count = data;
    count->leaks->count[LEAK_STREAMS] += counts(count, stream->context) && !stream->excused;
}

static void count_event(void *object, void *data) {
    const struct event *event = object;
    struct count *count = data;
    count->leaks->count[LEAK_EVENTS] += counts(count, event->context) && !event->excused;
}

static void count_context(void *object, void *data) {
    const struct context *context = object;
    struct count *count = data;
    count->leaks->count[LEAK_CONTEXTS] += !context->primary && !context->excused;
}

static void count_graph(void *object, void *data) {
    const struct graph *graph = object;
    struct count *count = data;
    count->leaks->count[LEAK_GRAPHS] += !graph->excused && !graph->capturing;
}

static void count_exec(void *object, void *data) {
    const struct exec *exec = object;
    struct count *count = data;
    count->leaks->count[LEAK_EXECS] += !exec->excused;
}

/* Only the program's own references: a graph that is open is told of itself. */
static void count_user_object(void *object, void *data) {
    const struct user_object *user_object = object;
    struct count *count = data;
    count->leaks->count[LEAK_USER_OBJECTS] += !user_object->excused && user_object->owned > 0;
}

/* Is it held by a mapping that the driver refused to undo? */
static bool is_kept_by_refusal(const struct pages *pages) {
    for (size_t i = 0; i < mappings.count; i++) {
        const struct mapping *mapping = (const struct mapping *)mappings.items[i];
        if (mapping->pages == pages && mapping->excused) {
            return true;
        }
    }
    return pages->excused;
}

static void count_pages(void *object, void *data) {
    const struct pages *pages = object;
    struct count *count = data;
    count->leaks->count[LEAK_HANDLES] += pages->references > 0 && !is_kept_by_refusal(pages);
}

static void count_ranges(struct leaks *leaks) {
    for (size_t i = 0; i < mappings.count; i++) {
        leaks->count[LEAK_MAPPINGS] += !((const struct mapping *)mappings.items[i])->excused;
    }
    for (size_t i = 0; i < reservations.count; i++) {
        const struct reservation *reservation = (const struct reservation *)reservations.items[i];
        bool excused = reservation->excused;
        size_t first = ranges_from(&mappings, reservation->range.at);
        uintptr_t end = reservation->range.at + reservation->range.bytes;
        for (size_t j = first; j < mappings.count && mappings.items[j]->at < end; j++) {
            excused |= ((const struct mapping *)mappings.items[j])->excused;
        }
        leaks->count[LEAK_RESERVATIONS] += !excused;
    }
}

static void count_allocations(struct count *count, const struct ranges *set) {
    static const enum leak_kind kinds[] = {
        [ON_DEVICE] = LEAK_ALLOCATIONS, [ON_HOST] = LEAK_HOST_ALLOCATIONS, [REGISTERED] = LEAK_REGISTRATIONS};
    for (size_t i = 0; i < set->count; i++) {
        const struct allocation *allocation = (const struct allocation *)set->items[i];
        count->leaks->count[kinds[allocation->kind]] += counts(count, allocation->context) && !allocation->excused;
    }
}

void leaks_add(struct leaks *leaks, const struct context *context) {
    struct count count = {leaks, context};
    handles_each(&streams, count_stream, &count);
    handles_each(&events, count_event, &count);
    count_allocations(&count, &device_allocations);
    count_allocations(&count, &host_allocations);
    if (context != NULL) {
        return;
    }
    handles_each(&contexts, count_context, &count);
    handles_each(&graphs, count_graph, &count);
    handles_each(&execs, count_exec, &count);
    handles_each(&user_objects, count_user_object, &count);
    handles_each(&pages_handles, count_pages, &count);
    count_ranges(leaks);
    leaks->count[LEAK_CAPTURES] += captures_open();
    for (int i = 0; i < settings.devices; i++) {
        const struct device *device = device_numbered(i);
        leaks->count[LEAK_RETAINED] += device->retain_excused ? 0 : device->retained;
    }
}

uint64_t leaks_say(const struct leaks *leaks, char *text, size_t bytes) {
    uint64_t sum = 0;
    size_t at = 0;
    for (int i = 0; i < LEAK_KINDS; i++) {
        uint64_t count = leaks->count[i];
        if (count > 0 && text != NULL && at < bytes) {
            at += (size_t)snprintf(text + at, bytes - at, "%s%llu %s", sum > 0 ? ", " : "", (unsigned long long)count,
                                   words[i][count != 1]);
        }
        sum += count;
    }
    if (sum == 0 && text != NULL && bytes > 0) {
        *text = '\0';
    }
    return sum;
}
