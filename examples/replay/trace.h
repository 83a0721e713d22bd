/* A recorded allocation trace in memory; the format is described in traces/README.md. */
#ifndef REPLAY_TRACE_H
#define REPLAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t bytes;     /* of an allocation */
    uint32_t id;        /* which block */
    uint16_t stream;    /* an index into nothing: 0 is the default stream */
    uint16_t is_free;
} trace_event;

typedef struct {
    char name[64];      /* the file's, without folder and endings */
    trace_event *events;
    size_t count;
    uint32_t blocks;    /* ids are 0 … blocks − 1 */
    uint16_t streams;   /* 0 … streams − 1 occur */
    uint64_t peak_live; /* bytes asked for and not yet freed, at their highest */
} trace;

/* Reads a gzip or plain file. On failure prints what is wrong, with the line, and returns −1. */
int trace_read(const char *path, trace *out);

void trace_drop(trace *t);

#endif
