/**
 * @file weir/kokkos/owner.hpp
 * The counted owner of a view's block. Part of weir/kokkos.hpp; nothing here is for programs.
 */
#ifndef WEIR_KOKKOS_OWNER_HPP
#define WEIR_KOKKOS_OWNER_HPP

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <weir/kokkos/order.hpp>

// What the host does in a function that the device has too, where copies are plain bytes.
#ifdef KOKKOS_IF_ON_HOST
#define WEIR_KOKKOS_ON_HOST(...) KOKKOS_IF_ON_HOST((__VA_ARGS__))
#elif defined(__CUDA_ARCH__)
#define WEIR_KOKKOS_ON_HOST(...)
#else
#define WEIR_KOKKOS_ON_HOST(...) __VA_ARGS__
#endif

namespace weir {
namespace kokkos {
namespace detail {

/** Owns a block and the elements in it. The last reference deletes it. */
class owner {
  public:
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    virtual ~owner() = default;

    void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            delete this;
        }
    }
    long use_count() const noexcept { return references_.load(std::memory_order_relaxed); }

    const std::string &label() const noexcept { return label_; }
    const pool &get_pool() const noexcept { return pool_; }

  protected:
    owner(pool from, std::string label) : pool_(std::move(from)), label_(std::move(label)) {}

    pool pool_;
    const std::string label_;

  private:
    friend class instances;
    virtual void forget_instance() noexcept = 0;

    std::atomic<long> references_{1};
    owner *before_ = nullptr, *after_ = nullptr; // under the lock of `instances`
};

/** The owners that hold an execution space instance, which must not outlive Kokkos::finalize(), or exit() without it. */
class instances {
  public:
    /** False in Kokkos::finalize() or exit(), and later: then no instance may be held. */
    static bool add(owner &added) {
        list &all = the();
        const std::lock_guard<std::mutex> lock(all.mutex);
        if (all.ended) {
            return false;
        }
        if (!all.hooked) {
            Kokkos::push_finalize_hook(end);
            std::atexit(end);
            all.hooked = true;
        }
        added.after_ = all.first;
        if (all.first != nullptr) {
            all.first->before_ = &added;
        }
        all.first = &added;
        return true;
    }

    static void remove(owner &gone) noexcept {
        list &all = the();
        const std::lock_guard<std::mutex> lock(all.mutex);
        if (gone.before_ != nullptr) {
            gone.before_->after_ = gone.after_;
        } else if (all.first == &gone) {
            all.first = gone.after_;
        }
        if (gone.after_ != nullptr) {
            gone.after_->before_ = gone.before_;
        }
        gone.before_ = gone.after_ = nullptr;
    }

  private:
    struct list {
        std::mutex mutex;
        owner *first = nullptr;
        bool hooked = false, ended = false;
    };

    // Never destroyed, so that owners may be static objects; there is nothing in it to destroy.
    static list &the() {
        alignas(list) static unsigned char room[sizeof(list)];
        static list *const one = new (room) list;
        return *one;
    }

    static void end() {
        wait_for_all();
        list &all = the();
        const std::lock_guard<std::mutex> lock(all.mutex);
        all.ended = true;
        for (owner *held = all.first; held != nullptr; held = held->after_) {
            held->forget_instance();
        }
    }
};

template <class T>
struct construct_at {
    T *elements;
    KOKKOS_FUNCTION void operator()(const std::size_t i) const { ::new (static_cast<void *>(elements + i)) T(); }
};

template <class T>
struct destroy_at {
    T *elements;
    KOKKOS_FUNCTION void operator()(const std::size_t i) const { elements[i].~T(); }
};

/** The owner of `count` elements, used by work of an execution space. */
template <class Exec, class Space, class T>
class owner_of final : public owner {
  public:
    owner_of(pool from, std::string label, const order<Exec> &in, std::size_t count)
        : owner(std::move(from), std::move(label)), order_(in), count_(count) {}

    ~owner_of() override {
        instances::remove(*this);
        if constexpr (!std::is_trivially_destructible_v<T>) {
            destroy();
        }
        if (block_ != nullptr) {
            order_.free(pool_, block_);
        }
    }

    T *data() const noexcept { return static_cast<T *>(block_); }

    /** To be called first. */
    void allocate() {
        const std::size_t most = static_cast<std::size_t>(-1) / sizeof(T);
        // a product that would overflow is more than there can be
        const std::size_t bytes = count_ > most ? static_cast<std::size_t>(-1) : count_ * sizeof(T);
        expect_exit();
        const Exec first = order_.instance();
        block_ =
            detail::allocate(pool_, bytes, stream_of(first), alignof(T) > 256 ? alignof(T) : 0, Space::name(), label_);
        if (!order_.is_given()) {
            first.fence(); // what the block was used for is over on every stream
        } else if (!instances::add(*this)) {
            order_.forget();
        }
    }

    /** Value-initialises the elements, as Kokkos does. They are destroyed with the owner. */
    void construct() {
        if constexpr (on_host<Space>() && !std::is_trivially_default_constructible_v<T>) {
            // Not in parallel: a constructor may throw, or allocate a view.
            for (; constructed_ < count_; constructed_++) {
                ::new (static_cast<void *>(data() + constructed_)) T();
            }
        } else if (count_ > 0) {
            const Exec on = order_.instance();
            Kokkos::parallel_for("weir::kokkos::view::initialization [" + label_ + "]",
                                 Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(on, 0, count_),
                                 construct_at<T>{data()});
            if (!order_.is_given()) {
                on.fence();
            }
            constructed_ = count_;
        }
    }

  private:
    void forget_instance() noexcept override { order_.forget(); }

    void destroy() noexcept {
        if constexpr (on_host<Space>()) {
            while (constructed_ > 0) {
                data()[--constructed_].~T();
            }
        } else if (constructed_ > 0 && is_alive()) {
            Kokkos::parallel_for("weir::kokkos::view::destruction [" + label_ + "]",
                                 Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(order_.instance(), 0, count_),
                                 destroy_at<T>{data()});
        }
    }

    order<Exec> order_;
    const std::size_t count_;
    std::size_t constructed_ = 0;
    void *block_ = nullptr;
};

/** One reference to an owner. On a device it is bytes that count nothing. */
class reference {
  public:
    KOKKOS_FUNCTION reference() {}
    explicit reference(owner *taken) : owner_(taken) {}
    KOKKOS_FUNCTION reference(const reference &other) : owner_(other.owner_) { retain(); }
    KOKKOS_FUNCTION reference(reference &&other) noexcept : owner_(other.owner_) { other.owner_ = nullptr; }
    KOKKOS_FUNCTION reference &operator=(const reference &other) {
        other.retain(); // first: it may be the same
        release();
        owner_ = other.owner_;
        return *this;
    }
    KOKKOS_FUNCTION reference &operator=(reference &&other) noexcept {
        owner *const taken = other.owner_;
        other.owner_ = nullptr;
        release();
        owner_ = taken;
        return *this;
    }
    KOKKOS_FUNCTION ~reference() { release(); }

    const owner *get() const noexcept { return owner_; }

  private:
    KOKKOS_FUNCTION void retain() const {
        WEIR_KOKKOS_ON_HOST(if (owner_ != nullptr) { owner_->retain(); })
    }
    KOKKOS_FUNCTION void release() const {
        WEIR_KOKKOS_ON_HOST(if (owner_ != nullptr) { owner_->release(); })
    }

    owner *owner_ = nullptr;
};

} // namespace detail
} // namespace kokkos
} // namespace weir

#undef WEIR_KOKKOS_ON_HOST

#endif
