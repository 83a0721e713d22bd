# make                     build into build/
# make install PREFIX=dir  install (DESTDIR is honoured)
# make demo                install into ./prefix, build examples/replay against it, replay the recorded traces
# make test                everything that needs no GPU
# make bench               weir on host memory beside malloc, mimalloc and jemalloc; BENCH_FLAGS=--quick for a short run
# make lint | fmt | header | clean
#
# CMakeLists.txt is what builds and installs; the targets here only drive it.

PREFIX ?= /usr/local
BUILD ?= build
JOBS ?= 2
REPLAY_FLAGS ?=
BENCH_FLAGS ?=

# not by abspath, which takes a path with blanks for several
build_dir := $(if $(filter /%,$(BUILD)),$(BUILD),$(CURDIR)/$(BUILD))
demo_prefix := $(CURDIR)/prefix
test_prefix := $(build_dir)/test-prefix
traces := $(sort $(wildcard traces/*.trace.gz))

.PHONY: all build install demo test bench setup lint fmt header clean test-rust test-loom test-package test-c test-python test-standin test-bench

all: build

build:
	cmake -S . -B "$(build_dir)"
	MAKEFLAGS= cmake --build "$(build_dir)" # one command of cargo, which has jobs of its own

install: build
	cmake --install "$(build_dir)" --prefix "$(PREFIX)"

demo:
	scripts/setup.sh demo
	$(MAKE) install PREFIX="$(demo_prefix)" DESTDIR=
	cmake -S examples/replay -B "$(build_dir)/replay" -DCMAKE_PREFIX_PATH="$(demo_prefix)"
	cmake --build "$(build_dir)/replay"
	"$(build_dir)/replay/replay" $(REPLAY_FLAGS) $(traces)

test:
	scripts/setup.sh
	$(MAKE) lint
	$(MAKE) test-rust
	$(MAKE) --jobs $(JOBS) --output-sync test-loom build # of each the longest part is the compiling of one crate
	$(MAKE) test-package
	$(MAKE) test-c
	$(MAKE) test-python
	$(MAKE) test-standin
	$(MAKE) test-bench
	$(MAKE) demo
	ctest --test-dir "$(build_dir)/replay" --output-on-failure

setup:
	scripts/setup.sh

lint:
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings

fmt:
	cargo fmt

# include/weir.h is made from src/ffi; a test compares the two.
header:
	WEIR_UPDATE_HEADER=1 cargo test --locked --test header

# A thread more than there are processors: some tests wait for others.
test-rust:
	cargo test --locked -- --test-threads $$(($$(nproc) + 1))

# Every interleaving of the hand-off of events; loom needs the crate built its own way.
test-loom:
	RUSTFLAGS="--cfg loom" cargo test --locked --target-dir target/loom --test loom

test-package:
	$(MAKE) build
	scripts/test-package.sh "$(build_dir)"

test-c:
	$(MAKE) install PREFIX="$(test_prefix)" DESTDIR=
	cmake -S c_tests -B "$(build_dir)/c_tests" -DCMAKE_PREFIX_PATH="$(test_prefix)"
	cmake --build "$(build_dir)/c_tests" --parallel $(JOBS)
	ctest --test-dir "$(build_dir)/c_tests" --parallel $(JOBS) --output-on-failure

# The Python module, without the frameworks that it is for.
test-python:
	$(MAKE) install PREFIX="$(test_prefix)" DESTDIR=
	WEIR_TEST_PREFIX="$(test_prefix)" python3 -B -m unittest discover -s python

# The CUDA driver that the tests use where there is none, and its own tests.
test-standin:
	cmake -S standin -B "$(build_dir)/standin"
	cmake --build "$(build_dir)/standin" --parallel $(JOBS)
	ctest --test-dir "$(build_dir)/standin" --parallel $(JOBS) --output-on-failure

# The bench does what it is to do; it measures nothing here.
test-bench:
	$(MAKE) install PREFIX="$(test_prefix)" DESTDIR=
	cmake -S bench -B "$(build_dir)/bench/build" -DCMAKE_PREFIX_PATH="$(test_prefix)"
	cmake --build "$(build_dir)/bench/build" --parallel $(JOBS)
	ctest --test-dir "$(build_dir)/bench/build" --output-on-failure

bench:
	scripts/setup.sh bench
	$(MAKE) install PREFIX="$(test_prefix)" DESTDIR=
	scripts/bench.sh --prefix "$(test_prefix)" --out "$(build_dir)/bench" $(BENCH_FLAGS)

clean:
	cargo clean
	rm -rf "$(build_dir)" "$(demo_prefix)"
