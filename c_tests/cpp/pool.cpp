// The C++ face: ownership, exceptions, deleters and buffers.
#include "../contents.h"
#include <stdexcept>
#include <vector>
#include <weir/pool.hpp>

namespace {

weir::pool a_pool(uint64_t max_bytes = 0) { return weir::pool(check_options(max_bytes)); }

// What a call throws: its status; WEIR_OK if it throws nothing.
template <class F>
int thrown(F call) {
    try {
        call();
    } catch (const weir::bad_alloc &bad) {
        CHECK(strcmp(bad.what(), weir_last_error()) == 0);
        return bad.status();
    } catch (const weir::error &bad) {
        CHECK(strcmp(bad.what(), weir_last_error()) == 0);
        return bad.status();
    }
    return WEIR_OK;
}

void references() {
    weir::pool first = a_pool();
    weir_pool *handle = first.get();
    CHECK(first && handle != nullptr);
    CHECK_EQUAL(first.memory(), check_on_device() ? WEIR_MEMORY_DEVICE : WEIR_MEMORY_HOST);
    CHECK_EQUAL(first.device(), check_device());
    void *block = nullptr;
    {
        weir::pool second = first, third;
        CHECK(second == first && third != first && !third);
        third = second;
        third = *&third; // itself
        CHECK(third == first);
        weir::pool fourth = std::move(second);
        CHECK(!second && fourth == first);
        CHECK_EQUAL(thrown([&] { second.allocate(8); }), WEIR_ERROR_NULL_POINTER);
        CHECK_OK(second.reset());
        first.reset();
        CHECK(!first);
        block = fourth.allocate(100);
        CHECK_EQUAL(fourth.stats().allocations - fourth.stats().frees, 1);
        CHECK_OK(fourth.deallocate(block));
        first = third;
    }
    weir::pool shared = weir::pool::share(handle);
    CHECK_OK(first.reset());
    CHECK_OK(weir_pool_get_memory(handle, nullptr, nullptr)); // still there
    CHECK_OK(shared.reset());
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_get_memory(handle, nullptr, nullptr));

    if (!check_under("valgrind")) { // to which it is a leak, rightly
        weir::pool last = a_pool();
        CHECK(last.allocate(5) != nullptr);
        CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, last.reset());
    }

    weir::pool adopted = weir::pool::adopt(check_pool(0));
    CHECK_EQUAL(adopted.stats().reserved_bytes, 0);
}

void exceptions() {
    weir::pool pool = a_pool(8 * MiB);
    CHECK_EQUAL(thrown([&] { pool.allocate(64 * MiB); }), WEIR_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(thrown([&] { pool.allocate(static_cast<size_t>(-1)); }), WEIR_ERROR_SIZE_TOO_LARGE);
    CHECK_EQUAL(thrown([&] { pool.allocate(8, nullptr, 3); }), WEIR_ERROR_INVALID_ALIGNMENT);
    CHECK_EQUAL(thrown([&] { weir::make_array<double>(pool, static_cast<size_t>(-1) / 4); }), WEIR_ERROR_SIZE_TOO_LARGE);
    try {
        pool.allocate(64 * MiB);
        CHECK(!"thrown");
    } catch (const std::bad_alloc &bad) {
        CHECK(strstr(bad.what(), "out of memory") != nullptr);
    }
    try {
        pool.record_stream(&pool, nullptr);
        CHECK(!"thrown");
    } catch (const std::runtime_error &bad) {
        CHECK(strlen(bad.what()) > 20);
    }
    weir_pool_options wrong = check_options(0);
    wrong.slack = -1;
    CHECK_EQUAL(thrown([&] { weir::pool refused(wrong); }), WEIR_ERROR_INVALID_ARGUMENT);
    CHECK_EQUAL(thrown([&] { weir::pool::of_device(-2); }), WEIR_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, pool.deallocate(&pool));

    weir_pool_stats stats = pool.stats();
    CHECK_EQUAL(stats.allocations, stats.frees);
    pool.set_attribute(WEIR_ATTRIBUTE_RELEASE_THRESHOLD, 4 * MiB);
    CHECK_EQUAL(pool.attribute(WEIR_ATTRIBUTE_RELEASE_THRESHOLD), 4 * MiB);
    pool.trim(0);
    pool.squeeze();
    pool.reset_peaks();
    CHECK_EQUAL(pool.stats().reserved_bytes_peak, 0);
}

/** What was moved from keeps its deleter. */
void moved_owners() {
    weir::pool pool = a_pool();
    {
        weir::unique_array<uint64_t> words = weir::make_array<uint64_t>(pool, 1000);
        weir::unique_array<uint64_t> moved = std::move(words);
        words.reset(static_cast<uint64_t *>(pool.allocate(64)));
        words = weir::make_array<uint64_t>(pool, 10);
        CHECK_EQUAL(pool.stats().frees, 1);
    }
    CHECK_EQUAL(pool.stats().frees, 3);
}

void owners() {
    weir::pool pool = a_pool();
    {
        weir::unique_array<uint64_t> words = weir::make_array<uint64_t>(pool, 1000);
        contents_fill(words.get(), 7, 8000);
        CHECK(contents_are(words.get(), 7, 8000));
        CHECK(words.get_deleter().get_pool() == pool);
        std::unique_ptr<void, weir::deleter> any(pool.allocate(10), weir::deleter(pool));
        std::unique_ptr<const uint64_t[], weir::deleter> constant = std::move(words);
        words = weir::make_array<uint64_t>(pool, 1000);
        struct alignas(4096) page {
            char bytes[4096];
        };
        CHECK_EQUAL(reinterpret_cast<uintptr_t>(weir::make_array<page>(pool, 2).get()) % 4096, 0);
        CHECK_EQUAL(pool.stats().allocations - pool.stats().frees, 3);
    }
    CHECK_EQUAL(pool.stats().allocations, pool.stats().frees);

    std::vector<weir::buffer> all;
    for (size_t n = 0; n < 10; n++) {
        all.emplace_back(pool, n * 1000); // grows, and so moves
        contents_fill(all.back().data(), static_cast<int>(n), n * 1000);
    }
    for (size_t n = 0; n < 10; n++) {
        CHECK(contents_are(all[n].data(), static_cast<int>(n), all[n].size()));
        CHECK_EQUAL(all[n].size(), n * 1000);
    }
    CHECK(all[0] && all[0].data() != all[1].data()); // of size 0
    CHECK_EQUAL(pool.stats().allocations - pool.stats().frees, 10);
    all[3] = std::move(all[4]);
    CHECK(!all[4] && all[4].size() == 0 && !all[4].get_pool() && all[3].size() == 4000);
    CHECK_OK(all[4].reset());
    void *given = all[5].release();
    CHECK(!all[5]);
    CHECK_OK(pool.deallocate(given));
    weir_pool *handle = pool.get();
    CHECK_OK(pool.reset()); // the buffers keep it
    CHECK_EQUAL(weir::pool::share(handle).stats().frees, 4 + 1 + 1);
    all.clear();
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_get_memory(handle, nullptr, nullptr));
}

// A buffer is freed on the stream it remembers: that stream alone may have its memory at once.
void streams() {
    weir_stream own = nullptr, other = nullptr;
    if (check_on_device()) {
        DEVICE_OK(cu.StreamCreate(&own, CU_STREAM_NON_BLOCKING));
        DEVICE_OK(cu.StreamCreate(&other, CU_STREAM_NON_BLOCKING));
    } else {
        CHECK_OK(weir_host_stream_create(&own));
        CHECK_OK(weir_host_stream_create(&other));
    }
    {
        weir::pool pool = a_pool();
        weir::buffer block(pool, MiB, own);
        CHECK(block.stream() == own);
        void *at = block.data();
        block.record_stream(other);
        block = weir::buffer();
        CHECK_EQUAL(pool.stats().used_bytes, 0);
        CHECK_OK(weir_device_synchronize());
        block = weir::buffer(pool, MiB, own);
        block.set_stream(other);
        at = block.data();
        CHECK_OK(block.reset());
        block = weir::buffer(pool, MiB, other);
        CHECK(block.data() == at);
        CHECK_OK(block.reset());
        CHECK_EQUAL(pool.stats().allocations, pool.stats().frees);
    }
    if (check_on_device()) {
        DEVICE_OK(cu.StreamDestroy(own));
        DEVICE_OK(cu.StreamDestroy(other));
    } else {
        CHECK_OK(weir_host_stream_destroy(own));
        CHECK_OK(weir_host_stream_destroy(other));
    }
}

// Handles from before weir_finalize: requests say so, all else does nothing.
void after_finalize() {
    weir::pool before = a_pool(), of_device = weir::pool::of_device(check_device());
    CHECK(of_device == weir::pool::of_device(check_device()));
    weir::buffer block(of_device, 100);
    weir::buffer of_own(before, 100);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_finalize());
    CHECK_EQUAL(thrown([&] { before.allocate(1); }), WEIR_ERROR_FINALIZED);
    CHECK_EQUAL(thrown([&] { of_device.stats(); }), WEIR_ERROR_FINALIZED);
    weir::pool copy = before;
    CHECK(copy == before);
    CHECK_STATUS(WEIR_ERROR_FINALIZED, block.reset());
    CHECK(!block);
    CHECK_STATUS(WEIR_ERROR_FINALIZED, copy.reset());
    CHECK(weir::pool::of_device(check_device()) != of_device);
}

} // namespace

int main() {
    program_begin();
    references();
    exceptions();
    owners();
    moved_owners();
    streams();
    if (!check_under("valgrind")) {
        after_finalize(); // blocks that their pool did not outlive are leaks to valgrind, rightly
    }
    return program_end();
}
