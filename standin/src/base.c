#include "base.h"

#include <errno.h>
#include <stdarg.h>

#include "calls.h"
#include "devices.h"
#include "exit.h"
#include "faults.h"

_Thread_local struct thread this_thread __attribute__((tls_model("initial-exec"))) = {.call = -1};
pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;
struct settings settings;

static pthread_once_t prepared = PTHREAD_ONCE_INIT;

uint64_t thread_id(void) {
    static uint64_t last;
    if (this_thread.id == 0) {
        this_thread.id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    }
    return this_thread.id;
}

static void say(const char *call, const char *format, va_list arguments) {
    /* One write: several threads may have something to say. */
    char text[1024];
    int at = snprintf(text, sizeof text, "standin: %s: ", call);
    if (at > 0 && (size_t)at < sizeof text) {
        vsnprintf(text + at, sizeof text - (size_t)at, format, arguments);
    }
    fprintf(stderr, "%s\n", text);
    fflush(stderr);
}

void rule_broken(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(this_thread.call >= 0 ? call_name(this_thread.call) : "queued work", format, arguments);
    va_end(arguments);
    abort();
}

void cannot_go_on(const char *what) {
    fprintf(stderr, "standin: %s: %s\n", what, strerror(errno));
    abort();
}

void *must_alloc(size_t bytes) {
    void *at = calloc(1, bytes > 0 ? bytes : 1);
    if (at == NULL) {
        cannot_go_on("out of memory");
    }
    return at;
}

void *must_grow(void *old, size_t bytes) {
    void *at = realloc(old, bytes);
    if (at == NULL) {
        cannot_go_on("out of memory");
    }
    return at;
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') {
        return otherwise;
    }
    char *end;
    errno = 0;
    uint64_t number = strtoull(text, &end, 0);
    if (*end != '\0' || errno != 0) {
        fprintf(stderr, "standin: %s=%s is no number\n", name, text);
        abort();
    }
    return number;
}

/* A choice of a few words; anything else would be a test that does not test what it says. */
static int word_from(const char *name, const char *const *words, int otherwise) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') {
        return otherwise;
    }
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) {
            return i;
        }
    }
    fprintf(stderr, "standin: %s=%s is none of its values\n", name, text);
    abort();
}

/* "all", "none", or a list of "0-1" (both ways) and "0>1" (0 reaches the memory of 1). */
static void peers_from(const char *text) {
    bool all = text == NULL || strcmp(text, "all") == 0;
    for (int i = 0; i < MAX_DEVICES; i++) {
        for (int j = 0; j < MAX_DEVICES; j++) {
            settings.peer[i][j] = all && i != j;
        }
    }
    if (all || strcmp(text, "none") == 0) {
        return;
    }
    for (const char *at = text; *at != '\0';) {
        int from, to, length;
        char way;
        if (sscanf(at, "%d%c%d%n", &from, &way, &to, &length) != 3 || (way != '-' && way != '>') || from < 0 ||
            to < 0 || from >= MAX_DEVICES || to >= MAX_DEVICES) {
            fprintf(stderr, "standin: WEIR_STANDIN_PEER=%s is not understood\n", text);
            abort();
        }
        settings.peer[from][to] = true;
        if (way == '-') {
            settings.peer[to][from] = true;
        }
        at += length;
        at += *at == ',';
    }
}

static void prepare(void) {
    static const char *const unload[] = {"0", "abort", "return", NULL};
    static const char *const forked[] = {"abort", "return", NULL};
    static const char *const truth[] = {"0", "1", NULL};
    settings.version = (int)number_from("WEIR_STANDIN_VERSION", 13000);
    settings.devices = (int)number_from("WEIR_STANDIN_DEVICES", 2);
    settings.nodes = (int)number_from("WEIR_STANDIN_NODES", 2);
    settings.memory = number_from("WEIR_STANDIN_MEMORY", (uint64_t)16 << 30);
    settings.granularity = number_from("WEIR_STANDIN_GRANULARITY", (uint64_t)2 << 20);
    settings.mapping_limit = number_from("WEIR_STANDIN_MAPPINGS", 524032);
    settings.host_shares = number_from("WEIR_STANDIN_HOST_SHARES", 254);
    settings.vmm = word_from("WEIR_STANDIN_VMM", truth, 1);
    settings.leaks = word_from("WEIR_STANDIN_LEAKS", truth, 1);
    settings.unload_at_exit = word_from("WEIR_STANDIN_UNLOAD_AT_EXIT", unload, UNLOAD_NEVER);
    settings.forked_returns = word_from("WEIR_STANDIN_FORKED", forked, 0);
    peers_from(getenv("WEIR_STANDIN_PEER"));
    if (settings.devices < 0 || settings.devices > MAX_DEVICES) {
        fprintf(stderr, "standin: WEIR_STANDIN_DEVICES is at most %d\n", MAX_DEVICES);
        abort();
    }
    if (settings.granularity < 4096 || (settings.granularity & (settings.granularity - 1)) != 0) {
        fprintf(stderr, "standin: WEIR_STANDIN_GRANULARITY is a power of two, at least 4096\n");
        abort();
    }
    devices_prepare();
    exit_prepare();
    faults_from_environment();
}

void driver_prepare(void) { pthread_once(&prepared, prepare); }
