#include "handles.h"

static size_t chunk_slots(size_t chunk) { return HANDLE_CHUNK_FIRST << chunk; }

/* Slots in the chunks before this one. */
static size_t slots_before(size_t chunk) { return chunk_slots(chunk) - HANDLE_CHUNK_FIRST; }

static struct slot *slot_of(const struct handles *table, const void *handle) {
    uintptr_t at = (uintptr_t)handle;
    for (size_t i = 0; i < HANDLE_CHUNKS && table->chunks[i] != NULL; i++) {
        uintptr_t base = (uintptr_t)table->chunks[i];
        size_t index = (at - base) / sizeof(struct slot);
        if (at >= base && index < chunk_slots(i) && (at - base) % sizeof(struct slot) == 0 &&
            slots_before(i) + index < table->used) {
            return &table->chunks[i][index];
        }
    }
    rule_broken("%s %p was never one", table->kind, handle);
}

static struct slot *slot_numbered(struct handles *table, size_t number) {
    size_t chunk = 0;
    while (number >= slots_before(chunk + 1)) {
        chunk++;
    }
    if (chunk == HANDLE_CHUNKS) {
        cannot_go_on("too many handles");
    }
    if (table->chunks[chunk] == NULL) {
        table->chunks[chunk] = must_alloc(chunk_slots(chunk) * sizeof(struct slot));
    }
    return &table->chunks[chunk][number - slots_before(chunk)];
}

void *handle_new(struct handles *table, void *object) {
    struct slot *slot = table->free;
    if (slot != NULL) {
        table->free = slot->next_free;
    } else {
        slot = slot_numbered(table, table->used);
        table->used++;
    }
    slot->object = object;
    return slot;
}

void *handle_find(const struct handles *table, const void *handle) {
    return slot_of(table, handle)->object;
}

void *handle_object(const struct handles *table, const void *handle) {
    void *object = handle_find(table, handle);
    if (object == NULL) {
        rule_broken("%s %p has been given back", table->kind, handle);
    }
    return object;
}

CUresult handle_look_up(const struct handles *table, const void *handle, void **object) {
    const struct slot *slot = slot_of(table, handle);
    if (slot->buried) {
        if (slot->back != NULL && *slot->back) {
            rule_broken("%s %p went with a context that was reset, and has been retained since", table->kind, handle);
        }
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *object = handle_object(table, handle);
    return CUDA_SUCCESS;
}

void handle_bury(struct handles *table, void *handle, const bool *back) {
    struct slot *slot = slot_of(table, handle);
    slot->object = NULL;
    slot->buried = true;
    slot->back = back;
}

void handle_free(struct handles *table, void *handle) {
    struct slot *slot = slot_of(table, handle);
    slot->object = NULL;
    slot->next_free = table->free;
    table->free = slot;
}

void handles_each(const struct handles *table, void (*each)(void *object, void *data), void *data) {
    for (size_t i = 0; i < HANDLE_CHUNKS && table->chunks[i] != NULL; i++) {
        for (size_t j = 0; j < chunk_slots(i); j++) {
            if (table->chunks[i][j].object != NULL) {
                each(table->chunks[i][j].object, data);
            }
        }
    }
}

void handles_end(struct handles *table) {
    for (size_t i = 0; i < HANDLE_CHUNKS; i++) {
        free(table->chunks[i]);
        table->chunks[i] = NULL;
    }
    table->used = 0;
    table->free = NULL;
}
