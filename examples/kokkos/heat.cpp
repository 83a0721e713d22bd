// Heat on a rod, with Kokkos' Views in weir's memory: weir/kokkos.hpp. Runs on the host or, where Kokkos has CUDA, on a GPU.
#include <Kokkos_Core.hpp>
#include <cstdio>
#include <utility>
#include <weir/kokkos.hpp>

using Rod = weir::kokkos::view<double *>;

// Each step takes a new View, as programs do that do not keep their work space: the memory comes back from the pool.
Rod step(const Rod &now) {
    const int n = static_cast<int>(now.extent(0));
    const Kokkos::DefaultExecutionSpace order{}; // frees follow its work, and nothing waits
    Rod next(weir::kokkos::alloc("next", order), now.extent(0));
    Kokkos::parallel_for(
        "step", Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace>(order, 1, n - 1),
        KOKKOS_LAMBDA(const int i) { next(i) = 0.25 * now(i - 1) + 0.5 * now(i) + 0.25 * now(i + 1); });
    return next;
}

double run(int cells, int steps) {
    Rod now("rod", static_cast<std::size_t>(cells));
    Kokkos::deep_copy(subview(now, std::make_pair(cells / 2, cells / 2 + 1)), 1.0);
    for (int n = 0; n < steps; n++) {
        now = step(now);
    }
    double sum = 0;
    Kokkos::parallel_reduce(
        "sum", cells, KOKKOS_LAMBDA(const int i, double &s) { s += now(i); }, sum);
    return sum;
}

int main(int argc, char **argv) {
    Kokkos::initialize(argc, argv);
    // A pool of the program's own, which ends in Kokkos::finalize(). Without one the process-wide pool is used.
    weir_pool_options options = weir::default_options();
#ifdef KOKKOS_ENABLE_CUDA
    options.memory = WEIR_MEMORY_DEVICE;
#else
    options.memory = WEIR_MEMORY_HOST;
#endif
    static weir::kokkos::guard guard{weir::pool(options)}; // static objects are fine

    const double sum = run(10000, 1000);
    const weir_pool_stats stats = guard.get_pool().stats();
    std::printf("heat %.6f after 1000 steps; %llu allocations, %llu bytes in use, %llu at most\n", sum,
                static_cast<unsigned long long>(stats.allocations), static_cast<unsigned long long>(stats.used_bytes),
                static_cast<unsigned long long>(stats.used_bytes_peak));
    Kokkos::finalize();
    return sum > 0.999 && sum < 1.001 && stats.used_bytes == 0 ? 0 : 1;
}
