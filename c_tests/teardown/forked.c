/* After fork() the child's calls are harmless and make no backend call, and the parent notices nothing.
 * The child reports over a pipe and kills itself, so that no leak checker judges the copied heap; in plain
 * runs a second child leaves through exit(), handlers and all. */
#include "../streams.h"
#include <signal.h>
#include <sys/wait.h>

static weir_pool *pool, *default_pool;
static weir_stream stream;
static void *block, *block_of_default;

static atomic_int called;

static void count(void *arg) { atomic_fetch_add((atomic_int *)arg, 1); }

static void in_child(void) {
    void *p = NULL;
    weir_pool *fresh = NULL;
    weir_pool_options o = check_options(0);
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_pool_alloc(pool, 1000, stream, &p));
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_pool_alloc(default_pool, 1000, NULL, &p));
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_pool_create(&o, &fresh));
    CHECK(p == NULL && fresh == NULL);
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_copy_async(block, block_of_default, 1, stream, 0));
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_copy_async_hold(block, block_of_default, 1, stream, 0, count, &called));
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_stream_defer(stream, count, &called));
    CHECK_STATUS(WEIR_ERROR_FORKED, weir_host_register(block, 1));
    CHECK_OK(weir_host_unregister(block));
    CHECK_OK(weir_pool_free(pool, block, stream));
    CHECK_OK(weir_pool_free(pool, block, stream)); /* nothing is done, so twice is as harmless */
    CHECK_OK(weir_pool_free_synced(default_pool, block_of_default));
    CHECK_OK(weir_pool_release(pool));
    CHECK_OK(weir_pool_destroy(pool));
    CHECK_OK(weir_finalize());
}

static void fork_child(int through_exit) {
    int ends[2], status;
    char said = 0;
    CHECK_EQUAL(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        in_child();
        CHECK_EQUAL(write(ends[1], "y", 1), 1);
        if (through_exit) {
            exit(0);
        }
        raise(SIGKILL);
    }
    close(ends[1]);
    CHECK_EQUAL(read(ends[0], &said, 1), 1);
    close(ends[0]);
    CHECK(said == 'y');
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(through_exit ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : WIFSIGNALED(status));
}

int main(void) {
    program_begin();
    pool = check_pool(0);
    CHECK_OK(weir_default_pool(check_device(), &default_pool));
    stream = stream_new();
    CHECK_OK(weir_pool_alloc(pool, 2 * MiB, stream, &block));
    CHECK_OK(weir_pool_alloc(default_pool, 2 * MiB, NULL, &block_of_default));
    job write = job_over(block, 2 * MiB, 1), check = job_over(block, 2 * MiB, 1);
    queue_write(stream, &write);
    CHECK_OK(weir_stream_defer(stream, count, &called));
    weir_pool_stats before = CHECK_STATS(pool);

    fork_child(0);
    if (check_under("plain")) {
        fork_child(1);
    }

    /* The parent goes on. */
    CHECK_UNCHANGED(pool, before);
    queue_check(stream, &check);
    stream_wait(stream);
    CHECK_GOOD(check);
    CHECK_OK(weir_pool_free(pool, block, stream));
    CHECK_OK(weir_pool_free(default_pool, block_of_default, NULL));
    stream_end(stream);
    CHECK_OK(weir_pool_destroy(pool));
    staging_end();
    CHECK_OK(weir_finalize());
    CHECK_EQUAL(atomic_load(&called), 1);
    return program_end();
}
