#include "ranges.h"

size_t ranges_from(const struct ranges *set, uintptr_t at) {
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->items[middle]->at + set->items[middle]->bytes <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void *ranges_overlapping(const struct ranges *set, uintptr_t at, size_t bytes) {
    size_t index = ranges_from(set, at);
    return index < set->count && set->items[index]->at < at + bytes ? set->items[index] : NULL;
}

void *ranges_with(const struct ranges *set, uintptr_t at) { return ranges_overlapping(set, at, 1); }

void ranges_add(struct ranges *set, struct range *range) {
    if (set->count == set->capacity) {
        set->capacity = set->capacity > 0 ? 2 * set->capacity : 16;
        set->items = must_grow(set->items, set->capacity * sizeof(struct range *));
    }
    size_t index = ranges_from(set, range->at);
    memmove(&set->items[index + 1], &set->items[index], (set->count - index) * sizeof(struct range *));
    set->items[index] = range;
    set->count++;
}

void ranges_remove(struct ranges *set, const struct range *range) {
    size_t index = ranges_from(set, range->at);
    set->count--;
    memmove(&set->items[index], &set->items[index + 1], (set->count - index) * sizeof(struct range *));
}

void ranges_end(struct ranges *set) {
    for (size_t i = 0; i < set->count; i++) {
        free(set->items[i]);
    }
    free(set->items);
    *set = (struct ranges){0};
}
