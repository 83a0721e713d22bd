/* Threads that come and go, and call weir first, or last, in the destructor of a thread-specific key: none of them keeps its
 * place. */
#include "check.h"
#include <pthread.h>

enum { PLACES = 2048, BEYOND = 4, ROUNDS = 4 }; /* of destructors, which glibc makes */

static weir_pool *pool;
static pthread_key_t before, after; /* one made before weir's own, one behind it */

/* In a destructor of `key`, when it is called for the `round`th time. */
struct late {
    pthread_key_t *key;
    int round;
    int uses_weir_before;
};

static void allocate_and_free(void) {
    void *ptr;
    CHECK_OK(weir_pool_alloc(pool, 40 * KiB, NULL, &ptr));
    CHECK_OK(weir_pool_free(pool, ptr, NULL));
}

static void destructor(void *arg) {
    struct late *late = arg;
    if (late->uses_weir_before) {
        allocate_and_free(); /* in each round */
    }
    if (--late->round > 0) {
        CHECK_EQUAL(pthread_setspecific(*late->key, late), 0);
    } else {
        allocate_and_free();
    }
}

static void *end_late(void *arg) {
    struct late *late = arg;
    if (late->uses_weir_before) {
        allocate_and_free();
    }
    CHECK_EQUAL(pthread_setspecific(*late->key, late), 0);
    return NULL;
}

static void *has_a_place(void *arg) {
    (void)arg;
    CHECK(*weir_last_error() == 0);
    uint64_t kept_by_others = CHECK_STATS(pool).cached_bytes;
    for (int i = 0; i < 20; i++) {
        allocate_and_free();
    }
    CHECK(CHECK_STATS(pool).cached_bytes > kept_by_others); /* it has a cache */
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, &pool, NULL));
    CHECK_SAYS("not allocated");
    return NULL;
}

static void run(void *(*start)(void *), void *arg) {
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, start, arg), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

static void come_and_go(pthread_key_t *key, int round, int uses_weir_before) {
    for (int i = 0; i < PLACES + BEYOND; i++) {
        struct late late = {key, round, uses_weir_before};
        run(end_late, &late);
    }
    run(has_a_place, NULL);
}

int main(void) {
    CHECK_EQUAL(pthread_key_create(&before, destructor), 0);
    pool = check_pool(0);
    allocate_and_free();
    CHECK_EQUAL(pthread_key_create(&after, destructor), 0);
    for (int round = 1; round <= ROUNDS; round += check_under("plain") ? 1 : ROUNDS - 1) {
        come_and_go(&before, round, 0);
        come_and_go(&before, round, 1);
        come_and_go(&after, round, 1);
        if (round < ROUNDS) { /* behind the last call of a destructor of weir's own nobody could tell it */
            come_and_go(&after, round, 0);
        }
    }
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_EQUAL(pthread_key_delete(before), 0);
    CHECK_EQUAL(pthread_key_delete(after), 0);
    return check_end();
}
