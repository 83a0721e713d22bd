/* The three reuse policies, each seen acting and not acting. There is room for one block only, and whatever may wait
 * on the host waits for a closed gate that a helper opens later: a request that the policy serves returns before,
 * one that it does not has waited for the gate. */
#include "scene.h"

enum { BY_OPTION, BY_ATTRIBUTE, WAYS };

static int attribute_of(int policy) {
    return policy == EVENTS          ? WEIR_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES
           : policy == OPPORTUNISTIC ? WEIR_ATTRIBUTE_REUSE_ALLOW_OPPORTUNISTIC
                                     : WEIR_ATTRIBUTE_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

/* A scene in which `policy` is on or off, and so said when the pool is made, or later. */
static void begin(scene *c, int policy, int others, int on, int way) {
    int first = way == BY_ATTRIBUTE ? !on : on;
    scene_start(c, one_block, others | (first ? policy : 0));
    if (way == BY_ATTRIBUTE) {
        CHECK_OK(weir_pool_set_attribute(c->pool, attribute_of(policy), (uint64_t)on));
    }
}

/* Asks for the block's memory on T; was that served before the gate was opened? */
static void ask(scene *c, gate *g, int at_once) {
    opener o;
    job write, check;
    void *q;
    opener_start(&o, g, at_once ? 30000 : 100); /* what is served at once is so however slow the machine */
    CHECK_OK(weir_pool_alloc(c->pool, size, c->t, &q));
    CHECK_EQUAL(!atomic_load(&g->open), at_once);
    atomic_store(&g->open, 1);
    use_on(c->t, q, &write, &check);
    CHECK_OK(weir_pool_free(c->pool, q, c->t));
    opener_join(&o);
    stream_wait(c->t);
    CHECK_GOOD(write);
    CHECK_GOOD(check);
}

static void event_dependencies(int on, int way) {
    scene c;
    weir_event e = event_new();
    begin(&c, EVENTS, OPPORTUNISTIC, on, way);
    CHECK_OK(weir_event_record(e, c.s));
    CHECK_OK(weir_stream_wait_event(c.t, e));
    ask(&c, &c.gate, on);
    scene_end(&c);
    event_end(e);
}

/* S has completed its work, but nobody said so; a third stream is what a wait would wait for. */
static void opportunistic(int on, int way) {
    scene c;
    gate other = {0};
    begin(&c, OPPORTUNISTIC, EVENTS, on, way);
    atomic_store(&c.gate.open, 1);
    while (!job_done(&c.check)) {
        pause_ms(1);
    }
    pause_ms(50); /* the stream has left its last function, too */
    weir_stream u = stream_new();
    queue_gate(u, &other);
    ask(&c, &other, on);
    scene_end(&c);
    stream_end(u);
}

static void internal_dependencies(int on, int way) {
    scene c;
    begin(&c, INTERNAL, EVENTS | OPPORTUNISTIC, on, way);
    ask(&c, &c.gate, on);
    scene_end(&c);
}

int main(void) {
    program_begin();
    for (int on = 0; on <= 1; on++) {
        for (int way = BY_OPTION; way < WAYS; way++) {
            event_dependencies(on, way);
            opportunistic(on, way);
            internal_dependencies(on, way);
        }
    }
    CHECK_OK(weir_finalize());
    staging_end();
    return program_end();
}
