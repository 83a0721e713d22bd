#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CUDA
#include "thrust_systems.h"

bool thrust_allocator_of_cuda_takes(const weir::pool &pool) {
    try {
        weir::thrust_allocator<int> allocator(pool, nullptr);
        return true;
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        return false;
    }
}

types thrust_types_of_cuda() { return {typeid(weir::thrust_allocator<int>), typeid(weir::thrust_resource<>)}; }
