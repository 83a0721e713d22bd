/* With WEIR_NVTX=1 a tool hears of each block of a device pool: while it lives there is a region of the size that was
 * asked for, within a heap that is memory of the pool. The tool is nvtx_tool.c; it checks every call by itself. */
#include "../streams.h"
#include "nvtx_tool.h"

enum { MOST = 256 };
static nvtx_tool_list *list_regions, *list_heaps;

static void *tool_symbol(const char *name) {
    void *tool = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY | RTLD_NOLOAD);
    CHECK(tool != NULL); /* weir has loaded it */
    void *symbol = dlsym(tool, name);
    CHECK(symbol != NULL);
    CHECK_EQUAL(dlclose(tool), 0);
    return symbol;
}

/* Is there a region of just this block? */
static int is_region(const void *p, size_t bytes) {
    nvtx_tool_range all[MOST];
    size_t count = list_regions(all, MOST), i = 0;
    CHECK(count <= MOST);
    while (i < count && all[i].at != (uintptr_t)p) {
        i++;
    }
    CHECK(i == count || all[i].bytes == bytes);
    return i < count;
}

static uint64_t bytes_of_heaps(void) {
    nvtx_tool_range all[MOST];
    size_t count = list_heaps(all, MOST);
    uint64_t bytes = 0;
    CHECK(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        bytes += all[i].bytes;
    }
    return bytes;
}

static void blocks_are_regions(weir_pool *pool) {
    const size_t sizes[] = {1, 100, 33333, 2 * MiB + 3, 20 * MiB + 1};
    enum { N = sizeof sizes / sizeof *sizes };
    weir_stream stream = stream_new();
    void *blocks[N], *nothing, *batch[2];
    job write[N], check[N];
    for (int i = 0; i < N; i++) {
        CHECK_OK(weir_pool_alloc(pool, sizes[i], stream, &blocks[i]));
        CHECK(is_region(blocks[i], sizes[i]));
        write[i] = check[i] = job_over(blocks[i], sizes[i], (uint64_t)i);
        queue_write(stream, &write[i]);
        queue_check(stream, &check[i]);
    }
    CHECK_OK(weir_pool_alloc(pool, 0, stream, &nothing));
    CHECK(is_region(nothing, 1));
    CHECK_OK(weir_pool_alloc_batch(pool, sizes, 2, stream, batch));
    CHECK(is_region(batch[0], sizes[0]) && is_region(batch[1], sizes[1]));
    CHECK_EQUAL(list_regions(NULL, 0), N + 3);
    CHECK_EQUAL(bytes_of_heaps(), CHECK_STATS(pool).reserved_bytes);

    CHECK_OK(weir_pool_free_batch(pool, batch, 2, stream));
    CHECK_OK(weir_pool_free(pool, nothing, stream));
    CHECK(!is_region(batch[0], sizes[0]) && !is_region(batch[1], sizes[1]) && !is_region(nothing, 1));
    for (int i = 0; i < N; i++) {
        CHECK(is_region(blocks[i], sizes[i]));
        CHECK_OK(weir_pool_free(pool, blocks[i], stream));
        CHECK(!is_region(blocks[i], sizes[i]));
        CHECK_STATUS(WEIR_ERROR_DOUBLE_FREE, weir_pool_free(pool, blocks[i], stream));
    }
    stream_wait(stream);
    for (int i = 0; i < N; i++) {
        CHECK_GOOD(write[i]);
        CHECK_GOOD(check[i]);
    }
    stream_end(stream);
}

int main(void) {
    program_begin();
    weir_pool *pool = check_pool(0), *of_device;
    list_regions = (nvtx_tool_list *)tool_symbol("nvtx_tool_regions");
    list_heaps = (nvtx_tool_list *)tool_symbol("nvtx_tool_heaps");
    blocks_are_regions(pool);
    CHECK_EQUAL(list_regions(NULL, 0), 0);
    CHECK_OK(weir_pool_squeeze(pool, NULL));
    CHECK_EQUAL(list_heaps(NULL, 0), 0);
    blocks_are_regions(pool);
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_EQUAL(list_heaps(NULL, 0), 0);

    CHECK_OK(weir_default_pool(0, &of_device));
    blocks_are_regions(of_device);
    CHECK_OK(weir_finalize());
    CHECK_EQUAL(list_heaps(NULL, 0) + list_regions(NULL, 0), 0);

    /* Host memory is none of the tool's business. */
    weir_pool_options options = check_options(0);
    void *p;
    options.memory = WEIR_MEMORY_HOST;
    CHECK_OK(weir_pool_create(&options, &pool));
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &p));
    CHECK_EQUAL(list_regions(NULL, 0), 0);
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_destroy(pool));

    /* What is read when a pool is created. */
    CHECK_EQUAL(setenv("WEIR_NVTX", "perhaps", 1), 0);
    options.memory = WEIR_MEMORY_DEVICE;
    CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, weir_pool_create(&options, &pool));
    CHECK_SAYS("WEIR_NVTX");
    CHECK_EQUAL(unsetenv("WEIR_NVTX"), 0);
    CHECK_OK(weir_pool_create(&options, &pool));
    CHECK_OK(weir_pool_alloc(pool, 1000, NULL, &p));
    CHECK_EQUAL(list_regions(NULL, 0) + list_heaps(NULL, 0), 0);
    CHECK_OK(weir_pool_free(pool, p, NULL));
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
