// weir/kokkos/view.hpp: views that own their memory, for any Kokkos.
#include "kokkos.hpp"
#include <thread>
#include <vector>

namespace {

using weir::kokkos::alloc;
using weir::kokkos::view;

void ownership() {
    weir::pool pool = a_pool();
    {
        view<double *> none;
        CHECK(none.data() == nullptr && none.use_count() == 0 && none.label().empty() && !none.get_pool());
        view<double *> first(alloc("first", pool), 1000);
        CHECK(first.label() == "first" && first.use_count() == 1 && first.extent(0) == 1000 && first.get_pool() == pool);
        const size_t used = pool.stats().used_bytes;
        CHECK(used >= 8000);
        view<double *> copy = first;
        CHECK(copy.data() == first.data() && first.use_count() == 2);
        first = view<double *>(alloc(pool, "second"), 10);
        CHECK(copy.use_count() == 1 && pool.stats().used_bytes > used);
        first = copy; // the second goes
        CHECK_EQUAL(pool.stats().used_bytes, used);
        first = *&first;
        std::swap(first, none);
        CHECK(first.data() == nullptr && none.use_count() == 2);
        view<double *> moved(std::move(none));
        CHECK_EQUAL(copy.use_count(), 2);
        moved = view<double *>();
        CHECK_EQUAL(copy.use_count(), 1);
        CHECK_EQUAL(pool.stats().used_bytes, used);
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    CHECK_EQUAL(pool.stats().allocations, 2);
}

struct Filled {
    int value;
    KOKKOS_FUNCTION Filled() : value(42) {}
    KOKKOS_FUNCTION bool operator==(int other) const { return value == other; }
};

void elements() {
    weir::pool pool = a_pool();
    {
        view<int *> dirty(alloc("dirty", pool, Kokkos::WithoutInitializing), 100000);
        Kokkos::deep_copy(dirty, 7);
    }
    if (!check_under("valgrind")) { // which knows that nothing was written to it
        view<int *> same(alloc("as it was", pool, Kokkos::WithoutInitializing), 100000);
        CHECK_EQUAL(count(same, 7), 100000);
    }
    {
        view<int *> zero(alloc("zero", pool), 100000);
        CHECK_EQUAL(count(zero, 0), 100000);
    }
    view<Filled *> filled(alloc(pool, Exec()), 1000);
    CHECK_EQUAL(count(filled, 42), 1000);
}

struct Counted {
    static inline int alive = 0, made = 0, most = 1 << 30;
    Counted() {
        if (made == most) {
            throw std::runtime_error("one too many");
        }
        made++;
        alive++;
    }
    ~Counted() { alive--; }
    weir::kokkos::view<int *, Kokkos::HostSpace> own; // views may hold views
};

void elements_on_the_host() {
    using counted = view<Counted **, Kokkos::HostSpace>;
    weir::pool pool = pool_of(WEIR_MEMORY_HOST);
    {
        counted all(alloc("counted", pool), 30, 4);
        CHECK_EQUAL(Counted::alive, 120);
        const counted copy = all;
        all(3, 2).own = view<int *, Kokkos::HostSpace>(alloc("inner", pool), 10);
        all = counted();
        CHECK_EQUAL(Counted::alive, 120);
    }
    CHECK(Counted::alive == 0 && Counted::made == 120);
    { counted raw(alloc("raw", pool, Kokkos::WithoutInitializing), 30, 4); }
    CHECK(Counted::alive == 0 && Counted::made == 120);
    Counted::most = 170;
    try {
        counted throwing(alloc("throwing", pool), 30, 4);
        CHECK(!"thrown");
    } catch (const std::runtime_error &bad) {
        CHECK(strcmp(bad.what(), "one too many") == 0);
    }
    CHECK(Counted::alive == 0 && Counted::made == 170);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

template <class Ours, class... Extents>
void shaped_as(Extents... extents) {
    const Ours ours("ours", extents...);
    const Kokkos::View<typename Ours::data_type, typename Ours::array_layout, Memory> theirs("theirs", extents...);
    for (int i = 0; i < static_cast<int>(Ours::rank); i++) {
        CHECK_EQUAL(ours.extent(i), theirs.extent(i));
    }
    CHECK(ours.span() == theirs.span() && ours.size() == theirs.size());
    CHECK(ours.data() != nullptr && ours.get_pool().stats().used_bytes >= ours.span() * sizeof(*ours.data()));
}

void layouts() {
    shaped_as<view<int>>();
    shaped_as<view<double *>>(5);
    shaped_as<view<double[3][2]>>();
    shaped_as<view<double **[7]>>(5, 6);
    shaped_as<view<char ********>>(1, 2, 3, 4, 3, 2, 1, 5);
    shaped_as<view<double **, Kokkos::LayoutLeft>>(5, 6);
    shaped_as<view<double **, Kokkos::LayoutRight, Memory>>(5, 6);
    const view<int **, Kokkos::LayoutStride> strided("strided", Kokkos::LayoutStride(4, 100, 5, 10));
    CHECK(strided.span() >= 341 && strided.extent(1) == 5 && strided.layout().stride[0] == 100);
    const view<int **, Kokkos::LayoutLeft> left(alloc("left"), Kokkos::LayoutLeft(3, 4));
    CHECK_EQUAL(left.size(), 12);
    view<int *, Kokkos::MemoryTraits<Kokkos::Atomic>> atomic("atomic", 1);
    Kokkos::parallel_for(100, KOKKOS_LAMBDA(const int) { atomic(0)++; });
    const view<const int *, Memory, Kokkos::MemoryTraits<Kokkos::RandomAccess>> random = view<int *>("random", 3);
    CHECK_EQUAL(count(random, 0), 3);
    CHECK_EQUAL(count(view<const int *>(atomic), 100), 1);
}

void parts_and_copies() {
    weir::pool pool = a_pool();
    {
        using rows = view<int **, Kokkos::LayoutRight>;
        rows whole(alloc("whole", pool), 10, 20);
        auto on_host = create_mirror_view(whole);
        for (int i = 0; i < 200; i++) {
            on_host(i / 20, i % 20) = i;
        }
        Kokkos::deep_copy(whole, on_host);
        on_host = decltype(on_host)();
        auto row = subview(whole, 3, Kokkos::ALL);
        auto column = weir::kokkos::subview(whole, std::make_pair(2, 5), 7);
        const view<const int **, Kokkos::LayoutRight> read = whole;
        CHECK_EQUAL(read.use_count(), 4);
        whole = rows();
        CHECK_EQUAL(read.use_count(), 3);
        CHECK(row.extent(0) == 20 && row.label() == "whole" && count(row, 65) == 1);
        CHECK(column.extent(0) == 3 && count(column, 87) == 1);

        auto mirror = Kokkos::create_mirror(read); // Kokkos' own memory
        Kokkos::deep_copy(mirror, read);
        CHECK(mirror(9, 19) == 199 && mirror.data() != read.data());
        auto copy = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), row);
        CHECK_EQUAL(copy(19), 79);
        view<int **> other(alloc("other", pool), 10, 20);
        Kokkos::deep_copy(Exec(), other, read);
        Kokkos::fence();
        CHECK_EQUAL(count(subview(other, 9, Kokkos::ALL), 199), 1);
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

struct alignas(1024) Aligned {
    char bytes[1024];
};

void requests() {
    weir::pool pool = a_pool(64 * MiB);
    try {
        view<double **> large(alloc(pool, "too large"), 1000, 10000);
        CHECK(!"thrown");
    } catch (const std::runtime_error &bad) {
        CHECK(strstr(bad.what(), "Kokkos ERROR: ") == bad.what());
        CHECK(strstr(bad.what(), " memory space failed to allocate 80000000 bytes (label=\"too large\")") != nullptr);
        CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, dynamic_cast<const weir::error &>(bad).status());
    }
    try {
        view<Aligned *> overflow(alloc(pool), ~size_t(0) / 512);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, bad.status());
    }
    const size_t much = size_t(1) << 32;
    const size_t extents[][3] = {{much / 2, much / 2, 4}, {much << 18, 1, 1}, {much, 0, 1}, {much / 2, much / 2, 0}};
    for (const size_t *n : extents) { // the product is 2 to the 64th; three extents have 32 bits each with some Kokkos; no elements
        bool made = false;
        try {
            const view<int ***> product(alloc(pool), n[0], n[1], n[2]);
            made = true;
            CHECK(product.size() == 0);
        } catch (const weir::error &bad) {
            CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, bad.status());
        }
        CHECK(made || n[2] != 0);
    }
    CHECK_EQUAL(view<int *[3]>(alloc(pool), typename view<int *[3]>::array_layout(5)).size(), 15);
    try {
        view<int **> overflow(alloc(pool), typename view<int **>::array_layout(much, much));
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_SIZE_TOO_LARGE, bad.status());
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    view<double **> fits(alloc(pool), 500, 10000);
    const view<Aligned *> aligned(alloc(pool, Kokkos::WithoutInitializing), 3);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(aligned.data()) % 1024, 0);
    const view<double *> none(alloc(pool), 0), other(alloc(pool), 0);
    CHECK(none.data() != nullptr && none.data() != other.data() && none.size() == 0);
}

// Each instance reuses what it freed at once, and never what the other still uses.
void instances() {
    weir::pool pool = a_pool();
    const Instance one, two;
    view<int> wrong(alloc("wrong", pool));
    for (int round = 0; round < 300; round++) {
        for (const Instance *instance : {&one, &two}) {
            const Exec exec = **instance;
            const int value = 2 * round + (instance == &two), n = 1 << (10 + round % 8);
            view<int *> view(alloc("round", pool, exec, Kokkos::WithoutInitializing), n);
            Kokkos::parallel_for(Kokkos::RangePolicy<Exec>(exec, 0, n), KOKKOS_LAMBDA(const int i) { view(i) = value; });
            Kokkos::parallel_for(Kokkos::RangePolicy<Exec>(exec, 0, n), KOKKOS_LAMBDA(const int i) {
                if (view(n - 1 - i) != value) {
                    Kokkos::atomic_fetch_add(&wrong(), 1);
                }
            });
        }
    }
    (*one).fence();
    (*two).fence();
    int found = -1;
    Kokkos::deep_copy(found, wrong);
    CHECK_EQUAL(found, 0);
    CHECK(pool.stats().reserved_bytes <= 32 * MiB); // less than half of what all blocks together are; pages of GPUs are large
}

void threads() {
    weir::pool pool = a_pool();
    {
        const view<int *> shared(alloc("shared", pool), 1000);
        std::vector<std::thread> all;
        for (int t = 0; t < 4; t++) {
            all.emplace_back([&pool, shared] {
                for (int n = 1; n < 500; n++) {
                    view<int *> copy = shared, own(alloc("own", pool, Kokkos::WithoutInitializing), 1 + n % 77);
                    std::swap(copy, own);
                }
            });
        }
        for (std::thread &thread : all) {
            thread.join();
        }
        all.clear();
        CHECK_EQUAL(shared.use_count(), 1);
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

void refused() {
    try {
        view<int *> view(alloc(pool_of(other_kind)), 1);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        CHECK(strstr(bad.what(), "pass a pool of WEIR_MEMORY_") != nullptr);
    }
}

void after_finalize() {
    weir::pool pool = a_pool();
    view<int *> left(alloc("left", pool), 100);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_finalize());
    try {
        view<int *> late(alloc("late", pool), 100);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_FINALIZED, bad.status());
    }
    left = view<int *>("a new pool", 100);
    CHECK_EQUAL(count(left, 0), 100);
}

void uninitialized() {
    try {
        view<int *> view("without Kokkos", 1);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        CHECK(strstr(bad.what(), "not initialized") != nullptr);
    }
}

} // namespace

int main(int argc, char **argv) {
    uninitialized();
    Kokkos::initialize(argc, argv);
    if (argc > 1) {
        refused();
    } else {
        ownership();
        elements();
        elements_on_the_host();
        layouts();
        parts_and_copies();
        requests();
        instances();
        threads();
        if (!check_under("valgrind") && !check_under("sanitizer")) {
            after_finalize(); // blocks that their pool did not outlive are leaks to a tool, rightly
        }
    }
    Kokkos::finalize();
    uninitialized();
    return check_end();
}
