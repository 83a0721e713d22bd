/* The rules that the real driver keeps silent about: each breach ends the process, and says what it was. */
#include "check.h"

static CUstream held;
static CUdeviceptr at;
static struct gate gate = GATE;

/* A stream that does nothing until the gate opens, and memory. */
static void set_up(void) {
    begin();
    held = stream_of(CU_STREAM_NON_BLOCKING);
    at = mapped(PAGE);
    OK(cuLaunchHostFunc(held, gate_work, &gate));
}

static void a_destroyed_stream(void) {
    begin();
    CUstream s = stream_of(0);
    OK(cuStreamDestroy_v2(s));
    cuStreamQuery(s);
}

static void a_stream_destroyed_twice(void) {
    begin();
    CUstream s = stream_of(0);
    OK(cuStreamDestroy_v2(s));
    cuStreamDestroy_v2(s);
}

static void the_id_of_a_destroyed_stream(void) {
    begin();
    unsigned long long id;
    CUstream s = stream_of(0);
    OK(cuStreamDestroy_v2(s));
    cuStreamGetId(s, &id);
}

static void never_a_stream(void) {
    begin();
    cuStreamSynchronize((CUstream)0x1234560);
}

static void never_an_event(void) {
    begin();
    CUstream s = stream_of(0);
    cuEventQuery((CUevent)s);
}

static void a_destroyed_event(void) {
    begin();
    CUevent e = event_of(0);
    OK(cuEventDestroy_v2(e));
    cuEventRecord(e, NULL);
}

static void a_released_handle(void) {
    begin();
    CUmemGenericAllocationHandle handle = pages(PAGE);
    OK(cuMemRelease(handle));
    cuMemRelease(handle);
}

static void a_released_handle_that_is_mapped(void) {
    begin();
    CUdeviceptr range = reserved(2 * PAGE);
    CUmemGenericAllocationHandle handle = pages(PAGE);
    OK(cuMemMap(range, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    cuMemMap(range + PAGE, PAGE, 0, handle, 0);
}

static void unmapped_under_a_fill(void) {
    set_up();
    OK(cuMemsetD8Async(at + 4096, 1, 10, held));
    cuMemUnmap(at, PAGE);
}

static void unmapped_under_a_copy(void) {
    set_up();
    CUdeviceptr other = mapped(PAGE);
    OK(cuMemcpyDtoDAsync_v2(other, at, 10, held));
    OK(cuStreamDestroy_v2(held)); /* its work is still there */
    cuMemUnmap(at, PAGE);
}

static void unmapped_under_a_graph(void) {
    set_up();
    CUgraph graph;
    CUgraphExec exec;
    CUstream s = stream_of(0);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(at, 1, 10, s));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, held));
    cuMemUnmap(at, PAGE);
}

static void unmapped_under_a_declared_use(void) {
    set_up();
    standin_declare_use(held, (void *)(uintptr_t)(at + 100), 8);
    OK(cuLaunchHostFunc(held, gate_work, &gate));
    cuMemUnmap(at, PAGE);
}

static void unmapped_while_the_work_runs(void) {
    begin();
    held = stream_of(0);
    at = mapped(PAGE);
    standin_declare_use(held, (void *)(uintptr_t)at, 8);
    OK(cuLaunchHostFunc(held, gate_work, &gate));
    gate_wait_reached(&gate);
    cuMemUnmap(at, PAGE);
}

static void access_taken_under_work(void) {
    set_up();
    OK(cuMemsetD8Async(at, 1, 10, held));
    access_by(0, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

static void made_read_only_under_a_write(void) {
    set_up();
    OK(cuMemsetD8Async(at, 1, 10, held));
    access_by(0, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

/* None of these is any business of the work that is queued. */
static void what_work_in_flight_does_not_forbid(void) {
    set_up();
    CUdeviceptr other = mapped(PAGE), alias = reserved(PAGE), third = mapped(PAGE);
    CUmemGenericAllocationHandle handle;
    OK(cuMemcpyDtoDAsync_v2(other, at, 16, held));
    standin_declare_use(held, (void *)(uintptr_t)(other + PAGE - 1), 1);
    OK(cuLaunchHostFunc(held, gate_work, &gate));
    OK(access_by(0, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ));  /* it only reads there */
    OK(access_by(1, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READ));  /* the other device... */
    OK(access_by(1, at, PAGE, CU_MEM_ACCESS_FLAGS_PROT_NONE));  /* ... has no work */
    OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
    OK(cuMemMap(alias, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(access_by(0, alias, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    unmapped(alias, PAGE); /* the same page, at an address that nobody uses */
    unmapped(third, PAGE);
    gate_open(&gate);
    OK(cuStreamSynchronize(held));
    unmapped(at, PAGE);
    unmapped(other, PAGE);
    OK(cuStreamDestroy_v2(held));
    end();
}

static void work_on_nothing(void) {
    begin();
    CUdeviceptr range = reserved(PAGE);
    OK(cuMemsetD8Async(range, 1, 1, NULL));
    cuStreamSynchronize(NULL);
}

static void work_without_access(void) {
    begin();
    CUdeviceptr range = reserved(PAGE);
    CUmemGenericAllocationHandle handle = pages(PAGE);
    OK(cuMemMap(range, PAGE, 0, handle, 0));
    OK(cuMemsetD8Async(range, 1, 1, NULL));
    cuStreamSynchronize(NULL);
}

static void work_beyond_the_mapping(void) {
    begin();
    CUdeviceptr range = reserved(2 * PAGE);
    CUmemGenericAllocationHandle handle = pages(PAGE);
    OK(cuMemMap(range, PAGE, 0, handle, 0));
    OK(access_by(0, range, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8Async(range + PAGE - 1, 1, 2, NULL));
    cuStreamSynchronize(NULL);
}

static void work_of_another_device(void) {
    begin();
    CUcontext second;
    at = mapped(PAGE);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemsetD8Async(at, 1, 1, NULL));
    cuStreamSynchronize(NULL);
}

static void work_on_another_devices_allocation(void) {
    CUcontext first = begin(), second;
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc_v2(&at, 100));
    OK(cuCtxSetCurrent(first));
    OK(cuMemsetD8Async(at, 1, 1, NULL));
    cuStreamSynchronize(NULL);
}

static void work_beyond_an_allocation(void) {
    begin();
    OK(cuMemAlloc_v2(&at, 100));
    OK(cuMemsetD8Async(at, 1, 101, NULL));
    cuStreamSynchronize(NULL);
}

static void unregistered_under_a_copy(void) {
    set_up();
    static char own[64];
    OK(cuMemHostRegister_v2(own, 64, 0));
    OK(cuMemcpyHtoDAsync_v2(at, own, 64, held));
    cuMemHostUnregister(own);
}

static void an_ordinary_event_in_a_capture(void) {
    begin();
    CUstream s = stream_of(0);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    cuEventRecord(e, s);
}

static void an_ordinary_event_on_a_stream_that_joined(void) {
    begin();
    CUstream s = stream_of(0), side = stream_of(0);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING), forked = fork_event();
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(forked, s));
    OK(cuStreamWaitEvent(side, forked, 0));
    cuEventRecord(e, side);
}

static void destroyed_while_capturing(void) {
    begin();
    CUstream s = stream_of(0);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    cuStreamDestroy_v2(s);
}

static void a_destroyed_graph(void) {
    begin();
    CUgraph graph;
    CUgraphExec exec;
    CUstream s = stream_of(0);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphDestroy(graph));
    cuGraphInstantiateWithFlags(&exec, graph, 0);
}

static void never_a_context(void) {
    OK(cuInit(0));
    cuCtxSetCurrent((CUcontext)&at);
}

static void contexts_never_popped(void) {
    CUcontext context = begin();
    for (int i = 0; i < 100; i++) {
        OK(cuCtxPushCurrent_v2(context));
    }
}

static void references_of_somebody_else(void) {
    begin();
    CUuserObject object;
    OK(cuUserObjectCreate(&object, NULL, gate_work, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    cuUserObjectRelease(object, 2);
}

static void an_event_of_a_context_that_was_reset_and_is_back(void) {
    CUcontext context = begin();
    CUevent e = event_of(0);
    OK(cuDevicePrimaryCtxReset_v2(0));
    IS(cuEventQuery(e), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    cuEventQuery(e);
}

#define ENDS(name, says) {#name, name, BROKEN, says, {NULL}}
static const struct trial trials[] = {
    ENDS(a_destroyed_stream, "standin: cuStreamQuery: stream 0x"),
    ENDS(a_stream_destroyed_twice, "standin: cuStreamDestroy_v2: stream 0x"),
    ENDS(the_id_of_a_destroyed_stream, "has been given back"),
    ENDS(never_a_stream, "standin: cuStreamSynchronize: stream 0x1234560 was never one"),
    ENDS(never_an_event, "was never one"),
    ENDS(a_destroyed_event, "standin: cuEventRecord: event 0x"),
    ENDS(a_released_handle, "standin: cuMemRelease: memory handle 0x"),
    ENDS(a_released_handle_that_is_mapped, "has been released"),
    ENDS(unmapped_under_a_fill, "are unmapped, and nobody has seen the work on stream 1"),
    ENDS(unmapped_under_a_copy, ", destroyed) complete that uses them"),
    ENDS(unmapped_under_a_graph, "are unmapped, and nobody has seen the work on stream 1"),
    ENDS(unmapped_under_a_declared_use, "are unmapped, and nobody has seen the work on stream 1"),
    ENDS(unmapped_while_the_work_runs, "are unmapped, and nobody has seen the work on stream 1"),
    ENDS(access_taken_under_work, "lose their access, and nobody has seen the work on stream 1"),
    ENDS(made_read_only_under_a_write, "become read-only, and nobody has seen"),
    {"what_work_in_flight_does_not_forbid", what_work_in_flight_does_not_forbid, WELL, NULL, {NULL}},
    ENDS(work_on_nothing, "writes 1 bytes at"),
    ENDS(work_without_access, "the device has no access there"),
    ENDS(work_beyond_the_mapping, "nothing is mapped there"),
    ENDS(work_of_another_device, "of device 1 writes"),
    ENDS(work_on_another_devices_allocation, "it is another device's, without peer access"),
    ENDS(work_beyond_an_allocation, "that goes beyond the allocation"),
    ENDS(unregistered_under_a_copy, "are unregistered, and nobody has seen"),
    ENDS(an_ordinary_event_in_a_capture, "which is an ordinary one, is recorded on stream 1"),
    ENDS(an_ordinary_event_on_a_stream_that_joined, "which is an ordinary one, is recorded on stream 2"),
    ENDS(destroyed_while_capturing, "is destroyed before the end of the capture"),
    ENDS(a_destroyed_graph, "graph 0x"),
    ENDS(never_a_context, "was never one"),
    ENDS(contexts_never_popped, "contexts pushed and not popped"),
    ENDS(an_event_of_a_context_that_was_reset_and_is_back, "went with a context that was reset"),
    ENDS(references_of_somebody_else, "references to user object"),
};
MAIN(trials)
