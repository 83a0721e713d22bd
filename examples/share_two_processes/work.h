/* Streams, events and work for one kind of memory: a GPU's, by the driver's own interface, or the host's. */
#ifndef WORK_H
#define WORK_H

#include <stddef.h>
#include <stdint.h>
#include <weir.h>

/* Each returns 0, or -1 once it has printed what is wrong. */
int work_open(int on_device);
int work_stream_create(weir_stream *stream);
int work_stream_destroy(weir_stream stream);
/* An event that other processes can use. */
int work_event_create(weir_event *event);
int work_event_destroy(weir_event event);
/* Queues the filling of memory with a word. */
int work_fill(weir_stream stream, void *block, size_t bytes, uint32_t word);
/* Queues a copy of memory to `to`, which is page-locked for a GPU. */
int work_fetch(weir_stream stream, void *to, const void *block, size_t bytes);
/* Host memory for work_fetch. */
int work_host_alloc(void **place, size_t bytes);
void work_host_free(void *place);
void work_close(void);

#endif
