/* Threads that come and go, and call weir first, or last, in the destructor of a thread-specific key: none of them keeps its
 * place. Then more threads at once than there are places: those beyond are served, and told that their errors have no text. */
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

static pthread_barrier_t all_there, all_done;

static void *stay(void *arg) {
    allocate_and_free();
    pthread_barrier_wait(&all_there);
    pthread_barrier_wait(&all_done);
    return arg;
}

static void *beyond(void *arg) {
    (void)arg;
    CHECK(*weir_last_error() == 0);
    for (int i = 0; i < 20; i++) {
        allocate_and_free();
    }
    CHECK(*weir_last_error() == 0);
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, &pool, NULL));
    CHECK_SAYS("no room");
    allocate_and_free();
    CHECK_SAYS("no room");
    return NULL;
}

/* One after the other, where the one before had its stack and all that is thread-local. */
static void crowd(void) {
    static pthread_t threads[PLACES];
    pthread_attr_t attributes;
    CHECK_EQUAL(pthread_attr_init(&attributes), 0);
    CHECK_EQUAL(pthread_attr_setstacksize(&attributes, 128 * KiB), 0);
    CHECK_EQUAL(pthread_barrier_init(&all_there, NULL, PLACES), 0);
    CHECK_EQUAL(pthread_barrier_init(&all_done, NULL, PLACES), 0);
    for (int i = 1; i < PLACES; i++) { /* and this one */
        CHECK_EQUAL(pthread_create(&threads[i], &attributes, stay, NULL), 0);
    }
    pthread_barrier_wait(&all_there);
    for (int i = 0; i < BEYOND; i++) {
        run(beyond, NULL);
    }
    pthread_barrier_wait(&all_done);
    for (int i = 1; i < PLACES; i++) {
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    }
    pthread_barrier_destroy(&all_there);
    pthread_barrier_destroy(&all_done);
    pthread_attr_destroy(&attributes);
    run(has_a_place, NULL);
}

int main(int argc, char **argv) {
    CHECK_EQUAL(pthread_key_create(&before, destructor), 0);
    pool = check_pool(0);
    allocate_and_free();
    CHECK_OK(weir_pool_trim(pool, 0)); /* what this thread keeps would go to the next one to call */
    CHECK_EQUAL(pthread_key_create(&after, destructor), 0);
    if (argc > 1 && strcmp(argv[1], "crowd") == 0) {
        crowd();
    } else {
        for (int round = 1; round <= ROUNDS; round += check_under("plain") ? 1 : ROUNDS - 1) {
            come_and_go(&before, round, 0);
            come_and_go(&before, round, 1);
            come_and_go(&after, round, 1);
            if (round < ROUNDS) { /* behind the last call of a destructor of weir's own nobody could tell it */
                come_and_go(&after, round, 0);
            }
        }
    }
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_EQUAL(pthread_key_delete(before), 0);
    CHECK_EQUAL(pthread_key_delete(after), 0);
    return check_end();
}
