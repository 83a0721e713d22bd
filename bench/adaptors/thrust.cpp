// Thrust's caching pool over cudaMalloc, with a lock around it. It knows no streams: a block may be handed to one
// stream while another still uses it.
#include "cuda.h"
#include <atomic>
#include <memory>
#include <new>
#include <thrust/mr/disjoint_sync_pool.h>
#include <thrust/mr/new.h>

static std::atomic<size_t> held{0}, most_held{0};
static size_t most_allowed = 0;

// cudaMalloc with a limit, called under the pool's lock.
struct Device final : thrust::mr::memory_resource<void *> {
    void *do_allocate(size_t bytes, size_t) override {
        void *block = nullptr;
        if ((most_allowed != 0 && held + bytes > most_allowed) || cudaMalloc(&block, bytes) != cudaSuccess) {
            cudaGetLastError();
            throw std::bad_alloc();
        }
        held += bytes;
        if (held > most_held) {
            most_held = held.load();
        }
        return block;
    }
    void do_deallocate(void *block, size_t bytes, size_t) override {
        held -= bytes;
        cudaFree(block);
    }
};

using Pool = thrust::mr::disjoint_synchronized_pool_resource<Device, thrust::mr::new_delete_resource>;

class Thrust final : public CudaAdaptor {
public:
    const char *name() const override { return "thrust-pool"; }
    bool stream_ordered() const override { return false; }

    bool begin(size_t limit) override {
        most_allowed = limit;
        held = most_held = 0;
        pool_ = std::make_unique<Pool>(&device_, &books_, Pool::get_default_options());
        return true;
    }
    void end() override {
        synchronize();
        pool_.reset();
    }

    void *alloc(size_t bytes, Stream) override {
        try {
            return pool_->do_allocate(bytes, 256);
        } catch (const std::exception &) {
            return failed();
        }
    }
    void free(void *block, size_t bytes, Stream) override { pool_->do_deallocate(block, bytes, 256); }

    size_t reserved_peak() override { return most_held; }

private:
    Device device_;
    thrust::mr::new_delete_resource books_;
    std::unique_ptr<Pool> pool_;
};

Adaptor *bench_adaptor() {
    static Thrust adaptor;
    return &adaptor;
}
