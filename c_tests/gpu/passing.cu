/* Streams that pass blocks on to each other, as the stages of a pipeline do, round after round, with the host ahead of them: weir comes
 * to have each stream wait for another one on the device before it hands out what that one freed, and to do so by heart. Each block is
 * written by one stream and checked by the next one, which frees it. In the first half of the rounds something else comes between now
 * and then. A single wrong word ends the program.
 *
 *   passing [ROUNDS]     60 by default, of streams that are not declared, and as many of declared ones */
#include "gpu.cuh"
#include <deque>

enum { STREAMS = 4, BLOCKS = 800, LIVE = 24, LAST = 10 };

typedef struct {
    void *p;
    size_t bytes;
    uint64_t seed;
    int stream;
} block;

static weir_pool *pool;
static findings *found;
static cudaStream_t streams[STREAMS];
static cudaEvent_t written[STREAMS];

static block take(size_t bytes, int stream, uint64_t seed) {
    block b = {NULL, bytes, seed, stream};
    CHECK_OK(weir_pool_alloc(pool, bytes, streams[stream], &b.p));
    queue_write(streams[stream], b.p, bytes, seed);
    return b;
}

static void pass_on(block b) {
    int to = (b.stream + 1) % STREAMS;
    CHECK_OK(weir_event_record(written[b.stream], streams[b.stream]));
    CHECK_OK(weir_stream_wait_event(streams[to], written[b.stream]));
    queue_check(streams[to], b.p, b.bytes, b.seed, found);
    CHECK_OK(weir_pool_free(pool, b.p, streams[to]));
}

/* The same calls each time. */
static void play(uint64_t number) {
    uint64_t sizes = 88172645463325252ull, seed = number << 20;
    std::deque<block> blocks;
    for (int i = 0; i < BLOCKS; i++) {
        size_t bytes = (size_t)((64 * KiB) << next_random(&sizes) % 9) + next_random(&sizes) % (256 * KiB);
        blocks.push_back(take(bytes, (int)(next_random(&sizes) % STREAMS), seed++));
        if (blocks.size() > LIVE) {
            pass_on(blocks.front());
            blocks.pop_front();
        }
    }
    for (block b : blocks) {
        pass_on(b);
    }
}

static void disturb(uint64_t *random) {
    uint64_t bytes = next_random(random) % (256 * MiB);
    switch (next_random(random) % 4) {
    case 0: CHECK_OK(weir_pool_trim(pool, bytes)); break;
    case 1: CHECK_OK(weir_pool_squeeze(pool, NULL)); break;
    default: pass_on(take(1 + bytes % (8 * MiB), (int)(next_random(random) % STREAMS), *random));
    }
}

static void live(long rounds, bool declared) {
    weir_pool_options options = gpu_options(0, "passing");
    options.declared_streams = declared;
    CHECK_OK(weir_pool_create(&options, &pool));
    for (int i = 0; i < STREAMS; i++) {
        CUDA_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        CUDA_OK(cudaEventCreateWithFlags(&written[i], cudaEventDisableTiming));
    }
    uint64_t random = 1234567;
    long by_heart = 0;
    weir_pool_stats before = CHECK_STATS(pool);
    for (long i = 0; i < rounds; i++) {
        weir_pool_stats s = CHECK_STATS(pool);
        before = i == rounds - LAST ? s : before;
        play((uint64_t)i + 1);
        if (i < rounds / 2 && i % 5 == 4) {
            disturb(&random);
        }
        for (cudaStream_t stream : streams) {
            CHECK_OK(weir_stream_synchronize(stream));
        }
        by_heart += CHECK_STATS(pool).cache_misses == s.cache_misses;
        check_nothing_broken(found);
    }
    weir_pool_stats s = CHECK_STATS(pool);
    printf("%ld rounds of %d blocks, streams %sdeclared: %ld without a miss; %" PRIu64 " pages mapped, %" PRIu64 " of them in the last %d "
           "rounds, %.0f driver calls in each of these; held %.1f MiB, live at most %.1f\n",
           rounds, BLOCKS, declared ? "" : "not ", by_heart, s.page_maps, s.page_maps - before.page_maps, LAST,
           (double)(s.driver_calls - before.driver_calls) / LAST, (double)s.reserved_bytes_peak / (double)MiB,
           (double)s.used_bytes_peak / (double)MiB);
    if (rounds >= 60) {
        CHECK(by_heart > 0);
    }
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
    for (int i = 0; i < STREAMS; i++) {
        CUDA_OK(cudaEventDestroy(written[i]));
        CHECK_OK(weir_stream_changed(streams[i]));
        CUDA_OK(cudaStreamDestroy(streams[i]));
    }
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 60;
    CHECK(rounds > LAST);
    print_device();
    load_kernels();
    found = host_visible<findings>();
    live(rounds, false);
    live(rounds, true);
    CHECK_OK(weir_finalize());
    CUDA_OK(cudaFreeHost(found));
    CUDA_OK(cudaDeviceReset());
    return check_end();
}
