/* Every call that weir makes of the driver fails once, in turn: nothing is lost, and what failed succeeds afterwards.
 * On the stand-in driver, which also ends the program if anything is left open. */
#include "../streams.h"

enum { BLOCKS = 12, OUT_OF_MEMORY = 2, UNKNOWN = 999 };

static void (*fail_any)(uint64_t nth, int result);
static void (*reset_faults)(void);
static uint64_t (*faults_left)(void);
static uint64_t (*count_open)(char *text, size_t bytes);

static const size_t sizes[BLOCKS] = {1,       300,     5000,    40000,   MiB,     3 * MiB,
                                     9 * MiB, 2 * MiB, 7 * MiB, 20000,   5 * MiB, 12 * MiB};

/* Small and large blocks on two streams, each other's memory, pages that move, and memory given back. Only calls of
 * weir are made here. A free that fails has freed nothing. */
static void program(weir_pool *pool, weir_stream s, weir_stream t, void **blocks) {
    for (int i = 0; i < BLOCKS; i++) {
        if (weir_pool_alloc(pool, sizes[i], i % 3 == 0 ? t : s, &blocks[i]) != WEIR_OK) {
            CHECK(blocks[i] == NULL);
        }
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        if (blocks[i] != NULL && i % 4 == 0) {
            (void)weir_pool_record_stream(pool, blocks[i], i % 3 == 0 ? s : t);
        }
        if (weir_pool_free(pool, blocks[i], i % 3 == 0 ? t : s) == WEIR_OK) {
            blocks[i] = NULL;
        }
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        if (blocks[i] == NULL) {
            (void)weir_pool_alloc(pool, 2 * sizes[i], t, &blocks[i]);
        }
    }
    (void)weir_pool_trim(pool, 0);
    for (int i = 1; i < BLOCKS; i += 2) {
        if (weir_pool_free(pool, blocks[i], i % 3 == 0 ? t : s) == WEIR_OK) {
            blocks[i] = NULL;
        }
    }
    (void)weir_stream_synchronize(s);
    (void)weir_pool_squeeze(pool, NULL);
}

/* Did the fault come? */
static int with_fault(uint64_t nth, int result, weir_stream s, weir_stream t) {
    weir_pool *pool = NULL;
    void *blocks[BLOCKS] = {NULL}, *p;
    uint64_t open = count_open(NULL, 0);
    weir_pool_options o = check_options(48 * MiB);
    fail_any(nth, result);
    if (weir_pool_create(&o, &pool) != WEIR_OK) {
        CHECK(pool == NULL);
        reset_faults();
        CHECK_EQUAL(count_open(NULL, 0), open);
        CHECK_OK(weir_pool_create(&o, &pool));
    } else {
        program(pool, s, t, blocks);
    }
    int came = faults_left() == 0;
    reset_faults();
    CHECK_STATS(pool);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(weir_pool_free(pool, blocks[i], i % 3 == 0 ? t : s));
    }
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(weir_pool_alloc(pool, sizes[i], s, &p));
        CHECK_OK(weir_pool_free(pool, p, s));
    }
    CHECK_OK(weir_pool_destroy(pool));
    char text[1000];
    if (count_open(text, sizeof text) != open) {
        fprintf(stderr, "call %llu failed with %d, and this is open: %s\n", (unsigned long long)nth, result, text);
    }
    CHECK_EQUAL(count_open(NULL, 0), open);
    return came;
}

int main(void) {
    program_begin();
    *(void **)&fail_any = device_symbol("standin_fail_any");
    *(void **)&reset_faults = device_symbol("standin_reset_faults");
    *(void **)&faults_left = device_symbol("standin_faults_left");
    *(void **)&count_open = device_symbol("standin_open");
    weir_stream s = stream_new(), t = stream_new();
    const int results[] = {OUT_OF_MEMORY, UNKNOWN};
    for (int i = 0; i < 2; i++) {
        uint64_t nth = 1;
        while (with_fault(nth, results[i], s, t)) {
            nth++;
        }
        printf("%llu calls failed with %d, one at a time\n", (unsigned long long)nth - 1, results[i]);
        CHECK(nth > 50);
    }
    stream_end(s);
    stream_end(t);
    return program_end();
}
