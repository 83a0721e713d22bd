/* Freeing never allocates and cannot fail for lack of memory: this program's malloc counts, and from a
 * certain moment on gives nothing. Errors of a free need no memory either. */
#include "../check.h"
#include "../streams.h"
#include <errno.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_int refusing;
static atomic_uint asked;

static int refuse(void) {
    if (atomic_load(&refusing)) {
        asked++;
        errno = ENOMEM;
        return 1;
    }
    return 0;
}

void *malloc(size_t n) { return refuse() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return refuse() ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return refuse() ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return refuse() ? NULL : __libc_memalign(a, n); }
void *memalign(size_t a, size_t n) { return refuse() ? NULL : __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) {
    if (refuse()) {
        return ENOMEM;
    }
    *p = __libc_memalign(a, n);
    return *p == NULL ? ENOMEM : 0;
}

enum { BLOCKS = 600 };
static void *blocks[BLOCKS];

static void free_all(weir_pool *pool, weir_stream s, weir_stream t, int how) {
    static int not_a_block;
    int failed = 0;
    atomic_store(&asked, 0);
    atomic_store(&refusing, 1);
    switch (how) {
    case 0:
        for (int i = 0; i < BLOCKS; i++) {
            failed |= weir_pool_free(pool, blocks[i], i % 3 ? s : t);
        }
        break;
    case 1:
        for (int i = BLOCKS - 1; i >= 0; i--) {
            failed |= weir_pool_free_synced(pool, blocks[i]);
        }
        break;
    default:
        failed |= weir_pool_free_batch(pool, blocks, BLOCKS, s);
        break;
    }
    int unknown = weir_pool_free(pool, &not_a_block, s);
    int twice = weir_pool_free(pool, blocks[0], s);
    atomic_store(&refusing, 0);
    CHECK_EQUAL(failed, 0);
    CHECK_STATUS(WEIR_ERROR_UNKNOWN_POINTER, unknown);
    CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, twice);
    CHECK_EQUAL(asked, 0);
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
}

int main(void) {
    if (check_under("plain")) {
        atomic_store(&refusing, 1); /* the refusal itself works (valgrind has its own malloc) */
        void *volatile p = malloc(10);
        atomic_store(&refusing, 0);
        CHECK(p == NULL && asked == 1);
    }
    weir_pool *pool = check_pool(0);
    weir_stream s, t;
    CHECK_OK(weir_host_stream_create(&s));
    CHECK_OK(weir_host_stream_create(&t));
    gate begun = {0}; /* the streams' threads take what a thread takes before memory is refused */
    atomic_store(&begun.open, 1);
    queue_gate(s, &begun);
    queue_gate(t, &begun);
    CHECK_OK(weir_device_synchronize());
    for (int how = 0; how < 3; how++) {
        gate g = {0};
        for (int i = 0; i < BLOCKS; i++) {
            size_t bytes = i % 50 == 0 ? 3 * MiB : (size_t)(i * 37) + 1;
            CHECK_OK(weir_pool_alloc(pool, bytes, s, &blocks[i]));
            if (i % 7 == 0) {
                CHECK_OK(weir_pool_record_stream(pool, blocks[i], t));
            }
        }
        queue_gate(s, &g); /* the frees find work in flight */
        free_all(pool, s, t, how);
        atomic_store(&g.open, 1);
        CHECK_OK(weir_device_synchronize());
    }
    CHECK_OK(weir_host_stream_destroy(s));
    CHECK_OK(weir_host_stream_destroy(t));
    CHECK_OK(weir_pool_destroy(pool));
    return check_end();
}
