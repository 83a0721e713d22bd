// Blocks that free themselves, in the order of their stream: weir/pool.hpp. On host memory, so that it runs anywhere; with
// weir::pool::of_device(0) and a cudaStream_t the same program is one for a GPU.
#include <cstdio>
#include <vector>
#include <weir/pool.hpp>

int main() {
    weir::pool pool = weir::pool::of_host();
    weir_stream stream = nullptr;
    try {
        std::vector<weir::buffer> parts;
        for (std::size_t n = 1; n <= 100; n++) {
            parts.emplace_back(pool, n * 1000, stream); // moves when the vector grows
        }
        weir::unique_array<float> sums = weir::make_array<float>(pool, 1000, stream);
        sums[999] = 1;
        weir_pool_stats stats = pool.stats();
        std::printf("%llu blocks, %llu bytes used, %llu held\n",
                    static_cast<unsigned long long>(stats.allocations - stats.frees),
                    static_cast<unsigned long long>(stats.used_bytes),
                    static_cast<unsigned long long>(stats.reserved_bytes));

        weir_pool_options options = weir::default_options();
        options.memory = WEIR_MEMORY_HOST;
        options.max_bytes = 8 << 20;
        weir::buffer too_much(weir::pool(options), 64 << 20, stream);
        return 1;
    } catch (const weir::bad_alloc &error) { // also a std::bad_alloc
        std::printf("%s\n", error.what());
    }
    std::printf("%llu bytes used at the end\n", static_cast<unsigned long long>(pool.stats().used_bytes));
    return pool.stats().used_bytes == 0 ? 0 : 1;
}
