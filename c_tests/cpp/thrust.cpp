// weir pools for Thrust, with its CPP system over host and pinned memory.
#include "under_test.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <vector>
#include <weir/thrust.hpp>

namespace {

weir::pool a_pool(uint64_t max_bytes = 0) { return weir::pool(check_options(max_bytes)); }

using allocator = weir::thrust_allocator<int>;
using vector = thrust::device_vector<int, allocator>;

struct downwards {
    bool operator()(int a, int b) const { return a > b; }
};

void vectors() {
    weir::pool pool = a_pool();
    {
        vector numbers(1000, 7, allocator(pool));
        CHECK_EQUAL(thrust::reduce(numbers.begin(), numbers.end()), 7000);
        for (int n = 0; n < 100000; n++) {
            numbers.push_back(n);
        }
        CHECK_EQUAL(numbers[100999], 99999);
        CHECK(pool.stats().used_bytes >= 101000 * sizeof(int));

        thrust::host_vector<int> there(1000);
        std::iota(there.begin(), there.end(), 0);
        vector assigned(there.begin(), there.end(), allocator(pool)), copy = assigned;
        CHECK(copy == assigned && copy.get_allocator() == assigned.get_allocator());
        copy.insert(copy.begin(), 3, -1);
        copy.erase(copy.begin());
        CHECK_EQUAL(copy.size(), 1002);
        CHECK_EQUAL(copy[2], 0);

        vector none(allocator{pool}), taken = std::move(copy);
        CHECK(none.empty() && taken.size() == 1002);
        copy = assigned; // what was moved from is still a vector with its allocator
        CHECK(copy == assigned);
        none.resize(0);
        none.shrink_to_fit();

        // Memory goes back where it is from when vectors of two pools are swapped and moved.
        weir::pool second = a_pool();
        vector elsewhere(500, 1, allocator(second));
        elsewhere.swap(assigned);
        CHECK(elsewhere.get_allocator().get_pool() == pool && assigned.get_allocator().get_pool() == second);
        elsewhere = std::move(assigned);
        CHECK_EQUAL(thrust::reduce(elsewhere.begin(), elsewhere.end()), 500);
        elsewhere = taken;
        CHECK(elsewhere.get_allocator().get_pool() == pool);
        CHECK_EQUAL(second.stats().used_bytes, 0);
        vector by_default(10);
        CHECK(by_default.get_allocator().get_pool() == weir::pool::of_host());
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

void allocators() {
    weir::pool pool = a_pool(16 * MiB);
    allocator one(pool), same(pool), elsewhere(a_pool());
    int somewhere;
    allocator ordered(pool, &somewhere);
    CHECK(one == same && one != elsewhere && one != ordered);
    weir::thrust_allocator<double> other(ordered);
    CHECK(other.get_pool() == pool && other.stream() == &somewhere);
    allocator moved = std::move(one);
    CHECK(moved == same && one == same);

    struct alignas(4096) page {
        char bytes[4096];
    };
    weir::thrust_allocator<page> pages(pool);
    auto block = pages.allocate(3);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(thrust::raw_pointer_cast(block)) % 4096, 0);
    pages.deallocate(block, 3);
    auto none = same.allocate(0), another = same.allocate(0);
    CHECK(thrust::raw_pointer_cast(none) != nullptr && none != another);
    same.deallocate(none, 0);
    same.deallocate(another, 0);
    same.deallocate(thrust::device_ptr<int>(&somewhere), 1); // nothing of the pool's
    CHECK_EQUAL(pool.stats().used_bytes, 0);

    for (const size_t count : {64 * MiB, (size_t{1} << 62) + 1, ~size_t{0}}) { // the second times four is four
        try {
            (void)same.allocate(count);
            CHECK(!"thrown");
        } catch (const thrust::system::detail::bad_alloc &bad) {
            CHECK(strstr(bad.what(), weir_last_error()) != nullptr);
        }
    }
    try {
        vector large(64 * MiB, allocator(pool));
        CHECK(!"thrown");
    } catch (const std::bad_alloc &) {
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

void resources() {
    weir::pool pool = a_pool(16 * MiB);
    weir::thrust_resource<> memory(pool), same(pool), elsewhere(a_pool());
    weir::thrust_resource<void *> plain(pool);
    int somewhere;
    weir::thrust_resource<> ordered(pool, &somewhere);
    const thrust::mr::memory_resource<thrust::device_ptr<void>> &base = memory;
    CHECK(memory == same && memory != elsewhere && memory != ordered);
    CHECK(base.is_equal(same) && !base.is_equal(elsewhere) && !base.is_equal(ordered));
    for (size_t alignment = 1; alignment <= 64 * KiB; alignment *= 2) {
        auto block = memory.allocate(1000, alignment);
        CHECK_EQUAL(reinterpret_cast<uintptr_t>(thrust::raw_pointer_cast(block)) % alignment, 0);
        memory.deallocate(block, 1000, alignment);
    }
    void *none = plain.allocate(0, 1), *another = plain.allocate(0, 1);
    CHECK(none != nullptr && none != another);
    plain.deallocate(none, 0, 1);
    plain.deallocate(another, 0, 1);
    try {
        (void)memory.allocate(64 * MiB, 1);
        CHECK(!"thrown");
    } catch (const thrust::system::detail::bad_alloc &) {
    }
    try {
        (void)memory.allocate(8, 3);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ALIGNMENT, bad.status());
    }
    {
        using of_memory = thrust::mr::allocator<int, weir::thrust_resource<>>;
        thrust::device_vector<int, of_memory> numbers(1000, 3, of_memory(&memory)), other(10, 4, of_memory(&elsewhere));
        CHECK(numbers.get_allocator() != other.get_allocator());
        numbers = other;
        CHECK_EQUAL(thrust::reduce(numbers.begin(), numbers.end()), 40);
        thrust::host_vector<int, thrust::mr::allocator<int, weir::thrust_resource<void *>>> here(100, 2, &plain);
        CHECK(pool.stats().used_bytes > 0);
        CHECK_EQUAL(std::accumulate(here.begin(), here.end(), 0), 200);
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

void sorts() {
    weir::pool pool = a_pool();
    const allocator by_value(pool);
    allocator by_reference(pool);
    weir::thrust_resource<> memory(pool);
    thrust::device_vector<int> numbers(10000);
    const auto sorted = [&](auto policy) {
        const uint64_t before = pool.stats().allocations;
        thrust::sequence(numbers.begin(), numbers.end());
        thrust::stable_sort(policy, numbers.begin(), numbers.end(), downwards());
        CHECK(std::is_sorted(numbers.begin(), numbers.end(), downwards()));
        CHECK_EQUAL(numbers[0], 9999);
        CHECK(pool.stats().allocations > before); // it has asked for temporary memory
        CHECK_EQUAL(pool.stats().used_bytes, 0);
    };
    sorted(thrust::cpp::par(by_value));
    sorted(thrust::cpp::par(by_reference));
    sorted(thrust::cpp::par(&memory));

    weir_pool_options options = check_options(2 * MiB);
    allocator too_little{weir::pool(options)};
    thrust::device_vector<int> large(4 * MiB);
    try {
        thrust::stable_sort(thrust::cpp::par(too_little), large.begin(), large.end(), downwards());
        CHECK(!"thrown");
    } catch (const thrust::system::detail::bad_alloc &) {
    }
    CHECK_EQUAL(too_little.get_pool().stats().used_bytes, 0);
}

// A policy of the CPP system that has a stream, as those of the CUDA system have.
template <class Derived>
struct on_stream : thrust::cpp::execution_policy<Derived> {
    weir_stream stream = nullptr;
    friend weir_stream get_stream(const on_stream &policy) { return policy.stream; }
};

struct gate {
    std::atomic<bool> open{false};
    static void wait(void *arg) {
        while (!static_cast<gate *>(arg)->open) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
};

// There is room for one block alone. Temporary memory is of the policy's stream, which gets it again while it stands still; the
// allocator's own stream gets it when the other has gone on.
template <class Allocator, class Passed>
void policy_names_the_stream(weir::pool pool, Passed &&passed) {
    weir_stream stream = nullptr;
    CHECK_OK(weir_host_stream_create(&stream));
    thrust::detail::execute_with_allocator<Allocator, on_stream> policy(std::forward<Passed>(passed));
    policy.stream = stream;
    gate closed;
    CHECK_OK(weir_host_stream_enqueue(stream, gate::wait, &closed));
    for (uint64_t n = 1; n <= 2; n++) { // the gate is closed: this cannot have waited
        const auto temporary = thrust::get_temporary_buffer<char>(policy, static_cast<std::ptrdiff_t>(4 * MiB));
        CHECK_EQUAL(temporary.second, 4 * MiB);
        CHECK_EQUAL(pool.stats().allocations, n);
        thrust::return_temporary_buffer(policy, temporary.first, temporary.second);
        CHECK_EQUAL(pool.stats().used_bytes, 0);
    }
    std::thread opener([&closed] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        closed.open = true;
    });
    void *block = pool.allocate(4 * MiB);
    CHECK(closed.open);
    opener.join();
    pool.deallocate(block);
    CHECK_OK(weir_host_stream_synchronize(stream));
    CHECK_OK(weir_host_stream_destroy(stream));
}

void streams() {
    const weir::pool pool = a_pool(6 * MiB), second = a_pool(6 * MiB), third = a_pool(6 * MiB), fourth = a_pool(6 * MiB);
    policy_names_the_stream<allocator>(pool, allocator(pool));
    allocator lvalue(second);
    policy_names_the_stream<allocator &>(second, lvalue);
    using of_memory = thrust::mr::allocator<char, weir::thrust_resource<>>;
    weir::thrust_resource<> memory(third), more(fourth);
    policy_names_the_stream<of_memory>(third, &memory);
    of_memory lvalue_of_memory(&more);
    policy_names_the_stream<of_memory &>(fourth, lvalue_of_memory);
}

void threads() {
    const weir::pool pool = a_pool();
    std::vector<std::thread> all;
    for (int t = 1; t <= 4; t++) {
        all.emplace_back([&pool, t] {
            allocator mine(pool);
            vector numbers(3000, mine);
            for (int n = 0; n < 5; n++) {
                thrust::sequence(numbers.begin(), numbers.end(), 0, t);
                thrust::stable_sort(thrust::cpp::par(mine), numbers.begin(), numbers.end(), downwards());
                CHECK_EQUAL(numbers[0], 2999 * t);
                numbers.resize(numbers.size() + 100);
                numbers.resize(3000);
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

void refused() {
    weir::pool pool = a_pool();
    int thrown = 0;
    try {
        allocator from(pool);
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        thrown++;
    }
    try {
        weir::thrust_resource<> from(pool);
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        thrown++;
    }
    CHECK_EQUAL(thrown, 2);
}

// What a GPU's stream has still to do with pinned memory is over when the host gets it. There is room for one block alone.
template <class Allocator>
void the_host_waits(weir::pool pool, Allocator memory) {
    void *block = pool.allocate(4 * MiB);
    under_test_gate *gate = under_test_close(nullptr);
    pool.deallocate(block);
    under_test_open(gate, 50);
    {
        const thrust::device_vector<char, Allocator> letters(4 * MiB, 'x', memory);
        CHECK(!under_test_closed(gate));
        CHECK_EQUAL(thrust::raw_pointer_cast(letters.data())[4 * MiB - 1], 'x');
    }
    under_test_gate_end(gate);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
}

void pinned() {
    const weir::pool pool = a_pool(6 * MiB), second = a_pool(6 * MiB);
    the_host_waits(pool, weir::thrust_allocator<char>(pool));
    weir::thrust_resource<> memory(second);
    the_host_waits(second, thrust::mr::allocator<char, weir::thrust_resource<>>(&memory));
}

void after_finalize() {
    weir::pool pool = a_pool();
    vector numbers(100, 1, allocator(pool));
    weir::thrust_resource<> memory(pool);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_finalize());
    try {
        (void)memory.allocate(1, 1);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_FINALIZED, bad.status());
    }
    thrust::device_vector<int> there(10000);
    try {
        thrust::stable_sort(thrust::cpp::par(allocator(numbers.get_allocator())), there.begin(), there.end(), downwards());
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_FINALIZED, bad.status());
    }
}

} // namespace

int main() {
    under_test_begin();
    if (check_on_device()) {
        check_memory() == WEIR_MEMORY_PINNED ? pinned() : refused();
        under_test_end();
        return check_end();
    }
    vectors();
    allocators();
    resources();
    sorts();
    streams();
    threads();
    if (!check_under("valgrind")) { // to which blocks that their pool did not outlive are leaks, rightly
        after_finalize();
    }
    // they outlive the default pool
    static weir::thrust_resource<> memory;
    static vector numbers(1000, 7);
    under_test_end();
    return check_end();
}
