/* weir pools as the CUDA toolkit's own memory resources, with kernels. */
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include "gpu.cuh"
#include <thread>
#include <vector>
#include <weir/memory_resource.hpp>

#if CCCL_VERSION < 3001000
typedef cuda::mr::async_resource_ref<cuda::mr::device_accessible> reference;
static void *get(reference from, cuda::stream_ref stream, size_t bytes) { return from.allocate_async(bytes, 256, stream); }
static void give(reference to, cuda::stream_ref stream, void *block, size_t bytes) {
    to.deallocate_async(block, bytes, 256, stream);
}
#else
typedef cuda::mr::resource_ref<cuda::mr::device_accessible> reference;
static void *get(reference from, cuda::stream_ref stream, size_t bytes) { return from.allocate(stream, bytes, 256); }
static void give(reference to, cuda::stream_ref stream, void *block, size_t bytes) { to.deallocate(stream, block, bytes, 256); }
#endif

/* Patterns written and checked on a stream, in blocks given back while that is queued. */
static void rounds(reference memory, unsigned count, findings *found) {
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (unsigned n = 0; n < count; n++) {
        const size_t bytes = 4 * (1 + n * 7919u % 1000000u);
        void *block = get(memory, stream, bytes);
        queue_write(stream, block, bytes, n);
        queue_check(stream, block, bytes, n, found);
        give(memory, stream, block, bytes);
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamDestroy(stream));
}

/* What the default stream has still to do with memory is over when allocate_sync gives that memory. */
static void at_once(weir::device_memory_resource memory) {
    running *kernel = host_visible<running>();
    const cuda::stream_ref by_default(cudaStream_t(NULL));
    void *block = memory.allocate(by_default, 64 * MiB, 256);
    queue_run(NULL, 0.2, kernel);
    memory.deallocate(by_default, block, 64 * MiB, 256);
    block = memory.allocate_sync(64 * MiB, 256);
    CHECK(kernel->over);
    memory.deallocate_sync(block, 64 * MiB, 256);
    CUDA_OK(cudaFreeHost(kernel));
}

int main(int argc, char **argv) {
    const unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 5000;
    findings *found = host_visible<findings>();
    print_device();
    load_kernels();
    weir::pool pool = weir::pool::adopt(gpu_pool(0, "resource"));
    weir::device_memory_resource memory(pool);
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++) {
        all.emplace_back([memory, count, found]() mutable { rounds(memory, count, found); });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    check_nothing_broken(found);
    at_once(memory);
    try {
        (void)memory.allocate_sync((size_t)1 << 50, 256);
        CHECK(!"thrown");
    } catch (const std::bad_alloc &) {
    }
    CHECK_EQUAL(CHECK_STATS(pool.get()).used_bytes, 0);
    CUDA_OK(cudaFreeHost(found));
    printf("CCCL %d.%d: %u blocks through references by 4 threads, patterns kept; allocate_sync waits for the default stream\n",
           CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION, 4 * count);
    return check_end();
}
