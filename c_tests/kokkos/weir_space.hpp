// Unmanaged Kokkos Views over blocks of a weir pool.
#pragma once

#include "../check.h"
#include <Kokkos_Core.hpp>
#include <utility>

template <class T>
using View = Kokkos::View<T *, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class T>
T *weir_new(weir_pool *pool, std::size_t n) {
    void *block = nullptr;
    CHECK_OK(weir_pool_alloc(pool, n * sizeof(T), nullptr, &block));
    return static_cast<T *>(block);
}

inline void weir_delete(weir_pool *pool, void *block) { CHECK_OK(weir_pool_free(pool, block, nullptr)); }
