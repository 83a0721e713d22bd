/* The limit is never exceeded; a request that fails leaves the pool whole and says what it knows. */
#include "contents.h"

static const size_t limit = 64 * MiB;

static void limit_holds(void) {
    weir_pool *pool = check_pool(limit);
    void *blocks[64];
    void *untouched = &untouched, *p = untouched;
    int n = 0;
    weir_pool_stats s;

    for (; n < 7; n++) {
        CHECK_OK(weir_pool_alloc(pool, 8 * MiB, NULL, &blocks[n]));
        CHECK(CHECK_STATS(pool).reserved_bytes <= limit);
    }
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 16 * MiB, NULL, &p));
    CHECK(p == untouched);
    s = CHECK_STATS(pool);
    CHECK(s.reserved_bytes <= limit && s.reserved_bytes_peak <= limit);
    CHECK_SAYS_NUMBER(16 * MiB);
    CHECK_SAYS("used 56.00 MiB");
    CHECK_SAYS("reserved 56.00 MiB");
    CHECK_SAYS("limit 64.00 MiB");
    CHECK_SAYS("largest free 0 B");
    CHECK_EQUAL(s.failures, 1);

    /* The next smaller one fits. */
    CHECK_OK(weir_pool_alloc(pool, 8 * MiB, NULL, &blocks[n]));
    n++;
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 1, NULL, &p));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, limit);

    /* Every second block freed: room for half the limit, though nowhere in one piece. */
    for (int i = 0; i < n; i += 2) {
        CHECK_OK(weir_pool_free(pool, blocks[i], NULL));
    }
    CHECK_OK(weir_pool_alloc(pool, limit / 2, NULL, &p));
    contents_fill(p, 1, limit / 2);
    CHECK(CHECK_STATS(pool).reserved_bytes_peak <= limit);
    CHECK_OK(weir_pool_free(pool, p, NULL));
    for (int i = 1; i < n; i += 2) {
        CHECK_OK(weir_pool_free(pool, blocks[i], NULL));
    }
    CHECK_OK(weir_pool_alloc(pool, limit, NULL, &p));
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_destroy(pool));
}

/* Requests of every size against a limit that is nearly used up. */
static void limit_holds_for_small_blocks(void) {
    weir_pool *pool = check_pool(4 * MiB);
    enum { MANY = 4096 };
    void **blocks = (void **)calloc(MANY, sizeof *blocks);
    int n = 0;
    while (n < MANY && weir_pool_alloc(pool, 3000, NULL, &blocks[n]) == WEIR_OK) {
        contents_fill(blocks[n], n, 3000);
        n++;
    }
    CHECK(n > 1000 && n < MANY);
    CHECK(CHECK_STATS(pool).reserved_bytes_peak <= 4 * MiB);
    CHECK_OK(weir_pool_free_batch(pool, blocks, (size_t)n, NULL));
    void *p;
    CHECK_OK(weir_pool_alloc(pool, 4 * MiB, NULL, &p)); /* slabs and caches give their pages back */
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_destroy(pool));
    free(blocks);
}

typedef struct {
    void *spare;
    weir_pool *seen;
    size_t bytes;
    int calls, answer;
} callback;

static int on_oom(void *user, weir_pool *pool, size_t bytes) {
    callback *c = (callback *)user;
    c->calls++;
    c->seen = pool;
    c->bytes = bytes;
    if (c->spare != NULL) {
        CHECK_OK(weir_pool_free(pool, c->spare, NULL));
        CHECK_OK(weir_pool_trim(pool, 0));
        CHECK_STATS(pool);
        c->spare = NULL;
    }
    return c->answer;
}

static void callback_may_free(void) {
    callback c = {0};
    weir_pool_options o = check_options(16 * MiB);
    o.on_oom = on_oom;
    o.on_oom_user = &c;
    weir_pool *pool;
    void *p, *q = NULL;
    CHECK_OK(weir_pool_create(&o, &pool));
    CHECK_OK(weir_pool_alloc(pool, 10 * MiB, NULL, &c.spare));
    CHECK_EQUAL(c.calls, 0);

    c.answer = 1;
    CHECK_OK(weir_pool_alloc(pool, 12 * MiB, NULL, &p));
    CHECK_EQUAL(c.calls, 1);
    CHECK(c.seen == pool);
    CHECK_EQUAL(c.bytes, 12 * MiB);

    /* It says "once more" but nothing came free: asked once, then the failure. */
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 12 * MiB, NULL, &q));
    CHECK_EQUAL(c.calls, 2);
    c.answer = 0;
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, 12 * MiB, NULL, &q));
    CHECK_EQUAL(c.calls, 3);
    CHECK(q == NULL);
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    limit_holds();
    limit_holds_for_small_blocks();
    callback_may_free();
    return program_end();
}
