// One thread, one stream: blocks of one size, of varying sizes, of a training step, under a limit, in batches.
// All draws are made beforehand, so that only calls of the allocator are timed.
#include "measure.h"

namespace {

constexpr size_t KiB = 1 << 10, MiB = 1 << 20, GiB = 1 << 30;

struct Block {
    void *at;
    size_t bytes;
};

// Random replacement: one of the live blocks is freed, and another of the next size allocated in its place.
class Churn {
public:
    Churn(Adaptor &adaptor, Stream stream, std::vector<size_t> first, std::vector<size_t> sizes, Random &random)
        : adaptor_(adaptor), stream_(stream), first_(std::move(first)), sizes_(std::move(sizes)),
          places_(sizes_.size()), blocks_(first_.size()) {
        for (uint32_t &place : places_) {
            place = static_cast<uint32_t>(random() % first_.size());
        }
    }

    // Fills, churns and empties.
    void run() {
        for (size_t i = 0; i < first_.size(); i++) {
            take(blocks_[i], first_[i]);
        }
        for (size_t i = 0; i < sizes_.size(); i++) {
            Block &block = blocks_[places_[i]];
            drop(block);
            take(block, sizes_[i]);
        }
        for (Block &block : blocks_) {
            drop(block);
        }
        adaptor_.synchronize();
    }

    size_t failed = 0;

private:
    void take(Block &block, size_t bytes) {
        block = {adaptor_.alloc(bytes, stream_), bytes};
        failed += block.at == nullptr;
    }
    void drop(const Block &block) {
        if (block.at != nullptr) {
            adaptor_.free(block.at, block.bytes, stream_);
        }
    }

    Adaptor &adaptor_;
    Stream stream_;
    std::vector<size_t> first_, sizes_;
    std::vector<uint32_t> places_;
    std::vector<Block> blocks_;
};

size_t quickly(const Measure &measure, size_t count) { return measure.quick ? count / 10 : count; }

// A scenario on a fresh allocator and a stream of its own.
template <class Scenario> void alone(const Measure &measure, size_t limit, Scenario scenario) {
    Adaptor &adaptor = measure.adaptor;
    Stream stream = adaptor.stream_create();
    if (adaptor.begin(limit)) {
        scenario(stream);
        adaptor.end();
    }
    adaptor.stream_destroy(stream);
}

void churned(const Measure &measure, const char *which, size_t low, size_t high, size_t live, size_t pairs) {
    alone(measure, 0, [&](Stream stream) {
        Random random(42);
        std::vector<size_t> first(live, low), sizes(pairs, low);
        if (low != high) {
            first = log_uniform(random, low, high, live);
            sizes = log_uniform(random, low, high, pairs);
        }
        Churn churn(measure.adaptor, stream, first, sizes, random);
        std::vector<double> rounds = measure.repeat_alone(true, [&] { return measure.timed(pairs, [&] { churn.run(); }); });
        measure.report.add("churn", which, "time", "ns/pair", rounds);
        measure.refused("churn", which, churn.failed, (rounds.size() + 1) * (pairs + live));
    });
}

} // namespace

void same_size(const Measure &measure) {
    size_t pairs = quickly(measure, 200000);
    churned(measure, "same size 4 KiB", 4 * KiB, 4 * KiB, 64, pairs);
    churned(measure, "same size 1 MiB", MiB, MiB, 64, pairs);
}

void varying(const Measure &measure) {
    size_t pairs = quickly(measure, 200000);
    churned(measure, "small varying 256 B - 1 MiB", 256, MiB, 256, pairs);
    churned(measure, "large varying 1 - 256 MiB", MiB, 256 * MiB, 48, pairs / 10);
    churned(measure, "varying 256 B - 64 MiB", 256, 64 * MiB, 256, pairs);
}

void immediate_reuse(const Measure &measure) {
    alone(measure, 0, [&](Stream stream) {
        Adaptor &adaptor = measure.adaptor;
        size_t pairs = quickly(measure, 200000), failed = 0;
        auto round = [&] {
            return measure.timed(pairs, [&] {
                for (size_t i = 0; i < pairs; i++) {
                    void *block = adaptor.alloc(64 * KiB, stream);
                    if (block != nullptr) {
                        adaptor.free(block, 64 * KiB, stream);
                    }
                    failed += block == nullptr;
                }
                adaptor.synchronize();
            });
        };
        std::vector<double> rounds = measure.repeat_alone(true, round);
        measure.report.add("churn", "immediate reuse 64 KiB", "time", "ns/pair", rounds);
        measure.refused("churn", "immediate reuse 64 KiB", failed, (rounds.size() + 1) * pairs);
    });
}

// 24 layers of a transformer, forward, then freed in reverse; three sequence lengths in turn.
void transformer(const Measure &measure) {
    constexpr size_t layers = 24, batch = 8, width = 1024, heads = 16;
    std::vector<size_t> steps[3];
    for (size_t k = 0; k < 3; k++) {
        size_t length = 512 + 16 * k, hidden = batch * length * width * 2, scores = batch * heads * length * length * 2;
        for (size_t layer = 0; layer < layers; layer++) {
            for (size_t bytes : {hidden, 3 * hidden, scores, scores, hidden, 4 * hidden, 4 * hidden, hidden,
                                 batch * length * 8}) {
                steps[k].push_back(bytes);
            }
        }
    }
    alone(measure, 0, [&](Stream stream) {
        Adaptor &adaptor = measure.adaptor;
        size_t count = quickly(measure, 200), blocks = steps[0].size(), failed = 0;
        std::vector<void *> live(blocks);
        auto round = [&] {
            return measure.timed(count * blocks, [&] {
                for (size_t step = 0; step < count; step++) {
                    const std::vector<size_t> &sizes = steps[step % 3];
                    for (size_t i = 0; i < blocks; i++) {
                        live[i] = adaptor.alloc(sizes[i], stream);
                        failed += live[i] == nullptr;
                    }
                    for (size_t i = blocks; i-- > 0;) {
                        if (live[i] != nullptr) {
                            adaptor.free(live[i], sizes[i], stream);
                        }
                    }
                }
                adaptor.synchronize();
            });
        };
        std::vector<double> rounds = measure.repeat_alone(true, round);
        measure.report.add("churn", "transformer step", "time", "ns/pair", rounds);
        measure.refused("churn", "transformer step", failed, (rounds.size() + 1) * count * blocks);
    });
}

// 8 GiB, kept 90 % full of 64 KiB to 256 MiB. A request that fails is counted and left out. Each round has a fresh
// allocator, so that none profits from what the one before left it.
void pressure(const Measure &measure) {
    Adaptor &adaptor = measure.adaptor;
    if (!adaptor.keeps_limit()) {
        return;
    }
    constexpr size_t capacity = 8 * GiB, full = capacity / 10 * 9;
    size_t requests = quickly(measure, 50000);
    Random random(7);
    std::vector<size_t> sizes = log_uniform(random, 64 * KiB, 256 * MiB, requests);
    std::vector<double> failed;
    auto round = [&] {
        double nanos = 0;
        alone(measure, capacity, [&](Stream stream) {
            Random choice(8);
            std::vector<Block> blocks;
            size_t live = 0, refused = 0;
            nanos = measure.timed(requests, [&] {
                for (size_t bytes : sizes) {
                    while (live + bytes > full && !blocks.empty()) {
                        Block &block = blocks[choice() % blocks.size()];
                        adaptor.free(block.at, block.bytes, stream);
                        live -= block.bytes;
                        block = blocks.back();
                        blocks.pop_back();
                    }
                    void *at = adaptor.alloc(bytes, stream);
                    if (at != nullptr) {
                        blocks.push_back({at, bytes});
                        live += bytes;
                    }
                    refused += at == nullptr;
                }
            });
            for (const Block &block : blocks) {
                adaptor.free(block.at, block.bytes, stream);
            }
            adaptor.synchronize();
            failed.push_back(100.0 * static_cast<double>(refused) / static_cast<double>(requests));
        });
        return nanos;
    };
    std::vector<double> rounds = measure.repeat_alone(false, round);
    if (!failed.empty()) {
        measure.report.add("pressure", "8 GiB kept 90 % full", "time", "ns/request", rounds);
        measure.report.add("pressure", "8 GiB kept 90 % full", "failed", "%", failed);
    }
}

// The same blocks by single calls and by calls for all of them.
void batch(const Measure &measure) {
    Adaptor &adaptor = measure.adaptor;
    if (!adaptor.has_batches()) {
        return;
    }
    constexpr size_t blocks = 64;
    size_t times = quickly(measure, 3000);
    Random random(42);
    const std::pair<const char *, std::vector<size_t>> cases[] = {
        {"64 x 4 KiB", std::vector<size_t>(blocks, 4 * KiB)},
        {"64 x 256 B - 1 MiB", log_uniform(random, 256, MiB, blocks)},
    };
    for (const auto &[which, sizes] : cases) {
        alone(measure, 0, [&, which = which, &sizes = sizes](Stream stream) {
            std::vector<void *> live(blocks);
            auto single = [&] {
                for (size_t i = 0; i < blocks; i++) {
                    live[i] = adaptor.alloc(sizes[i], stream);
                }
                for (size_t i = 0; i < blocks; i++) {
                    adaptor.free(live[i], sizes[i], stream);
                }
            };
            auto batched = [&] {
                if (adaptor.alloc_batch(sizes.data(), blocks, stream, live.data())) {
                    adaptor.free_batch(live.data(), blocks, stream);
                }
            };
            auto rounds = [&](auto work) {
                return measure.repeat_alone(true, [&] {
                    return measure.timed(times * blocks, [&] {
                        for (size_t i = 0; i < times; i++) {
                            work();
                        }
                    });
                });
            };
            measure.report.add("batch", which, "single calls", "ns/pair", rounds(single));
            measure.report.add("batch", which, "batches", "ns/pair", rounds(batched));
            adaptor.synchronize();
        });
    }
}
