// An unmanaged View over weir memory whose owner is a static object: it dies after Kokkos::finalize, where a
// managed View would abort, and gives its block and its pool back from its destructor.
#include "weir_space.hpp"

namespace {

struct Field {
    weir_pool *pool = nullptr;
    View<int> view;

    void make(int n) {
        pool = check_pool(0);
        view = View<int>(weir_new<int>(pool, n), n);
    }

    ~Field() {
        weir_delete(pool, view.data());
        CHECK_OK(weir_pool_destroy(pool));
        std::printf("static destructor: ");
        check_end();
    }
};

Field field;

} // namespace

int main(int argc, char **argv) {
    Kokkos::initialize(argc, argv);
    field.make(1000);
    View<int> view = field.view;
    Kokkos::parallel_for(1000, KOKKOS_LAMBDA(int i) { view(i) = i; });
    int sum = 0;
    Kokkos::parallel_reduce(1000, KOKKOS_LAMBDA(int i, int &s) { s += view(i); }, sum);
    CHECK_EQUAL(sum, 499500);
    Kokkos::finalize();
    return check_end();
}
