// RMM on weir's memory: its containers, its adaptors over weir, and weir as the current resource. C++20, and no kernels: any
// C++ compiler builds it, with librmm.
#include "../check.h"
#include <algorithm>
#include <cuda_runtime_api.h>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_scalar.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/thread_safe_resource_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#include <thread>
#include <vector>
#include <weir/memory_resource.hpp>

namespace {

using resource = cuda::mr::any_resource<cuda::mr::device_accessible>;
using reference = rmm::device_async_resource_ref;

const cuda::stream_ref by_default(cudaStream_t{nullptr});

#define CUDA_OK(call)                                                                                                     \
    do {                                                                                                                  \
        const cudaError_t got = (call);                                                                                   \
        check_counted();                                                                                                  \
        if (got != cudaSuccess) {                                                                                         \
            check_failed(__FILE__, __LINE__, #call, cudaGetErrorString(got));                                             \
        }                                                                                                                 \
    } while (0)

weir::pool a_pool(uint64_t max_bytes = 0) {
    weir_pool_options options = weir::default_options();
    options.memory = WEIR_MEMORY_DEVICE;
    options.device = 0;
    options.max_bytes = max_bytes;
    return weir::pool(options);
}

// Is every word `value`?
template <class T>
bool all_are(const T *words, size_t count, T value, cuda::stream_ref stream) {
    std::vector<T> here(count);
    CUDA_OK(cudaMemcpyAsync(here.data(), words, count * sizeof(T), cudaMemcpyDeviceToHost, stream.get()));
    CUDA_OK(cudaStreamSynchronize(stream.get()));
    return std::all_of(here.begin(), here.end(), [value](T word) { return word == value; });
}

bool on_the_gpu(const void *block) {
    cudaPointerAttributes is;
    CUDA_OK(cudaPointerGetAttributes(&is, block));
    return is.type == cudaMemoryTypeDevice && is.device == 0 && is.devicePointer != nullptr;
}

// What RMM's own tests ask of every resource: sizes, alignments, addresses, no memory.
void requests(reference memory, cuda::stream_ref stream) {
    for (const size_t bytes : {size_t{1}, size_t{4}, KiB, MiB, size_t{1} << 30}) {
        void *ordered = memory.allocate(stream, bytes, 256), *at_once = memory.allocate_sync(bytes, 256);
        for (void *block : {ordered, at_once}) {
            CHECK(block != nullptr && reinterpret_cast<uintptr_t>(block) % 256 == 0 && on_the_gpu(block));
        }
        CHECK(ordered != at_once);
        memory.deallocate(stream, ordered, bytes, 256);
        memory.deallocate_sync(at_once, bytes, 256);
    }
    memory.deallocate(stream, memory.allocate(stream, 0, 256), 0, 256);
    memory.deallocate_sync(memory.allocate_sync(0, 256), 0, 256);
    for (const bool at_once : {false, true}) {
        try {
            (void)(at_once ? memory.allocate_sync(size_t{1} << 50, 256) : memory.allocate(stream, size_t{1} << 50, 256));
            CHECK(!"thrown");
        } catch (const rmm::out_of_memory &bad) {
            CHECK(strstr(bad.what(), "out_of_memory") != nullptr);
            CHECK(strstr(bad.what(), weir_last_error()) != nullptr);
        }
    }
}

// Containers of RMM's with what `memory` gives, made, grown, copied and moved on a stream that does not wait for others.
void containers(const resource &memory, int rounds) {
    rmm::cuda_stream stream{rmm::cuda_stream::flags::non_blocking};
    for (int n = 1; n <= rounds; n++) {
        const size_t count = static_cast<size_t>(1000 * n % 70001 + 1);
        rmm::device_uvector<int> words(count, stream, memory);
        CUDA_OK(cudaMemsetAsync(words.data(), n % 100, count * sizeof(int), stream.value()));
        const int value = n % 100 * 0x01010101;
        rmm::device_uvector<int> copy(words, stream, memory);
        words.resize(2 * count, stream);
        CUDA_OK(cudaMemsetAsync(words.data(), 0, 2 * count * sizeof(int), stream.value()));
        rmm::device_uvector<int> moved = std::move(copy);
        CHECK(all_are(moved.data(), count, value, stream.value()));

        rmm::device_buffer bytes(moved.data(), count * sizeof(int), stream, memory), other;
        other = std::move(bytes);
        other.resize(count * sizeof(int) / 2, stream);
        other.shrink_to_fit(stream);
        CHECK(all_are(static_cast<const int *>(other.data()), other.size() / sizeof(int), value, stream.value()));
        rmm::device_buffer none(0, stream, memory);
        rmm::device_scalar<int> one(n, stream, memory);
        CHECK_EQUAL(one.value(stream), n);
        bytes = std::move(none);
        if (n % 2 == 0) {
            words.release(); // a buffer that goes at once
        }
    }
    stream.synchronize();
}

// Every adaptor over weir, and what it says of what it saw.
void adaptors(weir::pool pool) {
    const weir::device_memory_resource memory(pool);
    rmm::mr::statistics_resource_adaptor statistics(memory);
    containers(statistics, 20);
    CHECK(statistics.get_bytes_counter().peak > 0 && statistics.get_bytes_counter().value == 0);
    CHECK(statistics.get_allocations_counter().total > 20);

    rmm::mr::tracking_resource_adaptor tracking(statistics);
    containers(tracking, 20);
    CHECK(tracking.get_outstanding_allocations().empty());
    CHECK(tracking == rmm::mr::tracking_resource_adaptor(tracking));

    rmm::mr::limiting_resource_adaptor limiting(memory, 64 * MiB);
    containers(limiting, 20);
    CHECK_EQUAL(limiting.get_allocated_bytes(), 0);
    try {
        rmm::device_buffer large(65 * MiB, by_default, limiting);
        CHECK(!"thrown");
    } catch (const rmm::out_of_memory &) {
    }

    // The callback is asked when weir has no memory, frees some of it, and the request is served.
    const weir::device_memory_resource little(a_pool(64 * MiB));
    std::vector<rmm::device_buffer> held;
    held.emplace_back(50 * MiB, by_default, little);
    int asked = 0;
    rmm::mr::failure_callback_resource_adaptor<> calling(
        little,
        [&held](size_t bytes, void *user) {
            CHECK_EQUAL(bytes, 40 * MiB);
            ++*static_cast<int *>(user);
            held.clear();
            return true;
        },
        &asked);
    rmm::device_buffer served(40 * MiB, by_default, calling);
    CHECK_EQUAL(asked, 1);

    // Pools of RMM's with weir below.
    containers(rmm::mr::pool_memory_resource(memory, 64 * MiB, 256 * MiB), 20);
    containers(rmm::mr::arena_memory_resource(memory, 64 * MiB), 20);
    containers(rmm::mr::thread_safe_resource_adaptor(memory), 20);
}

void current() {
    weir::pool pool = a_pool();
    const weir::device_memory_resource memory(pool);
    resource before = rmm::mr::set_current_device_resource(memory);
    CHECK(before != resource(memory));
    {
        rmm::device_uvector<int> words(1000, cuda::stream_ref(cudaStreamPerThread));
        CHECK_EQUAL(pool.stats().allocations - pool.stats().frees, 1);
    }
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++) {
        all.emplace_back([] {
            CUDA_OK(cudaSetDevice(0));
            containers(resource(rmm::mr::get_current_device_resource_ref()), 50);
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    CHECK(rmm::mr::reset_current_device_resource() == resource(memory));
}

} // namespace

int main() {
    CUDA_OK(cudaSetDevice(0));
    weir::pool pool = a_pool();
    weir::device_memory_resource memory(pool);
    rmm::cuda_stream stream{rmm::cuda_stream::flags::non_blocking};
    const cuda::stream_ref by_thread(cudaStreamPerThread), own(stream.value());
    for (const cuda::stream_ref on : {by_default, by_thread, own}) {
        requests(memory, on);
    }
    containers(memory, 200);
    adaptors(pool);
    current();
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    // What is current when the process ends outlives the driver; so does a buffer of it.
    rmm::mr::set_current_device_resource(weir::device_memory_resource(weir::pool::of_device(0)));
    static rmm::device_buffer outlives(1000, by_default);
    printf("requests, containers, seven adaptors and the current resource of RMM %d.%d, CCCL %d.%d\n", RMM_VERSION_MAJOR,
           RMM_VERSION_MINOR, CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION);
    return check_end();
}
