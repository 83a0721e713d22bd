/* Blocks and events shared between two processes: contents, stream order, and a block that either frees first. */
#include "peer.h"

/* The bytes of the blocks that are exchanged: some of slabs, some over several pages. */
static const size_t sizes[] = {1, 256, 300, 256, 4096, 40000, 3 * MiB + 512, 40 * MiB};
enum { COUNT = sizeof sizes / sizeof *sizes };

/* ---- contents go both ways ---- */

static void exchange(void) {
    weir_pool *pool = pool_to_share(0);
    void *blocks[COUNT];
    peer other = peer_start("exchange");
    send_pool(other.socket, pool);
    for (int i = 0; i < COUNT; i++) {
        CHECK_OK(weir_pool_alloc(pool, sizes[i], NULL, &blocks[i]));
        contents_fill(blocks[i], i + 1, sizes[i]);
        send_block(other.socket, pool, blocks[i]);
    }
    peer_await(other.socket, 'w');
    for (int i = 0; i < COUNT; i++) {
        CHECK(contents_are(blocks[i], i + 101, sizes[i]));
        CHECK_OK(weir_pool_free_synced(pool, blocks[i]));
    }
    CHECK_EQUAL(pending(pool), 0);
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    peer_tell(other.socket, 'e');
    peer_join(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static void exchange_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    void *blocks[COUNT], *none = NULL;
    size_t held = 0;
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = receive_block(socket, pool);
        CHECK(contents_are(blocks[i], i + 1, sizes[i]));
        contents_fill(blocks[i], i + 101, sizes[i]);
        held += sizes[i];
    }
    weir_pool_stats stats = CHECK_STATS(pool);
    CHECK(stats.used_bytes >= held);
    /* each has its own pages, of at most 64 MiB, and one more where it crosses from one to another */
    CHECK(stats.reserved_bytes <= held + 2 * COUNT * 64 * MiB);
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_alloc(pool, 100, NULL, &none));
    CHECK_SAYS("allocates nothing");
    size_t two[] = {100, 5 * MiB}, counts[] = {1, 1};
    void *both[2];
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_alloc_batch(pool, two, 2, NULL, both));
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_warmup(pool, two, counts, 2, NULL));
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_export(pool, &socket));
    CHECK_STATUS(WEIR_ERROR_INTERIOR_POINTER, weir_pool_free(pool, (char *)blocks[6] + 1024, NULL));
    for (int i = 0; i < COUNT; i++) {
        weir_status status = i % 2 ? weir_pool_free_synced(pool, blocks[i]) : weir_pool_free(pool, blocks[i], NULL);
        CHECK_STATUS(WEIR_OK, status);
    }
    if (check_on_device()) {
        CHECK_OK(weir_stream_synchronize(NULL));
    }
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_free(pool, blocks[3], NULL));
    stats = CHECK_STATS(pool);
    CHECK_EQUAL(stats.used_bytes, 0);
    CHECK_EQUAL(stats.reserved_bytes, 0);
    CHECK_EQUAL(stats.page_creates, stats.page_releases);
    peer_tell(socket, 'w');
    peer_await(socket, 'e');
    CHECK_OK(weir_pool_destroy(pool));
}

/* ---- the exporter frees first ---- */

static void freed_first(void) {
    weir_pool *pool = pool_to_share(2 * BLOCK);
    void *lent, *other_block, *more = NULL;
    peer other = peer_start("freed_first");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &lent));
    contents_fill(lent, 1, BLOCK);
    send_pool(other.socket, pool);
    send_block(other.socket, pool, lent);
    peer_await(other.socket, 'i');
    CHECK_OK(weir_pool_free(pool, lent, NULL));
    CHECK_EQUAL(pending(pool), BLOCK);
    weir_ipc_token token;
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_export_pointer(pool, lent, &token));
    /* nobody gets its memory, and none of it is given back; all else is */
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &other_block));
    contents_fill(other_block, 2, BLOCK);
    CHECK_STATUS(WEIR_ERROR_OUT_OF_MEMORY, weir_pool_alloc(pool, BLOCK, NULL, &more));
    CHECK_OK(weir_pool_free(pool, other_block, NULL));
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, BLOCK);
    peer_tell(other.socket, 'c');
    peer_await(other.socket, 'f');
    /* the importer has let it go: at once it is to be had */
    CHECK_OK(weir_pool_alloc(pool, 2 * BLOCK, NULL, &more));
    CHECK_OK(weir_pool_free(pool, more, NULL));
    peer_tell(other.socket, 'e');
    peer_join(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static void freed_first_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    weir_ipc_token token;
    void *block, *again = NULL;
    peer_receive(socket, &token, sizeof token);
    CHECK_OK(weir_pool_import_pointer(pool, &token, &block));
    peer_tell(socket, 'i');
    peer_await(socket, 'c');
    CHECK(contents_are(block, 1, BLOCK));
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_pointer(pool, &token, &again));
    CHECK_SAYS("freed");
    CHECK_OK(weir_pool_free_synced(pool, block));
    peer_tell(socket, 'f');
    peer_await(socket, 'e');
    CHECK_OK(weir_pool_destroy(pool));
}

/* ---- a free in stream order ---- */

static void in_order(void) {
    weir_pool *pool = pool_to_share(0);
    void *lent;
    peer other = peer_start("in_order");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &lent));
    send_pool(other.socket, pool);
    send_block(other.socket, pool, lent);
    peer_await(other.socket, 'q');
    CHECK_OK(weir_pool_free(pool, lent, NULL));
    CHECK_EQUAL(pending(pool), BLOCK); /* the work that is queued there has not begun */
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, BLOCK);
    peer_tell(other.socket, 'g');
    peer_await(other.socket, 'd');
    CHECK_EQUAL(pending(pool), 0);
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    peer_tell(other.socket, 'e');
    peer_join(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static void in_order_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    void *block = receive_block(socket, pool);
    weir_stream s = stream_new(), t = stream_new();
    gate held;
    memset(&held, 0, sizeof held);
    job write = job_over(block, BLOCK, 1), check = job_over(block, BLOCK, 1);
    queue_gate(s, &held);
    queue_write(s, &write);
    queue_check(s, &check);
    CHECK_OK(weir_pool_record_stream(pool, block, s));
    CHECK_OK(weir_pool_free(pool, block, t)); /* t has nothing to do */
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, BLOCK);
    peer_tell(socket, 'q');
    peer_await(socket, 'g');
    atomic_store(&held.open, 1);
    stream_wait(s);
    stream_wait(t);
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    peer_tell(socket, 'd');
    peer_await(socket, 'e');
    CHECK_OK(weir_pool_destroy(pool));
    stream_end(s);
    stream_end(t);
    staging_end();
}

/* ---- events order the work of two processes, both ways ---- */

static void events(void) {
    weir_pool *pool = pool_to_share(0), *theirs;
    void *block;
    weir_stream s = stream_new(), t = stream_new();
    gate held;
    memset(&held, 0, sizeof held);
    peer other = peer_start("events");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, s, &block));
    weir_event written = event_to_share();
    send_pool(other.socket, pool);
    send_block(other.socket, pool, block);
    send_event(other.socket, pool, written);
    job write = job_over(block, BLOCK, 1), check = job_over(block, BLOCK, 2);
    queue_gate(s, &held);
    queue_write(s, &write);
    CHECK_OK(weir_event_record(written, s));
    peer_tell(other.socket, 'r');

    theirs = receive_pool(other.socket);
    weir_event changed = receive_event(other.socket, theirs);
    peer_await(other.socket, 'r');
    CHECK(!event_complete(changed));
    CHECK_OK(weir_stream_wait_event(t, written));
    CHECK_OK(weir_stream_wait_event(t, changed));
    queue_check(t, &check);
    pause_ms(50);
    CHECK(!event_complete(changed));
    CHECK(!job_done(&check));
    atomic_store(&held.open, 1);
    CHECK_OK(weir_event_synchronize(changed));
    stream_wait(s);
    stream_wait(t);
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    CHECK(event_complete(changed));
    if (!check_on_device()) {
        CHECK_STATUS(WEIR_ERROR_BACKEND, weir_event_record(changed, t));
        CHECK_SAYS("one alone may");
    }
    peer_tell(other.socket, 'e');
    peer_join(&other);
    event_end(changed);
    event_end(written);
    CHECK_OK(weir_pool_destroy(theirs));
    CHECK_OK(weir_pool_free(pool, block, s));
    CHECK_OK(weir_pool_destroy(pool));
    stream_end(s);
    stream_end(t);
    staging_end();
}

static void events_there(int socket) {
    weir_pool *theirs = receive_pool(socket), *pool = pool_to_share(0);
    void *block = receive_block(socket, theirs);
    weir_event written = receive_event(socket, theirs), changed = event_to_share();
    weir_stream s = stream_new();
    job check = job_over(block, BLOCK, 1), write = job_over(block, BLOCK, 2);
    peer_await(socket, 'r');
    CHECK_OK(weir_stream_wait_event(s, written));
    queue_check(s, &check);
    queue_write(s, &write);
    CHECK_OK(weir_pool_free(theirs, block, s));
    send_pool(socket, pool);
    send_event(socket, pool, changed);
    CHECK_OK(weir_event_record(changed, s));
    peer_tell(socket, 'r');
    stream_wait(s);
    CHECK_GOOD(check);
    CHECK_GOOD(write);
    peer_await(socket, 'e');
    CHECK_EQUAL(CHECK_STATS(theirs).reserved_bytes, 0);
    event_end(changed);
    event_end(written);
    CHECK_OK(weir_pool_destroy(theirs));
    CHECK_OK(weir_pool_destroy(pool));
    stream_end(s);
    staging_end();
}

/* ---- a block of many pages, and a pool that moves what is not lent ---- */

static void many_pages(void) {
    const size_t large = 280 * MiB;
    weir_pool *pool = pool_to_share(300 * MiB);
    void *block, *rest;
    peer other = peer_start("many_pages");
    CHECK_OK(weir_pool_alloc(pool, large, NULL, &block));
    for (size_t at = 0; at < large; at += 2 * MiB) {
        word_put((uint64_t *)block, at / 8, at + 1);
    }
    send_pool(other.socket, pool);
    send_block(other.socket, pool, block);
    peer_await(other.socket, 'w');
    for (size_t at = 0; at < large; at += 2 * MiB) {
        CHECK_EQUAL(word_get((uint64_t *)block, at / 8), at + 2);
    }
    CHECK_OK(weir_pool_alloc(pool, 20 * MiB, NULL, &rest));
    CHECK_OK(weir_pool_free_synced(pool, rest));
    CHECK_OK(weir_pool_trim(pool, 0));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, large);
    CHECK_OK(weir_pool_free_synced(pool, block));
    CHECK_EQUAL(pending(pool), 0);
    peer_tell(other.socket, 'e');
    peer_join(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static void many_pages_there(int socket) {
    const size_t large = 280 * MiB;
    weir_pool *pool = receive_pool(socket);
    uint64_t *block = receive_block(socket, pool);
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, large);
    for (size_t at = 0; at < large; at += 2 * MiB) {
        CHECK_EQUAL(word_get(block, at / 8), at + 1);
        word_put(block, at / 8, at + 2);
    }
    CHECK_OK(weir_pool_free_synced(pool, block));
    peer_tell(socket, 'w');
    peer_await(socket, 'e');
    CHECK_OK(weir_pool_destroy(pool));
}

static const part parts[] = {
    {"exchange", exchange, exchange_there, 0},
    {"freed_first", freed_first, freed_first_there, 0},
    {"in_order", in_order, in_order_there, 0},
    {"events", events, events_there, 0},
    {"many_pages", many_pages, many_pages_there, 0},
};

int main(int argc, char **argv) { return peer_play(parts, sizeof parts / sizeof *parts, argc, argv); }
