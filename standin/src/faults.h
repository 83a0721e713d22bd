/* Calls that are to fail or be late. */
#ifndef STANDIN_FAULTS_H
#define STANDIN_FAULTS_H

#include "calls.h"

#pragma GCC visibility push(hidden)

/* Counts a call and tells what is to become of it. Has a lock of its own: it comes before the call's. */
CUresult faults_of(enum call call, uint64_t *microseconds);
/* WEIR_STANDIN_FAIL and WEIR_STANDIN_DELAY: lists of "call:nth:what", with commas. */
void faults_from_environment(void);
void faults_end(void);
void faults_fork_before(void);
void faults_fork_after(void);

#pragma GCC visibility pop
#endif
