/**
 * @file weir/kokkos.hpp
 * Kokkos on weir's memory: Kokkos 3.4 and later, C++17 and later. Needs no other header of weir or CUDA.
 *
 *   Kokkos::ScopeGuard kokkos(argc, argv);
 *   weir::kokkos::guard guard(weir::pool(options));          // optional: a pool of the program's own, until finalize
 *   weir::kokkos::view<double **> a("a", n, m);              // owns its memory: copies share it, the last one frees it
 *   weir::kokkos::view<double *> b(weir::kokkos::alloc("b", instance, Kokkos::WithoutInitializing), n);
 *   Kokkos::View<double *, weir::kokkos::memory_space> c("c", n); // Kokkos 4.7 and later
 *
 * What is where: weir/kokkos/view.hpp (views of public parts of Kokkos only, for every version), weir/kokkos/guard.hpp,
 * weir/kokkos/memory_space.hpp (a memory space of Kokkos, which Kokkos lets one write since 4.7, through macros that it
 * may change).
 *
 * Which pools. Host memory (Kokkos::HostSpace, weir::kokkos::host_space) is from pools of WEIR_MEMORY_HOST or
 * WEIR_MEMORY_PINNED, GPU memory (Kokkos::CudaSpace, weir::kokkos::cuda_space) from pools of WEIR_MEMORY_DEVICE. A pool
 * that is not named is the current one of that memory (weir_device_get_pool), for a GPU that of the execution space
 * instance.
 *
 * Order. Where no execution space instance is given it is as in Kokkos: memory is everybody's when the allocation
 * returns, and is freed after a Kokkos::fence(). With an instance of Kokkos::Cuda, memory is allocated and freed in the
 * order of its stream, and nothing waits: work of other instances is the program's to order, or to record
 * (weir_pool_record_stream), before the last owner goes; a stream that the program made lives until then. With an
 * instance of a host execution space only that instance is waited for.
 *
 * Errors. Out of memory is thrown as Kokkos does: a std::runtime_error (weir::error) that names memory space, bytes and
 * label. Any other failure is weir::error. Freeing never throws.
 *
 * Threads. As for Kokkos::View: any thread may allocate, copy and free, one object is used by one thread at a time.
 *
 * The end. See weir/kokkos/guard.hpp: views and guards may be static objects. A Kokkos::View in a memory space of weir
 * may not: Kokkos ends the program if one lives on after Kokkos::finalize().
 */
#ifndef WEIR_KOKKOS_HPP
#define WEIR_KOKKOS_HPP

#include <weir/kokkos/guard.hpp>
#include <weir/kokkos/memory_space.hpp>
#include <weir/kokkos/view.hpp>

#endif
