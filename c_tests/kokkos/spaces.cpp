// weir/kokkos/memory_space.hpp: Kokkos' own views, containers and C-style functions on weir's memory. Kokkos 4.7.
#include "kokkos.hpp"
#include <Kokkos_DualView.hpp>
#include <Kokkos_DynRankView.hpp>
#include <Kokkos_ScatterView.hpp>
#include <Kokkos_UnorderedMap.hpp>
#include <string>
#include <thread>
#include <vector>

namespace {

using Space = weir::kokkos::memory_space;

static_assert(Kokkos::is_memory_space<Space>::value && Kokkos::is_memory_space<weir::kokkos::host_space>::value);
static_assert(std::is_same_v<Space::execution_space, Exec>);
static_assert(Kokkos::SpaceAccessibility<Exec, Space>::accessible);

// A space of weir's is to the others what Kokkos' own of that memory is, but for assigning: to its like alone, from none.
template <class Of, class Like, class Other>
constexpr bool is_to() {
    using from = Kokkos::Impl::MemorySpaceAccess<Of, Other>; // the public one looks at execution spaces alone
    using to = Kokkos::Impl::MemorySpaceAccess<Other, Of>;
    return bool(from::accessible) == bool(Kokkos::Impl::MemorySpaceAccess<Like, Other>::accessible) &&
           bool(to::accessible) == bool(Kokkos::Impl::MemorySpaceAccess<Other, Like>::accessible) && from::deepcopy &&
           to::deepcopy && !from::assignable && bool(to::assignable) == std::is_same_v<Like, Other>;
}
static_assert(is_to<weir::kokkos::host_space, Kokkos::HostSpace, Kokkos::HostSpace>());
#ifdef KOKKOS_ENABLE_CUDA
static_assert(is_to<weir::kokkos::host_space, Kokkos::HostSpace, Kokkos::CudaSpace>());
static_assert(is_to<weir::kokkos::host_space, Kokkos::HostSpace, Kokkos::CudaUVMSpace>());
static_assert(is_to<weir::kokkos::host_space, Kokkos::HostSpace, Kokkos::CudaHostPinnedSpace>());
static_assert(is_to<weir::kokkos::host_space, Kokkos::HostSpace, weir::kokkos::cuda_space>());
static_assert(is_to<weir::kokkos::cuda_space, Kokkos::CudaSpace, Kokkos::HostSpace>());
static_assert(is_to<weir::kokkos::cuda_space, Kokkos::CudaSpace, Kokkos::CudaSpace>());
static_assert(is_to<weir::kokkos::cuda_space, Kokkos::CudaSpace, Kokkos::CudaUVMSpace>());
static_assert(is_to<weir::kokkos::cuda_space, Kokkos::CudaSpace, Kokkos::CudaHostPinnedSpace>());
static_assert(is_to<weir::kokkos::cuda_space, Kokkos::CudaSpace, weir::kokkos::host_space>());
#endif

size_t used() { return Space().get_pool().stats().used_bytes; }

void views() {
    {
        Kokkos::View<int **, Space> whole("whole", 10, 20);
        CHECK(whole.label() == "whole" && used() >= 800);
        CHECK_EQUAL(reinterpret_cast<uintptr_t>(whole.data()) % 128, 0);
        const auto mirror = Kokkos::create_mirror_view(whole);
        CHECK((static_cast<void *>(mirror.data()) == whole.data()) == (std::is_same_v<Space, weir::kokkos::host_space>));
        for (int i = 0; i < 200; i++) {
            mirror(i / 20, i % 20) = i;
        }
        Kokkos::deep_copy(whole, mirror);
        const Kokkos::View<const int **, Memory> assigned = whole;
        CHECK_EQUAL(whole.use_count(), 2 + (static_cast<void *>(mirror.data()) == whole.data()));
        CHECK_EQUAL(count(Kokkos::subview(assigned, 3, Kokkos::ALL), 65), 1);
        Kokkos::View<int **, Memory> outside("outside", 10, 20);
        Kokkos::deep_copy(Exec(), outside, whole);
        Kokkos::fence();
        CHECK_EQUAL(count(Kokkos::subview(outside, 9, Kokkos::ALL), 199), 1);
        const auto copy = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), whole);
        CHECK_EQUAL(copy(9, 19), 199);
        const auto back = Kokkos::create_mirror_view_and_copy(Space(), outside);
        CHECK_EQUAL(count(Kokkos::subview(back, 0, Kokkos::ALL), 7), 1);
        Kokkos::resize(whole, 20, 30);
        CHECK(whole.extent(0) == 20 && count(Kokkos::subview(whole, 9, Kokkos::make_pair(0, 20)), 199) == 1);
        CHECK_EQUAL(count(Kokkos::subview(whole, 19, Kokkos::ALL), 0), 30);
        Kokkos::realloc(whole, 3, 3);
        const Kokkos::View<int *, weir::kokkos::host_space> host("host", 10);
        Kokkos::deep_copy(host, 5);
        Kokkos::View<int *, Space> device("device", 10);
        Kokkos::deep_copy(device, host);
        CHECK_EQUAL(count(device, 5), 10);
        Kokkos::deep_copy(host, device);
        CHECK_EQUAL(host(9), 5);
    }
    CHECK_EQUAL(used(), 0);
}

void containers() {
    {
        const weir::kokkos::view<int *, Space> own("own", 10); // these, too, may be in a memory space of weir's
        CHECK(count(own, 0) == 10 && used() >= 40);
        Kokkos::DualView<int *, Kokkos::Device<Exec, Space>> dual("dual", 100);
        dual.view_host()(99) = 5;
        dual.modify_host();
        dual.sync_device();
        CHECK_EQUAL(count(dual.view_device(), 5), 1);
        Kokkos::DynRankView<int, Space> dynamic("dynamic", 4, 5, 6);
        Kokkos::deep_copy(dynamic, 3);
        CHECK_EQUAL(dynamic.rank(), 3);
        Kokkos::UnorderedMap<int, int, Kokkos::Device<Exec, Space>> map(1000);
        Kokkos::parallel_for(500, KOKKOS_LAMBDA(const int i) { map.insert(i, 2 * i); });
        CHECK_EQUAL(map.size(), 500);
        Kokkos::View<int *, Space> sums("sums", 10);
        Kokkos::Experimental::ScatterView<int *, decltype(sums)::array_layout, Kokkos::Device<Exec, Space>> scatter(sums);
        Kokkos::parallel_for(1000, KOKKOS_LAMBDA(const int i) { scatter.access()(i % 10) += 1; });
        Kokkos::Experimental::contribute(sums, scatter);
        CHECK_EQUAL(count(sums, 100), 10);
        CHECK(used() > 4000);
    }
    Kokkos::fence();
    CHECK_EQUAL(used(), 0);
}

void c_functions() {
    void *block = Kokkos::kokkos_malloc<Space>("block", 1000);
    CHECK(block != nullptr && used() >= 1000);
    block = Kokkos::kokkos_realloc<Space>(block, 100000);
    CHECK(used() >= 100000);
    Kokkos::kokkos_free<Space>(block);
    Kokkos::kokkos_free<Space>(nullptr);
    CHECK_EQUAL(used(), 0);
    const Space space;
    void *bare = space.allocate(Exec(), "bare", 0);
    CHECK(bare != nullptr);
    space.deallocate(bare, 0);
    space.deallocate(nullptr, 0);
}

void requests() {
    const Space small(a_pool(64 * MiB));
    try {
        Kokkos::View<double *, Space> large(Kokkos::view_alloc("too large", small), 10000000);
        CHECK(!"thrown");
    } catch (const std::runtime_error &bad) {
        CHECK(strstr(bad.what(), "weir::") != nullptr);
        CHECK(strstr(bad.what(), " memory space failed to allocate 80000128 bytes (label=\"too large\")") != nullptr);
        CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, dynamic_cast<const weir::error &>(bad).status());
    }
    const Kokkos::View<double *, Space> fits(Kokkos::view_alloc("fits", small, Kokkos::WithoutInitializing), 1000000);
    const Kokkos::View<double *, Space> none(Kokkos::view_alloc(small), 0);
    CHECK(none.size() == 0 && small.get_pool().stats().used_bytes >= 8000000);
}

// What Kokkos' tools hear: allocations, frees and fences. Where no instance is named one fence of everything comes before a
// free; where one is, a GPU has none, and a host at most that of the instance.
std::string heard;

void hear(const std::string &line) {
    const std::string known = "\n" + line + "\n";
    if (heard.size() < known.size() || heard.compare(heard.size() - known.size(), known.size(), known) != 0) {
        heard += line + "\n"; // each execution space has its part in one fence of everything
    }
}
void hear_allocation(const Kokkos::Tools::SpaceHandle space, const char *label, const void *, const uint64_t bytes) {
    hear(std::string("allocated ") + space.name + " " + label + " " + std::to_string(bytes));
}
void hear_free(const Kokkos::Tools::SpaceHandle space, const char *label, const void *, const uint64_t bytes) {
    hear(std::string("freed ") + space.name + " " + label + " " + std::to_string(bytes));
}
void hear_fence(const char *name, const uint32_t, uint64_t *) {
    hear(strstr(name, "Global") != nullptr ? "all fenced" : "one fenced");
}

// X stands for the name of the space.
void heard_is(std::string expected) {
    for (size_t at = expected.find('X'); at != std::string::npos; at = expected.find('X')) {
        expected.replace(at, 1, Space::name());
    }
    if (heard != "\n" + expected) {
        fprintf(stderr, "heard:%sexpected:\n%s", heard.c_str(), expected.c_str());
    }
    CHECK(heard == "\n" + expected);
    heard = "\n";
}

void tools() {
    const Instance one;
    const weir::pool pool = a_pool();
    const Space any(pool), ordered(pool, *one), of_instance(*one);
    CHECK(any.get_pool() == pool && ordered.get_pool() == pool);
    Kokkos::fence();
    Kokkos::Tools::Experimental::set_allocate_data_callback(hear_allocation);
    Kokkos::Tools::Experimental::set_deallocate_data_callback(hear_free);
    Kokkos::Tools::Experimental::set_begin_fence_callback(hear_fence);
    heard = "\n";
    void *block = any.allocate("a", 1000, 600);
    heard_is("allocated X a 600\none fenced\n");
    CHECK(pool.stats().used_bytes >= 1000);
    any.deallocate("a", block, 1000, 600);
    heard_is("freed X a 600\nall fenced\n");
    block = any.allocate(1000);
    heard_is("allocated X [unlabeled] 1000\none fenced\n");
    CHECK(pool.stats().used_bytes >= 1000);
    any.deallocate(block, 1000);
    heard_is("freed X [unlabeled] 1000\nall fenced\n");
    any.deallocate("none", nullptr, 0);
    heard_is("");
    block = any.allocate(*one, 1000);
    heard_is("allocated X [unlabeled] 1000\n");
    CHECK(pool.stats().used_bytes >= 1000);
    any.deallocate(block, 1000);
    heard = "\n";
    for (const Space *space : {&ordered, &of_instance}) {
        block = space->allocate("b", 1000);
        heard_is("allocated X b 1000\n");
        space->deallocate("b", block, 1000);
        heard_is(std::is_same_v<Space, weir::kokkos::host_space> ? "freed X b 1000\none fenced\n" : "freed X b 1000\n");
    }
#ifdef KOKKOS_ENABLE_CUDA
    block = any.allocate(Kokkos::DefaultHostExecutionSpace(), "c", 1000, 600);
    heard_is("allocated X c 600\none fenced\n");
    CHECK(pool.stats().used_bytes >= 1000);
    any.deallocate(block, 1000);
#endif
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
    Kokkos::Tools::Experimental::set_deallocate_data_callback(nullptr);
    Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

// A space of an instance frees in its order: each instance reuses what it freed, and never what the other still uses.
void instances() {
    const weir::pool pool = a_pool();
    const Instance one, two;
    const Space ordered_one(pool, *one), ordered_two(pool, *two);
    Kokkos::View<int, Space> wrong("wrong");
    for (int round = 0; round < 300; round++) {
        for (const Instance *instance : {&one, &two}) {
            const Exec exec = **instance;
            const int value = 2 * round + (instance == &two), n = 1 << (10 + round % 8);
            Kokkos::View<int *, Space> view(
                Kokkos::view_alloc("round", instance == &one ? ordered_one : ordered_two, exec, Kokkos::WithoutInitializing), n);
            Kokkos::parallel_for(Kokkos::RangePolicy<Exec>(exec, 0, n), KOKKOS_LAMBDA(const int i) { view(i) = value; });
            Kokkos::parallel_for(Kokkos::RangePolicy<Exec>(exec, 0, n), KOKKOS_LAMBDA(const int i) {
                if (view(n - 1 - i) != value) {
                    Kokkos::atomic_inc(&wrong());
                }
            });
        }
    }
    (*one).fence();
    (*two).fence();
    int found = -1;
    Kokkos::deep_copy(found, wrong);
    CHECK_EQUAL(found, 0);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    CHECK(pool.stats().reserved_bytes <= 32 * MiB); // less than half of what all blocks together are; pages of GPUs are large
    CHECK(Space(*one).get_pool() == Space().get_pool());
}

void threads() {
    const Space space(a_pool());
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++) {
        all.emplace_back([&space] {
            for (int n = 1; n < 300; n++) {
                const Kokkos::View<int *, Space> own(Kokkos::view_alloc("own", space, Kokkos::WithoutInitializing), n % 77);
                CHECK(own.data() != nullptr);
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    CHECK_EQUAL(space.get_pool().stats().used_bytes, 0);
    CHECK_EQUAL(space.get_pool().stats().allocations, 4 * 299);
}

void after_finalize() {
    const Space space;
    Kokkos::View<int *, Space> left(Kokkos::view_alloc("left", space), 100);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_finalize());
    try {
        Kokkos::View<int *, Space> late(Kokkos::view_alloc("late", space), 100);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_FINALIZED, bad.status());
    }
    left = Kokkos::View<int *, Space>("a new pool", 100);
    CHECK_EQUAL(count(left, 0), 100);
}

void refused() {
    try {
        Space space(pool_of(other_kind));
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
    }
}

} // namespace

int main(int argc, char **argv) {
    Kokkos::ScopeGuard kokkos(argc, argv);
    if (argc > 1) {
        refused();
        return check_end();
    }
    weir::kokkos::guard guard(a_pool());
    CHECK(Space().get_pool() == guard.get_pool());
    views();
    containers();
    c_functions();
    requests();
    tools();
    instances();
    threads();
    if (!check_under("valgrind") && !check_under("sanitizer")) {
        after_finalize(); // blocks that their pool did not outlive are leaks to a tool, rightly
    }
    return check_end();
}
