// weir below RMM: as the resource that all of RMM's containers use, and with an adaptor of RMM's over it. C++20, with librmm.
#include <cstdio>
#include <cuda_runtime_api.h>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <weir/memory_resource.hpp>

int main() {
    const weir::pool pool = weir::pool::of_device(0);
    rmm::mr::statistics_resource_adaptor statistics{weir::device_memory_resource(pool)};
    rmm::mr::set_current_device_resource(statistics);
    {
        rmm::cuda_stream stream{rmm::cuda_stream::flags::non_blocking};
        const float first = 1;
        for (std::size_t n = 0; n < 1000; n++) {
            rmm::device_uvector<float> values(1000 + 1000 * (n % 100), stream);
            values.set_element_async(0, first, stream);
            values.resize(200000, stream); // freed and asked for in the order of the stream
            if (values.front_element(stream) != first) {
                return 1;
            }
        }
        try {
            rmm::device_uvector<char> none(std::size_t{1} << 50, stream);
            return 1;
        } catch (const rmm::out_of_memory &error) {
            std::printf("%s\n", error.what());
        }
    }
    const weir_pool_stats stats = pool.stats();
    std::printf("RMM counted %lld allocations, at most %lld bytes at a time; weir held at most %llu, and made %llu driver calls\n",
                static_cast<long long>(statistics.get_allocations_counter().total),
                static_cast<long long>(statistics.get_bytes_counter().peak),
                static_cast<unsigned long long>(stats.reserved_bytes_peak),
                static_cast<unsigned long long>(stats.driver_calls));
    return stats.used_bytes == 0 ? 0 : 1;
}
