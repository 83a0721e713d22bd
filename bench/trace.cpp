#include "trace.h"
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

[[noreturn]] static void stop(const std::string &path, size_t line, const char *why) {
    fprintf(stderr, "bench: %s:%zu: %s\n", path.c_str(), line, why);
    exit(2);
}

static std::string for_shell(const std::string &path) {
    std::string out = "'";
    for (char c : path) {
        out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return out + "'";
}

Trace::Trace(const std::string &path) : name(path.substr(path.rfind('/') + 1)) {
    name.resize(std::min(name.find('.'), name.size()));
    // gzip, because a machine with a GPU and nothing else to build with has the program, but often not its header
    FILE *file = popen(("exec gzip -dc -- " + for_shell(path)).c_str(), "r");
    if (file == nullptr) {
        stop(path, 0, "gzip cannot be started");
    }
    std::vector<size_t> sizes; // 0: not live
    size_t live = 0;
    char text[128];
    for (size_t line = 1; fgets(text, sizeof text, file) != nullptr; line++) {
        uint64_t bytes;
        uint32_t id;
        uint16_t stream;
        if (sscanf(text, "a %" SCNu32 " %" SCNu64 " %" SCNu16, &id, &bytes, &stream) == 3) {
            if (id != sizes.size()) {
                stop(path, line, "not the next id");
            }
            sizes.push_back(std::max<size_t>(bytes, 1));
            live += sizes[id];
            peak_live = std::max(peak_live, live);
            events.push_back({sizes[id], id, stream, true});
        } else if (sscanf(text, "f %" SCNu32 " %" SCNu16, &id, &stream) == 2) {
            if (id >= sizes.size() || sizes[id] == 0) {
                stop(path, line, "the block is not live");
            }
            live -= sizes[id];
            events.push_back({sizes[id], id, stream, false});
            sizes[id] = 0;
        } else {
            stop(path, line, "expected 'a <id> <bytes> <stream>' or 'f <id> <stream>'");
        }
        streams = std::max<uint16_t>(streams, stream + 1);
    }
    if (pclose(file) != 0 || events.empty()) {
        stop(path, 0, "no trace that gzip can unpack");
    }
    blocks = static_cast<uint32_t>(sizes.size());
}
