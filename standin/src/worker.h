/* The thread that does a stream's work. */
#ifndef STANDIN_WORKER_H
#define STANDIN_WORKER_H

#include "streams.h"

#pragma GCC visibility push(hidden)

/* Sees to it that somebody does what is queued. */
void worker_wake(struct stream *stream);
/* No more work comes: the worker ends behind what is queued. */
void worker_dismiss(struct stream *stream);
/* Joins the workers that have ended. */
void workers_reap(void);
/* Workers leave out what is still queued from now on. */
void workers_abandon(void);
/* The host learns of it, from now on: one moment early, since nobody knows when it looks. */
void work_observe(struct stream *stream, const struct work *work, enum tidings tidings);
void work_end(struct work *work);

#pragma GCC visibility pop
#endif
