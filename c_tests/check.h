/* Checks for the C tests. The first one that fails prints where, what and weir's own message, and ends the
 * program with status 1. Each program ends with `return check_end();`, which prints how many passed. */
#ifndef WEIR_C_TESTS_CHECK_H
#define WEIR_C_TESTS_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <weir.h>
#ifndef __cplusplus
#include <stdatomic.h>
#endif

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)

static unsigned check_count; /* added to by any thread */

static inline void check_counted(void) { __atomic_fetch_add(&check_count, 1, __ATOMIC_RELAXED); }

static inline void check_failed(const char *file, int line, const char *what, const char *detail) {
    fprintf(stderr, "%s:%d: %s%s%s\n    weir_last_error: %s\n", file, line, what, *detail ? ": " : "", detail,
            weir_last_error());
    fflush(stderr);
    _exit(1);
}

static inline void check_status_at(const char *file, int line, const char *call, int got, int want) {
    check_counted();
    if (got != want) {
        char detail[160];
        snprintf(detail, sizeof detail, "got %s, want %s", weir_status_name(got), weir_status_name(want));
        check_failed(file, line, call, detail);
    }
}

static inline void check_equal_at(const char *file, int line, const char *what, uint64_t got, uint64_t want) {
    check_counted();
    if (got != want) {
        char detail[160];
        snprintf(detail, sizeof detail, "got %" PRIu64 ", want %" PRIu64, got, want);
        check_failed(file, line, what, detail);
    }
}

static inline void check_true_at(const char *file, int line, const char *what, int holds) {
    check_counted();
    if (!holds) {
        check_failed(file, line, what, "");
    }
}

#define CHECK(condition) check_true_at(__FILE__, __LINE__, #condition, !!(condition))
#define CHECK_EQUAL(got, want) check_equal_at(__FILE__, __LINE__, #got " == " #want, (uint64_t)(got), (uint64_t)(want))
#define CHECK_STATUS(want, call) check_status_at(__FILE__, __LINE__, #call, (int)(call), (want))
#define CHECK_OK(call) CHECK_STATUS(WEIR_OK, call)
/* The thread's last message contains `text`. */
#define CHECK_SAYS(text) check_true_at(__FILE__, __LINE__, "the message contains " #text, strstr(weir_last_error(), (text)) != NULL)
/* ... and the decimal number `n`. */
#define CHECK_SAYS_NUMBER(n) check_true_at(__FILE__, __LINE__, "the message contains the number " #n, check_says_number(n))

static inline int check_says_number(uint64_t n) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, n);
    return strstr(weir_last_error(), text) != NULL;
}

static inline int check_end(void) {
    printf("%u checks passed\n", check_count);
    return 0;
}

/* "plain", "valgrind" or "asan": what this run is under. */
static inline int check_under(const char *tool) {
    const char *now = getenv("WEIR_C_TESTS_TOOL");
    return now != NULL && strcmp(now, tool) == 0;
}

/* WEIR_TEST_MEMORY: the memory that the run is about. host, unless something else is asked for. */
static inline weir_memory check_memory(void) {
    const char *memory = getenv("WEIR_TEST_MEMORY");
    if (memory == NULL || strcmp(memory, "host") == 0) {
        return WEIR_MEMORY_HOST;
    }
    return strcmp(memory, "pinned") == 0 ? WEIR_MEMORY_PINNED : WEIR_MEMORY_DEVICE;
}

/* Is it the driver's, with the driver's streams? */
static inline int check_on_device(void) { return check_memory() != WEIR_MEMORY_HOST; }

/* Is the driver of the memory under test told to act unloaded at exit, and to abort on any call after that? */
static inline int check_unloads(void) {
    return getenv(check_on_device() ? "WEIR_STANDIN_UNLOAD_AT_EXIT" : "WEIR_TEST_HOST_UNLOAD") != NULL;
}

/* The device number that the tests are about. */
static inline int check_device(void) { return check_on_device() ? 0 : WEIR_DEVICE_HOST; }

/* Options of a pool of the memory under test with a limit (0: none). */
static inline weir_pool_options check_options(uint64_t max_bytes) {
    weir_pool_options options;
    CHECK_OK(weir_pool_options_init(&options, sizeof options));
    options.memory = check_memory();
    options.max_bytes = max_bytes;
    return options;
}

static inline weir_pool *check_pool(uint64_t max_bytes) {
    weir_pool_options options = check_options(max_bytes);
    weir_pool *pool = NULL;
    CHECK_OK(weir_pool_create(&options, &pool));
    CHECK(pool != NULL);
    return pool;
}

/* The statistics now, checked to add up. */
static inline weir_pool_stats check_stats_at(const char *file, int line, weir_pool *pool) {
    weir_pool_stats s;
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    check_status_at(file, line, "weir_pool_get_stats", weir_pool_get_stats(pool, &s), WEIR_OK);
    check_equal_at(file, line, "reserved == used + cached + free + pending + idle", s.reserved_bytes,
                   s.used_bytes + s.cached_bytes + s.free_bytes + s.pending_bytes + s.idle_bytes);
    check_true_at(file, line, "used_bytes <= used_bytes_peak", s.used_bytes <= s.used_bytes_peak);
    check_true_at(file, line, "reserved_bytes <= reserved_bytes_peak", s.reserved_bytes <= s.reserved_bytes_peak);
    check_true_at(file, line, "frees <= allocations", s.frees <= s.allocations);
    check_true_at(file, line, "largest_free_bytes <= free_bytes", s.largest_free_bytes <= s.free_bytes);
    double fragmentation = s.free_bytes == 0 ? 0.0 : 1.0 - (double)s.largest_free_bytes / (double)s.free_bytes;
    double off = s.fragmentation - fragmentation;
    check_true_at(file, line, "fragmentation == 1 - largest_free / free", off < 1e-9 && off > -1e-9);
    return s;
}
#define CHECK_STATS(pool) check_stats_at(__FILE__, __LINE__, pool)

/* No counter differs from `before`. */
#define CHECK_UNCHANGED(pool, before)                                                                                     \
    do {                                                                                                                  \
        weir_pool_stats check_now = CHECK_STATS(pool);                                                                    \
        check_true_at(__FILE__, __LINE__, "nothing changed", memcmp(&check_now, &(before), sizeof check_now) == 0);      \
    } while (0)

#endif
