// A recorded trace in memory; traces/README.md has the format.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct TraceEvent {
    size_t bytes; // of the block, in both kinds
    uint32_t id;
    uint16_t stream; // 0 is the default stream
    bool alloc;
};

struct Trace {
    std::string name; // the file's, without folder and endings
    std::vector<TraceEvent> events;
    uint32_t blocks = 0;
    uint16_t streams = 1;
    size_t peak_live = 0; // bytes

    // Reads what gzip unpacks. Stops the program at a line that is none.
    explicit Trace(const std::string &path);
};
