#include "under_test.h"
#include "../streams.h"

void under_test_begin(void) { program_begin(); }
void under_test_end(void) {
    if (check_on_device()) {
        device_close();
    }
}
void under_test_thread(void) { program_thread(); }
void under_test_fill(void *p, int value, size_t bytes) { contents_fill(p, value, bytes); }
int under_test_are(const void *p, int value, size_t bytes) { return contents_are(p, value, bytes); }
weir_stream under_test_stream(void) { return stream_new(); }
void under_test_stream_end(weir_stream stream) { stream_end(stream); }
void under_test_stream_wait(weir_stream stream) { stream_wait(stream); }

struct under_test_gate {
    gate gate;
    opener opener;
};

under_test_gate *under_test_close(weir_stream stream) {
    under_test_gate *g = (under_test_gate *)calloc(1, sizeof *g);
    CHECK(g != NULL);
    queue_gate(stream, &g->gate);
    return g;
}

int under_test_closed(const under_test_gate *g) { return !atomic_load(&g->gate.open); }

void under_test_open(under_test_gate *g, long ms) { opener_start(&g->opener, &g->gate, ms); }

void under_test_gate_end(under_test_gate *g) {
    opener_join(&g->opener);
    free(g);
}
