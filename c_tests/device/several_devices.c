/* Default and current pools of each device, and what other devices may do with a pool's memory. On a machine with one
 * device only the refusals are seen. */
#include "../streams.h"

static int devices;

static weir_pool *pool_of(int device) {
    weir_pool_options o = check_options(0);
    weir_pool *pool;
    o.device = device;
    CHECK_OK(weir_pool_create(&o, &pool));
    return pool;
}

static void default_pools(void) {
    weir_pool *first, *second, *now, *own = pool_of(0);
    CHECK_OK(weir_default_pool(0, &first));
    CHECK(weir_default_pool(devices, &now) != WEIR_OK); /* no such device */
    CHECK(weir_device_get_pool(devices, &now) != WEIR_OK);
    CHECK(weir_device_set_pool(devices, own) != WEIR_OK);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_device_set_pool(WEIR_DEVICE_HOST, own));
    if (devices > 1) {
        CHECK_OK(weir_default_pool(1, &second));
        CHECK(first != second);
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_device_set_pool(1, own)); /* another device's memory */
        CHECK_OK(weir_device_get_pool(1, &now));
        CHECK(now == second);
        CHECK_OK(weir_device_set_pool(0, own));
        CHECK_OK(weir_device_get_pool(1, &now)); /* each device has its own */
        CHECK(now == second);
        CHECK_OK(weir_device_get_pool(0, &now));
        CHECK(now == own);
    }
    CHECK_OK(weir_pool_destroy(own));
    CHECK_OK(weir_device_get_pool(0, &now));
    CHECK(now == first);
}

static int32_t access_now(weir_pool *pool, int device) {
    int32_t access = 77;
    CHECK_OK(weir_pool_get_access(pool, device, &access));
    return access;
}

/* Can device 1 write to a block and read it back? */
static void reach_from_second(CUcontext second, weir_stream stream, void *p, size_t bytes) {
    unsigned *seen = (unsigned *)staging_take(bytes);
    DEVICE_OK(cu.CtxPushCurrent(second));
    DEVICE_OK(cu.MemsetD32Async(device_address(p), 0x5eed, bytes / 4, stream));
    DEVICE_OK(cu.MemcpyDtoHAsync(seen, device_address(p), bytes, stream));
    DEVICE_OK(cu.StreamSynchronize(stream));
    DEVICE_OK(cu.CtxPopCurrent(&second));
    for (size_t i = 0; i < bytes / 4; i++) {
        if (seen[i] != 0x5eed) {
            CHECK_EQUAL(seen[i], 0x5eed);
        }
    }
    staging_give(seen, bytes);
}

static void peer_access(void) {
    const size_t bytes = 4 * MiB;
    weir_pool *pool = pool_of(0);
    void *before, *after, *cached;
    int can = 0;
    CUcontext second;
    weir_stream theirs;
    CHECK_EQUAL(access_now(pool, 0), WEIR_ACCESS_READ_WRITE);
    CHECK(weir_pool_set_access(pool, devices, WEIR_ACCESS_READ) != WEIR_OK);
    CHECK_SAYS_NUMBER((uint64_t)devices);
    CHECK(weir_pool_set_access(pool, -1, WEIR_ACCESS_READ) != WEIR_OK);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_access(pool, 0, 2));
    CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &before));
    CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &cached));
    CHECK_OK(weir_pool_free(pool, cached, NULL));
    if (devices > 1) {
        DEVICE_OK(cu.DeviceCanAccessPeer(&can, 1, 0));
        CHECK_EQUAL(access_now(pool, 1), WEIR_ACCESS_NONE);
        if (can) {
            CHECK_OK(weir_pool_set_access(pool, 1, WEIR_ACCESS_READ_WRITE));
            CHECK_EQUAL(access_now(pool, 1), WEIR_ACCESS_READ_WRITE);
            CHECK_EQUAL(access_now(pool, 0), WEIR_ACCESS_READ_WRITE);
            CHECK_OK(weir_pool_alloc(pool, 16 * bytes, NULL, &after));
            DEVICE_OK(cu.DevicePrimaryCtxRetain(&second, 1));
            DEVICE_OK(cu.CtxPushCurrent(second));
            theirs = stream_new();
            DEVICE_OK(cu.CtxPopCurrent(&second));
            reach_from_second(second, theirs, before, bytes); /* memory of before, and of now */
            reach_from_second(second, theirs, after, 16 * bytes);
            CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &cached));
            reach_from_second(second, theirs, cached, bytes);
            CHECK_OK(weir_pool_record_stream(pool, cached, theirs)); /* a stream of another device */
            CHECK_OK(weir_pool_free(pool, cached, NULL));
            CHECK_OK(weir_pool_free(pool, after, theirs));
            CHECK_OK(weir_pool_set_access(pool, 1, WEIR_ACCESS_NONE));
            CHECK_EQUAL(access_now(pool, 1), WEIR_ACCESS_NONE);
            stream_end(theirs);
            DEVICE_OK(cu.DevicePrimaryCtxRelease(1));
        } else {
            CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_set_access(pool, 1, WEIR_ACCESS_READ_WRITE));
            CHECK_EQUAL(access_now(pool, 1), WEIR_ACCESS_NONE);
        }
    }
    contents_fill(before, 3, bytes); /* the device itself still has it all */
    CHECK(contents_are(before, 3, bytes));
    CHECK_OK(weir_pool_free(pool, before, NULL));
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(CHECK_STATS(pool).reserved_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

/* What cannot be reached is refused at once, whatever the pool holds, and nothing is different. */
static void impossible_peer(void) {
    void (*set_peer)(int, int, int);
    if (!device_is_standin() || devices < 2) {
        return;
    }
    *(void **)&set_peer = device_symbol("standin_set_peer");
    set_peer(1, 0, 0);
    weir_pool *pool = pool_of(0);
    void *p;
    for (int round = 0; round < 2; round++) {
        CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_set_access(pool, 1, WEIR_ACCESS_READ_WRITE));
        CHECK_SAYS_NUMBER(1);
        CHECK_EQUAL(access_now(pool, 1), WEIR_ACCESS_NONE);
        CHECK_OK(weir_pool_alloc(pool, 8 * MiB, NULL, &p));
        CHECK_OK(weir_pool_free(pool, p, NULL));
    }
    CHECK_OK(weir_pool_destroy(pool));
    set_peer(1, 0, 1);
}

int main(void) {
    program_begin();
    DEVICE_OK(cu.DeviceGetCount(&devices));
    staging_give(staging_take(1), 1);
    default_pools();
    peer_access();
    impossible_peer();
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
