// What an allocator is to the bench. Each is a shared object of its own, opened with dlopen, so that no allocator is
// linked into the bench or meets another; it exports `bench_adaptor`.
//
// Threads: alloc, free, the batches, write, record, wait and finish are called from any thread, after thread_begin on that thread;
// everything else from the main thread alone, while no other uses the adaptor.
#pragma once
#include <cstddef>
#include <cstdint>

using Stream = void *; // nullptr is the default stream
using Event = void *;

class Adaptor {
public:
    virtual ~Adaptor() = default;
    virtual const char *name() const = 0;

    // Called once, before all else. nullptr, or why the allocator cannot be used here.
    virtual const char *open() { return nullptr; }
    // The device and the versions of what is measured, for the record.
    virtual const char *describe() { return ""; }

    // Begins with an empty allocator that may hold at most `limit` bytes (0: no limit). false: it cannot.
    virtual bool begin(size_t limit) = 0;
    // Ends what begin began. Every block was freed before.
    virtual void end() = 0;
    virtual void thread_begin() {}

    // nullptr: out of memory.
    virtual void *alloc(size_t bytes, Stream stream) = 0;
    // On the stream of the allocation.
    virtual void free(void *block, size_t bytes, Stream stream) = 0;
    // On another stream, which used the block and waited for an event recorded on `allocated_on` after the allocation.
    virtual void free_elsewhere(void *block, size_t bytes, Stream allocated_on, Stream stream) {
        (void)allocated_on;
        free(block, bytes, stream);
    }

    // All of them, or none and false.
    virtual bool has_batches() const { return false; }
    virtual bool alloc_batch(const size_t *, size_t, Stream, void **) { return false; }
    virtual void free_batch(void *const *, size_t, Stream) {}

    // Whether a stream's memory reaches another stream only in order, and whether begin keeps to a limit.
    virtual bool stream_ordered() const = 0;
    virtual bool keeps_limit() const = 0;
    // Bytes held at most since begin; 0: not known.
    virtual size_t reserved_peak() { return 0; }
    // Calls of the driver since begin. false: not known.
    virtual bool driver_calls(uint64_t &) { return false; }
    // Those of them that make, map, unmap or release pages.
    virtual bool page_calls(uint64_t &) { return false; }

    // Can work be queued on its streams? Then `write` queues some that writes the block.
    virtual bool has_work() const { return false; }
    virtual void write(void *, size_t, Stream) {}

    virtual Stream stream_create() = 0;
    virtual void stream_destroy(Stream stream) = 0;
    virtual Event event_create() = 0;
    virtual void event_destroy(Event event) = 0;
    virtual void record(Event event, Stream stream) = 0;
    virtual void wait(Stream stream, Event event) = 0;
    // Waits for the work queued on a stream.
    virtual void finish(Stream stream) = 0;
    // Waits for the work queued on all streams.
    virtual void synchronize() = 0;
};

extern "C" Adaptor *bench_adaptor();
