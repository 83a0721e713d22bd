/* What memory a device may touch. */
#ifndef STANDIN_REACH_H
#define STANDIN_REACH_H

#include "devices.h"

#pragma GCC visibility push(hidden)

/* NULL if `device` may read (or write) all these bytes, or in a few words why not. Memory that the driver knows
 * nothing of is the host's: copies may touch that. */
const char *reach_refused(const struct device *device, uintptr_t at, size_t bytes, bool writes);
/* Is this address of a device, or of host memory that a device reaches? */
bool reach_is_known(uintptr_t at);
/* Can a fill go over these bytes? Not from one page of the host's to the next, if the host was not first on the page's list. */
bool reach_can_fill(uintptr_t at, size_t bytes);
/* Is it host memory of any kind? */
bool reach_is_host(uintptr_t at);
/* Is it ordinary host memory, which copies are staged for? */
bool reach_is_pageable(uintptr_t at);

#pragma GCC visibility pop
#endif
