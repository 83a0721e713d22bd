// What every scenario is given, and how rounds are counted.
#pragma once
#include "adaptor.h"
#include "clock.h"
#include "quiet.h"
#include "report.h"
#include <cmath>
#include <random>
#include <string>
#include <vector>

struct Measure {
    Adaptor &adaptor;
    Report &report;
    const Clock &clock;
    int rounds;     // each scenario, after one that is not counted
    double seconds; // of one scenario; when they are over no further round begins
    bool quick;
    std::vector<std::string> traces;

    // `work` does one round and tells what it measured; once more beforehand, to warm up, if `warm`. There are more rounds than
    // `rounds` if `least` seconds are not over.
    template <class Work> std::vector<double> repeat(bool warm, Work work, double least = 0) const {
        std::vector<double> figures;
        uint64_t start = Clock::begin();
        auto is_within = [&](double most) { return clock.nanos(Clock::end() - start) < most * 1e9; };
        if (warm) {
            work();
        }
        do {
            figures.push_back(work());
        } while (is_within(least) || (static_cast<int>(figures.size()) < rounds && is_within(seconds)));
        return figures;
    }

    // The same where this thread is the only one at work. A neighbour may come to its core and stay for longer than a few rounds of
    // milliseconds, so of these there are more.
    template <class Work> std::vector<double> repeat_alone(bool warm, Work work) const {
        auto placed = [&] {
            move_to_quiet_core();
            return work();
        };
        return repeat(warm, placed, quick ? 0 : seconds / 10);
    }

    // Nanoseconds that `work` takes, over `count`.
    template <class Work> double timed(size_t count, Work work) const {
        uint64_t start = Clock::begin();
        work();
        return clock.nanos(Clock::end() - start) / static_cast<double>(count);
    }

    // A time that some requests were refused in says little about those that were served, so it is told with them.
    void refused(const std::string &scenario, const std::string &which, size_t failed, size_t of) const {
        if (failed != 0) {
            report.add(scenario, which, "failed", "%", {100.0 * static_cast<double>(failed) / static_cast<double>(of)});
        }
    }
};

using Random = std::mt19937_64;

// `count` sizes, log-uniform from `low` to `high`.
inline std::vector<size_t> log_uniform(Random &random, size_t low, size_t high, size_t count) {
    std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(low)),
                                                    std::log(static_cast<double>(high)));
    std::vector<size_t> sizes(count);
    for (size_t &size : sizes) {
        size = static_cast<size_t>(std::exp(exponent(random)));
    }
    return sizes;
}

// The scenarios; README.md says what each does.
void same_size(const Measure &measure);
void immediate_reuse(const Measure &measure);
void varying(const Measure &measure);
void transformer(const Measure &measure);
void pressure(const Measure &measure);
void batch(const Measure &measure);
void threads(const Measure &measure);
void large_threads(const Measure &measure);
void pairs(const Measure &measure);
void replay(const Measure &measure);
void turns(const Measure &measure);
void fit(const Measure &measure);
void rounds(const Measure &measure);
void busy(const Measure &measure);
void crowd(const Measure &measure);
