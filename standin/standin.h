/* Control of the stand-in CUDA driver, for tests. Every function may be called from any thread, and before cuInit.
 * A name of a call is the exported one ("cuMemAlloc_v2") or the one without its suffix ("cuMemAlloc"), which means
 * every variant. A name that is none ends the process: a test that waits for it would test nothing. */
#ifndef STANDIN_H
#define STANDIN_H

#include "cuda_api.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The nth call from now (1 is the next one) does nothing and returns `result`. May be called several times. */
void standin_fail(const char *call, uint64_t nth, int result);
/* The same for the nth call of any kind, but for those that only tell: names, versions, addresses of functions. */
void standin_fail_any(uint64_t nth, int result);
/* The nth call from now (0: each) waits so long before it does anything. */
void standin_delay(const char *call, uint64_t nth, uint64_t microseconds);
/* Calls made since the start or the last standin_reset_faults. NULL: of all the kinds that standin_fail_any means. */
uint64_t standin_calls(const char *call);
/* Forgets what was to fail or be late, and counts from zero. */
void standin_reset_faults(void);
/* How many faults have not come yet. */
uint64_t standin_faults_left(void);

/* The device is as after an illegal address: what is queued on it is dropped, and launches, synchronisation, streams,
 * events and frees return 700. The virtual memory calls still work. Once its primary context was reset, it cannot be
 * retained again (700). */
void standin_lose_device(CUdevice device);
/* What cuDevicePrimaryCtxReset does, from outside the program, and what that does not: a lost device is well again. */
void standin_reset_device(CUdevice device);
/* Size of the card from now on. What is in use stays. */
void standin_set_memory(CUdevice device, uint64_t bytes);
/* Somebody else's memory on the card, in place of what an earlier call gave. */
void standin_hold_memory(CUdevice device, uint64_t bytes);
/* Most mappings with access that may exist at once. */
void standin_set_mapping_limit(uint64_t mappings);
/* May `device` reach the memory of `peer`? */
void standin_set_peer(CUdevice device, CUdevice peer, int allowed);

/* The next host function queued on `stream` uses these bytes: they are watched as those of a copy are. */
void standin_declare_use(CUstream stream, const void *at, size_t bytes);
/* This event is the program's own and may be recorded on capturing streams, to fork and join them. */
void standin_capture_event(CUevent event);

/* The driver is gone: every call from now on ends the process with a message. */
void standin_unload(void);
/* The driver is gone: every call from now on returns 4, as the real one mostly does. */
void standin_unload_quietly(void);

/* What is open now, in the words of the report at exit. Returns how many things. `text` may be NULL. */
uint64_t standin_open(char *text, size_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
