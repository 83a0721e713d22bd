/* The driver's own life: cuInit, the end of the process, unloading and fork; and what is left open at the end. */
#ifndef STANDIN_EXIT_H
#define STANDIN_EXIT_H

#include "base.h"

#pragma GCC visibility push(hidden)

struct context;

void exit_prepare(void);
/* Is there still a driver for this process? If not, an error or the end of the process. */
CUresult driver_gone(void);
bool driver_initialised(void);
/* The last holder of a primary context lets go of it: what is still open in it counts as left behind. */
void exit_count_left_behind(const struct context *context);

#pragma GCC visibility pop
#endif
