#include "graphs.h"

#include "calls.h"
#include "captures.h"
#include "hazards.h"
#include "user_objects.h"
#include "worker.h"

struct handles graphs = {.kind = "graph"}, execs = {.kind = "executable graph"};

/* Without a handle; a copy needs none. */
static struct graph *graph_bare(void) { return must_alloc(sizeof(struct graph)); }

struct graph *graph_new(void) {
    struct graph *graph = graph_bare();
    graph->handle = handle_new(&graphs, graph);
    return graph;
}

static void graph_free_bare(struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++) {
        operation_end(&graph->nodes[i]->operation);
        free(graph->nodes[i]->deps);
        free(graph->nodes[i]);
    }
    user_objects_release_all(graph);
    free(graph->nodes);
    free(graph);
}

void graph_free(struct graph *graph) {
    handle_free(&graphs, graph->handle);
    graph_free_bare(graph);
}

struct node *graph_add(struct graph *graph, struct operation *operation, struct node *const *deps, size_t dep_count) {
    struct node *node = must_alloc(sizeof *node);
    node->index = graph->count;
    node->operation = *operation;
    node->dep_count = dep_count;
    if (dep_count > 0) {
        node->deps = memcpy(must_alloc(dep_count * sizeof *deps), deps, dep_count * sizeof *deps);
    }
    graph->nodes = must_grow(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
    graph->nodes[graph->count++] = node;
    return node;
}

static struct graph *graph_copy(const struct graph *graph) {
    struct graph *copy = graph_bare();
    for (size_t i = 0; i < graph->count; i++) {
        const struct node *node = graph->nodes[i];
        struct operation operation = operation_copy(&node->operation);
        struct node *made = graph_add(copy, &operation, node->deps, node->dep_count);
        for (size_t j = 0; j < made->dep_count; j++) {
            made->deps[j] = copy->nodes[node->deps[j]->index];
        }
    }
    user_objects_retain_all(copy, graph);
    return copy;
}

/* ---- executable graphs ---- */

void exec_release(struct exec *exec) {
    if (--exec->references > 0) {
        return;
    }
    user_objects_launched(exec->graph, &exec->last, &exec->clock);
    point_end(&exec->last);
    clock_end(&exec->clock);
    graph_free_bare(exec->graph);
    free(exec);
}

void exec_queued(const struct exec *exec, struct stream *stream) {
    for (size_t i = 0; i < exec->graph->count; i++) {
        hazards_queued(stream, &exec->graph->nodes[i]->operation);
    }
}

static bool is_ready(const struct node *node, const bool *done) {
    for (size_t i = 0; i < node->dep_count; i++) {
        if (!done[node->deps[i]->index]) {
            return false;
        }
    }
    return !done[node->index];
}

void exec_run(struct exec *exec, struct stream *stream, const struct work *work) {
    const struct graph *graph = exec->graph;
    bool *done = must_alloc(graph->count * sizeof *done);
    for (size_t left = graph->count; left > 0 && !stream->device->lost; left--) {
        size_t i = graph->count - 1;
        while (!is_ready(graph->nodes[i], done)) {
            i--;
        }
        const struct operation *operation = &graph->nodes[i]->operation;
        operation_check(operation, stream->device, stream_name(stream));
        /* The last node tells of the whole graph. */
        enum tidings tidings = operation_tells(operation);
        work_observe(stream, work, tidings == OF_ITSELF && left > 1 ? OF_ALL_BEFORE : tidings);
        books_unlock();
        operation_run(operation);
        books_lock();
        done[i] = true;
    }
    free(done);
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle) {
    if (out == NULL || handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct graph *graph = handle_object(&graphs, handle);
    if (graph->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct exec *exec = must_alloc(sizeof *exec);
    exec->graph = graph_copy(graph);
    exec->references = 1;
    exec->handle = handle_new(&execs, exec);
    *out = exec->handle;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad_node, char *log, size_t log_bytes) {
    ENTER(cuGraphInstantiate_v2);
    if (bad_node != NULL) {
        *bad_node = NULL;
    }
    if (log != NULL && log_bytes > 0) {
        *log = '\0';
    }
    LEAVE(instantiate(exec, graph));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags);
    REQUIRE(flags <= 15, CUDA_ERROR_INVALID_VALUE);
    LEAVE(instantiate(exec, graph));
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    ENTER(cuGraphLaunch);
    struct stream *stream;
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    struct exec *exec = handle_object(&execs, handle);
    TRY(stream_in_use(stream_handle, &stream));
    /* A graph within a graph is nothing that the tests need. */
    REQUIRE(stream->capture == NULL, CUDA_ERROR_NOT_SUPPORTED);
    struct work *work = work_new();
    work_add_wait(work, &exec->last);
    clock_add(&stream->clock, &exec->last);
    clock_merge(&stream->clock, &exec->clock);
    work->exec = exec;
    exec->references++;
    stream_queue(stream, work);
    point_end(&exec->last);
    clock_end(&exec->clock);
    exec->last = point_of(stream);
    exec->clock = clock_copy(&stream->clock);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
    ENTER(cuGraphExecDestroy);
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    struct exec *exec = handle_object(&execs, handle);
    TRY(call_refused(&exec->excused));
    handle_free(&execs, handle);
    exec_release(exec);
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph handle) {
    ENTER(cuGraphDestroy);
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    struct graph *graph = handle_object(&graphs, handle);
    REQUIRE(!graph->capturing, CUDA_ERROR_INVALID_VALUE);
    TRY(call_refused(&graph->excused));
    graph_free(graph);
    LEAVE(CUDA_SUCCESS);
}

static void forget_graph(void *graph, void *data) {
    (void)data;
    graph_free_bare(graph);
}

static void forget_exec(void *exec, void *data) {
    (void)data;
    exec_release(exec);
}

void graphs_end(void) {
    handles_each(&graphs, forget_graph, NULL);
    handles_each(&execs, forget_exec, NULL);
    handles_end(&graphs);
    handles_end(&execs);
}
