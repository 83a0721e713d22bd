#include "trace.h"
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MAX_STREAMS = 1024 };

typedef struct {
    const char *path;
    size_t line;
} place;

static int bad(const place *at, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "replay: %s:%zu: ", at->path, at->line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return -1;
}

/* Reads a decimal number that ends at a blank or the end, and moves past it and the blanks. */
static int number(const char **text, uint64_t *out) {
    char *end;
    if (!isdigit((unsigned char)**text)) {
        return -1;
    }
    errno = 0;
    *out = strtoull(*text, &end, 10);
    if (errno != 0 || (*end != '\0' && !isspace((unsigned char)*end))) {
        return -1;
    }
    while (isspace((unsigned char)*end)) {
        end++;
    }
    *text = end;
    return 0;
}

static int append(trace *t, size_t *room, trace_event event) {
    if (t->count == *room) {
        size_t more = *room == 0 ? 4096 : *room * 2;
        trace_event *grown = realloc(t->events, more * sizeof *grown);
        if (grown == NULL) {
            return -1;
        }
        t->events = grown;
        *room = more;
    }
    t->events[t->count++] = event;
    return 0;
}

/* What is live while reading: the size of each block, or DEAD. */
typedef struct {
    uint64_t *bytes;
    size_t room;
    uint64_t total;
} live;

#define DEAD UINT64_MAX

static int live_add(live *l, uint32_t id, uint64_t bytes) {
    if (id == l->room) {
        size_t more = l->room == 0 ? 4096 : l->room * 2;
        uint64_t *grown = realloc(l->bytes, more * sizeof *grown);
        if (grown == NULL) {
            return -1;
        }
        l->bytes = grown;
        l->room = more;
    }
    l->bytes[id] = bytes;
    l->total += bytes;
    return 0;
}

static int parse(const place *at, const char *text, trace *t, live *l, size_t *room) {
    char kind = text[0];
    uint64_t id, bytes = 0, stream;
    if ((kind != 'a' && kind != 'f') || text[1] != ' ') {
        return bad(at, "expected 'a <id> <bytes> <stream>' or 'f <id> <stream>'");
    }
    text += 2;
    if (number(&text, &id) != 0) {
        return bad(at, "the id is not a number");
    }
    if (kind == 'a' && (number(&text, &bytes) != 0 || bytes > (uint64_t)1 << 62)) {
        return bad(at, "the number of bytes is not a number below 2^62");
    }
    if (number(&text, &stream) != 0 || stream >= MAX_STREAMS) {
        return bad(at, "the stream is not a number below %d", MAX_STREAMS);
    }
    if (*text != '\0') {
        return bad(at, "something follows the stream: %.20s", text);
    }
    if (kind == 'a') {
        if (id != t->blocks || id >= UINT32_MAX) {
            return bad(at, "the next id is %u, not %llu", t->blocks, (unsigned long long)id);
        }
        if (live_add(l, t->blocks, bytes) != 0) {
            return bad(at, "out of memory");
        }
        t->blocks++;
        t->peak_live = l->total > t->peak_live ? l->total : t->peak_live;
    } else {
        if (id >= t->blocks || l->bytes[id] == DEAD) {
            return bad(at, "block %llu is freed but not live", (unsigned long long)id);
        }
        l->total -= l->bytes[id];
        l->bytes[id] = DEAD;
    }
    t->streams = stream >= t->streams ? (uint16_t)(stream + 1) : t->streams;
    trace_event event = {bytes, (uint32_t)id, (uint16_t)stream, kind == 'f'};
    return append(t, room, event) == 0 ? 0 : bad(at, "out of memory");
}

static void name_from(const char *path, char *name, size_t room) {
    const char *slash = strrchr(path, '/');
    snprintf(name, room, "%s", slash != NULL ? slash + 1 : path);
    char *ending = strstr(name, ".trace");
    if (ending != NULL && ending != name) {
        *ending = '\0';
    }
}

/* What keeps the file from being read on; NULL if nothing does. */
static const char *trouble(gzFile file) {
    int code;
    const char *message = gzerror(file, &code);
    if (code == Z_OK || code == Z_STREAM_END) {
        return NULL;
    }
    return code == Z_ERRNO ? strerror(errno) : message;
}

static int read_lines(gzFile file, place *at, trace *t, live *l) {
    char line[256];
    size_t room = 0;
    const char *why = NULL;
    while (gzgets(file, line, sizeof line) != NULL) {
        at->line++;
        size_t length = strlen(line);
        if (length + 1 == sizeof line) {
            return bad(at, "the line is too long");
        }
        /* a line without its end may be cut off */
        if (line[length - 1] != '\n' && (why = trouble(file)) != NULL) {
            return bad(at, "cannot be read on: %s", why);
        }
        while (length > 0 && isspace((unsigned char)line[length - 1])) {
            line[--length] = '\0';
        }
        if (parse(at, line, t, l, &room) != 0) {
            return -1;
        }
    }
    at->line++;
    if ((why = trouble(file)) != NULL) {
        return bad(at, "cannot be read on: %s", why);
    }
    return t->count > 0 ? 0 : bad(at, "no events");
}

int trace_read(const char *path, trace *out) {
    place at = {path, 0};
    trace t = {0};
    live l = {0};
    gzFile file = gzopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        return -1;
    }
    name_from(path, t.name, sizeof t.name);
    int result = read_lines(file, &at, &t, &l);
    gzclose(file);
    free(l.bytes);
    if (result != 0) {
        trace_drop(&t);
        return -1;
    }
    *out = t;
    return 0;
}

void trace_drop(trace *t) {
    free(t->events);
    t->events = NULL;
}
