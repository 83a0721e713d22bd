/* A library's singleton that owns a pool, in the two shapes Kokkos had it (kokkos#8041, #8042): an object
 * made with `new` and never deleted (BEFORE), or a static one whose contents go in a finalize hook.
 * What the first leaves behind is still reachable, so plain leak checks do not report it. */
#include "../check.h"

typedef struct {
    weir_pool *pool;
    void *scratch;
} serial;

#ifdef BEFORE
__attribute__((noinline)) serial *make_serial_singleton(void) {
    serial *self = (serial *)calloc(1, sizeof *self);
    self->pool = check_host_pool(0);
    CHECK_OK(weir_pool_alloc(self->pool, MiB, NULL, &self->scratch));
    return self;
}

static serial *singleton(void) {
    static serial *self = NULL;
    if (self == NULL) {
        self = make_serial_singleton();
    }
    return self;
}

static void finalize(void) {}
#else
static serial *singleton(void) {
    static serial self;
    if (self.pool == NULL) {
        self.pool = check_host_pool(0);
        CHECK_OK(weir_pool_alloc(self.pool, MiB, NULL, &self.scratch));
    }
    return &self;
}

static void finalize(void) {
    serial *self = singleton();
    CHECK_OK(weir_pool_free(self->pool, self->scratch, NULL));
    CHECK_EQUAL(CHECK_STATS(self->pool).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(self->pool));
    self->pool = NULL;
}
#endif

int main(void) {
    memset(singleton()->scratch, 1, MiB);
    finalize();
    return check_end();
}
