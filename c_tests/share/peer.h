/* A second process: this program once more, told which part to play, at the other end of a socket. */
#ifndef WEIR_C_TESTS_PEER_H
#define WEIR_C_TESTS_PEER_H

#include "../streams.h"
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern char **environ;

/* The number of the socket in the second process. */
enum { PEER_SOCKET = 9 };

typedef struct {
    pid_t pid;
    int socket;
} peer;

static const char *peer_program; /* argv[0] */

static inline peer peer_start(const char *part) {
    peer p;
    int ends[2];
    char *arguments[] = {(char *)peer_program, (char *)part, NULL};
    posix_spawn_file_actions_t actions;
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    CHECK_EQUAL(posix_spawn_file_actions_init(&actions), 0);
    CHECK_EQUAL(posix_spawn_file_actions_adddup2(&actions, ends[1], PEER_SOCKET), 0);
    fflush(stdout);
    CHECK_EQUAL(posix_spawn(&p.pid, peer_program, &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    p.socket = ends[0];
    return p;
}

static inline void peer_send(int socket, const void *what, size_t bytes) {
    CHECK_EQUAL(send(socket, what, bytes, MSG_NOSIGNAL), bytes);
}

static inline void peer_receive(int socket, void *what, size_t bytes) {
    CHECK_EQUAL(recv(socket, what, bytes, MSG_WAITALL), bytes);
}

/* One lets the other go on, and the other waits for that. */
static inline void peer_tell(int socket, char step) { peer_send(socket, &step, 1); }

static inline void peer_await(int socket, char step) {
    char said = 0;
    peer_receive(socket, &said, 1);
    CHECK_EQUAL(said, step);
}

/* It must end well by itself. */
static inline void peer_join(peer *p) {
    int status = 0;
    CHECK_EQUAL(waitpid(p->pid, &status, 0), p->pid);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0);
    close(p->socket);
}

/* It is killed. */
static inline void peer_kill(peer *p) {
    int status = 0;
    CHECK_EQUAL(kill(p->pid, SIGKILL), 0);
    CHECK_EQUAL(waitpid(p->pid, &status, 0), p->pid);
    CHECK(WIFSIGNALED(status));
    close(p->socket);
}

/* A pool for other processes. */
static inline weir_pool *pool_to_share(uint64_t max_bytes) {
    weir_pool_options o = check_options(max_bytes);
    weir_pool *pool = NULL;
    o.ipc_handle_types = 1;
    CHECK_OK(weir_pool_create(&o, &pool));
    return pool;
}

static inline void send_pool(int socket, weir_pool *pool) {
    int descriptor = -1;
    CHECK_OK(weir_pool_export(pool, &descriptor));
    CHECK_OK(weir_ipc_send_descriptor(socket, descriptor));
    close(descriptor);
}

static inline weir_pool *receive_pool(int socket) {
    int descriptor = -1;
    weir_pool *pool = NULL;
    CHECK_OK(weir_ipc_receive_descriptor(socket, &descriptor));
    CHECK_OK(weir_pool_import(descriptor, &pool));
    close(descriptor);
    return pool;
}

static inline void send_block(int socket, weir_pool *pool, void *block) {
    weir_ipc_token token;
    CHECK_OK(weir_pool_export_pointer(pool, block, &token));
    peer_send(socket, &token, sizeof token);
}

static inline void *receive_block(int socket, weir_pool *pool) {
    weir_ipc_token token;
    void *block = NULL;
    peer_receive(socket, &token, sizeof token);
    CHECK_OK(weir_pool_import_pointer(pool, &token, &block));
    return block;
}

/* An event for other processes. */
static inline weir_event event_to_share(void) {
    enum { CU_EVENT_INTERPROCESS = 4 };
    weir_event event = NULL;
    if (!check_on_device()) {
        return event_new();
    }
    DEVICE_OK(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    return event;
}

static inline void send_event(int socket, weir_pool *pool, weir_event event) {
    weir_ipc_token token;
    CHECK_OK(weir_pool_export_event(pool, event, &token));
    peer_send(socket, &token, sizeof token);
}

static inline weir_event receive_event(int socket, weir_pool *pool) {
    weir_ipc_token token;
    weir_event event = NULL;
    peer_receive(socket, &token, sizeof token);
    CHECK_OK(weir_pool_import_event(pool, &token, &event));
    return event;
}

/* Of most tests. */
#define BLOCK (8 * MiB)

/* What is freed and not to be had yet, once the pool has looked what is complete. */
static inline uint64_t pending(weir_pool *pool) {
    CHECK_OK(weir_pool_trim(pool, SIZE_MAX));
    return CHECK_STATS(pool).pending_bytes;
}

/* Waits until nothing is pending any more, which a process that ends brings about. */
static inline void await_return(weir_pool *pool) {
    for (int i = 0; pending(pool) != 0; i++) {
        CHECK(i < 3000);
        pause_ms(10);
    }
}

/* What the two processes do in one part of a test. */
typedef struct {
    const char *name;
    void (*here)(void);
    void (*there)(int socket);
    int kills; /* compute-sanitizer does not expect that of a program */
} part;

/* A test's main function: without arguments it plays all parts of one process and starts itself for those of the other. */
static inline int peer_play(const part *parts, size_t count, int argc, char **argv) {
    peer_program = argv[0];
    if (argc > 1) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a first process that fails leaves nobody behind */
    }
    program_begin();
    for (size_t i = 0; i < count; i++) {
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

#endif
