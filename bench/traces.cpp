// Recorded traces: replayed cold and warm, and with as little memory as they can do with.
#include "measure.h"
#include "trace.h"
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace {

// The trace's stream 0 is the default stream, the others are created.
class Streams {
public:
    Streams(Adaptor &adaptor, uint16_t count) : adaptor_(adaptor), all_(count) {
        for (uint16_t i = 1; i < count; i++) {
            all_[i] = adaptor.stream_create();
        }
    }
    ~Streams() {
        for (size_t i = 1; i < all_.size(); i++) {
            adaptor_.stream_destroy(all_[i]);
        }
    }
    Streams(const Streams &) = delete;
    Stream operator[](size_t number) const { return all_[number]; }

private:
    Adaptor &adaptor_;
    std::vector<Stream> all_;
};

// A thread that does what it is given, while its giver waits.
class Hand {
public:
    explicit Hand(Adaptor &adaptor)
        : thread_([this, &adaptor] {
              adaptor.thread_begin();
              while (std::function<void()> work = next()) {
                  work();
                  give(nullptr);
              }
          }) {}
    ~Hand() {
        ended_ = true;
        give([] {});
        thread_.join();
    }
    Hand(const Hand &) = delete;

    void run(std::function<void()> work) {
        give(std::move(work));
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return work_ == nullptr; });
    }

private:
    void give(std::function<void()> work) {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = std::move(work);
        changed_.notify_all();
    }
    std::function<void()> next() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return work_ != nullptr; });
        return ended_ ? nullptr : work_;
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> work_;
    std::atomic<bool> ended_{false};
    std::thread thread_; // last: it uses the others
};

class Replay {
public:
    Replay(const Measure &measure, const Trace &trace)
        : measure_(measure), adaptor_(measure.adaptor), trace_(trace), streams_(measure.adaptor, trace.streams),
          blocks_(trace.blocks) {}

    // Nanoseconds for all events, or less than 0 if a request failed. Nothing stays allocated. The second half of them is another
    // thread's, if there is one, as a backward pass is.
    double run(Hand *other = nullptr) {
        bool served = true;
        size_t half = trace_.events.size() / 2;
        double nanos = measure_.timed(1, [&] {
            served = play(0, half);
            auto rest = [&] { served = served && play(half, trace_.events.size()); };
            other != nullptr ? other->run(rest) : rest();
        });
        empty();
        return served ? nanos : -1;
    }

    // Nanoseconds of each event, in no order; empty if a request failed.
    std::vector<double> run_each() {
        std::vector<uint64_t> ticks;
        ticks.reserve(trace_.events.size());
        bool served = true;
        for (size_t i = 0; i < trace_.events.size() && served; i++) {
            uint64_t start = Clock::begin();
            served = step(trace_.events[i]);
            ticks.push_back(measure_.clock.between(start, Clock::end()));
        }
        empty();
        std::vector<double> nanos;
        for (size_t i = 0; i < ticks.size() && served; i++) {
            nanos.push_back(measure_.clock.nanos(ticks[i]));
        }
        return nanos;
    }

private:
    bool play(size_t from, size_t to) {
        bool served = true;
        for (size_t i = from; i < to && served; i++) {
            served = step(trace_.events[i]);
        }
        return served;
    }

    bool step(const TraceEvent &event) {
        void *&block = blocks_[event.id];
        if (event.alloc) {
            block = adaptor_.alloc(event.bytes, streams_[event.stream]);
            return block != nullptr;
        }
        adaptor_.free(block, event.bytes, streams_[event.stream]);
        block = nullptr;
        return true;
    }

    // What the trace leaves live, or a failure did.
    void empty() {
        for (const TraceEvent &event : trace_.events) {
            void *&block = blocks_[event.id];
            if (event.alloc && block != nullptr) {
                adaptor_.free(block, event.bytes, streams_[event.stream]);
                block = nullptr;
            }
        }
        adaptor_.synchronize();
    }

    const Measure &measure_;
    Adaptor &adaptor_;
    const Trace &trace_;
    Streams streams_;
    std::vector<void *> blocks_;
};

constexpr size_t REPLAYS = 5;

// What one allocator, from empty to its end, gave: by metric.
struct Life {
    double nanos[REPLAYS], calls[REPLAYS], p50, p99, longest, seventh, ratio;
    bool served = true, counted = true;
};

Life live(const Measure &measure, const Trace &trace, Replay &replay) {
    Adaptor &adaptor = measure.adaptor;
    Life life = {};
    uint64_t before = 0, now = 0;
    adaptor.driver_calls(before);
    for (size_t i = 0; i < REPLAYS && life.served; i++) {
        life.nanos[i] = replay.run();
        life.served = life.nanos[i] >= 0;
        life.counted = adaptor.driver_calls(now);
        life.calls[i] = static_cast<double>(now - before);
        before = now;
    }
    life.ratio = static_cast<double>(adaptor.reserved_peak()) / static_cast<double>(trace.peak_live);
    std::vector<double> each = life.served ? replay.run_each() : std::vector<double>();
    life.served = !each.empty();
    if (life.served) {
        std::sort(each.begin(), each.end());
        life.p50 = each[each.size() / 2];
        life.p99 = each[each.size() * 99 / 100];
        life.longest = each.back();
        life.seventh = replay.run();
        life.served = life.seventh >= 0;
    }
    return life;
}

void replayed(const Measure &measure, const Trace &trace) {
    Replay replay(measure, trace);
    std::vector<Life> lives;
    bool served = true;
    measure.repeat_alone(false, [&] {
        if (served && (served = measure.adaptor.begin(0))) {
            lives.push_back(live(measure, trace, replay));
            measure.adaptor.end();
            served = lives.back().served;
        }
        return 0.0;
    });
    if (!served) {
        measure.report.add("trace", trace.name, "failed", "replays", {1});
        return;
    }
    auto add = [&](const std::string &metric, const char *unit, auto figure) {
        std::vector<double> figures;
        for (const Life &life : lives) {
            figures.push_back(figure(life));
        }
        measure.report.add("trace", trace.name, metric, unit, figures);
    };
    double events = static_cast<double>(trace.events.size());
    add("cold, total", "ms", [&](const Life &life) { return life.nanos[0] / 1e6; });
    add("second replay", "ns/event", [&](const Life &life) { return life.nanos[1] / events; });
    add("warm", "ns/event", [&](const Life &life) { return life.nanos[REPLAYS - 1] / events; });
    add("seventh replay", "ns/event", [&](const Life &life) { return life.seventh / events; });
    add("warm, p50", "ns", [](const Life &life) { return life.p50; });
    add("warm, p99", "ns", [](const Life &life) { return life.p99; });
    add("warm, longest", "ns", [](const Life &life) { return life.longest; });
    for (size_t i = 0; i < REPLAYS && lives[0].counted; i++) {
        add("driver calls " + std::to_string(i + 1), "calls", [&](const Life &life) { return life.calls[i]; });
    }
    if (lives[0].ratio > 0) {
        add("reserved / live", "x", [](const Life &life) { return life.ratio; });
    }
}

constexpr int TURNS = 10;

// A trace whose halves are two threads' in turn.
void replayed_in_turn(const Measure &measure, const Trace &trace) {
    Replay replay(measure, trace);
    std::vector<double> times, calls;
    bool served = true, counted = true;
    measure.repeat_alone(false, [&] {
        if (!served || !(served = measure.adaptor.begin(0))) {
            return 0.0;
        }
        {
            Hand other(measure.adaptor);
            uint64_t before = 0, now = 0;
            double nanos = 0;
            for (int i = 0; i < TURNS && served; i++) {
                counted = measure.adaptor.driver_calls(before);
                nanos = replay.run(&other);
                served = nanos >= 0;
            }
            measure.adaptor.driver_calls(now);
            times.push_back(nanos / static_cast<double>(trace.events.size()));
            calls.push_back(static_cast<double>(now - before));
        }
        measure.adaptor.end();
        return 0.0;
    });
    if (!served) {
        measure.report.add("turns", trace.name, "failed", "replays", {1});
        return;
    }
    measure.report.add("turns", trace.name, "tenth replay", "ns/event", times);
    if (counted) {
        measure.report.add("turns", trace.name, "driver calls 10", "calls", calls);
    }
}

constexpr double CAPACITIES[] = {1.00, 1.005, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.17, 1.25,
                                 1.35, 1.50,  1.75, 2.00, 2.50, 3.00, 4.00, 6.00, 8.00};

// The place in CAPACITIES of the first, from `from` on, at which so many replays of one allocator complete.
size_t least(const Measure &measure, const Trace &trace, Replay &replay, size_t from, int replays, double &nanos) {
    for (; from < std::size(CAPACITIES); from++) {
        if (!measure.adaptor.begin(static_cast<size_t>(static_cast<double>(trace.peak_live) * CAPACITIES[from]))) {
            continue;
        }
        bool served = true;
        for (int i = 0; i < replays && served; i++) {
            nanos = replay.run();
            served = nanos >= 0;
        }
        measure.adaptor.end();
        if (served) {
            break;
        }
    }
    return from;
}

void fitted(const Measure &measure, const Trace &trace) {
    Replay replay(measure, trace);
    size_t place = 0;
    for (int replays : {1, 3}) {
        std::string metric = replays == 1 ? "least capacity" : "least, 3 replays";
        double nanos = 0;
        place = least(measure, trace, replay, place, replays, nanos);
        if (place == std::size(CAPACITIES)) {
            measure.report.add("fit", trace.name, metric + " above", "x", {CAPACITIES[place - 1]});
            return;
        }
        measure.report.add("fit", trace.name, metric, "x", {CAPACITIES[place]});
        measure.report.add("fit", trace.name, metric + ", time", "ns/event",
                           {nanos / static_cast<double>(trace.events.size())});
    }
}

} // namespace

void replay(const Measure &measure) {
    for (const std::string &path : measure.traces) {
        replayed(measure, Trace(path));
    }
}

void turns(const Measure &measure) {
    for (const std::string &path : measure.traces) {
        replayed_in_turn(measure, Trace(path));
    }
}

void fit(const Measure &measure) {
    for (const std::string &path : measure.traces) {
        if (measure.adaptor.keeps_limit()) {
            fitted(measure, Trace(path));
        }
    }
}
