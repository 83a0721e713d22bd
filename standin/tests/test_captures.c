/* Captures: what becomes a node, what is refused on which thread in which mode, and how graphs run. */
#include "check.h"

static CUdeviceptr at;
static CUstream s;

static CUstreamCaptureStatus status_of(CUstream stream) {
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

static void capture(CUstream stream, CUstreamCaptureMode mode) { OK(cuStreamBeginCapture_v2(stream, mode)); }

static void end_capture_with(CUstream stream, CUresult result) {
    CUgraph graph;
    IS(cuStreamEndCapture(stream, &graph), result);
    CHECK((graph != NULL) == (result == CUDA_SUCCESS));
    IS(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
    if (graph != NULL) {
        OK(cuGraphDestroy(graph));
    }
}

static void set_up(unsigned flags) {
    begin();
    at = mapped(PAGE);
    s = stream_of(flags);
}

static void tear_down(void) {
    OK(cuStreamDestroy_v2(s));
    unmapped(at, PAGE);
    end();
}

static int calls;

static void count(void *data) {
    (void)data;
    __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
}

static void a_captured_graph_runs_when_it_is_launched(void) {
    set_up(0);
    CUgraph graph;
    CUgraphExec exec;
    capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemsetD8Async(at, 1, 64, s));
    OK(cuMemcpyDtoDAsync_v2(at + 64, at, 64, s));
    OK(cuLaunchHostFunc(s, count, NULL));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuStreamSynchronize(s));
    IS(bytes_at(at)[0], 0);
    IS(calls, 0);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 100; i++) {
        OK(cuMemsetD8Async(at, 0, 128, s));
        OK(cuGraphLaunch(exec, s));
    }
    OK(cuGraphExecDestroy(exec)); /* in flight */
    OK(cuStreamSynchronize(s));
    IS(bytes_at(at)[127], 1);
    IS(calls, 100);
    tear_down();
}

static int steps[4], step_count;

static void step(void *data) { steps[step_count++] = (int)(intptr_t)data; }

/* 1 forks into 2 and 3, which join in 4. */
static void forks_and_joins(void) {
    set_up(0);
    CUstream side = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent forked = fork_event(), joined = fork_event();
    CUgraph graph, told;
    CUgraphExec exec;
    unsigned long long id, side_id;
    const CUgraphNode *nodes;
    CUstreamCaptureStatus status;
    size_t node_count;
    capture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    OK(cuLaunchHostFunc(s, step, (void *)1));
    OK(cuEventRecord(forked, s));
    IS(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuStreamWaitEvent(side, forked, 0));
    IS(status_of(side), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamGetCaptureInfo_v2(s, &status, (cuuint64_t *)&id, &told, &nodes, &node_count));
    IS(node_count, 1);
    CUgraphNode first = nodes[0];
    OK(cuLaunchHostFunc(side, step, (void *)2));
    OK(cuLaunchHostFunc(s, step, (void *)3));
    OK(cuStreamGetCaptureInfo_v3(side, &status, (cuuint64_t *)&side_id, NULL, &nodes, NULL, &node_count));
    IS(side_id, id);
    CHECK(nodes[0] != first);
    OK(cuEventRecord(joined, side));
    OK(cuStreamWaitEvent(s, joined, 0));
    OK(cuStreamGetCaptureInfo_v2(s, &status, NULL, NULL, NULL, &node_count));
    IS(node_count, 2);
    OK(cuLaunchHostFunc(s, step, (void *)4));
    OK(cuStreamEndCapture(s, &graph));
    CHECK(graph == told);
    IS(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    OK(cuGraphLaunch(exec, side));
    OK(cuStreamSynchronize(side));
    /* Of those that could come next, the one that was captured last does. */
    IS(steps[0], 1);
    IS(steps[1], 3);
    IS(steps[2], 2);
    IS(steps[3], 4);
    /* What was recorded in a capture is nothing that can be waited for outside. */
    IS(cuStreamWaitEvent(s, joined, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    IS(cuEventQuery(joined), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuEventRecord(joined, s)); /* but it can be recorded again */
    OK(cuEventSynchronize(joined));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy_v2(forked));
    OK(cuEventDestroy_v2(joined));
    OK(cuStreamDestroy_v2(side));
    tear_down();
}

static void a_fork_must_be_joined(void) {
    set_up(0);
    CUstream side = stream_of(0);
    CUevent forked = fork_event();
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuEventRecord(forked, s));
    OK(cuStreamWaitEvent(side, forked, 0));
    OK(cuMemsetD8Async(at, 1, 1, side));
    CUgraph graph;
    IS(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuEventRecord(forked, s));
    OK(cuStreamWaitEvent(side, forked, 0));
    OK(cuMemsetD8Async(at, 1, 1, side));
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    IS(status_of(side), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuEventDestroy_v2(forked));
    OK(cuStreamDestroy_v2(side));
    tear_down();
}

static void beginning_and_ending_wrongly(void) {
    set_up(0);
    CUgraph graph;
    IS(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    IS(cuStreamBeginCapture_v2(s, (CUstreamCaptureMode)3), CUDA_ERROR_INVALID_VALUE);
    IS(cuStreamEndCapture(s, &graph), CUDA_ERROR_ILLEGAL_STATE);
    capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    IS(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
    end_capture_with(s, CUDA_SUCCESS);
    tear_down();
}

static CUresult other_result;
static CUstream other_stream;
static CUstreamCaptureMode other_mode;

static void end_on_other_thread(void) {
    CUcontext context;
    CUgraph graph;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    other_result = cuStreamEndCapture(other_stream, &graph);
    if (graph != NULL) {
        OK(cuGraphDestroy(graph));
    }
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void only_a_relaxed_capture_ends_on_another_thread(void) {
    set_up(0);
    other_stream = s;
    capture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    on_thread(end_on_other_thread);
    IS(other_result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    end_capture_with(s, CUDA_SUCCESS);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    on_thread(end_on_other_thread);
    OK(other_result);
    IS(status_of(s), CU_STREAM_CAPTURE_STATUS_NONE);
    tear_down();
}

/* ---- unsafe calls ---- */

static void ask_on_other_thread(void) {
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CUstreamCaptureMode mode = other_mode;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    IS(mode, CU_STREAM_CAPTURE_MODE_GLOBAL); /* what a thread begins with */
    CUdeviceptr memory;
    other_result = cuMemAlloc_v2(&memory, 64);
    if (other_result == CUDA_SUCCESS) {
        OK(cuMemFree_v2(memory));
    }
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    IS(mode, other_mode);
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

/* capture's mode, the asking thread's mode: the capturing thread itself, another thread */
static void unsafe_calls_by_mode_and_thread(void) {
    set_up(CU_STREAM_NON_BLOCKING);
    static const bool refused_here[3][3] = {{true, true, false}, {true, true, false}, {false, false, false}};
    static const bool refused_there[3][3] = {{true, false, false}, {false, false, false}, {false, false, false}};
    for (int mode = 0; mode < 3; mode++) {
        for (int asking = 0; asking < 3; asking++) {
            CUstreamCaptureMode own = (CUstreamCaptureMode)asking;
            CUdeviceptr memory;
            capture(s, (CUstreamCaptureMode)mode);
            OK(cuThreadExchangeStreamCaptureMode(&own));
            IS(cuMemAlloc_v2(&memory, 64),
               refused_here[mode][asking] ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
            IS(status_of(s), refused_here[mode][asking] ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE);
            OK(cuThreadExchangeStreamCaptureMode(&own));
            end_capture_with(s, refused_here[mode][asking] ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
            if (!refused_here[mode][asking]) {
                OK(cuMemFree_v2(memory));
            }
            capture(s, (CUstreamCaptureMode)mode);
            other_mode = (CUstreamCaptureMode)asking;
            on_thread(ask_on_other_thread);
            IS(other_result, refused_there[mode][asking] ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
            end_capture_with(s, refused_there[mode][asking] ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
        }
    }
    tear_down();
}

/* Each unsafe call, in a capture of its own. */
static void these_calls_are_unsafe(void) {
    set_up(CU_STREAM_NON_BLOCKING);
    CUstream other = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent ordinary = event_of(CU_EVENT_DISABLE_TIMING), timed = event_of(0);
    OK(cuEventRecord(ordinary, other));
    OK(cuEventRecord(timed, other));
    OK(cuStreamSynchronize(other));
    void *host, *pinned;
    CUdeviceptr memory, allocated;
    float milliseconds;
    char own[64];
    OK(cuMemHostAlloc(&pinned, 64, 0));
    OK(cuMemAlloc_v2(&allocated, 64));
    for (int i = 0; i < 14; i++) {
        CUresult result = CUDA_SUCCESS;
        capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
        switch (i) {
        case 0: result = cuEventQuery(ordinary); break;
        case 1: result = cuEventSynchronize(ordinary); break;
        case 2: result = cuEventElapsedTime(&milliseconds, timed, timed); break;
        case 3: result = cuStreamQuery(other); break;
        case 4: result = cuStreamSynchronize(other); break;
        case 5: result = cuMemAlloc_v2(&memory, 64); break;
        case 6: result = cuMemFree_v2(allocated); break;
        case 7: result = cuMemHostAlloc(&host, 64, 0); break;
        case 8: result = cuMemFreeHost(pinned); break;
        case 9: result = cuMemHostRegister_v2(own, 64, 0); break;
        case 10: result = cuMemcpyHtoD_v2(at, own, 64); break;
        case 11: result = cuMemcpyDtoH_v2(own, at, 64); break;
        case 12: result = cuMemsetD32_v2(at, 0, 16); break;
        case 13: result = cuMemHostUnregister(own); break;
        }
        IS(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(allocated));
    OK(cuEventDestroy_v2(ordinary));
    OK(cuEventDestroy_v2(timed));
    OK(cuStreamDestroy_v2(other));
    tear_down();
}

/* A relaxed thread frees during a capture, and that waits for all work but the captured. */
static void freeing_beside_a_capture(void) {
    set_up(0);
    CUstream other = stream_of(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr allocated;
    void *pinned;
    OK(cuThreadExchangeStreamCaptureMode(&own));
    capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemsetD8Async(at, 1, PAGE, s));
    for (int i = 0; i < 100; i++) {
        OK(cuMemsetD8Async(at, 2, PAGE, other));
    }
    OK(cuMemAlloc_v2(&allocated, 64));
    OK(cuMemFree_v2(allocated));
    OK(cuStreamQuery(other));
    OK(cuMemsetD8Async(at, 3, PAGE, other));
    OK(cuMemHostAlloc(&pinned, 64, 0));
    OK(cuMemFreeHost(pinned));
    IS(bytes_at(at)[0], 3);
    OK(cuThreadExchangeStreamCaptureMode(&own));
    end_capture_with(s, CUDA_SUCCESS);
    OK(cuStreamDestroy_v2(other));
    tear_down();
}

/* Address ranges, pages, mappings and access are nobody's in a capture (measured). */
static void virtual_memory_is_safe(void) {
    set_up(0);
    for (int mode = 0; mode < 3; mode++) {
        capture(s, (CUstreamCaptureMode)mode);
        CUdeviceptr memory = mapped(PAGE);
        unmapped(memory, PAGE);
        CUstream other = stream_of(CU_STREAM_NON_BLOCKING);
        CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
        OK(cuEventRecord(e, other));
        OK(cuStreamWaitEvent(other, e, 0));
        OK(cuEventDestroy_v2(e));
        OK(cuStreamDestroy_v2(other));
        end_capture_with(s, CUDA_SUCCESS);
    }
    tear_down();
}

/* ---- what necessarily conflicts ---- */

static void a_capturing_stream_cannot_be_waited_for(void) {
    set_up(0);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    IS(cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    IS(cuMemsetD8Async(at, 1, 1, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    IS(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    IS(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    tear_down();
}

/* Measured, in every mode. */
static void the_id_of_a_capturing_stream(void) {
    set_up(0);
    unsigned long long id;
    for (int mode = 0; mode < 3; mode++) {
        capture(s, (CUstreamCaptureMode)mode);
        IS(cuStreamGetId(s, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        capture(s, (CUstreamCaptureMode)mode);
        IS(cuStreamGetId(NULL, &id), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    OK(cuStreamGetId(s, &id));
    tear_down();
}

static void the_legacy_stream_beside_a_blocking_capture(void) {
    set_up(0);
    CUstreamCaptureStatus status;
    cuuint64_t id;
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    IS(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    IS(cuStreamIsCapturing(CU_STREAM_LEGACY, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    IS(cuStreamGetCaptureInfo(NULL, &status, &id), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    IS(status_of(CU_STREAM_PER_THREAD), CU_STREAM_CAPTURE_STATUS_NONE);
    IS(status_of(s), CU_STREAM_CAPTURE_STATUS_ACTIVE); /* asking harms nothing */
    IS(cuMemsetD8Async(at, 1, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    IS(status_of(NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    CUstream free_running = stream_of(CU_STREAM_NON_BLOCKING);
    capture(free_running, CU_STREAM_CAPTURE_MODE_RELAXED);
    IS(status_of(NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuMemsetD8Async(at, 1, 1, NULL));
    end_capture_with(free_running, CUDA_SUCCESS);
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamDestroy_v2(free_running));
    tear_down();
}

static void captures_do_not_mix(void) {
    set_up(0);
    CUstream other = stream_of(0);
    CUevent ordinary = event_of(CU_EVENT_DISABLE_TIMING), inside = fork_event();
    OK(cuEventRecord(ordinary, other));
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    IS(cuStreamWaitEvent(s, ordinary, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    capture(other, CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuEventRecord(inside, s));
    IS(cuStreamWaitEvent(other, inside, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_capture_with(other, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuEventRecord(inside, s));
    IS(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT); /* whatever the mode */
    end_capture_with(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuEventDestroy_v2(ordinary));
    OK(cuEventDestroy_v2(inside));
    OK(cuStreamDestroy_v2(other));
    tear_down();
}

static void a_graph_runs_one_launch_at_a_time(void) {
    set_up(0);
    CUstream other = stream_of(CU_STREAM_NON_BLOCKING);
    struct gate gate = GATE;
    CUgraph graph;
    CUgraphExec exec;
    capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    OK(cuLaunchHostFunc(s, count, NULL));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, s));
    OK(cuGraphLaunch(exec, other));
    gate_wait_reached(&gate);
    IS(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    OK(cuStreamSynchronize(other));
    OK(cuStreamQuery(s));
    IS(calls, 2);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(other));
    tear_down();
}

static void a_graph_holds_user_objects(void) {
    set_up(0);
    CUgraph graph;
    CUgraphExec exec;
    CUuserObject object;
    capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUstreamCaptureStatus status;
    OK(cuUserObjectCreate(&object, NULL, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuStreamGetCaptureInfo_v2(s, &status, NULL, &graph, NULL, NULL));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    IS(calls, 0);
    OK(cuGraphExecDestroy(exec));
    IS(calls, 1);
    OK(cuUserObjectCreate(&object, NULL, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuUserObjectRetain(object, 1));
    OK(cuUserObjectRelease(object, 2));
    IS(calls, 1);
    OK(cuUserObjectRelease(object, 1));
    IS(calls, 2);
    tear_down();
}

/* Its call tells that all launches are complete: what they used is then free for any stream. */
static void a_user_object_tells_of_the_launches(void) {
    set_up(0);
    CUstream other = stream_of(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureStatus status;
    CUgraph graph;
    CUgraphExec exec;
    CUuserObject object;
    capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemsetD8Async(at, 1, 64, s));
    OK(cuUserObjectCreate(&object, NULL, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuStreamGetCaptureInfo_v2(s, &status, NULL, &graph, NULL, NULL));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, s));
    OK(cuGraphExecDestroy(exec)); /* in flight */
    OK(cuGraphDestroy(graph));
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 0) {
        usleep(100);
    }
    OK(cuMemsetD8Async(at, 2, 64, other));
    OK(cuStreamSynchronize(other));
    IS(bytes_at(at)[0], 2);
    OK(cuStreamDestroy_v2(other));
    tear_down();
}

static const struct trial trials[] = {
    {"a_captured_graph_runs_when_it_is_launched", a_captured_graph_runs_when_it_is_launched, WELL, NULL, {NULL}},
    {"forks_and_joins", forks_and_joins, WELL, NULL, {NULL}},
    {"a_fork_must_be_joined", a_fork_must_be_joined, WELL, NULL, {NULL}},
    {"beginning_and_ending_wrongly", beginning_and_ending_wrongly, WELL, NULL, {NULL}},
    {"only_a_relaxed_capture_ends_on_another_thread", only_a_relaxed_capture_ends_on_another_thread, WELL, NULL,
     {NULL}},
    {"unsafe_calls_by_mode_and_thread", unsafe_calls_by_mode_and_thread, WELL, NULL, {NULL}},
    {"these_calls_are_unsafe", these_calls_are_unsafe, WELL, NULL, {NULL}},
    {"freeing_beside_a_capture", freeing_beside_a_capture, WELL, NULL, {NULL}},
    {"virtual_memory_is_safe", virtual_memory_is_safe, WELL, NULL, {NULL}},
    {"a_capturing_stream_cannot_be_waited_for", a_capturing_stream_cannot_be_waited_for, WELL, NULL, {NULL}},
    {"the_id_of_a_capturing_stream", the_id_of_a_capturing_stream, WELL, NULL, {NULL}},
    {"the_legacy_stream_beside_a_blocking_capture", the_legacy_stream_beside_a_blocking_capture, WELL, NULL, {NULL}},
    {"captures_do_not_mix", captures_do_not_mix, WELL, NULL, {NULL}},
    {"a_graph_runs_one_launch_at_a_time", a_graph_runs_one_launch_at_a_time, WELL, NULL, {NULL}},
    {"a_graph_holds_user_objects", a_graph_holds_user_objects, WELL, NULL, {NULL}},
    {"a_user_object_tells_of_the_launches", a_user_object_tells_of_the_launches, WELL, NULL, {NULL}},
};
MAIN(trials)
