/**
 * @file weir/pool.hpp
 * weir in C++17: pools, errors and owners of blocks. Needs no CUDA header; a stream is a cudaStream_t, a CUstream, a host
 * stream or nullptr, as in weir.h.
 *
 *   weir::pool pool = weir::pool::of_device(0);
 *   weir::buffer block(pool, 4096, stream);
 *   kernel<<<..., stream>>>(block.data());
 *   // freed on the stream at the end of the scope: queued work may still use it
 *
 * Errors. Functions throw weir::error, with the status and weir's message, unless they are noexcept. What gives something
 * back never throws: it answers with a weir_status, and destructors ignore it (weir_last_error() has the message).
 *
 * Threads. A pool may be called by any thread. An object of this header may be used by one thread at a time, as any value;
 * a copy of it is another object.
 *
 * The end. A handle whose pool has ended (weir_finalize, weir_pool_destroy, the end of the process) stays valid:
 * requests throw weir::error with WEIR_ERROR_FINALIZED or WEIR_ERROR_POOL_DESTROYED, giving back and copying do nothing.
 * So pools, buffers and deleters may be static objects, in any order of destruction. A default-constructed or moved-from
 * pool is empty: requests throw WEIR_ERROR_NULL_POINTER.
 */
#ifndef WEIR_POOL_HPP
#define WEIR_POOL_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <weir.h>

namespace weir {

/** What a failed call of weir throws. what() is weir_last_error() as it was: what was asked, the numbers, what to try. */
class error : public std::runtime_error {
  public:
    error(weir_status status, const char *message) : std::runtime_error(message), status_(status) {}
    weir_status status() const noexcept { return status_; }

  private:
    weir_status status_;
};

/** The same where an interface asks for std::bad_alloc. */
class bad_alloc : public std::bad_alloc {
  public:
    bad_alloc(weir_status status, const char *message) : error_(status, message) {}
    const char *what() const noexcept override { return error_.what(); }
    weir_status status() const noexcept { return error_.status(); }

  private:
    error error_; // copies its text without failing, as an exception must
};

/** Throws weir::error for anything but WEIR_OK; call it right after the call that gave the status. */
inline void check(weir_status status) {
    if (status != WEIR_OK) {
        throw error(status, weir_last_error());
    }
}

/** Throws OutOfMemory if there is no memory for a request, weir::error for any other failure. For an interface whose users
 * catch an exception of its own, OutOfMemory is that: something made of the message alone. */
template <class OutOfMemory = bad_alloc>
void check_alloc(weir_status status) {
    if (status == WEIR_ERROR_OUT_OF_MEMORY || status == WEIR_ERROR_SIZE_TOO_LARGE) {
        if constexpr (std::is_same_v<OutOfMemory, bad_alloc>) {
            throw bad_alloc(status, weir_last_error());
        } else {
            throw OutOfMemory(weir_last_error());
        }
    }
    check(status);
}

/** The defaults and the environment, to be changed and given to a pool. Throws for a malformed variable. */
inline weir_pool_options default_options() {
    weir_pool_options options;
    check(weir_pool_options_init(&options, sizeof options));
    return options;
}

/** A reference to a pool: copies refer to the same pool, and the last one that goes ends it. */
class pool {
  public:
    /** Empty. */
    pool() noexcept = default;

    /** A new pool. */
    explicit pool(const weir_pool_options &options) { check(weir_pool_create(&options, &handle_)); }

    /** The current pool of a GPU: the process-wide one, unless weir_device_set_pool named another. */
    static pool of_device(int device) {
        weir_pool *current = nullptr;
        check(weir_device_get_pool(device, &current));
        return share(current);
    }

    /** The same for plain host memory. */
    static pool of_host() { return of_device(WEIR_DEVICE_HOST); }

    /** The default pool of page-locked memory for a GPU. */
    static pool of_pinned(int device) {
        weir_pool *pinned = nullptr;
        check(weir_default_pinned_pool(device, &pinned));
        return share(pinned);
    }

    /** A further reference to a pool of the C interface. */
    static pool share(weir_pool *handle) {
        check(weir_pool_retain(handle));
        return adopt(handle);
    }

    /** Takes over the reference that the caller has. nullptr gives an empty one. */
    static pool adopt(weir_pool *handle) noexcept {
        pool taken;
        taken.handle_ = handle;
        return taken;
    }

    pool(const pool &other) noexcept : handle_(other.handle_) {
        if (handle_ != nullptr) {
            // Only of a pool that has ended there is no further reference; then there is none to give back either.
            weir_pool_retain(handle_);
        }
    }
    pool(pool &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    pool &operator=(pool other) noexcept {
        swap(*this, other);
        return *this;
    }
    ~pool() { reset(); }

    friend void swap(pool &a, pool &b) noexcept { std::swap(a.handle_, b.handle_); }

    /** Gives the reference back and leaves this empty. The last one ends the pool: WEIR_ERROR_LIVE_BLOCKS if blocks were
     * still allocated, whose memory is then gone. */
    weir_status reset() noexcept { return weir_pool_release(std::exchange(handle_, nullptr)); }

    /** The handle, still owned by this object. */
    weir_pool *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }

    /** Do both refer to one pool? */
    friend bool operator==(const pool &a, const pool &b) noexcept { return a.handle_ == b.handle_; }
    friend bool operator!=(const pool &a, const pool &b) noexcept { return !(a == b); }

    /** A block for use on `stream`, aligned to `alignment` bytes (0: 256). 0 bytes give a pointer of their own.
     * Throws OutOfMemory (check_alloc) if there is no memory. */
    template <class OutOfMemory = bad_alloc>
    void *allocate(std::size_t bytes, weir_stream stream = nullptr, std::size_t alignment = 0) {
        void *block = nullptr;
        check_alloc<OutOfMemory>(weir_pool_alloc_aligned(handle_, bytes, alignment, stream, &block));
        return block;
    }

    /** Frees a block in the order of `stream`. */
    weir_status deallocate(void *block, weir_stream stream = nullptr) noexcept {
        return weir_pool_free(handle_, block, stream);
    }

    /** Frees a block all use of which is over. */
    weir_status deallocate_synced(void *block) noexcept { return weir_pool_free_synced(handle_, block); }

    /** The block is also used on `stream`: once freed, it also waits for the work queued there until then. */
    void record_stream(void *block, weir_stream stream) { check(weir_pool_record_stream(handle_, block, stream)); }

    /** A weir_memory. */
    weir_memory memory() const { return static_cast<weir_memory>(where().first); }
    /** The GPU's ordinal, or WEIR_DEVICE_HOST. */
    int device() const { return where().second; }

    weir_pool_stats stats() const {
        weir_pool_stats stats;
        stats.struct_size = sizeof stats;
        check(weir_pool_get_stats(handle_, &stats));
        return stats;
    }
    void reset_peaks() { check(weir_pool_reset_peaks(handle_)); }

    /** Gives free memory back until the pool holds at most so many bytes; waits for no work. */
    void trim(std::size_t min_bytes_to_keep) { check(weir_pool_trim(handle_, min_bytes_to_keep)); }

    /** Gives back all that is free, after the work that still uses it. Returns the number of bytes. */
    std::size_t squeeze() {
        std::size_t released = 0;
        check(weir_pool_squeeze(handle_, &released));
        return released;
    }

    std::uint64_t attribute(weir_attribute attribute) const {
        std::uint64_t value = 0;
        check(weir_pool_get_attribute(handle_, attribute, &value));
        return value;
    }
    void set_attribute(weir_attribute attribute, std::uint64_t value) {
        check(weir_pool_set_attribute(handle_, attribute, value));
    }

  private:
    std::pair<std::int32_t, int> where() const {
        std::pair<std::int32_t, int> found;
        check(weir_pool_get_memory(handle_, &found.first, &found.second));
        return found;
    }

    weir_pool *handle_ = nullptr;
};

/** Frees blocks of a pool on a stream, for std::unique_ptr. Keeps the pool. */
class deleter {
  public:
    deleter() noexcept = default;
    explicit deleter(pool from, weir_stream stream = nullptr) noexcept : pool_(std::move(from)), stream_(stream) {}
    /** Moving copies: a std::unique_ptr that was moved from may be given another block, and frees it with the deleter it still has. */
    deleter(const deleter &) noexcept = default;
    deleter &operator=(const deleter &) noexcept = default;
    void operator()(const void *block) noexcept { pool_.deallocate(const_cast<void *>(block), stream_); }

    /** Where blocks will be freed. The program has ordered this stream behind the work on the one before. */
    void set_stream(weir_stream stream) noexcept { stream_ = stream; }
    weir_stream stream() const noexcept { return stream_; }
    const pool &get_pool() const noexcept { return pool_; }

  private:
    pool pool_;
    weir_stream stream_ = nullptr;
};

/** A block in which nothing is constructed. */
template <class T>
using unique_array = std::unique_ptr<T[], deleter>;

/** Room for `count` values of T, none of them constructed. Throws weir::bad_alloc if there is no memory. */
template <class T>
unique_array<T> make_array(pool from, std::size_t count, weir_stream stream = nullptr) {
    static_assert(std::is_trivially_destructible_v<T>, "nobody would call these destructors");
    const std::size_t most = static_cast<std::size_t>(-1) / sizeof(T);
    const std::size_t alignment = alignof(T) > 256 ? alignof(T) : 0;
    // a product that would overflow is more than there can be
    void *block = from.allocate(count > most ? static_cast<std::size_t>(-1) : count * sizeof(T), stream, alignment);
    return unique_array<T>(static_cast<T *>(block), deleter(std::move(from), stream));
}

/** Owns one block, and remembers its pool, size and stream: there it is freed. It can be moved; an empty one, such as one
 * moved from, has no block and size 0. */
class buffer {
  public:
    buffer() noexcept = default;

    /** Throws weir::bad_alloc if there is no memory. 0 bytes are a block of size 0. */
    buffer(pool from, std::size_t bytes, weir_stream stream = nullptr, std::size_t alignment = 0)
        : pool_(std::move(from)), block_(pool_.allocate(bytes, stream, alignment)), bytes_(bytes), stream_(stream) {}

    buffer(buffer &&other) noexcept { swap(*this, other); }
    buffer &operator=(buffer &&other) noexcept {
        buffer taken(std::move(other));
        swap(*this, taken);
        return *this;
    }
    ~buffer() { reset(); }

    friend void swap(buffer &a, buffer &b) noexcept {
        swap(a.pool_, b.pool_);
        std::swap(a.block_, b.block_);
        std::swap(a.bytes_, b.bytes_);
        std::swap(a.stream_, b.stream_);
    }

    void *data() const noexcept { return block_; }
    template <class T>
    T *as() const noexcept {
        return static_cast<T *>(block_);
    }
    std::size_t size() const noexcept { return bytes_; }
    weir_stream stream() const noexcept { return stream_; }
    const pool &get_pool() const noexcept { return pool_; }
    explicit operator bool() const noexcept { return block_ != nullptr; }

    /** From now on the block belongs to `stream`. The program has ordered it behind the work on the one before. */
    void set_stream(weir_stream stream) noexcept { stream_ = stream; }

    /** The block is also used on `stream`. */
    void record_stream(weir_stream stream) { pool_.record_stream(block_, stream); }

    /** Frees the block on its stream and leaves this empty. */
    weir_status reset() noexcept {
        const weir_status status = block_ == nullptr ? WEIR_OK : pool_.deallocate(block_, stream_);
        release();
        return status;
    }

    /** Gives the block away: the caller frees it. Leaves this empty. Whoever has no other reference to the pool takes one from
     * get_pool() before, since the last one ends the pool, and its blocks with it. */
    void *release() noexcept {
        pool_.reset();
        bytes_ = 0;
        stream_ = nullptr;
        return std::exchange(block_, nullptr);
    }

  private:
    pool pool_;
    void *block_ = nullptr;
    std::size_t bytes_ = 0;
    weir_stream stream_ = nullptr;
};

} // namespace weir

#endif
