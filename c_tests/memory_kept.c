/* What a pool keeps and gives back: trim, squeeze, the release threshold, attributes, peaks. */
#include "contents.h"

static uint64_t attribute(weir_pool *pool, int which) {
    uint64_t value = 77;
    CHECK_OK(weir_pool_get_attribute(pool, which, &value));
    return value;
}

static void trim_and_squeeze(void) {
    weir_pool *pool = check_pool(0);
    void *a, *b;
    size_t released = 0;
    CHECK_OK(weir_pool_alloc(pool, 32 * MiB, NULL, &a));
    CHECK_OK(weir_pool_alloc(pool, 32 * MiB, NULL, &b));
    CHECK_OK(weir_pool_free(pool, a, NULL));
    CHECK_OK(weir_stream_synchronize(NULL)); /* trim does not wait */
    uint64_t reserved = CHECK_STATS(pool).reserved_bytes;
    CHECK(reserved >= 64 * MiB); /* kept by default */

    CHECK_OK(weir_pool_trim(pool, SIZE_MAX));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, reserved);
    CHECK_OK(weir_pool_trim(pool, 48 * MiB));
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK(s.reserved_bytes >= 32 * MiB && s.reserved_bytes <= 48 * MiB);
    CHECK_OK(weir_pool_trim(pool, 0));
    s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 32 * MiB);
    CHECK_EQUAL(s.reserved_bytes, s.used_bytes);

    contents_fill(b, 5, 32 * MiB); /* the live block is untouched by all that */
    CHECK_OK(weir_pool_free(pool, b, NULL));
    uint64_t squeezes = CHECK_STATS(pool).squeezes;
    CHECK_OK(weir_pool_squeeze(pool, &released));
    CHECK_EQUAL(released, 32 * MiB);
    s = CHECK_STATS(pool);
    CHECK_EQUAL(s.reserved_bytes, 0);
    CHECK_EQUAL(s.squeezes, squeezes + 1);
    CHECK_OK(weir_pool_squeeze(pool, NULL));

    /* Small blocks and their caches, too. */
    void *small[500];
    for (int i = 0; i < 500; i++) {
        CHECK_OK(weir_pool_alloc(pool, (size_t)i * 40 + 1, NULL, &small[i]));
    }
    for (int i = 0; i < 500; i++) {
        CHECK_OK(weir_pool_free(pool, small[i], NULL));
    }
    s = CHECK_STATS(pool);
    CHECK(s.reserved_bytes > 0);
    CHECK_OK(weir_pool_squeeze(pool, &released));
    CHECK_EQUAL(released, s.reserved_bytes);
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

static void threshold(void) {
    weir_pool *pool = check_pool(0);
    void *p;
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_RELEASE_THRESHOLD), UINT64_MAX);
    CHECK_OK(weir_pool_alloc(pool, 32 * MiB, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_stream_synchronize(NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 32 * MiB);

    CHECK_OK(weir_pool_set_release_threshold(pool, 8 * MiB));
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_RELEASE_THRESHOLD), 8 * MiB);
    CHECK_OK(weir_pool_alloc(pool, 32 * MiB, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_stream_synchronize(NULL));
    CHECK(CHECK_STATS(pool).reserved_bytes <= 8 * MiB);

    CHECK_OK(weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_RELEASE_THRESHOLD, 0));
    CHECK_OK(weir_pool_alloc(pool, 32 * MiB, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_device_synchronize());
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

static void attributes(void) {
    weir_pool *pool = check_pool(0);
    static const int switches[] = {WEIR_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES, WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC,
                                   WEIR_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES};
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(switches[i], i + 1); /* CUDA's numbers */
        CHECK_EQUAL(attribute(pool, switches[i]), 1);
        CHECK_OK(weir_pool_set_attribute(pool, switches[i], 0));
        CHECK_EQUAL(attribute(pool, switches[i]), 0);
        CHECK_OK(weir_pool_set_attribute(pool, switches[i], 1));
        CHECK_EQUAL(attribute(pool, switches[i]), 1);
    }
    void *p;
    CHECK_OK(weir_pool_alloc(pool, 10 * MiB, NULL, &p));
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_USED_CURRENT), s.used_bytes);
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_USED_HIGH), s.used_bytes_peak);
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_RESERVED_CURRENT), s.reserved_bytes);
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_RESERVED_HIGH), s.reserved_bytes_peak);
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_squeeze(pool, NULL));

    /* The peaks are those of before; set to 0 they become the values of now. */
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_USED_CURRENT), 0);
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_USED_HIGH), s.used_bytes);
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_RESERVED_HIGH), s.reserved_bytes);
    CHECK_OK(weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_USED_HIGH, 0));
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_USED_HIGH), 0);
    CHECK_OK(weir_pool_set_attribute(pool, WEIR_ATTRIBUTE_RESERVED_HIGH, 0));
    CHECK_EQUAL(attribute(pool, WEIR_ATTRIBUTE_RESERVED_HIGH), 0);

    CHECK_OK(weir_pool_alloc(pool, 10 * MiB, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK(CHECK_STATS(pool).used_bytes_peak >= 10 * MiB);
    CHECK_OK(weir_pool_reset_peaks(pool));
    s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes_peak, 0);
    CHECK_EQUAL(s.reserved_bytes_peak, s.reserved_bytes);
    CHECK_OK(weir_pool_destroy(pool));
}

static void counters(void) {
    weir_pool *pool = check_pool(0);
    void *p[100];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++) {
            CHECK_OK(weir_pool_alloc(pool, ((size_t)1 << (i % 20)) + 1, NULL, &p[i]));
            weir_pool_stats s = CHECK_STATS(pool);
            CHECK_EQUAL(s.allocations, round * 100 + i + 1);
            CHECK_EQUAL(s.cache_hits + s.cache_misses, s.allocations);
        }
        for (int i = 99; i >= 0; i--) {
            CHECK_OK(weir_pool_free(pool, p[i], NULL));
            CHECK_STATS(pool);
        }
        weir_pool_stats s = CHECK_STATS(pool);
        CHECK_EQUAL(s.allocations, s.frees);
        CHECK_EQUAL(s.used_bytes, 0);
        CHECK_EQUAL(s.failures, 0);
        CHECK(s.page_creates >= 1 && s.page_maps >= s.page_creates);
        CHECK(s.driver_calls >= s.page_creates + s.page_maps);
    }
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.page_creates, s.page_releases);
    CHECK_EQUAL(s.page_maps, s.page_unmaps);
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    trim_and_squeeze();
    threshold();
    attributes();
    counters();
    return program_end();
}
