/* Loses one block of a pool on purpose: valgrind must report it, with the function that asked for it. */
#include "../check.h"

__attribute__((noinline)) void *ask_for_a_block_and_lose_it(weir_pool *pool, size_t bytes) {
    void *block;
    CHECK_OK(weir_pool_alloc(pool, bytes, NULL, &block));
    ((char *)block)[0] = 1;
    return block;
}

int main(void) {
    weir_pool *pool = check_pool(0);
    void *kept = NULL;
    CHECK_OK(weir_pool_alloc(pool, 5000, NULL, &kept));
    ask_for_a_block_and_lose_it(pool, 12345);
    CHECK_OK(weir_pool_free(pool, kept, NULL));
    return check_end();
}
