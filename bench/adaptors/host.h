// Host memory without queued work: streams and events are mere names.
#pragma once
#include "../adaptor.h"
#include <cstdint>

class HostAdaptor : public Adaptor {
public:
    Stream stream_create() override { return reinterpret_cast<Stream>(names_ += 0x100); }
    void stream_destroy(Stream) override {}
    Event event_create() override { return reinterpret_cast<Event>(names_ += 0x100); }
    void event_destroy(Event) override {}
    void record(Event, Stream) override {}
    void wait(Stream, Event) override {}
    void finish(Stream) override {}
    void synchronize() override {}

private:
    uintptr_t names_ = 0x1000;
};
