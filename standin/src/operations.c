#include "operations.h"

#include <wchar.h>

#include "reach.h"

_Static_assert(sizeof(wchar_t) == 4, "a fill of words is one of wide characters");

void operation_add_use(struct operation *operation, uintptr_t at, size_t bytes, bool writes) {
    if (bytes == 0) {
        return;
    }
    operation->uses = must_grow(operation->uses, (operation->use_count + 1) * sizeof *operation->uses);
    operation->uses[operation->use_count++] = (struct use){at, bytes, writes};
}

struct operation operation_copy(const struct operation *operation) {
    struct operation copy = *operation;
    if (copy.use_count > 0) {
        size_t bytes = copy.use_count * sizeof *copy.uses;
        copy.uses = memcpy(must_alloc(bytes), operation->uses, bytes);
    }
    return copy;
}

void operation_end(struct operation *operation) {
    free(operation->staging);
    free(operation->uses);
}

bool operation_writes_host(const struct operation *operation) {
    for (size_t i = 0; i < operation->use_count; i++) {
        if (operation->uses[i].writes && reach_is_host(operation->uses[i].at)) {
            return true;
        }
    }
    return false;
}

enum tidings operation_tells(const struct operation *operation) {
    if (operation->kind == DO_CALL) {
        return operation->use_count > 0 ? OF_ALL_BEFORE : OF_ITSELF;
    }
    return operation_writes_host(operation) ? OF_ITSELF : NO_TIDINGS;
}

void operation_check(const struct operation *operation, const struct device *device, const char *where) {
    for (size_t i = 0; i < operation->use_count; i++) {
        const struct use *use = &operation->uses[i];
        const char *why = reach_refused(device, use->at, use->bytes, use->writes);
        if (why != NULL) {
            rule_broken("work on %s of device %d %s %zu bytes at %p, and %s", where, device->ordinal,
                        use->writes ? "writes" : "reads", use->bytes, (void *)use->at, why);
        }
    }
}

void operation_run(const struct operation *operation) {
    switch (operation->kind) {
    case DO_NOTHING:
        break;
    case DO_FILL:
        if (operation->width == 1) {
            memset(operation->to, (int)operation->value, operation->bytes);
        } else {
            wmemset(operation->to, (wchar_t)operation->value, operation->bytes / sizeof(wchar_t));
        }
        break;
    case DO_COPY:
        /* The program may copy within one buffer; only overlapping copies are undefined. */
        memmove(operation->to, operation->staging != NULL ? operation->staging : operation->from, operation->bytes);
        break;
    case DO_CALL:
        this_thread.in_host_function = true;
        operation->function(operation->data);
        this_thread.in_host_function = false;
        break;
    }
}
