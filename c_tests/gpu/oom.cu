/* Out of memory on the real card: another allocator holds nearly all of it. A request fails with a clear error and
 * changes nothing; what one pool has free serves another after a squeeze; the program's callback may make room;
 * and once the other allocator lets go there is service again. */
#include "gpu.cuh"
#include <vector>

static std::vector<void *> held;

/* Takes memory until about `rest` is left, in blocks from large to small. */
static void hold_all_but(size_t rest) {
    size_t step = 8 * GiB, left, total;
    while (step >= 64 * MiB) {
        void *p = NULL;
        CUDA_OK(cudaMemGetInfo(&left, &total));
        if (left < rest + step || cudaMalloc(&p, step) != cudaSuccess) {
            (void)cudaGetLastError();
            step /= 2;
            continue;
        }
        held.push_back(p);
    }
    CUDA_OK(cudaMemGetInfo(&left, &total));
    printf("another allocator holds all but %.2f of %.2f GiB\n", (double)left / (double)GiB, (double)total / (double)GiB);
    CHECK(left < rest + 512 * MiB);
}

static void let_go(void) {
    for (void *p : held) {
        CUDA_OK(cudaFree(p));
    }
    held.clear();
}

static size_t free_on_card(void) {
    size_t left, total;
    CUDA_OK(cudaMemGetInfo(&left, &total));
    return left;
}

static int make_room(void *user, weir_pool *pool, size_t bytes) {
    (void)pool;
    CHECK(bytes >= 4 * GiB);
    ++*(int *)user;
    let_go();
    return 1;
}

int main(void) {
    cudaStream_t stream;
    findings *found = host_visible<findings>();
    print_device();
    load_kernels();
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    weir_pool *pool = gpu_pool(0, "beside a hog"), *other = gpu_pool(0, "the other");
    void *kept, *untouched = &untouched, *p = untouched;
    std::vector<void *> blocks;

    CHECK_OK(weir_pool_alloc(pool, 64 * MiB, stream, &kept));
    queue_write(stream, kept, 64 * MiB, 42);
    hold_all_but(2 * GiB);

    /* Fill what is left. The first refusal is clear and changes nothing. */
    int status;
    while ((status = weir_pool_alloc(pool, 128 * MiB, stream, &p)) == WEIR_OK) {
        blocks.push_back(p);
        queue_write(stream, p, 128 * MiB, blocks.size());
        CHECK(blocks.size() < 100);
    }
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, status);
    printf("after %zu blocks of 128 MiB: %s\n", blocks.size(), weir_last_error());
    CHECK(blocks.size() >= 8);
    CHECK_SAYS_NUMBER(128 * MiB);
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 64 * MiB + blocks.size() * 128 * MiB);
    CHECK_EQUAL(s.failures, 1);
    p = untouched;
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 4 * GiB, stream, &p));
    CHECK(p == untouched);
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, s.used_bytes);

    /* Squeeze and retry in one pool: what is free in pieces serves a request of another size. */
    for (size_t i = 0; i < blocks.size(); i++) {
        queue_check(stream, blocks[i], 128 * MiB, i + 1, found);
    }
    for (size_t i = 0; i < blocks.size(); i += 2) {
        CHECK_OK(weir_pool_free(pool, blocks[i], stream));
    }
    size_t half = (blocks.size() + 1) / 2 * 128 * MiB;
    CHECK_OK(weir_pool_alloc(pool, half, stream, &p));
    queue_write(stream, p, half, 1234);
    queue_check(stream, p, half, 1234, found);
    CHECK_OK(weir_pool_free(pool, p, stream));

    /* What this pool has free is no help to another one until it is squeezed out of it. */
    p = untouched;
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(other, half - 256 * MiB, stream, &p));
    CHECK(p == untouched);
    size_t released = 0, before = free_on_card();
    CHECK_OK(weir_pool_squeeze(pool, &released));
    printf("squeeze gave back %.2f GiB\n", (double)released / (double)GiB);
    CHECK(released >= half);
    CHECK(free_on_card() >= before + released / 10 * 9);
    CHECK_OK(weir_pool_alloc(other, half - 256 * MiB, stream, &p));
    queue_write(stream, p, half - 256 * MiB, 77);
    queue_check(stream, p, half - 256 * MiB, 77, found);
    CHECK_OK(weir_pool_free(other, p, stream));

    /* The callback makes the other allocator let go, and the request is served at once. */
    int asked = 0;
    weir_pool_options o = gpu_options(0, "asks");
    o.on_oom = make_room;
    o.on_oom_user = &asked;
    weir_pool *asking;
    CHECK_OK(weir_pool_create(&o, &asking));
    CHECK_OK(weir_pool_alloc(asking, 8 * GiB, stream, &p));
    CHECK_EQUAL(asked, 1);
    queue_write(stream, p, 8 * GiB, 5);
    queue_check(stream, p, 8 * GiB, 5, found);
    CHECK_OK(weir_pool_free(asking, p, stream));

    /* And so is everybody else. */
    CHECK_OK(weir_pool_alloc(pool, 8 * GiB, stream, &p));
    queue_write(stream, p, 8 * GiB, 6);
    queue_check(stream, p, 8 * GiB, 6, found);
    CHECK_OK(weir_pool_free(pool, p, stream));
    for (size_t i = 1; i < blocks.size(); i += 2) {
        queue_check(stream, blocks[i], 128 * MiB, i + 1, found);
        CHECK_OK(weir_pool_free(pool, blocks[i], stream));
    }
    queue_check(stream, kept, 64 * MiB, 42, found);
    CHECK_OK(weir_pool_free(pool, kept, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    check_nothing_broken(found);

    CHECK_OK(weir_pool_destroy(asking));
    CHECK_OK(weir_pool_destroy(other));
    CHECK_OK(weir_pool_destroy(pool));
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaFreeHost(found));
    CUDA_OK(cudaDeviceReset());
    return check_end();
}
