/**
 * @file weir/kokkos/view.hpp
 * Views that own memory of weir, for every Kokkos since 3.4. Part of weir/kokkos.hpp.
 *
 *   weir::kokkos::view<double **> a("a", n, m);
 *   weir::kokkos::view<int *, Kokkos::LayoutLeft, Kokkos::HostSpace> b(weir::kokkos::alloc("b", pool), n);
 *
 * A view is a Kokkos::View with MemoryTraits<Unmanaged> and a share in its memory: it goes wherever Kokkos takes a
 * View. As there, copies share the memory, and the last one frees it; elements are value-initialised, and destroyed at
 * the end, unless Kokkos::WithoutInitializing is given; const and other views are made of it by assignment.
 *
 * A plain Kokkos::View made of one, as by Kokkos::subview or Kokkos::create_mirror_view, has no share. The functions of
 * the same names here give views that have: call them without a namespace, or as weir::kokkos::subview.
 * Kokkos::resize is for memory spaces only.
 */
#ifndef WEIR_KOKKOS_VIEW_HPP
#define WEIR_KOKKOS_VIEW_HPP

#include <initializer_list>
#include <memory>
#include <weir/kokkos/owner.hpp>

namespace weir {
namespace kokkos {
namespace detail {

// What a view may be made of, from the arguments of `alloc` in any order.
template <class Exec>
struct request {
    void set(std::string value) { label = std::move(value); }
    void set(const pool &value) { from = value; }
    void set(const Exec &value) { in = order<Exec>(value); }
    void set(const std::decay_t<decltype(Kokkos::WithoutInitializing)> &) { initialize = false; }

    std::string label;
    pool from;
    order<Exec> in;
    bool initialize = true;
};

/** No execution space is named: the one of the view's memory is used. */
struct unnamed {};
template <>
class order<unnamed> {
  public:
    order() = default;
    explicit order(unnamed) {}
};

template <class... Args>
struct named {
    using type = unnamed;
};
template <class First, class... Rest>
struct named<First, Rest...>
    : std::conditional_t<Kokkos::is_execution_space<First>::value, std::enable_if<true, First>, named<Rest...>> {};

template <class Traits>
constexpr unsigned unmanaged_traits() {
    using memory = typename Traits::memory_traits;
    return static_cast<unsigned>(Kokkos::Unmanaged) |
           (memory::is_random_access ? static_cast<unsigned>(Kokkos::RandomAccess) : 0U) |
           (memory::is_atomic ? static_cast<unsigned>(Kokkos::Atomic) : 0U) |
           (memory::is_restrict ? static_cast<unsigned>(Kokkos::Restrict) : 0U) |
           (memory::is_aligned ? static_cast<unsigned>(Kokkos::Aligned) : 0U);
}

template <class DataType, class... Properties>
struct unmanaged {
    using traits = typename Kokkos::View<DataType, Properties...>::traits;
    using type = Kokkos::View<DataType, typename traits::array_layout, typename traits::device_type,
                              Kokkos::MemoryTraits<unmanaged_traits<traits>()>>;
};

/** How many elements a view of these extents spans; more than any memory has if the view has not got them, whose numbers may be of 32
 * bits, or their product is no std::size_t. */
template <class View>
std::size_t span_of(const View &of, const std::size_t *extents, std::size_t count) {
    std::size_t left = static_cast<std::size_t>(-1);
    bool fits = true, none = false;
    for (std::size_t dimension = 0; dimension < static_cast<std::size_t>(View::rank); dimension++) {
        const bool asked = dimension < count && dimension < static_cast<std::size_t>(View::rank_dynamic);
        const std::size_t extent = asked ? extents[dimension] : of.extent(dimension);
        fits = fits && extent == of.extent(dimension);
        none = none || extent == 0;
        left = extent == 0 ? left : left / extent;
    }
    return fits && (none || left > 0) ? of.span() : static_cast<std::size_t>(-1);
}

} // namespace detail

/** What a view is made of: a label, a weir::pool, an execution space instance, Kokkos::WithoutInitializing; each of them
 * may be left out, in any order. */
template <class... Args>
auto alloc(const Args &...args) {
    detail::request<typename detail::named<Args...>::type> asked;
    (asked.set(args), ...);
    return asked;
}

/** A Kokkos::View of weir's memory, with a share in it. Programs write weir::kokkos::view<...>. */
template <class View>
class basic_view : public View {
    using exec = typename View::execution_space;
    using space = typename View::memory_space;
    using element = typename View::value_type;
    using pointer = typename View::pointer_type;

  public:
    /** Of no memory. */
    basic_view() = default;

    /** Throws std::runtime_error (weir::error) if there is no memory, or Kokkos is not initialized. */
    template <class... Extents, class = std::enable_if_t<(std::is_convertible_v<Extents, std::size_t> && ...)>>
    explicit basic_view(const std::string &label, Extents... extents)
        : basic_view(alloc(label), static_cast<std::size_t>(extents)...) {}
    basic_view(const std::string &label, const typename View::array_layout &layout) : basic_view(alloc(label), layout) {}

    /** The same with more to say: see weir::kokkos::alloc. */
    template <class Exec, class... Extents, class = std::enable_if_t<(std::is_convertible_v<Extents, std::size_t> && ...)>>
    explicit basic_view(const detail::request<Exec> &asked, Extents... extents)
        : basic_view(make(asked, spanned({static_cast<std::size_t>(extents)..., 1}, static_cast<std::size_t>(extents)...)),
                     [&](element *data) { return View(data, static_cast<std::size_t>(extents)...); }) {}
    template <class Exec>
    basic_view(const detail::request<Exec> &asked, const typename View::array_layout &layout)
        : basic_view(make(asked, detail::span_of(View(pointer(nullptr), layout), layout.dimension, 8)), [&](element *data) { return View(data, layout); }) {}

    /** Another view of the same memory, if Kokkos allows it: of const elements, for instance. */
    template <class Other, class = std::enable_if_t<!std::is_same_v<Other, View> && std::is_constructible_v<View, const Other &>>>
    basic_view(const basic_view<Other> &other) : View(static_cast<const Other &>(other)), share_(other.share_) {}

    /** A plain view of memory that `other` has a share in. */
    template <class Other>
    basic_view(const basic_view<Other> &other, const View &part) : View(part), share_(other.share_) {}

    /** The label; empty without memory. */
    std::string label() const { return share_.get() == nullptr ? std::string() : share_.get()->label(); }
    /** How many views have a share in the memory; 0 without memory. */
    int use_count() const { return share_.get() == nullptr ? 0 : static_cast<int>(share_.get()->use_count()); }
    /** The pool that the memory is from; empty without memory. */
    pool get_pool() const { return share_.get() == nullptr ? pool() : share_.get()->get_pool(); }

  private:
    template <class Other>
    friend class basic_view;

    template <class... Extents>
    static std::size_t spanned(std::initializer_list<std::size_t> asked, Extents... extents) {
        return detail::span_of(View(pointer(nullptr), extents...), asked.begin(), sizeof...(extents));
    }

    template <class Exec>
    using owner = detail::owner_of<Exec, space, element>;

    template <class Exec, class Make>
    basic_view(std::unique_ptr<owner<Exec>> made, const Make &view)
        : View(view(made->data())), share_(made.get()) {
        made.release();
    }

    template <class Named>
    static auto make(const detail::request<Named> &asked, std::size_t count) {
        using Exec = std::conditional_t<std::is_same_v<Named, detail::unnamed>, exec, Named>;
        static_assert(Kokkos::SpaceAccessibility<Exec, space>::accessible, "this execution space cannot use the memory");
        static_assert(detail::has_pools<space>::value, "weir has no pools of this memory");
        static_assert(!std::is_const_v<element>, "nothing could be written to it");
        detail::must_be_initialized("weir::kokkos::view");
        detail::order<Exec> in;
        if constexpr (!std::is_same_v<Named, detail::unnamed>) {
            in = asked.in;
        }
        pool from = asked.from ? asked.from : detail::current_pool(in.instance());
        detail::must_reach<typename space::execution_space>(from);
        auto made = std::make_unique<owner<Exec>>(std::move(from), asked.label, in, count);
        made->allocate();
        if (asked.initialize) {
            made->construct();
        }
        return made;
    }

    detail::reference share_;
};

/** An owning view, with the parameters of Kokkos::View. */
template <class DataType, class... Properties>
using view = basic_view<typename detail::unmanaged<DataType, Properties...>::type>;

/** As Kokkos::subview, with a share in the memory. */
template <class View, class... Args>
auto subview(const basic_view<View> &of, Args... args) {
    auto part = Kokkos::subview(static_cast<const View &>(of), args...);
    return basic_view<decltype(part)>(of, part);
}

/** As Kokkos::create_mirror_view: the view itself if the host reaches its memory, else a Kokkos::View on the host. */
template <class View>
auto create_mirror_view(const basic_view<View> &of) {
    if constexpr (detail::on_host<typename View::memory_space>()) {
        return of;
    } else {
        return Kokkos::create_mirror_view(static_cast<const View &>(of));
    }
}

} // namespace kokkos
} // namespace weir

#endif
