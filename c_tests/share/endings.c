/* What becomes of what two processes share when one of them ends, dies, closes its line, or ends its pool. */
#include "peer.h"
#include <fcntl.h>

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

static void close_unknown(int socket) {
    for (int file = 3; file < 100; file++) {
        if (file != socket) {
            close(file);
        }
    }
}

static void line_closed_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    (void)receive_block(socket, pool);
    close_unknown(socket);
    peer_tell(socket, 'c');
    for (;;) {
        pause();
    }
}

/* ---- the exporter does: nobody can ask it any more, and nothing goes round in it ---- */

static void exporter_closes(void) {
    if (check_on_device()) {
        return; /* what the driver does then is its affair */
    }
    peer other = peer_start("exporter_closes");
    weir_pool *pool = receive_pool(other.socket);
    void *none = NULL;
    weir_ipc_token token;
    peer_receive(other.socket, &token, sizeof token);
    peer_tell(other.socket, 'i');
    peer_await(other.socket, 'c');
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_pointer(pool, &token, &none));
    peer_await(other.socket, 'd');
    peer_kill(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static double seconds_worked(void) {
    struct timespec worked;
    CHECK_EQUAL(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &worked), 0);
    return (double)worked.tv_sec + (double)worked.tv_nsec * 1e-9;
}

static void exporter_closes_there(int socket) {
    weir_pool *pool = pool_to_share(0);
    void *block;
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &block));
    send_pool(socket, pool);
    send_block(socket, pool, block);
    peer_await(socket, 'i');
    close_unknown(socket);
    peer_tell(socket, 'c');
    pause_ms(50);
    double before = seconds_worked();
    pause_ms(500);
    CHECK(seconds_worked() - before < 0.05);
    int descriptor = -1;
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_export(pool, &descriptor));
    CHECK_SAYS("descriptors");
    peer_tell(socket, 'd');
    for (;;) {
        pause();
    }
}

/* ---- it closes the lines alone: nobody will hear when the importer is done with its block ---- */

static void exporter_closes_lines(void) {
    peer other = peer_start("exporter_closes_lines");
    weir_pool *pool = receive_pool(other.socket);
    void *block = receive_block(other.socket, pool);
    peer_tell(other.socket, 'i');
    peer_await(other.socket, 'c');
    CHECK(contents_are(block, 1, BLOCK));
    CHECK_OK(weir_pool_free_synced(pool, block));
    CHECK_OK(weir_pool_destroy(pool));
    peer_tell(other.socket, 'd');
    peer_join(&other);
}

static void exporter_closes_lines_there(int socket) {
    int was_open[100], on_device = check_on_device();
    weir_pool *pool = pool_to_share(0);
    void *block, *next;
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &block));
    contents_fill(block, 1, BLOCK);
    send_pool(socket, pool);
    for (int file = 0; file < 100; file++) {
        was_open[file] = fcntl(file, F_GETFD) != -1;
    }
    send_block(socket, pool, block);
    peer_await(socket, 'i');
    for (int file = 0; file < 100 && !on_device; file++) { /* what the driver opens is its affair */
        if (!was_open[file]) {
            close(file);
        }
    }
    CHECK_OK(weir_pool_free_synced(pool, block));
    pause_ms(50);
    CHECK_EQUAL(pending(pool), BLOCK);
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &next));
    contents_fill(next, 2, BLOCK);
    double before = seconds_worked();
    pause_ms(500);
    CHECK(seconds_worked() - before < 0.05);
    peer_tell(socket, 'c');
    peer_await(socket, 'd');
    send_pool(socket, pool); /* others may come */
    CHECK_OK(weir_pool_free(pool, next, NULL));
    CHECK_OK(weir_pool_destroy(pool));
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

/* ---- processes forked meanwhile have copies of all sockets, and hold nothing up ---- */

/* A child that does nothing, until it is killed or the calling process ends. */
static pid_t idle_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            pause();
        }
    }
    CHECK(child > 0);
    return child;
}

static void end_child(pid_t child) {
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, NULL, 0), child);
}

static void exporter_has_a_child(void) {
    weir_pool *pool = pool_to_share(0);
    void *lent;
    peer other = peer_start("exporter_has_a_child");
    CHECK_OK(weir_pool_alloc(pool, BLOCK, NULL, &lent));
    send_pool(other.socket, pool);
    send_pool(other.socket, pool);
    send_block(other.socket, pool, lent);
    peer_await(other.socket, 'i');
    pid_t child = idle_child();
    CHECK_OK(weir_pool_free(pool, lent, NULL));
    CHECK_OK(weir_pool_destroy(pool));
    peer_tell(other.socket, 'c');
    peer_join(&other);
    end_child(child);
}

static void exporter_has_a_child_there(int socket) {
    weir_pool *pool = receive_pool(socket), *none = NULL;
    void *nothing = NULL;
    int descriptor = -1;
    weir_ipc_token token;
    CHECK_OK(weir_ipc_receive_descriptor(socket, &descriptor));
    peer_receive(socket, &token, sizeof token);
    peer_tell(socket, 'i');
    peer_await(socket, 'c');
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import_pointer(pool, &token, &nothing));
    CHECK_STATUS(WEIR_ERROR_STALE, weir_pool_import(descriptor, &none));
    close(descriptor);
    CHECK_OK(weir_pool_destroy(pool));
}

static int descriptors(void) {
    int count = 0;
    for (int file = 0; file < 1024; file++) {
        count += fcntl(file, F_GETFD) != -1;
    }
    return count;
}

static void importer_has_a_child(void) {
    weir_pool *pool = pool_to_share(0);
    peer other = peer_start("importer_has_a_child");
    send_pool(other.socket, pool);
    peer_await(other.socket, 'i');
    int before = descriptors();
    peer_tell(other.socket, 'c');
    peer_await(other.socket, 'd');
    /* the line is closed, and what stands for its process */
    for (int i = 0; descriptors() >= before; i++) {
        CHECK(i < 1000);
        pause_ms(10);
    }
    peer_tell(other.socket, 'e');
    peer_join(&other);
    CHECK_OK(weir_pool_destroy(pool));
}

static void importer_has_a_child_there(int socket) {
    weir_pool *pool = receive_pool(socket);
    peer_tell(socket, 'i');
    peer_await(socket, 'c');
    pid_t child = idle_child();
    CHECK_OK(weir_pool_destroy(pool));
    peer_tell(socket, 'd');
    peer_await(socket, 'e');
    end_child(child);
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
    pid_t child;
    peer_receive(other.socket, &child, sizeof child);
    CHECK(!event_complete(event));
    CHECK_OK(weir_stream_wait_event(s, event));
    CHECK_STATUS(WEIR_ERROR_BACKEND, weir_event_record(event, s));
    peer_kill(&other);
    for (int i = 0; !event_complete(event); i++) { /* though its child lives */
        CHECK(i < 1000);
        pause_ms(10);
    }
    CHECK_OK(weir_event_synchronize(event));
    stream_wait(s);
    CHECK(event_complete(event));
    /* another may record now, and is waited for */
    gate g = {0};
    queue_gate(s, &g);
    CHECK_OK(weir_event_record(event, s));
    CHECK(!event_complete(event));
    atomic_store(&g.open, 1);
    stream_wait(s);
    CHECK_OK(weir_event_synchronize(event));
    CHECK(event_complete(event));
    CHECK_EQUAL(kill(child, SIGKILL), 0);
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
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(60); /* if nobody ends it */
        for (;;) {
            pause();
        }
    }
    CHECK(child > 0);
    peer_send(socket, &child, sizeof child);
    for (;;) {
        pause();
    }
}

static const part parts[] = {
    {"importer_dies", importer_dies, importer_dies_there, 1},
    {"line_closed", line_closed, line_closed_there, 1},
    {"exporter_closes", exporter_closes, exporter_closes_there, 1},
    {"exporter_closes_lines", exporter_closes_lines, exporter_closes_lines_there, 0},
    {"exporter_dies", exporter_dies, exporter_dies_there, 1},
    {"exporter_ends", exporter_ends, exporter_ends_there, 0},
    {"exporter_has_a_child", exporter_has_a_child, exporter_has_a_child_there, 0},
    {"importer_has_a_child", importer_has_a_child, importer_has_a_child_there, 0},
    {"recorder_dies", recorder_dies, recorder_dies_there, 1},
};

int main(int argc, char **argv) { return peer_play(parts, sizeof parts / sizeof *parts, argc, argv); }
