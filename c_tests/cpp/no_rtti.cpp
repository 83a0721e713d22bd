// The headers in a program that is compiled without run-time types: a resource is then equal to itself alone.
#include "../check.h"
#include <vector>
#include <weir/pmr.hpp>
#include <weir/thrust.hpp>

int main() {
    const weir::pool pool(check_options(0));
    const weir::pmr_resource one(pool), same(pool);
    CHECK(one.is_equal(one) && !one.is_equal(same));
    weir::pmr_resource resource(pool);
    CHECK_EQUAL(std::pmr::vector<int>(1000, 7, &resource)[999], 7);

    weir::thrust_resource<> memory(pool), other(pool);
    const thrust::mr::memory_resource<thrust::device_ptr<void>> &base = memory;
    CHECK(base.is_equal(memory) && !base.is_equal(other));
    CHECK(memory == other); // whose types are known
    memory.deallocate(memory.allocate(1000), 1000);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    return check_end();
}
