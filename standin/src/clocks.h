/* Points of streams, and what is known to be behind what.
 *
 * A stream's clock has, of each other stream, the point that its next work is ordered behind: by events, and by the
 * legacy stream's rule. What the host has seen to be complete is behind everything that is queued from then on, by
 * whatever thread; it is kept with each stream (`observed`) and left out of clocks. */
#ifndef STANDIN_CLOCKS_H
#define STANDIN_CLOCKS_H

#include "base.h"

#pragma GCC visibility push(hidden)

struct stream;

/* All work on a stream up to a number. Holds the stream. */
struct point {
    struct stream *stream; /* NULL: nothing */
    uint64_t sequence;
};

/* At most one point of each stream. */
struct clock {
    struct point *points;
    size_t count;
};

/* The point behind all that is queued now. */
struct point point_of(struct stream *stream);
bool point_past(const struct point *point);
/* Waits until it is past; lets go of the lock meanwhile. */
void point_wait(const struct point *point);
struct point point_copy(const struct point *from);
void point_end(struct point *point);

void clock_add(struct clock *clock, const struct point *point);
void clock_merge(struct clock *clock, const struct clock *other);
/* Is this work behind the clock's next? */
bool clock_covers(const struct clock *clock, const struct point *point);
struct clock clock_copy(const struct clock *from);
void clock_end(struct clock *clock);
/* The host has seen that this is complete, and so all that came before it. */
void clock_observe(const struct clock *clock, struct stream *stream, uint64_t sequence);

#pragma GCC visibility pop
#endif
