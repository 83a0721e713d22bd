// Kokkos with the memory of its Views in a weir pool that a singleton owns. The singleton is made on first
// use inside Kokkos and emptied by a finalize hook, as Kokkos does with its own (kokkos#7600, #8042):
// afterwards nothing is left, which the strict leak check confirms.
#include "weir_space.hpp"

namespace {

class Workspace {
  public:
    static Workspace &singleton() {
        static Workspace self;
        return self;
    }

    weir_pool *pool() {
        if (pool_ == nullptr) {
            pool_ = check_pool(0);
            Kokkos::push_finalize_hook([] { singleton().finalize(); });
        }
        return pool_;
    }

    double *scratch(std::size_t n) {
        if (scratch_ == nullptr) {
            scratch_ = weir_new<double>(pool(), n);
        }
        return scratch_;
    }

  private:
    void finalize() {
        weir_delete(pool_, scratch_);
        scratch_ = nullptr;
        CHECK_EQUAL(CHECK_STATS(pool_).used_bytes, 0);
        CHECK_OK(weir_pool_destroy(pool_));
        pool_ = nullptr;
    }

    weir_pool *pool_ = nullptr;
    double *scratch_ = nullptr;
};

void heat(int n, int steps) {
    weir_pool *pool = Workspace::singleton().pool();
    View<double> now(weir_new<double>(pool, n), n), next(weir_new<double>(pool, n), n);
    View<double> kept(Workspace::singleton().scratch(n), n);
    Kokkos::deep_copy(now, 0.0);
    now(n / 2) = 1.0;
    for (int step = 0; step < steps; step++) {
        Kokkos::parallel_for(Kokkos::RangePolicy<>(1, n - 1), KOKKOS_LAMBDA(int i) {
            next(i) = 0.25 * now(i - 1) + 0.5 * now(i) + 0.25 * now(i + 1);
        });
        next(0) = next(n - 1) = 0.0;
        std::swap(now, next);
    }
    Kokkos::deep_copy(kept, now);
    double sum = 0.0;
    Kokkos::parallel_reduce(n, KOKKOS_LAMBDA(int i, double &s) { s += kept(i); }, sum);
    CHECK(sum > 0.999999 && sum < 1.000001);
    weir_delete(pool, now.data());
    weir_delete(pool, next.data());
}

} // namespace

int main(int argc, char **argv) {
    // initialise, finalise; a second round in the same process is Kokkos's to allow, and it does not
    Kokkos::initialize(argc, argv);
    for (int round = 0; round < 5; round++) {
        heat(10000, 50);
    }
    Kokkos::finalize();
    return check_end();
}
