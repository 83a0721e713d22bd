/* Pools that are destroyed while other threads call them: every call succeeds or says that the pool was destroyed, and what a call had
 * under way, an event for instance, is given back. */
#include "streams.h"

enum { THREADS = 4, HELD = 16 };
static _Atomic(weir_pool *) current;
static atomic_int over;
static atomic_long calls_on_destroyed;

/* Did it succeed? Otherwise the pool must have been destroyed. */
static int came_in_time(weir_pool *pool, weir_status status) {
    if (status != WEIR_OK) {
        CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, status);
        CHECK(atomic_load(&current) != pool);
        atomic_fetch_add(&calls_on_destroyed, 1);
    }
    return status == WEIR_OK;
}

static void *work(void *arg) {
    uint64_t random = (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u;
    program_thread();
    weir_stream stream = stream_new();
    while (!atomic_load(&over)) {
        weir_pool *pool = atomic_load(&current);
        void *held[HELD] = {NULL};
        int live = pool != NULL;
        for (int i = 0; live && i < 200; i++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            void **place = &held[random % HELD];
            if (*place != NULL) {
                live = came_in_time(pool, weir_pool_free(pool, *place, stream));
                *place = NULL;
            } else {
                live = came_in_time(pool, weir_pool_alloc(pool, (size_t)256 << (random >> 20) % 15, stream, place));
            }
        }
        for (int i = 0; i < HELD; i++) { /* gone with their pool, perhaps */
            if (held[i] != NULL) {
                (void)came_in_time(pool, weir_pool_free(pool, held[i], stream));
            }
        }
    }
    stream_end(stream);
    return NULL;
}

int main(void) {
    int rounds = check_under("valgrind") ? 5 : check_under("sanitizer") ? 20 : 200;
    pthread_t threads[THREADS];
    program_begin();
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < rounds; i++) {
        weir_pool_options o = check_options(0);
        weir_pool *pool = NULL;
        CHECK_OK(weir_pool_create(&o, &pool));
        atomic_store(&current, pool);
        usleep(1000);
        atomic_store(&current, NULL);
        weir_status status = weir_pool_destroy(pool);
        CHECK(status == WEIR_OK || status == WEIR_ERROR_LIVE_BLOCKS);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(atomic_load(&calls_on_destroyed) > 0);
    CHECK_OK(weir_finalize());
    return program_end();
}
