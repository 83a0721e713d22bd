/* The functions that PyTorch and CuPy call: whose memory they give, on which device and stream, and what they do where
 * their callers cannot be told of an error. */
#include "scene.h"

static weir_stream current_stream; /* CuPy's */
static weir_stream tell_current_stream(void) { return current_stream; }

static void *teller(void) {
    weir_current_stream tell = tell_current_stream;
    void *param;
    memcpy(&param, &tell, sizeof param);
    return param;
}

static weir_pool *pool_now(void) {
    weir_pool *pool;
    CHECK_OK(weir_device_get_pool(check_device(), &pool));
    return pool;
}

static uint64_t live(weir_pool *pool) {
    weir_pool_stats s = CHECK_STATS(pool);
    return s.allocations - s.frees;
}

static void blocks(void) {
    int device = check_device();
    void *some[20], *none = weir_torch_alloc(0, device, NULL), *other = weir_torch_alloc(0, device, NULL);
    CHECK(none != NULL && other != NULL && none != other);
    weir_torch_free(none, 0, device, NULL);
    weir_torch_free(other, 0, device, NULL);
    for (int i = 0; i < 20; i++) {
        some[i] = i % 2 ? weir_torch_alloc(1000 * (size_t)i, device, NULL) : weir_cupy_malloc(NULL, 1000 * (size_t)i, device);
        CHECK(some[i] != NULL && (uintptr_t)some[i] % 256 == 0);
        contents_fill(some[i], i, 1000 * (size_t)i);
    }
    CHECK_EQUAL(live(pool_now()), 20);
    for (int i = 0; i < 20; i++) {
        CHECK(contents_are(some[i], i, 1000 * (size_t)i));
        if (i % 2) {
            weir_torch_free(some[i], 1000 * (size_t)i, device, NULL);
        } else {
            weir_cupy_free(NULL, some[i], device);
        }
    }
    CHECK_EQUAL(live(pool_now()), 0);
    weir_torch_free(NULL, 0, device, NULL);
    weir_cupy_free(NULL, NULL, device);
    weir_cupy_free(teller(), NULL, device);
    weir_torch_record_stream(NULL, NULL);
    weir_torch_record_stream(&some, NULL);
}

/* Blocks go back to the pool that they came from, whichever is the device's now. */
static void owners(void) {
    weir_pool *shared = pool_now(), *own = check_pool(0);
    void *of_shared = weir_torch_alloc(1000, check_device(), NULL), *of_own, *of_cupy;
    CHECK_OK(weir_device_set_pool(check_device(), own));
    of_own = weir_torch_alloc(1000, check_device(), NULL);
    of_cupy = weir_cupy_malloc(NULL, 1000, check_device());
    CHECK_EQUAL(live(own), 2);
    CHECK_EQUAL(live(shared), 1);
    weir_torch_free(of_shared, 1000, check_device(), NULL);
    CHECK_EQUAL(live(shared), 0);
    CHECK_OK(weir_device_set_pool(check_device(), NULL));
    weir_torch_free(of_own, 1000, check_device(), NULL);
    weir_cupy_free(NULL, of_cupy, check_device());
    CHECK_EQUAL(live(own), 0);
    CHECK_OK(weir_pool_destroy(own));
}

static void no_memory(void) {
    weir_pool *own = check_pool(8 * MiB);
    CHECK_OK(weir_device_set_pool(check_device(), own));
    CHECK(weir_torch_alloc(64 * MiB, check_device(), NULL) == NULL);
    CHECK_SAYS("weir_torch_alloc: out of memory");
    CHECK(weir_cupy_malloc(NULL, 64 * MiB, check_device()) == NULL);
    CHECK_SAYS("weir_cupy_malloc: out of memory");
    /* no C++ library here that could throw */
    CHECK(weir_torch_alloc_or_throw(64 * MiB, check_device(), NULL) == NULL);
    CHECK_SAYS("CUDA out of memory. weir_torch_alloc_or_throw: out of memory");
    CHECK(weir_torch_alloc((size_t)-1, check_device(), NULL) == NULL);
    CHECK(weir_torch_alloc(1, -2, NULL) == NULL);
    CHECK_SAYS("-2");
    void *fits = weir_torch_alloc_or_throw(MiB, check_device(), NULL);
    CHECK(fits != NULL);
    weir_torch_free(fits, MiB, check_device(), NULL);
    CHECK_OK(weir_pool_destroy(own));
}

/* torch.Tensor.record_stream: a block that another stream works on is not given out before that is done. */
static void recorded(void) {
    weir_stream s = stream_new(), t = stream_new();
    gate g;
    void *block = weir_torch_alloc(size, check_device(), s), *again;
    job write = job_over(block, size, 1), check = job_over(block, size, 1);
    memset(&g, 0, sizeof g);
    weir_torch_record_stream(block, t); /* before the work, as programs may */
    queue_gate(t, &g);
    queue_write(t, &write);
    queue_check(t, &check);
    weir_torch_free(block, size, check_device(), s);
    again = weir_torch_alloc(size, check_device(), s);
    CHECK(again != block);
    weir_torch_free(again, size, check_device(), s);
    atomic_store(&g.open, 1);
    stream_wait(t);
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    stream_wait(s);
    stream_end(s);
    stream_end(t);
    CHECK_EQUAL(live(pool_now()), 0);
}

static void emptied(void) {
    weir_torch_free(weir_torch_alloc(8 * MiB, check_device(), NULL), 8 * MiB, check_device(), NULL);
    CHECK(CHECK_STATS(pool_now()).reserved_bytes >= 8 * MiB);
    weir_torch_empty_cache();
    if (check_on_device()) {
        CHECK_EQUAL(CHECK_STATS(pool_now()).reserved_bytes, 0);
    } else {
        CHECK(CHECK_STATS(pool_now()).reserved_bytes >= 8 * MiB); /* PyTorch's is that of the GPUs */
    }
}

/* CuPy frees a block under another stream than it worked on, while that work stands still. */
static void freed_elsewhere(void) {
    weir_stream s = stream_new(), t = stream_new();
    gate g;
    void *block, *again, *on_s;
    current_stream = s;
    block = weir_cupy_malloc(teller(), size, check_device());
    job write = job_over(block, size, 3), check = job_over(block, size, 3);
    memset(&g, 0, sizeof g);
    queue_gate(s, &g);
    queue_write(s, &write);
    queue_check(s, &check);
    current_stream = t;
    weir_cupy_free(teller(), block, check_device());
    again = weir_cupy_malloc(teller(), size, check_device());
    CHECK(again != NULL && again != block);
    weir_cupy_free(teller(), again, check_device());
    current_stream = s;
    on_s = weir_cupy_malloc(teller(), 1000, check_device());
    atomic_store(&g.open, 1);
    weir_cupy_free(teller(), on_s, check_device());
    stream_wait(s);
    CHECK_GOOD(write);
    CHECK_GOOD(check);
    stream_wait(t);
    stream_end(s);
    stream_end(t);
    CHECK_EQUAL(live(pool_now()), 0);
}

/* Told of no stream, a free waits for all work. */
static void freed_without_stream(void) {
    weir_stream s = stream_new();
    gate g;
    opener o;
    void *block = weir_cupy_malloc(NULL, size, check_device());
    job write = job_over(block, size, 5);
    memset(&g, 0, sizeof g);
    queue_gate(s, &g);
    queue_write(s, &write);
    opener_start(&o, &g, 50);
    weir_cupy_free(NULL, block, check_device());
    CHECK(atomic_load(&g.open)); /* so it waited */
    opener_join(&o);
    stream_wait(s);
    CHECK_GOOD(write);
    stream_end(s);
    CHECK_EQUAL(live(pool_now()), 0);
}

/* The built-in streams are those of the device that is named, whatever device is current: a block that is freed then goes
 * to another stream behind the work on the device's own default stream, or the stand-in driver ends the program. */
static void other_device_current(void) {
    int devices = 0;
    CUcontext second, now = NULL;
    gate g;
    DEVICE_OK(cu.DeviceGetCount(&devices));
    if (devices < 2) {
        return;
    }
    weir_stream t = stream_new();
    weir_pool *own = check_pool(one_block);
    CHECK_OK(weir_device_set_pool(0, own));
    void *block = weir_torch_alloc(size, 0, NULL), *again;
    job write = job_over(block, size, 9), over = job_over(block, size, 10);
    memset(&g, 0, sizeof g);
    queue_gate(NULL, &g);
    queue_write(NULL, &write);
    DEVICE_OK(cu.DevicePrimaryCtxRetain(&second, 1));
    DEVICE_OK(cu.CtxPushCurrent(second));
    weir_torch_free(block, size, 0, NULL);
    again = weir_torch_alloc(size, 0, NULL);
    CHECK(again == block); /* the same stream, so at once */
    weir_torch_record_stream(again, NULL);
    weir_torch_free(again, size, 0, NULL);
    void *there = weir_cupy_malloc(NULL, 1000, 1);
    CHECK(there != NULL);
    DEVICE_OK(cu.CtxGetCurrent(&now));
    CHECK(now == second);
    DEVICE_OK(cu.CtxPopCurrent(&second));
    void *elsewhere = weir_torch_alloc(size, 0, t); /* there is no other room */
    CHECK(elsewhere == block);
    queue_write(t, &over);
    weir_torch_free(elsewhere, size, 0, t);
    atomic_store(&g.open, 1);
    DEVICE_OK(cu.StreamSynchronize(NULL));
    CHECK_GOOD(write);
    stream_wait(t);
    CHECK_GOOD(over);
    weir_cupy_free(NULL, there, 1);
    stream_end(t);
    CHECK_OK(weir_pool_destroy(own));
    DEVICE_OK(cu.DevicePrimaryCtxRelease(1));
}

/* Tensors and arrays outlive weir. */
static void ended(void) {
    void *a = weir_torch_alloc(1000, check_device(), NULL), *b = weir_cupy_malloc(teller(), 1000, check_device());
    weir_torch_free(a, 1000, check_device(), NULL);
    weir_cupy_free(teller(), b, check_device());
    CHECK_OK(weir_finalize());
    weir_torch_free(a, 1000, check_device(), NULL);
    weir_torch_record_stream(a, NULL);
    weir_torch_empty_cache();
    weir_cupy_free(teller(), b, check_device());
    weir_cupy_free(NULL, b, check_device());
    a = weir_torch_alloc(1000, check_device(), NULL); /* anew */
    CHECK(a != NULL);
    weir_torch_free(a, 1000, check_device(), NULL);
}

int main(void) {
    program_begin();
    blocks();
    owners();
    no_memory();
    recorded();
    emptied();
    freed_elsewhere();
    freed_without_stream();
    if (check_on_device()) {
        other_device_current();
        staging_end();
    }
    current_stream = NULL;
    ended();
    return program_end();
}
