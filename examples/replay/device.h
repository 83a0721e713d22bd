/* A GPU's streams, by the driver's own interface: the part of a program that would otherwise be CUDA's runtime. */
#ifndef REPLAY_DEVICE_H
#define REPLAY_DEVICE_H

#include <weir.h>

/* Makes GPU 0 current on this thread. Returns -1 and prints why if there is none that works. */
int device_open(void);
/* The GPU's name, once it is open. */
const char *device_name(void);
/* Creates a stream that is not ordered with the default one. */
int device_stream_create(weir_stream *stream);
int device_stream_destroy(weir_stream stream);
/* Gives back what device_open took. */
void device_close(void);

#endif
