/* Calls of the stand-in driver that fail, all the time, while threads of soak.c run. */
#ifndef WEIR_C_TESTS_FAULTS_H
#define WEIR_C_TESTS_FAULTS_H

#include "habits.h"
#include "streams.h"

/* What the stand-in driver lets fail. */
static struct {
    void (*let_fail)(const char *call, uint64_t nth, int result);
    void (*reset)(void);
    uint64_t (*left)(void);
    uint64_t random;
    atomic_int stop;
    pthread_t thread;
} fault;

/* Lets calls fail that the pool makes, and nobody else here, until it is told to stop. */
static inline void *let_calls_fail(void *arg) {
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressReserve",
                                        "cuEventRecord", "cuEventQuery", "cuStreamQuery", "cuStreamWaitEvent", "cuMemGetInfo"};
    enum { OUT_OF_MEMORY = 2, UNKNOWN = 999, MANY = 12 };
    (void)arg;
    while (!atomic_load(&fault.stop)) {
        if (fault.left() > MANY) {
            fault.reset(); /* some may never come */
        }
        const char *call = calls[below(&fault.random, sizeof calls / sizeof *calls)];
        fault.let_fail(call, 1 + below(&fault.random, 12), call == calls[0] || one_in(&fault.random, 3) ? OUT_OF_MEMORY : UNKNOWN);
        usleep(50 + (unsigned)below(&fault.random, 500));
    }
    fault.reset();
    return NULL;
}

static inline void find_faults(void) {
    CHECK(check_on_device() && device_is_standin());
    *(void **)&fault.let_fail = device_symbol("standin_fail");
    *(void **)&fault.reset = device_symbol("standin_reset_faults");
    *(void **)&fault.left = device_symbol("standin_faults_left");
}

static inline void faults_begin(uint64_t random) {
    fault.random = random;
    fault.stop = 0;
    CHECK_EQUAL(pthread_create(&fault.thread, NULL, let_calls_fail, NULL), 0);
}

static inline void faults_end(void) {
    atomic_store(&fault.stop, 1);
    pthread_join(fault.thread, NULL);
}

#endif
