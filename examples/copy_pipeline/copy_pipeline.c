/* A pipeline that feeds a GPU: threads read a file, or make numbers, into page-locked blocks; a stream copies each block to
 * the device while the next ones are filled. A block is freed as soon as its copy is queued: weir hands its memory out again
 * when the copy is complete, and a deferred call counts what has arrived.
 *
 *   copy_pipeline [--memory device|host] [--bytes N] [--block N] [--threads N] [FILE]
 *
 * On the host the "device" is another pool, and a host stream makes the copies. At the end what arrived last is looked at. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <weir.h>

enum { IN_FLIGHT = 16, TARGETS = 16, MOST_THREADS = 64 };

static struct {
    int on_host, threads, file;
    uint64_t bytes, block, blocks;
    weir_pool *near, *far;
    weir_stream stream;
    char *target; /* TARGETS blocks, written in turn */
    sem_t room;   /* for blocks whose copy has not arrived */
    atomic_uint_fast64_t next, arrived;
    atomic_int failed;
    pthread_mutex_t order; /* copies are queued in the order of their blocks, so that the last ones are what is left */
    pthread_cond_t queued;
    uint64_t queue_next;
} run = {.threads = 4, .file = -1, .bytes = (uint64_t)4 << 30, .block = (uint64_t)16 << 20,
         .order = PTHREAD_MUTEX_INITIALIZER, .queued = PTHREAD_COND_INITIALIZER};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "copy_pipeline: %s\n", what);
    exit(1);
}

static void must(weir_status status, const char *what) {
    if (status != WEIR_OK) {
        fprintf(stderr, "copy_pipeline: %s: %s\n", what, weir_last_error());
        exit(1);
    }
}

/* ---- what goes through the pipeline ---- */

static uint64_t length_of(uint64_t block) {
    uint64_t at = block * run.block;
    return run.bytes - at < run.block ? run.bytes - at : run.block;
}

static void fill(char *to, uint64_t block) {
    uint64_t at = block * run.block, left = length_of(block);
    if (run.file < 0) {
        uint64_t *words = (uint64_t *)to, first = at / 8;
        for (uint64_t i = 0; i < (left + 7) / 8; i++) {
            words[i] = (first + i) * 0x9e3779b97f4a7c15u;
        }
        return;
    }
    while (left > 0) {
        ssize_t got = pread(run.file, to, left, (off_t)at);
        if (got <= 0) {
            die(got < 0 ? strerror(errno) : "the file became shorter");
        }
        to += got;
        at += (uint64_t)got;
        left -= (uint64_t)got;
    }
}

/* Called when a copy is complete. */
static void has_arrived(void *arg) {
    atomic_fetch_add(&run.arrived, length_of((uint64_t)(uintptr_t)arg));
    sem_post(&run.room);
}

static void queue_copy(char *source, uint64_t block) {
    pthread_mutex_lock(&run.order);
    while (run.queue_next != block) {
        pthread_cond_wait(&run.queued, &run.order);
    }
    char *to = run.target + block % TARGETS * run.block;
    must(weir_copy_async(to, source, length_of(block), run.stream, 0), "copying");
    must(weir_stream_defer(run.stream, has_arrived, (void *)(uintptr_t)block), "deferring");
    run.queue_next++;
    pthread_cond_broadcast(&run.queued);
    pthread_mutex_unlock(&run.order);
}

static void *producer(void *arg) {
    (void)arg;
    while (1) {
        sem_wait(&run.room);
        uint64_t block = atomic_fetch_add(&run.next, 1);
        if (block >= run.blocks) {
            sem_post(&run.room);
            return NULL;
        }
        void *source = NULL;
        must(weir_pool_alloc(run.near, run.block, WEIR_STREAM_HOST, &source), "a block");
        fill(source, block);
        queue_copy(source, block);
        must(weir_pool_free(run.near, source, WEIR_STREAM_HOST), "freeing"); /* the copy may not even have begun */
    }
}

/* ---- around it ---- */

static void show(double start) {
    static const char full[] = "########################################";
    enum { WIDTH = sizeof full - 1 };
    uint64_t arrived = atomic_load(&run.arrived);
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r[%-*.*s] %5.1f %%  %6.2f GB/s", WIDTH, (int)(arrived * WIDTH / run.bytes), full,
                100.0 * (double)arrived / (double)run.bytes, (double)arrived / (seconds() - start) / 1e9);
    }
}

/* Runs everything through; returns the time. */
static double pump(void) {
    pthread_t threads[MOST_THREADS];
    double start = seconds();
    atomic_store(&run.next, 0);
    atomic_store(&run.arrived, 0);
    run.queue_next = 0;
    for (int i = 0; i < run.threads; i++) {
        if (pthread_create(&threads[i], NULL, producer, NULL) != 0) {
            die("no thread");
        }
    }
    while (atomic_load(&run.arrived) < run.bytes) {
        struct timespec moment = {0, 20000000};
        uint64_t before = atomic_load(&run.arrived);
        if (run.bytes - before < (uint64_t)64 << 20) {
            moment.tv_nsec = 200000;
        }
        nanosleep(&moment, NULL);
        show(start);
    }
    double spent = seconds() - start;
    for (int i = 0; i < run.threads; i++) {
        pthread_join(threads[i], NULL);
    }
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K");
    }
    return spent;
}

/* What the link does with one large page-locked block, GB/s. */
static double link_rate(void) {
    enum { TIMES = 4 };
    uint64_t bytes = TARGETS * run.block;
    void *source = NULL;
    must(weir_pool_alloc(run.near, bytes, WEIR_STREAM_HOST, &source), "a block");
    memset(source, 1, bytes);
    double best = 0;
    for (int i = 0; i < TIMES; i++) {
        double start = seconds();
        must(weir_copy_async(run.target, source, bytes, run.stream, 0), "copying");
        must(weir_stream_synchronize(run.stream), "waiting");
        double rate = (double)bytes / (seconds() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    must(weir_pool_free(run.near, source, WEIR_STREAM_HOST), "freeing");
    return best;
}

/* Copies the last blocks back, and compares. */
static int arrived_well(void) {
    char *seen = malloc(run.block), *want = malloc(run.block);
    uint64_t first = run.blocks > TARGETS ? run.blocks - TARGETS : 0;
    int good = seen != NULL && want != NULL;
    for (uint64_t block = first; good && block < run.blocks; block++) {
        char *from = run.target + block % TARGETS * run.block;
        must(weir_copy_async(seen, from, length_of(block), run.stream, WEIR_COPY_STAGED), "copying back");
        must(weir_stream_synchronize(run.stream), "waiting");
        fill(want, block);
        good = memcmp(seen, want, length_of(block)) == 0;
    }
    free(seen);
    free(want);
    return good;
}

static weir_pool *pool_of(int memory, const char *name) {
    weir_pool_options options;
    weir_pool *pool = NULL;
    must(weir_pool_options_init(&options, sizeof options), "options");
    options.memory = memory;
    options.name = name;
    must(weir_pool_create(&options, &pool), name);
    return pool;
}

static uint64_t number(const char *text) {
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end != '\0' ? strchr("KMG", *end) : NULL;
    for (const char *u = "KMG"; unit != NULL && *u != '\0'; u++) {
        value *= 1024;
        if (*u == *unit) {
            break;
        }
    }
    if (!(value >= 1 && value <= 1e18) || (*end != '\0' && (unit == NULL || end[1] != '\0'))) {
        die("a number such as 512, 16M or 4G was expected");
    }
    return (uint64_t)value;
}

static void options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strncmp(name, "--", 2) != 0) {
            struct stat status;
            run.file = open(name, O_RDONLY | O_CLOEXEC);
            if (run.file < 0 || fstat(run.file, &status) != 0 || status.st_size == 0) {
                die("the file cannot be read, or is empty");
            }
            run.bytes = (uint64_t)status.st_size;
            continue;
        }
        if (value == NULL) {
            die("usage: copy_pipeline [--memory device|host] [--bytes N] [--block N] [--threads N] [FILE]");
        }
        i++;
        if (strcmp(name, "--memory") == 0) {
            run.on_host = strcmp(value, "host") == 0;
        } else if (strcmp(name, "--bytes") == 0) {
            run.bytes = number(value);
        } else if (strcmp(name, "--block") == 0) {
            run.block = (number(value) + 7) / 8 * 8;
        } else if (strcmp(name, "--threads") == 0) {
            uint64_t wanted = number(value);
            run.threads = wanted < MOST_THREADS ? (int)wanted : MOST_THREADS;
        } else {
            die("an option that there is not");
        }
    }
    run.blocks = (run.bytes + run.block - 1) / run.block;
}

int main(int argc, char **argv) {
    options(argc, argv);
    run.near = pool_of(run.on_host ? WEIR_MEMORY_HOST : WEIR_MEMORY_PINNED, "page-locked blocks");
    run.far = pool_of(run.on_host ? WEIR_MEMORY_HOST : WEIR_MEMORY_DEVICE, "what the device has");
    if (run.on_host) {
        must(weir_host_stream_create(&run.stream), "a stream");
    } /* else the default stream of device 0 */
    must(weir_pool_alloc(run.far, TARGETS * run.block, run.stream, (void **)&run.target), "the target");
    sem_init(&run.room, 0, IN_FLIGHT);

    double rate = link_rate(), first = pump(), again = pump();
    int good = arrived_well();
    weir_pool_stats stats = {.struct_size = sizeof stats};
    must(weir_pool_get_stats(run.near, &stats), "statistics");
    printf("%.2f GB through %" PRIu64 " blocks of %" PRIu64 " KiB by %d threads, %s\n", (double)run.bytes / 1e9, run.blocks,
           run.block >> 10, run.threads, run.on_host ? "to host memory" : "to device 0");
    printf("the link alone   %6.2f GB/s\n", rate);
    printf("the pipeline     %6.2f GB/s the first time, %.2f the second (%.0f %% of the link)\n",
           (double)run.bytes / first / 1e9, (double)run.bytes / again / 1e9, 100 * (double)run.bytes / again / 1e9 / rate);
    printf("page-locked      %6.1f MiB at most\n", (double)stats.reserved_bytes_peak / 1048576);
    printf("%s\n", good ? "what arrived is what was sent" : "WHAT ARRIVED IS NOT WHAT WAS SENT");

    must(weir_pool_free(run.far, run.target, run.stream), "freeing");
    must(weir_stream_synchronize(run.stream), "waiting");
    if (run.on_host) {
        must(weir_host_stream_destroy(run.stream), "ending a stream");
    }
    must(weir_pool_destroy(run.near), "ending a pool");
    must(weir_pool_destroy(run.far), "ending a pool");
    must(weir_finalize(), "the end");
    sem_destroy(&run.room);
    return good ? 0 : 1;
}
