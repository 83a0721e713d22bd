/**
 * @file weir/memory_resource.hpp
 * weir pools as memory resources of libcu++ (cuda::mr), which RMM and all that builds on it take as well. C++17, CCCL 2.2
 * or later, and CUDA's headers.
 *
 *   weir::device_memory_resource memory(weir::pool::of_device(0));
 *   cuda::mr::any_resource<cuda::mr::device_accessible> owner = memory;     // CCCL 3.2 or later
 *   rmm::mr::set_current_device_resource(memory);                           // RMM 26.06 or later
 *
 * Names. Since CCCL 3.1 these are models of cuda::mr::resource and synchronous_resource: allocate, deallocate,
 * allocate_sync, deallocate_sync. Before (CUDA 13.0 has CCCL 3.0) the same concepts were called async_resource and resource,
 * with other functions; there the resources have both, and LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE must be defined.
 *
 * Which pools. device_memory_resource takes pools of WEIR_MEMORY_DEVICE and WEIR_MEMORY_PINNED, pinned_memory_resource
 * those of WEIR_MEMORY_PINNED, host_memory_resource those of WEIR_MEMORY_HOST and WEIR_MEMORY_PINNED. Another is refused
 * when the resource is made, by weir::error with WEIR_ERROR_INVALID_ARGUMENT.
 *
 * Streams. allocate and deallocate are in the order of their stream. What allocate_sync gives may be used at once, on any
 * stream: for memory of a GPU it waits for the default stream, and that GPU must be current, as RMM and CCCL ask of all
 * their resources. All use of a block is over when it is given to deallocate_sync. A pool of WEIR_MEMORY_HOST knows the
 * streams of weir_host_stream_create alone, cast to cudaStream_t; work of other streams on its memory must be over when it
 * is deallocated.
 *
 * Errors. Out of memory is weir::bad_alloc, a std::bad_alloc; where RMM's headers are found it is rmm::out_of_memory, also
 * a std::bad_alloc, for which RMM's adaptors and Python bindings look. The program then links librmm; it defines
 * WEIR_WITHOUT_RMM if it does not. All else is weir::error. Deallocating never throws.
 *
 * Sizes. 0 bytes are a block with an address of its own. Any power of two is an alignment; blocks have 256 at least.
 *
 * Copies refer to the same pool, are equal, and keep it: what one allocated another may deallocate. Any thread may use a
 * resource. The end is as for weir::pool: resources, and blocks of them, may outlive weir (RMM keeps the resource that is
 * current until the process ends).
 */
#ifndef WEIR_MEMORY_RESOURCE_HPP
#define WEIR_MEMORY_RESOURCE_HPP

#if !__has_include(<cuda_runtime_api.h>)
#error "weir/memory_resource.hpp: libcu++'s memory resources need CUDA's headers, and there is no <cuda_runtime_api.h>"
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <type_traits>
#include <weir/pool.hpp>

#if CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "weir/memory_resource.hpp: before CCCL 3.1 programs must define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"
#endif

#if !defined(WEIR_WITHOUT_RMM) && __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#define WEIR_RESOURCE_OUT_OF_MEMORY rmm::out_of_memory
#else
#define WEIR_RESOURCE_OUT_OF_MEMORY bad_alloc
#endif

namespace weir {

/** A pool whose memory has these properties; throws OutOfMemory where there is none (check_alloc). The exception is part of
 * the type, so that code compiled with RMM's headers and code compiled without them can meet in one program. */
template <class OutOfMemory, class... Properties>
class basic_memory_resource {
    static constexpr bool on_device = (std::is_same_v<cuda::mr::device_accessible, Properties> || ...);
    static constexpr bool on_host = (std::is_same_v<cuda::mr::host_accessible, Properties> || ...);
    static_assert(on_device || on_host, "somebody must be able to use the memory");

  public:
#if CCCL_VERSION >= 3002000
    /** What cuda::make_buffer takes for the properties of a buffer if it is told none. */
    using default_queries = cuda::mr::properties_list<Properties...>;
#endif

    explicit basic_memory_resource(pool from) : pool_(std::move(from)) {
        const weir_memory memory = pool_.memory();
        if ((on_device && memory == WEIR_MEMORY_HOST) || (on_host && memory == WEIR_MEMORY_DEVICE)) {
            throw error(WEIR_ERROR_INVALID_ARGUMENT,
                        on_device && on_host ? "weir::pinned_memory_resource: pass a pool of WEIR_MEMORY_PINNED"
                        : on_device          ? "weir::device_memory_resource: the pool is of host memory, which GPUs cannot "
                                               "use; pass a pool of WEIR_MEMORY_DEVICE or WEIR_MEMORY_PINNED"
                                             : "weir::host_memory_resource: the pool is of device memory, which the host "
                                               "cannot use; pass a pool of WEIR_MEMORY_HOST or WEIR_MEMORY_PINNED");
        }
    }

    const pool &get_pool() const noexcept { return pool_; }

    /** A block for use in the order of `stream`. */
    void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 0) {
        return pool_.allocate<OutOfMemory>(bytes, stream.get(), alignment);
    }

    /** Frees a block in the order of `stream`. */
    void deallocate(cuda::stream_ref stream, void *block, std::size_t, std::size_t = 0) noexcept {
        pool_.deallocate(block, stream.get());
    }

    /** A block for use at once, by anybody. */
    void *allocate_sync(std::size_t bytes, std::size_t alignment = 0) {
        // what the host alone uses is waited for by the request: no stream's work may still be on it
        void *block = pool_.allocate<OutOfMemory>(bytes, on_device ? nullptr : WEIR_STREAM_HOST, alignment);
        if constexpr (on_device) {
            // the default stream may still have work on what is now this block's memory, or wait for another that has
            const weir_status status = weir_stream_synchronize(nullptr);
            if (status != WEIR_OK) {
                const error failed(status, weir_last_error());
                pool_.deallocate(block, nullptr);
                throw failed;
            }
        }
        return block;
    }

    /** Frees a block all use of which is over. */
    void deallocate_sync(void *block, std::size_t, std::size_t = 0) noexcept { pool_.deallocate_synced(block); }

#if CCCL_VERSION < 3001000
    void *allocate(std::size_t bytes, std::size_t alignment = 0) { return allocate_sync(bytes, alignment); }
    void deallocate(void *block, std::size_t bytes, std::size_t = 0) noexcept { deallocate_sync(block, bytes); }
    void *allocate_async(std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
        return allocate(stream, bytes, alignment);
    }
    void *allocate_async(std::size_t bytes, cuda::stream_ref stream) { return allocate(stream, bytes); }
    void deallocate_async(void *block, std::size_t bytes, std::size_t, cuda::stream_ref stream) noexcept {
        deallocate(stream, block, bytes);
    }
    void deallocate_async(void *block, std::size_t bytes, cuda::stream_ref stream) noexcept {
        deallocate(stream, block, bytes);
    }
#endif

    /** Do both refer to one pool? */
    friend bool operator==(const basic_memory_resource &a, const basic_memory_resource &b) noexcept {
        return a.pool_ == b.pool_;
    }
    friend bool operator!=(const basic_memory_resource &a, const basic_memory_resource &b) noexcept { return !(a == b); }

    /* For clang the default argument may name nothing private. */
    template <class Property, class = std::enable_if_t<(std::is_same_v<Property, Properties> || ...)>>
    friend constexpr void get_property(const basic_memory_resource &, Property) noexcept {}

  private:
    pool pool_;
};

/** Memory for kernels. */
using device_memory_resource = basic_memory_resource<WEIR_RESOURCE_OUT_OF_MEMORY, cuda::mr::device_accessible>;

/** Memory of the host that kernels and copies reach. */
using pinned_memory_resource =
    basic_memory_resource<WEIR_RESOURCE_OUT_OF_MEMORY, cuda::mr::device_accessible, cuda::mr::host_accessible>;

/** Memory of the host. */
using host_memory_resource = basic_memory_resource<WEIR_RESOURCE_OUT_OF_MEMORY, cuda::mr::host_accessible>;

#if CCCL_VERSION < 3001000
static_assert(cuda::mr::async_resource_with<device_memory_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::async_resource_with<pinned_memory_resource, cuda::mr::device_accessible, cuda::mr::host_accessible>);
static_assert(cuda::mr::async_resource_with<host_memory_resource, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::resource_with<device_memory_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<pinned_memory_resource, cuda::mr::device_accessible, cuda::mr::host_accessible>);
static_assert(cuda::mr::resource_with<host_memory_resource, cuda::mr::host_accessible>);
static_assert(cuda::mr::synchronous_resource_with<device_memory_resource, cuda::mr::device_accessible>);
static_assert(
    cuda::mr::synchronous_resource_with<pinned_memory_resource, cuda::mr::device_accessible, cuda::mr::host_accessible>);
static_assert(cuda::mr::synchronous_resource_with<host_memory_resource, cuda::mr::host_accessible>);
#endif
static_assert(!cuda::has_property<device_memory_resource, cuda::mr::host_accessible>);
static_assert(!cuda::has_property<host_memory_resource, cuda::mr::device_accessible>);

} // namespace weir

#undef WEIR_RESOURCE_OUT_OF_MEMORY

#endif
