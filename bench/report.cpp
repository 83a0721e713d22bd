#include "report.h"
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

static std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out + '"';
}

static double median(const std::vector<double> &sorted) {
    size_t half = sorted.size() / 2;
    return sorted.size() % 2 != 0 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

Report::Report(const std::string &path, std::string allocator) : allocator_(std::move(allocator)) {
    if (!path.empty() && (file_ = fopen(path.c_str(), "w")) == nullptr) {
        fprintf(stderr, "bench: %s: %s\n", path.c_str(), strerror(errno));
        exit(2);
    }
}

Report::~Report() {
    if (file_ != nullptr && fclose(file_) != 0) {
        fprintf(stderr, "bench: the results were not written: %s\n", strerror(errno));
        _Exit(2);
    }
}

void Report::run(const Fields &fields) {
    if (file_ != nullptr) {
        fprintf(file_, "{\"allocator\": %s, \"run\": {", quoted(allocator_).c_str());
        for (size_t i = 0; i < fields.size(); i++) {
            fprintf(file_, "%s%s: %s", i != 0 ? ", " : "", quoted(fields[i].first).c_str(),
                    quoted(fields[i].second).c_str());
        }
        fputs("}}\n", file_);
        fflush(file_); // as after each figure: a run that is stopped leaves what it has measured
    }
}

void Report::add(const std::string &scenario, const std::string &which, const std::string &metric, const char *unit,
                 std::vector<double> rounds) {
    std::vector<double> sorted = rounds;
    std::sort(sorted.begin(), sorted.end());
    double middle = median(sorted);
    printf("%-16s %-17s %-27s %-20s %12.4f  %12.4f .. %-12.4f %s\n", allocator_.c_str(), scenario.c_str(),
           which.c_str(), metric.c_str(), middle, sorted.front(), sorted.back(), unit);
    fflush(stdout);
    if (file_ != nullptr) {
        fprintf(file_,
                "{\"allocator\": %s, \"scenario\": %s, \"case\": %s, \"metric\": %s, \"unit\": %s, "
                "\"median\": %.6g, \"min\": %.6g, \"max\": %.6g, \"rounds\": [",
                quoted(allocator_).c_str(), quoted(scenario).c_str(), quoted(which).c_str(), quoted(metric).c_str(),
                quoted(unit).c_str(), middle, sorted.front(), sorted.back());
        for (size_t i = 0; i < rounds.size(); i++) {
            fprintf(file_, "%s%.6g", i != 0 ? ", " : "", rounds[i]);
        }
        fputs("]}\n", file_);
        fflush(file_);
    }
}
