#include "user_objects.h"

#include <limits.h>

#include "calls.h"

struct handles user_objects = {.kind = "user object"};

static bool silent;

void user_objects_silence(void) { silent = true; }

/* The callback may make no calls, and gets the error that says so. It may not wait for any either, which nobody checks:
 * it runs where the last reference goes, under the lock. */
static void drop_if_unheld(struct user_object *object) {
    if (object->owned + object->graphs > 0) {
        return;
    }
    bool before = this_thread.in_host_function;
    int call = this_thread.call;
    clock_observe(&object->over, NULL, 0);
    clock_end(&object->over);
    if (!silent) {
        this_thread.in_host_function = true;
        object->destroy(object->pointer);
        this_thread.in_host_function = before;
        this_thread.call = call;
    }
    handle_free(&user_objects, object->handle);
    free(object);
}

static struct held *held_by(struct graph *graph, const struct user_object *object) {
    for (size_t i = 0; i < graph->held_count; i++) {
        if (graph->held[i].object == object) {
            return &graph->held[i];
        }
    }
    return NULL;
}

static void hold(struct graph *graph, struct user_object *object, unsigned count) {
    struct held *held = held_by(graph, object);
    if (held == NULL) {
        graph->held = must_grow(graph->held, (graph->held_count + 1) * sizeof *held);
        held = &graph->held[graph->held_count++];
        *held = (struct held){object, 0};
    }
    held->count += count;
    object->graphs += count;
}

void user_objects_retain_all(struct graph *copy, const struct graph *graph) {
    for (size_t i = 0; i < graph->held_count; i++) {
        hold(copy, graph->held[i].object, graph->held[i].count);
    }
}

void user_objects_launched(const struct graph *graph, const struct point *last, const struct clock *before) {
    for (size_t i = 0; i < graph->held_count; i++) {
        clock_add(&graph->held[i].object->over, last);
        clock_merge(&graph->held[i].object->over, before);
    }
}

void user_objects_release_all(struct graph *graph) {
    for (size_t i = 0; i < graph->held_count; i++) {
        graph->held[i].object->graphs -= graph->held[i].count;
        drop_if_unheld(graph->held[i].object);
    }
    free(graph->held);
    graph->held = NULL;
    graph->held_count = 0;
}

static bool is_count(unsigned count) { return count > 0 && count <= INT_MAX; }

CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy, unsigned int references,
                            unsigned int flags) {
    ENTER(cuUserObjectCreate);
    REQUIRE(out != NULL && destroy != NULL && is_count(references), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUDA_ERROR_INVALID_VALUE);
    struct user_object *object = must_alloc(sizeof *object);
    object->pointer = pointer;
    object->destroy = destroy;
    object->owned = references;
    object->handle = handle_new(&user_objects, object);
    *out = object->handle;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
    ENTER(cuUserObjectRetain);
    REQUIRE(handle != NULL && is_count(count), CUDA_ERROR_INVALID_VALUE);
    struct user_object *object = handle_object(&user_objects, handle);
    object->owned += count;
    LEAVE(CUDA_SUCCESS);
}

static void must_own(const struct user_object *object, unsigned count) {
    if (object->owned < count) {
        rule_broken("%u references to user object %p are given up, and the program has %llu", count,
                    (void *)object->handle, (unsigned long long)object->owned);
    }
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
    ENTER(cuUserObjectRelease);
    REQUIRE(handle != NULL && is_count(count), CUDA_ERROR_INVALID_VALUE);
    struct user_object *object = handle_object(&user_objects, handle);
    must_own(object, count);
    TRY(call_refused(&object->excused));
    object->owned -= count;
    drop_if_unheld(object);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object_handle, unsigned int count, unsigned int flags) {
    ENTER(cuGraphRetainUserObject);
    REQUIRE(handle != NULL && object_handle != NULL && is_count(count) && flags <= CU_GRAPH_USER_OBJECT_MOVE,
            CUDA_ERROR_INVALID_VALUE);
    struct graph *graph = handle_object(&graphs, handle);
    struct user_object *object = handle_object(&user_objects, object_handle);
    if (flags == CU_GRAPH_USER_OBJECT_MOVE) {
        must_own(object, count);
        object->owned -= count;
    }
    hold(graph, object, count);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object_handle, unsigned int count) {
    ENTER(cuGraphReleaseUserObject);
    REQUIRE(handle != NULL && object_handle != NULL && is_count(count), CUDA_ERROR_INVALID_VALUE);
    struct graph *graph = handle_object(&graphs, handle);
    struct user_object *object = handle_object(&user_objects, object_handle);
    struct held *held = held_by(graph, object);
    REQUIRE(held != NULL && held->count >= count, CUDA_ERROR_INVALID_VALUE);
    TRY(call_refused(&object->excused));
    held->count -= count;
    object->graphs -= count;
    if (held->count == 0) {
        *held = graph->held[--graph->held_count];
    }
    drop_if_unheld(object);
    LEAVE(CUDA_SUCCESS);
}

static void forget(void *handled, void *data) {
    struct user_object *object = handled;
    (void)data;
    clock_end(&object->over);
    free(object);
}

void user_objects_end(void) {
    handles_each(&user_objects, forget, NULL);
    handles_end(&user_objects);
}
