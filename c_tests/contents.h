/* The memory a test run is about, WEIR_TEST_MEMORY=host (default) or device, and its contents as the host sees them. */
#ifndef WEIR_C_TESTS_CONTENTS_H
#define WEIR_C_TESTS_CONTENTS_H

#include "device.h"

/* Every program that touches memory or streams begins with this and ends with `return program_end();`. */
static inline void program_begin(void) {
    if (check_on_device()) {
        device_open();
    }
}

static inline int program_end(void) {
    if (check_on_device()) {
        device_close();
    }
    return check_end();
}

/* For threads other than the one that began. */
static inline void program_thread(void) {
    if (check_on_device()) {
        DEVICE_OK(cu.CtxSetCurrent(cu.context));
    }
}

/* Fills a block that no queued work uses, and waits until that is done. */
static inline void contents_fill(void *p, int value, size_t bytes) {
    if (!check_on_device()) {
        memset(p, value, bytes);
    } else if (bytes > 0) {
        DEVICE_OK(cu.MemsetD8Async(device_address(p), (unsigned char)value, bytes, NULL));
        DEVICE_OK(cu.StreamSynchronize(NULL));
    }
}

/* Is every byte `value`? */
static inline int contents_are(const void *p, int value, size_t bytes) {
    unsigned char *copy = NULL;
    const unsigned char *seen = (const unsigned char *)p;
    size_t i = 0;
    if (check_on_device() && bytes > 0) {
        seen = copy = (unsigned char *)malloc(bytes);
        CHECK(copy != NULL);
        DEVICE_OK(cu.MemcpyDtoH(copy, device_address(p), bytes));
    }
    while (i < bytes && seen[i] == (unsigned char)value) {
        i++;
    }
    free(copy);
    return i == bytes;
}

static inline void word_put(uint64_t *p, size_t i, uint64_t value) {
    if (!check_on_device()) {
        p[i] = value;
    } else {
        DEVICE_OK(cu.MemcpyHtoD(device_address(p + i), &value, sizeof value));
    }
}

static inline uint64_t word_get(const uint64_t *p, size_t i) {
    uint64_t value = 0;
    if (!check_on_device()) {
        return p[i];
    }
    DEVICE_OK(cu.MemcpyDtoH(&value, device_address(p + i), sizeof value));
    return value;
}

#endif
