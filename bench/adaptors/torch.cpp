// PyTorch's caching allocator: plain, or with expandable segments if PYTORCH_CUDA_ALLOC_CONF says so.
#include "cuda.h"
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cstring>
#include <exception>

namespace caching = c10::cuda::CUDACachingAllocator;

class Torch final : public CudaAdaptor {
public:
    const char *name() const override {
        const char *options = getenv("PYTORCH_CUDA_ALLOC_CONF");
        return options != nullptr && strstr(options, "expandable_segments:True") ? "torch-expandable" : "torch";
    }
    const char *open() override {
        const char *why = CudaAdaptor::open();
        if (why == nullptr) {
            caching::init(c10::cuda::device_count());
            size_t free;
            cuda_must(cudaMemGetInfo(&free, &card_));
        }
        return why;
    }
    void thread_begin() override { c10::cuda::set_device(0); }

    // There is one such allocator in a process: it is emptied instead of made.
    bool begin(size_t limit) override {
        end();
        double share = limit == 0 ? 1.0 : static_cast<double>(limit) / static_cast<double>(card_);
        caching::setMemoryFraction(share < 1.0 ? share : 1.0, 0);
        caching::resetPeakStats(0);
        return true;
    }
    void end() override {
        synchronize();
        caching::emptyCache();
    }

    void *alloc(size_t bytes, Stream stream) override {
        try {
            return caching::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
        } catch (const std::exception &) {
            return failed();
        }
    }
    // The block goes back to the stream it was allocated on, whatever stream frees it.
    void free(void *block, size_t, Stream) override { caching::raw_delete(block); }
    void free_elsewhere(void *block, size_t, Stream, Stream stream) override {
        caching::CUDAAllocator *allocator = caching::get();
        c10::Device device(c10::DeviceType::CUDA, 0);
        c10::DataPtr owner(block, block, allocator->raw_deleter(), device);
        caching::recordStream(owner, c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0));
    } // and its owner frees it

    size_t reserved_peak() override { return caching::getDeviceStats(0).reserved_bytes[0].peak; }

private:
    size_t card_ = 0;
};

Adaptor *bench_adaptor() {
    static Torch adaptor;
    return &adaptor;
}
