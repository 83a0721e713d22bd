/* Events that other processes can open: a page that is shared, with the number of the latest record, and which of the
 * last ones are done. */
#ifndef STANDIN_IPC_EVENTS_H
#define STANDIN_IPC_EVENTS_H

#include "base.h"

#pragma GCC visibility push(hidden)

struct ipc_event;

struct ipc_event *ipc_event_new(void);
struct ipc_event *ipc_event_share(struct ipc_event *event);
void ipc_event_release(struct ipc_event *event);
/* One more record; its number. */
uint64_t ipc_event_record(struct ipc_event *event);
/* The number of the latest record; 0: none. */
uint64_t ipc_event_recorded(const struct ipc_event *event);
void ipc_event_done(struct ipc_event *event, uint64_t number);
bool ipc_event_is_done(const struct ipc_event *event, uint64_t number);

#pragma GCC visibility pop
#endif
