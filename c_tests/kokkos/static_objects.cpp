// Views, guards and pools that are static objects: they go after Kokkos::finalize(), after weir's own end, and after the
// driver.
#include "kokkos.hpp"

namespace {

// Before the others, so it goes last.
struct last_words {
    ~last_words() {
        CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_trim(of_guard, 0)); // the last view of it ended it
        CHECK_EQUAL(destroyed, 100);
        printf("static destructor: ");
        check_end();
    }
    weir_pool *of_guard = nullptr;
    unsigned destroyed = 0;
};
last_words words;

struct Element {
    int value = 7;
    ~Element() { words.destroyed++; }
};

weir::kokkos::guard guard;
weir::kokkos::view<int *> of_guard, ordered, of_default, of_own;
weir::kokkos::view<Element *, Kokkos::HostSpace> elements;
weir::pool own;

} // namespace

int main(int argc, char **argv) {
    Kokkos::initialize(argc, argv);
    of_default = weir::kokkos::view<int *>("of the default pool", 1000);
    guard = weir::kokkos::guard(a_pool());
    words.of_guard = guard.get_pool().get();
    own = a_pool();
    of_guard = weir::kokkos::view<int *>("of the guard", 1000);
    ordered = weir::kokkos::view<int *>(weir::kokkos::alloc("in an order", Exec()), 1000);
    of_own = weir::kokkos::view<int *>(weir::kokkos::alloc("of a pool", own, Exec()), 1000);
    elements = decltype(elements)("elements", 100);
    CHECK(of_default.get_pool() != guard.get_pool() && ordered.get_pool() == guard.get_pool());
    weir::kokkos::view<int *> view = of_guard;
    Kokkos::parallel_for(1000, KOKKOS_LAMBDA(const int i) { view(i) = i; });
    CHECK_EQUAL(count(view, 999), 1);
    weir::kokkos::view<char *>(weir::kokkos::alloc(Kokkos::WithoutInitializing), 200 * MiB);
    CHECK(view.get_pool().stats().reserved_bytes >= 200 * MiB);
    Kokkos::finalize();
    CHECK(!guard.get_pool());
    CHECK(view.get_pool().stats().used_bytes >= 8000); // what lives has its memory
    CHECK(view.get_pool().stats().reserved_bytes <= 100 * MiB);
    CHECK_EQUAL(view.use_count(), 2);
    return check_end();
}
