/* create, destroy, create; initialise, finalise, initialise: each time everything is given back, in the
 * kernel's own account of this process: file descriptors, mappings, threads, resident memory; on a device, in the
 * driver's account of its memory. */
#include "../streams.h"
#include <dirent.h>

typedef struct {
    long descriptors, mappings, threads, memory_kib;
} footprint;

static long entries(const char *folder) {
    DIR *d = opendir(folder);
    long n = 0;
    CHECK(d != NULL);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static footprint measure(void) {
    footprint f = {entries("/proc/self/fd"), 0, entries("/proc/self/task"), 0};
    size_t left, total;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        f.mappings++;
    }
    fclose(file);
    if (check_on_device()) {
        DEVICE_OK(cu.MemGetInfo(&left, &total));
        f.memory_kib = (long)((total - left) / KiB);
        return f;
    }
    file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "RssShmem: %ld", &f.memory_kib);
    }
    fclose(file);
    return f;
}

static void one_round(int finalize) {
    weir_pool *pool = check_pool(0), *shared;
    weir_stream s;
    void *small[100], *large[3], *p;
    CHECK_OK(weir_default_pool(check_device(), &shared));
    long before_kib = measure().memory_kib;
    const size_t large_bytes = check_on_device() ? 128 * MiB : 8 * MiB; /* a device's account is coarse */
    s = stream_new();
    for (int i = 0; i < 100; i++) {
        CHECK_OK(weir_pool_alloc(pool, 700, s, &small[i]));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_OK(weir_pool_alloc(pool, large_bytes, s, &large[i]));
        contents_fill(large[i], 1, 8 * MiB);
    }
    CHECK_OK(weir_pool_alloc(shared, MiB, s, &p));
    CHECK(measure().memory_kib >= before_kib + (long)(2 * large_bytes / KiB));
    CHECK_OK(weir_pool_free_batch(pool, small, 100, s));
    CHECK_OK(weir_pool_free_batch(pool, large, 3, s));
    CHECK_OK(weir_pool_free(shared, p, s));
    if (finalize) {
        CHECK_OK(weir_finalize()); /* both pools, and the host stream */
        if (check_on_device()) {
            stream_end(s);
        }
    } else {
        stream_end(s);
        CHECK_OK(weir_pool_destroy(pool));
        CHECK_OK(weir_pool_squeeze(shared, NULL));
    }
}

static void rounds(int finalize) {
    footprint first = {0}, now = {0};
    for (int i = 0; i < 12; i++) {
        one_round(finalize);
        /* A stream's worker may take a moment to leave the kernel's list of threads. */
        for (int wait = 0; wait < 200; wait++) {
            now = measure();
            if (i < 3 || now.threads <= first.threads) {
                break;
            }
            pause_ms(5);
        }
        if (i == 2) {
            first = now;
        }
    }
    CHECK_EQUAL(now.descriptors, first.descriptors);
    CHECK(now.threads <= first.threads);
    CHECK(now.memory_kib <= first.memory_kib + 256);
    if (check_under("plain")) { /* the tools map memory of their own */
        CHECK(now.mappings <= first.mappings + 4);
    }
}

int main(void) {
    program_begin();
    rounds(0);
    rounds(1);
    CHECK_OK(weir_finalize());
    return program_end();
}
