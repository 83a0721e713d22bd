/* Two processes, one memory: a producer fills frames, a consumer reads them where they are. No frame is copied from one
 * process to the other, and neither ever waits on the host for the other's stream: events order the work.
 *
 *   share_two_processes [--memory host|device] [--frames N] [--mib N]
 *
 * The producer starts this program once more as the consumer. What goes through the socket between them is a descriptor
 * and some tokens at first, and then one byte a frame. */
#include "work.h"

#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { SLOTS = 2, SOCKET = 9 };

/* What the producer says first. */
struct offer {
    size_t bytes;
    int frames;
    weir_ipc_token blocks[SLOTS], filled[SLOTS];
};

/* What the consumer says first. */
struct answer {
    weir_ipc_token read[SLOTS];
};

static const char *who = "producer";

static void die(const char *what, const char *why) {
    fprintf(stderr, "share_two_processes: %s: %s: %s\n", who, what, why);
    exit(1);
}

#define CHECK(call)                               \
    do {                                          \
        if ((call) != WEIR_OK) {                  \
            die(#call, weir_last_error());        \
        }                                         \
    } while (0)
#define WORK(call)    \
    do {              \
        if (call) {   \
            exit(1);  \
        }             \
    } while (0)

static void say(int socket, const void *what, size_t bytes) {
    if (send(socket, what, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        die("send", "the other process is gone");
    }
}

static void hear(int socket, void *what, size_t bytes) {
    if (recv(socket, what, bytes, MSG_WAITALL) != (ssize_t)bytes) {
        die("recv", "the other process is gone");
    }
}

static weir_pool *pool_to_share(int on_device) {
    weir_pool_options options;
    weir_pool *pool;
    CHECK(weir_pool_options_init(&options, sizeof options));
    options.memory = on_device ? WEIR_MEMORY_DEVICE : WEIR_MEMORY_HOST;
    options.ipc_handle_types = 1; /* file descriptors */
    options.name = who;
    CHECK(weir_pool_create(&options, &pool));
    return pool;
}

static void send_pool(int socket, weir_pool *pool) {
    int descriptor;
    CHECK(weir_pool_export(pool, &descriptor));
    CHECK(weir_ipc_send_descriptor(socket, descriptor));
    close(descriptor);
}

static weir_pool *receive_pool(int socket) {
    int descriptor;
    weir_pool *pool;
    CHECK(weir_ipc_receive_descriptor(socket, &descriptor));
    CHECK(weir_pool_import(descriptor, &pool));
    close(descriptor);
    return pool;
}

static uint32_t word_of(int frame) { return (uint32_t)frame * 2654435761u + 1; }

/* ---- the producer ---- */

static void produce(int socket, int on_device, int frames, size_t bytes) {
    weir_pool *pool = pool_to_share(on_device), *theirs;
    weir_stream stream;
    weir_event filled[SLOTS], read[SLOTS];
    void *blocks[SLOTS];
    struct offer offer;
    struct answer answer;
    char byte;
    memset(&offer, 0, sizeof offer);
    offer.bytes = bytes;
    offer.frames = frames;
    WORK(work_stream_create(&stream));
    for (int i = 0; i < SLOTS; i++) {
        CHECK(weir_pool_alloc(pool, bytes, stream, &blocks[i]));
        CHECK(weir_pool_export_pointer(pool, blocks[i], &offer.blocks[i]));
        WORK(work_event_create(&filled[i]));
        CHECK(weir_pool_export_event(pool, filled[i], &offer.filled[i]));
    }
    send_pool(socket, pool);
    say(socket, &offer, sizeof offer);
    theirs = receive_pool(socket);
    hear(socket, &answer, sizeof answer);
    for (int i = 0; i < SLOTS; i++) {
        CHECK(weir_pool_import_event(theirs, &answer.read[i], &read[i]));
    }
    for (int frame = 0; frame < frames; frame++) {
        int i = frame % SLOTS;
        if (frame >= SLOTS) {
            hear(socket, &byte, 1); /* the consumer has queued its read of what is in this block */
            CHECK(weir_stream_wait_event(stream, read[i]));
        }
        WORK(work_fill(stream, blocks[i], bytes, word_of(frame)));
        CHECK(weir_event_record(filled[i], stream));
        say(socket, "f", 1);
    }
    /* What the consumer still has stays as it is: nobody else gets the memory before it has freed it, too. */
    for (int i = 0; i < SLOTS; i++) {
        CHECK(weir_pool_free(pool, blocks[i], stream));
    }
    while (recv(socket, &byte, 1, 0) == 1) {
    }
    CHECK(weir_stream_synchronize(stream));
    for (int i = 0; i < SLOTS; i++) {
        WORK(work_event_destroy(filled[i]));
        WORK(work_event_destroy(read[i]));
    }
    CHECK(weir_pool_destroy(theirs));
    CHECK(weir_pool_destroy(pool));
    WORK(work_stream_destroy(stream));
}

/* ---- the consumer ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Is every word of a frame what the producer has put there? */
static int is_frame(const uint32_t *words, size_t bytes, int frame) {
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        if (words[i] != word_of(frame)) {
            return 0;
        }
    }
    return 1;
}

static void consume(int socket, int on_device) {
    weir_pool *theirs = receive_pool(socket), *pool = pool_to_share(on_device);
    weir_stream stream;
    weir_event filled[SLOTS], read[SLOTS];
    void *blocks[SLOTS], *seen[SLOTS];
    struct offer offer;
    struct answer answer;
    int wrong = 0;
    double start;
    hear(socket, &offer, sizeof offer);
    memset(&answer, 0, sizeof answer);
    WORK(work_stream_create(&stream));
    for (int i = 0; i < SLOTS; i++) {
        CHECK(weir_pool_import_pointer(theirs, &offer.blocks[i], &blocks[i]));
        CHECK(weir_pool_import_event(theirs, &offer.filled[i], &filled[i]));
        WORK(work_event_create(&read[i]));
        CHECK(weir_pool_export_event(pool, read[i], &answer.read[i]));
        WORK(work_host_alloc(&seen[i], offer.bytes));
    }
    send_pool(socket, pool);
    say(socket, &answer, sizeof answer);
    start = seconds();
    for (int frame = 0; frame < offer.frames; frame++) {
        int i = frame % SLOTS;
        char byte;
        hear(socket, &byte, 1); /* the producer has queued the frame */
        CHECK(weir_stream_wait_event(stream, filled[i]));
        WORK(work_fetch(stream, seen[i], blocks[i], offer.bytes));
        CHECK(weir_event_record(read[i], stream));
        if (frame + SLOTS < offer.frames) {
            say(socket, "r", 1);
        }
        CHECK(weir_event_synchronize(read[i])); /* a program that goes on computing on the stream does not need this */
        wrong += !is_frame(seen[i], offer.bytes, frame);
    }
    double took = seconds() - start;
    printf("%d frames of %.1f MiB from one process to another: %.2f GB/s read and checked, %d wrong\n", offer.frames,
           (double)offer.bytes / (1 << 20), 1e-9 * (double)offer.bytes * offer.frames / took, wrong);
    for (int i = 0; i < SLOTS; i++) {
        CHECK(weir_pool_free(theirs, blocks[i], stream));
        work_host_free(seen[i]);
    }
    CHECK(weir_stream_synchronize(stream));
    for (int i = 0; i < SLOTS; i++) {
        WORK(work_event_destroy(filled[i]));
        WORK(work_event_destroy(read[i]));
    }
    CHECK(weir_pool_destroy(theirs));
    CHECK(weir_pool_destroy(pool));
    WORK(work_stream_destroy(stream));
    if (wrong != 0) {
        exit(1);
    }
}

/* ---- both ---- */

static pid_t start_consumer(char **argv, int socket) {
    char *arguments[] = {argv[0], "--consumer", "--memory", NULL, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    for (int i = 1; argv[i] != NULL; i++) {
        if (strcmp(argv[i], "--memory") == 0) {
            arguments[3] = argv[i + 1];
        }
    }
    if (arguments[3] == NULL) {
        arguments[2] = NULL;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, socket, SOCKET);
    if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) != 0) {
        die("posix_spawn", "the consumer could not be started");
    }
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

/* A whole number from 1 on; 0: this is none. */
static int number(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    return end == text || *end != 0 || value < 1 || value > INT_MAX ? 0 : (int)value;
}

int main(int argc, char **argv) {
    int on_device = 0, consumer = 0, frames = 200, mib = 64, ends[2], status = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--consumer") == 0) {
            consumer = 1;
        } else if (strcmp(argv[i], "--memory") == 0 && i + 1 < argc) {
            on_device = strcmp(argv[++i], "device") == 0;
            if (!on_device && strcmp(argv[i], "host") != 0) {
                die("--memory", "expected host or device");
            }
        } else if (strcmp(argv[i], "--frames") == 0 && i + 1 < argc) {
            frames = number(argv[++i]);
        } else if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc) {
            mib = number(argv[++i]);
        } else {
            fprintf(stderr, "usage: %s [--memory host|device] [--frames N] [--mib N]\n", argv[0]);
            return 2;
        }
    }
    if (frames == 0 || mib == 0) {
        die("--frames, --mib", "expected a whole number from 1 on");
    }
    if (consumer) {
        who = "consumer";
        WORK(work_open(on_device));
        consume(SOCKET, on_device);
    } else {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
            die("socketpair", "no sockets");
        }
        pid_t child = start_consumer(argv, ends[1]);
        close(ends[1]);
        WORK(work_open(on_device));
        produce(ends[0], on_device, frames < SLOTS ? SLOTS : frames, (size_t)mib << 20);
        close(ends[0]);
        waitpid(child, &status, 0);
    }
    CHECK(weir_finalize());
    work_close();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
