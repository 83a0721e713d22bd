/* growth_ahead: a thread of the pool's makes memory before anybody asks for it. */
#include "contents.h"

static weir_pool *pool_with(uint64_t ahead, uint64_t max_bytes) {
    weir_pool_options o = check_options(max_bytes);
    CHECK_EQUAL(o.growth_ahead, 0);
    o.growth_ahead = ahead;
    weir_pool *pool;
    CHECK_OK(weir_pool_create(&o, &pool));
    return pool;
}

/* Waits until most of `ahead` is free. */
static void wait_for(weir_pool *pool, uint64_t ahead) {
    for (int tries = 0; CHECK_STATS(pool).free_bytes < ahead / 2; tries++) {
        CHECK(tries < 10000);
        usleep(1000);
    }
}

static void a_growing_program_misses_once(void) {
    enum { BLOCKS = 60 };
    weir_pool *pool = pool_with(64 * MiB, 0);
    void *block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(weir_pool_alloc(pool, 3 * MiB, NULL, &block[i]));
        contents_fill(block[i], i, 3 * MiB);
        wait_for(pool, 64 * MiB);
    }
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.cache_misses, 1);
    CHECK(s.page_creates > 20);
    CHECK(s.reserved_bytes <= s.used_bytes + (64 + 8) * MiB);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(contents_are(block[i], i, 3 * MiB));
        CHECK_OK(weir_pool_free(pool, block[i], NULL));
    }
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

static void a_limit_is_kept(void) {
    weir_pool *pool = pool_with(64 * MiB, 64 * MiB);
    void *block, *more;
    CHECK_OK(weir_pool_alloc(pool, 3 * MiB, NULL, &block));
    wait_for(pool, 64 * MiB);
    CHECK_OK(weir_pool_alloc(pool, 61 * MiB, NULL, &more)); /* what is ahead is in nobody's way */
    CHECK(CHECK_STATS(pool).reserved_bytes_peak <= 64 * MiB);
    CHECK_OK(weir_pool_free(pool, block, NULL));
    CHECK_OK(weir_pool_free(pool, more, NULL));
    CHECK_OK(weir_pool_destroy(pool));
}

static void the_environment_sets_it(void) {
    weir_pool_options o;
    CHECK_EQUAL(setenv("WEIR_GROWTH_AHEAD", "32M", 1), 0);
    CHECK_OK(weir_pool_options_init(&o, sizeof o));
    CHECK_EQUAL(o.growth_ahead, 32 * MiB);
    CHECK_EQUAL(setenv("WEIR_GROWTH_AHEAD", "some", 1), 0);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_options_init(&o, sizeof o));
    CHECK_SAYS("WEIR_GROWTH_AHEAD");
    CHECK_EQUAL(unsetenv("WEIR_GROWTH_AHEAD"), 0);
    /* a program built before there was such an option */
    o = check_options(0);
    o.struct_size = offsetof(weir_pool_options, growth_ahead);
    o.growth_ahead = 1;
    weir_pool *pool = NULL;
    CHECK_OK(weir_pool_create(&o, &pool));
    CHECK_OK(weir_pool_destroy(pool));
}

static void what_makes_no_sense_is_refused(void) {
    weir_pool_options o = check_options(0);
    weir_pool *pool = NULL;
    o.growth_ahead = MiB;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_create(&o, &pool));
    CHECK_SAYS("growth_ahead");
    CHECK_SAYS_NUMBER(MiB);
    o.growth_ahead = 65 * MiB;
    o.max_bytes = 64 * MiB;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_create(&o, &pool));
    CHECK_SAYS_NUMBER(64 * MiB);
    CHECK(pool == NULL);
}

int main(void) {
    program_begin();
    a_growing_program_misses_once();
    a_limit_is_kept();
    the_environment_sets_it();
    what_makes_no_sense_is_refused();
    return program_end();
}
