// Programs that do the same again, round by round, on one stream and on four: what a request costs in the first round and
// in the last one, what is held, and, where the allocator tells, in which round it made its last page call; and the same where
// each block is written by its stream, which the host is ahead of then.
#include "measure.h"
#include <algorithm>
#include <deque>
#include <utility>

namespace {

constexpr size_t KiB = 1 << 10, MiB = 1 << 20;
constexpr size_t REQUESTS = 1500; // in a round
constexpr size_t ROUNDS = 24;

struct Step {
    bool alloc;
    uint32_t block;
    size_t bytes;
    uint8_t from, to; // the stream of the allocation, and that of the free
};

// A round, drawn beforehand.
class Round {
public:
    explicit Round(size_t streams) : streams(streams) {}

    uint32_t alloc(size_t bytes, size_t stream, size_t freed_on) {
        live_ += bytes;
        peak_live = std::max(peak_live, live_);
        auto block = static_cast<uint32_t>(blocks_.size());
        blocks_.push_back({true, block, bytes, static_cast<uint8_t>(stream), static_cast<uint8_t>(freed_on)});
        steps.push_back(blocks_.back());
        return block;
    }
    uint32_t alloc(size_t bytes, size_t stream) { return alloc(bytes, stream, stream); }

    void free(uint32_t block) {
        steps.push_back(blocks_[block]);
        steps.back().alloc = false;
        live_ -= steps.back().bytes;
    }

    size_t blocks() const { return blocks_.size(); }

    const size_t streams;
    std::vector<Step> steps;
    size_t peak_live = 0;

private:
    std::vector<Step> blocks_;
    size_t live_ = 0;
};

size_t below(Random &random, size_t n) { return static_cast<size_t>(random() % n); }

// One byte more than a power of two, up to 256 MiB, on any stream; any of 24 blocks goes for each that comes.
void powers(Round &round, Random &random) {
    std::vector<uint32_t> blocks;
    for (size_t i = 0; i < REQUESTS; i++) {
        if (blocks.size() == 24) {
            std::swap(blocks[below(random, 24)], blocks.back());
            round.free(blocks.back());
            blocks.pop_back();
        }
        blocks.push_back(round.alloc((size_t(1) << (8 + below(random, 21))) + 1, below(random, round.streams)));
    }
    for (uint32_t block : blocks) {
        round.free(block);
    }
}

// Forty vectors that grow by half, now one and now another, until they are longer than 300 MB and begin anew.
void vectors(Round &round, Random &random) {
    struct Vector {
        uint32_t block;
        size_t bytes, stream;
    };
    std::vector<Vector> vectors;
    auto first = [&] { return 20000 + (size_t(1) << below(random, 7)) * below(random, 30000); };
    for (size_t i = 0; i < 40; i++) {
        size_t bytes = first();
        vectors.push_back({round.alloc(bytes, i % round.streams), bytes, i % round.streams});
    }
    for (size_t i = 0; i < REQUESTS; i++) {
        Vector &vector = vectors[below(random, vectors.size())];
        size_t grown = vector.bytes * 3 / 2;
        if (grown > 300000000) {
            round.free(vector.block);
            vector.block = round.alloc(vector.bytes = first(), vector.stream);
        } else {
            uint32_t old = vector.block;
            vector.block = round.alloc(vector.bytes = grown, vector.stream);
            round.free(old);
        }
    }
    for (const Vector &vector : vectors) {
        round.free(vector.block);
    }
}

// 64 KiB to 64 MiB, each freed on the stream after its own, in the order in which they came.
void pipeline(Round &round, Random &random) {
    std::deque<uint32_t> blocks;
    std::vector<size_t> sizes = log_uniform(random, 64 * KiB, 64 * MiB, REQUESTS);
    for (size_t bytes : sizes) {
        size_t stream = below(random, round.streams);
        blocks.push_back(round.alloc(bytes, stream, (stream + 1) % round.streams));
        if (blocks.size() > 24) {
            round.free(blocks.front());
            blocks.pop_front();
        }
    }
    for (uint32_t block : blocks) {
        round.free(block);
    }
}

// Each stream in turn frees the oldest of its eight blocks of 1 to 64 MiB.
void rings(Round &round, Random &random) {
    std::vector<std::deque<uint32_t>> rings(round.streams);
    std::vector<size_t> sizes = log_uniform(random, MiB, 64 * MiB, REQUESTS);
    for (size_t i = 0; i < REQUESTS; i++) {
        auto &ring = rings[i % round.streams];
        ring.push_back(round.alloc(sizes[i], i % round.streams));
        if (ring.size() > 8) {
            round.free(ring.front());
            ring.pop_front();
        }
    }
    for (const auto &ring : rings) {
        for (uint32_t block : ring) {
            round.free(block);
        }
    }
}

class Player {
public:
    Player(Adaptor &adaptor, const Round &round, bool writes)
        : adaptor_(adaptor), round_(round), writes_(writes), blocks_(round.blocks()) {
        for (size_t i = 0; i < round.streams; i++) {
            streams_.push_back(adaptor.stream_create());
            events_.push_back(adaptor.event_create());
        }
    }
    ~Player() {
        for (size_t i = 0; i < streams_.size(); i++) {
            adaptor_.event_destroy(events_[i]);
            adaptor_.stream_destroy(streams_[i]);
        }
    }
    Player(const Player &) = delete;

    // A round and a wait for all of it. false: a request failed; nothing stays allocated.
    bool play() {
        for (size_t i = 0; i < round_.steps.size(); i++) {
            const Step &step = round_.steps[i];
            if (!step.alloc) {
                drop(step);
            } else if ((blocks_[step.block] = adaptor_.alloc(step.bytes, streams_[step.from])) == nullptr) {
                for (size_t done = 0; done < i; done++) {
                    if (blocks_[round_.steps[done].block] != nullptr) {
                        drop(round_.steps[done]);
                    }
                }
                return false;
            }
            if (writes_ && step.alloc) {
                adaptor_.write(blocks_[step.block], step.bytes, streams_[step.from]);
            }
        }
        adaptor_.synchronize();
        return true;
    }

private:
    void drop(const Step &step) {
        void *block = std::exchange(blocks_[step.block], nullptr);
        if (step.from == step.to) {
            adaptor_.free(block, step.bytes, streams_[step.to]);
            return;
        }
        adaptor_.record(events_[step.from], streams_[step.from]);
        adaptor_.wait(streams_[step.to], events_[step.from]);
        adaptor_.free_elsewhere(block, step.bytes, streams_[step.from], streams_[step.to]);
    }

    Adaptor &adaptor_;
    const Round &round_;
    const bool writes_;
    std::vector<Stream> streams_;
    std::vector<Event> events_;
    std::vector<void *> blocks_;
};

// What one allocator, from empty to its end, gave: by metric.
struct Life {
    double first, last, ratio, calls, page_calls, settled;
    bool served = true, counted = true;
};

Life live(const Measure &measure, const Round &round, Player &player) {
    Adaptor &adaptor = measure.adaptor;
    Life life = {};
    double requests = static_cast<double>(round.blocks());
    uint64_t pages = 0, before = 0, now = 0;
    for (size_t i = 0; i < ROUNDS && life.served; i++) {
        adaptor.driver_calls(before);
        life.last = measure.timed(1, [&] { life.served = player.play(); }) / requests;
        if (i == 0) {
            life.first = life.last;
        }
        if (adaptor.page_calls(now) && now != std::exchange(pages, now)) {
            life.settled = static_cast<double>(i + 1);
        }
    }
    life.counted = adaptor.driver_calls(now) && adaptor.page_calls(pages);
    life.calls = static_cast<double>(now - before);
    life.page_calls = static_cast<double>(pages);
    life.ratio = static_cast<double>(adaptor.reserved_peak()) / static_cast<double>(round.peak_live);
    return life;
}

template <class Program> void settled(const Measure &measure, bool writes, const char *name, Program program) {
    const char *scenario = writes ? "busy" : "rounds";
    for (size_t streams : {1, 4}) {
        std::string which = std::string(name) + (streams == 1 ? ", 1 stream" : ", 4 streams");
        std::vector<Life> lives;
        bool served = true;
        measure.repeat_alone(false, [&] {
            Random random(lives.size() + 1); // each life draws its own
            Round round(streams);
            program(round, random);
            Player player(measure.adaptor, round, writes); // whose streams outlive the allocator
            if (served && (served = measure.adaptor.begin(0))) {
                lives.push_back(live(measure, round, player));
                measure.adaptor.end();
                served = lives.back().served;
            }
            return 0.0;
        });
        if (!served) {
            measure.report.add(scenario, which, "failed", "lives", {1});
            continue;
        }
        auto add = [&](const char *metric, const char *unit, double Life::*figure) {
            std::vector<double> figures;
            for (const Life &life : lives) {
                figures.push_back(life.*figure);
            }
            measure.report.add(scenario, which, metric, unit, figures);
        };
        add("first round", "ns/pair", &Life::first);
        add("last round", "ns/pair", &Life::last);
        if (lives[0].ratio > 0) {
            add("reserved / live", "x", &Life::ratio);
        }
        if (lives[0].counted) {
            add("driver calls, last round", "calls", &Life::calls);
            add("page calls", "calls", &Life::page_calls);
            add("last round with a page call", "rounds", &Life::settled);
        }
    }
}

void all(const Measure &measure, bool writes) {
    settled(measure, writes, "powers", powers);
    settled(measure, writes, "vectors", vectors);
    settled(measure, writes, "rings", rings);
    settled(measure, writes, "pipeline", pipeline); // which ends PyTorch's process: docs/performance.md
}

} // namespace

void rounds(const Measure &measure) { all(measure, false); }

void busy(const Measure &measure) {
    if (measure.adaptor.has_work()) {
        all(measure, true);
    }
}
