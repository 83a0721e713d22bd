/**
 * @file weir/thrust.hpp
 * weir pools for Thrust: memory for vectors and temporary memory for algorithms. C++17, Thrust 1.17 or later, which
 * since 2023 is a part of CCCL; for the CUDA system, include it in files that nvcc compiles.
 *
 *   weir::thrust_allocator<char> temporary(pool);
 *   thrust::sort(thrust::cuda::par(temporary).on(stream), first, last);
 *
 *   using vector = thrust::device_vector<int, weir::thrust_allocator<int>>;
 *   vector numbers(1000, weir::thrust_allocator<int>(pool, stream));
 *
 *   weir::thrust_resource<> memory(pool);                    // outlives what is allocated from it
 *   thrust::mr::allocator<int, weir::thrust_resource<>> allocator(&memory);
 *
 * Which pools. Those whose memory Thrust's device system reaches: of WEIR_MEMORY_DEVICE and WEIR_MEMORY_PINNED for CUDA, of
 * WEIR_MEMORY_HOST and WEIR_MEMORY_PINNED for CPP, OMP and TBB. Another is refused by weir::error with
 * WEIR_ERROR_INVALID_ARGUMENT. By default it is the current pool of the current GPU, or of host memory.
 *
 * Streams. Thrust tells no allocator a stream; an allocator and a resource have one of their own: by default the default
 * stream, and for CPP, OMP and TBB WEIR_STREAM_HOST, whose memory no queued work uses. For temporary memory the execution
 * policy is asked instead, whose stream is the one that the work is on: all of thrust::cuda::par(allocator).on(stream),
 * par_nosync, and par(&resource) use the policy's. A device_vector with thrust_allocator in the CUDA system fills and
 * copies its elements on the allocator's stream when it is made or grows, and waits for it. What Thrust does by other
 * members of a vector (assigning, reading single elements) it does on the default stream: with a non-blocking stream, wait
 * for the one before using the other. When a vector goes or grows, its memory is for the allocator's stream at once: order
 * work on other streams before that, or call get_pool().record_stream. Thrust's futures (thrust::async, until CCCL 2) say
 * nothing of their stream: temporary memory is for the allocator's.
 *
 * Errors. Out of memory is thrust::system::detail::bad_alloc, a std::bad_alloc with weir's message, as of Thrust's own
 * resources; all else is weir::error. Deallocating never throws, and does nothing when the pool has ended.
 *
 * Sizes. 0 bytes are a block with an address of its own. Any power of two is an alignment; blocks have 256 at least.
 *
 * Threads. Any thread may use an allocator or a resource. The end is as for weir::pool: they may be static objects.
 *
 * Names. What the CUDA system has here and what the others have differ, and so do their names for the linker: files compiled
 * for either may be in one program, but cannot pass these types to each other.
 */
#ifndef WEIR_THRUST_HPP
#define WEIR_THRUST_HPP

#include <cstddef>
#include <thrust/detail/config.h>
#include <thrust/device_ptr.h>
#include <thrust/device_reference.h>
#include <thrust/execution_policy.h>
#include <thrust/memory.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/system/detail/bad_alloc.h>
#include <type_traits>
#include <utility>
#include <weir/pool.hpp>

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
#include <cuda_runtime_api.h>
#include <thrust/system/cuda/execution_policy.h>
#endif

// Where Thrust's base classes and containers have it.
#ifdef __CUDACC__
#define WEIR_HOST_DEVICE __host__ __device__
#else
#define WEIR_HOST_DEVICE
#endif

namespace weir {
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
inline namespace thrust_on_cuda {
#else
inline namespace thrust_on_host {
#endif

namespace detail {

using thrust_bad_alloc = thrust::system::detail::bad_alloc;

/** The current pool of what Thrust's device system uses now. */
inline pool pool_of_thrust() {
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
    int device = 0;
    const cudaError_t failed = cudaGetDevice(&device);
    if (failed != cudaSuccess) {
        throw error(WEIR_ERROR_BACKEND, cudaGetErrorString(failed));
    }
    return pool::of_device(device);
#else
    return pool::of_host();
#endif
}

/** The default stream of Thrust's device system; the host's work is on none. */
inline weir_stream stream_of_thrust() noexcept {
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
    return thrust::cuda_cub::default_stream(); // the thread's own, if the program is compiled so
#else
    return WEIR_STREAM_HOST;
#endif
}

/** The pool, unless Thrust's device system cannot use its memory. */
inline pool usable_by_thrust(pool from) {
    const weir_memory memory = from.memory();
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
    if (memory == WEIR_MEMORY_HOST) {
        throw error(WEIR_ERROR_INVALID_ARGUMENT,
                    "weir/thrust.hpp: the pool is of host memory, which GPUs cannot use; pass a pool of WEIR_MEMORY_DEVICE or "
                    "WEIR_MEMORY_PINNED");
    }
#else
    if (memory == WEIR_MEMORY_DEVICE) {
        throw error(WEIR_ERROR_INVALID_ARGUMENT,
                    "weir/thrust.hpp: the pool is of device memory, which Thrust's device system here, the host, cannot use; "
                    "pass a pool of WEIR_MEMORY_HOST or WEIR_MEMORY_PINNED");
    }
#endif
    return from;
}

/** Room for `count` values. A product that would overflow is more than there can be. */
template <class T>
T *allocate_for_thrust(const pool &from, std::size_t count, weir_stream stream) {
    constexpr std::size_t all = static_cast<std::size_t>(-1);
    const std::size_t bytes = count > all / sizeof(T) ? all : count * sizeof(T);
    const std::size_t alignment = alignof(T) > 256 ? alignof(T) : 0;
    void *block = nullptr;
    check_alloc<thrust_bad_alloc>(weir_pool_alloc_aligned(from.get(), bytes, alignment, stream, &block));
    return static_cast<T *>(block);
}

/** The stream of an execution policy. The second one is for policies that have none, and gives what is passed. */
template <class Policy>
auto stream_of_policy(Policy &policy, weir_stream) noexcept -> decltype(static_cast<weir_stream>(get_stream(policy))) {
    return get_stream(policy);
}
template <class Policy, class Stream>
weir_stream stream_of_policy(const Policy &, Stream own) noexcept {
    return own;
}

} // namespace detail

/** Memory of a pool as a resource of Thrust's, for thrust::mr::allocator and Thrust's own pools. Pointer is what it gives:
 * thrust::device_ptr<void>, or another fancy or plain pointer. Keeps the pool. */
template <class Pointer = thrust::device_ptr<void>>
class thrust_resource final : public thrust::mr::memory_resource<Pointer> {
  public:
    explicit thrust_resource(pool from = detail::pool_of_thrust(), weir_stream stream = detail::stream_of_thrust())
        : pool_(detail::usable_by_thrust(std::move(from))), stream_(stream) {}

    const pool &get_pool() const noexcept { return pool_; }
    weir_stream stream() const noexcept { return stream_; }

    Pointer do_allocate(std::size_t bytes, std::size_t alignment) override {
        return Pointer(pool_.allocate<detail::thrust_bad_alloc>(bytes, stream_, alignment));
    }

    void do_deallocate(Pointer block, std::size_t, std::size_t) noexcept override {
        pool_.deallocate(thrust::raw_pointer_cast(block), stream_);
    }

    /** What one allocated the other may deallocate: the same pool, in the same order. */
    WEIR_HOST_DEVICE bool do_is_equal(const thrust::mr::memory_resource<Pointer> &other) const noexcept override {
#if defined(__cpp_rtti) && !defined(__CUDA_ARCH__)
        const auto *same = dynamic_cast<const thrust_resource *>(&other);
        return same != nullptr && *same == *this;
#else // without types nobody knows what the other is; and for a GPU, where nobody has a resource, the base class demands it
        return this == &other;
#endif
    }

    // Thrust's own operators compare one of the two with itself.
    friend bool operator==(const thrust_resource &a, const thrust_resource &b) noexcept {
        return a.pool_ == b.pool_ && a.stream_ == b.stream_;
    }
    friend bool operator!=(const thrust_resource &a, const thrust_resource &b) noexcept { return !(a == b); }

  private:
    pool pool_;
    weir_stream stream_;
};

/** Memory of a pool for thrust::device_vector, and temporary memory for execution policies. Keeps the pool. */
template <class T>
class thrust_allocator {
  public:
    using value_type = T;
    using pointer = thrust::device_ptr<T>;
    using const_pointer = thrust::device_ptr<const T>;
    using void_pointer = thrust::device_ptr<void>;
    using const_void_pointer = thrust::device_ptr<const void>;
    using reference = thrust::device_reference<T>;
    using const_reference = thrust::device_reference<const T>;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;
    template <class U>
    struct rebind {
        using other = thrust_allocator<U>;
    };

    explicit thrust_allocator(weir::pool from = detail::pool_of_thrust(),
                              weir_stream stream = detail::stream_of_thrust())
        : pool_(detail::usable_by_thrust(std::move(from))), stream_(stream) {}

    // An allocator that was moved from is still in its container: moving copies.
    thrust_allocator(const thrust_allocator &) = default;
    thrust_allocator &operator=(const thrust_allocator &) = default;
    ~thrust_allocator() {} // defaulted, nvcc would take it for a function of the GPU as well
    template <class U>
    thrust_allocator(const thrust_allocator<U> &other) noexcept : pool_(other.get_pool()), stream_(other.stream()) {}

    const weir::pool &get_pool() const noexcept { return pool_; }
    weir_stream stream() const noexcept { return stream_; }

    pointer allocate(size_type count) { return pointer(detail::allocate_for_thrust<T>(pool_, count, stream_)); }
    void deallocate(pointer block, size_type) noexcept { pool_.deallocate(thrust::raw_pointer_cast(block), stream_); }

    WEIR_HOST_DEVICE size_type max_size() const noexcept { return static_cast<size_type>(-1) / sizeof(T); }

    friend bool operator==(const thrust_allocator &a, const thrust_allocator &b) noexcept {
        return a.pool_ == b.pool_ && a.stream_ == b.stream_;
    }
    friend bool operator!=(const thrust_allocator &a, const thrust_allocator &b) noexcept { return !(a == b); }

#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
    /** Where vectors fill and copy what lies in this memory (Thrust asks). */
    using system_type = decltype(thrust::cuda::par.on(cudaStream_t()));
    system_type &system() noexcept { return on_; }
#endif

  private:
    weir::pool pool_;
    weir_stream stream_;
#if THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
    system_type on_ = thrust::cuda::par.on(static_cast<cudaStream_t>(stream_));
#endif
};

// Thrust asks a policy for temporary memory by these two names, and finds these for policies with weir's allocators, which
// are held by value or by reference, and with weir's resources. Thrust's own would not look at the policy's stream.

namespace detail {

template <class T, class Policy, class From>
std::pair<T *, std::ptrdiff_t> get_temporary(Policy &policy, const From &from, std::ptrdiff_t count) {
    const weir_stream stream = stream_of_policy(policy, from.stream());
    return {allocate_for_thrust<T>(from.get_pool(), static_cast<std::size_t>(count), stream), count};
}

template <class Policy, class From, class Pointer>
void return_temporary(Policy &policy, const From &from, Pointer block) noexcept {
    weir_pool_free(from.get_pool().get(), thrust::raw_pointer_cast(block), stream_of_policy(policy, from.stream()));
}

template <class Allocator, template <class> class Base>
using policy_with = thrust::detail::execute_with_allocator<Allocator, Base>;

} // namespace detail

template <class T, class U, template <class> class Base>
auto get_temporary_buffer(detail::policy_with<thrust_allocator<U>, Base> &policy, std::ptrdiff_t count) {
    return detail::get_temporary<T>(policy, policy.get_allocator(), count);
}
template <class T, class U, template <class> class Base>
auto get_temporary_buffer(detail::policy_with<thrust_allocator<U> &, Base> &policy, std::ptrdiff_t count) {
    return detail::get_temporary<T>(policy, policy.get_allocator(), count);
}
template <class T, class U, class P, template <class> class Base>
auto get_temporary_buffer(detail::policy_with<thrust::mr::allocator<U, thrust_resource<P>>, Base> &policy,
                          std::ptrdiff_t count) {
    return detail::get_temporary<T>(policy, *policy.get_allocator().resource(), count);
}
template <class T, class U, class P, template <class> class Base>
auto get_temporary_buffer(detail::policy_with<thrust::mr::allocator<U, thrust_resource<P>> &, Base> &policy,
                          std::ptrdiff_t count) {
    return detail::get_temporary<T>(policy, *policy.get_allocator().resource(), count);
}

template <class Pointer, class U, template <class> class Base>
void return_temporary_buffer(detail::policy_with<thrust_allocator<U>, Base> &policy, Pointer block,
                             std::ptrdiff_t) noexcept {
    detail::return_temporary(policy, policy.get_allocator(), block);
}
template <class Pointer, class U, template <class> class Base>
void return_temporary_buffer(detail::policy_with<thrust_allocator<U> &, Base> &policy, Pointer block,
                             std::ptrdiff_t) noexcept {
    detail::return_temporary(policy, policy.get_allocator(), block);
}
template <class Pointer, class U, class P, template <class> class Base>
void return_temporary_buffer(detail::policy_with<thrust::mr::allocator<U, thrust_resource<P>>, Base> &policy,
                             Pointer block, std::ptrdiff_t) noexcept {
    detail::return_temporary(policy, *policy.get_allocator().resource(), block);
}
template <class Pointer, class U, class P, template <class> class Base>
void return_temporary_buffer(detail::policy_with<thrust::mr::allocator<U, thrust_resource<P>> &, Base> &policy,
                             Pointer block, std::ptrdiff_t) noexcept {
    detail::return_temporary(policy, *policy.get_allocator().resource(), block);
}

#undef WEIR_HOST_DEVICE

} // namespace thrust_on_cuda or thrust_on_host
} // namespace weir

#endif
