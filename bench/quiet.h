// Where a thread that is alone is timed: on a core that is quick just now. A virtual machine's core is often one of two threads
// of a real one, and makes little more than half as much while somebody else's thread keeps the other one busy. For which cores
// that is so changes within seconds, and one allocator is not to be timed beside a neighbour and the next one without.
#pragma once
#include "clock.h"
#include <pthread.h>
#include <sched.h>

// What fills all of a core's units takes so many ticks, at best.
inline uint64_t probe_core() {
    uint64_t best = UINT64_MAX;
    for (int tries = 0; tries < 8; tries++) {
        uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, start = Clock::begin();
        for (uint64_t i = 0; i < 1000; i++) {
            a ^= i, b += i, c ^= i, d += i, e ^= i, f += i;
            asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f)); // each is its own, and is needed
        }
        best = std::min(best, Clock::end() - start);
    }
    return best;
}

inline bool move_to(pthread_t thread, int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return pthread_setaffinity_np(thread, sizeof one, &one) == 0;
}

// Moves a thread to the quickest of the calling one's cores, but to where that is, whose caches may have what it needs, unless
// another one is quicker by an eighth. It may be moved again, and threads that it starts go where they like.
inline void move_to_quiet_core(pthread_t thread = pthread_self()) {
    cpu_set_t all;
    int here = sched_getcpu(), quickest = here;
    if (here < 0 || pthread_getaffinity_np(pthread_self(), sizeof all, &all) != 0) {
        return; // more cores than fit
    }
    uint64_t least = probe_core() / 8 * 7;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (core != here && CPU_ISSET(core, &all) && move_to(pthread_self(), core)) {
            uint64_t ticks = probe_core();
            if (ticks < least) {
                least = ticks;
                quickest = core;
            }
        }
    }
    move_to(thread, quickest);
    pthread_setaffinity_np(thread, sizeof all, &all);
    pthread_setaffinity_np(pthread_self(), sizeof all, &all);
}
