/* What threads of soak.c do over and over, drawn at random. */
#ifndef WEIR_C_TESTS_HABITS_H
#define WEIR_C_TESTS_HABITS_H

#include "check.h"

/* xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016), 48 bits of it. */
static inline uint64_t next_of(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull >> 16;
}
static inline uint64_t below(uint64_t *state, uint64_t n) { return next_of(state) % n; }
static inline int one_in(uint64_t *state, unsigned n) { return n > 0 && below(state, n) == 0; }
static inline size_t log_uniform(uint64_t *state, size_t least, size_t most) {
    size_t octave = least << below(state, (unsigned)(63 - __builtin_clzll(most / least + 1)) + 1);
    size_t bytes = octave + next_of(state) % octave;
    return bytes < most ? bytes : most;
}

typedef enum { CHURN, FIFO, FILL, ROUNDS, BATCHES, HAND_OVER, BRIEF_STREAMS, BRIEF_THREADS, BRIEF_POOLS, COPIES, LATE_FREES, GRAPHS, KINDS } kind;
typedef enum { SMALL, MEDIUM, LARGE, FEW, POWERS, MIXED, DISTRIBUTIONS } distribution;
static const char *const kind_names[KINDS] = {"churn", "fifo", "fill", "rounds", "batches", "hand over", "brief streams", "brief threads",
                                              "brief pools", "copies", "late frees", "graphs"};

/* What a thread does for a while. */
typedef struct {
    kind kind;
    distribution sizes;
    size_t few[6];
    int few_count;
    size_t budget;
    unsigned touch, cross, jitter, aligned; /* one in so many blocks is written to and checked, is freed elsewhere, has another
                                               size, is aligned to more than usual; 0: none */
    unsigned length;               /* of a batch or a round */
    uint64_t seed;                 /* a round's */
    int order;                     /* in which what was filled is emptied: last first, first first, at random */
} habit;

static inline habit draw_habit(uint64_t *random, size_t budget) {
    habit h;
    memset(&h, 0, sizeof h);
    h.kind = (kind)below(random, KINDS);
    h.sizes = (distribution)below(random, DISTRIBUTIONS);
    h.budget = budget >> below(random, 4);
    h.few_count = 1 + (int)below(random, 6);
    for (int i = 0; i < h.few_count; i++) {
        h.few[i] = log_uniform(random, 256, h.budget / 8);
    }
    h.touch = one_in(random, 4) ? 0 : 1 + (unsigned)below(random, 8);
    h.cross = one_in(random, 2) ? 0 : 1 + (unsigned)log_uniform(random, 1, 64);
    h.jitter = one_in(random, 2) ? 0 : 1 + (unsigned)log_uniform(random, 1, 256);
    h.aligned = one_in(random, 2) ? 0 : 1 + (unsigned)log_uniform(random, 1, 64);
    h.length = h.kind == BATCHES ? 1 + (unsigned)below(random, 64) : (unsigned)log_uniform(random, 8, 1024);
    h.seed = next_of(random) | 1;
    h.order = (int)below(random, 3);
    return h;
}

/* The size of the next block, drawn from `source`, but for a jitter drawn from `random`. */
static inline size_t next_size(const habit *h, uint64_t *source, uint64_t *random) {
    size_t most = h->budget / 8 > 4 * KiB ? h->budget / 8 : 4 * KiB, bytes = 0;
    switch (h->sizes) {
    case SMALL:
        return log_uniform(source, 4, 4 * KiB);
    case MEDIUM:
        return log_uniform(source, 256, most < MiB ? most : MiB);
    case LARGE:
        bytes = log_uniform(source, most < 128 * KiB ? most / 2 : 64 * KiB, most);
        break;
    case FEW:
        bytes = h->few[below(source, (unsigned)h->few_count)];
        break;
    case POWERS:
        bytes = (size_t)1 << (63 - __builtin_clzll(log_uniform(source, 256, most)));
        break;
    default:
        bytes = one_in(source, 10) ? log_uniform(source, 64 * KiB, most + 64 * KiB) : log_uniform(source, 4, 16 * KiB);
    }
    return one_in(random, h->jitter) ? bytes + below(random, bytes / 4 + 1) : bytes;
}

#endif
