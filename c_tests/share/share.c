/* Memory and events shared between two processes: contents, stream order, and what becomes of a block when one of them frees it,
 * ends, or dies. Run without arguments it plays all parts of one process and starts itself for those of the other. */
#include "peer.h"
#include <sys/prctl.h>

#define BLOCK (8 * MiB)

/* The bytes of the blocks that are exchanged: some of slabs, some over several pages. */
static const size_t sizes[] = {1, 256, 300, 256, 4096, 40000, 3 * MiB + 512, 40 * MiB};
enum { COUNT = sizeof sizes / sizeof *sizes };

/* What is freed and not to be had yet, once the pool has looked what is complete. */
static uint64_t pending(weir_pool *pool) {
    CHECK_OK(weir_pool_trim(pool, SIZE_MAX));
    return CHECK_STATS(pool).pending_bytes;
}

/* Waits until nothing is pending any more, which a process that ends brings about. */
static void await_return(weir_pool *pool) {
    for (int i = 0; pending(pool) != 0; i++) {
        CHECK(i < 3000);
        pause_ms(10);
    }
}

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

/* ---- the importer dies ---- */

static void importer_dies(void) {
    weir_pool *pool = pool_to_share(2 * BLOCK);
    void *lent, *all = NULL;
    peer other = peer_start("importer_dies");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &lent));
    send_pool(other.socket, pool);
    send_block(other.socket, pool, lent);
    send_block(other.socket, pool, lent);
    peer_await(other.socket, 'i');
    CHECK_OK(weir_pool_free(pool, lent, NULL));
    CHECK_EQUAL(pending(pool), BLOCK);
    peer_kill(&other);
    await_return(pool);
    CHECK_OK(weir_pool_alloc(pool, 2 * BLOCK, NULL, &all));
    CHECK_OK(weir_pool_free(pool, all, NULL));
    CHECK_OK(weir_pool_destroy(pool));
}

static void importer_dies_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    (void)receive_block(socket, pool);
    (void)receive_block(socket, pool); /* a second time, as somebody else in the process may */
    peer_tell(socket, 'i');
    for (;;) {
        pause();
    }
}

/* ---- the importer closes what it does not know, as daemons do, and goes on ---- */

static void line_closed(void) {
    weir_pool *pool = pool_to_share(0);
    void *lent;
    peer other = peer_start("line_closed");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &lent));
    contents_fill(lent, 1, BLOCK);
    send_pool(other.socket, pool);
    send_block(other.socket, pool, lent);
    peer_await(other.socket, 'c');
    CHECK_OK(weir_pool_free_synced(pool, lent));
    pause_ms(50);
    CHECK_EQUAL(pending(pool), BLOCK); /* it may still use the memory */
    peer_kill(&other);
    await_return(pool);
    CHECK_OK(weir_pool_destroy(pool));
}

static void line_closed_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    (void)receive_block(socket, pool);
    for (int file = 3; file < 100; file++) {
        if (file != socket) {
            close(file);
        }
    }
    peer_tell(socket, 'c');
    for (;;) {
        pause();
    }
}

/* ---- the exporter dies, or its pool ends ---- */

static void exporter_dies(void) {
    peer other = peer_start("exporter_dies");
    weir_pool *pool = receive_pool(other.socket);
    void *block = receive_block(other.socket, pool), *none = NULL;
    weir_ipc_token token;
    peer_receive(other.socket, &token, sizeof token);
    peer_kill(&other);
    CHECK(contents_are(block, 7, BLOCK));
    contents_fill(block, 8, BLOCK);
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_pointer(pool, &token, &none));
    CHECK(contents_are(block, 8, BLOCK));
    CHECK_OK(weir_pool_free_synced(pool, block));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

static void exporter_dies_there(int socket) {
    weir_pool *pool = pool_to_share(0);
    void *block, *second;
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &block));
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &second));
    contents_fill(block, 7, BLOCK);
    send_pool(socket, pool);
    send_block(socket, pool, block);
    send_block(socket, pool, second);
    for (;;) {
        pause();
    }
}

static void exporter_ends(void) {
    weir_pool *pool = pool_to_share(0);
    void *lent;
    int descriptor;
    peer other = peer_start("exporter_ends");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &lent));
    contents_fill(lent, 5, BLOCK);
    CHECK_OK(weir_pool_export(pool, &descriptor));
    CHECK_OK(weir_ipc_send_descriptor(other.socket, descriptor));
    send_block(other.socket, pool, lent);
    peer_await(other.socket, 'i');
    CHECK_OK(weir_pool_free(pool, lent, NULL));
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import(descriptor, &pool));
    CHECK_SAYS("ended");
    close(descriptor);
    peer_tell(other.socket, 'c');
    peer_join(&other);
}

static void exporter_ends_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    void *block = receive_block(socket, pool);
    peer_tell(socket, 'i');
    peer_await(socket, 'c');
    CHECK(contents_are(block, 5, BLOCK));
    CHECK_OK(weir_pool_free_synced(pool, block));
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

/* ---- whoever was to do the work before an event is gone ---- */

static void recorder_dies(void) {
    if (check_on_device()) {
        return; /* the driver's affair */
    }
    weir_pool *pool;
    weir_stream s = stream_new();
    peer other = peer_start("recorder_dies");
    pool = receive_pool(other.socket);
    weir_event event = receive_event(other.socket, pool), none = NULL;
    weir_ipc_token destroyed;
    peer_receive(other.socket, &destroyed, sizeof destroyed);
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_event(pool, &destroyed, &none));
    CHECK_SAYS("destroyed");
    peer_await(other.socket, 'r');
    CHECK(!event_complete(event));
    CHECK_OK(weir_stream_wait_event(s, event));
    peer_kill(&other);
    CHECK_OK(weir_event_synchronize(event));
    stream_wait(s);
    CHECK(event_complete(event));
    event_end(event);
    stream_end(s);
    CHECK_OK(weir_pool_destroy(pool));
}

static void recorder_dies_there(int socket) {
    weir_pool *pool = pool_to_share(0);
    weir_event event = event_to_share(), second = event_to_share();
    weir_stream s = stream_new();
    weir_ipc_token token;
    static gate never;
    send_pool(socket, pool);
    send_event(socket, pool, event);
    CHECK_OK(weir_pool_export_event(pool, second, &token));
    event_end(second);
    peer_send(socket, &token, sizeof token);
    queue_gate(s, &never);
    CHECK_OK(weir_event_record(event, s));
    peer_tell(socket, 'r');
    for (;;) {
        pause();
    }
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

/* ---- mistakes, in one process ---- */

static void mistakes(void) {
    weir_pool *ordinary = check_pool(0), *pool = pool_to_share(0), *second = pool_to_share(0), *imported = NULL;
    weir_pool *none = NULL;
    weir_ipc_token token, of_second, changed;
    void *block, *block_of_second, *p = NULL;
    weir_event event = NULL;
    int descriptor = -1, ends[2];
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_export(ordinary, &descriptor));
    CHECK_SAYS("ipc_handle_types");
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_export(pool, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_export(NULL, &descriptor));
    CHECK_OK(weir_pool_alloc(ordinary, 100, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_export_pointer(ordinary, p, &token));
    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_export_pointer(pool, p, &token));
    CHECK_OK(weir_pool_free(ordinary, p, NULL));
    p = NULL;

    CHECK_OK(weir_pool_export(pool, &descriptor));
    CHECK_OK(weir_pool_import(descriptor, &imported));
    close(descriptor);
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &block));
    CHECK_OK(weir_pool_alloc(second, 1000, NULL, &block_of_second));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_export_pointer(pool, block, NULL));
    CHECK_STATUS(WEIR_ERROR_INTERIOR_POINTER, weir_pool_export_pointer(pool, (char *)block + 256, &token));
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, weir_pool_export_pointer(pool, &token, &token));
    CHECK_OK(weir_pool_export_pointer(pool, block, &token));
    CHECK_OK(weir_pool_export_pointer(pool, block, &changed));
    CHECK(memcmp(&token, &changed, sizeof token) == 0);
    CHECK_OK(weir_pool_export_pointer(second, block_of_second, &of_second));

    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_import_pointer(imported, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_import_pointer(imported, &token, NULL));
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_import_pointer(pool, &token, &p));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import_pointer(imported, &of_second, &p));
    CHECK_SAYS("another pool");
    changed.bytes[30] ^= 1;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import_pointer(imported, &changed, &p));
    CHECK_SAYS("token");
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import_event(imported, &token, &event));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_import_event(imported, &token, NULL));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_export_event(pool, event, NULL));
    if (!check_on_device()) {
        CHECK_STATUS(WEIR_ERROR_INVALID_EVENT, weir_pool_export_event(pool, event, &changed));
    } else {
        event = event_new(); /* not made for it */
        CHECK_STATUS(WEIR_ERROR_BACKEND, weir_pool_export_event(pool, event, &changed));
        event_end(event);
        event = NULL;
    }
    CHECK_OK(weir_pool_import_pointer(imported, &token, &p));
    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_free(pool, p, NULL));
    CHECK_STATUS(WEIR_ERROR_WRONG_POOL, weir_pool_free(imported, block, NULL));
    contents_fill(block, 3, 1000);
    CHECK(contents_are(p, 3, 1000));
    CHECK_OK(weir_pool_free_synced(imported, p));
    CHECK_OK(weir_pool_free_synced(pool, block));
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_pointer(imported, &token, &p));
    /* its place is another block's by now, which does not make the token good */
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &p));
    CHECK(p == block);
    CHECK_OK(weir_pool_export_pointer(pool, p, &changed));
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_pointer(imported, &token, &block));
    CHECK_OK(weir_pool_import_pointer(imported, &changed, &block));
    CHECK_OK(weir_pool_free_synced(imported, block));
    CHECK_OK(weir_pool_free_synced(pool, p));

    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import(-1, &none));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import(1000, &none));
    CHECK_EQUAL(pipe(ends), 0);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import(ends[0], &none));
    CHECK_STATUS(WEIR_ERROR_BACKEND, weir_ipc_send_descriptor(ends[1], ends[0]));
    CHECK_STATUS(WEIR_ERROR_BACKEND, weir_ipc_receive_descriptor(ends[0], &descriptor));
    close(ends[0]);
    close(ends[1]);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_import(ends[0], &none));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_ipc_send_descriptor(-1, ends[0]));
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_ipc_receive_descriptor(-1, &descriptor));
    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_ipc_receive_descriptor(ends[0], NULL));
    CHECK_EQUAL(write(ends[1], "x", 1), 1);
    CHECK_STATUS(WEIR_ERROR_STALE, weir_ipc_receive_descriptor(ends[0], &descriptor));
    close(ends[1]);
    CHECK_STATUS(WEIR_ERROR_STALE, weir_ipc_receive_descriptor(ends[0], &descriptor));
    close(ends[0]);
    CHECK(none == NULL);

    CHECK_OK(weir_pool_free(second, block_of_second, NULL));
    CHECK_OK(weir_pool_destroy(imported));
    CHECK_OK(weir_pool_destroy(second));
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_OK(weir_pool_destroy(ordinary));
}

/* ---- the driver refuses to export or import ---- */

static void refused(void) {
    static const char *const calls[] = {"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
                                        "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"};
    if (!check_on_device() || !device_is_standin()) {
        return;
    }
    void (*fail)(const char *call, uint64_t nth, int result);
    *(void **)&fail = device_symbol("standin_fail");
    weir_pool *pool = pool_to_share(0), *imported = NULL;
    weir_ipc_token token;
    void *block, *there = NULL;
    int descriptor;
    CHECK_OK(weir_pool_export(pool, &descriptor));
    CHECK_OK(weir_pool_import(descriptor, &imported));
    close(descriptor);
    CHECK_OK(weir_pool_alloc(pool, 20 * MiB, NULL, &block));
    CHECK_OK(weir_pool_export_pointer(pool, block, &token));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        fail(calls[i], 1, 999);
        CHECK_STATUS(WEIR_ERROR_BACKEND, weir_pool_import_pointer(imported, &token, &there));
        CHECK_SAYS(calls[i]);
        CHECK_EQUAL(CHECK_STATS(imported).reserved_bytes, 0);
        CHECK_OK(weir_pool_import_pointer(imported, &token, &there));
        CHECK_OK(weir_pool_free_synced(imported, there));
    }
    CHECK_OK(weir_pool_free_synced(pool, block));
    CHECK_EQUAL(pending(pool), 0); /* nothing stayed lent */
    CHECK_OK(weir_pool_destroy(imported));
    CHECK_OK(weir_pool_destroy(pool));
}

/* ---- a device that the importer cannot see ---- */

static void unseen(void) {
    int devices = 0;
    if (!check_on_device() || !device_is_standin()) {
        return;
    }
    DEVICE_OK(cu.DeviceGetCount(&devices));
    if (devices < 2) {
        return;
    }
    weir_pool_options o = check_options(0);
    weir_pool *pool = NULL;
    o.device = 1;
    o.ipc_handle_types = 1;
    CHECK_OK(weir_pool_create(&o, &pool));
    CHECK_EQUAL(setenv("WEIR_STANDIN_DEVICES", "1", 1), 0);
    peer other = peer_start("unseen");
    CHECK_EQUAL(unsetenv("WEIR_STANDIN_DEVICES"), 0);
    send_pool(other.socket, pool);
    peer_join(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static void unseen_there(int socket) {
    int descriptor;
    weir_pool *none = NULL;
    CHECK_OK(weir_ipc_receive_descriptor(socket, &descriptor));
    CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_import(descriptor, &none));
    CHECK_SAYS("device");
    close(descriptor);
}

static const struct part {
    const char *name;
    void (*here)(void);
    void (*there)(int socket);
    int kills; /* compute-sanitizer does not expect that of a program */
} parts[] = {
    {"exchange", exchange, exchange_there, 0},
    {"freed_first", freed_first, freed_first_there, 0},
    {"importer_dies", importer_dies, importer_dies_there, 1},
    {"line_closed", line_closed, line_closed_there, 1},
    {"exporter_dies", exporter_dies, exporter_dies_there, 1},
    {"exporter_ends", exporter_ends, exporter_ends_there, 0},
    {"in_order", in_order, in_order_there, 0},
    {"events", events, events_there, 0},
    {"recorder_dies", recorder_dies, recorder_dies_there, 1},
    {"many_pages", many_pages, many_pages_there, 0},
    {"mistakes", mistakes, NULL, 0},
    {"refused", refused, NULL, 0},
    {"unseen", unseen, unseen_there, 0},
};

int main(int argc, char **argv) {
    peer_program = argv[0];
    if (argc > 1) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a first process that fails leaves nobody behind */
    }
    program_begin();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc == 1 && parts[i].kills && check_under("sanitizer")) {
            continue;
        }
        if (argc == 1) {
            parts[i].here();
        } else if (strcmp(argv[1], parts[i].name) == 0) {
            parts[i].there(PEER_SOCKET);
        }
    }
    CHECK_OK(weir_finalize());
    return program_end();
}
