/* A shared object that uses weir on its own account; `shared_objects` loads two of these. */
#include <stdlib.h>
#include <string.h>
#include <weir.h>

weir_pool *plugin_default_pool(void) {
    weir_pool *pool = (weir_pool *)0;
    const char *memory = getenv("WEIR_TEST_MEMORY");
    int device = memory && strcmp(memory, "device") == 0 ? 0 : WEIR_DEVICE_HOST;
    return weir_default_pool(device, &pool) == WEIR_OK ? pool : (weir_pool *)0;
}

void *plugin_alloc(size_t bytes) {
    void *block = (void *)0;
    return weir_pool_alloc(plugin_default_pool(), bytes, (weir_stream)0, &block) == WEIR_OK ? block : (void *)0;
}

int plugin_free(void *block) { return weir_pool_free(plugin_default_pool(), block, (weir_stream)0); }

int plugin_finalize(void) { return weir_finalize(); }
