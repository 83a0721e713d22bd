/* GPUs in a ring, each writing to blocks of the next one's pool, while all pools grow, move pages and are trimmed. One
 * thread works with the default pools of all devices, whichever of them is current; another trims and squeezes. Blocks
 * are written by a peer, checked by their owner, kept for a while, checked by a peer, and freed on a stream of either.
 * A single wrong word ends the program. Needs two GPUs that can reach each other; takes up to four.
 *
 *   ring [ROUNDS]     4000 by default */
#include "gpu.cuh"
#include <algorithm>
#include <atomic>
#include <deque>
#include <pthread.h>

enum { MOST = 4, AHEAD = 32 };
static const size_t kept_bytes = 1536 * MiB; /* of each device's blocks at once */

typedef struct {
    void *p;
    size_t bytes;
    uint64_t seed;
} block;

static int devices;
static weir_pool *pools[MOST];
static cudaStream_t streams[MOST];
static cudaEvent_t events[MOST];
static std::deque<block> kept[MOST];
static size_t live[MOST];
static findings *found;
static std::atomic<bool> stop;
static std::atomic<long> trims, squeezes;
static long freed_by_peer, freed_recorded, freed_at_home, other_current;

static uint64_t random_state = 88172645463325252ull;

static size_t random_size(void) {
    uint64_t kind = next_random(&random_state) % 100, r = next_random(&random_state);
    if (kind < 40) return 4 + r % (64 * KiB) / 4 * 4;
    if (kind < 80) return 4 + r % (4 * MiB) / 4 * 4;
    return 4 * MiB + r % (92 * MiB) / 4 * 4;
}

/* What is queued on `then` from now on comes after what was queued on `first`; the pools hear of it. */
static void order(int first, int then) {
    CUDA_OK(cudaSetDevice(first)); /* an event is recorded where it was made */
    CHECK_OK(weir_event_record(events[first], streams[first]));
    CUDA_OK(cudaSetDevice(then));
    CHECK_OK(weir_stream_wait_event(streams[then], events[first]));
}

/* The pool's own device is current as often as not. */
static void any_device_current(int home) {
    int device = (int)(next_random(&random_state) % (unsigned)devices);
    other_current += device != home;
    CUDA_OK(cudaSetDevice(device));
}

static void write_from(int device, const block *b) {
    CUDA_OK(cudaSetDevice(device));
    queue_write(streams[device], b->p, b->bytes, b->seed);
}
static void check_from(int device, const block *b) {
    CUDA_OK(cudaSetDevice(device));
    queue_check(streams[device], b->p, b->bytes, b->seed, found);
}

/* A block of `owner` is written by the device before it in the ring. */
static void pass(int owner, uint64_t seed) {
    int writer = (owner + devices - 1) % devices;
    block b = {NULL, random_size(), seed};
    any_device_current(owner);
    CHECK_OK(weir_pool_alloc(pools[owner], b.bytes, streams[owner], &b.p));
    live[owner] += b.bytes;
    order(owner, writer);
    write_from(writer, &b);
    order(writer, owner);
    check_from(owner, &b);
    kept[owner].push_back(b);
}

/* A kept block ends. Which one is chance, so that what is free lies in pieces. */
static void end(int owner) {
    std::deque<block> &blocks = kept[owner];
    std::swap(blocks[next_random(&random_state) % blocks.size()], blocks.back());
    block b = blocks.back();
    blocks.pop_back();
    live[owner] -= b.bytes;
    int peer = (owner + 1 + (int)(next_random(&random_state) % (unsigned)(devices - 1))) % devices;
    order(owner, peer);
    check_from(peer, &b);
    switch (next_random(&random_state) % 3) {
    case 0: /* on the peer's stream */
        any_device_current(peer);
        CHECK_OK(weir_pool_free(pools[owner], b.p, streams[peer]));
        freed_by_peer++;
        break;
    case 1: /* on its own, which the peer's work is not ordered with */
        CHECK_OK(weir_pool_record_stream(pools[owner], b.p, streams[peer]));
        any_device_current(owner);
        CHECK_OK(weir_pool_free(pools[owner], b.p, streams[owner]));
        freed_recorded++;
        break;
    default: /* on its own, after the peer's work */
        order(peer, owner);
        any_device_current(owner);
        CHECK_OK(weir_pool_free(pools[owner], b.p, streams[owner]));
        freed_at_home++;
    }
}

static void *trimmer(void *) {
    uint64_t turn = 0;
    while (!stop) {
        weir_pool *pool = pools[turn++ % (unsigned)devices];
        if (turn % 64 == 0) {
            CHECK_OK(weir_pool_squeeze(pool, NULL));
            squeezes++;
        } else {
            CHECK_OK(weir_pool_trim(pool, (size_t)(turn % 5) * 384 * MiB));
            trims++;
        }
        usleep(5000);
    }
    return NULL;
}

static size_t device_free(int device) {
    size_t left = 0, total = 0;
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaMemGetInfo(&left, &total));
    return left;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 4000;
    size_t before[MOST];
    pthread_t thread;
    CUDA_OK(cudaGetDeviceCount(&devices));
    devices = std::min(devices, (int)MOST);
    if (devices < 2) {
        printf("needs two GPUs, and there is %d\n", devices);
        return 77;
    }
    print_device();
    found = host_visible<findings>();
    for (int i = 0; i < devices; i++) {
        CUDA_OK(cudaSetDevice(i));
        load_kernels();
        CUDA_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        CUDA_OK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < devices; i++) {
        before[i] = device_free(i);
        CHECK_OK(weir_default_pool(i, &pools[i]));
        for (int peer = 0; peer < devices; peer++) {
            if (peer != i) {
                int can = 0;
                CUDA_OK(cudaDeviceCanAccessPeer(&can, peer, i));
                CHECK(can);
                CHECK_OK(weir_pool_set_access(pools[i], peer, WEIR_ACCESS_READ_WRITE));
            }
        }
    }
    CHECK_EQUAL(pthread_create(&thread, NULL, trimmer, NULL), 0);
    double start = seconds_now();
    uint64_t seed = 1;
    for (int round = 0; round < rounds; round++) {
        for (int owner = 0; owner < devices; owner++) {
            pass(owner, seed++);
            while (live[owner] > kept_bytes || (round % 400 == 399 && live[owner] > kept_bytes / 8)) {
                end(owner);
            }
        }
        if (round % AHEAD == AHEAD - 1) {
            for (int i = 0; i < devices; i++) {
                CUDA_OK(cudaSetDevice(i));
                CHECK_OK(weir_stream_synchronize(streams[i]));
            }
            check_nothing_broken(found);
        }
    }
    for (int owner = 0; owner < devices; owner++) {
        while (!kept[owner].empty()) {
            end(owner);
        }
    }
    for (int i = 0; i < devices; i++) {
        CUDA_OK(cudaSetDevice(i));
        CHECK_OK(weir_stream_synchronize(streams[i]));
    }
    check_nothing_broken(found);
    stop = true;
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    uint64_t moved = 0, maps = 0, releases = 0;
    for (int i = 0; i < devices; i++) {
        weir_pool_stats s = CHECK_STATS(pools[i]);
        CHECK_EQUAL(s.used_bytes, 0);
        moved += s.pages_moved;
        maps += s.page_creates;
        releases += s.page_releases;
    }
    double took = seconds_now() - start;
    CHECK_OK(weir_finalize());
    for (int i = 0; i < devices; i++) { /* but for what kernels and contexts take for themselves */
        CHECK(device_free(i) + 64 * MiB >= before[i]);
        CUDA_OK(cudaStreamDestroy(streams[i]));
        CUDA_OK(cudaEventDestroy(events[i]));
    }
    printf("%d GPUs, %" PRIu64 " blocks in %.1f s; freed by a peer %ld, recorded %ld, at home %ld; another device current %ld; "
           "pages: %" PRIu64 " created, %" PRIu64 " moved, %" PRIu64 " released; %ld trims, %ld squeezes\n",
           devices, seed - 1, took, freed_by_peer, freed_recorded, freed_at_home, other_current, maps, moved, releases,
           trims.load(), squeezes.load());
    if (rounds >= 1000) { /* a run that did nothing of the kind cannot pass */
        CHECK(moved > 20);
        CHECK(releases > 20);
        CHECK(trims > 10 && squeezes > 0);
    }
    CUDA_OK(cudaFreeHost(found));
    return check_end();
}
