/* Streams, the order of their work, and the events that tell of it. */
#include "check.h"

static int order[64];
static int order_count;

static void note(void *data) { order[__atomic_fetch_add(&order_count, 1, __ATOMIC_SEQ_CST)] = (int)(intptr_t)data; }

static void work_runs_in_order(void) {
    begin();
    CUstream s = stream_of(0);
    CUdeviceptr at = mapped(PAGE);
    for (intptr_t i = 0; i < 50; i++) {
        OK(cuLaunchHostFunc(s, note, (void *)i));
    }
    OK(cuMemsetD8Async(at, 0x11, PAGE, s));
    OK(cuMemsetD32Async(at + 4096, 0x22334455, 1024, s));
    OK(cuStreamSynchronize(s));
    for (int i = 0; i < 50; i++) {
        IS(order[i], i);
    }
    IS(bytes_at(at)[0], 0x11);
    IS(bytes_at(at)[4095], 0x11);
    IS(bytes_at(at)[4096], 0x55);
    IS(bytes_at(at)[4099], 0x22);
    IS(bytes_at(at)[8192], 0x11);
    OK(cuStreamDestroy_v2(s));
    unmapped(at, PAGE);
    end();
}

static void streams_do_not_wait_for_each_other(void) {
    begin();
    struct gate gate = GATE;
    CUstream held = stream_of(0), running = stream_of(0);
    OK(cuLaunchHostFunc(held, gate_work, &gate));
    OK(cuLaunchHostFunc(running, note, NULL));
    OK(cuStreamSynchronize(running));
    IS(order_count, 1);
    IS(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    OK(cuStreamSynchronize(held));
    OK(cuStreamQuery(held));
    OK(cuStreamDestroy_v2(held));
    OK(cuStreamDestroy_v2(running));
    end();
}

static void a_destroyed_stream_finishes_its_work(void) {
    begin();
    struct gate gate = GATE;
    CUstream s = stream_of(0);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    OK(cuLaunchHostFunc(s, note, NULL));
    OK(cuEventRecord(e, s));
    OK(cuStreamDestroy_v2(s));
    IS(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    IS(order_count, 0);
    gate_open(&gate);
    OK(cuEventSynchronize(e));
    IS(order_count, 1);
    OK(cuEventDestroy_v2(e));
    end();
}

static void handles_are_used_again_at_once_and_ids_never(void) {
    begin();
    struct gate gate = GATE;
    unsigned long long first, second;
    CUstream a = stream_of(0), b = stream_of(0);
    OK(cuStreamGetId(b, &first));
    OK(cuLaunchHostFunc(b, gate_work, &gate));
    OK(cuStreamDestroy_v2(b));
    CUstream c = stream_of(0);
    CHECK(c == b);
    OK(cuStreamGetId(c, &second));
    CHECK(first != second);
    OK(cuStreamQuery(c));
    unsigned flags;
    OK(cuStreamGetFlags(c, &flags));
    IS(flags, 0);
    CUstream free_running = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuStreamGetFlags(free_running, &flags));
    IS(flags, CU_STREAM_NON_BLOCKING);
    IS(cuStreamGetFlags(free_running, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamDestroy_v2(free_running));
    gate_open(&gate);
    CUevent e = event_of(0);
    OK(cuEventDestroy_v2(e));
    CHECK(event_of(0) == e);
    OK(cuEventDestroy_v2(e));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(c));
    end();
}

/* The legacy stream comes after all that blocking streams have, and they after it; non-blocking ones are left alone. */
static void the_legacy_stream_waits_and_is_waited_for(void) {
    begin();
    struct gate gate = GATE;
    CUstream blocking = stream_of(0), free_running = stream_of(CU_STREAM_NON_BLOCKING), other = stream_of(0);
    OK(cuLaunchHostFunc(blocking, gate_work, &gate));
    OK(cuLaunchHostFunc(NULL, note, (void *)1));
    OK(cuLaunchHostFunc(other, note, (void *)2));
    OK(cuLaunchHostFunc(free_running, note, (void *)3));
    OK(cuStreamSynchronize(free_running));
    usleep(20000);
    IS(order_count, 1);
    IS(order[0], 3);
    IS(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    IS(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    gate_open(&gate);
    OK(cuStreamSynchronize(other));
    IS(order_count, 3);
    IS(order[1], 1);
    IS(order[2], 2);
    OK(cuStreamDestroy_v2(blocking));
    OK(cuStreamDestroy_v2(free_running));
    OK(cuStreamDestroy_v2(other));
    end();
}

/* Synchronising it covers the blocking streams' work, too. */
static void synchronising_the_legacy_stream_covers_blocking_ones(void) {
    begin();
    struct gate gate = GATE;
    CUstream blocking = stream_of(0), free_running = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuLaunchHostFunc(free_running, gate_work, &gate));
    OK(cuStreamSynchronize(NULL));
    OK(cuLaunchHostFunc(blocking, note, NULL));
    OK(cuStreamSynchronize(NULL));
    IS(order_count, 1);
    OK(cuStreamQuery(blocking));
    gate_open(&gate);
    OK(cuCtxSynchronize());
    OK(cuStreamQuery(free_running));
    OK(cuStreamDestroy_v2(blocking));
    OK(cuStreamDestroy_v2(free_running));
    end();
}

static unsigned long long ids[3];

static void ask_per_thread_id(void) {
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[1]));
    OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, note, (void *)7));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void each_thread_has_its_stream(void) {
    begin();
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[0]));
    OK(cuStreamGetId(CU_STREAM_LEGACY, &ids[2]));
    CHECK(ids[0] != ids[2]);
    on_thread(ask_per_thread_id);
    CHECK(ids[1] != ids[0] && ids[1] != ids[2]);
    IS(order[0], 7);
    unsigned long long again;
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
    IS(again, ids[0]);
    OK(cuStreamGetId(NULL, &again));
    IS(again, ids[2]);
    end();
}

static void events_order_streams(void) {
    begin();
    struct gate gate = GATE;
    CUstream a = stream_of(0), b = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    OK(cuEventQuery(e)); /* never recorded: nothing to wait for */
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuLaunchHostFunc(a, gate_work, &gate));
    OK(cuLaunchHostFunc(a, note, (void *)1));
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuLaunchHostFunc(b, note, (void *)2));
    /* The wait is for what was recorded then; neither a later record nor the event's end changes it. */
    OK(cuEventRecord(e, b));
    OK(cuEventDestroy_v2(e));
    usleep(20000);
    IS(order_count, 0);
    gate_open(&gate);
    OK(cuStreamSynchronize(b));
    IS(order[0], 1);
    IS(order[1], 2);
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
    end();
}

/* What another process would see: an event that was opened knows the page alone. */
static void events_are_opened_by_their_handles(void) {
    begin();
    struct gate gate = GATE;
    CUstream a = stream_of(0), b = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), opened, not_for_it = event_of(0);
    CUipcEventHandle handle;
    IS(cuIpcGetEventHandle(&handle, not_for_it), CUDA_ERROR_INVALID_HANDLE);
    memset(&handle, 0, sizeof handle);
    IS(cuIpcOpenEventHandle(&opened, handle), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcGetEventHandle(&handle, e));
    OK(cuIpcOpenEventHandle(&opened, handle));
    CHECK(opened != e);
    OK(cuEventQuery(opened)); /* never recorded */
    OK(cuLaunchHostFunc(a, gate_work, &gate));
    OK(cuLaunchHostFunc(a, note, (void *)1));
    OK(cuEventRecord(e, a));
    IS(cuEventQuery(opened), CUDA_ERROR_NOT_READY);
    OK(cuStreamWaitEvent(b, opened, 0));
    OK(cuLaunchHostFunc(b, note, (void *)2));
    usleep(20000);
    IS(order_count, 0);
    gate_open(&gate);
    OK(cuEventSynchronize(opened));
    OK(cuEventQuery(opened));
    OK(cuStreamSynchronize(b));
    IS(order[0], 1);
    IS(order[1], 2);
    OK(cuEventDestroy_v2(e));
    IS(cuIpcOpenEventHandle(&e, handle), CUDA_ERROR_MAP_FAILED);
    OK(cuEventDestroy_v2(opened));
    OK(cuEventDestroy_v2(not_for_it));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
    end();
}

static void events_measure_time(void) {
    begin();
    CUstream s = stream_of(0);
    CUevent start = event_of(0), stop = event_of(0), untimed = event_of(CU_EVENT_DISABLE_TIMING);
    float milliseconds = -1;
    IS(cuEventElapsedTime(&milliseconds, start, stop), CUDA_ERROR_INVALID_HANDLE);
    struct gate gate = GATE;
    OK(cuEventRecord(start, s));
    OK(cuLaunchHostFunc(s, gate_work, &gate));
    OK(cuEventRecord(stop, s));
    OK(cuEventRecord(untimed, s));
    OK(cuEventSynchronize(start));
    IS(cuEventElapsedTime(&milliseconds, start, stop), CUDA_ERROR_NOT_READY);
    usleep(20000);
    gate_open(&gate);
    OK(cuEventSynchronize(stop));
    OK(cuEventElapsedTime(&milliseconds, start, stop));
    CHECK(milliseconds >= 19.0f && milliseconds < 10000.0f);
    IS(cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy_v2(start));
    OK(cuEventDestroy_v2(stop));
    OK(cuEventDestroy_v2(untimed));
    OK(cuStreamDestroy_v2(s));
    end();
}

static CUresult result_inside;

static void call_inside(void *data) { result_inside = cuStreamQuery(data); }

static void host_functions_may_make_no_calls(void) {
    begin();
    CUstream s = stream_of(0);
    OK(cuLaunchHostFunc(s, call_inside, s));
    OK(cuStreamSynchronize(s));
    IS(result_inside, CUDA_ERROR_NOT_PERMITTED);
    OK(cuStreamDestroy_v2(s));
    end();
}

static void bad_arguments(void) {
    begin();
    CUstream s;
    CUevent e;
    IS(cuStreamCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuStreamCreate(&s, 2), CUDA_ERROR_INVALID_VALUE);
    IS(cuStreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
    IS(cuStreamDestroy_v2(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_HANDLE);
    IS(cuEventCreate(&e, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    IS(cuEventCreate(&e, 64), CUDA_ERROR_INVALID_VALUE);
    IS(cuEventQuery(NULL), CUDA_ERROR_INVALID_HANDLE);
    IS(cuEventRecord(NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    IS(cuEventDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
    IS(cuStreamWaitEvent(NULL, NULL, 0), CUDA_ERROR_INVALID_HANDLE);
    IS(cuMemsetD8Async(12345, 0, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchHostFunc(NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    end();
}

/* Streams and events that have a context need no current one; making them and the built-in streams do. */
static void without_a_current_context(void) {
    CUcontext context = begin();
    CUstream s = stream_of(0);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING), made;
    CUstreamCaptureStatus status;
    unsigned long long id;
    OK(cuCtxSetCurrent(NULL));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(s, e, 0));
    OK(cuEventSynchronize(e));
    OK(cuEventQuery(e));
    OK(cuStreamSynchronize(s));
    OK(cuStreamGetId(s, &id));
    OK(cuStreamIsCapturing(s, &status));
    IS(cuEventCreate(&made, 0), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuEventRecord(e, NULL), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuStreamGetId(NULL, &id), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuStreamIsCapturing(CU_STREAM_PER_THREAD, &status), CUDA_ERROR_INVALID_CONTEXT);
    CUdeviceptr at = mapped(PAGE);
    IS(cuMemsetD8Async(at, 1, 1, s), CUDA_ERROR_INVALID_CONTEXT);
    unmapped(at, PAGE);
    OK(cuEventDestroy_v2(e));
    OK(cuStreamDestroy_v2(s));
    OK(cuCtxSetCurrent(context));
    end();
}

static void an_event_stays_with_its_context(void) {
    begin();
    CUcontext second;
    CUstream there;
    CUevent here = event_of(0);
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuStreamCreate(&there, 0));
    IS(cuEventRecord(here, there), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamWaitEvent(there, here, 0)); /* this may cross */
    OK(cuStreamDestroy_v2(there));
    OK(cuCtxDestroy_v2(second));
    OK(cuEventDestroy_v2(here));
    end();
}

static const struct trial trials[] = {
    {"work_runs_in_order", work_runs_in_order, WELL, NULL, {NULL}},
    {"streams_do_not_wait_for_each_other", streams_do_not_wait_for_each_other, WELL, NULL, {NULL}},
    {"a_destroyed_stream_finishes_its_work", a_destroyed_stream_finishes_its_work, WELL, NULL, {NULL}},
    {"handles_are_used_again_at_once_and_ids_never", handles_are_used_again_at_once_and_ids_never, WELL, NULL, {NULL}},
    {"the_legacy_stream_waits_and_is_waited_for", the_legacy_stream_waits_and_is_waited_for, WELL, NULL, {NULL}},
    {"synchronising_the_legacy_stream_covers_blocking_ones", synchronising_the_legacy_stream_covers_blocking_ones, WELL,
     NULL, {NULL}},
    {"each_thread_has_its_stream", each_thread_has_its_stream, WELL, NULL, {NULL}},
    {"events_order_streams", events_order_streams, WELL, NULL, {NULL}},
    {"events_are_opened_by_their_handles", events_are_opened_by_their_handles, WELL, NULL, {NULL}},
    {"events_measure_time", events_measure_time, WELL, NULL, {NULL}},
    {"host_functions_may_make_no_calls", host_functions_may_make_no_calls, WELL, NULL, {NULL}},
    {"bad_arguments", bad_arguments, WELL, NULL, {NULL}},
    {"without_a_current_context", without_a_current_context, WELL, NULL, {NULL}},
    {"an_event_stays_with_its_context", an_event_stays_with_its_context, WELL, NULL, {NULL}},
};
MAIN(trials)
