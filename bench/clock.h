// Time, by the processor's own counter: cheap enough to stand around a call of a few nanoseconds.
//
// begin and end keep the measured instructions between them (Intel's "How to Benchmark Code Execution Times", G.
// Paoloni, 2010). What a begin and an end with nothing between them take is measured at the start, as `cost`;
// `between` takes it off.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

class Clock {
public:
    Clock() {
        using std::chrono::steady_clock;
        auto start = steady_clock::now();
        uint64_t first = begin();
        while (steady_clock::now() - start < std::chrono::milliseconds(50)) {
        }
        uint64_t last = end();
        std::chrono::duration<double, std::nano> took = steady_clock::now() - start;
        nanos_per_tick_ = took.count() / static_cast<double>(last - first);

        std::vector<uint64_t> empty(100001);
        for (uint64_t &ticks : empty) {
            uint64_t from = begin();
            ticks = end() - from;
        }
        std::nth_element(empty.begin(), empty.begin() + 50000, empty.end());
        cost_ = empty[50000];
    }

#if defined(__x86_64__)
    static uint64_t begin() {
        _mm_lfence();
        uint64_t ticks = __rdtsc();
        _mm_lfence();
        return ticks;
    }
    static uint64_t end() {
        unsigned processor;
        uint64_t ticks = __rdtscp(&processor);
        _mm_lfence();
        return ticks;
    }
#elif defined(__aarch64__)
    static uint64_t begin() {
        uint64_t ticks;
        asm volatile("isb; mrs %0, cntvct_el0; isb" : "=r"(ticks)::"memory");
        return ticks;
    }
    static uint64_t end() { return begin(); }
#endif

    double nanos(uint64_t ticks) const { return static_cast<double>(ticks) * nanos_per_tick_; }
    uint64_t ticks(double nanos) const { return static_cast<uint64_t>(nanos / nanos_per_tick_); }
    uint64_t between(uint64_t from, uint64_t to) const { return to - from > cost_ ? to - from - cost_ : 0; }
    double cost() const { return nanos(cost_); }

private:
    double nanos_per_tick_ = 1;
    uint64_t cost_ = 0;
};
