/**
 * @file weir/pmr.hpp
 * A weir pool of host or pinned memory as a std::pmr::memory_resource.
 *
 *   weir::pmr_resource resource;                       // the process-wide host pool
 *   std::pmr::vector<double> numbers(1000, &resource);
 *   weir::pmr_resource pinned(weir::pool::of_pinned(0));  // the process-wide page-locked one for GPU 0
 *
 * Which pools. Those whose memory the host reaches: WEIR_MEMORY_HOST and WEIR_MEMORY_PINNED. Any other is refused when
 * the resource is made, by weir::error with WEIR_ERROR_INVALID_ARGUMENT.
 *
 * Errors. Out of memory is weir::bad_alloc, a std::bad_alloc with weir's message; a pool that has ended, and an alignment
 * that weir does not have, is weir::error. Deallocating never throws, and does nothing when the pool has ended.
 *
 * Threads. Any thread may allocate and deallocate; what a container does with the memory is the container's.
 *
 * Streams. Containers read and write as soon as they have memory and know of no stream. On WEIR_STREAM_HOST (the default)
 * they get memory that no queued work uses, and what they deallocate is everybody's at once, but for copies that
 * weir_copy_async has queued: those are waited for before the memory is used again. Wait for other work that uses a
 * container before it goes or grows. With a stream, memory that is deallocated is for requests on that stream at
 * once, even while work queued there uses it: then the container itself may be touched only inside work on that stream,
 * or when the stream has been waited for.
 *
 * The end. As for weir::pool: a resource may be a static object, and the containers too, if the resource outlives them.
 */
#ifndef WEIR_PMR_HPP
#define WEIR_PMR_HPP

#include <cstdint>
#include <memory_resource>
#include <weir/pool.hpp>

namespace weir {

/** Memory of a host or pinned pool for std::pmr containers. Keeps the pool. */
class pmr_resource : public std::pmr::memory_resource {
  public:
    /** The current pool of plain host memory. */
    pmr_resource() : pmr_resource(pool::of_host()) {}

    explicit pmr_resource(pool from, weir_stream stream = host_stream()) : pool_(std::move(from)), stream_(stream) {
        if (pool_.memory() == WEIR_MEMORY_DEVICE) {
            throw error(WEIR_ERROR_INVALID_ARGUMENT,
                        "weir::pmr_resource: the pool is of device memory, which containers on the host cannot use; pass "
                        "a pool of WEIR_MEMORY_HOST or WEIR_MEMORY_PINNED");
        }
    }

    /** WEIR_STREAM_HOST, whose cast C++ compilers may warn of. */
    static weir_stream host_stream() noexcept { return reinterpret_cast<weir_stream>(std::intptr_t{-1}); }

    const pool &get_pool() const noexcept { return pool_; }
    weir_stream stream() const noexcept { return stream_; }

  private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        return pool_.allocate(bytes, stream_, alignment);
    }

    void do_deallocate(void *block, std::size_t, std::size_t) noexcept override { pool_.deallocate(block, stream_); }

    /** What one allocated the other may deallocate: the same pool, in the same order. */
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#ifdef __cpp_rtti
        const auto *same = dynamic_cast<const pmr_resource *>(&other);
        return same != nullptr && same->pool_ == pool_ && same->stream_ == stream_;
#else // without types nobody knows what the other is
        return this == &other;
#endif
    }

    pool pool_;
    weir_stream stream_;
};

} // namespace weir

#endif
