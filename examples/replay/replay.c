/* Replays recorded allocation traces through a weir pool: an ordinary C program that uses weir.h alone.
 *
 * Each trace runs twice over, on pools of their own. First, unless --no-check says otherwise, with an 8-byte
 * pattern at both ends of every block, written when it is allocated and checked when it is freed. Then for
 * the figures, touching no block, so that the time is that of weir_pool_alloc and weir_pool_free. */
#include "device.h"
#include "options.h"
#include "trace.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <weir.h>

/* What the page calls cost on an H200 (driver 580), in microseconds. On the host backend the calls are other
 * ones; their number is the same, so this is what the replay would spend in the driver on a GPU. */
static const double create_us = 7.0, map_us = 19.5, unmap_us = 13.0, release_us = 8.0;

enum { STEP = 8192 }; /* events between looks at the clock */

typedef struct {
    const options *options;
    const trace *trace;
    weir_pool *pool;
    weir_stream *streams;
    void **blocks;
    int on_host;
} run;

typedef struct {
    double ns_per_event;
    uint64_t failures;
    weir_pool_stats before, after;
} figures;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int failed(const char *what) {
    fprintf(stderr, "replay: %s: %s\n", what, weir_last_error());
    return -1;
}

static void progress(const run *r, const char *phase, int replay, size_t done) {
    static int terminal = -1;
    if (terminal < 0) {
        terminal = isatty(STDERR_FILENO);
    }
    if (!terminal) {
        return;
    }
    if (phase == NULL) {
        fprintf(stderr, "\r\033[K");
        return;
    }
    enum { WIDTH = 40 };
    static const char full[] = "########################################";
    int part = (int)(done * WIDTH / r->trace->count);
    fprintf(stderr, "\r%-20s %s %d/%d [%-*.*s] %3d %%", r->trace->name, phase, replay + 1, r->options->replays, WIDTH, part, full,
            (int)(done * 100 / r->trace->count));
}

/* The pattern of a block: eight bytes at its start and, where they do not meet, at its end. */
static uint64_t mark_of(uint32_t id, int replay) { return (id + ((uint64_t)replay << 32) + 1) * 0x9e3779b97f4a7c15u; }

static void mark(void *block, uint64_t bytes, uint64_t value) {
    memcpy(block, &value, bytes < 8 ? bytes : 8);
    if (bytes >= 16) {
        memcpy((char *)block + bytes - 8, &value, 8);
    }
}

static int marked(const void *block, uint64_t bytes, uint64_t value) {
    return memcmp(block, &value, bytes < 8 ? bytes : 8) == 0 &&
           (bytes < 16 || memcmp((const char *)block + bytes - 8, &value, 8) == 0);
}

static void report_failure(const run *r, size_t event) {
    const trace_event *e = &r->trace->events[event];
    progress(r, NULL, 0, 0);
    if (e->is_free) {
        fprintf(stderr, "replay: %s, event %zu (f %u %u): %s\n", r->trace->name, event + 1, e->id, e->stream, weir_last_error());
    } else {
        fprintf(stderr, "replay: %s, event %zu (a %u %" PRIu64 " %u): %s\n", r->trace->name, event + 1, e->id, e->bytes,
                e->stream, weir_last_error());
    }
}

/* Events [from, to) without touching a block; returns how many calls failed. */
static uint64_t replay_events(const run *r, size_t from, size_t to, uint64_t failures_so_far) {
    uint64_t failures = 0;
    for (size_t i = from; i < to; i++) {
        const trace_event *e = &r->trace->events[i];
        void **block = &r->blocks[e->id];
        weir_status status;
        if (e->is_free) {
            status = weir_pool_free(r->pool, *block, r->streams[e->stream]);
            *block = NULL;
        } else {
            status = weir_pool_alloc(r->pool, e->bytes, r->streams[e->stream], block);
        }
        if (status != WEIR_OK && failures++ + failures_so_far == 0) {
            report_failure(r, i);
        }
    }
    return failures;
}

/* Frees what the recording left live. */
static int free_rest(const run *r) {
    for (uint32_t id = 0; id < r->trace->blocks; id++) {
        if (r->blocks[id] != NULL && weir_pool_free_synced(r->pool, r->blocks[id]) != WEIR_OK) {
            return failed("freeing what was left");
        }
        r->blocks[id] = NULL;
    }
    return 0;
}

static int stats(const run *r, weir_pool_stats *out) {
    out->struct_size = sizeof *out;
    return weir_pool_get_stats(r->pool, out) == WEIR_OK ? 0 : failed("statistics");
}

static int timed_replay(const run *r, int replay, figures *out) {
    double spent = 0;
    memset(out, 0, sizeof *out);
    if (weir_pool_reset_peaks(r->pool) != WEIR_OK) {
        return failed("resetting the peaks");
    }
    if (stats(r, &out->before) != 0) {
        return -1;
    }
    for (size_t from = 0; from < r->trace->count; from += STEP) {
        size_t to = from + STEP < r->trace->count ? from + STEP : r->trace->count;
        progress(r, "timing  ", replay, from);
        double start = seconds();
        out->failures += replay_events(r, from, to, out->failures);
        spent += seconds() - start;
    }
    progress(r, NULL, 0, 0);
    out->ns_per_event = spent * 1e9 / (double)r->trace->count;
    return stats(r, &out->after) != 0 || free_rest(r) != 0 ? -1 : 0;
}

/* One replay with patterns; the sizes of live blocks are kept beside their addresses. */
static int checked_replay(const run *r, int replay, uint64_t *sizes) {
    for (size_t i = 0; i < r->trace->count; i++) {
        const trace_event *e = &r->trace->events[i];
        void **block = &r->blocks[e->id];
        if (i % STEP == 0) {
            progress(r, "checking", replay, i);
        }
        if (!e->is_free) {
            if (weir_pool_alloc(r->pool, e->bytes, r->streams[e->stream], block) != WEIR_OK) {
                report_failure(r, i);
                return -1;
            }
            sizes[e->id] = e->bytes;
            mark(*block, e->bytes, mark_of(e->id, replay));
            continue;
        }
        if (!marked(*block, sizes[e->id], mark_of(e->id, replay))) {
            progress(r, NULL, 0, 0);
            fprintf(stderr, "replay: %s, event %zu: block %u (%" PRIu64 " bytes at %p) was overwritten while it was live\n",
                    r->trace->name, i + 1, e->id, sizes[e->id], *block);
            return -1;
        }
        if (weir_pool_free(r->pool, *block, r->streams[e->stream]) != WEIR_OK) {
            report_failure(r, i);
            return -1;
        }
        *block = NULL;
    }
    progress(r, NULL, 0, 0);
    return free_rest(r);
}

static uint64_t limit_of(const options *o, const trace *t) {
    if (o->capacity_times <= 0) {
        return o->capacity_bytes;
    }
    double bytes = (double)t->peak_live * o->capacity_times;
    return bytes < 1 ? 1 : bytes > 1e18 ? (uint64_t)1e18 : (uint64_t)bytes; /* 0 would be no limit */
}

static int is_pinned(const options *o) { return o->memory == MEMORY_PINNED; }

/* Can the program look at the blocks? No work is queued that uses them. */
static int can_look(const options *o, int on_host) { return on_host || is_pinned(o); }

static int open_pool(run *r) {
    weir_pool_options o;
    if (weir_pool_options_init(&o, sizeof o) != WEIR_OK) {
        return failed("options");
    }
    o.memory = r->on_host ? WEIR_MEMORY_HOST : is_pinned(r->options) ? WEIR_MEMORY_PINNED : WEIR_MEMORY_DEVICE;
    o.name = r->trace->name;
    uint64_t limit = limit_of(r->options, r->trace);
    if (limit != 0) {
        o.max_bytes = limit;
    }
    return weir_pool_create(&o, &r->pool) == WEIR_OK ? 0 : failed("creating a pool");
}

/* Can a pool be made on the device? */
static int device_works(void) {
    weir_pool_options o;
    weir_pool *pool;
    if (weir_pool_options_init(&o, sizeof o) != WEIR_OK || weir_pool_create(&o, &pool) != WEIR_OK) {
        return 0;
    }
    weir_pool_destroy(pool);
    return 1;
}

/* Stream 0 of a trace is the default stream; the others are made. On the host a number does as a stream's name. */
static int stream_create(const run *r, weir_stream *stream) {
    if (!r->on_host) {
        return device_stream_create(stream);
    }
    return weir_host_stream_create(stream) == WEIR_OK ? 0 : failed("creating a stream");
}

static int stream_destroy(const run *r, weir_stream stream) {
    if (!r->on_host) {
        return device_stream_destroy(stream);
    }
    return weir_host_stream_destroy(stream) == WEIR_OK ? 0 : failed("destroying a stream");
}

static int real_streams(const options *o, int on_host) { return !on_host || !o->named_streams; }

static int open_streams(run *r) {
    for (uint16_t i = 0; i < r->trace->streams; i++) {
        r->streams[i] = (weir_stream)(uintptr_t)i;
        if (i > 0 && real_streams(r->options, r->on_host) && stream_create(r, &r->streams[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

static int close_streams(run *r) {
    for (uint16_t i = 1; real_streams(r->options, r->on_host) && i < r->trace->streams; i++) {
        if (stream_destroy(r, r->streams[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

static void print_heading(void) {
    printf("%-20s %6s %8s %9s %10s %10s %6s %7s %8s %8s %8s %8s %9s %8s %8s\n", "trace", "replay", "events", "ns/event", "live MiB",
           "rsrvd MiB", "ratio", "moved", "creates", "maps", "unmaps", "releases", "driver ms", "squeezes", "failures");
}

static void print_row(const run *r, int replay, const figures *f) {
    const weir_pool_stats *a = &f->after, *b = &f->before;
    uint64_t creates = a->page_creates - b->page_creates, maps = a->page_maps - b->page_maps;
    uint64_t unmaps = a->page_unmaps - b->page_unmaps, releases = a->page_releases - b->page_releases;
    double ms = ((double)creates * create_us + (double)maps * map_us + (double)unmaps * unmap_us + (double)releases * release_us) / 1000;
    char which[16];
    snprintf(which, sizeof which, "%s", replay == 0 ? "cold" : "warm");
    if (replay > 1) {
        snprintf(which, sizeof which, "warm%d", replay);
    }
    printf("%-20s %6s %8zu %9.1f %10.1f %10.1f %6.3f %7" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8" PRIu64
           " %9.1f %8" PRIu64 " %8" PRIu64 "\n",
           r->trace->name, which, r->trace->count, f->ns_per_event, (double)r->trace->peak_live / 1048576,
           (double)a->reserved_bytes_peak / 1048576, (double)a->reserved_bytes_peak / (double)r->trace->peak_live,
           a->pages_moved - b->pages_moved, creates, maps, unmaps, releases, ms, a->squeezes - b->squeezes, f->failures);
    fflush(stdout);
}

static int check_trace(run *r) {
    uint64_t *sizes = calloc(r->trace->blocks, sizeof *sizes);
    int result = sizes != NULL && open_pool(r) == 0 ? 0 : -1;
    for (int i = 0; i < r->options->replays && result == 0; i++) {
        result = checked_replay(r, i, sizes);
    }
    free(sizes);
    if (result == 0 && weir_pool_destroy(r->pool) != WEIR_OK) {
        result = failed("destroying the pool");
    }
    return result;
}

static int time_trace(run *r) {
    uint64_t failures = 0;
    if (open_pool(r) != 0) {
        return -1;
    }
    for (int i = 0; i < r->options->replays; i++) {
        figures f;
        if (timed_replay(r, i, &f) != 0) {
            return -1;
        }
        print_row(r, i, &f);
        failures += f.failures;
    }
    if (weir_pool_destroy(r->pool) != WEIR_OK) {
        return failed("destroying the pool");
    }
    if (failures > 0) {
        fprintf(stderr, "replay: %s: %" PRIu64 " calls failed\n", r->trace->name, failures);
        return -1;
    }
    return 0;
}

static int replay_trace(const options *o, const trace *t, int on_host) {
    run r = {.options = o, .trace = t, .on_host = on_host};
    r.streams = calloc(t->streams, sizeof *r.streams);
    r.blocks = calloc(t->blocks, sizeof *r.blocks);
    int result = -1;
    if (r.streams == NULL || r.blocks == NULL) {
        fprintf(stderr, "replay: out of memory\n");
    } else if (open_streams(&r) == 0 && (!o->check || !can_look(o, on_host) || check_trace(&r) == 0) && time_trace(&r) == 0) {
        result = close_streams(&r);
    }
    free(r.blocks);
    free(r.streams);
    return result;
}

int main(int argc, char **argv) {
    options o;
    int read = options_read(argc, argv, &o);
    if (read != 0) {
        return read < 0 ? 2 : 0;
    }
    int on_host = o.memory == MEMORY_HOST || (o.memory == MEMORY_ANY && !device_works());
    if (!on_host && device_open() != 0) {
        return 1;
    }
    printf("weir %s, %s%s, %s", weir_version(), is_pinned(&o) ? "pinned memory for " : "", on_host ? "host memory" : device_name(),
           real_streams(&o, on_host) ? "real streams" : "named streams");
    if (o.capacity_times > 0) {
        printf(", limit %gx peak live", o.capacity_times);
    } else if (o.capacity_bytes > 0) {
        printf(", limit %" PRIu64 " bytes", o.capacity_bytes);
    }
    printf(", %s\n\n", o.check && can_look(&o, on_host) ? "every block's contents checked" : "contents not checked");
    print_heading();
    fflush(stdout);
    for (int i = 0; i < o.trace_count; i++) {
        trace t;
        if (trace_read(o.traces[i], &t) != 0) {
            return 2;
        }
        int result = replay_trace(&o, &t, on_host);
        trace_drop(&t);
        if (result != 0) {
            weir_finalize();
            return 1;
        }
    }
    if (!on_host) {
        device_close();
    }
    return 0;
}
