// What the Kokkos tests share. Memory is that of Kokkos' default execution space: the host's, or a GPU's where Kokkos has
// CUDA.
#pragma once

#include "../check.h"
#include <weir/kokkos.hpp>

using Exec = Kokkos::DefaultExecutionSpace;
using Memory = Exec::memory_space;

#ifdef KOKKOS_ENABLE_CUDA
constexpr weir_memory memory_kind = WEIR_MEMORY_DEVICE;
constexpr weir_memory other_kind = WEIR_MEMORY_HOST;
#else
constexpr weir_memory memory_kind = WEIR_MEMORY_HOST;
constexpr weir_memory other_kind = WEIR_MEMORY_DEVICE;
#endif

inline weir::pool pool_of(weir_memory memory, uint64_t max_bytes = 0) {
    weir_pool_options options = weir::default_options();
    options.memory = memory;
    options.max_bytes = max_bytes;
    return weir::pool(options);
}
inline weir::pool a_pool(uint64_t max_bytes = 0) { return pool_of(memory_kind, max_bytes); }

// How many elements of a view of rank 1 are `value`.
template <class View, class T>
size_t count(const View &view, T value) {
    size_t found = 0;
    Kokkos::parallel_reduce(
        Kokkos::RangePolicy<typename View::execution_space>(0, view.extent(0)),
        KOKKOS_LAMBDA(const int i, size_t &sum) { sum += view(i) == value ? 1 : 0; }, found);
    return found;
}

// An execution space instance with a stream of its own, where the execution space has streams.
class Instance {
  public:
#ifdef KOKKOS_ENABLE_CUDA
    Instance() {
        CHECK(cudaStreamCreate(&stream_) == cudaSuccess);
        exec_.emplace(stream_);
    }
    ~Instance() {
        exec_.reset();
        CHECK(cudaStreamDestroy(stream_) == cudaSuccess);
    }
    const Exec &operator*() const { return *exec_; }

  private:
    cudaStream_t stream_;
    std::optional<Exec> exec_;
#else
    const Exec &operator*() const { return exec_; }

  private:
    Exec exec_;
#endif
};
