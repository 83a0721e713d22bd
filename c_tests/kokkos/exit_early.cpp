// A process that ends by exit(), without Kokkos::finalize(), and static objects that go when Kokkos' own are gone: so it may
// be where Kokkos is linked statically.
#include "kokkos.hpp"
#include <cstdlib>
#include <new>

namespace {

struct Element {
    static inline int destroyed = 0;
    int value = 7;
    ~Element() { destroyed++; }
};

struct objects {
    weir::kokkos::guard guard;
    weir::kokkos::view<int *> plain, ordered;
    weir::kokkos::view<Element *, Kokkos::HostSpace> elements;
};
alignas(objects) unsigned char room[sizeof(objects)];
objects *all;

void destroy(int, void *) {
    if (all != nullptr) {
        CHECK(!all->guard.get_pool()); // Kokkos' finalize hooks are gone, and its pool with them
        all->~objects();
        CHECK_EQUAL(Element::destroyed, 100);
        printf("static destructor: ");
        check_end();
    }
}

// Said before the constructors of shared libraries, such as Kokkos may be, and of no library's (as atexit's functions are): it
// is called after all their destructors.
void before_all() { CHECK_EQUAL(on_exit(destroy, nullptr), 0); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const first)() = before_all;

} // namespace

int main(int argc, char **argv) {
    Kokkos::initialize(argc, argv);
    all = new (room) objects;
    all->guard = weir::kokkos::guard(a_pool());
    all->plain = weir::kokkos::view<int *>("plain", 1000);
    all->ordered = weir::kokkos::view<int *>(weir::kokkos::alloc("ordered", Exec()), 1000);
    all->elements = decltype(all->elements)("elements", 100);
    std::exit(check_end());
}
