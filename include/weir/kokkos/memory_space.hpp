/**
 * @file weir/kokkos/memory_space.hpp
 * Memory spaces of Kokkos over pools of weir, for Kokkos 4.7 and later; empty for earlier ones. Part of weir/kokkos.hpp.
 *
 *   Kokkos::View<double **, weir::kokkos::memory_space> a("a", n, m);
 *   weir::kokkos::memory_space ordered(instance);                        // its views are freed in the instance's order
 *   Kokkos::View<double *, weir::kokkos::memory_space> b(Kokkos::view_alloc("b", ordered, instance), n);
 *   double *c = static_cast<double *>(Kokkos::kokkos_malloc<weir::kokkos::memory_space>("c", bytes));
 *
 * host_space is for what Kokkos::HostSpace is for, cuda_space (where Kokkos has CUDA) for what Kokkos::CudaSpace is for;
 * memory_space is cuda_space where there is one, else host_space. Views of host_space may be assigned to views of
 * Kokkos::HostSpace, and those of cuda_space to views of Kokkos::CudaSpace; not the other way. Every function of Kokkos
 * that takes a memory space takes these: mirrors, copies, resize, DualView, the containers.
 *
 * Each view asks for 128 bytes more than its elements (Kokkos' header), and its elements begin there: they are aligned to
 * 128 bytes.
 *
 * Kokkos documents what a memory space of one's own must have only in part; the specialisations below are of names in
 * Kokkos::Impl. They were built with the versions that docs/clients.md names.
 */
#ifndef WEIR_KOKKOS_MEMORY_SPACE_HPP
#define WEIR_KOKKOS_MEMORY_SPACE_HPP

#include <weir/kokkos/order.hpp>

#if KOKKOS_VERSION >= 40699 // the last before 4.7.0

#ifndef KOKKOS_IMPL_PUBLIC_INCLUDE
#define KOKKOS_IMPL_PUBLIC_INCLUDE
#define WEIR_KOKKOS_PUBLIC_INCLUDE
#endif
#include <impl/Kokkos_SharedAlloc_timpl.hpp>
#ifdef WEIR_KOKKOS_PUBLIC_INCLUDE
#undef KOKKOS_IMPL_PUBLIC_INCLUDE
#undef WEIR_KOKKOS_PUBLIC_INCLUDE
#endif

namespace weir {
namespace kokkos {
namespace detail {

/** What the memory spaces have in common. Copies have the same pool and order. */
template <class Space, class Exec>
class space_of {
  public:
    using execution_space = Exec;
    using size_type = std::size_t;
    using index_type = std::make_signed_t<size_type>;

    /** Of the current pool. */
    space_of() : space_of(current_pool(Exec())) {}

    /** Of this pool. Throws weir::error for one of other memory. */
    explicit space_of(pool from) : pool_(std::move(from)) { must_reach<Exec>(pool_); }

    /** Of the current pool of the instance's device, and in the order of the instance. */
    explicit space_of(const Exec &instance) : pool_(current_pool(instance)), order_(instance) {}
    space_of(pool from, const Exec &instance) : space_of(std::move(from)) { order_ = order<Exec>(instance); }

    const pool &get_pool() const noexcept { return pool_; }

    void *allocate(std::size_t bytes) const { return allocate("[unlabeled]", bytes); }
    void *allocate(const char *label, std::size_t bytes, std::size_t logical = 0) const {
        const Exec first = order_.instance();
        void *const block = take(first, label, bytes, logical);
        if (!order_.is_given()) {
            first.fence(); // what the block was used for is over on every stream
        }
        return block;
    }

    /** For use by `instance`, in its order. */
    template <class Other, class = std::enable_if_t<Kokkos::is_execution_space<Other>::value>>
    void *allocate(const Other &instance, std::size_t bytes) const {
        return allocate(instance, "[unlabeled]", bytes);
    }
    template <class Other, class = std::enable_if_t<Kokkos::is_execution_space<Other>::value>>
    void *allocate(const Other &instance, const char *label, std::size_t bytes, std::size_t logical = 0) const {
        if constexpr (std::is_same_v<Other, Exec>) {
            return take(instance, label, bytes, logical);
        } else {
            return allocate(label, bytes, logical);
        }
    }

    void deallocate(void *block, std::size_t bytes) const noexcept { deallocate("[unlabeled]", block, bytes); }
    void deallocate(const char *label, void *block, std::size_t bytes, std::size_t logical = 0) const noexcept {
        if (block == nullptr) {
            return;
        }
        if (Kokkos::Tools::profileLibraryLoaded()) {
            Kokkos::Tools::deallocateData(Kokkos::Tools::make_space_handle(Space::name()), label, block,
                                          logical > 0 ? logical : bytes);
        }
        pool from = pool_;
        order_.free(from, block);
    }

  private:
    void *take(const Exec &instance, const char *label, std::size_t bytes, std::size_t logical) const {
        pool from = pool_;
        void *const block = detail::allocate(from, bytes, stream_of(instance), 0, Space::name(), label);
        if (Kokkos::Tools::profileLibraryLoaded()) {
            Kokkos::Tools::allocateData(Kokkos::Tools::make_space_handle(Space::name()), label, block,
                                        logical > 0 ? logical : bytes);
        }
        return block;
    }

    pool pool_;
    order<Exec> order_;
};

} // namespace detail

/** Host memory of a weir pool. */
class host_space : public detail::space_of<host_space, Kokkos::DefaultHostExecutionSpace> {
  public:
    using memory_space = host_space;
    using device_type = Kokkos::Device<execution_space, memory_space>;
    using detail::space_of<host_space, Kokkos::DefaultHostExecutionSpace>::space_of;
    host_space() = default;
    static constexpr const char *name() { return "weir::host"; }
};

#ifdef KOKKOS_ENABLE_CUDA
/** GPU memory of a weir pool. */
class cuda_space : public detail::space_of<cuda_space, Kokkos::Cuda> {
  public:
    using memory_space = cuda_space;
    using device_type = Kokkos::Device<execution_space, memory_space>;
    using detail::space_of<cuda_space, Kokkos::Cuda>::space_of;
    cuda_space() = default;
    static constexpr const char *name() { return "weir::cuda"; }
};
using memory_space = cuda_space;
#else
using memory_space = host_space;
#endif

namespace detail {

template <>
struct has_pools<host_space> : std::true_type {};
#ifdef KOKKOS_ENABLE_CUDA
template <>
struct has_pools<cuda_space> : std::true_type {};
#endif

/** May a view of one space be assigned to a view of another, may the other's execution space use it, can it be copied? */
template <bool Assignable, bool Accessible>
struct relation {
    enum : bool { assignable = Assignable };
    enum : bool { accessible = Accessible };
    enum : bool { deepcopy = true };
};

} // namespace detail
} // namespace kokkos
} // namespace weir

KOKKOS_IMPL_SHARED_ALLOCATION_SPECIALIZATION(weir::kokkos::host_space);

namespace Kokkos {
namespace Impl {

template <>
struct MemorySpaceAccess<HostSpace, weir::kokkos::host_space> : weir::kokkos::detail::relation<true, true> {};
template <>
struct MemorySpaceAccess<weir::kokkos::host_space, HostSpace> : weir::kokkos::detail::relation<false, true> {};

template <class Exec>
struct DeepCopy<weir::kokkos::host_space, weir::kokkos::host_space, Exec> : DeepCopy<HostSpace, HostSpace, Exec> {
    using DeepCopy<HostSpace, HostSpace, Exec>::DeepCopy;
};
template <class Exec>
struct DeepCopy<weir::kokkos::host_space, HostSpace, Exec> : DeepCopy<HostSpace, HostSpace, Exec> {
    using DeepCopy<HostSpace, HostSpace, Exec>::DeepCopy;
};
template <class Exec>
struct DeepCopy<HostSpace, weir::kokkos::host_space, Exec> : DeepCopy<HostSpace, HostSpace, Exec> {
    using DeepCopy<HostSpace, HostSpace, Exec>::DeepCopy;
};

} // namespace Impl
} // namespace Kokkos

#ifdef KOKKOS_ENABLE_CUDA

KOKKOS_IMPL_HOST_INACCESSIBLE_SHARED_ALLOCATION_SPECIALIZATION(weir::kokkos::cuda_space);

namespace Kokkos {
namespace Impl {

// Copies among the spaces of CUDA, and between them and HostSpace, are then Kokkos' own.
template <>
struct is_cuda_type_space<weir::kokkos::cuda_space> : std::true_type {};

template <>
struct MemorySpaceAccess<HostSpace, weir::kokkos::cuda_space> : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<weir::kokkos::cuda_space, HostSpace> : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<CudaSpace, weir::kokkos::cuda_space> : weir::kokkos::detail::relation<true, true> {};
template <>
struct MemorySpaceAccess<weir::kokkos::cuda_space, CudaSpace> : weir::kokkos::detail::relation<false, true> {};
template <>
struct MemorySpaceAccess<CudaUVMSpace, weir::kokkos::cuda_space> : weir::kokkos::detail::relation<false, true> {};
template <>
struct MemorySpaceAccess<weir::kokkos::cuda_space, CudaUVMSpace> : weir::kokkos::detail::relation<false, true> {};
template <>
struct MemorySpaceAccess<CudaHostPinnedSpace, weir::kokkos::cuda_space> : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<weir::kokkos::cuda_space, CudaHostPinnedSpace> : weir::kokkos::detail::relation<false, true> {};

// host_space is to the GPU what HostSpace is.
template <>
struct MemorySpaceAccess<weir::kokkos::host_space, weir::kokkos::cuda_space>
    : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<weir::kokkos::cuda_space, weir::kokkos::host_space>
    : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<weir::kokkos::host_space, CudaSpace> : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<CudaSpace, weir::kokkos::host_space> : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<weir::kokkos::host_space, CudaUVMSpace> : weir::kokkos::detail::relation<false, true> {};
template <>
struct MemorySpaceAccess<CudaUVMSpace, weir::kokkos::host_space> : weir::kokkos::detail::relation<false, false> {};
template <>
struct MemorySpaceAccess<weir::kokkos::host_space, CudaHostPinnedSpace>
    : weir::kokkos::detail::relation<false, true> {};
template <>
struct MemorySpaceAccess<CudaHostPinnedSpace, weir::kokkos::host_space>
    : weir::kokkos::detail::relation<false, true> {};

template <class Space, class Exec>
struct DeepCopy<weir::kokkos::host_space, Space, Exec, std::enable_if_t<is_cuda_type_space<Space>::value>>
    : DeepCopy<HostSpace, Space, Exec> {
    using DeepCopy<HostSpace, Space, Exec>::DeepCopy;
};
template <class Space, class Exec>
struct DeepCopy<Space, weir::kokkos::host_space, Exec, std::enable_if_t<is_cuda_type_space<Space>::value>>
    : DeepCopy<Space, HostSpace, Exec> {
    using DeepCopy<Space, HostSpace, Exec>::DeepCopy;
};

} // namespace Impl
} // namespace Kokkos

#endif // KOKKOS_ENABLE_CUDA
#endif // KOKKOS_VERSION

#endif
