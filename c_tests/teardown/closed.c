/* A shared object with the static library in it is closed, and gone, while threads that have called it live; and comes again.
 * They end well, though nothing of weir is there any more. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                 \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            const char *error = dlerror();                                                 \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, error ? error : ""); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

enum { CALLS = 20 }; /* the thread has a cache then */

static void *(*allocate)(size_t);
static int (*give_back)(void *);
static pthread_barrier_t called, closed;

static void call(void) {
    for (int i = 0; i < CALLS; i++) {
        void *block = allocate(5000);
        REQUIRE(block != NULL);
        REQUIRE(give_back(block) == 0);
    }
}

static void *work(void *arg) {
    call();
    pthread_barrier_wait(&called);
    pthread_barrier_wait(&closed);
    return arg;
}

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    REQUIRE(pthread_barrier_init(&called, NULL, 2) == 0 && pthread_barrier_init(&closed, NULL, 2) == 0);
    for (int round = 0; round < 2; round++) {
        pthread_t thread;
        void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        REQUIRE(handle != NULL);
        *(void **)&allocate = dlsym(handle, "plugin_alloc");
        *(void **)&give_back = dlsym(handle, "plugin_free");
        REQUIRE(allocate && give_back);
        REQUIRE(pthread_create(&thread, NULL, work, NULL) == 0);
        call();
        pthread_barrier_wait(&called);
        REQUIRE(dlclose(handle) == 0);
        REQUIRE(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL);
        pthread_barrier_wait(&closed);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    printf("passed\n");
    return 0;
}
