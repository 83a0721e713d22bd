/* One process allocates, exports, frees and gives back at random; three others import what they are told of, free it at random, and
 * are killed now and then. Whoever has a block finds in it what was written, also long after the others have freed it; and in the end
 * nothing is held. */
#include "peer.h"
#include "../habits.h"

enum { IMPORTERS = 3, LIVE = 128, HELD = 64, STREAMS = 3 };

typedef struct {
    void *p;
    size_t bytes;
    int value; /* of every byte */
} lent;

typedef struct {
    weir_ipc_token token;
    size_t bytes;
    int value;
} offer; /* of 0 bytes: all is to be freed, and told */

static weir_stream streams[STREAMS];
static uint64_t chance = 1;

static void storm_begin(void) {
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = stream_new();
    }
}

static void storm_end(void) {
    for (int i = 0; i < STREAMS; i++) {
        stream_end(streams[i]);
    }
}

static weir_stream some_stream(void) { return streams[below(&chance, STREAMS)]; }

/* Takes one of them away. */
static lent leave(lent *all, int *count) {
    int at = (int)below(&chance, (uint64_t)*count);
    lent gone = all[at];
    all[at] = all[--*count];
    CHECK(contents_are(gone.p, gone.value, gone.bytes));
    return gone;
}

static void give_back(weir_pool *pool, lent *all, int *count) {
    lent gone = leave(all, count);
    if (one_in(&chance, 3)) {
        CHECK_OK(weir_pool_record_stream(pool, gone.p, some_stream()));
    }
    CHECK_OK(one_in(&chance, 3) ? weir_pool_free_synced(pool, gone.p) : weir_pool_free(pool, gone.p, some_stream()));
}

/* ---- an importer ---- */

static void import(weir_pool *pool, const offer *o, lent *held, int *count) {
    void *p = NULL;
    weir_status status = weir_pool_import_pointer(pool, &o->token, &p);
    if (status == WEIR_ERROR_STALE) {
        return; /* freed since it was offered */
    }
    CHECK_OK(status);
    CHECK(contents_are(p, o->value, o->bytes));
    held[(*count)++] = (lent){p, o->bytes, o->value};
}

static void storm_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    lent held[HELD];
    int count = 0;
    offer o;
    chance = (uint64_t)getpid();
    storm_begin();
    while (recv(socket, &o, sizeof o, MSG_WAITALL) == sizeof o) {
        if (o.bytes > 0 && count < HELD) {
            import(pool, &o, held, &count);
        }
        while (count > 0 && (o.bytes == 0 || one_in(&chance, 2))) {
            give_back(pool, held, &count);
        }
        if (o.bytes == 0) {
            CHECK_OK(weir_device_synchronize());
            CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
            peer_tell(socket, 'f');
        }
        if (one_in(&chance, 100)) {
            CHECK_OK(one_in(&chance, 2) ? weir_pool_trim(pool, 0) : weir_pool_squeeze(pool, NULL));
        }
    }
    CHECK_OK(weir_pool_destroy(pool));
    storm_end();
    staging_end();
}

/* ---- the exporter ---- */

static peer importer_start(weir_pool *pool) {
    peer p = peer_start("storm");
    send_pool(p.socket, pool);
    return p;
}

static void let_all_go(peer *p) {
    offer o = {.bytes = 0};
    peer_send(p->socket, &o, sizeof o);
    peer_await(p->socket, 'f');
}

static void allocate(weir_pool *pool, lent *live, int *count, int value) {
    lent b = {NULL, log_uniform(&chance, 16, 8 * MiB), value};
    CHECK_OK(weir_pool_alloc(pool, b.bytes, streams[0], &b.p));
    stream_wait(streams[0]);
    contents_fill(b.p, b.value, b.bytes);
    live[(*count)++] = b;
}

static void export(weir_pool *pool, const lent *b, const peer *to) {
    offer o = {.bytes = b->bytes, .value = b->value};
    CHECK_OK(weir_pool_export_pointer(pool, b->p, &o.token));
    peer_send(to->socket, &o, sizeof o);
}

static void storm(void) {
    weir_pool *pool = pool_to_share(0);
    peer importers[IMPORTERS];
    lent live[LIVE];
    int count = 0, steps = check_under("plain") ? 3000 : 300;
    storm_begin();
    for (int i = 0; i < IMPORTERS; i++) {
        importers[i] = importer_start(pool);
    }
    for (int step = 0; step < steps; step++) {
        peer *some = &importers[below(&chance, IMPORTERS)];
        uint64_t what = below(&chance, 1000);
        if (what < 4 && !check_under("sanitizer")) {
            peer_kill(some);
            *some = importer_start(pool);
        } else if (what < 12) {
            let_all_go(some);
        } else if (what < 20) {
            CHECK_OK(one_in(&chance, 2) ? weir_pool_trim(pool, 0) : weir_pool_squeeze(pool, NULL));
        } else if (count == 0 || (what < 400 && count < LIVE)) {
            allocate(pool, live, &count, step % 251);
        } else if (what < 700) {
            export(pool, &live[below(&chance, (uint64_t)count)], some);
        } else {
            give_back(pool, live, &count);
        }
    }
    while (count > 0) {
        give_back(pool, live, &count);
    }
    for (int i = 0; i < IMPORTERS; i++) {
        let_all_go(&importers[i]);
    }
    CHECK_OK(weir_device_synchronize());
    await_return(pool);
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    weir_pool_stats s = CHECK_STATS(pool);
    CHECK_EQUAL(s.used_bytes, 0);
    CHECK_EQUAL(s.reserved_bytes, 0);
    CHECK_EQUAL(s.allocations, s.frees);
    for (int i = 0; i < IMPORTERS; i++) {
        shutdown(importers[i].socket, SHUT_WR);
        peer_join(&importers[i]);
    }
    CHECK_OK(weir_pool_destroy(pool));
    storm_end();
}

static const part parts[] = {{"storm", storm, storm_there, 0}};

int main(int argc, char **argv) { return peer_play(parts, sizeof parts / sizeof *parts, argc, argv); }
