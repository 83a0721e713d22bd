// A pool that a never deleted singleton owns, as Kokkos once kept its own (kokkos#7600, #8042): it is made on first use
// inside Kokkos and ends in Kokkos::finalize(). Afterwards nothing is left of it, which the strict leak check confirms.
#include "kokkos.hpp"

namespace {

class Workspace {
  public:
    static Workspace &singleton() {
        alignas(Workspace) static unsigned char room[sizeof(Workspace)];
        static Workspace *const self = new (room) Workspace; // whose destructor nobody calls
        return *self;
    }

    weir::kokkos::view<double *> scratch(size_t n) {
        return weir::kokkos::view<double *>(weir::kokkos::alloc("scratch", guard_.get_pool()), n);
    }
    weir_pool *handle() const { return handle_; }

  private:
    weir::kokkos::guard guard_{a_pool()};
    weir_pool *const handle_ = guard_.get_pool().get();
};

double heat(int n, int steps) {
    weir::kokkos::view<double *> now("now", n), next = Workspace::singleton().scratch(n);
    Kokkos::parallel_for(1, KOKKOS_LAMBDA(const int) { now(n / 2) = 1.0; });
    for (int step = 0; step < steps; step++) {
        Kokkos::parallel_for(Kokkos::RangePolicy<Exec>(1, n - 1), KOKKOS_LAMBDA(const int i) {
            next(i) = 0.25 * now(i - 1) + 0.5 * now(i) + 0.25 * now(i + 1);
        });
        std::swap(now, next);
    }
    double sum = 0.0;
    Kokkos::parallel_reduce(n, KOKKOS_LAMBDA(const int i, double &s) { s += now(i); }, sum);
    return sum;
}

void current_until_its_end() {
    const weir::pool before = weir::kokkos::view<int *>("before", 1).get_pool();
    {
        weir::kokkos::guard guard(a_pool());
        CHECK(guard.get_pool() != before);
        const weir::kokkos::view<int *> named("view", 1);
        CHECK(named.get_pool() == guard.get_pool());
        weir::kokkos::guard moved(std::move(guard));
        CHECK(!guard.get_pool() && moved.get_pool() == named.get_pool());
        CHECK(weir::kokkos::view<int *>("view", 1).get_pool() == moved.get_pool());
        moved.end();
        CHECK(!moved.get_pool());
        CHECK(weir::kokkos::view<int *>("after", 1).get_pool() == before);
        CHECK(named.get_pool().stats().used_bytes > 0); // it keeps the pool
    }
    CHECK(weir::kokkos::view<int *>("after", 1).get_pool() == before);
}

} // namespace

int main(int argc, char **argv) {
    try {
        weir::kokkos::guard early(a_pool());
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
    }
    Kokkos::initialize(argc, argv);
    current_until_its_end();
    weir_pool *const handle = Workspace::singleton().handle();
    for (int round = 0; round < 5; round++) {
        const double sum = heat(10000, 50);
        CHECK(sum > 0.999999 && sum < 1.000001);
    }
    CHECK_EQUAL(CHECK_STATS(handle).used_bytes, 0);
    Kokkos::finalize();
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_trim(handle, 0));
    return check_end();
}
