/* What copies cost: direct and staged ones of much memory, calls for little, and what a pinned pool holds for blocks of 1 to
 * 600 MiB. For a GPU; scripts/gpu-test.sh runs it.
 *
 *   copy_rates [MIB [LIVE_MIB]]   MiB of a long copy (1024), and MiB of blocks live at a time (3000)
 *
 * The medians of seven rounds, each beside the others. With COPY_RATES_GOALS=1 it fails if staged copies are slower than 85 %
 * of direct ones, if 4 KiB cost 2 us more than the driver's own call, or if the pool holds more than 1.1 times its peak. */
#include "../copies.h"

enum { ROUNDS = 7, CALLS = 2000, BURST = 100, SMALL = 4096 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *all, int count) {
    qsort(all, (size_t)count, sizeof *all, less);
    return all[count / 2];
}

typedef struct {
    char *pinned, *pageable, *device;
    size_t bytes;
    weir_stream stream;
} places;

typedef void (*copying)(const places *p, size_t bytes);

static void driver_in(const places *p, size_t bytes) {
    DEVICE_OK(cu.MemcpyHtoDAsync(device_address(p->device), p->pinned, bytes, p->stream));
}
static void driver_out(const places *p, size_t bytes) {
    DEVICE_OK(cu.MemcpyDtoHAsync(p->pinned, device_address(p->device), bytes, p->stream));
}
static void driver_pageable_in(const places *p, size_t bytes) {
    DEVICE_OK(cu.MemcpyHtoDAsync(device_address(p->device), p->pageable, bytes, p->stream));
}
static void driver_pageable_out(const places *p, size_t bytes) {
    DEVICE_OK(cu.MemcpyDtoHAsync(p->pageable, device_address(p->device), bytes, p->stream));
}
static void weir_in(const places *p, size_t bytes) {
    CHECK_OK(weir_copy_async(p->device, p->pinned, bytes, p->stream, 0));
}
static void weir_out(const places *p, size_t bytes) {
    CHECK_OK(weir_copy_async(p->pinned, p->device, bytes, p->stream, 0));
}
static void staged_in(const places *p, size_t bytes) {
    CHECK_OK(weir_copy_async(p->device, p->pageable, bytes, p->stream, WEIR_COPY_STAGED));
}
static void staged_out(const places *p, size_t bytes) {
    CHECK_OK(weir_copy_async(p->pageable, p->device, bytes, p->stream, WEIR_COPY_STAGED));
}

static const struct {
    const char *name;
    copying in, out;
} ways[] = {
    {"driver, page-locked", driver_in, driver_out},
    {"weir, pinned pool", weir_in, weir_out},
    {"weir, staged", staged_in, staged_out},
    {"driver, pageable", driver_pageable_in, driver_pageable_out},
};
enum { DRIVER, POOL, STAGED, PAGEABLE, WAYS };

static double once(const places *p, copying copy) {
    double start = now();
    copy(p, p->bytes);
    DEVICE_OK(cu.StreamSynchronize(p->stream));
    return (double)p->bytes / (now() - start) / 1e9;
}

static double call(const places *p, copying copy) {
    double spent = 0;
    for (int i = 0; i < CALLS; i += BURST) {
        double start = now();
        for (int j = 0; j < BURST; j++) {
            copy(p, SMALL);
        }
        spent += now() - start;
        DEVICE_OK(cu.StreamSynchronize(p->stream));
    }
    return spent / CALLS * 1e6;
}

/* Peak held over peak live, with random replacement of blocks of 1 to 600 MiB. */
static double held(size_t live_mib) {
    enum { BLOCKS = 64, STEPS = 600 };
    struct {
        void *at;
        size_t bytes;
    } blocks[BLOCKS] = {{0}};
    size_t live = 0, most = 0;
    uint64_t state = 1;
    weir_pool *pool = pool_of(WEIR_MEMORY_PINNED, 0);
    for (int step = 0; step < STEPS; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int place = (int)(state >> 33) % BLOCKS;
        size_t bytes = (1 + (state >> 40) % 600) * MiB - (state >> 20) % 4096;
        for (int i = place; blocks[place].at != NULL || live + bytes > live_mib * MiB; i = (i + 1) % BLOCKS) {
            if (blocks[i].at != NULL) {
                CHECK_OK(weir_pool_free(pool, blocks[i].at, WEIR_STREAM_HOST));
                live -= blocks[i].bytes;
                blocks[i].at = NULL;
            }
        }
        blocks[place].at = take(pool, bytes, WEIR_STREAM_HOST);
        blocks[place].bytes = bytes;
        live += bytes;
        most = live > most ? live : most;
    }
    double ratio = (double)CHECK_STATS(pool).reserved_bytes_peak / (double)most;
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(weir_pool_free(pool, blocks[i].at, WEIR_STREAM_HOST));
    }
    CHECK_OK(weir_pool_destroy(pool));
    return ratio;
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1024) * MiB;
    size_t live = argc > 2 ? strtoull(argv[2], NULL, 10) : 3000;
    double in[WAYS][ROUNDS], out[WAYS][ROUNDS], us[WAYS][ROUNDS], back[WAYS][ROUNDS];
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured is said also where a goal is missed */
    program_begin();
    sides s = sides_open();
    places p = {.bytes = bytes, .stream = s.stream};
    p.pinned = (char *)take(s.near, bytes, WEIR_STREAM_HOST);
    p.device = (char *)take(s.far, bytes, s.stream);
    p.pageable = (char *)malloc(bytes);
    CHECK(p.pageable != NULL);
    memset(p.pinned, 1, bytes);
    memset(p.pageable, 2, bytes);
    for (int round = -1; round < ROUNDS; round++) { /* the first is not counted */
        for (int way = 0; way < WAYS; way++) {
            double a = once(&p, ways[way].in), b = once(&p, ways[way].out);
            double c = call(&p, ways[way].in), d = call(&p, ways[way].out);
            if (round >= 0) {
                in[way][round] = a;
                out[way][round] = b;
                us[way][round] = c;
                back[way][round] = d;
            }
        }
    }
    /* from the device into pageable memory a call returns with the copy made; into other memory it does not */
    printf("%-22s %14s %14s %14s %14s\n", "", "to GB/s", "from GB/s", "4 KiB to us", "4 KiB from us");
    for (int way = 0; way < WAYS; way++) {
        printf("%-22s %14.2f %14.2f %14.2f %14.2f\n", ways[way].name, median(in[way], ROUNDS), median(out[way], ROUNDS),
               median(us[way], ROUNDS), median(back[way], ROUNDS));
    }
    free(p.pageable);
    CHECK_OK(weir_pool_free(s.near, p.pinned, s.stream));
    CHECK_OK(weir_pool_free(s.far, p.device, s.stream));
    sides_close(&s);
    double share_in = in[STAGED][ROUNDS / 2] / in[DRIVER][ROUNDS / 2];
    double share_out = out[STAGED][ROUNDS / 2] / out[DRIVER][ROUNDS / 2];
    double more = us[POOL][ROUNDS / 2] - us[DRIVER][ROUNDS / 2];
    double more_staged = us[STAGED][ROUNDS / 2] - us[DRIVER][ROUNDS / 2];
    double ratio = held(live);
    printf("staged %.0f %% / %.0f %% of direct, 4 KiB %+.2f us, staged %+.2f us; held / live %.3f\n", 100 * share_in,
           100 * share_out, more, more_staged, ratio);
    if (getenv("COPY_RATES_GOALS") != NULL) {
        CHECK(share_in >= 0.85 && share_out >= 0.85);
        CHECK(more <= 2 && more_staged <= 2);
        CHECK(ratio <= 1.1);
    }
    CHECK_OK(weir_finalize());
    return program_end();
}
