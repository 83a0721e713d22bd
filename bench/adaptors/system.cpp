// malloc and what stands in for it. BENCH_NAME is its name, BENCH_LIBRARY the library to open ("": the C library that
// is there), BENCH_ALLOC and BENCH_FREE its functions. Opened with RTLD_LOCAL, so that the bench's own memory stays
// the C library's.
#include "host.h"
#include <dlfcn.h>

class System final : public HostAdaptor {
public:
    const char *name() const override { return BENCH_NAME; }
    const char *describe() override { return BENCH_LIBRARY; }

    const char *open() override {
        void *library = *BENCH_LIBRARY != 0 ? dlopen(BENCH_LIBRARY, RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
        if (library == nullptr && *BENCH_LIBRARY != 0) {
            return dlerror();
        }
        alloc_ = reinterpret_cast<void *(*)(size_t)>(dlsym(library, BENCH_ALLOC));
        free_ = reinterpret_cast<void (*)(void *)>(dlsym(library, BENCH_FREE));
        return alloc_ != nullptr && free_ != nullptr ? nullptr : dlerror();
    }

    bool begin(size_t limit) override { return limit == 0; }
    void end() override {}
    void *alloc(size_t bytes, Stream) override { return alloc_(bytes); }
    void free(void *block, size_t, Stream) override { free_(block); }
    bool stream_ordered() const override { return false; }
    bool keeps_limit() const override { return false; }

private:
    void *(*alloc_)(size_t) = nullptr;
    void (*free_)(void *) = nullptr;
};

Adaptor *bench_adaptor() {
    static System adaptor;
    return &adaptor;
}
