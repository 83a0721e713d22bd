/* Two shared objects that use weir share one default pool; both are closed while its memory, its streams'
 * workers and its exit handlers live on. This program itself does not link weir: it is loaded, and left
 * behind, by the plugins alone. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                 \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            const char *error = dlerror();                                                 \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, error ? error : ""); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

typedef struct {
    void *handle;
    void *(*default_pool)(void);
    void *(*alloc)(size_t);
    int (*free)(void *);
    int (*finalize)(void);
} plugin;

static plugin load(const char *path) {
    plugin p;
    p.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(p.handle != NULL);
    *(void **)&p.default_pool = dlsym(p.handle, "plugin_default_pool");
    *(void **)&p.alloc = dlsym(p.handle, "plugin_alloc");
    *(void **)&p.free = dlsym(p.handle, "plugin_free");
    *(void **)&p.finalize = dlsym(p.handle, "plugin_finalize");
    REQUIRE(p.default_pool && p.alloc && p.free && p.finalize);
    return p;
}

/* Host memory is written to; that of a device this program cannot reach. */
static void touch(void *block, size_t bytes) {
    const char *memory = getenv("WEIR_TEST_MEMORY");
    if (memory == NULL || strcmp(memory, "device") != 0) {
        memset(block, 1, bytes);
    }
}

int main(int argc, char **argv) {
    REQUIRE(argc == 3);
    plugin a = load(argv[1]), b = load(argv[2]);
    REQUIRE(a.handle != b.handle);
    REQUIRE(a.default_pool() != NULL && a.default_pool() == b.default_pool());

    /* A block of one is the other's to free. */
    void *block = a.alloc(1 << 20);
    REQUIRE(block != NULL);
    touch(block, 1 << 20);
    void *kept = a.alloc(5000);
    REQUIRE(kept != NULL);
    REQUIRE(b.free(block) == 0);

    /* One goes: the other, and memory the first asked for, stay as they are. */
    void *pool = b.default_pool();
    REQUIRE(dlclose(a.handle) == 0);
    touch(kept, 5000);
    REQUIRE(b.default_pool() == pool);
    REQUIRE(b.free(kept) == 0);

    /* Both go, and come back to the same pool: weir itself stays loaded. */
    REQUIRE(dlclose(b.handle) == 0);
    b = load(argv[2]);
    REQUIRE(b.default_pool() == pool);
    block = b.alloc(1 << 20);
    REQUIRE(block != NULL);
    REQUIRE(b.free(block) == 0);
    REQUIRE(dlclose(b.handle) == 0);
    printf("passed\n");
    return 0; /* weir's exit handler runs with no plugin left */
}
