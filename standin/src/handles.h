/* Tables of handles. The handle last given back is the next one given out: a program that keeps one too long meets
 * somebody else's object at once, not by chance on some other day.
 *
 * A table's slots never move, so that a value can be told to be a handle, to have been one, or neither. They are heap
 * memory, where leak checkers look for references. */
#ifndef STANDIN_HANDLES_H
#define STANDIN_HANDLES_H

#include "base.h"

#pragma GCC visibility push(hidden)

#define HANDLE_CHUNKS 12
#define HANDLE_CHUNK_FIRST ((size_t)256)

struct slot {
    void *object; /* NULL: given back */
    bool buried;
    const bool *back; /* or NULL */
    struct slot *next_free;
};

struct handles {
    const char *kind; /* for messages: "stream" */
    struct slot *chunks[HANDLE_CHUNKS]; /* each twice as large as the one before */
    size_t used;                        /* slots ever given out */
    struct slot *free;                  /* the one given back last */
};

/* A fresh handle for `object`. */
void *handle_new(struct handles *table, void *object);
/* The object behind a handle, or NULL if it was given back. A value that never was one breaks a rule. */
void *handle_find(const struct handles *table, const void *handle);
/* The object; a handle that was given back breaks a rule, too. */
void *handle_object(const struct handles *table, const void *handle);
/* The same for what belongs to a context: CUDA_ERROR_CONTEXT_IS_DESTROYED if it went with that, and a broken rule once that
 * is back. */
CUresult handle_look_up(const struct handles *table, const void *handle, void **object);
void handle_free(struct handles *table, void *handle);
/* Its context is destroyed. The driver remembers, so the handle is not used again; until `*back`, unless that is NULL. */
void handle_bury(struct handles *table, void *handle, const bool *back);
/* Calls `each` for all live objects. */
void handles_each(const struct handles *table, void (*each)(void *object, void *data), void *data);
void handles_end(struct handles *table);

#pragma GCC visibility pop
#endif
