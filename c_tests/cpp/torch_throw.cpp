// What PyTorch's binding, which is C++, sees of a request that cannot be served; and no exception where there is none.
#include "../contents.h"
#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

namespace {

int destroyed;
struct counted {
    ~counted() { destroyed++; }
};

std::string said(size_t bytes, int device) {
    counted on_the_way;
    try {
        counted inside;
        weir_torch_free(weir_torch_alloc_or_throw(bytes, device, nullptr), bytes, device, nullptr);
        return "";
    } catch (const std::runtime_error &thrown) {
        return thrown.what();
    }
}

} // namespace

int main() {
    program_begin();
    weir_pool *own = check_pool(8 * MiB);
    CHECK_OK(weir_device_set_pool(check_device(), own));
    CHECK(said(MiB, check_device()).empty());
    // a compiler may put the C++ library into the program, where nobody finds the function that throws
    if (dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD) == nullptr) {
        CHECK(weir_torch_alloc_or_throw(64 * MiB, check_device(), nullptr) == nullptr);
        CHECK_OK(weir_pool_destroy(own));
        return program_end();
    }
    for (int n = 0; n < 100; n++) {
        CHECK(said(64 * MiB, check_device()).rfind("CUDA out of memory. weir_torch_alloc_or_throw: out of memory: asked 64", 0) == 0);
    }
    CHECK(said(static_cast<size_t>(-1), check_device()).rfind("CUDA out of memory. ", 0) == 0);
    CHECK(said(1, -2).rfind("weir_torch_alloc_or_throw: device -2", 0) == 0);
    CHECK_EQUAL(destroyed, 2 * 103);
    CHECK(said(MiB, check_device()).empty());
    CHECK(weir_torch_alloc(64 * MiB, check_device(), nullptr) == nullptr);
    CHECK_OK(weir_pool_destroy(own));
    return program_end();
}
