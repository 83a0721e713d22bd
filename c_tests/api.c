/* Versions, names, options, environment, shared ownership, sizes and alignments: the calls that work. */
#include "contents.h"

static void version(void) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
    CHECK(strcmp(weir_version(), text) == 0);
    /* The package's version, which CMake read from Cargo.toml. */
    CHECK_EQUAL(WEIR_VERSION_MAJOR, PACKAGE_VERSION_MAJOR);
    CHECK_EQUAL(WEIR_VERSION_MINOR, PACKAGE_VERSION_MINOR);
    CHECK_EQUAL(WEIR_VERSION_PATCH, PACKAGE_VERSION_PATCH);
}

static void status_names(void) {
    static const struct {
        int status, number;
        const char *name;
    } all[] = {
        {WEIR_OK, 0, "WEIR_OK"},
        {WEIR_ERROR_INVALID_ARGUMENT, 1, "WEIR_ERROR_INVALID_ARGUMENT"},
        {WEIR_ERROR_NULL_POINTER, 2, "WEIR_ERROR_NULL_POINTER"},
        {WEIR_ERROR_STRUCT_SIZE, 3, "WEIR_ERROR_STRUCT_SIZE"},
        {WEIR_ERROR_INVALID_POOL, 4, "WEIR_ERROR_INVALID_POOL"},
        {WEIR_ERROR_POOL_DESTROYED, 5, "WEIR_ERROR_POOL_DESTROYED"},
        {WEIR_ERROR_FINALIZED, 6, "WEIR_ERROR_FINALIZED"},
        {WEIR_ERROR_OUT_OF_MEMORY, 7, "WEIR_ERROR_OUT_OF_MEMORY"},
        {WEIR_ERROR_SIZE_TOO_LARGE, 8, "WEIR_ERROR_SIZE_TOO_LARGE"},
        {WEIR_ERROR_INVALID_ALIGNMENT, 9, "WEIR_ERROR_INVALID_ALIGNMENT"},
        {WEIR_ERROR_UNKNOWN_POINTER, 10, "WEIR_ERROR_UNKNOWN_POINTER"},
        {WEIR_ERROR_INTERIOR_POINTER, 11, "WEIR_ERROR_INTERIOR_POINTER"},
        {WEIR_ERROR_DOUBLE_FREE, 12, "WEIR_ERROR_DOUBLE_FREE"},
        {WEIR_ERROR_WRONG_POOL, 13, "WEIR_ERROR_WRONG_POOL"},
        {WEIR_ERROR_INVALID_STREAM, 14, "WEIR_ERROR_INVALID_STREAM"},
        {WEIR_ERROR_INVALID_EVENT, 15, "WEIR_ERROR_INVALID_EVENT"},
        {WEIR_ERROR_NOT_SUPPORTED, 16, "WEIR_ERROR_NOT_SUPPORTED"},
        {WEIR_ERROR_DRIVER_UNAVAILABLE, 17, "WEIR_ERROR_DRIVER_UNAVAILABLE"},
        {WEIR_ERROR_BACKEND, 18, "WEIR_ERROR_BACKEND"},
        {WEIR_ERROR_UNLOADED, 19, "WEIR_ERROR_UNLOADED"},
        {WEIR_ERROR_DEVICE_LOST, 20, "WEIR_ERROR_DEVICE_LOST"},
        {WEIR_ERROR_FORKED, 21, "WEIR_ERROR_FORKED"},
        {WEIR_ERROR_LIVE_BLOCKS, 22, "WEIR_ERROR_LIVE_BLOCKS"},
        {WEIR_ERROR_NOT_READY, 23, "WEIR_ERROR_NOT_READY"},
        {WEIR_ERROR_INTERNAL, 24, "WEIR_ERROR_INTERNAL"},
        {WEIR_ERROR_CAPTURE, 25, "WEIR_ERROR_CAPTURE"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_EQUAL(all[i].status, all[i].number);
        CHECK(strcmp(weir_status_name(all[i].status), all[i].name) == 0);
    }
    CHECK(weir_status_name(-1) != NULL);
    CHECK(weir_status_name(12345) != NULL);
    CHECK(weir_last_error() != NULL);
}

static void options(void) {
    weir_pool_options o;
    memset(&o, 0xff, sizeof o);
    CHECK_OK(weir_pool_options_init(&o, sizeof o));
    CHECK_EQUAL(o.struct_size, sizeof o);
    CHECK_EQUAL(o.memory, WEIR_MEMORY_DEVICE);
    CHECK_EQUAL(o.device, 0);
    CHECK_EQUAL(o.max_bytes, 0);
    CHECK_EQUAL(o.release_threshold, UINT64_MAX);
    CHECK_EQUAL(o.initial_bytes, 0);
    CHECK_EQUAL(o.reuse_follow_event_dependencies, 1);
    CHECK_EQUAL(o.reuse_allow_opportunistic, 1);
    CHECK_EQUAL(o.reuse_allow_internal_dependencies, 1);
    CHECK_EQUAL(o.ipc_handle_types, 0);
    CHECK(o.slack > 0.0 && o.slack < 1.0);
    CHECK(o.on_oom == NULL && o.on_oom_user == NULL);

    setenv("WEIR_MAX_BYTES", "64M", 1);
    setenv("WEIR_RELEASE_THRESHOLD", "8MiB", 1);
    setenv("WEIR_INITIAL_BYTES", "4096K", 1);
    setenv("WEIR_SLACK", "0.25", 1);
    setenv("WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES", "0", 1);
    setenv("WEIR_REUSE_ALLOW_OPPORTUNISTIC", "0", 1);
    setenv("WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES", "0", 1);
    CHECK_OK(weir_pool_options_init(&o, sizeof o));
    CHECK_EQUAL(o.max_bytes, 64 * MiB);
    CHECK_EQUAL(o.release_threshold, 8 * MiB);
    CHECK_EQUAL(o.initial_bytes, 4 * MiB);
    CHECK(o.slack == 0.25);
    CHECK_EQUAL(o.reuse_follow_event_dependencies, 0);
    CHECK_EQUAL(o.reuse_allow_opportunistic, 0);
    CHECK_EQUAL(o.reuse_allow_internal_dependencies, 0);

    /* A malformed variable is named, and the struct is usable all the same. */
    memset(&o, 0xff, sizeof o);
    setenv("WEIR_MAX_BYTES", "plenty", 1);
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_options_init(&o, sizeof o));
    CHECK_SAYS("WEIR_MAX_BYTES");
    CHECK_SAYS("plenty");
    CHECK_EQUAL(o.struct_size, sizeof o);
    CHECK_EQUAL(o.max_bytes, 0);
    unsetenv("WEIR_MAX_BYTES");
    unsetenv("WEIR_RELEASE_THRESHOLD");
    unsetenv("WEIR_INITIAL_BYTES");
    unsetenv("WEIR_SLACK");
    unsetenv("WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES");
    unsetenv("WEIR_REUSE_ALLOW_OPPORTUNISTIC");
    unsetenv("WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES");

    CHECK_STATUS(WEIR_ERROR_NULL_POINTER, weir_pool_options_init(NULL, sizeof o));
    CHECK_STATUS(WEIR_ERROR_STRUCT_SIZE, weir_pool_options_init(&o, 3));

    weir_pool_options initial = check_options(0);
    initial.initial_bytes = 8 * MiB;
    initial.name = "with initial bytes";
    weir_pool *pool;
    CHECK_OK(weir_pool_create(&initial, &pool));
    CHECK(CHECK_STATS(pool).reserved_bytes >= 8 * MiB);
    CHECK_OK(weir_pool_destroy(pool));
}

static void ownership(void) {
    weir_pool *pool = check_pool(0);
    CHECK_OK(weir_pool_retain(pool));
    CHECK_OK(weir_pool_release(pool));
    CHECK_STATS(pool); /* one reference left: still alive */
    CHECK_OK(weir_pool_release(pool));
    weir_pool_stats s = {.struct_size = sizeof s};
    CHECK_STATUS(WEIR_ERROR_POOL_DESTROYED, weir_pool_get_stats(pool, &s));
    CHECK_OK(weir_pool_destroy(NULL));
}

static void sizes_and_alignments(void) {
    weir_pool *pool = check_pool(0);
    void *a, *b;
    CHECK_OK(weir_pool_alloc(pool, 0, NULL, &a));
    CHECK_OK(weir_pool_alloc(pool, 0, NULL, &b));
    CHECK(a != NULL && b != NULL && a != b);
    CHECK_OK(weir_pool_free(pool, a, NULL));
    CHECK_OK(weir_pool_free_synced(pool, b));
    CHECK_OK(weir_pool_free(pool, NULL, NULL));
    CHECK_OK(weir_pool_free_synced(pool, NULL));
    CHECK_OK(weir_pool_release_capture(pool, 12345)); // took nothing from this pool

    for (size_t bytes = 1; bytes <= 64 * MiB; bytes = bytes * 3 + 1) {
        CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &a));
        CHECK_EQUAL((uintptr_t)a % 256, 0);
        CHECK(CHECK_STATS(pool).used_bytes >= bytes);
        contents_fill(a, 1, 1);
        contents_fill((char *)a + bytes - 1, 2, 1);
        CHECK_OK(weir_pool_free(pool, a, NULL));
    }
    for (size_t alignment = 1; alignment <= 64 * KiB; alignment *= 2) {
        CHECK_OK(weir_pool_alloc_aligned(pool, 1000, alignment, NULL, &a));
        CHECK_EQUAL((uintptr_t)a % (alignment < 256 ? 256 : alignment), 0);
        contents_fill(a, 1, 1000);
        CHECK_OK(weir_pool_free(pool, a, NULL));
    }
    CHECK_EQUAL(CHECK_STATS(pool).used_bytes, 0);
    CHECK_OK(weir_pool_destroy(pool));
}

/* Only GPUs have peers: a host pool says so, and a device has all access to its own memory. */
static void access_of_other_devices(void) {
    weir_pool *pool = check_pool(0);
    int32_t access = 77;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_set_access(pool, 0, 2));
    if (check_on_device()) {
        CHECK_OK(weir_pool_set_access(pool, 0, WEIR_ACCESS_READ_WRITE));
        CHECK_OK(weir_pool_get_access(pool, 0, &access));
        CHECK_EQUAL(access, WEIR_ACCESS_READ_WRITE);
        CHECK(weir_pool_set_access(pool, 0, WEIR_ACCESS_NONE) != WEIR_OK);
        CHECK(weir_pool_set_access(pool, 12345, WEIR_ACCESS_READ) != WEIR_OK);
        CHECK_SAYS_NUMBER(12345);
        CHECK_OK(weir_pool_get_access(pool, 0, &access));
        CHECK_EQUAL(access, WEIR_ACCESS_READ_WRITE);
    } else {
        CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_set_access(pool, 0, WEIR_ACCESS_READ_WRITE));
        CHECK_STATUS(WEIR_ERROR_NOT_SUPPORTED, weir_pool_get_access(pool, 0, &access));
        CHECK_EQUAL(access, 77);
    }
    CHECK_OK(weir_pool_destroy(pool));
}

/* A struct of a size that this library does not know is left alone. */
static void unknown_struct_sizes(void) {
    weir_pool *pool = check_pool(0);
    static const size_t sizes[] = {0, 8, sizeof(weir_pool_stats) - 8, SIZE_MAX};
    for (int i = 0; i < 4; i++) {
        weir_pool_stats s, untouched;
        memset(&s, 0xab, sizeof s);
        s.struct_size = sizes[i];
        untouched = s;
        CHECK_STATUS(WEIR_ERROR_STRUCT_SIZE, weir_pool_get_stats(pool, &s));
        CHECK_SAYS_NUMBER(sizes[i]);
        CHECK(memcmp(&s, &untouched, sizeof s) == 0);
    }
    CHECK_OK(weir_pool_destroy(pool));
}

int main(void) {
    program_begin();
    version();
    status_names();
    options();
    ownership();
    sizes_and_alignments();
    access_of_other_devices();
    unknown_struct_sizes();
    return program_end();
}
