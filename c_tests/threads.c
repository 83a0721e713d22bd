/* Many threads on one pool, freeing each other's blocks; every block is checked by whoever frees it. */
#include "contents.h"
#include <pthread.h>

enum { THREADS = 8, SLOTS = 64 };
static weir_pool *pool;
static _Atomic(uint64_t *) slots[SLOTS];

static void *work(void *arg) {
    uint64_t random = (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u;
    weir_stream stream = (weir_stream)((uintptr_t)arg % 3); /* shared between threads; on a device, the built-in ones */
    int steps = check_under("valgrind") ? 500 : 20000;
    if (check_on_device()) { /* each word is a copy */
        steps = check_under("valgrind") ? 150 : 500;
    }
    program_thread();
    for (int i = 0; i < steps; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t words = 2 + (random >> 20) % (i % 100 == 0 ? 200000 : 500);
        void *p;
        CHECK_OK(weir_pool_alloc(pool, words * 8, stream, &p));
        uint64_t *mine = (uint64_t *)p;
        word_put(mine, 0, words);
        word_put(mine, words - 1, words);
        uint64_t *other = atomic_exchange(&slots[random % SLOTS], mine);
        if (other != NULL) {
            uint64_t its_words = word_get(other, 0);
            CHECK_EQUAL(word_get(other, its_words - 1), its_words);
            CHECK_OK(weir_pool_free(pool, other, stream));
        }
        if (i % 1000 == 999) {
            CHECK_OK(weir_pool_trim(pool, 0));
        }
    }
    return NULL;
}

int main(void) {
    program_begin();
    pthread_t threads[THREADS];
    pool = check_pool(0);
    for (int round = 0; round < 2; round++) { /* threads end, others come: their caches are not lost */
        for (uintptr_t i = 0; i < THREADS; i++) {
            CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
        }
        CHECK_STATS(pool);
    }
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i] != NULL) {
            CHECK_OK(weir_pool_free(pool, slots[i], NULL));
        }
    }
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    return program_end();
}
