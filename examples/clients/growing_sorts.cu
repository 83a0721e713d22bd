// Sorts of a vector that grows until it and what a sort needs beside it fill the GPU: the program of NVIDIA/cccl issue 4222.
// It runs with Thrust's own caching allocator, and with weir.
//
// Each sort asks for a little more temporary memory than the one before, so a cache that hands out only what is large enough
// for a request keeps all of it and reuses none. Thrust's, up to the one in CUDA 13.0 (CCCL 3.0), throws; later ones give
// back what they have cached and ask again (NVIDIA/cccl pull request 4420).
//
//   growing_sorts [thrust|weir|both] [GIB]     GIB: how much of the GPU to fill, by default nine tenths of what is free
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <thrust/detail/caching_allocator.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>
#include <thrust/tabulate.h>
#include <weir/thrust.hpp>

using word = unsigned long long;

struct scattered {
    __host__ __device__ word operator()(word i) const { return i * 0x9e3779b97f4a7c15ull; }
};

constexpr double GiB = 1 << 30;

// Sorts with temporary memory of `policy` until vector and temporary memory are `bytes`. Returns true if it came so far.
template <class Policy, class Vector>
bool sorts(const char *name, Policy policy, Vector words, std::size_t bytes) {
    const std::size_t most = bytes / (2 * sizeof(word));
    std::size_t count = most / 1000 + 1, steps = 0;
    try {
        for (;; steps++) {
            words.resize(count);
            thrust::tabulate(policy, words.begin(), words.end(), scattered());
            thrust::sort(policy, words.begin(), words.end());
            if (!thrust::is_sorted(policy, words.begin(), words.end())) {
                std::printf("%s: not sorted\n", name);
                return false;
            }
            if (count == most) {
                break;
            }
            count = count + count / 8 < most ? count + count / 8 : most;
        }
    } catch (const std::bad_alloc &error) {
        std::printf("%s: threw in sort %zu, of %.2f GiB: %s\n", name, steps + 1, static_cast<double>(count) * 8 / GiB,
                    error.what());
        return false;
    }
    std::printf("%s: %zu sorts, the last of %.2f GiB\n", name, steps + 1, static_cast<double>(count) * 8 / GiB);
    return true;
}

// A thread of its own: Thrust's allocator keeps what it has cached until its thread ends.
bool with_thrust(std::size_t bytes) {
    bool done = false;
    std::thread([&] {
        auto cache = thrust::detail::single_device_tls_caching_allocator();
        done = sorts("Thrust's caching allocator", thrust::cuda::par(cache), thrust::device_vector<word>(), bytes);
    }).join();
    return done;
}

bool with_weir(std::size_t bytes) {
    const weir::pool pool(weir::default_options());
    weir::thrust_allocator<word> memory(pool);
    const thrust::device_vector<word, weir::thrust_allocator<word>> empty(memory);
    const bool done = sorts("weir", thrust::cuda::par(memory), empty, bytes);
    const weir_pool_stats stats = pool.stats();
    std::printf("weir: at most %.2f GiB used and %.2f GiB held\n", static_cast<double>(stats.used_bytes_peak) / GiB,
                static_cast<double>(stats.reserved_bytes_peak) / GiB);
    return done;
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "both";
    std::size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    const double bytes = argc > 2 ? std::atof(argv[2]) * GiB : static_cast<double>(left) * 0.9;
    std::printf("Thrust %d.%d.%d, %.1f of %.1f GiB to fill\n", THRUST_MAJOR_VERSION, THRUST_MINOR_VERSION,
                THRUST_SUBMINOR_VERSION, bytes / GiB, static_cast<double>(total) / GiB);
    bool done = true;
    if (std::strcmp(which, "weir") != 0) {
        done = with_thrust(static_cast<std::size_t>(bytes));
    }
    if (std::strcmp(which, "thrust") != 0) {
        // of both it is weir that must get through
        done = with_weir(static_cast<std::size_t>(bytes));
    }
    return done ? 0 : 1;
}
