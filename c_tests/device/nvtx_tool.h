/* A tool for the tests: what a program tells through the memory extension of NVTX is written down and checked. The
 * program names the library in NVTX_INJECTION64_PATH, and asks it by the functions below, found with dlsym. A broken
 * rule ends the program: heaps and regions that overlap, a region outside its heap, one that is ended and was never
 * begun, a structure that is not filled as NVTX says.
 *
 * WEIR_TEST_TOOL in the environment: "refuse" does not attach to the extension, "part" fills only some of its
 * functions, "no_core" has no entry point for the core of NVTX. WEIR_TEST_TOOL_HEAPS=0: no heap is accepted. */
#ifndef WEIR_C_TESTS_NVTX_TOOL_H
#define WEIR_C_TESTS_NVTX_TOOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t at, bytes;
} nvtx_tool_range;

/* What is registered now, in the order of addresses: copies at most `most`, returns how many there are. */
typedef size_t nvtx_tool_list(nvtx_tool_range *out, size_t most);
/* "nvtx_tool_heaps" and "nvtx_tool_regions". */

/* Registrations so far: "nvtx_tool_heaps_ever" and "nvtx_tool_regions_ever". */
typedef size_t nvtx_tool_count(void);

#endif
