/* The cards: their size, what is used of them, whether they are lost. */
#ifndef STANDIN_DEVICES_H
#define STANDIN_DEVICES_H

#include "base.h"

#pragma GCC visibility push(hidden)

struct device {
    int ordinal;
    uint64_t memory; /* size of the card */
    uint64_t used;   /* by this process */
    uint64_t held;   /* by somebody else, standin_hold_memory */
    bool lost;
    struct context *primary; /* made by the first retain, never unmade: its handle stays the same */
    unsigned retained;
    bool retain_excused;
};

void devices_prepare(void);
/* NULL: there is no such device. */
struct device *device_numbered(CUdevice ordinal);
/* The host, as a place that has memory: of no ordinal that a program knows, and never lost. */
struct device *device_host(void);
/* Whose memory, or access, a location means: a card's ordinal, or HOST. */
CUresult place_of(const CUmemLocation *location, int *place);
/* Takes bytes from the card, or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult device_take(struct device *device, uint64_t bytes);
void device_give(struct device *device, uint64_t bytes);

#pragma GCC visibility pop
#endif
