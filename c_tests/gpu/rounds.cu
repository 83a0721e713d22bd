/* A program that does the same again and again, as training does: weir comes to answer it by heart. Each block is written and checked
 * by kernels that run behind. Meanwhile a thread copies batches on a stream of its own and has them used by the steps, and
 * another one takes memory back, looks, and allocates on a third stream. A single wrong word ends the program.
 *
 *   rounds [STEPS]     2,000 by default, of streams that are not declared, and as many of declared ones */
#include "gpu.cuh"
#include <atomic>
#include <pthread.h>
#include <vector>

enum { LAYERS = 12, AHEAD = 4, CALM = 60, LAST = 10 };
static const size_t batch_bytes = 3 * MiB + 512;

typedef struct {
    void *p;
    size_t bytes;
    uint64_t seed;
} block;

static weir_pool *pool;
static findings *found;
static cudaStream_t compute, copies, others;
static std::atomic<bool> calm, done;
static std::atomic<long> disturbances;
/* Time in calls of the steps' thread for blocks, and how many there were. */
static double seconds_in_calls;
static long calls;

static block take(size_t bytes, cudaStream_t stream, uint64_t seed) {
    block b = {NULL, bytes, seed};
    CHECK_OK(weir_pool_alloc(pool, bytes, stream, &b.p));
    queue_write(stream, b.p, bytes, seed);
    return b;
}

static void give(block b, cudaStream_t stream) {
    queue_check(stream, b.p, b.bytes, b.seed, found);
    CHECK_OK(weir_pool_free(pool, b.p, stream));
}

static block take_timed(size_t bytes, uint64_t seed) {
    block b = {NULL, bytes, seed};
    double start = seconds_now();
    CHECK_OK(weir_pool_alloc(pool, bytes, compute, &b.p));
    seconds_in_calls += seconds_now() - start;
    calls++;
    queue_write(compute, b.p, bytes, seed);
    return b;
}

static void give_timed(block b) {
    queue_check(compute, b.p, b.bytes, b.seed, found);
    double start = seconds_now();
    CHECK_OK(weir_pool_free(pool, b.p, compute));
    seconds_in_calls += seconds_now() - start;
    calls++;
}

/* A batch on its way from the thread that copies to the one that steps. */
static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static block batch;
static bool is_there, is_taken;

static void *copy(void *) {
    for (uint64_t number = 1;; number++) {
        block b = take(batch_bytes, copies, number << 32);
        pthread_mutex_lock(&door);
        batch = b;
        is_there = true, is_taken = false;
        pthread_cond_broadcast(&changed);
        while (!is_taken && !done) {
            pthread_cond_wait(&changed, &door);
        }
        bool over = !is_taken;
        is_there = false;
        pthread_mutex_unlock(&door);
        give(b, copies); /* the steps' stream may read it still, which they have said */
        if (over) {
            return NULL;
        }
    }
}

static void read_batch(cudaEvent_t copied) {
    pthread_mutex_lock(&door);
    while (!is_there || is_taken) {
        pthread_cond_wait(&changed, &door);
    }
    CHECK_OK(weir_event_record(copied, copies));
    CHECK_OK(weir_stream_wait_event(compute, copied));
    queue_check(compute, batch.p, batch.bytes, batch.seed, found);
    CHECK_OK(weir_pool_record_stream(pool, batch.p, compute));
    is_taken = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&door);
}

static void *disturb(void *) {
    uint64_t random = 88172645463325252ull;
    while (!calm) {
        usleep((useconds_t)(next_random(&random) % 200000));
        disturbances++;
        uint64_t bytes = next_random(&random) % (512 * MiB);
        switch (next_random(&random) % 8) {
        case 0: CHECK_OK(weir_pool_trim(pool, bytes)); break;
        case 1: CHECK_OK(weir_pool_squeeze(pool, NULL)); break;
        case 2: CHECK_OK(weir_pool_reset_peaks(pool)); break;
        case 3: CHECK_OK(weir_pool_set_release_threshold(pool, next_random(&random) % 2 ? UINT64_MAX : bytes)); break;
        case 4: give(take(1 + bytes % (8 * MiB), others, random), others); break;
        case 5: give(take(1 + bytes % (64 * KiB), compute, random), compute); break;
        default: CHECK_STATS(pool);
        }
    }
    return NULL;
}

/* The same calls each time: what a layer keeps, what it needs for a moment, and, backwards, what it passes on. */
static void step(uint64_t number, cudaEvent_t copied) {
    uint64_t sizes = 1234567, seed = number << 20;
    std::vector<block> kept;
    read_batch(copied);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int k = 0; k < 4; k++) {
            kept.push_back(take_timed(512 + next_random(&sizes) % (k == 0 ? 20 * MiB : 600 * KiB), seed++));
        }
        block moment = take_timed(512 + next_random(&sizes) % (8 * MiB), seed++);
        kept.push_back(take_timed(512 + next_random(&sizes) % (4 * KiB), seed++));
        give_timed(moment);
    }
    block passed = take_timed(6 * MiB, seed++);
    while (!kept.empty()) {
        block here = take_timed(512 + next_random(&sizes) % (6 * MiB), seed++);
        give_timed(passed);
        passed = here;
        give_timed(kept.back());
        kept.pop_back();
    }
    give_timed(passed);
}

static void live(long steps, bool declared) {
    weir_pool_options options = gpu_options(0, "rounds");
    options.declared_streams = declared;
    CHECK_OK(weir_pool_create(&options, &pool));
    for (cudaStream_t *stream : {&compute, &copies, &others}) {
        CUDA_OK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    cudaEvent_t copied, ends[AHEAD];
    CUDA_OK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    for (cudaEvent_t &end : ends) {
        CUDA_OK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    }
    done = false, calm = false, disturbances = 0;
    pthread_t copier, disturber;
    CHECK_EQUAL(pthread_create(&copier, NULL, copy, NULL), 0);
    CHECK_EQUAL(pthread_create(&disturber, NULL, disturb, NULL), 0);
    double start = seconds_now(), quickest = 1;
    weir_pool_stats before = CHECK_STATS(pool);
    for (long i = 0; i < steps + CALM; i++) {
        if (i == steps) {
            calm = true;
            pthread_join(disturber, NULL);
            CHECK_OK(weir_pool_set_release_threshold(pool, UINT64_MAX));
        }
        if (i == steps + CALM - LAST) {
            before = CHECK_STATS(pool);
        }
        seconds_in_calls = 0, calls = 0;
        step((uint64_t)i + 1, copied);
        if (seconds_in_calls / (double)calls < quickest) {
            quickest = seconds_in_calls / (double)calls;
        }
        CUDA_OK(cudaEventSynchronize(ends[i % AHEAD]));
        CUDA_OK(cudaEventRecord(ends[i % AHEAD], compute));
        if (i % 64 == 0) {
            check_nothing_broken(found);
        }
    }
    double took = seconds_now() - start;
    pthread_mutex_lock(&door);
    done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&door);
    pthread_join(copier, NULL);
    CUDA_OK(cudaDeviceSynchronize());
    check_nothing_broken(found);
    weir_pool_stats s = CHECK_STATS(pool);
    uint64_t mapped = s.page_maps - before.page_maps;
    printf("%ld steps of %ld calls, streams %sdeclared, in %.1f s, disturbed %ld times: a call took %.0f ns in the quickest step; "
           "%" PRIu64 " pages mapped, %" PRIu64 " of them in the last %d steps, %.1f driver calls in each of these; held %.1f MiB, live at "
           "most %.1f\n",
           steps + CALM, calls, declared ? "" : "not ", took, disturbances.load(), quickest * 1e9, s.page_maps, mapped, LAST,
           (double)(s.driver_calls - before.driver_calls) / LAST, (double)s.reserved_bytes_peak / (double)MiB,
           (double)s.used_bytes_peak / (double)MiB);
    CHECK_EQUAL(mapped, 0);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    for (cudaEvent_t end : ends) {
        CUDA_OK(cudaEventDestroy(end));
    }
    CUDA_OK(cudaEventDestroy(copied));
    for (cudaStream_t stream : {compute, copies, others}) {
        CHECK_OK(weir_stream_changed(stream));
        CUDA_OK(cudaStreamDestroy(stream));
    }
}

int main(int argc, char **argv) {
    long steps = argc > 1 ? atol(argv[1]) : 2000;
    CHECK(steps >= 1);
    print_device();
    load_kernels();
    found = host_visible<findings>();
    live(steps, false);
    live(steps, true);
    CHECK_OK(weir_finalize());
    CUDA_OK(cudaFreeHost(found));
    CUDA_OK(cudaDeviceReset());
    return check_end();
}
