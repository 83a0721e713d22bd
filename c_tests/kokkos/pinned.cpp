// Pinned memory for the host's execution spaces: what a GPU's stream has still to do with it is over when the host gets it.
#include "../cpp/under_test.h"
#include "kokkos.hpp"

namespace {

// There is room for one block alone.
constexpr size_t bytes = 4 * MiB;

template <class Take>
void the_host_waits(Take take) {
    weir::pool pool = pool_of(WEIR_MEMORY_PINNED, 6 * MiB);
    void *block = pool.allocate(bytes);
    under_test_gate *gate = under_test_close(nullptr);
    pool.deallocate(block);
    under_test_open(gate, 50);
    take(pool, gate);
    under_test_gate_end(gate);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

template <class... Order>
void by_a_view(Order... order) {
    the_host_waits([=](const weir::pool &pool, const under_test_gate *gate) {
        const weir::kokkos::view<char *, Kokkos::HostSpace> view(weir::kokkos::alloc(pool, order...), bytes);
        CHECK(!under_test_closed(gate));
        CHECK_EQUAL(view(bytes - 1), 0);
    });
}

#if KOKKOS_VERSION >= 40699
void by_a_space() {
    the_host_waits([](const weir::pool &pool, const under_test_gate *gate) {
        const weir::kokkos::host_space space(pool);
        void *block = space.allocate(bytes);
        CHECK(!under_test_closed(gate));
        space.deallocate(block, bytes);
    });
}
#endif

} // namespace

int main(int argc, char **argv) {
    Kokkos::initialize(argc, argv);
    under_test_begin();
    by_a_view();
    by_a_view(Kokkos::DefaultHostExecutionSpace());
#if KOKKOS_VERSION >= 40699
    by_a_space();
#endif
    under_test_end();
    Kokkos::finalize();
    return check_end();
}
