// RMM's pool resource or, with BENCH_RMM_ARENA, its arena resource; both over cudaMalloc.
#include "cuda.h"
#include <atomic>
#include <exception>
#include <optional>
#include <rmm/mr/cuda_memory_resource.hpp>
#ifdef BENCH_RMM_ARENA
#include <rmm/mr/arena_memory_resource.hpp>
using Resource = rmm::mr::arena_memory_resource;
#else
#include <rmm/mr/pool_memory_resource.hpp>
using Resource = rmm::mr::pool_memory_resource;
#endif

static std::atomic<size_t> held{0}, most_held{0};

// cudaMalloc, and how much of it is held.
class Counted {
public:
    void *allocate(cuda::stream_ref stream, size_t bytes, size_t alignment = 256) {
        return counted(below_.allocate(stream, bytes, alignment), bytes);
    }
    void deallocate(cuda::stream_ref stream, void *block, size_t bytes, size_t alignment = 256) noexcept {
        held -= bytes;
        below_.deallocate(stream, block, bytes, alignment);
    }
    void *allocate_sync(size_t bytes, size_t alignment = 256) {
        return counted(below_.allocate_sync(bytes, alignment), bytes);
    }
    void deallocate_sync(void *block, size_t bytes, size_t alignment = 256) noexcept {
        held -= bytes;
        below_.deallocate_sync(block, bytes, alignment);
    }
    bool operator==(const Counted &) const noexcept { return true; }
    bool operator!=(const Counted &) const noexcept { return false; }
    friend void get_property(const Counted &, cuda::mr::device_accessible) noexcept {}

private:
    static void *counted(void *block, size_t bytes) {
        size_t now = held += bytes, most = most_held;
        while (now > most && !most_held.compare_exchange_weak(most, now)) {
        }
        return block;
    }
    rmm::mr::cuda_memory_resource below_;
};

class Rmm final : public CudaAdaptor {
public:
#ifdef BENCH_RMM_ARENA
    const char *name() const override { return "rmm-arena"; }
#else
    const char *name() const override { return "rmm-pool"; }
#endif

    bool begin(size_t limit) override {
        held = most_held = 0;
        std::optional<size_t> most;
        if (limit != 0) {
            most = limit >> 20 << 20; // a multiple of what both resources ask for
        }
        try {
#ifdef BENCH_RMM_ARENA
            resource_.emplace(Counted{}, most);
#else
            resource_.emplace(Counted{}, size_t{256} << 20, most);
#endif
        } catch (const std::exception &) {
            failed();
            return false;
        }
        return true;
    }
    void end() override {
        synchronize();
        resource_.reset();
    }

    void *alloc(size_t bytes, Stream stream) override {
        try {
            return resource_->allocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, bytes, 256);
        } catch (const std::exception &) {
            return failed();
        }
    }
    void free(void *block, size_t bytes, Stream stream) override {
        resource_->deallocate(cuda::stream_ref{static_cast<cudaStream_t>(stream)}, block, bytes, 256);
    }

    size_t reserved_peak() override { return most_held; }

private:
    std::optional<Resource> resource_;
};

Adaptor *bench_adaptor() {
    static Rmm adaptor;
    return &adaptor;
}
