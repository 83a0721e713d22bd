// Many threads. They run without a pause while the main thread reads how many blocks each has freed, so rounds need
// no barrier: the first is the warm-up.
#include "measure.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace {

constexpr size_t LIVE = 32, DRAWS = 1 << 14;

struct alignas(128) Count {
    std::atomic<uint64_t> value{0};
    void add(uint64_t more) { value.store(value.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
};

struct Range {
    uint32_t least, most;
};
constexpr Range SMALL{256, 256 << 10}, LARGE{256 << 10, 4 << 20};

// Sizes in a range, uniform, and places among the live blocks.
struct Draws {
    Draws(uint64_t seed, Range range) : places(DRAWS), sizes(DRAWS) {
        Random random(seed);
        for (size_t i = 0; i < DRAWS; i++) {
            places[i] = static_cast<uint32_t>(random() % LIVE);
            sizes[i] = static_cast<uint32_t>(range.least + random() % (range.most - range.least + 1));
        }
    }
    std::vector<uint32_t> places, sizes;
};

// Runs `threads`, and reports how many blocks they count a second, in millions.
void rates(const Measure &measure, const char *scenario, const std::string &which,
           const std::vector<std::function<void()>> &work, std::vector<Count> &counts, std::atomic<bool> &stop) {
    std::vector<std::thread> running;
    for (const auto &one : work) {
        running.emplace_back([&] {
            measure.adaptor.thread_begin();
            one();
        });
    }
    auto total = [&] {
        uint64_t sum = 0;
        for (Count &count : counts) {
            sum += count.value.load(std::memory_order_relaxed);
        }
        return sum;
    };
    // A thread that is alone is placed five times as often, in as much time: a neighbour stays for about as long as a round of many.
    bool alone = running.size() == 1;
    double length = measure.quick ? 0.03 : alone ? 0.02 : 0.1;
    auto round = [&] {
        if (alone) {
            move_to_quiet_core(running[0].native_handle());
        }
        uint64_t before = total(), start = Clock::begin();
        std::this_thread::sleep_for(std::chrono::duration<double>(length));
        uint64_t counted = total() - before;
        return static_cast<double>(counted) * 1e3 / measure.clock.nanos(Clock::end() - start);
    };
    double least = alone && !measure.quick ? std::min(0.1 * measure.rounds, measure.seconds) : 0;
    std::vector<double> rounds = measure.repeat(true, round, least);
    stop = true;
    for (std::thread &thread : running) {
        thread.join();
    }
    measure.report.add(scenario, which, "rate", "million pairs/s", rounds);
}

// Random replacement, until stopped.
void churn(Adaptor &adaptor, Stream stream, const Draws &draws, Count &count, std::atomic<size_t> &failed,
           const std::atomic<bool> &stop) {
    std::array<std::pair<void *, size_t>, LIVE> blocks = {};
    size_t refused = 0;
    for (size_t i = 0; !stop.load(std::memory_order_relaxed); i = (i + 1) % DRAWS) {
        auto &[at, bytes] = blocks[draws.places[i]];
        if (at != nullptr) {
            adaptor.free(at, bytes, stream);
        }
        bytes = draws.sizes[i];
        at = adaptor.alloc(bytes, stream);
        refused += at == nullptr;
        count.add(1);
    }
    for (auto &[at, bytes] : blocks) {
        if (at != nullptr) {
            adaptor.free(at, bytes, stream);
        }
    }
    failed += refused;
}

void swept(const Measure &measure, const char *scenario, size_t threads, bool own_streams, Range range) {
    Adaptor &adaptor = measure.adaptor;
    if (!adaptor.begin(0)) {
        return;
    }
    std::vector<Stream> streams(own_streams ? threads : 1);
    for (Stream &stream : streams) {
        stream = adaptor.stream_create();
    }
    std::vector<Count> counts(threads);
    std::atomic<size_t> failed{0};
    std::atomic<bool> stop{false};
    std::vector<std::function<void()>> work;
    for (size_t k = 0; k < threads; k++) {
        work.emplace_back([&, k] {
            churn(adaptor, streams[own_streams ? k : 0], Draws(k, range), counts[k], failed, stop);
        });
    }
    std::string which = std::to_string(threads) + (own_streams ? ", own streams" : ", one stream");
    rates(measure, scenario, which, work, counts, stop);
    size_t all = 0;
    for (Count &count : counts) {
        all += count.value;
    }
    measure.refused(scenario, which, failed, all);
    adaptor.synchronize();
    adaptor.end();
    for (Stream stream : streams) {
        adaptor.stream_destroy(stream);
    }
}

// What a producer hands to a consumer at once.
struct Handful {
    static constexpr size_t SIZE = 16;
    std::array<std::pair<void *, size_t>, SIZE> blocks;
    Event allocated = nullptr;
};

// A ring of handfuls between two threads.
class Ring {
public:
    static constexpr uint32_t SIZE = 8;

    Handful &slot(uint32_t number) { return slots_[number % SIZE]; }
    // Waits until the producer may fill, the consumer may empty, the slot of this number. false: `stop` came first.
    bool may_fill(uint32_t number, const std::atomic<bool> &stop) {
        return until(stop, [&] { return number - emptied_.load(std::memory_order_acquire) < SIZE; });
    }
    bool may_empty(uint32_t number, const std::atomic<bool> &stop) {
        return until(stop, [&] { return number != filled_.load(std::memory_order_acquire); });
    }
    void filled(uint32_t number) { filled_.store(number + 1, std::memory_order_release); }
    void emptied(uint32_t number) { emptied_.store(number + 1, std::memory_order_release); }

private:
    template <class Ready> static bool until(const std::atomic<bool> &stop, Ready ready) {
        for (unsigned tries = 0; !ready(); tries++) {
            if (stop.load(std::memory_order_acquire)) {
                return ready();
            }
            if (tries > 100) {
                std::this_thread::yield();
            }
        }
        return true;
    }

    std::array<Handful, SIZE> slots_;
    alignas(128) std::atomic<uint32_t> filled_{0};
    alignas(128) std::atomic<uint32_t> emptied_{0};
};

// A producer and a consumer.
struct Pair {
    Stream from, to;
    Ring ring;
    std::atomic<bool> finished{false}; // the producer
};

void produce(Adaptor &adaptor, Pair &pair, uint64_t seed, std::atomic<size_t> &failed, const std::atomic<bool> &stop) {
    Draws draws(seed, SMALL);
    size_t next = 0, refused = 0;
    for (uint32_t number = 0; !stop.load(std::memory_order_relaxed); number++) {
        if (!pair.ring.may_fill(number, stop)) {
            break;
        }
        Handful &handful = pair.ring.slot(number);
        for (auto &[at, bytes] : handful.blocks) {
            bytes = draws.sizes[next++ % DRAWS];
            at = adaptor.alloc(bytes, pair.from);
            refused += at == nullptr;
        }
        if (pair.from != pair.to) {
            adaptor.record(handful.allocated, pair.from);
        }
        pair.ring.filled(number);
    }
    failed += refused;
    pair.finished.store(true, std::memory_order_release);
}

void consume(Adaptor &adaptor, Pair &pair, Count &count) {
    for (uint32_t number = 0; pair.ring.may_empty(number, pair.finished); number++) {
        Handful &handful = pair.ring.slot(number);
        if (pair.from != pair.to) {
            adaptor.wait(pair.to, handful.allocated);
        }
        for (auto [at, bytes] : handful.blocks) {
            if (at == nullptr) {
                continue;
            }
            if (pair.from != pair.to) {
                adaptor.free_elsewhere(at, bytes, pair.from, pair.to);
            } else {
                adaptor.free(at, bytes, pair.to);
            }
        }
        pair.ring.emptied(number);
        count.add(Handful::SIZE);
    }
}

void paired(const Measure &measure, size_t number, bool two_streams) {
    Adaptor &adaptor = measure.adaptor;
    if (!adaptor.begin(0)) {
        return;
    }
    std::vector<std::unique_ptr<Pair>> all;
    for (size_t k = 0; k < number; k++) {
        auto pair = std::make_unique<Pair>();
        pair->from = adaptor.stream_create();
        pair->to = two_streams ? adaptor.stream_create() : pair->from;
        for (uint32_t slot = 0; two_streams && slot < Ring::SIZE; slot++) {
            pair->ring.slot(slot).allocated = adaptor.event_create();
        }
        all.push_back(std::move(pair));
    }
    std::vector<Count> counts(number);
    std::atomic<size_t> failed{0};
    std::atomic<bool> stop{false};
    std::vector<std::function<void()>> work;
    for (size_t k = 0; k < number; k++) {
        work.emplace_back([&, k] { produce(adaptor, *all[k], k, failed, stop); });
        work.emplace_back([&, k] { consume(adaptor, *all[k], counts[k]); });
    }
    std::string which = std::to_string(number) + (two_streams ? ", two streams" : ", one stream");
    rates(measure, "producer-consumer", which, work, counts, stop);
    size_t handed = 0;
    for (Count &count : counts) {
        handed += count.value;
    }
    measure.refused("producer-consumer", which, failed, handed);
    adaptor.synchronize();
    adaptor.end();
    for (auto &pair : all) {
        for (uint32_t slot = 0; two_streams && slot < Ring::SIZE; slot++) {
            adaptor.event_destroy(pair->ring.slot(slot).allocated);
        }
        if (two_streams) {
            adaptor.stream_destroy(pair->to);
        }
        adaptor.stream_destroy(pair->from);
    }
}

} // namespace

void threads(const Measure &measure) {
    for (bool own_streams : {true, false}) {
        for (size_t count : {1, 2, 4, 8, 16}) {
            if (own_streams || count == 16) {
                swept(measure, "threads", count, own_streams, SMALL);
            }
        }
    }
}

void large_threads(const Measure &measure) {
    for (size_t count : {1, 2, 4, 8, 16}) {
        swept(measure, "large-threads", count, true, LARGE);
    }
}

// Two streams only where a stream means something.
void pairs(const Measure &measure) {
    for (bool two_streams : {false, true}) {
        for (size_t count : {1, 4, 8}) {
            if (!two_streams || measure.adaptor.stream_ordered()) {
                paired(measure, count, two_streams);
            }
        }
    }
}
