/* A source that goes before its copy has been made, and whose memory the next allocation is given and writes: what
 * happened to CuPy's users (cupy#8789). Without weir's copies it corrupts what is copied; with them, and with blocks that
 * are asked for on the host, it never does.
 *
 *   hazard [ROUNDS]
 *
 * Each round copies two blocks behind some other work. In the naive form the copies are the driver's own (or a function on a
 * host stream), and the source is freed on the stream: its memory is then that stream's, and in stream order that is right;
 * but the host, which writes the next block, is no stream. */
#include "copies.h"

enum { BYTES = 64 * 1024, IN_FLIGHT = 32 };

enum form { NAIVE, WEIR_COPIES, HOST_BLOCKS };

typedef struct {
    void *to;
    const void *from;
} plain_copy;

static void make_plain_copy(void *arg) {
    plain_copy *c = (plain_copy *)arg;
    memcpy(c->to, c->from, BYTES);
    free(c);
}

static void copy_naively(void *to, const void *from, weir_stream stream) {
    if (check_on_device()) {
        DEVICE_OK(cu.MemcpyHtoDAsync(device_address(to), from, BYTES, stream));
    } else {
        plain_copy *c = (plain_copy *)malloc(sizeof *c);
        CHECK(c != NULL);
        *c = (plain_copy){to, from};
        stream_queue(stream, make_plain_copy, c);
    }
}

static void rest(void *arg) { pause_ms((long)(intptr_t)arg); }

/* Rounds whose copy brought what is not the source. */
static int corrupted(sides *s, enum form form, int rounds) {
    int bad = 0;
    void *targets[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; i++) {
        targets[i] = take(s->far, BYTES, s->stream);
    }
    for (int done = 0; done < rounds; done += IN_FLIGHT) {
        stream_queue(s->stream, rest, (void *)(intptr_t)1); /* the copies wait for it */
        for (int i = 0; i < IN_FLIGHT; i++) {
            weir_stream asks = form == HOST_BLOCKS ? WEIR_STREAM_HOST : s->stream;
            void *source = take(s->near, BYTES, asks);
            memset(source, (done + i) % 251, BYTES);
            if (form == WEIR_COPIES) {
                CHECK_OK(weir_copy_async(targets[i], source, BYTES, s->stream, 0));
            } else {
                copy_naively(targets[i], source, s->stream);
            }
            CHECK_OK(weir_pool_free(s->near, source, s->stream)); /* at once */
        }
        stream_wait(s->stream);
        for (int i = 0; i < IN_FLIGHT; i++) {
            bad += !contents_are(targets[i], (done + i) % 251, BYTES);
        }
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        CHECK_OK(weir_pool_free(s->far, targets[i], s->stream));
    }
    return bad;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    program_begin();
    sides s = sides_open();
    int naive = corrupted(&s, NAIVE, rounds);
    stream_wait(s.stream);
    int copies = corrupted(&s, WEIR_COPIES, rounds), blocks = corrupted(&s, HOST_BLOCKS, rounds);
    printf("of %d rounds corrupted: %d naive, %d with weir_copy_async, %d with blocks for the host\n", rounds, naive, copies,
           blocks);
    CHECK(naive > rounds / 4);
    CHECK_EQUAL(copies, 0);
    CHECK_EQUAL(blocks, 0);
    sides_close(&s);
    CHECK_OK(weir_finalize());
    return program_end();
}
