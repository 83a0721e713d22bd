/* A small training step with kernels, captured in every mode on two streams that fork and join, its activations and
 * gradients allocated and freed inside. Each graph is launched a hundred times with another input, beside the other
 * graphs and beside threads that allocate, write, check and free in the same pool; every result is compared with
 * what the host computes.
 *
 *   capture [REPLAYS]      a hundred by default */
#include "gpu.cuh"
#include <atomic>
#include <pthread.h>

enum { LAYERS = 8, MODES = 3, SIDES = 4 };
static const uint64_t count = 1 << 20; /* words of an activation */
static const size_t bytes = count * sizeof(uint32_t);
static const cudaStreamCaptureMode modes[MODES] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                                   cudaStreamCaptureModeRelaxed};
static weir_pool *pool;
static findings *found;

/* One layer: integers, so that the host gets the very same. */
__host__ __device__ static inline uint32_t forward_word(uint32_t x, uint32_t w) { return x * 2654435761u + w; }
__host__ __device__ static inline uint32_t backward_word(uint32_t g, uint32_t x, uint32_t w) { return (g ^ x) * 40503u + w; }

static __global__ void make_weights(uint32_t *w, uint64_t n, uint32_t layer) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        w[i] = (uint32_t)i ^ layer;
    }
}
static __global__ void forward(uint32_t *y, const uint32_t *x, const uint32_t *w, uint64_t n) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        y[i] = forward_word(x[i], w[i]);
    }
}
static __global__ void backward(uint32_t *out, const uint32_t *g, const uint32_t *x, const uint32_t *w, uint64_t n) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        out[i] = backward_word(g[i], x[i], w[i]);
    }
}
static __global__ void fill_input(uint32_t *x, uint64_t n, uint32_t value) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        x[i] = value + (uint32_t)i;
    }
}
/* Compares with what the formula gives: the whole step for one word, LAYERS forward and back. */
__host__ __device__ static inline uint32_t expected_word(uint64_t i, uint32_t value) {
    uint32_t x[LAYERS + 1];
    x[0] = value + (uint32_t)i;
    for (int l = 0; l < LAYERS; l++) {
        x[l + 1] = forward_word(x[l], (uint32_t)i ^ (uint32_t)l);
    }
    uint32_t g = x[LAYERS];
    for (int l = LAYERS - 1; l >= 0; l--) {
        g = backward_word(g, x[l], (uint32_t)i ^ (uint32_t)l);
    }
    return g;
}
static __global__ void compare(const uint32_t *seen, uint64_t n, uint32_t value, findings *f) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t want = expected_word(i, value);
        if (seen[i] != want && atomicAdd_system(&f->broken, 1ull) == 0) {
            f->seed = value;
            f->index = i;
            f->got = seen[i];
            f->want = want;
        }
    }
}

typedef struct {
    cudaStream_t s, t;
    cudaEvent_t fork, join;
    uint32_t *in, *out;
    uint64_t id;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
} step;

static uint32_t *alloc_on(cudaStream_t stream, size_t n) {
    void *p = NULL;
    CHECK_OK(weir_pool_alloc(pool, n, stream, &p));
    return (uint32_t *)p;
}
static void free_on(cudaStream_t stream, void *p) { CHECK_OK(weir_pool_free(pool, p, stream)); }

/* The step itself, as a program would write it that knows nothing of captures. */
static void train(step *k) {
    uint32_t *w[LAYERS], *x[LAYERS + 1];
    unsigned grid = grid_for(count);

    /* Weights come from a second stream. */
    CHECK_OK(weir_event_record(k->fork, k->s));
    CHECK_OK(weir_stream_wait_event(k->t, k->fork));
    for (int l = 0; l < LAYERS; l++) {
        w[l] = alloc_on(k->t, bytes);
        make_weights<<<grid, 256, 0, k->t>>>(w[l], count, (uint32_t)l);
        uint32_t *noise = alloc_on(k->t, bytes / 2);
        write_pattern<<<grid, 256, 0, k->t>>>(noise, count / 2, (uint64_t)l);
        free_on(k->t, noise);
    }
    CHECK_OK(weir_event_record(k->join, k->t));
    CHECK_OK(weir_stream_wait_event(k->s, k->join));

    x[0] = alloc_on(k->s, bytes);
    CUDA_OK(cudaMemcpyAsync(x[0], k->in, bytes, cudaMemcpyDeviceToDevice, k->s));
    for (int l = 0; l < LAYERS; l++) {
        uint32_t *scratch = alloc_on(k->s, bytes + (size_t)l * MiB);
        write_pattern<<<grid, 256, 0, k->s>>>(scratch, count, 99);
        x[l + 1] = alloc_on(k->s, bytes);
        forward<<<grid, 256, 0, k->s>>>(x[l + 1], x[l], w[l], count);
        free_on(k->s, scratch);
    }
    uint32_t *g = x[LAYERS];
    for (int l = LAYERS - 1; l >= 0; l--) {
        uint32_t *next = alloc_on(k->s, bytes);
        backward<<<grid, 256, 0, k->s>>>(next, g, x[l], w[l], count);
        free_on(k->s, g);
        free_on(k->s, x[l]);
        free_on(k->s, w[l]);
        g = next;
    }
    CUDA_OK(cudaMemcpyAsync(k->out, g, bytes, cudaMemcpyDeviceToDevice, k->s));
    free_on(k->s, g);
    LAUNCHED();
}

static void launch(step *k, uint32_t value) {
    fill_input<<<grid_for(count), 256, 0, k->s>>>(k->in, count, value);
    CUDA_OK(cudaMemsetAsync(k->out, 0, bytes, k->s));
    CUDA_OK(cudaGraphLaunch(k->exec, k->s));
    compare<<<grid_for(count), 256, 0, k->s>>>(k->out, count, value, found);
    LAUNCHED();
}

typedef struct {
    pthread_t thread;
    cudaStream_t stream;
    uint64_t random;
    long blocks;
} side;
static std::atomic<bool> stop;
static std::atomic<long> ahead; /* launches queued and not seen complete; bounded, without a call that a capture refuses */

static void CUDART_CB seen_complete(void *) { ahead--; }

static void *side_main(void *arg) {
    side *me = (side *)arg;
    while (!stop) {
        if (ahead > 2000) {
            usleep(100);
            continue;
        }
        me->random ^= me->random << 13, me->random ^= me->random >> 7, me->random ^= me->random << 17;
        size_t n = 4 + me->random % (2 * bytes) / 4 * 4;
        uint32_t *p = alloc_on(me->stream, n);
        queue_write(me->stream, p, n, me->random);
        queue_check(me->stream, p, n, me->random, found);
        free_on(me->stream, p);
        ahead++;
        CUDA_OK(cudaLaunchHostFunc(me->stream, seen_complete, NULL));
        me->blocks++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    int replays = argc > 1 ? atoi(argv[1]) : 100;
    step steps[MODES];
    side sides[SIDES];
    print_device();
    load_kernels();
    found = host_visible<findings>();
    pool = gpu_pool(0, "capture");

    /* Once without a graph: the same code is right, and its kernels are loaded. */
    for (int m = 0; m < MODES; m++) {
        step *k = &steps[m];
        memset((void *)k, 0, sizeof *k);
        CUDA_OK(cudaStreamCreateWithFlags(&k->s, cudaStreamNonBlocking));
        CUDA_OK(cudaStreamCreateWithFlags(&k->t, cudaStreamNonBlocking));
        CUDA_OK(cudaEventCreateWithFlags(&k->fork, cudaEventDisableTiming));
        CUDA_OK(cudaEventCreateWithFlags(&k->join, cudaEventDisableTiming));
        k->in = alloc_on(k->s, bytes);
        k->out = alloc_on(k->s, bytes);
        fill_input<<<grid_for(count), 256, 0, k->s>>>(k->in, count, 7);
        train(k);
        compare<<<grid_for(count), 256, 0, k->s>>>(k->out, count, 7, found);
        LAUNCHED();
        CUDA_OK(cudaStreamSynchronize(k->s));
        check_nothing_broken(found);
    }
    CHECK_OK(weir_pool_squeeze(pool, NULL)); /* so that the captures have to grow */

    for (int i = 0; i < SIDES; i++) {
        sides[i].random = 88172645463325252ull + (uint64_t)i;
        sides[i].blocks = 0;
        CUDA_OK(cudaStreamCreateWithFlags(&sides[i].stream, cudaStreamNonBlocking));
        CHECK_EQUAL(pthread_create(&sides[i].thread, NULL, side_main, &sides[i]), 0);
    }
    for (int m = 0; m < MODES; m++) {
        step *k = &steps[m];
        CUDA_OK(cudaStreamBeginCapture(k->s, modes[m]));
        CHECK_OK(weir_stream_get_capture(k->s, &k->id));
        train(k);
        CUDA_OK(cudaStreamEndCapture(k->s, &k->graph));
        CUDA_OK(cudaGraphInstantiate(&k->exec, k->graph, 0));
    }
    double start = seconds_now();
    for (int r = 0; r < replays; r++) {
        for (int m = 0; m < MODES; m++) {
            launch(&steps[m], (uint32_t)(r * MODES + m) * 1000003u);
        }
        if (r % 10 == 9) {
            for (int m = 0; m < MODES; m++) {
                CHECK_OK(weir_stream_synchronize(steps[m].s));
            }
            check_nothing_broken(found);
        }
    }
    stop = true;
    long blocks = 0;
    for (int i = 0; i < SIDES; i++) {
        pthread_join(sides[i].thread, NULL);
        blocks += sides[i].blocks;
    }
    CHECK_OK(weir_device_synchronize());
    check_nothing_broken(found);
    CHECK(blocks > replays);

    uint64_t held, now = 0;
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    held = CHECK_STATS(pool).reserved_bytes;
    CHECK(held >= MODES * LAYERS * bytes); /* the graphs' memory is theirs */
    for (int m = 0; m < MODES; m++) {
        step *k = &steps[m];
        CUDA_OK(cudaGraphExecDestroy(k->exec));
        CUDA_OK(cudaGraphDestroy(k->graph));
        if (m == 0) { /* of the others the driver tells, on a thread of its own */
            CHECK_OK(weir_pool_release_capture(pool, k->id));
        }
        free_on(k->s, k->in);
        free_on(k->s, k->out);
    }
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(weir_pool_squeeze(pool, NULL));
        now = CHECK_STATS(pool).reserved_bytes;
        if (now == 0) {
            break;
        }
        usleep(5000);
    }
    printf("%d graphs launched %d times each in %.1f s beside %ld blocks of %d threads; %.1f MiB held by the graphs\n", MODES,
           replays, seconds_now() - start, blocks, SIDES, (double)held / (double)MiB);
    CHECK_EQUAL(now, 0);
    CHECK_OK(weir_pool_destroy(pool));
    for (int m = 0; m < MODES; m++) {
        CUDA_OK(cudaEventDestroy(steps[m].fork));
        CUDA_OK(cudaEventDestroy(steps[m].join));
        CUDA_OK(cudaStreamDestroy(steps[m].s));
        CUDA_OK(cudaStreamDestroy(steps[m].t));
    }
    for (int i = 0; i < SIDES; i++) {
        CUDA_OK(cudaStreamDestroy(sides[i].stream));
    }
    CHECK_OK(weir_finalize());
    CUDA_OK(cudaFreeHost(found));
    CUDA_OK(cudaDeviceReset());
    return check_end();
}
