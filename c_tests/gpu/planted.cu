/* Mistakes that compute-sanitizer can see in the blocks of a pool only if weir tells it of them (WEIR_NVTX=1). Each is
 * alone in a run, and everything else is as it should be.
 *
 *   planted none       no mistake, blocks freed while kernels that use them are queued: nothing may be reported
 *   planted overflow   a kernel writes one element past the end of a block of 1000 floats
 *   planted between    a kernel writes to memory of the pool that is no block any more
 *   planted leak       a block of 12,345 bytes is never freed; its pool is left alone
 *   planted destroyed  the same, and the pool is destroyed
 *   planted pool       a pool is never destroyed; all of its blocks were freed
 *
 * Without the tool, or without WEIR_NVTX, all of them end well. */
#include "gpu.cuh"

static const size_t count = 1000, odd = 12345;

static __global__ void write_floats(float *p, size_t n) {
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        p[i] = (float)i;
    }
}

static void queue_floats(cudaStream_t stream, void *block, size_t n) {
    write_floats<<<1, 256, 0, stream>>>((float *)block, n);
    LAUNCHED();
}

static void nothing_wrong(weir_pool *pool, cudaStream_t stream) {
    void *blocks[64];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 64; i++) {
            size_t n = count + (size_t)i * (size_t)i * 100;
            CHECK_OK(weir_pool_alloc(pool, n * sizeof(float), stream, &blocks[i]));
            /* still running when the block is freed, and when the next one gets its memory */
            queue_run(stream, 0.002, NULL);
            queue_floats(stream, blocks[i], n);
            if (i % 2 == 1) {
                CHECK_OK(weir_pool_free(pool, blocks[i], stream));
            }
        }
        for (int i = 0; i < 64; i += 2) {
            CHECK_OK(weir_pool_free(pool, blocks[i], stream));
        }
    }
}

int main(int argc, char **argv) {
    const char *mistake = argc > 1 ? argv[1] : "none";
    cudaStream_t stream;
    void *block, *neighbour;
    print_device();
    load_kernels(); /* the runtime is initialised before the first pool */
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    weir_pool *pool = gpu_pool(0, "planted");
    printf("mistake: %s\n", mistake);
    if (strcmp(mistake, "none") == 0) {
        nothing_wrong(pool, stream);
    } else if (strcmp(mistake, "overflow") == 0 || strcmp(mistake, "between") == 0) {
        int late = strcmp(mistake, "between") == 0;
        CHECK_OK(weir_pool_alloc(pool, count * sizeof(float), stream, &block));
        /* the memory behind the block is the pool's all the same */
        CHECK_OK(weir_pool_alloc(pool, 4 * MiB, stream, &neighbour));
        if (late) {
            CHECK_OK(weir_pool_free(pool, block, stream));
            CUDA_OK(cudaStreamSynchronize(stream));
        }
        queue_floats(stream, block, late ? count : count + 1);
        cudaError_t seen = cudaStreamSynchronize(stream);
        printf("the kernel: %s\n", cudaGetErrorString(seen)); /* the tool may have ended it */
        if (seen != cudaSuccess) {
            return 1;
        }
        if (!late) {
            CHECK_OK(weir_pool_free(pool, block, stream));
        }
        CHECK_OK(weir_pool_free(pool, neighbour, stream));
    } else if (strcmp(mistake, "leak") == 0 || strcmp(mistake, "destroyed") == 0) {
        CHECK_OK(weir_pool_alloc(pool, odd, stream, &block));
        CHECK_OK(weir_pool_alloc(pool, 4 * MiB, stream, &neighbour));
        CHECK_OK(weir_pool_free(pool, neighbour, stream));
    } else if (strcmp(mistake, "pool") == 0) {
        CHECK_OK(weir_pool_alloc(pool, odd, stream, &block));
        CHECK_OK(weir_pool_free(pool, block, stream));
    } else {
        fprintf(stderr, "planted: none, overflow, between, leak, destroyed or pool; not %s\n", mistake);
        return 2;
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamDestroy(stream));
    if (strcmp(mistake, "destroyed") == 0) {
        CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_pool_destroy(pool));
    } else if (strcmp(mistake, "leak") != 0 && strcmp(mistake, "pool") != 0) {
        CHECK_OK(weir_pool_destroy(pool));
    }
    return check_end();
}
