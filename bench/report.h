// The results: a line of JSON each in a file, and a row each on the terminal.
#pragma once
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

using Fields = std::vector<std::pair<std::string, std::string>>;

class Report {
public:
    // `path` is written anew; "" writes no file.
    Report(const std::string &path, std::string allocator);
    ~Report();
    Report(const Report &) = delete;

    // What was run, and where: the file's first line.
    void run(const Fields &fields);

    // One figure, as each round gave it. `scenario` groups cases: ("threads", "4, own streams"). Both and `metric`
    // name the figure.
    void add(const std::string &scenario, const std::string &which, const std::string &metric, const char *unit,
             std::vector<double> rounds);

private:
    std::string allocator_;
    FILE *file_ = nullptr;
};
