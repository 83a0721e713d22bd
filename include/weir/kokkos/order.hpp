/**
 * @file weir/kokkos/order.hpp
 * How blocks follow the work of Kokkos: which pool, which stream, when a block may be freed, what a failure is. Part of
 * weir/kokkos.hpp; nothing here is for programs.
 */
#ifndef WEIR_KOKKOS_ORDER_HPP
#define WEIR_KOKKOS_ORDER_HPP

#include <Kokkos_Core.hpp>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>
#include <weir/pool.hpp>

namespace weir {
namespace kokkos {
namespace detail {

template <class Exec>
struct on_stream : std::false_type {};
#ifdef KOKKOS_ENABLE_CUDA
template <>
struct on_stream<Kokkos::Cuda> : std::true_type {};
#endif

/** The stream of an instance. Host execution spaces have none: what they get no queued work may still use. */
template <class Exec>
weir_stream stream_of([[maybe_unused]] const Exec &instance) {
    if constexpr (on_stream<Exec>::value) {
        return instance.cuda_stream();
    } else {
        return WEIR_STREAM_HOST;
    }
}

/** Is there a kind of pool for this memory space? */
template <class Space>
struct has_pools : std::is_same<Space, Kokkos::HostSpace> {};
#ifdef KOKKOS_ENABLE_CUDA
template <>
struct has_pools<Kokkos::CudaSpace> : std::true_type {};
#endif

/** Does the host reach this memory? */
template <class Space>
constexpr bool on_host() {
    return Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space>::accessible;
}

/** The current pool for an instance's memory. */
template <class Exec>
pool current_pool([[maybe_unused]] const Exec &instance) {
    if constexpr (on_stream<Exec>::value) {
        return pool::of_device(instance.cuda_device());
    } else {
        return pool::of_host();
    }
}

inline void must_be_initialized(const char *what) {
    if (!Kokkos::is_initialized()) {
        throw error(WEIR_ERROR_INVALID_ARGUMENT,
                    (std::string(what) + ": Kokkos is not initialized, or was finalized").c_str());
    }
}

/** Set by exit(), before static objects go that are older than the first guard or view, such as Kokkos' own. */
inline std::atomic<bool> exiting{false};

/** Is Kokkos there to be called? Without Kokkos::finalize() it says that it is initialized when its objects are gone. */
inline bool is_alive() noexcept { return !exiting && Kokkos::is_initialized(); }

/** Waits for all work, if Kokkos is there. */
inline void wait_for_all() noexcept {
    if (!is_alive()) {
        return;
    }
    try {
        Kokkos::fence();
    } catch (...) {
        // The device is lost, and with it the work. weir finds that out itself.
    }
}

/** Makes exit() wait for all work as long as Kokkos is there; for whatever may live on after that. */
inline void expect_exit() {
    [[maybe_unused]] static const int registered = std::atexit([] {
        wait_for_all();
        exiting = true;
    });
}

/** Throws weir::error for a pool whose memory an execution space cannot use. */
template <class Exec>
void must_reach(const pool &from) {
    const weir_memory memory = from.memory();
    const bool reached = on_stream<Exec>::value ? memory != WEIR_MEMORY_HOST : memory != WEIR_MEMORY_DEVICE;
    if (!reached) {
        throw error(WEIR_ERROR_INVALID_ARGUMENT,
                    (std::string("weir::kokkos: the pool's memory is nothing that ") + Exec::name() +
                     " can use; pass a pool of " +
                     (on_stream<Exec>::value ? "WEIR_MEMORY_DEVICE" : "WEIR_MEMORY_HOST or WEIR_MEMORY_PINNED"))
                        .c_str());
    }
}

/** A block, or Kokkos' exception for a lack of memory: a std::runtime_error of this form. */
inline void *allocate(pool &from, std::size_t bytes, weir_stream stream, std::size_t alignment, const char *space,
                      const std::string &label) {
    try {
        return from.allocate(bytes, stream, alignment);
    } catch (const bad_alloc &none) {
        throw error(none.status(), (std::string("Kokkos ERROR: ") + space + " memory space failed to allocate " +
                                    std::to_string(bytes) + " bytes (label=\"" + label + "\"). " + none.what())
                                       .c_str());
    }
}

/** The order in which the memory of one owner is allocated and freed: that of an instance, or none. */
template <class Exec>
class order {
  public:
    order() = default;
    explicit order(const Exec &instance) : instance_(instance) {}

    /** Where the memory is allocated and first used. */
    Exec instance() const { return instance_ ? *instance_ : Exec(); }
    bool is_given() const noexcept { return instance_.has_value(); }

    /** Kokkos is about to end, when nothing of it may be held any more; all work has been waited for. */
    void forget() noexcept { instance_.reset(); }

    /** Frees a block of `from`. */
    void free(pool &from, void *block) const noexcept {
        if constexpr (on_stream<Exec>::value) {
            if (instance_) {
                from.deallocate(block, stream_of(*instance_));
                return;
            }
        }
        wait();
        from.deallocate_synced(block);
    }

  private:
    /** For whatever may still use the block. After Kokkos' end there is no such work, and nothing to wait with. */
    void wait() const noexcept {
        if (!instance_) {
            wait_for_all();
        } else if (is_alive()) {
            try {
                instance_->fence();
            } catch (...) {
                // as above
            }
        }
    }

    std::optional<Exec> instance_;
};

} // namespace detail
} // namespace kokkos
} // namespace weir

#endif
