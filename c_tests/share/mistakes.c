/* What cannot be shared: wrong tokens and descriptors, what the driver refuses, and a device that the other process lacks. */
#include "peer.h"
#include <sys/resource.h>

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

/* ---- a process that can have no more descriptors ---- */

static void no_descriptors(void) {
    weir_pool *pool = pool_to_share(100 * MiB); /* near its limit, so of small pages */
    void *block;
    peer other = peer_start("no_descriptors");
    CHECK_OK(weir_pool_alloc(pool, 80 * MiB, NULL, &block));
    send_pool(other.socket, pool);
    send_block(other.socket, pool, block);
    CHECK_OK(weir_ipc_send_descriptor(other.socket, other.socket));
    peer_join(&other);
    CHECK_OK(weir_pool_free_synced(pool, block));
    CHECK_EQUAL(pending(pool), 0);
    CHECK_OK(weir_pool_destroy(pool));
}

static void no_descriptors_there(int socket) {
    weir_pool *pool = NULL, *none = NULL;
    weir_ipc_token token;
    struct rlimit usual, low;
    void *block = NULL;
    int descriptor = -1, door = -1, next;
    CHECK_OK(weir_ipc_receive_descriptor(socket, &door));
    CHECK_OK(weir_pool_import(door, &pool));
    next = dup(socket);
    close(next);
    peer_receive(socket, &token, sizeof token);
    if (!check_under("valgrind")) { /* which gives its program another limit than the kernel's */
        CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &usual), 0);
        low = usual;
        low.rlim_cur = (rlim_t)next + 3;
        CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &low), 0);
        CHECK_STATUS(WEIR_ERROR_BACKEND, weir_pool_import_pointer(pool, &token, &block));
        CHECK_SAYS("descriptors");
        CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
        low.rlim_cur = (rlim_t)next + 1; /* for the call itself */
        CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &low), 0);
        CHECK_STATUS(WEIR_ERROR_BACKEND, weir_ipc_receive_descriptor(socket, &descriptor));
        CHECK_SAYS("descriptors");
        CHECK_EQUAL(dup(socket), next); /* the last one */
        CHECK_STATUS(WEIR_ERROR_BACKEND, weir_pool_import(door, &none));
        CHECK_SAYS("Too many open files");
        close(next);
        CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &usual), 0);
    }
    close(door);
    CHECK_OK(weir_pool_import_pointer(pool, &token, &block));
    CHECK_OK(weir_pool_free_synced(pool, block));
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

static const part parts[] = {
    {"mistakes", mistakes, NULL, 0},
    {"refused", refused, NULL, 0},
    {"no_descriptors", no_descriptors, no_descriptors_there, 0},
    {"unseen", unseen, unseen_there, 0},
};

int main(int argc, char **argv) { return peer_play(parts, sizeof parts / sizeof *parts, argc, argv); }
