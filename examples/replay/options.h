/* The command line of replay. */
#ifndef REPLAY_OPTIONS_H
#define REPLAY_OPTIONS_H

#include <stdint.h>

typedef struct {
    enum { MEMORY_ANY, MEMORY_HOST, MEMORY_DEVICE, MEMORY_PINNED } memory;
    double capacity_times;   /* 0: not given that way */
    uint64_t capacity_bytes; /* 0: no limit */
    int named_streams;       /* plain names instead of real streams */
    int replays;
    int check;
    char **traces;
    int trace_count;
} options;

/* Reads the command line. On failure prints what is wrong and returns −1; 1 after --help. */
int options_read(int argc, char **argv, options *out);

#endif
