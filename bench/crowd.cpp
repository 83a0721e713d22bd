// Threads that each make rounds of their own, the same calls again and again on a stream of its own, at the same time: what a
// request costs in the first rounds and in the last ones, what is held, and which calls of the driver are left.
#include "measure.h"
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

namespace {

constexpr size_t KiB = 1 << 10, MiB = 1 << 20;
constexpr size_t BLOCKS = 40; // of a round

struct Step {
    bool alloc;
    size_t block, bytes;
};

// A thread's round, and the most that it needs.
struct Part {
    std::vector<Step> steps;
    size_t most = 0;
};

// Blocks of 4 KiB to 256 MiB, six to eleven at a time.
Part draw(Random &random) {
    Part part;
    std::vector<size_t> sizes = log_uniform(random, 4 * KiB, 256 * MiB, BLOCKS), live;
    size_t bytes = 0;
    auto drop = [&](size_t place) {
        size_t block = std::exchange(live[place], live.back());
        live.pop_back();
        part.steps.push_back({false, block, sizes[block]});
        bytes -= sizes[block];
    };
    for (size_t block = 0; block < BLOCKS; block++) {
        part.steps.push_back({true, block, sizes[block]});
        live.push_back(block);
        bytes += sizes[block];
        part.most = std::max(part.most, bytes);
        while (live.size() > 6 + random() % 6) {
            drop(random() % live.size());
        }
    }
    while (!live.empty()) {
        drop(live.size() - 1);
    }
    return part;
}

// A round, and a wait for the stream. false: a request failed; nothing stays allocated.
bool play(Adaptor &adaptor, const Part &part, Stream stream, bool writes) {
    std::vector<void *> blocks(BLOCKS);
    bool served = true;
    for (const Step &step : part.steps) {
        void *&at = blocks[step.block];
        if (!step.alloc) {
            if (at != nullptr) {
                adaptor.free(at, step.bytes, stream);
            }
            continue;
        }
        at = served ? adaptor.alloc(step.bytes, stream) : nullptr;
        served = at != nullptr && served;
        if (writes && at != nullptr) {
            adaptor.write(at, step.bytes, stream);
        }
    }
    adaptor.finish(stream);
    return served;
}

struct Life {
    double first, last, ratio, calls, page_calls;
    bool served = true, counted = true;
};

Life live(const Measure &measure, const std::vector<Part> &parts, const std::vector<Stream> &streams) {
    Adaptor &adaptor = measure.adaptor;
    Life life = {};
    std::atomic<size_t> turn{0}, over{0};
    std::atomic<bool> served{true};
    std::vector<std::thread> threads;
    // the first rounds of each thread, those between, and the last ones: all begin them at the same time
    constexpr size_t TURNS = 3;
    const size_t last = measure.quick ? 2 : 20, lengths[TURNS] = {last, 8 * last, last};
    for (size_t k = 0; k < parts.size(); k++) {
        threads.emplace_back([&, k] {
            adaptor.thread_begin();
            for (size_t number = 0; number < TURNS; number++) {
                while (turn.load(std::memory_order_acquire) <= number) {
                    std::this_thread::yield();
                }
                for (size_t i = 0; i < lengths[number]; i++) {
                    if (!play(adaptor, parts[k], streams[k], adaptor.has_work())) {
                        served = false;
                    }
                }
                over.fetch_add(1, std::memory_order_release);
            }
            // a thread that ends is a change, which the last rounds of the others are to have nothing of
            while (turn.load(std::memory_order_acquire) <= TURNS) {
                std::this_thread::yield();
            }
        });
    }
    uint64_t calls[TURNS + 1] = {}, pages[TURNS + 1] = {};
    double times[TURNS];
    for (size_t number = 0; number < TURNS; number++) {
        times[number] = measure.timed(lengths[number] * parts.size() * BLOCKS, [&] {
            turn.store(number + 1, std::memory_order_release);
            while (over.load(std::memory_order_acquire) < (number + 1) * parts.size()) {
                std::this_thread::yield();
            }
        });
        life.counted = adaptor.driver_calls(calls[number + 1]) && adaptor.page_calls(pages[number + 1]);
    }
    turn.store(TURNS + 1, std::memory_order_release);
    for (std::thread &thread : threads) {
        thread.join();
    }
    size_t apart = 0;
    for (const Part &part : parts) {
        apart += part.most;
    }
    auto rounds = static_cast<double>(last);
    life.first = times[0];
    life.last = times[TURNS - 1];
    life.calls = static_cast<double>(calls[TURNS] - calls[TURNS - 1]) / rounds;
    life.page_calls = static_cast<double>(pages[TURNS] - pages[TURNS - 1]) / rounds;
    life.ratio = static_cast<double>(adaptor.reserved_peak()) / static_cast<double>(apart);
    life.served = served;
    return life;
}

} // namespace

void crowd(const Measure &measure) {
    for (size_t count : {2, 4, 8}) {
        std::string which = std::to_string(count) + " threads";
        std::vector<Life> lives;
        bool served = true;
        std::vector<Stream> streams;
        for (size_t k = 0; k < count; k++) {
            streams.push_back(measure.adaptor.stream_create());
        }
        measure.repeat(false, [&] {
            Random random(lives.size() + 1); // each life draws its own
            std::vector<Part> parts;
            for (size_t k = 0; k < count; k++) {
                parts.push_back(draw(random));
            }
            if (served && (served = measure.adaptor.begin(0))) {
                lives.push_back(live(measure, parts, streams));
                measure.adaptor.synchronize();
                measure.adaptor.end();
                served = lives.back().served;
            }
            return 0.0;
        });
        for (Stream stream : streams) {
            measure.adaptor.stream_destroy(stream);
        }
        if (!served) {
            measure.report.add("crowd", which, "failed", "lives", {1});
            continue;
        }
        auto add = [&](const char *metric, const char *unit, double Life::*figure) {
            std::vector<double> figures;
            for (const Life &life : lives) {
                figures.push_back(life.*figure);
            }
            measure.report.add("crowd", which, metric, unit, figures);
        };
        add("first rounds", "ns/pair", &Life::first);
        add("last rounds", "ns/pair", &Life::last);
        if (lives[0].ratio > 0) {
            add("reserved / apart", "x", &Life::ratio);
        }
        if (lives[0].counted) {
            add("driver calls, a round", "calls", &Life::calls);
            add("page calls, a round", "calls", &Life::page_calls);
        }
    }
}
