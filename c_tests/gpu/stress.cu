/* Many threads and streams on one pool that is nearly full: blocks are written and checked by kernels that run
 * behind, go from stream to stream and from thread to thread by every way there is, and leave room in pieces
 * only, so that pages must move. A single wrong word ends the program.
 *
 *   stress [BLOCKS [THREADS]]     a million blocks by default */
#include "gpu.cuh"
#include <atomic>
#include <pthread.h>
#include <vector>

enum { STREAMS_EACH = 4, MAX_THREADS = 16, EXCHANGE = 64, SEEN = 1 << 16 };
static const size_t limit = 2 * GiB;

typedef struct {
    void *p;
    size_t bytes;
    uint64_t seed;
    cudaStream_t stream;
    cudaEvent_t written; /* only while it is offered to another thread */
} block;

static weir_pool *pool;
static findings *found;
static cudaStream_t streams[MAX_THREADS * STREAMS_EACH];
static int thread_count = 8;
static long blocks_each;
static std::atomic<block *> exchange[EXCHANGE];

/* What the run did, so that a run that did nothing of the kind cannot pass. */
static std::atomic<long> allocated, given, recorded, ordered, waited_for, refused, from_other_stream;
/* The stream that last had each address, by hash of the address; collisions only lose some of the count. */
static struct {
    std::atomic<uintptr_t> address, stream;
} seen[SEEN];

static void note_address(void *p, cudaStream_t stream) {
    auto &entry = seen[((uintptr_t)p >> 8) * 0x9e3779b97f4a7c15ull >> 48];
    uintptr_t before = entry.address.exchange((uintptr_t)p), its_stream = entry.stream.exchange((uintptr_t)stream);
    if (before == (uintptr_t)p && its_stream != (uintptr_t)stream) {
        from_other_stream++;
    }
}

struct worker {
    int number;
    uint64_t random;
    std::vector<block> live;
    size_t live_bytes = 0;
    std::vector<cudaEvent_t> events;

    uint64_t next(void) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return random * 0x2545f4914f6cdd1dull >> 16;
    }
    cudaStream_t own_stream(void) { return streams[number * STREAMS_EACH + next() % STREAMS_EACH]; }
    cudaStream_t any_stream(void) { return streams[next() % (unsigned)(thread_count * STREAMS_EACH)]; }
    cudaEvent_t event(void) {
        cudaEvent_t e;
        if (events.empty()) {
            CUDA_OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        } else {
            e = events.back();
            events.pop_back();
        }
        return e;
    }
    size_t size(void) {
        uint64_t r = next();
        unsigned kind = (unsigned)(r % 1000);
        r >>= 12;
        if (kind < 700) return 4 + r % (32 * KiB) / 4 * 4;
        if (kind < 950) return 4 + r % (512 * KiB) / 4 * 4;
        if (kind < 998) return 4 + r % (8 * MiB) / 4 * 4;
        return 16 * MiB + r % (48 * MiB) / 4 * 4;
    }

    void order(cudaStream_t first, cudaStream_t then) {
        cudaEvent_t e = event();
        CHECK_OK(weir_event_record(e, first));
        CHECK_OK(weir_stream_wait_event(then, e));
        events.push_back(e);
        ordered++;
    }

    void end(block b) {
        cudaStream_t other;
        switch (next() % 16) {
        case 0: /* read on a second stream, freed on the first */
        case 1:
            other = any_stream();
            order(b.stream, other);
            queue_check(other, b.p, b.bytes, b.seed, found);
            if (other != b.stream) {
                CHECK_OK(weir_pool_record_stream(pool, b.p, other));
                recorded++;
            }
            CHECK_OK(weir_pool_free(pool, b.p, b.stream));
            return;
        case 2: /* moved to a second stream for good */
        case 3:
            other = any_stream();
            order(b.stream, other);
            queue_check(other, b.p, b.bytes, b.seed, found);
            CHECK_OK(weir_pool_free(pool, b.p, other));
            return;
        case 4: /* waited for, rarely */
            queue_check(b.stream, b.p, b.bytes, b.seed, found);
            if (next() % 64 == 0) {
                CHECK_OK(weir_stream_synchronize(b.stream));
                CHECK_OK(weir_pool_free_synced(pool, b.p));
                waited_for++;
            } else {
                CHECK_OK(weir_pool_free(pool, b.p, b.stream));
            }
            return;
        default:
            queue_check(b.stream, b.p, b.bytes, b.seed, found);
            CHECK_OK(weir_pool_free(pool, b.p, b.stream));
        }
    }

    void end_any(void) {
        size_t k = next() % live.size();
        block b = live[k];
        live[k] = live.back();
        live.pop_back();
        live_bytes -= b.bytes;
        end(b);
    }

    /* Takes what another thread offers, and offers a block of its own; small ones, so that the budgets hold. */
    void trade(block b) {
        b.written = event();
        CHECK_OK(weir_event_record(b.written, b.stream));
        block *taken = exchange[next() % EXCHANGE].exchange(new block(b));
        if (taken != NULL) {
            cudaStream_t mine = own_stream();
            CHECK_OK(weir_stream_wait_event(mine, taken->written));
            events.push_back(taken->written);
            queue_check(mine, taken->p, taken->bytes, taken->seed, found);
            CHECK_OK(weir_pool_free(pool, taken->p, mine));
            delete taken;
            given++;
        }
    }

    void step(size_t budget) {
        block b = {NULL, size(), next(), own_stream(), NULL};
        while (!live.empty() && live_bytes + b.bytes > budget) {
            end_any();
        }
        int status;
        while ((status = weir_pool_alloc(pool, b.bytes, b.stream, &b.p)) == WEIR_ERROR_OUT_OF_MEMORY && !live.empty()) {
            refused++;
            end_any();
        }
        CHECK_STATUS(WEIR_OK, status);
        allocated++;
        note_address(b.p, b.stream);
        if (next() % 256 == 0) {
            queue_run(b.stream, 100e-6, NULL); /* the stream falls behind */
        }
        queue_write(b.stream, b.p, b.bytes, b.seed);
        if (b.bytes <= 64 * KiB && next() % 16 == 0) {
            trade(b);
        } else {
            live.push_back(b);
            live_bytes += b.bytes;
        }
    }

    void run(void) {
        size_t budget = limit / 100 * 88 / (size_t)thread_count;
        for (long i = 0; i < blocks_each; i++) {
            step(budget);
            if (i % 1024 == 0) {
                check_nothing_broken(found);
                weir_pool_stats s = CHECK_STATS(pool);
                CHECK(s.reserved_bytes <= limit);
            }
            if (i % 4096 == 4095) {
                CHECK_OK(weir_pool_trim(pool, limit / 2));
            }
        }
        while (!live.empty()) {
            end_any();
        }
        for (cudaEvent_t e : events) {
            CUDA_OK(cudaEventDestroy(e));
        }
    }
};

static void *work(void *arg) {
    worker w;
    w.number = (int)(intptr_t)arg;
    w.random = 88172645463325252ull + (uint64_t)w.number * 0x9e3779b97f4a7c15ull;
    w.run();
    return NULL;
}

int main(int argc, char **argv) {
    long blocks = argc > 1 ? atol(argv[1]) : 1000000;
    thread_count = argc > 2 ? atoi(argv[2]) : thread_count;
    CHECK(blocks >= 1 && thread_count >= 1 && thread_count <= MAX_THREADS);
    blocks_each = (blocks + thread_count - 1) / thread_count;
    print_device();
    load_kernels();
    found = host_visible<findings>();
    pool = gpu_pool(limit, "stress");
    for (int i = 0; i < thread_count * STREAMS_EACH; i++) {
        CUDA_OK(cudaStreamCreateWithFlags(&streams[i], i % 4 == 3 ? cudaStreamDefault : cudaStreamNonBlocking));
    }
    pthread_t threads[MAX_THREADS];
    double start = seconds_now();
    for (intptr_t i = 0; i < thread_count; i++) {
        CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    }
    for (int i = 0; i < thread_count; i++) {
        pthread_join(threads[i], NULL);
    }
    for (auto &slot : exchange) {
        block *left = slot.exchange(NULL);
        if (left != NULL) {
            queue_check(left->stream, left->p, left->bytes, left->seed, found);
            CHECK_OK(weir_pool_free(pool, left->p, left->stream));
            CUDA_OK(cudaEventDestroy(left->written));
            delete left;
        }
    }
    CUDA_OK(cudaDeviceSynchronize());
    double took = seconds_now() - start;
    check_nothing_broken(found);

    weir_pool_stats s = CHECK_STATS(pool);
    printf("%ld blocks on %d threads and %d streams in %.1f s; %ld traded between threads, %ld recorded on a second "
           "stream, %ld orders by events, %ld waited for, %ld addresses next used by another stream, %ld requests "
           "refused and repeated; %" PRIu64 " pages moved, %" PRIu64 " created, %" PRIu64 " given back, peak %.1f MiB of %.1f\n",
           allocated.load(), thread_count, thread_count * STREAMS_EACH, took, given.load(), recorded.load(), ordered.load(),
           waited_for.load(), from_other_stream.load(), refused.load(), s.pages_moved, s.page_creates, s.page_releases,
           (double)s.reserved_bytes_peak / (double)MiB, (double)limit / (double)MiB);
    CHECK(allocated >= blocks);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    CHECK(s.reserved_bytes_peak <= limit);
    if (blocks >= 100000) {
        CHECK(s.pages_moved > 100);
        CHECK(from_other_stream > 1000);
        CHECK(given > 1000 && recorded > 1000);
    }
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    for (int i = 0; i < thread_count * STREAMS_EACH; i++) {
        CUDA_OK(cudaStreamDestroy(streams[i]));
    }
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_OK(weir_finalize());
    CUDA_OK(cudaFreeHost(found));
    CUDA_OK(cudaDeviceReset());
    return check_end();
}
