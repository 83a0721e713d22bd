#include "options.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: replay [options] TRACE...\n"
    "Replays recorded allocation traces through a weir pool and tells what that cost.\n"
    "\n"
    "  --memory host|device|pinned\n"
    "                         where the pool lives (default: device if one can be made there, else host)\n"
    "  --capacity N.NNx       limit of the pool as a multiple of the trace's peak live bytes, for instance 1.01x\n"
    "  --capacity BYTES       limit of the pool in bytes; K, M and G are understood (default: no limit)\n"
    "  --streams real|names   give each of the trace's streams a real one (default), or only a name (on the host)\n"
    "  --replays N            how often each trace is replayed on the same pool (default 2: cold, then warm)\n"
    "  --check, --no-check    first replay on a pool of its own with every block written and checked (default)\n";

static int bad(const char *option, const char *value, const char *want) {
    fprintf(stderr, "replay: %s %s: %s\n", option, value, want);
    return -1;
}

static int capacity(const char *value, options *o) {
    static const char want[] = "expected a multiple such as 1.01x or a number of bytes such as 6000M";
    char *end;
    if (!isdigit((unsigned char)value[0])) {
        return bad("--capacity", value, want);
    }
    errno = 0;
    double number = strtod(value, &end);
    if (errno != 0 || end == value || !(number > 0)) {
        return bad("--capacity", value, want);
    }
    if (strcmp(end, "x") == 0) {
        o->capacity_times = number;
        o->capacity_bytes = 0;
        return 0;
    }
    static const char suffixes[] = "KMG";
    const char *suffix = *end != '\0' ? strchr(suffixes, *end) : NULL;
    if (suffix != NULL) {
        for (const char *s = suffixes; s <= suffix; s++) {
            number *= 1024;
        }
        end++;
    }
    if (*end != '\0' || number < 1 || number > 1e18) {
        return bad("--capacity", value, want);
    }
    o->capacity_bytes = (uint64_t)number;
    o->capacity_times = 0;
    return 0;
}

static int replays(const char *value, options *o) {
    char *end;
    long n = strtol(value, &end, 10);
    if (end == value || *end != '\0' || n < 1 || n > 1000) {
        return bad("--replays", value, "expected a number from 1 to 1000");
    }
    o->replays = (int)n;
    return 0;
}

static int with_value(const char *option, const char *value, options *o) {
    if (strcmp(option, "--capacity") == 0) {
        return capacity(value, o);
    }
    if (strcmp(option, "--replays") == 0) {
        return replays(value, o);
    }
    if (strcmp(option, "--memory") == 0) {
        if (strcmp(value, "host") != 0 && strcmp(value, "device") != 0 && strcmp(value, "pinned") != 0) {
            return bad(option, value, "expected host, device or pinned");
        }
        o->memory = strcmp(value, "host") == 0 ? MEMORY_HOST : strcmp(value, "device") == 0 ? MEMORY_DEVICE : MEMORY_PINNED;
        return 0;
    }
    if (strcmp(value, "real") != 0 && strcmp(value, "names") != 0) {
        return bad(option, value, "expected real or names");
    }
    o->named_streams = strcmp(value, "names") == 0;
    return 0;
}

int options_read(int argc, char **argv, options *out) {
    options o = {.replays = 2, .check = 1};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--") == 0) {
            i++;
            break;
        }
        if (strcmp(option, "--help") == 0) {
            fputs(usage, stdout);
            return 1;
        }
        if (strcmp(option, "--check") == 0 || strcmp(option, "--no-check") == 0) {
            o.check = strcmp(option, "--check") == 0;
            continue;
        }
        if (strcmp(option, "--memory") != 0 && strcmp(option, "--capacity") != 0 && strcmp(option, "--streams") != 0 &&
            strcmp(option, "--replays") != 0) {
            fprintf(stderr, "replay: unknown option %s\n%s", option, usage);
            return -1;
        }
        if (i + 1 == argc) {
            fprintf(stderr, "replay: %s needs a value\n%s", option, usage);
            return -1;
        }
        if (with_value(option, argv[++i], &o) != 0) {
            return -1;
        }
    }
    o.traces = argv + i;
    o.trace_count = argc - i;
    if (o.trace_count == 0) {
        fprintf(stderr, "replay: no trace given\n%s", usage);
        return -1;
    }
    *out = o;
    return 0;
}
