#include "handles.h"

#include <sys/mman.h>

static size_t index_of(const struct handles *table, const void *handle) {
    uintptr_t at = (uintptr_t)handle, base = (uintptr_t)table->slots;
    if (table->slots == NULL || at < base || at >= base + table->used * sizeof(struct slot) ||
        (at - base) % sizeof(struct slot) != 0) {
        rule_broken("%s %p was never one", table->kind, handle);
    }
    return (at - base) / sizeof(struct slot);
}

void *handle_new(struct handles *table, void *object) {
    if (table->slots == NULL) {
        void *at = mmap(NULL, HANDLES_MAX * sizeof(struct slot), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            cannot_go_on("no room for handles");
        }
        table->slots = at;
    }
    size_t index;
    if (table->free != 0) {
        index = table->free - 1;
        table->free = table->slots[index].next_free;
    } else if (table->used < HANDLES_MAX) {
        index = table->used++;
    } else {
        cannot_go_on("too many handles");
    }
    table->slots[index].object = object;
    table->live++;
    return &table->slots[index];
}

void *handle_find(const struct handles *table, const void *handle) {
    return table->slots[index_of(table, handle)].object;
}

void *handle_object(const struct handles *table, const void *handle) {
    void *object = handle_find(table, handle);
    if (object == NULL) {
        rule_broken("%s %p has been given back", table->kind, handle);
    }
    return object;
}

CUresult handle_look_up(const struct handles *table, const void *handle, void **object) {
    if (table->slots[index_of(table, handle)].buried) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *object = handle_object(table, handle);
    return CUDA_SUCCESS;
}

void handle_bury(struct handles *table, void *handle) {
    struct slot *slot = &table->slots[index_of(table, handle)];
    slot->object = NULL;
    slot->buried = true;
    table->live--;
}

void handle_free(struct handles *table, void *handle) {
    size_t index = index_of(table, handle);
    table->slots[index].object = NULL;
    table->slots[index].next_free = table->free;
    table->free = index + 1;
    table->live--;
}

void handles_each(const struct handles *table, void (*each)(void *object, void *data), void *data) {
    for (size_t i = 0; i < table->used; i++) {
        if (table->slots[i].object != NULL) {
            each(table->slots[i].object, data);
        }
    }
}

void handles_end(struct handles *table) {
    if (table->slots != NULL) {
        munmap(table->slots, HANDLES_MAX * sizeof(struct slot));
    }
    table->slots = NULL;
    table->used = table->free = table->live = 0;
}
