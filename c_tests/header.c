/* weir.h stands alone, may be included twice, and means the same in C and in C++ (compiled as both). */
#include <weir.h>
#include <weir.h>

#ifdef __cplusplus
#define HOLDS(condition) static_assert(condition, #condition)
#else
#define HOLDS(condition) _Static_assert(condition, #condition)
#endif

HOLDS(WEIR_OK == 0);
HOLDS(WEIR_DEVICE_HOST == -1);
HOLDS(offsetof(weir_pool_options, struct_size) == 0);
HOLDS(offsetof(weir_pool_stats, struct_size) == 0);
HOLDS(offsetof(weir_pool_options, device_memory) == 88);
HOLDS(sizeof(weir_pool_options) == 128);
HOLDS(sizeof(weir_stream) == sizeof(void *));

int main(void) { return weir_status_name(WEIR_OK) == 0; }
