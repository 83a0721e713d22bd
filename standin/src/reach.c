#include "reach.h"

#include "allocations.h"
#include "mappings.h"

static const char *refused_in_allocation(const struct device *device, const struct allocation *allocation,
                                         uintptr_t end) {
    if (end > allocation->range.at + allocation->range.bytes) {
        return "that goes beyond the allocation";
    }
    return context_reaches(device, allocation->context->device) ? NULL : "it is another device's, without peer access";
}

static const char *refused_in_mappings(const struct device *device, uintptr_t at, uintptr_t end, bool writes) {
    while (at < end) {
        const struct mapping *mapping = ranges_with(&mappings, at);
        if (mapping == NULL) {
            return "nothing is mapped there";
        }
        unsigned access = mapping->access[device->ordinal];
        if (!(access & 1)) {
            return "the device has no access there";
        }
        if (writes && !(access & 2)) {
            return "the device may only read there";
        }
        at = mapping->range.at + mapping->range.bytes;
    }
    return NULL;
}

const char *reach_refused(const struct device *device, uintptr_t at, size_t bytes, bool writes) {
    const struct allocation *allocation = ranges_overlapping(&device_allocations, at, bytes);
    if (allocation != NULL) {
        return refused_in_allocation(device, allocation, at + bytes);
    }
    return ranges_overlapping(&reservations, at, bytes) == NULL ? NULL
                                                                : refused_in_mappings(device, at, at + bytes, writes);
}

bool reach_is_known(uintptr_t at) {
    return ranges_with(&device_allocations, at) != NULL || ranges_with(&reservations, at) != NULL ||
           ranges_with(&host_allocations, at) != NULL;
}

bool reach_can_fill(uintptr_t at, size_t bytes) {
    const struct mapping *mapping = ranges_with(&mappings, at);
    return mapping == NULL || !mapping->host_late || bytes <= mapping->range.at + mapping->range.bytes - at;
}

bool reach_is_host(uintptr_t at) {
    const struct mapping *mapping = ranges_with(&mappings, at);
    if (mapping != NULL) {
        return mapping->pages->device->ordinal == HOST;
    }
    return ranges_with(&device_allocations, at) == NULL && ranges_with(&reservations, at) == NULL;
}

bool reach_is_pageable(uintptr_t at) { return !reach_is_known(at); }
