/* The memory under test and its streams, for programs that include CUDA's own headers, which device.h cannot be beside. */
#ifndef WEIR_C_TESTS_CPP_UNDER_TEST_H
#define WEIR_C_TESTS_CPP_UNDER_TEST_H

#include "../check.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As in contents.h. */
void under_test_begin(void);
void under_test_end(void); /* then `return check_end();` */
void under_test_thread(void);
void under_test_fill(void *p, int value, size_t bytes);
int under_test_are(const void *p, int value, size_t bytes);

/* As in streams.h. */
weir_stream under_test_stream(void);
void under_test_stream_end(weir_stream stream);
void under_test_stream_wait(weir_stream stream);

/* A stream stands still from here until the gate is opened. */
typedef struct under_test_gate under_test_gate;
under_test_gate *under_test_close(weir_stream stream);
int under_test_closed(const under_test_gate *gate);
/* Opens it after so many milliseconds, from another thread. */
void under_test_open(under_test_gate *gate, long ms);
/* When the stream has been waited for. */
void under_test_gate_end(under_test_gate *gate);

#ifdef __cplusplus
}
#endif

#endif
