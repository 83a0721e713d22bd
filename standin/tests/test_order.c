/* Work on the same bytes must be in an order, and memory may go when its work was seen complete: whether it happens to
 * go well makes no difference. */
#include "check.h"
#include <sched.h>

static CUstream a, b;
static CUdeviceptr at;

static void set_up_with(unsigned flags) {
    begin();
    a = stream_of(flags);
    b = stream_of(flags);
    at = mapped(PAGE);
}

static void set_up(void) { set_up_with(CU_STREAM_NON_BLOCKING); }

static void tear_down(void) {
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
    unmapped(at, PAGE);
    end();
}

static void write_on(CUstream stream, size_t offset) { OK(cuMemsetD8Async(at + offset, 1, 64, stream)); }

/* Until the work is over, as nobody who asks the driver knows. */
static int over;
static void tell(void *data) {
    (void)data;
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
}

/* ---- what orders ---- */

static void one_stream(void) {
    set_up();
    write_on(a, 0);
    write_on(a, 32);
    write_on(b, 128); /* other bytes */
    tear_down();
}

static void readers(void) {
    set_up();
    CUdeviceptr other = mapped(PAGE);
    write_on(a, 0);
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoDAsync_v2(other, at, 64, a));
    OK(cuMemcpyDtoDAsync_v2(other + 64, at, 64, b));
    OK(cuCtxSynchronize());
    unmapped(other, PAGE);
    tear_down();
}

static void an_event(void) {
    set_up();
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    write_on(a, 0);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuEventRecord(e, b)); /* the wait stays what it was */
    write_on(b, 0);
    OK(cuEventDestroy_v2(e));
    tear_down();
}

static void an_event_of_an_event(void) {
    set_up();
    CUstream c = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    write_on(a, 0);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuEventRecord(e, b));
    OK(cuStreamWaitEvent(c, e, 0));
    write_on(c, 0);
    OK(cuEventDestroy_v2(e));
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(c));
    tear_down();
}

static void an_event_that_was_asked(void) {
    set_up();
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    write_on(a, 0);
    OK(cuEventRecord(e, a));
    while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
        usleep(100);
    }
    write_on(b, 0);
    OK(cuEventDestroy_v2(e));
    tear_down();
}

static void an_event_that_was_waited_for(void) {
    set_up();
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    write_on(a, 0);
    OK(cuEventRecord(e, a));
    OK(cuEventSynchronize(e));
    write_on(b, 0);
    OK(cuEventDestroy_v2(e));
    tear_down();
}

static void a_stream_that_was_asked(void) {
    set_up();
    write_on(a, 0);
    while (cuStreamQuery(a) == CUDA_ERROR_NOT_READY) {
        usleep(100);
    }
    write_on(b, 0);
    tear_down();
}

static void the_legacy_stream(void) {
    set_up_with(0);
    write_on(a, 0);
    write_on(NULL, 0);
    write_on(b, 0);
    OK(cuStreamDestroy_v2(b));
    write_on(NULL, 0);
    b = stream_of(0);
    write_on(b, 0);
    tear_down();
}

/* Also when the stream is long gone. */
static void the_legacy_stream_after_one_that_is_gone(void) {
    set_up_with(0);
    write_on(a, 0);
    OK(cuStreamDestroy_v2(a));
    usleep(50000);
    a = stream_of(0); /* which clears away what is over */
    write_on(NULL, 0);
    tear_down();
}

static struct gate gate = GATE;

static void a_host_function_that_tells_of_what_came_before(void) {
    set_up();
    write_on(a, 0);
    OK(cuLaunchHostFunc(a, gate_work, &gate));
    gate_wait_reached(&gate);
    write_on(b, 0);
    gate_open(&gate);
    tear_down();
}

/* The program looks at a flag in pinned memory, which the stream writes last. */
static void a_flag_that_the_program_looks_at(void) {
    set_up();
    volatile unsigned *flag;
    OK(cuMemHostAlloc((void **)&flag, 64, 0));
    for (unsigned i = 1; i <= 200; i++) {
        CUstream first = i % 2 ? a : b;
        write_on(first, 0);
        OK(cuMemsetD32Async((CUdeviceptr)(uintptr_t)flag, i, 1, first));
        while (*flag != i) {
            sched_yield(); // under valgrind one thread runs at a time, and might never leave off
        }
    }
    OK(cuMemFreeHost((void *)flag));
    tear_down();
}

/* Freeing waits for all work (measured), also for that of streams that are gone. */
static void a_free_of_other_memory(void) {
    set_up();
    CUdeviceptr other;
    write_on(a, 0);
    OK(cuStreamDestroy_v2(a));
    usleep(20000);
    a = stream_of(CU_STREAM_NON_BLOCKING); /* which clears away what is over */
    OK(cuMemAlloc_v2(&other, 64));
    OK(cuMemFree_v2(other));
    write_on(b, 0);
    tear_down();
}

static void launches_of_one_graph(void) {
    set_up();
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    write_on(a, 0);
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, a));
    OK(cuGraphLaunch(exec, b));
    write_on(b, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    tear_down();
}

/* ---- what does not ---- */

static void nothing(void) {
    set_up();
    write_on(a, 0);
    write_on(b, 63);
}

static void reading_what_is_written(void) {
    set_up();
    CUdeviceptr other = mapped(PAGE);
    write_on(a, 0);
    OK(cuMemcpyDtoDAsync_v2(other, at, 8, b));
}

static void writing_what_is_read(void) {
    set_up();
    CUdeviceptr other = mapped(PAGE);
    OK(cuMemcpyDtoDAsync_v2(other, at, 64, a));
    write_on(b, 0);
}

static void being_over(void) {
    set_up();
    standin_declare_use(a, (void *)(uintptr_t)at, 64);
    OK(cuLaunchHostFunc(a, tell, NULL));
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        usleep(100);
    }
    usleep(20000);
    write_on(b, 0);
}

/* ... when it does not come last. */
static void a_flag_that_comes_before(void) {
    set_up();
    volatile unsigned *flag;
    OK(cuMemHostAlloc((void **)&flag, 64, 0));
    OK(cuMemsetD32Async((CUdeviceptr)(uintptr_t)flag, 1, 1, a));
    write_on(a, 0);
    while (*flag != 1) {
        sched_yield();
    }
    write_on(b, 0);
}

static void an_event_recorded_too_early(void) {
    set_up();
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord(e, a));
    write_on(a, 0);
    OK(cuEventSynchronize(e));
    write_on(b, 0);
}

static void an_event_waited_for_too_late(void) {
    set_up();
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    write_on(a, 0);
    OK(cuEventRecord(e, a));
    write_on(b, 0);
    OK(cuStreamWaitEvent(b, e, 0));
}

static void the_legacy_stream_and_one_that_does_not_block(void) {
    set_up();
    write_on(a, 0);
    write_on(NULL, 0);
}

static void the_same_page_at_another_address(void) {
    set_up();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr alias = reserved(PAGE);
    OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
    OK(cuMemMap(alias, PAGE, 0, handle, 0));
    OK(access_by(0, alias, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    write_on(a, 0);
    OK(cuMemsetD8Async(alias, 1, 1, b));
}

static void a_destroyed_stream(void) {
    set_up();
    write_on(a, 0);
    OK(cuStreamDestroy_v2(a));
    write_on(b, 0);
}

static void an_allocation(void) {
    set_up();
    OK(cuMemAlloc_v2(&at, 64));
    write_on(a, 0);
    write_on(b, 0);
}

static void two_graphs(void) {
    set_up();
    CUgraph graph;
    CUgraphExec first, second;
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    write_on(a, 0);
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiateWithFlags(&first, graph, 0));
    OK(cuGraphInstantiateWithFlags(&second, graph, 0));
    OK(cuGraphLaunch(first, a));
    OK(cuGraphLaunch(second, b));
}

/* ---- memory that goes ---- */

static void unmapped_when_it_is_over_but_nobody_has_seen_it(void) {
    set_up();
    standin_declare_use(a, (void *)(uintptr_t)at, 64);
    OK(cuLaunchHostFunc(a, tell, NULL));
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        usleep(100);
    }
    usleep(20000);
    cuMemUnmap(at, PAGE);
}

static void unmapped_when_another_stream_was_seen(void) {
    set_up();
    write_on(a, 0);
    OK(cuStreamSynchronize(b));
    cuMemUnmap(at, PAGE);
}

static void unmapped_when_an_event_behind_it_was_seen(void) {
    set_up();
    CUevent e = event_of(CU_EVENT_DISABLE_TIMING);
    write_on(a, 0);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuEventRecord(e, b));
    OK(cuEventSynchronize(e));
    OK(cuMemUnmap(at, PAGE));
    OK(cuMemAddressFree(at, PAGE));
    OK(cuEventDestroy_v2(e));
    at = mapped(PAGE);
    tear_down();
}

#define WELL_ORDERED(name) {#name, name, WELL, NULL, {NULL}}
#define UNORDERED(name, says) {#name, name, BROKEN, says, {NULL}}
#define NOTHING_ORDERS "and nothing orders the two"
static const struct trial trials[] = {
    WELL_ORDERED(one_stream),
    WELL_ORDERED(readers),
    WELL_ORDERED(an_event),
    WELL_ORDERED(an_event_of_an_event),
    WELL_ORDERED(an_event_that_was_asked),
    WELL_ORDERED(an_event_that_was_waited_for),
    WELL_ORDERED(a_stream_that_was_asked),
    WELL_ORDERED(the_legacy_stream),
    WELL_ORDERED(the_legacy_stream_after_one_that_is_gone),
    WELL_ORDERED(a_host_function_that_tells_of_what_came_before),
    WELL_ORDERED(a_flag_that_the_program_looks_at),
    WELL_ORDERED(a_free_of_other_memory),
    WELL_ORDERED(launches_of_one_graph),
    UNORDERED(nothing, NOTHING_ORDERS),
    UNORDERED(reading_what_is_written, NOTHING_ORDERS),
    UNORDERED(writing_what_is_read, NOTHING_ORDERS),
    UNORDERED(being_over, NOTHING_ORDERS),
    UNORDERED(a_flag_that_comes_before, NOTHING_ORDERS),
    UNORDERED(an_event_recorded_too_early, NOTHING_ORDERS),
    UNORDERED(an_event_waited_for_too_late, NOTHING_ORDERS),
    UNORDERED(the_legacy_stream_and_one_that_does_not_block, NOTHING_ORDERS),
    UNORDERED(the_same_page_at_another_address, NOTHING_ORDERS),
    UNORDERED(a_destroyed_stream, NOTHING_ORDERS),
    UNORDERED(an_allocation, NOTHING_ORDERS),
    UNORDERED(two_graphs, NOTHING_ORDERS),
    UNORDERED(unmapped_when_it_is_over_but_nobody_has_seen_it, "are unmapped, and nobody has seen the work on stream 1"),
    UNORDERED(unmapped_when_another_stream_was_seen, "are unmapped, and nobody has seen the work on stream 1"),
    WELL_ORDERED(unmapped_when_an_event_behind_it_was_seen),
};
MAIN(trials)
