// Device 0, with the runtime's streams and events.
#pragma once
#include "../adaptor.h"
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

class CudaAdaptor : public Adaptor {
public:
    const char *open() override {
        cudaError_t error = cudaSetDevice(0);
        if (error == cudaSuccess) {
            error = cudaFree(nullptr); // makes the context
        }
        return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
    }

    const char *describe() override {
        cudaDeviceProp device = {};
        int driver = 0, runtime = 0;
        cudaGetDeviceProperties(&device, 0);
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        snprintf(text_, sizeof text_, "%s, CUDA driver API %d.%d, runtime %d.%d", device.name, driver / 1000,
                 driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return text_;
    }

    void thread_begin() override { cudaSetDevice(0); }
    bool stream_ordered() const override { return true; }
    bool keeps_limit() const override { return true; }

    Stream stream_create() override {
        cudaStream_t stream = nullptr;
        cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return stream;
    }
    void stream_destroy(Stream stream) override { cuda_must(cudaStreamDestroy(static_cast<cudaStream_t>(stream))); }
    Event event_create() override {
        cudaEvent_t event = nullptr;
        cuda_must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        return event;
    }
    void event_destroy(Event event) override { cuda_must(cudaEventDestroy(static_cast<cudaEvent_t>(event))); }
    void record(Event event, Stream stream) override {
        cuda_must(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)));
    }
    void wait(Stream stream, Event event) override {
        cuda_must(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0));
    }
    bool has_work() const override { return true; }
    void write(void *block, size_t bytes, Stream stream) override {
        cuda_must(cudaMemsetAsync(block, 0, bytes, static_cast<cudaStream_t>(stream)));
    }
    void finish(Stream stream) override { cuda_must(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); }
    void synchronize() override { cuda_must(cudaDeviceSynchronize()); }

protected:
    // Figures of a broken device would be worse than none.
    static void cuda_must(cudaError_t error) {
        if (error != cudaSuccess) {
            fprintf(stderr, "bench: %s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
            _Exit(1);
        }
    }
    // An allocation that failed is a result, not a broken device: its error is taken back.
    static void *failed() {
        cudaGetLastError();
        return nullptr;
    }

private:
    char text_[512] = "";
};
