/* Address ranges, and the pages mapped in them. Memory is there for a program (and for queued work) once access was
 * granted, not before. */
#ifndef STANDIN_MAPPINGS_H
#define STANDIN_MAPPINGS_H

#include "pages.h"
#include "ranges.h"

#pragma GCC visibility push(hidden)

struct reservation {
    struct range range;
    bool excused;
};

struct mapping {
    struct range range;
    struct pages *pages;
    unsigned char access[PLACES]; /* CUmemAccess_flags of each device, and of the host */
    bool host_late; /* the list that gave the host access named a card before it */
    bool excused;
};

extern struct ranges reservations, mappings;

void mappings_end(void);

#pragma GCC visibility pop
#endif
