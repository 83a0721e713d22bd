/* The smallest program that uses weir; the same source is compiled as C and as C++. */
#include <stdio.h>
#include <string.h>
#include <weir.h>

int main(void) {
    weir_pool_options options;
    weir_pool *pool = NULL;
    void *block = NULL;
    char version[32];

    snprintf(version, sizeof version, "%d.%d.%d", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
    if (strcmp(version, weir_version()) != 0) {
        fprintf(stderr, "header %s, library %s\n", version, weir_version());
        return 1;
    }
    weir_pool_options_init(&options, sizeof options);
    options.memory = WEIR_MEMORY_HOST;
    if (weir_pool_create(&options, &pool) != WEIR_OK || weir_pool_alloc(pool, 1000, NULL, &block) != WEIR_OK) {
        fprintf(stderr, "%s\n", weir_last_error());
        return 1;
    }
    memset(block, 1, 1000);
    if (weir_pool_free(pool, block, NULL) != WEIR_OK || weir_pool_destroy(pool) != WEIR_OK) {
        fprintf(stderr, "%s\n", weir_last_error());
        return 1;
    }
    printf("weir %s\n", version);
    return 0;
}
