/* Sets of address ranges that do not overlap, in order. Whoever is kept in one begins with a `struct range`. */
#ifndef STANDIN_RANGES_H
#define STANDIN_RANGES_H

#include "base.h"

#pragma GCC visibility push(hidden)

struct range {
    uintptr_t at;
    size_t bytes;
};

struct ranges {
    struct range **items;
    size_t count, capacity;
};

/* Index of the first range that ends behind `at`. */
size_t ranges_from(const struct ranges *set, uintptr_t at);
/* The range with this address in it, or NULL. */
void *ranges_with(const struct ranges *set, uintptr_t at);
/* A range with any of these bytes, or NULL. */
void *ranges_overlapping(const struct ranges *set, uintptr_t at, size_t bytes);
void ranges_add(struct ranges *set, struct range *range);
void ranges_remove(struct ranges *set, const struct range *range);
/* Frees the items, too. */
void ranges_end(struct ranges *set);

#pragma GCC visibility pop
#endif
