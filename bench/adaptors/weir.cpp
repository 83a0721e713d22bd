// A weir pool: of GPU memory with BENCH_CUDA, else of host memory. Options come from the environment (WEIR_SLACK and
// so on), as weir_pool_options_init takes them. Host streams are real ones, each with its thread, or with
// BENCH_STREAMS=names mere names, for which a pool believes that nothing is ever in flight. BENCH_WAITS=untold: the
// program waits by the runtime's own call, of which the pool does not hear.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <weir.h>
#ifdef BENCH_CUDA
#include "cuda.h"
using Base = CudaAdaptor;
#else
#include "host.h"
using Base = HostAdaptor;
#endif

static void must(weir_status status) {
    if (status != WEIR_OK) {
        fprintf(stderr, "bench: %s: %s\n", weir_status_name(status), weir_last_error());
        _Exit(1);
    }
}

class Weir final : public Base {
public:
    const char *open() override {
        const char *streams = getenv("BENCH_STREAMS");
        named_ = streams != nullptr && strcmp(streams, "names") == 0;
        const char *waits = getenv("BENCH_WAITS");
        untold_ = waits != nullptr && strcmp(waits, "untold") == 0;
        return Base::open();
    }
    const char *describe() override {
        snprintf(text_, sizeof text_, "weir %s%s%s%s%s", weir_version(), *Base::describe() != 0 ? ", " : "",
                 Base::describe(), named_ ? ", streams are names" : "", untold_ ? ", waits are not told" : "");
        return text_;
    }

    bool begin(size_t limit) override {
        weir_pool_options options;
        must(weir_pool_options_init(&options, sizeof options));
        options.memory = memory;
        if (limit != 0) {
            options.max_bytes = limit;
        }
        weir_status status = weir_pool_create(&options, &pool_);
        if (status != WEIR_OK && status != WEIR_ERROR_OUT_OF_MEMORY) {
            must(status);
        }
        return status == WEIR_OK;
    }
    void end() override { must(weir_pool_destroy(pool_)); }

    void *alloc(size_t bytes, Stream stream) override {
        void *block;
        weir_status status = weir_pool_alloc(pool_, bytes, stream, &block);
        if (status == WEIR_OK) {
            return block;
        }
        if (status != WEIR_ERROR_OUT_OF_MEMORY) {
            must(status);
        }
        return nullptr;
    }
    void free(void *block, size_t, Stream stream) override { must(weir_pool_free(pool_, block, stream)); }

    bool has_batches() const override { return true; }
    bool alloc_batch(const size_t *sizes, size_t count, Stream stream, void **blocks) override {
        weir_status status = weir_pool_alloc_batch(pool_, sizes, count, stream, blocks);
        if (status != WEIR_OK && status != WEIR_ERROR_OUT_OF_MEMORY) {
            must(status);
        }
        return status == WEIR_OK;
    }
    void free_batch(void *const *blocks, size_t count, Stream stream) override {
        must(weir_pool_free_batch(pool_, blocks, count, stream));
    }

    bool stream_ordered() const override { return true; }
    bool keeps_limit() const override { return true; }
    size_t reserved_peak() override { return stats().reserved_bytes_peak; }
    bool driver_calls(uint64_t &calls) override {
        calls = stats().driver_calls;
        return true;
    }

    bool page_calls(uint64_t &calls) override {
        weir_pool_stats now = stats();
        calls = now.page_creates + now.page_releases + now.page_maps + now.page_unmaps;
        return true;
    }

    void record(Event event, Stream stream) override { must(weir_event_record(event, stream)); }
    void wait(Stream stream, Event event) override { must(weir_stream_wait_event(stream, event)); }
    void finish(Stream stream) override {
        if (untold_ || named_) {
            Base::finish(stream);
        } else {
            must(weir_stream_synchronize(stream));
        }
    }
    void synchronize() override {
        if (untold_) {
            Base::synchronize();
        } else {
            must(weir_device_synchronize());
        }
    }

#ifdef BENCH_CUDA
    const char *name() const override { return "weir"; }
#else
    const char *name() const override { return "weir-host"; }
    Stream stream_create() override {
        Stream stream = nullptr;
        if (named_) {
            return Base::stream_create();
        }
        must(weir_host_stream_create(&stream));
        return stream;
    }
    void stream_destroy(Stream stream) override {
        if (!named_) {
            must(weir_host_stream_destroy(stream));
        }
    }
    Event event_create() override {
        Event event = nullptr;
        must(weir_host_event_create(&event));
        return event;
    }
    void event_destroy(Event event) override { must(weir_host_event_destroy(event)); }
#endif

private:
#ifdef BENCH_CUDA
    static constexpr int memory = WEIR_MEMORY_DEVICE;
#else
    static constexpr int memory = WEIR_MEMORY_HOST;
#endif

    weir_pool_stats stats() {
        weir_pool_stats stats = {};
        stats.struct_size = sizeof stats;
        must(weir_pool_get_stats(pool_, &stats));
        return stats;
    }

    weir_pool *pool_ = nullptr;
    bool named_ = false, untold_ = false;
    char text_[1024] = "";
};

Adaptor *bench_adaptor() {
    static Weir adaptor;
    return &adaptor;
}
