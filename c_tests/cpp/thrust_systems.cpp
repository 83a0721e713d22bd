// Two device systems of Thrust in one program: here the CPP system, and the CUDA system in another file, as in a program that
// links a library for GPUs. What weir has for them differs, and so must its names.
#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP
#include "thrust_systems.h"

int main() {
    const weir::pool pool(check_options(0));
    CHECK(!thrust_allocator_of_cuda_takes(pool));
    weir::thrust_allocator<int> memory(pool);
    memory.deallocate(memory.allocate(10), 10);
    const types here{typeid(memory), typeid(weir::thrust_resource<>)}, of_cuda = thrust_types_of_cuda();
    CHECK(here.first != of_cuda.first && here.second != of_cuda.second);
    return check_end();
}
