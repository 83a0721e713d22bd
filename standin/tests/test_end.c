/* The end of the process: what is open then, unloading, and fork. */
#include "check.h"

static void nothing_open(void) {
    begin();
    IS(standin_open(NULL, 0), 1);
    end();
    IS(standin_open(NULL, 0), 0);
}

static void never_used(void) {}

static void one_of_each(void) {
    begin();
    CUcontext context;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr at;
    void *host;
    static char own[64];
    CUstream s = stream_of(0);
    event_of(0);
    event_of(0);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    mapped(PAGE);
    pages(PAGE);
    OK(cuMemAlloc_v2(&at, 10));
    OK(cuMemHostAlloc(&host, 10, 0));
    OK(cuMemHostRegister_v2(own, 64, 0));
    OK(cuCtxCreate_v2(&context, 0, 0));
}

#define ONE_OF_EACH                                                                                                    \
    "still open at the end: 1 context, 1 reference to a primary context, 1 stream, 2 events, 1 graph, 1 executable "   \
    "graph, 1 address range, 1 mapping, 1 memory handle, 1 device allocation, 1 pinned allocation, 1 registration\n"

static void a_capture(void) {
    begin();
    OK(cuStreamBeginCapture_v2(stream_of(0), CU_STREAM_CAPTURE_MODE_RELAXED));
}

/* The last reference to the context takes them along, and whoever left them is told all the same. */
static void left_in_a_context(void) {
    begin();
    event_of(0);
    stream_of(0);
    end();
}

/* Resetting the device says that they are to go. */
static void gone_with_a_reset(void) {
    begin();
    event_of(0);
    stream_of(0);
    OK(cuDevicePrimaryCtxReset_v2(0));
    end();
}

static void work_that_never_ends_its_queue(void) {
    begin();
    CUstream s = stream_of(0);
    static struct gate gate = GATE;
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    gate_wait_reached(&gate);
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    gate_open(&gate);
}

static CUevent kept;

static void use_at_exit(void) { cuEventQuery(kept); }

static void loudly(void) {
    begin();
    standin_unload();
    cuCtxSynchronize();
}

static void quietly(void) {
    begin();
    event_of(0);
    standin_unload_quietly();
    int version;
    IS(cuCtxSynchronize(), CUDA_ERROR_DEINITIALIZED);
    IS(cuInit(0), CUDA_ERROR_DEINITIALIZED);
    IS(cuDriverGetVersion(&version), CUDA_ERROR_DEINITIALIZED);
}

/* A handler registered before cuInit runs behind the unloading, one registered after it before. */
static void at_exit_after_the_driver(void) {
    atexit(use_at_exit);
    begin();
    kept = event_of(0);
}

static void use_before_and_leave_well(void) {
    OK(cuEventQuery(kept));
    OK(cuEventDestroy_v2(kept));
    end();
}

static void at_exit_before_the_driver(void) {
    begin();
    kept = event_of(0);
    atexit(use_before_and_leave_well);
}

static CUresult in_static_object;
__attribute__((destructor)) static void static_object(void) {
    if (in_static_object == CUDA_ERROR_NOT_READY) {
        in_static_object = cuEventQuery(kept);
        IS(in_static_object, CUDA_ERROR_DEINITIALIZED);
    }
}

static void static_object_after_the_driver(void) {
    begin();
    kept = event_of(0);
    in_static_object = CUDA_ERROR_NOT_READY; /* to be asked */
}

static void fork_and(void (*run)(void), int ending) {
    pid_t child = fork();
    if (child == 0) {
        run();
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    IS(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), ending);
}

static void call_in_child(void) { cuEventQuery(kept); }

static void refused_in_child(void) {
    CUcontext context;
    IS(cuEventQuery(kept), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
}

static void nothing_in_child(void) {}

static void fork_with_work(void (*run)(void), int ending) {
    begin();
    static struct gate gate = GATE;
    CUstream s = stream_of(0);
    kept = event_of(0);
    CUdeviceptr at = mapped(PAGE);
    OK(cuMemsetD8Async(at, 1, PAGE, s));
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    gate_wait_reached(&gate);
    fork_and(run, ending);
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
    OK(cuEventDestroy_v2(kept));
    unmapped(at, PAGE);
    end();
}

static void a_child_that_calls(void) { fork_with_work(call_in_child, -SIGABRT); }
static void a_child_that_is_refused(void) { fork_with_work(refused_in_child, 0); }
static void a_child_that_does_not_call(void) { fork_with_work(nothing_in_child, 0); }

static void begin_and_end(void) {
    begin();
    end();
}

static void a_child_of_a_process_without_driver(void) {
    IS(standin_calls(NULL), 0);
    fork_and(begin_and_end, 0);
    begin_and_end();
}

static const struct trial trials[] = {
    {"nothing_open", nothing_open, WELL, NULL, {NULL}},
    {"never_used", never_used, WELL, NULL, {NULL}},
    {"one_of_each", one_of_each, OPEN, ONE_OF_EACH, {NULL}},
    {"one_of_each_without_report", one_of_each, WELL, NULL, {"WEIR_STANDIN_LEAKS=0"}},
    {"a_capture", a_capture, OPEN, "1 stream, 1 capture\n", {NULL}},
    {"left_in_a_context", left_in_a_context, OPEN, "still open at the end: 1 stream, 1 event\n", {NULL}},
    {"gone_with_a_reset", gone_with_a_reset, WELL, NULL, {NULL}},
    {"work_that_never_ends_its_queue", work_that_never_ends_its_queue, WELL, NULL, {"WEIR_STANDIN_LEAKS=0"}},
    {"loudly", loudly, BROKEN, "standin: cuCtxSynchronize: the driver has been unloaded", {NULL}},
    {"quietly", quietly, WELL, NULL, {NULL}},
    {"at_exit_after_the_driver", at_exit_after_the_driver, BROKEN, "standin: cuEventQuery: the driver has been unloaded",
     {"WEIR_STANDIN_UNLOAD_AT_EXIT=abort"}},
    {"at_exit_after_the_driver_quietly", at_exit_after_the_driver, WELL, NULL, {"WEIR_STANDIN_UNLOAD_AT_EXIT=return"}},
    {"at_exit_before_the_driver", at_exit_before_the_driver, WELL, NULL, {"WEIR_STANDIN_UNLOAD_AT_EXIT=abort"}},
    {"static_object_after_the_driver", static_object_after_the_driver, WELL, NULL,
     {"WEIR_STANDIN_UNLOAD_AT_EXIT=return"}},
    {"a_child_that_calls", a_child_that_calls, WELL, "was forked from one that uses the driver", {NULL}},
    {"a_child_that_is_refused", a_child_that_is_refused, WELL, NULL, {"WEIR_STANDIN_FORKED=return"}},
    {"a_child_that_does_not_call", a_child_that_does_not_call, WELL, NULL, {NULL}},
    {"a_child_of_a_process_without_driver", a_child_of_a_process_without_driver, WELL, NULL, {NULL}},
};
MAIN(trials)
