// A weir pool where a program takes a memory resource of libcu++'s: weir/memory_resource.hpp. On host memory, so that it runs
// anywhere; with weir::device_memory_resource, weir::pool::of_device(0) and cuda::mr::device_accessible it is one for a GPU.
// CCCL 3.2 or later, for any_resource.
#include <cstdio>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <new>
#include <weir/memory_resource.hpp>

using owner = cuda::mr::any_resource<cuda::mr::host_accessible>;
using reference = cuda::mr::resource_ref<cuda::mr::host_accessible>;

// A part of the program that knows nothing of weir.
static double sum_of_squares(reference memory, cuda::stream_ref stream, std::size_t count) {
    auto *squares = static_cast<double *>(memory.allocate(stream, count * sizeof(double), alignof(double)));
    double sum = 0;
    for (std::size_t n = 0; n < count; n++) {
        squares[n] = static_cast<double>(n) * static_cast<double>(n);
        sum += squares[n];
    }
    memory.deallocate(stream, squares, count * sizeof(double), alignof(double));
    return sum;
}

int main() {
    const cuda::stream_ref stream(cudaStream_t{nullptr});
    weir_pool_options options = weir::default_options();
    options.memory = WEIR_MEMORY_HOST;
    options.max_bytes = 8 << 20;
    const weir::pool pool(options);
    owner memory = weir::host_memory_resource(pool); // keeps the pool
    std::printf("%.0f\n", sum_of_squares(memory, stream, 1000));
    try {
        sum_of_squares(memory, stream, 10000000);
        return 1;
    } catch (const std::bad_alloc &error) {
        std::printf("%s\n", error.what());
    }
    std::printf("%llu bytes used at the end\n", static_cast<unsigned long long>(pool.stats().used_bytes));
    return pool.stats().used_bytes == 0 ? 0 : 1;
}
