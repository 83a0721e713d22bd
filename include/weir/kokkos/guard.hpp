/**
 * @file weir/kokkos/guard.hpp
 * Ties a pool to the life of Kokkos. Part of weir/kokkos.hpp.
 *
 *   Kokkos::initialize(argc, argv);
 *   weir::kokkos::guard guard(weir::pool(options));   // or a member of a singleton, or a static object
 *   ...
 *   Kokkos::finalize();                               // ends the pool, whether the guard still lives or not
 *
 * From then on, until its end, the pool is the current one of its memory: views and memory spaces that name no pool use
 * it. It ends in Kokkos::finalize() or with the guard, whichever comes first: the work of Kokkos is waited for, the
 * default pool is the current one again, all free memory goes back, and the guard's reference with it. Where that was
 * the last one nothing is left of the pool.
 *
 * Views that outlive Kokkos::finalize(), such as static ones, keep their pool and their memory until they go: that is
 * harmless, also after main and when weir or the driver is gone by then, and the last one ends the pool. Their elements'
 * destructors run if the host reaches the memory, and do not on a GPU, where Kokkos runs nothing any more. It is the same
 * where exit() comes without Kokkos::finalize(): exit() then waits for the work of Kokkos, and what goes later waits for none.
 */
#ifndef WEIR_KOKKOS_GUARD_HPP
#define WEIR_KOKKOS_GUARD_HPP

#include <memory>
#include <weir/kokkos/order.hpp>

namespace weir {
namespace kokkos {

/** Keeps a pool until Kokkos::finalize() and no longer, wherever the guard lives. Moves, does not copy. */
class guard {
  public:
    /** Of no pool. */
    guard() noexcept = default;

    /** Keeps `tied` and makes it current. Throws weir::error if Kokkos is not initialized, or the pool has ended. Not to
     * be made in a finalize hook: Kokkos has no room for another one there. */
    explicit guard(pool tied) {
        auto made = std::make_shared<tie>(std::move(tied), this);
        Kokkos::push_finalize_hook([made] { made->end(); });
        tie_ = made.get();
    }

    guard(guard &&other) noexcept { *this = std::move(other); }
    guard &operator=(guard &&other) noexcept {
        tie *const taken = std::exchange(other.tie_, nullptr);
        end();
        tie_ = taken;
        if (tie_ != nullptr) {
            tie_->holder = this;
        }
        return *this;
    }
    ~guard() { end(); }

    /** Ends it now, as Kokkos::finalize() does. */
    void end() noexcept {
        if (tie_ != nullptr) {
            tie_->end();
        }
    }

    /** The pool; empty if it has ended. */
    pool get_pool() const { return tie_ != nullptr ? tie_->kept : pool(); }

  private:
    // Belongs to the finalize hook, so that a guard that is never destroyed leaves nothing behind.
    struct tie {
        tie(pool tied, guard *made_by) : holder(made_by) {
            detail::must_be_initialized("weir::kokkos::guard");
            detail::expect_exit();
            device = tied.device();
            check(weir_device_set_pool(device, tied.get()));
            kept = std::move(tied);
        }

        // Without Kokkos::finalize() the hook may go before the guard: with the static objects of Kokkos.
        ~tie() {
            if (holder != nullptr) {
                holder->tie_ = nullptr;
            }
        }

        void end() noexcept {
            if (holder == nullptr) {
                return;
            }
            std::exchange(holder, nullptr)->tie_ = nullptr;
            detail::wait_for_all();
            try {
                kept.trim(0);
            } catch (...) {
                // a pool or a device that is gone has nothing left to give back
            }
            weir_pool *now = nullptr;
            if (weir_device_get_pool(device, &now) == WEIR_OK && now == kept.get()) {
                weir_device_set_pool(device, nullptr);
            }
            kept.reset();
        }

        guard *holder;
        pool kept;
        int device = 0;
    };

    tie *tie_ = nullptr;
};

} // namespace kokkos
} // namespace weir

#endif
