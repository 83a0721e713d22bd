/* Many threads at once, each with streams of its own that come and go, and memory that comes, moves and goes. What each
 * wrote is what it reads. */
#include "check.h"

#define THREADS 4
static int rounds = 150;

struct random {
    uint64_t state;
};

static unsigned draw(struct random *random, unsigned below) {
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random->state >> 33) % below;
}

/* A page written on one stream, handed to another by an event, checked there, and moved by an alias while that is in
 * flight. */
static void pass_on(struct random *random, CUstream from, CUstream to) {
    CUdeviceptr here = mapped(PAGE), there = reserved(PAGE);
    CUmemGenericAllocationHandle handle;
    CUevent e = event_of(draw(random, 2) ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT);
    unsigned value = draw(random, 1u << 30), read[2];
    size_t at = 4 * draw(random, PAGE / 4 - 2);
    OK(cuMemsetD32Async(here + at, value, 2, from));
    OK(cuEventRecord(e, from));
    OK(cuStreamWaitEvent(to, e, 0));
    OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)here));
    OK(cuMemMap(there, PAGE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(access_by(0, there, PAGE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemcpyDtoHAsync_v2(read, there + at, sizeof read, to));
    IS(read[0], value);
    IS(read[1], value);
    if (draw(random, 2)) {
        OK(cuEventSynchronize(e));
    } else {
        OK(cuStreamSynchronize(from));
    }
    unmapped(here, PAGE);
    OK(cuStreamSynchronize(to));
    unmapped(there, PAGE);
    OK(cuEventDestroy_v2(e));
}

static void add_one(void *data) { __atomic_fetch_add((unsigned *)data, 1, __ATOMIC_RELAXED); }

/* On a stream that the legacy one, which other threads use, does not wait for. */
static void capture_and_launch(struct random *random) {
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    unsigned calls = 0, launches = 1 + draw(random, 3);
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuLaunchHostFunc(s, add_one, &calls));
    OK(cuLaunchHostFunc(s, add_one, &calls));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (unsigned i = 0; i < launches; i++) {
        OK(cuGraphLaunch(exec, s));
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(s));
    IS(calls, 2 * launches);
}

static void *work(void *data) {
    struct random random = {(uint64_t)(uintptr_t)data};
    CUcontext context;
    CUstream streams[3];
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 3; i++) {
        streams[i] = stream_of(i % 2);
    }
    for (int round = 0; round < rounds; round++) {
        unsigned which = draw(&random, 3);
        CUstream from = streams[which], to = streams[(which + 1) % 3];
        switch (draw(&random, 8)) {
        case 0:
            OK(cuStreamDestroy_v2(from));
            streams[which] = stream_of(draw(&random, 2));
            break;
        case 1:
            capture_and_launch(&random);
            break;
        case 2:
            pass_on(&random, CU_STREAM_PER_THREAD, to);
            break;
        case 3:
            OK(cuLaunchHostFunc(CU_STREAM_LEGACY, add_one, &random.state));
            OK(cuStreamSynchronize(CU_STREAM_LEGACY));
            break;
        default:
            pass_on(&random, from, to);
        }
    }
    for (int i = 0; i < 3; i++) {
        OK(cuStreamDestroy_v2(streams[i]));
    }
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return NULL;
}

static void many_threads(void) {
    pthread_t threads[THREADS];
    if (under_valgrind()) {
        rounds = 20;
    }
    OK(cuInit(0));
    for (uintptr_t i = 0; i < THREADS; i++) {
        IS(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        IS(pthread_join(threads[i], NULL), 0);
    }
    IS(standin_open(NULL, 0), 0);
}

static const struct trial trials[] = {
    {"many_threads", many_threads, WELL, NULL, {NULL}},
};
MAIN(trials)
