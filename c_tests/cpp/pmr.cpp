// std::pmr containers on weir's host memory.
#include "../contents.h"
#include <map>
#include <string>
#include <thread>
#include <vector>
#include <weir/pmr.hpp>

namespace {

weir::pool a_pool(uint64_t max_bytes = 0) { return weir::pool(check_options(max_bytes)); }

void containers() {
    weir::pool pool = a_pool();
    weir::pmr_resource resource(pool);
    {
        std::pmr::vector<std::pmr::string> words(&resource);
        std::pmr::map<int, std::pmr::string> by_number(&resource);
        for (int n = 0; n < 2000; n++) {
            words.emplace_back(std::string(static_cast<size_t>(n % 300), static_cast<char>('a' + n % 26)));
            by_number[n] = words.back();
        }
        for (int n = 0; n < 2000; n += 3) {
            by_number.erase(n);
        }
        for (int n = 0; n < 2000; n++) {
            const std::string want(static_cast<size_t>(n % 300), static_cast<char>('a' + n % 26));
            CHECK(std::string_view(words[static_cast<size_t>(n)]) == want);
            CHECK(n % 3 == 0 ? by_number.count(n) == 0 : std::string_view(by_number[n]) == want);
        }
        CHECK(pool.stats().used_bytes > 100 * KiB);
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    CHECK(pool.stats().allocations > 2000);
}

void requests() {
    weir::pool pool = a_pool(16 * MiB);
    weir::pmr_resource resource(pool);
    for (size_t alignment = 1; alignment <= 64 * KiB; alignment *= 2) {
        void *block = resource.allocate(1000, alignment);
        CHECK_EQUAL(reinterpret_cast<uintptr_t>(block) % alignment, 0);
        memset(block, 1, 1000);
        resource.deallocate(block, 1000, alignment);
    }
    void *none = resource.allocate(0), *other = resource.allocate(0);
    CHECK(none != nullptr && none != other);
    resource.deallocate(none, 0);
    resource.deallocate(other, 0);

    try {
        std::pmr::vector<char> large(64 * MiB, &resource);
        CHECK(!"thrown");
    } catch (const std::bad_alloc &bad) {
        CHECK(strstr(bad.what(), "out of memory") != nullptr);
    }
    try {
        (void)resource.allocate(8, 3);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ALIGNMENT, bad.status());
    }
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    void *kept = resource.allocate(10 * MiB); // usable after it ran out
    resource.deallocate(kept, 10 * MiB);
}

void equality() {
    weir::pool pool = a_pool(), second = a_pool();
    int somewhere;
    weir::pmr_resource one(pool), same(pool), another(second), ordered(pool, &somewhere);
    CHECK(one.is_equal(one) && one == same && one != another && one != ordered);
    CHECK(one != *std::pmr::new_delete_resource());
    weir::pmr_resource copy = one;
    CHECK(copy == one);
    void *block = one.allocate(10);
    same.deallocate(block, 10);
    CHECK_EQUAL(pool.stats().used_bytes, 0);
    CHECK(weir::pmr_resource().get_pool() == weir::pool::of_host());
}

void threads() {
    weir::pmr_resource resource(a_pool());
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++) {
        all.emplace_back([&resource, t] {
            std::pmr::vector<int> numbers(&resource);
            for (int n = 0; n < 5000; n++) {
                numbers.push_back(n * t);
            }
            for (int n = 0; n < 5000; n++) {
                CHECK(numbers[static_cast<size_t>(n)] == n * t);
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
}

// Device memory is nothing for a container on the host, and pinned pools may not be there yet.
void refused() {
    weir::pool pool = a_pool();
    try {
        weir::pmr_resource resource(pool);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        CHECK(strstr(bad.what(), "WEIR_MEMORY_HOST") != nullptr);
    }
}

void after_finalize() {
    weir::pool pool = a_pool();
    weir::pmr_resource resource(pool);
    std::pmr::vector<int> numbers(100, &resource);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_finalize());
    try {
        (void)resource.allocate(1);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_FINALIZED, bad.status());
    }
}


} // namespace

int main() {
    program_begin();
    if (check_memory() == WEIR_MEMORY_DEVICE) {
        refused();
        return program_end();
    }
    containers();
    requests();
    equality();
    threads();
    if (!check_under("valgrind")) {
        after_finalize(); // blocks that their pool did not outlive are leaks to valgrind, rightly
    }
    if (check_memory() == WEIR_MEMORY_PINNED) {
        weir::pmr_resource shared(weir::pool::of_pinned(0));
        CHECK(shared.get_pool().memory() == WEIR_MEMORY_PINNED);
        CHECK(std::pmr::vector<int>(1000, 7, &shared)[999] == 7);
        return program_end();
    }
    // both outlive the default pool
    static weir::pmr_resource resource;
    static std::pmr::vector<int> numbers(1000, 7, &resource);
    return program_end();
}
