/* An illegal address ruins a context: the pool reports the device as lost, the books still balance, and the memory
 * goes back while the process lives on. What the card has free is asked by processes of their own, because this
 * one's context answers nothing any more.
 *
 *   illegal          the test
 *   illegal free     prints the free bytes of device 0 */
#include "gpu.cuh"
#include <sys/wait.h>

static const size_t much = 8 * GiB;

static __global__ void write_to(int *nowhere) { *nowhere = 1; }

static int print_free(void) {
    size_t left, total;
    CUDA_OK(cudaMemGetInfo(&left, &total));
    printf("%zu\n", left);
    return 0;
}

/* What a fresh process finds free. */
static size_t free_on_card(const char *self) {
    char command[4096], line[64];
    snprintf(command, sizeof command, "'%s' free", self);
    fflush(stdout);
    FILE *child = popen(command, "r");
    CHECK(child != NULL && fgets(line, sizeof line, child) != NULL);
    CHECK_EQUAL(pclose(child), 0);
    return (size_t)strtoull(line, NULL, 10);
}

static void lose_the_device(weir_pool *pool, void **blocks, int n) {
    void *p = NULL;
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_OK(weir_pool_alloc(pool, much, stream, &blocks[0]));
    for (int i = 1; i < n; i++) {
        CHECK_OK(weir_pool_alloc(pool, (size_t)i * i * 3000, stream, &blocks[i]));
    }
    queue_write(stream, blocks[0], much, 1);
    CUDA_OK(cudaStreamSynchronize(stream));
    CHECK_OK(weir_pool_free(pool, blocks[n - 1], stream)); /* one freed before */

    write_to<<<1, 1, 0, stream>>>((int *)0x10);
    LAUNCHED();
    cudaError_t seen = cudaStreamSynchronize(stream);
    printf("the kernel's error: %s\n", cudaGetErrorString(seen));
    CHECK(seen == cudaErrorIllegalAddress);

    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 2 * much, stream, &p));
    printf("weir says: %s\n", weir_last_error());
    CHECK_SAYS("ILLEGAL_ADDRESS");
    /* From now on nothing is handed out, not even what needs no call. */
    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 1000, stream, &p));
    CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(pool, 1000, NULL, &p));
    CHECK(p == NULL);

    /* Frees still do what they always do. */
    for (int i = 0; i < n - 1; i++) {
        CHECK_OK(i % 2 ? weir_pool_free(pool, blocks[i], stream) : weir_pool_free_synced(pool, blocks[i]));
    }
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, blocks[1], stream));
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    CHECK_EQUAL(s.allocations, n);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "free") == 0) {
        return print_free();
    }
    enum { BLOCKS = 64 };
    void *blocks[BLOCKS];
    size_t at_first = free_on_card(argv[0]);
    print_device();
    load_kernels();
    weir_pool *pool = gpu_pool(0, "lost"), *second = gpu_pool(0, "destroyed with live blocks"), *late = NULL;
    void *live;
    CHECK_OK(weir_pool_alloc(second, much, NULL, &live));
    lose_the_device(pool, blocks, BLOCKS);
    size_t held = free_on_card(argv[0]);

    /* A destroy gives the memory back, with live blocks or without. */
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_pool_destroy(second));
    size_t after = free_on_card(argv[0]);
    printf("free on the card: %.2f GiB at first, %.2f with the device lost, %.2f after the pools were destroyed\n",
           (double)at_first / (double)GiB, (double)held / (double)GiB, (double)after / (double)GiB);
    CHECK(held + 2 * much <= at_first);
    CHECK(after >= held + 2 * much - 256 * MiB);
    CHECK(after + 2 * GiB >= at_first); /* the ruined context itself is all that is left */

    int status = weir_pool_create(NULL, &late);
    if (status == WEIR_OK) {
        CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, weir_pool_alloc(late, MiB, NULL, &live));
        CHECK_OK(weir_pool_destroy(late));
    } else {
        CHECK_STATUS(WEIR_ERROR_DEVICE_LOST, status);
    }
    CHECK_OK(weir_finalize());
    return check_end();
}
