/* Threads that use weir, and end after main has returned and the driver is gone (or may be, on a GPU): their
 * thread-local destructors, weir's own and this program's, which frees, make no backend call. */
#include "../contents.h"
#include <pthread.h>

static pthread_key_t key;
static pthread_t thread;
static weir_pool *pool;
static atomic_int ready, go, freed_late;

static void free_late(void *block) {
    CHECK_OK(weir_pool_free(pool, block, NULL));
    atomic_store(&freed_late, 1);
}

static void *work(void *arg) {
    (void)arg;
    void *p[64];
    for (int i = 0; i < 64; i++) { /* something in this thread's cache */
        CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &p[i]));
    }
    pthread_setspecific(key, p[0]);
    for (int i = 1; i < 64; i++) {
        CHECK_OK(weir_pool_free(pool, p[i], NULL));
    }
    atomic_store(&ready, 1);
    while (!atomic_load(&go)) {
        usleep(1000);
    }
    return NULL;
}

/* Registered first, so it runs last: after weir's handlers and the unload. */
static void last_exit_handler(void) {
    atomic_store(&go, 1);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&freed_late));
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    CHECK_EQUAL(atexit(last_exit_handler), 0);
    program_begin();
    CHECK(check_unloads() || (check_on_device() && !device_is_standin()));
    pool = check_pool(0);
    CHECK_EQUAL(pthread_key_create(&key, free_late), 0);
    CHECK_EQUAL(pthread_create(&thread, NULL, work, NULL), 0);
    while (!atomic_load(&ready)) {
        usleep(1000);
    }
    return program_end();
}
