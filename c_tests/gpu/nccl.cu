/* NCCL on weir's memory, between two or more GPUs of one process: blocks of a pool with one-handle placement are
 * registered (ncclCommRegister) and reduced in place; ordinary blocks, which may lie across pages and move, are reduced
 * unregistered. NCCL is opened at run time: WEIR_NCCL_LIBRARY, else libnccl.so.2. Names, values and prototypes are those of
 * NCCL's documentation (2.19 and later have ncclCommRegister).
 *
 *   nccl [ROUNDS]     20 by default */
#include "gpu.cuh"
#include <algorithm>
#include <dlfcn.h>

enum { MOST = 8, FLOAT32 = 7, SUM = 0, POSIX_FILE_DESCRIPTOR = 1 };
typedef struct ncclComm *ncclComm_t;

static struct {
    int (*GetVersion)(int *version);
    int (*CommInitAll)(ncclComm_t *comms, int count, const int *devices);
    int (*CommDestroy)(ncclComm_t comm);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*AllReduce)(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream);
    int (*CommRegister)(const ncclComm_t comm, void *block, size_t bytes, void **handle);
    int (*CommDeregister)(const ncclComm_t comm, void *handle);
    const char *(*GetErrorString)(int result);
} nccl;

static void nccl_ok_at(const char *file, int line, const char *call, int got) {
    check_counted();
    if (got != 0) {
        check_failed(file, line, call, nccl.GetErrorString(got));
    }
}
#define NCCL_OK(call) nccl_ok_at(__FILE__, __LINE__, #call, (call))

static void open_nccl(void) {
    const char *name = getenv("WEIR_NCCL_LIBRARY");
    void *library = dlopen(name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("needs NCCL: %s; WEIR_NCCL_LIBRARY names it\n", dlerror());
        exit(77);
    }
#define SYMBOL(name)                                                                                   \
    *(void **)&nccl.name = dlsym(library, "nccl" #name);                                               \
    CHECK(nccl.name != NULL)
    SYMBOL(GetVersion);
    SYMBOL(CommInitAll);
    SYMBOL(CommDestroy);
    SYMBOL(GroupStart);
    SYMBOL(GroupEnd);
    SYMBOL(AllReduce);
    SYMBOL(CommRegister);
    SYMBOL(CommDeregister);
    SYMBOL(GetErrorString);
#undef SYMBOL
}

static int devices;
static ncclComm_t comms[MOST];
static cudaStream_t streams[MOST];
static findings *found;

/* Small integers, so that a sum is exact in any order. */
static __global__ void fill(float *words, uint64_t count, int device) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
        words[i] = (float)((i + (uint64_t)device) % 31);
    }
}
static __global__ void check_sum(const float *words, uint64_t count, int devices, findings *f) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
        float want = 0;
        for (int d = 0; d < devices; d++) {
            want += (float)((i + (uint64_t)d) % 31);
        }
        if (words[i] != want && atomicAdd_system(&f->broken, 1ull) == 0) {
            f->index = i;
            f->got = (uint32_t)words[i];
            f->want = (uint32_t)want;
        }
    }
}

static void reduce(void *const *blocks, size_t bytes) {
    uint64_t count = bytes / sizeof(float);
    for (int d = 0; d < devices; d++) {
        CUDA_OK(cudaSetDevice(d));
        fill<<<grid_for(count), 256, 0, streams[d]>>>((float *)blocks[d], count, d);
        LAUNCHED();
    }
    NCCL_OK(nccl.GroupStart());
    for (int d = 0; d < devices; d++) {
        NCCL_OK(nccl.AllReduce(blocks[d], blocks[d], count, FLOAT32, SUM, comms[d], streams[d]));
    }
    NCCL_OK(nccl.GroupEnd());
    for (int d = 0; d < devices; d++) {
        CUDA_OK(cudaSetDevice(d));
        check_sum<<<grid_for(count), 256, 0, streams[d]>>>((const float *)blocks[d], count, devices, found);
        LAUNCHED();
    }
}

static void synchronize(void) {
    for (int d = 0; d < devices; d++) {
        CUDA_OK(cudaSetDevice(d));
        CHECK_OK(weir_stream_synchronize(streams[d]));
    }
    check_nothing_broken(found);
}

/* Each device's pool, which all others can reach. */
static void make_pools(weir_pool **pools, int one_handle) {
    for (int d = 0; d < devices; d++) {
        weir_pool_options options = gpu_options(0, one_handle ? "registered" : "ordinary");
        options.device = d;
        options.one_handle_blocks = one_handle;
        options.ipc_handle_types = one_handle ? POSIX_FILE_DESCRIPTOR : 0;
        CHECK_OK(weir_pool_create(&options, &pools[d]));
        for (int peer = 0; peer < devices; peer++) {
            if (peer != d) {
                CHECK_OK(weir_pool_set_access(pools[d], peer, WEIR_ACCESS_READ_WRITE));
            }
        }
    }
}

/* Returns GB/s of the algorithm, by the definition of nccl-tests: bytes of a block / time. */
static double rounds_of(weir_pool *const *pools, size_t bytes, int rounds, bool registered) {
    void *blocks[MOST], *beside[MOST], *handles[MOST];
    for (int d = 0; d < devices; d++) {
        CHECK_OK(weir_pool_alloc(pools[d], 12345, streams[d], &beside[d])); /* so that no block begins a page by chance */
        CHECK_OK(weir_pool_alloc(pools[d], bytes, streams[d], &blocks[d]));
        if (registered) {
            CUDA_OK(cudaSetDevice(d));
            NCCL_OK(nccl.CommRegister(comms[d], blocks[d], bytes, &handles[d]));
        }
    }
    reduce(blocks, bytes);
    synchronize();
    double start = seconds_now();
    for (int r = 0; r < rounds; r++) {
        reduce(blocks, bytes);
    }
    synchronize();
    double took = seconds_now() - start;
    for (int d = 0; d < devices; d++) {
        if (registered) {
            CUDA_OK(cudaSetDevice(d));
            NCCL_OK(nccl.CommDeregister(comms[d], handles[d]));
        }
        CHECK_OK(weir_pool_free(pools[d], beside[d], streams[d]));
        CHECK_OK(weir_pool_free(pools[d], blocks[d], streams[d]));
    }
    return (double)bytes * rounds / took / 1e9;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 20, version = 0;
    CUDA_OK(cudaGetDeviceCount(&devices));
    devices = std::min(devices, (int)MOST);
    if (devices < 2) {
        printf("needs two GPUs, and there is %d\n", devices);
        return 77;
    }
    open_nccl();
    print_device();
    found = host_visible<findings>();
    NCCL_OK(nccl.GetVersion(&version));
    NCCL_OK(nccl.CommInitAll(comms, devices, NULL));
    for (int d = 0; d < devices; d++) {
        CUDA_OK(cudaSetDevice(d));
        CUDA_OK(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
    }
    weir_pool *apart[MOST], *ordinary[MOST];
    make_pools(apart, 1);
    make_pools(ordinary, 0);
    static const size_t sizes[] = {4 * KiB, 1 * MiB, 3 * MiB + 512, 64 * MiB, 300 * MiB};
    double registered = 0, plain = 0;
    for (size_t bytes : sizes) {
        registered = rounds_of(apart, bytes, rounds, true);
        plain = rounds_of(ordinary, bytes, rounds, false);
        rounds_of(ordinary, bytes, 2, false); /* the same memory again, maybe at another address */
    }
    for (int d = 0; d < devices; d++) {
        CHECK_EQUAL(CHECK_STATS(apart[d]).pages_moved, 0);
    }
    for (int d = 0; d < devices; d++) {
        CHECK_OK(weir_pool_destroy(apart[d]));
        CHECK_OK(weir_pool_destroy(ordinary[d]));
    }
    for (int d = 0; d < devices; d++) {
        NCCL_OK(nccl.CommDestroy(comms[d]));
        CUDA_OK(cudaSetDevice(d));
        CUDA_OK(cudaStreamDestroy(streams[d]));
    }
    CHECK_OK(weir_finalize());
    printf("NCCL %d.%d.%d, %d GPUs, all-reduce in place of 4 KiB to 300 MiB: sums right, registered and not; of 300 MiB %.0f and "
           "%.0f GB/s\n",
           version / 10000, version % 10000 / 100, version % 100, devices, registered, plain);
    CUDA_OK(cudaFreeHost(found));
    return check_end();
}
