// cudaMallocAsync from a pool of its own that keeps its memory (release threshold at its end, as its users set it).
#include "cuda.h"

class CudaAsync final : public CudaAdaptor {
public:
    const char *name() const override { return "cudaMallocAsync"; }

    bool begin(size_t limit) override {
        cudaMemPoolProps options = {};
        options.allocType = cudaMemAllocationTypePinned;
        options.location.type = cudaMemLocationTypeDevice;
        options.maxSize = limit;
        if (cudaMemPoolCreate(&pool_, &options) != cudaSuccess) {
            failed();
            return false;
        }
        uint64_t keep = UINT64_MAX;
        cuda_must(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
        return true;
    }
    void end() override {
        synchronize();
        cuda_must(cudaMemPoolDestroy(pool_));
    }

    void *alloc(size_t bytes, Stream stream) override {
        void *block = nullptr;
        cudaError_t error = cudaMallocFromPoolAsync(&block, bytes, pool_, static_cast<cudaStream_t>(stream));
        return error == cudaSuccess ? block : failed();
    }
    void free(void *block, size_t, Stream stream) override {
        cuda_must(cudaFreeAsync(block, static_cast<cudaStream_t>(stream)));
    }

    size_t reserved_peak() override {
        uint64_t bytes = 0;
        cuda_must(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &bytes));
        return bytes;
    }

private:
    cudaMemPool_t pool_ = nullptr;
};

Adaptor *bench_adaptor() {
    static CudaAsync adaptor;
    return &adaptor;
}
