// weir pools as libcu++'s memory resources: on host memory, and on device memory with streams that really run behind. The
// names before CCCL 3.1 and those since are both of this program, each compiled with such a CCCL.
#include "under_test.h"
#include <thread>
#include <utility>
#include <vector>
#include <weir/memory_resource.hpp>

namespace {

weir::pool a_pool(uint64_t max_bytes = 0) { return weir::pool(check_options(max_bytes)); }

#if CCCL_VERSION >= 3002000
// cuda::make_buffer, told no properties, asks for these.
using cuda::mr::properties_list;
static_assert(std::is_same_v<weir::device_memory_resource::default_queries, properties_list<cuda::mr::device_accessible>>);
static_assert(std::is_same_v<weir::pinned_memory_resource::default_queries,
                             properties_list<cuda::mr::device_accessible, cuda::mr::host_accessible>>);
static_assert(std::is_same_v<weir::host_memory_resource::default_queries, properties_list<cuda::mr::host_accessible>>);
#endif

template <class Resource>
void allocates(Resource resource, cuda::stream_ref stream) {
    for (size_t alignment = 1; alignment <= 64 * KiB; alignment *= 2) {
        std::vector<void *> ordered, at_once;
        for (int n = 0; n < 4; n++) { // together: one alone may be aligned by chance
            ordered.push_back(resource.allocate(stream, 1000, alignment));
            at_once.push_back(resource.allocate_sync(1000, alignment));
            CHECK_EQUAL(reinterpret_cast<uintptr_t>(ordered.back()) % alignment, 0);
            CHECK_EQUAL(reinterpret_cast<uintptr_t>(at_once.back()) % alignment, 0);
            under_test_fill(at_once.back(), n, 1000);
        }
        for (int n = 0; n < 4; n++) {
            CHECK(under_test_are(at_once[static_cast<size_t>(n)], n, 1000));
            resource.deallocate(stream, ordered[static_cast<size_t>(n)], 1000, alignment);
            resource.deallocate_sync(at_once[static_cast<size_t>(n)], 1000, alignment);
        }
    }
    void *none = resource.allocate(stream, 0, 256), *other = resource.allocate_sync(0, 256);
    CHECK(none != nullptr && other != nullptr && none != other);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(none) % 256 + reinterpret_cast<uintptr_t>(other) % 256, 0);
    resource.deallocate(stream, none, 0, 256);
    resource.deallocate_sync(other, 0, 256);
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
}

template <class Resource>
void errors(Resource resource, cuda::stream_ref stream) {
    static_assert(noexcept(resource.deallocate(stream, nullptr, 0, 1)) && noexcept(resource.deallocate_sync(nullptr, 0, 1)));
    for (const size_t bytes : {size_t{64} * MiB, size_t{1} << 50, ~size_t{0}}) {
        for (const bool at_once : {false, true}) {
            try {
                (void)(at_once ? resource.allocate_sync(bytes, 256) : resource.allocate(stream, bytes, 256));
                CHECK(!"thrown");
            } catch (const std::bad_alloc &bad) {
                CHECK(strcmp(bad.what(), weir_last_error()) == 0);
                CHECK(dynamic_cast<const weir::bad_alloc *>(&bad) != nullptr);
            }
        }
    }
    try {
        (void)resource.allocate(stream, 8, 3);
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ALIGNMENT, bad.status());
    }
    resource.deallocate(stream, &resource, 8, 8); // nothing of the pool's
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
    void *kept = resource.allocate(stream, 4 * MiB, 256); // usable after it ran out
    resource.deallocate(stream, kept, 4 * MiB, 256);
}

template <class Resource>
void equality(Resource resource) {
    Resource copy = resource, other(a_pool());
    CHECK(copy == resource && !(copy != resource) && resource != other && !(resource == other));
    void *block = resource.allocate_sync(100, 1);
    copy.deallocate_sync(block, 100, 1);
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
    Resource moved = std::move(copy);
    CHECK(moved == resource);
    std::swap(moved, other);
    CHECK(other == resource && moved != resource);
}

// A pool of the other kind of memory.
template <class Resource>
void refused() {
    try {
        Resource resource(a_pool());
        CHECK(!"thrown");
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        CHECK(strstr(bad.what(), "weir::") != nullptr);
    }
}

#if CCCL_VERSION < 3001000
template <class Resource, class Reach>
void through_references(Resource resource, cuda::stream_ref stream, Reach) {
    cuda::mr::resource_ref<Reach> ref = resource;
    cuda::mr::async_resource_ref<Reach> ordered = resource;
    void *block = ref.allocate(1000, 512), *other = ordered.allocate_async(1000, 512, stream);
    CHECK_EQUAL(resource.get_pool().stats().allocations - resource.get_pool().stats().frees, 2);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(block) % 512 + reinterpret_cast<uintptr_t>(other) % 512, 0);
    resource.deallocate_async(other, 1000, 512, stream);
    resource.deallocate(block, 1000, 512);
    other = ordered.allocate_async(0, stream);
    ordered.deallocate_async(other, 0, stream);
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
    Resource same = resource, another(a_pool());
    cuda::mr::async_resource_ref<Reach> of_same = same, of_another = another;
    CHECK(ordered == of_same && ordered != of_another);
}
#else
template <class Resource, class Reach>
void through_references(Resource resource, cuda::stream_ref stream, Reach) {
    cuda::mr::synchronous_resource_ref<Reach> ref = resource;
    cuda::mr::resource_ref<Reach> ordered = resource;
    void *block = ref.allocate_sync(1000, 512), *other = ordered.allocate(stream, 1000, 512);
    CHECK_EQUAL(resource.get_pool().stats().allocations - resource.get_pool().stats().frees, 2);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(block) % 512 + reinterpret_cast<uintptr_t>(other) % 512, 0);
    resource.deallocate(stream, other, 1000, 512);
    resource.deallocate_sync(block, 1000, 512);
    Resource same = resource, another(a_pool());
    cuda::mr::resource_ref<Reach> of_same = same, of_another = another;
    CHECK(ordered == of_same && ordered != of_another);
#if CCCL_VERSION >= 3002000
    // What owns a resource keeps its pool; copies and moves are the same resource.
    cuda::mr::any_resource<Reach> owner = resource;
    {
        cuda::mr::any_resource<Reach> first = another;
        CHECK(first != owner);
        first = owner;
        CHECK(first == owner);
        owner = std::move(first);
    }
    cuda::mr::any_synchronous_resource<Reach> narrow = owner;
    cuda::mr::resource_ref<Reach> of_owner = owner;
    CHECK(of_owner == ordered);
    other = of_owner.allocate(stream, 1000, 16);
    block = narrow.allocate_sync(0, 16);
    owner.deallocate(stream, other, 1000, 16);
    narrow.deallocate_sync(block, 0, 16);
    weir_pool *handle = nullptr;
    {
        weir::pool gone = a_pool();
        handle = gone.get();
        owner = Resource(std::move(gone));
    }
    void *kept = owner.allocate_sync(1000, 16);
    owner.deallocate_sync(kept, 1000, 16);
    CHECK_OK(weir_pool_get_memory(handle, nullptr, nullptr)); // by what owns it
    owner = resource;
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_get_memory(handle, nullptr, nullptr));
#endif
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
}
#endif

template <class Resource>
void threads(Resource resource, std::vector<weir_stream> streams) {
    std::vector<std::thread> all;
    for (weir_stream on : streams) {
        all.emplace_back([resource, on]() mutable {
            under_test_thread();
            const cuda::stream_ref stream(static_cast<cudaStream_t>(on));
            for (int n = 0; n < 500; n++) {
                const size_t bytes = static_cast<size_t>(n * 97 % 5000);
                void *block = resource.allocate(stream, bytes, 256), *other = resource.allocate_sync(bytes, 256);
                CHECK(block != other);
                resource.deallocate_sync(other, bytes, 256);
                resource.deallocate(stream, block, bytes, 256);
            }
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    CHECK_EQUAL(resource.get_pool().stats().used_bytes, 0);
}

// There is room for one block alone. What is freed on a stream that stands still is for that stream at once, and for another
// when the first has gone on; what is freed as over is for all at once.
template <class Resource>
void in_stream_order(weir_stream s, weir_stream t) {
    const size_t bytes = 4 * MiB;
    const cuda::stream_ref on_s(static_cast<cudaStream_t>(s)), on_t(static_cast<cudaStream_t>(t));
    weir_pool_options options = check_options(6 * MiB);
    options.reuse_allow_internal_dependencies = 0; // not T waits for S, but the request does
    Resource resource{weir::pool(options)}, over{weir::pool(options)};
    resource.deallocate(on_t, resource.allocate(on_t, 1, 1), 1, 1);
    over.deallocate(on_t, over.allocate(on_t, 1, 1), 1, 1);
    void *block = resource.allocate(on_s, bytes, 256), *other = over.allocate(on_s, bytes, 256);
    under_test_gate *gate = under_test_close(s);
    resource.deallocate(on_s, block, bytes, 256);
    block = resource.allocate(on_s, bytes, 256);
    CHECK(under_test_closed(gate));
    resource.deallocate(on_s, block, bytes, 256);

    over.deallocate_sync(other, bytes, 256);
    other = over.allocate(on_t, bytes, 256);
    CHECK(under_test_closed(gate));
    over.deallocate(on_t, other, bytes, 256);

    under_test_open(gate, 50);
    block = resource.allocate(on_t, bytes, 256);
    CHECK(!under_test_closed(gate));
    under_test_gate_end(gate);
    resource.deallocate(on_t, block, bytes, 256);
    under_test_stream_wait(s);
    under_test_stream_wait(t);
}

// What a GPU's default stream has still to do with memory is over when allocate_sync gives that memory. There is room for one
// block alone.
template <class Resource>
void at_once_is_at_once() {
    Resource resource(a_pool(6 * MiB));
    const cuda::stream_ref by_default(static_cast<cudaStream_t>(nullptr));
    void *block = resource.allocate(by_default, 4 * MiB, 256);
    under_test_gate *gate = under_test_close(nullptr);
    resource.deallocate(by_default, block, 4 * MiB, 256);
    under_test_open(gate, 50);
    void *given = resource.allocate_sync(4 * MiB, 256);
    CHECK(!under_test_closed(gate));
    under_test_gate_end(gate);
    resource.deallocate_sync(given, 4 * MiB, 256);
}

template <class Resource>
void after_finalize(Resource resource, cuda::stream_ref stream) {
    void *block = resource.allocate(stream, 100, 256);
    CHECK_STATUS(WEIR_ERROR_LIVE_BLOCKS, weir_finalize());
    for (const bool at_once : {false, true}) {
        try {
            (void)(at_once ? resource.allocate_sync(1, 1) : resource.allocate(stream, 1, 1));
            CHECK(!"thrown");
        } catch (const weir::error &bad) {
            CHECK_STATUS(WEIR_ERROR_FINALIZED, bad.status());
        }
    }
    resource.deallocate(stream, block, 100, 256);
    resource.deallocate_sync(block, 100, 256);
    CHECK(Resource(resource) == resource);
}

template <class Resource, class Other, class Reach>
void all(Reach reach) {
    std::vector<weir_stream> streams(4);
    for (weir_stream &stream : streams) {
        stream = under_test_stream();
    }
    const cuda::stream_ref stream(static_cast<cudaStream_t>(streams[0]));
    weir::pool pool = a_pool(16 * MiB);
    allocates(Resource(pool), stream);
    errors(Resource(pool), stream);
    equality(Resource(pool));
    through_references(Resource(pool), stream, reach);
    threads(Resource(pool), streams);
    in_stream_order<Resource>(streams[1], streams[2]);
    refused<Other>();
    refused<weir::pinned_memory_resource>();
    if constexpr (std::is_same_v<Resource, weir::device_memory_resource>) {
        at_once_is_at_once<Resource>();
    }
    for (weir_stream each : streams) {
        under_test_stream_end(each);
    }
    if (!check_under("valgrind")) { // to which a block that its pool did not outlive is a leak, rightly
        after_finalize(Resource(pool), cuda::stream_ref(static_cast<cudaStream_t>(nullptr)));
    }
}

// Memory that the host and GPUs reach, for each of them.
void pinned() {
    at_once_is_at_once<weir::device_memory_resource>();
    at_once_is_at_once<weir::pinned_memory_resource>();
    at_once_is_at_once<weir::host_memory_resource>();
}

} // namespace

int main() {
    under_test_begin();
    if (check_memory() == WEIR_MEMORY_PINNED) {
        pinned();
    } else if (check_on_device()) {
        all<weir::device_memory_resource, weir::host_memory_resource>(cuda::mr::device_accessible());
    } else {
        all<weir::host_memory_resource, weir::device_memory_resource>(cuda::mr::host_accessible());
    }
    under_test_end();
    return check_end();
}
