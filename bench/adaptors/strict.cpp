// Does what an allocator must, and holds the bench to what an allocator may rely on: a block is freed once, with its
// size, on the stream of its allocation or on one that has waited for it, and before the end. It keeps to its limit
// exactly. For the bench's own test; whatever is wrong ends the program with status 3.
#include "../adaptor.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

namespace {

[[noreturn]] void wrong(const char *what) {
    fprintf(stderr, "strict: %s\n", what);
    _Exit(3);
}

// How many allocations of each stream something comes after.
using Order = std::map<Stream, uint64_t>;

struct Block {
    size_t bytes;
    Stream stream;
    uint64_t number; // among the allocations of its stream
};

class Strict final : public Adaptor {
public:
    const char *name() const override { return "strict"; }
    bool begin(size_t limit) override {
        check(!begun_, "begun twice");
        begun_ = true;
        limit_ = limit;
        live_ = peak_ = calls_ = 0;
        return true;
    }
    void end() override {
        check(begun_, "ended without a beginning");
        check(blocks_.empty(), "a block is still live at the end");
        begun_ = false;
    }

    void *alloc(size_t bytes, Stream stream) override {
        std::lock_guard<std::mutex> guard(lock_);
        check(begun_, "allocated from an allocator that has ended");
        return take(bytes, stream);
    }
    void free(void *block, size_t bytes, Stream stream) override {
        std::lock_guard<std::mutex> guard(lock_);
        check(find(block, bytes).stream == stream, "freed on another stream, and not told so");
        drop(block);
    }
    void free_elsewhere(void *block, size_t bytes, Stream allocated_on, Stream stream) override {
        std::lock_guard<std::mutex> guard(lock_);
        const Block &found = find(block, bytes);
        check(found.stream == allocated_on && allocated_on != stream, "not the streams of this block");
        check(streams_[stream][allocated_on] >= found.number, "freed on a stream that has not waited for it");
        drop(block);
    }

    bool has_batches() const override { return true; }
    bool alloc_batch(const size_t *sizes, size_t count, Stream stream, void **blocks) override {
        std::lock_guard<std::mutex> guard(lock_);
        for (size_t i = 0; i < count; i++) {
            blocks[i] = take(sizes[i], stream);
            check(blocks[i] != nullptr, "a batch under a limit");
        }
        return true;
    }
    void free_batch(void *const *blocks, size_t count, Stream stream) override {
        std::lock_guard<std::mutex> guard(lock_);
        for (size_t i = 0; i < count; i++) {
            check(blocks_.count(blocks[i]) != 0 && blocks_[blocks[i]].stream == stream, "not a block of this stream");
            drop(blocks[i]);
        }
    }

    bool stream_ordered() const override { return true; }
    bool keeps_limit() const override { return true; }
    size_t reserved_peak() override { return peak_; }
    bool driver_calls(uint64_t &calls) override {
        calls = calls_;
        return true;
    }

    Stream stream_create() override {
        std::lock_guard<std::mutex> guard(lock_);
        streams_[++names_] = {};
        return names_;
    }
    void stream_destroy(Stream stream) override {
        check(streams_.erase(static_cast<char *>(stream)) == 1, "a stream that does not exist was destroyed");
    }
    Event event_create() override {
        events_[++names_] = {};
        return names_;
    }
    void event_destroy(Event event) override {
        check(events_.erase(static_cast<char *>(event)) == 1, "an event that does not exist was destroyed");
    }
    void record(Event event, Stream stream) override {
        std::lock_guard<std::mutex> guard(lock_);
        check(events_.count(event) == 1 && streams_.count(stream) == 1, "recorded what does not exist");
        events_[event] = streams_[stream];
    }
    void wait(Stream stream, Event event) override {
        std::lock_guard<std::mutex> guard(lock_);
        check(events_.count(event) == 1 && streams_.count(stream) == 1, "waited for what does not exist");
        for (auto [other, number] : events_[event]) {
            uint64_t &known = streams_[stream][other];
            known = std::max(known, number);
        }
    }
    void finish(Stream stream) override {
        std::lock_guard<std::mutex> guard(lock_);
        check(streams_.count(stream) == 1, "waited for a stream that does not exist");
    }
    void synchronize() override {}

private:
    static void check(bool right, const char *what) {
        if (!right) {
            wrong(what);
        }
    }
    void *take(size_t bytes, Stream stream) {
        check(stream == nullptr || streams_.count(stream) == 1, "allocated on a stream that does not exist");
        if (limit_ != 0 && live_ + bytes > limit_) {
            return nullptr;
        }
        live_ += bytes;
        if (live_ > peak_) {
            peak_ = live_;
            calls_++; // it grew
        }
        blocks_[++names_] = {bytes, stream, ++streams_[stream][stream]};
        return names_;
    }
    const Block &find(void *block, size_t bytes) {
        auto found = blocks_.find(block);
        check(found != blocks_.end(), "freed what is not live");
        check(found->second.bytes == bytes, "freed with another size");
        return found->second;
    }
    void drop(void *block) {
        live_ -= blocks_[block].bytes;
        blocks_.erase(block);
    }

    std::mutex lock_;
    bool begun_ = false;
    size_t limit_ = 0, live_ = 0, peak_ = 0;
    uint64_t calls_ = 0;
    char *names_ = reinterpret_cast<char *>(0x1000); // of blocks, streams and events
    std::unordered_map<void *, Block> blocks_;
    std::map<Stream, Order> streams_; // nullptr, the default stream, comes by itself
    std::map<Event, Order> events_;
};

} // namespace

Adaptor *bench_adaptor() {
    static Strict adaptor;
    return &adaptor;
}
