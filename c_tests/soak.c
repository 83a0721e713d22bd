/* Programs made at random. A seed stands for a world: the options of a pool, threads and streams, and what each thread does
 * over and over. What must hold in all of them: each block keeps what was written to it, no call fails without reason, the
 * counters add up, and in the end everything is given back. How fast a world ran and what it held is printed for whoever
 * looks for worlds that grow slower, or hold more than they need, which are marked; it fails nothing, for machines are noisy.
 *
 *   soak [SEED [WORLDS [STEPS [SECONDS [MIB [faults]]]]]]
 *
 * runs so many worlds from SEED on, each for so many steps of each thread, but no longer than so many seconds, with at most
 * so many MiB in use. With faults, which the stand-in driver has, calls that the pool makes of it fail all the time: requests may then be
 * refused, and what else fails has changed nothing and is called again. */
#include "faults.h"
#include "recordings.h"
#include "transfers.h"

static block leave(actor *a, int at) {
    block b = a->live[at];
    a->count--;
    memmove(&a->live[at], &a->live[at + 1], (size_t)(a->count - at) * sizeof b); /* the oldest stays the first */
    a->live_bytes -= b.bytes;
    return b;
}

static void give_back(actor *a, const habit *h, int at) {
    block b = leave(a, at);
    weir_stream other = a->streams[below(a->source, (unsigned)a->stream_count)];
    a->calls++;
    if (one_in(a->source, h->cross)) {
        order(a, b.stream, other);
        queue_compare(a, &b, other);
        switch (below(a->source, 3)) {
        case 0:
            CHECK_OK_AT_LAST(weir_pool_record_stream(b.pool, b.p, other));
            CHECK_OK_AT_LAST(weir_pool_free(b.pool, b.p, b.stream));
            return;
        case 1:
            CHECK_OK_AT_LAST(weir_pool_free(b.pool, b.p, other));
            return;
        default:
            if (one_in(&a->random, 16)) {
                wait_for(other); /* which has waited for the other one */
                CHECK_OK_AT_LAST(weir_pool_free_synced(b.pool, b.p));
                return;
            }
            order(a, other, b.stream);
        }
    } else {
        queue_compare(a, &b, b.stream);
    }
    CHECK_OK_AT_LAST(weir_pool_free(b.pool, b.p, b.stream));
}

/* Which of its blocks goes next: of a round only those that it has made. */
static int choose_block(actor *a, const habit *h, int first) {
    switch (h->kind == FILL ? h->order : h->kind == FIFO ? 1 : 2) {
    case 0:
        return a->count - 1;
    case 1:
        return first;
    default:
        return first + (int)below(a->source, (unsigned)(a->count - first));
    }
}

static int has_room(const actor *a, const habit *h, size_t bytes) {
    return a->live_bytes + bytes <= h->budget && a->count < MAX_LIVE;
}

/* A block is had on one of its streams: 0 if it is refused. */
static int ask(actor *a, const habit *h, size_t bytes) {
    int home = (int)below(a->source, (unsigned)a->stream_count);
    weir_pool *pool = some_pool(a);
    size_t aligned = one_in(a->source, h->aligned) ? (size_t)256 << below(a->source, 9) : 256;
    block b;
    if (!have_block(a, pool, bytes, aligned, a->streams[home], home, &b)) {
        while (a->count > 0 && a->live_bytes > h->budget / 2) {
            give_back(a, h, a->count - 1);
        }
        return 0;
    }
    if (one_in(&a->random, h->touch)) {
        queue_words(a, &b);
    }
    keep_block(a, &b);
    return 1;
}

static void replace(actor *a, const habit *h) {
    size_t bytes = next_size(h, a->source, &a->random);
    while (a->count > 0 && !has_room(a, h, bytes)) {
        give_back(a, h, choose_block(a, h, 0));
    }
    ask(a, h, bytes);
}

static void fill_or_empty(actor *a, const habit *h) {
    if (a->count == 0) {
        a->emptying = 0;
    }
    if (a->emptying) {
        give_back(a, h, choose_block(a, h, 0));
        return;
    }
    size_t bytes = next_size(h, a->source, &a->random);
    a->emptying = !has_room(a, h, bytes) || !ask(a, h, bytes);
}

static void one_round(actor *a, const habit *h) {
    int before = a->count;
    a->round = h->seed;
    a->source = &a->round;
    for (unsigned i = 0; i < h->length; i++) {
        size_t bytes = next_size(h, a->source, &a->random);
        if (a->count <= before || (has_room(a, h, bytes) && one_in(a->source, 2))) {
            if (a->count == MAX_LIVE || !ask(a, h, bytes)) {
                break;
            }
        } else {
            give_back(a, h, choose_block(a, h, before));
        }
    }
    while (a->count > before) {
        give_back(a, h, a->count - 1);
    }
    a->source = &a->random;
}

static void one_batch(actor *a, const habit *h) {
    size_t sizes[64];
    void *blocks[64];
    int home = (int)below(a->source, (unsigned)a->stream_count);
    unsigned n = h->length < 64 ? h->length : 64;
    for (unsigned i = 0; i < n; i++) {
        sizes[i] = next_size(h, a->source, &a->random) / n + 4;
    }
    a->calls += 2 * n;
    weir_status status = weir_pool_alloc_batch(world.pool, sizes, n, a->streams[home], blocks);
    if (may_be_refused(status)) {
        world.refused++;
        return;
    }
    CHECK_OK(status);
    for (unsigned i = 0; i < n; i++) {
        if (one_in(&a->random, h->touch)) {
            block b = {(char *)blocks[i], sizes[i], world.pool, a->streams[home], home, 0, NULL};
            queue_words(a, &b);
            queue_compare(a, &b, b.stream);
        }
    }
    CHECK_OK_AT_LAST(weir_pool_free_batch(world.pool, blocks, n, a->streams[home]));
}

/* Offers its oldest block, and frees one that another thread has offered. */
static void hand_over(actor *a, const habit *h) {
    replace(a, h);
    if (a->count == 0) {
        return;
    }
    block *offer = (block *)malloc(sizeof *offer);
    CHECK(offer != NULL);
    *offer = leave(a, 0);
    offer->ready = event_new();
    CHECK_OK_AT_LAST(weir_event_record(offer->ready, offer->stream));
    block *taken = atomic_exchange(&world.exchange[below(&a->random, EXCHANGE)], offer);
    if (taken != NULL) {
        weir_stream stream = a->streams[below(&a->random, (unsigned)a->stream_count)];
        CHECK_OK_AT_LAST(weir_stream_wait_event(stream, taken->ready));
        queue_compare(a, taken, stream);
        CHECK_OK_AT_LAST(weir_pool_free(taken->pool, taken->p, stream));
        event_end(taken->ready);
        free(taken);
        a->calls++;
    }
}

/* A stream of its own goes, and another one comes. What was allocated on it is behind the new one's work. */
static void renew_stream(actor *a, int which, int waits) {
    weir_stream before = a->streams[which], now = stream_new();
    if (waits) {
        wait_for(before);
    } else {
        order(a, before, now);
    }
    for (int i = 0; i < a->count; i++) {
        if (a->live[i].home == which) {
            a->live[i].stream = now;
        }
    }
    for (int i = 0; i < RECORDINGS; i++) {
        if (a->recordings[i].stream == before) {
            a->recordings[i].stream = now;
        }
    }
    a->streams[which] = now;
    if (world.options.declared_streams) {
        CHECK_OK_AT_LAST(weir_stream_changed(before));
    }
    stream_end(before);
}

static void copy_or_give_back(actor *a, const habit *h) {
    if (a->count > 0 && (a->live_bytes > h->budget || a->count == MAX_LIVE || one_in(a->source, 3))) {
        give_back(a, h, choose_block(a, h, 0));
    } else {
        one_copy(a, h);
    }
}

/* Its blocks go later, but for a few. */
static void replace_late(actor *a, const habit *h) {
    size_t bytes = next_size(h, a->source, &a->random);
    while (a->count > 0 && !has_room(a, h, bytes)) {
        if (world.deferred > 16) {
            give_back(a, h, 0);
            continue;
        }
        block b = leave(a, (int)below(a->source, (unsigned)a->count));
        queue_compare(a, &b, b.stream);
        defer_free(&b);
    }
    ask(a, h, bytes);
}

static void brief_stream(actor *a, const habit *h) {
    int which = (int)below(&a->random, (unsigned)a->own_count);
    for (unsigned i = 0; i < h->length; i++) {
        replace(a, h);
    }
    renew_stream(a, which, one_in(&a->random, 4));
}

/* Another thread goes on for it, and ends. */
typedef struct {
    actor *a;
    const habit *h;
} shift;

static void *work_a_shift(void *arg) {
    shift *s = (shift *)arg;
    program_thread();
    for (unsigned i = 0; i < s->h->length; i++) {
        replace(s->a, s->h);
    }
    return NULL;
}

static void brief_thread(actor *a, const habit *h) {
    pthread_t thread;
    shift s = {a, h};
    CHECK_EQUAL(pthread_create(&thread, NULL, work_a_shift, &s), 0);
    pthread_join(thread, NULL);
    replace(a, h);
}

/* A pool of its own comes and goes, with work in flight when it does. */
static void brief_pool(actor *a, const habit *h) {
    enum { SOME = 24 };
    block some[SOME];
    int count = 0;
    weir_pool *pool = NULL;
    weir_pool_options o = world.options;
    o.thread_caches = one_in(&a->random, 2);
    o.initial_bytes = one_in(&a->random, 2) ? MiB : 0;
    CHECK_OK_AT_LAST(weir_pool_create(&o, &pool));
    for (unsigned i = 0; i < h->length; i++) {
        if (count == 0 || (count < SOME && one_in(a->source, 2))) {
            weir_stream stream = a->streams[below(a->source, (unsigned)a->stream_count)];
            block b;
            if (!have_block(a, pool, next_size(h, a->source, &a->random) / 8 + 8, 256, stream, 0, &b)) {
                break;
            }
            if (one_in(&a->random, h->touch)) {
                queue_words(a, &b);
            }
            some[count++] = b;
        } else {
            int at = (int)below(a->source, (unsigned)count);
            block b = some[at];
            some[at] = some[--count];
            queue_compare(a, &b, b.stream);
            CHECK_OK_AT_LAST(weir_pool_free(pool, b.p, b.stream));
            a->calls++;
        }
    }
    while (count > 0) {
        count--;
        queue_compare(a, &some[count], some[count].stream);
        CHECK_OK_AT_LAST(weir_pool_free(pool, some[count].p, some[count].stream));
    }
    CHECK_OK_AT_LAST(weir_pool_destroy(pool));
}

static void rare_call(actor *a) {
    switch (below(&a->random, 7)) {
    case 0:
        CHECK_OK_AT_LAST(weir_pool_trim(world.pool, below(&a->random, 2) * a->live_bytes));
        return;
    case 1:
        CHECK_OK_AT_LAST(weir_pool_squeeze(world.pool, NULL));
        return;
    case 2:
        wait_for(a->streams[below(&a->random, (unsigned)a->stream_count)]);
        return;
    case 3:
        renew_stream(a, (int)below(&a->random, (unsigned)a->own_count), one_in(&a->random, 2));
        return;
    case 4:
        CHECK_OK_AT_LAST(weir_pool_set_release_threshold(world.pool, one_in(&a->random, 2) ? world.options.release_threshold : a->live_bytes));
        return;
    case 5:
        if (check_on_device()) {
            CHECK_OK_AT_LAST(weir_device_synchronize());
        }
        return;
    default:
        pause_ms(1);
    }
}

static void look(void) {
    int n = world.look_count++;
    for (int i = 0; i < world.threads; i++) {
        world.looks[n].calls += actors[i].calls;
    }
    world.looks[n].time = seconds_now();
    world.looks[n].stats.struct_size = sizeof(weir_pool_stats);
    CHECK_OK(weir_pool_get_stats(world.pool, &world.looks[n].stats));
}

static void *live_a_life(void *arg) {
    actor *a = (actor *)arg;
    double began = seconds_now();
    const habit *h = &a->habits[0];
    unsigned left = 0;
    program_thread();
    for (unsigned step = 0; step < world.steps; step++) {
        if (left-- == 0) {
            h = &a->habits[below(&a->random, HABITS)];
            left = (unsigned)log_uniform(&a->random, 16, 4096);
        }
        switch (h->kind) {
        case FILL: fill_or_empty(a, h); break;
        case ROUNDS: one_round(a, h); break;
        case BATCHES: one_batch(a, h); break;
        case HAND_OVER: hand_over(a, h); break;
        case BRIEF_STREAMS: brief_stream(a, h); break;
        case BRIEF_THREADS: brief_thread(a, h); break;
        case BRIEF_POOLS: brief_pool(a, h); break;
        case COPIES: copy_or_give_back(a, h); break;
        case LATE_FREES: replace_late(a, h); break;
        case GRAPHS: check_on_device() ? one_graph(a, h) : replace(a, h); break;
        default: replace(a, h);
        }
        if (one_in(&a->random, world.rare)) {
            rare_call(a);
        }
        double now = step % 16 == 0 ? seconds_now() : 0;
        if (now > world.until) {
            break;
        }
        double done = (double)step / world.steps, gone = (now - began) / (world.until - began);
        if (a->number == 0 && world.look_count < LOOKS && (done > gone ? done : gone) * LOOKS >= world.look_count) {
            look();
        }
    }
    while (a->count > 0) {
        give_back(a, h, a->count - 1);
    }
    for (int i = 0; i < RECORDINGS; i++) {
        if (a->recordings[i].id != 0) {
            give_up(a, &a->recordings[i]);
        }
    }
    return NULL;
}

static void draw_world(uint64_t *random, size_t budget) {
    weir_pool_options *o = &world.options;
    memset(&world, 0, sizeof world);
    *o = check_options(one_in(random, 4) ? budget + below(random, budget / 2) : 0);
    o->declared_streams = (int)below(random, 2);
    o->slack = one_in(random, 4) ? 0.0 : one_in(random, 4) ? 0.25 : o->slack;
    o->release_threshold = one_in(random, 6) ? budget / 2 : UINT64_MAX;
    o->reuse_follow_event_dependencies = !one_in(random, 4);
    o->reuse_allow_opportunistic = !one_in(random, 6);
    o->reuse_allow_internal_dependencies = !one_in(random, 4);
    o->thread_caches = !one_in(random, 4);
    o->growth_ahead = one_in(random, 8) ? 16 * MiB : 0;
    o->one_handle_blocks = one_in(random, 12);
    o->device_memory = one_in(random, 12) ? WEIR_DEVICE_MEMORY_PLAIN : WEIR_DEVICE_MEMORY_MAPPED;
    world.told = !one_in(random, 3);
    world.lead = one_in(random, 3) ? 0 : (unsigned)log_uniform(random, 4, 1024);
    world.steady = (int)below(random, 2);
    world.rare = one_in(random, 3) ? 0 : (unsigned)log_uniform(random, 256, 32768);
    world.threads = one_in(random, 2) ? 1 : 2 + (int)below(random, MAX_THREADS - 1);
    world.shared_count = one_in(random, 3) ? 1 + (int)below(random, 2) : 0;
    int own = 1 + (int)log_uniform(random, 1, MAX_STREAMS - 3);
    for (int i = 0; i < world.shared_count; i++) {
        world.shared[i] = check_on_device() && one_in(random, 4) ? NULL : stream_new();
    }
    for (int i = 0; i < world.threads; i++) {
        actor *a = &actors[i];
        memset(a, 0, sizeof *a);
        a->number = i;
        a->random = next_of(random) | 1;
        a->source = &a->random;
        a->own_count = own;
        while (a->stream_count < own) {
            a->streams[a->stream_count++] = stream_new();
        }
        for (int k = 0; k < world.shared_count; k++) {
            a->streams[a->stream_count++] = world.shared[k];
        }
        habit usual = draw_habit(random, budget / (unsigned)world.threads);
        for (int k = 0; k < HABITS; k++) {
            a->habits[k] = world.steady || one_in(random, 2) ? usual : draw_habit(random, budget / (unsigned)world.threads);
        }
        a->event = event_new();
        if (check_on_device()) {
            CUdeviceptr seen = 0;
            DEVICE_OK(cu.MemAlloc(&seen, 2 * (MARKS + RECORDINGS * RECORDED) * sizeof *a->checks.seen));
            a->checks.seen = (uint32_t *)(uintptr_t)seen;
            a->fork = capture_event_new();
        }
        for (int k = 0; k < RECORDINGS; k++) {
            a->recordings[k].stream = a->streams[0];
            a->recordings[k].seen = a->checks.seen + 2 * (MARKS + k * RECORDED);
        }
    }
}

static void end_pool(weir_pool *pool) {
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    for (int i = 0; world.recorded && i < 500 && CHECK_STATS(pool).reserved_bytes > 0; i++) {
        pause_ms(10); /* a driver tells a while later that a graph is gone */
        CHECK_OK(weir_pool_squeeze(pool, NULL));
    }
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

static void end_world(void) {
    for (int i = 0; i < EXCHANGE; i++) {
        block *left = world.exchange[i];
        if (left != NULL) {
            CHECK_OK(weir_event_synchronize(left->ready));
            CHECK_OK_AT_LAST(weir_pool_free_synced(left->pool, left->p));
            event_end(left->ready);
            free(left);
        }
    }
    for (int i = 0; i < world.threads; i++) {
        actor *a = &actors[i];
        compare_words(a);
        for (int k = 0; k < a->stream_count; k++) {
            if (a->streams[k] != NULL) {
                wait_for(a->streams[k]);
            }
        }
    }
    while (world.deferred > 0) {
        pause_ms(1);
    }
    end_pool(world.pool);
    if (world.second != NULL) {
        end_pool(world.second);
    }
    for (int i = 0; i < world.threads; i++) {
        actor *a = &actors[i];
        for (int k = 0; k < a->own_count; k++) {
            stream_end(a->streams[k]);
        }
        event_end(a->event);
        if (a->checks.seen != NULL) {
            event_end(a->fork);
            DEVICE_OK(cu.MemFree(device_address(a->checks.seen)));
        }
    }
    for (int i = 0; i < world.shared_count; i++) {
        if (world.shared[i] != NULL) {
            stream_end(world.shared[i]);
        }
    }
}

static uint64_t page_calls(const weir_pool_stats *s) { return s->page_creates + s->page_releases + s->page_maps + s->page_unmaps; }

static void tell(uint64_t seed) {
    const weir_pool_options *o = &world.options;
    int last = world.look_count - 1, from[2] = {last / 4, last - last / 4}, to[2] = {last / 2, last};
    double rate[2] = {0, 0}, pages[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        double calls = (double)(world.looks[to[i]].calls - world.looks[from[i]].calls);
        double time = world.looks[to[i]].time - world.looks[from[i]].time;
        uint64_t made = page_calls(&world.looks[to[i]].stats) - page_calls(&world.looks[from[i]].stats);
        rate[i] = time > 0 ? calls / time / 1e6 : 0;
        pages[i] = calls > 0 ? (double)made * 1e3 / calls : 0;
    }
    const weir_pool_stats *s = &world.looks[last].stats;
    double held = s->used_bytes_peak > 0 ? (double)s->reserved_bytes_peak / (double)s->used_bytes_peak : 0;
    int alike = world.steady && world.rare == 0; /* a trim or a threshold changes what calls cost */
    int slower = alike && rate[1] < rate[0] / 3, more = alike && pages[1] > 3 * pages[0] + 20;
    int moves = o->device_memory == WEIR_DEVICE_MEMORY_MAPPED && !o->one_handle_blocks && o->reuse_allow_opportunistic;
    int much = s->reserved_bytes_peak > 2 * s->used_bytes_peak + 64 * MiB * (unsigned)world.threads;
    printf("seed %" PRIu64 ": %d thread(s), %d stream(s) each, %d shared%s%s%s, %s, lead %u; limit %" PRIu64 " MiB, threshold %" PRId64
           " MiB, slack %.3f, reuse %d%d%d, caches %d, ahead %d, one handle %d, plain %d; habits of the first: %s, %s, %s\n",
           seed, world.threads, actors[0].own_count, world.shared_count, o->declared_streams ? ", declared" : "",
           world.told ? ", told" : "", world.second != NULL ? ", two pools" : "", world.rare > 0 ? "rare calls" : "no rare calls", world.lead, o->max_bytes / MiB,
           (int64_t)o->release_threshold < 0 ? -1 : (int64_t)(o->release_threshold / MiB), o->slack, o->reuse_follow_event_dependencies,
           o->reuse_allow_opportunistic, o->reuse_allow_internal_dependencies, o->thread_caches, o->growth_ahead > 0,
           o->one_handle_blocks, o->device_memory == WEIR_DEVICE_MEMORY_PLAIN, kind_names[actors[0].habits[0].kind],
           kind_names[actors[0].habits[1].kind], kind_names[actors[0].habits[2].kind]);
    printf("  %" PRIu64 " calls in %.1f s: %.3f million a second early, %.3f late; page calls per 1,000: %.2f early, %.2f late; "
           "%" PRIu64 " refused, %" PRIu64 " made again; %.1f MiB in use at most, %.2f times that held, mappings %" PRIu64 "%s%s%s\n",
           world.looks[last].calls, world.looks[last].time - world.looks[0].time, rate[0], rate[1], pages[0], pages[1],
           world.refused, world.again, (double)s->used_bytes_peak / MiB, held, s->page_maps - s->page_unmaps, slower ? " SLOWER" : "", world.lead > 0 && moves && much ? " HELD" : "",
           more ? " PAGES" : "");
    fflush(stdout);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, worlds = argc > 2 ? strtoull(argv[2], NULL, 10) : 8;
    unsigned steps = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 2000;
    double seconds = argc > 4 ? strtod(argv[4], NULL) : 2;
    size_t budget = (argc > 5 ? strtoull(argv[5], NULL, 10) : 128) * MiB;
    int faults = argc > 6 && strcmp(argv[6], "faults") == 0;
    if (argc > 7 || (argc > 6 && !faults) || worlds == 0 || steps == 0 || !(seconds > 0) || budget < 16 * MiB) {
        fprintf(stderr, "soak: expects [SEED [WORLDS [STEPS [SECONDS [MIB [faults]]]]]], none of them 0 but SEED, and 16 MiB at least\n");
        return 2;
    }
    uint64_t met = 0;
    program_begin();
    if (faults) {
        find_faults();
    }
    for (uint64_t end = seed + worlds; seed < end; seed++) {
        uint64_t random = (seed + 1) * 0x9e3779b97f4a7c15u;
        draw_world(&random, budget);
        world.steps = steps;
        world.faults = faults;
        world.told |= faults; /* what is not told is called without the pool, which would meet the faults */
        CHECK_OK(weir_pool_create(&world.options, &world.pool));
        if (one_in(&random, 4)) {
            weir_pool_options o = world.options;
            world.second_is_pinned = check_on_device() && one_in(&random, 2);
            o.memory = world.second_is_pinned ? WEIR_MEMORY_PINNED : o.memory;
            CHECK_OK(weir_pool_create(&o, &world.second));
        }
        if (faults) {
            faults_begin(random);
        }
        world.until = seconds_now() + seconds;
        for (int i = 0; i < world.threads; i++) {
            CHECK_EQUAL(pthread_create(&actors[i].thread, NULL, live_a_life, &actors[i]), 0);
        }
        for (int i = 0; i < world.threads; i++) {
            pthread_join(actors[i].thread, NULL);
        }
        if (faults) {
            faults_end();
        }
        met += world.refused + world.again;
        look();
        tell(seed);
        end_world();
    }
    CHECK(!faults || met > 0); /* else none came */
    return program_end();
}
