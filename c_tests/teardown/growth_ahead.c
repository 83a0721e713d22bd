/* Pools that make memory ahead of use end in every way while their threads are at it: destroyed, finalised, left to
 * the exit of the process, in a forked child, and released by another thread. No thread is left and none makes a call
 * when the driver has gone. */
#include "../contents.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>

enum { POOLS = 4 };
static weir_pool *pool[POOLS], *default_pool;

static int threads_of_pools(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL) {
            continue;
        }
        if (fgets(name, sizeof name, file) != NULL) {
            count += strcmp(name, "weir-ahead\n") == 0;
        }
        fclose(file);
    }
    closedir(tasks);
    return count;
}

/* Each has just been asked for something, and there is a lot to make. */
static void stir(void) {
    void *block;
    CHECK_EQUAL(setenv("WEIR_GROWTH_AHEAD", "1G", 1), 0);
    for (int i = 0; i < POOLS; i++) {
        weir_pool_options o = check_options(0);
        CHECK_EQUAL(o.growth_ahead, (uint64_t)1 << 30);
        CHECK_OK(weir_pool_create(&o, &pool[i]));
    }
    CHECK_OK(weir_default_pool(check_device(), &default_pool));
    CHECK_EQUAL(threads_of_pools(), 0); /* they begin when they are needed */
    for (int i = 0; i <= POOLS; i++) {
        weir_pool *each = i < POOLS ? pool[i] : default_pool;
        CHECK_OK(weir_pool_alloc(each, MiB, NULL, &block));
        CHECK_OK(weir_pool_free(each, block, NULL));
    }
}

static void *release(void *which) {
    CHECK_OK(weir_pool_release(which));
    return NULL;
}

static void destroyed(void) {
    for (int i = 0; i < POOLS; i++) {
        pthread_t thread;
        CHECK_EQUAL(pthread_create(&thread, NULL, release, pool[i]), 0);
        CHECK_EQUAL(pthread_join(thread, NULL), 0);
    }
    CHECK_OK(weir_pool_destroy(default_pool));
    CHECK_EQUAL(threads_of_pools(), 0);
}

static void in_forked_child(void) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *block;
        CHECK_EQUAL(threads_of_pools(), 0);
        CHECK_STATUS(WEIR_ERROR_FORKED, weir_pool_alloc(pool[0], MiB, NULL, &block));
        for (int i = 0; i < POOLS; i++) {
            CHECK_OK(weir_pool_destroy(pool[i]));
        }
        CHECK_OK(weir_finalize());
        execl("/bin/true", "true", NULL); /* no leak checker judges the copied heap, or reads gigabytes of what was copied with it */
        _exit(1);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The pools of the program: destroyed after weir's own exit handlers, which have ended the threads. */
static void last(void) {
    CHECK_EQUAL(threads_of_pools(), 0);
    for (int i = 0; i < POOLS; i++) {
        CHECK_OK(weir_pool_destroy(pool[i]));
    }
}

int main(int count, char **args) {
    const char *how = count > 1 ? args[1] : "";
    if (strcmp(how, "exit") == 0) {
        CHECK_EQUAL(atexit(last), 0);
    }
    program_begin();
    stir();
    if (strcmp(how, "destroy") == 0) {
        destroyed();
        stir(); /* and once more */
        destroyed();
    } else if (strcmp(how, "finalize") == 0) {
        CHECK_OK(weir_finalize());
        CHECK_EQUAL(threads_of_pools(), 0);
    } else if (strcmp(how, "fork") == 0) {
        in_forked_child();
        destroyed();
    } else {
        CHECK(strcmp(how, "exit") == 0);
    }
    return program_end();
}
