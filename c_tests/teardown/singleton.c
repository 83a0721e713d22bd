/* A library's singleton that owns a pool, in the two shapes Kokkos had it (kokkos#8041, #8042): an object
 * made with `new` and never deleted (BEFORE), or a static one. In both a finalize hook empties it, so all that
 * the first leaves behind is the object itself: still reachable, which plain leak checks do not report. */
#include "../contents.h"

typedef struct {
    weir_pool *pool;
    void *scratch;
} serial;

#ifdef BEFORE
__attribute__((noinline)) serial *make_serial_singleton(void) { return (serial *)calloc(1, sizeof(serial)); }

static serial *singleton(void) {
    static serial *self = NULL;
    if (self == NULL) {
        self = make_serial_singleton();
    }
    return self;
}
#else
static serial *singleton(void) {
    static serial self;
    return &self;
}
#endif

static void initialize(void) {
    serial *self = singleton();
    self->pool = check_pool(0);
    CHECK_OK(weir_pool_alloc(self->pool, MiB, NULL, &self->scratch));
}

static void finalize(void) {
    serial *self = singleton();
    CHECK_OK(weir_pool_free(self->pool, self->scratch, NULL));
    CHECK_EQUAL(CHECK_STATS(self->pool).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(self->pool));
    self->pool = NULL;
}

int main(void) {
    program_begin();
    initialize();
    contents_fill(singleton()->scratch, 1, MiB);
    finalize();
    return program_end();
}
