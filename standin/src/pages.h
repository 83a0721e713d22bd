/* Physical memory from cuMemCreate. It lives while somebody holds a reference to its handle or it is mapped; its
 * handle stays the same that long.
 *
 * It is a part of one sparse file for each device (a file each would need more descriptors than a process has), or a
 * file of its own if it may be exported. */
#ifndef STANDIN_PAGES_H
#define STANDIN_PAGES_H

#include "handles.h"
#include "hazards.h"

#include <sys/types.h>

#pragma GCC visibility push(hidden)

struct device;

struct pages {
    CUmemGenericAllocationHandle handle;
    struct device *device; /* or the host */
    size_t bytes;
    unsigned references;
    unsigned mappings;
    /* Of the host's memory: who has access to it in any of its mappings, each counted once for each mapping. */
    unsigned shares;
    bool spoiled; /* more was asked for once, and nothing is granted any more */
    CUmemAllocationProp prop;
    int file;
    off_t offset;
    bool own_file;
    bool imported; /* another process's, and not this one's card that pays */
    bool excused;
    struct history history;
};

extern struct handles pages_handles;

/* The pages of a handle that somebody has a reference to. Breaks a rule if there are none. */
struct pages *pages_of(CUmemGenericAllocationHandle handle);
void pages_unmapped(struct pages *pages);
/* Properties that the device can do? */
CUresult pages_check_prop(const CUmemAllocationProp *prop);
void pages_end(void);

#pragma GCC visibility pop
#endif
