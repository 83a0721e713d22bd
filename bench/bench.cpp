// bench ADAPTOR.so [options] [TRACE.gz...]: measures one allocator. README.md says what and how.
#include "measure.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fstream>
#include <memory>
#include <thread>

extern char **environ;

namespace {

constexpr int SKIPPED = 77; // what test drivers take for it

struct Scenario {
    const char *name;
    void (*run)(const Measure &);
};

constexpr Scenario SCENARIOS[] = {
    {"same-size", same_size}, {"reuse", immediate_reuse}, {"varying", varying},
    {"transformer", transformer}, {"pressure", pressure}, {"batch", batch},
    {"threads", threads}, {"large-threads", large_threads}, {"pairs", pairs},
    {"trace", replay}, {"turns", turns}, {"fit", fit},
    {"rounds", rounds}, {"busy", busy}, {"crowd", crowd},
};

struct Options {
    std::string adaptor, json, label, only;
    int rounds = 7;
    double seconds = 3;
    bool quick = false;
    std::vector<std::string> traces;
};

void usage(FILE *to) {
    fputs("usage: bench ADAPTOR.so [options] [TRACE.gz...]\n"
          "  --only A,B,...  these scenarios alone:",
          to);
    for (const Scenario &scenario : SCENARIOS) {
        fprintf(to, " %s", scenario.name);
    }
    fputs("\n"
          "  --rounds N      rounds of each, after one that is not counted (default: 7); more where\n"
          "                  a single thread's take less than a tenth of --seconds together\n"
          "  --seconds S     after so long no further round of a scenario begins (default: 3)\n"
          "  --quick         three rounds of a tenth of the work\n"
          "  --json FILE     writes the results there, a line each\n"
          "  --label NAME    the allocator's name in the results (default: its own)\n",
          to);
}

[[noreturn]] void refuse(const std::string &why) {
    fprintf(stderr, "bench: %s\n", why.c_str());
    usage(stderr);
    exit(2);
}

// A number above 0.
double number(const std::string &option, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value > 0 && value < 1e6)) {
        refuse(option + " " + text + ": expected a number above 0");
    }
    return value;
}

bool named(const std::string &list, const std::string &name) {
    return ("," + list + ",").find("," + name + ",") != std::string::npos;
}

void check_names(const std::string &list) {
    for (size_t from = 0; from <= list.size();) {
        size_t to = std::min(list.find(',', from), list.size());
        std::string name = list.substr(from, to - from);
        bool known = false;
        for (const Scenario &scenario : SCENARIOS) {
            known = known || name == scenario.name;
        }
        if (!known) {
            refuse("no scenario is called '" + name + "'");
        }
        from = to + 1;
    }
}

Options parse(int count, char **words) {
    Options options;
    bool rounds = false;
    for (int i = 1; i < count; i++) {
        std::string word = words[i];
        if (word == "--help") {
            usage(stdout);
            exit(0);
        }
        if (word == "--quick") {
            options.quick = true;
            continue;
        }
        if (word.rfind("--", 0) != 0) {
            if (options.adaptor.empty()) {
                options.adaptor = word;
            } else {
                options.traces.push_back(word);
            }
            continue;
        }
        if (i + 1 == count) {
            refuse(word + " needs a value");
        }
        const char *value = words[++i];
        if (word == "--only") {
            check_names(value);
            options.only = value;
        } else if (word == "--rounds") {
            options.rounds = static_cast<int>(number(word, value));
            rounds = true;
        } else if (word == "--seconds") {
            options.seconds = number(word, value);
        } else if (word == "--json") {
            options.json = value;
        } else if (word == "--label") {
            options.label = value;
        } else {
            refuse("unknown option " + word);
        }
    }
    if (options.adaptor.empty()) {
        refuse("no adaptor given");
    }
    if (options.quick && !rounds) {
        options.rounds = 3;
    }
    return options;
}

Adaptor &open_adaptor(const std::string &path) {
    void *library = dlopen(path.find('/') == std::string::npos ? ("./" + path).c_str() : path.c_str(), RTLD_NOW);
    void *found = library != nullptr ? dlsym(library, "bench_adaptor") : nullptr;
    if (found == nullptr) {
        fprintf(stderr, "bench: %s\n", dlerror());
        exit(2);
    }
    return *reinterpret_cast<Adaptor *(*)()>(found)();
}

std::string processor() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
            return line.substr(line.find(": ") + 2);
        }
    }
    return "unknown";
}

// The variables that change what is measured.
std::string environment() {
    std::string all;
    for (char **entry = environ; *entry != nullptr; entry++) {
        for (const char *start : {"WEIR_", "BENCH_STREAMS=", "BENCH_WAITS=", "PYTORCH_CUDA_ALLOC_CONF=", "CUDA_LAUNCH_BLOCKING=",
                                  "CUDA_MODULE_LOADING=", "GLIBC_TUNABLES=", "LD_PRELOAD="}) {
            if (strncmp(*entry, start, strlen(start)) == 0) {
                all += (all.empty() ? "" : " ") + std::string(*entry);
            }
        }
    }
    return all;
}

// How many threads of anybody's ran or wanted to, on average over the last minute.
std::string load_average() {
    double load = 0;
    char text[32];
    getloadavg(&load, 1);
    snprintf(text, sizeof text, "%.1f", load);
    return text;
}

std::string now() {
    char text[32];
    time_t time = std::time(nullptr);
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&time));
    return text;
}

} // namespace

int main(int count, char **words) {
    Options options = parse(count, words);
    Adaptor &adaptor = open_adaptor(options.adaptor);
    std::string name = options.label.empty() ? adaptor.name() : options.label;
    if (const char *why = adaptor.open()) {
        fprintf(stderr, "bench: %s: skipped: %s\n", name.c_str(), why);
        return SKIPPED;
    }
    adaptor.thread_begin();

    Clock clock;
    Report report(options.json, name);
    char cost[32];
    snprintf(cost, sizeof cost, "%.1f", clock.cost());
    report.run({{"adaptor", adaptor.name()},
                {"measured", adaptor.describe()},
                {"processor", processor()},
                {"cores", std::to_string(std::thread::hardware_concurrency())},
                {"load", load_average()},
                {"date", now()},
                {"rounds", std::to_string(options.rounds)},
                {"quick", options.quick ? "yes" : "no"},
                {"clock, ns", cost},
                {"environment", environment()}});
    Measure measure{adaptor, report, clock, options.rounds, options.seconds, options.quick, options.traces};
    for (const Scenario &scenario : SCENARIOS) {
        if (options.only.empty() || named(options.only, scenario.name)) {
            scenario.run(measure);
        }
    }
    return 0;
}
