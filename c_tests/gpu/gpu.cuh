/* What the programs with kernels share: checked runtime calls, pools on the device, kernels that write and check
 * patterns, and kernels that run for a given time. */
#ifndef WEIR_C_TESTS_GPU_CUH
#define WEIR_C_TESTS_GPU_CUH

#include "../check.h"
#include <cuda_runtime.h>
#include <time.h>

#define GiB ((size_t)1 << 30)

static inline void cuda_ok_at(const char *file, int line, const char *call, cudaError_t got) {
    check_counted();
    if (got != cudaSuccess) {
        check_failed(file, line, call, cudaGetErrorString(got));
    }
}
#define CUDA_OK(call) cuda_ok_at(__FILE__, __LINE__, #call, (call))
#define LAUNCHED() CUDA_OK(cudaGetLastError())

static inline weir_pool_options gpu_options(uint64_t max_bytes, const char *name) {
    weir_pool_options options;
    CHECK_OK(weir_pool_options_init(&options, sizeof options));
    options.memory = WEIR_MEMORY_DEVICE;
    options.device = 0;
    options.max_bytes = max_bytes;
    options.name = name;
    return options;
}

static inline weir_pool *gpu_pool(uint64_t max_bytes, const char *name) {
    weir_pool_options options = gpu_options(max_bytes, name);
    weir_pool *pool = NULL;
    CHECK_OK(weir_pool_create(&options, &pool));
    return pool;
}

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016), 48 bits of it. */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull >> 16;
}

static inline void print_device(void) {
    cudaDeviceProp properties;
    int driver = 0;
    CUDA_OK(cudaGetDeviceProperties(&properties, 0));
    CUDA_OK(cudaDriverGetVersion(&driver));
    printf("device 0: %s, %.1f GiB, driver API %d.%d, weir %s\n", properties.name,
           (double)properties.totalGlobalMem / (double)GiB, driver / 1000, driver % 1000 / 10, weir_version());
}

/* Host memory that kernels write to: what was found broken, first finding kept. */
typedef struct {
    unsigned long long broken;
    uint64_t seed, index;
    uint32_t got, want;
} findings;

template <typename T> static T *host_visible(void) {
    T *p = NULL;
    CUDA_OK(cudaHostAlloc((void **)&p, sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
    memset((void *)p, 0, sizeof(T));
    return p;
}

/* Each word depends on its place and on the block's seed. */
__host__ __device__ static inline uint32_t pattern_word(uint64_t seed, uint64_t i) {
    uint64_t x = (seed + i) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}

static __global__ void write_pattern(uint32_t *words, uint64_t count, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
        words[i] = pattern_word(seed, i);
    }
}

/* The findings are gathered by block first: racecheck has something to look at, and the host memory little to do. */
static __global__ void check_pattern(const uint32_t *words, uint64_t count, uint64_t seed, findings *f) {
    __shared__ unsigned broken_here;
    if (threadIdx.x == 0) {
        broken_here = 0;
    }
    __syncthreads();
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t got = words[i], want = pattern_word(seed, i);
        if (got != want && atomicAdd(&broken_here, 1) == 0 && atomicAdd_system(&f->broken, 0ull) == 0) {
            f->seed = seed;
            f->index = i;
            f->got = got;
            f->want = want;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && broken_here != 0) {
        __threadfence_system();
        atomicAdd_system(&f->broken, (unsigned long long)broken_here);
    }
}

static inline unsigned grid_for(uint64_t words) {
    uint64_t blocks = (words + 255) / 256;
    return blocks > 256 ? 256u : blocks == 0 ? 1u : (unsigned)blocks;
}

static inline void queue_write(cudaStream_t stream, void *block, size_t bytes, uint64_t seed) {
    write_pattern<<<grid_for(bytes / 4), 256, 0, stream>>>((uint32_t *)block, bytes / 4, seed);
    LAUNCHED();
}

static inline void queue_check(cudaStream_t stream, const void *block, size_t bytes, uint64_t seed, findings *f) {
    check_pattern<<<grid_for(bytes / 4), 256, 0, stream>>>((const uint32_t *)block, bytes / 4, seed, f);
    LAUNCHED();
}

static inline void check_nothing_broken(const findings *f) {
    const volatile findings *now = f;
    check_counted();
    if (now->broken != 0) {
        char text[200];
        snprintf(text, sizeof text, "%llu words; one of them: seed %#" PRIx64 ", word %" PRIu64 ": got %#x, want %#x",
                 now->broken, now->seed, now->index, now->got, now->want);
        check_failed(__FILE__, __LINE__, "a pattern was broken", text);
    }
}

/* A kernel of one thread that runs for a time; it says when it began and when it is over, and ends early if told to. */
typedef struct {
    volatile int began, over, stop;
} running;

static __device__ inline uint64_t nanoseconds(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static __global__ void run_for(uint64_t ns, running *r) {
    uint64_t start = nanoseconds();
    if (r != NULL) {
        r->began = 1;
        __threadfence_system();
    }
    while (nanoseconds() - start < ns && (r == NULL || !r->stop)) {
        __nanosleep(1000);
    }
    if (r != NULL) {
        r->over = 1;
        __threadfence_system();
    }
}

static inline void queue_run(cudaStream_t stream, double seconds, running *r) {
    run_for<<<1, 1, 0, stream>>>((uint64_t)(seconds * 1e9), r);
    LAUNCHED();
}

static inline void wait_until_begun(const running *r) {
    for (int i = 0; i < 100000 && !r->began; i++) {
        usleep(100);
    }
    CHECK(r->began);
}

/* The first launch of a kernel may load it, which may wait: do that before anything is timed. */
static inline void load_kernels(void) {
    uint32_t *words = NULL;
    findings *f = host_visible<findings>();
    CUDA_OK(cudaMalloc((void **)&words, 1024));
    queue_write(0, words, 1024, 1);
    queue_check(0, words, 1024, 1, f);
    queue_run(0, 0.0, NULL);
    CUDA_OK(cudaDeviceSynchronize());
    check_nothing_broken(f);
    CUDA_OK(cudaFree(words));
    CUDA_OK(cudaFreeHost(f));
}

#endif
