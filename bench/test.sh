#!/bin/sh
# test.sh BENCH CMAKE: every scenario on an allocator that checks what is asked of it, a short run of weir and malloc,
# and what the bench says to bad arguments. No time is judged.
set -u
bench=$1 cmake=$2 here=$(cd "$(dirname "$0")" && pwd) adaptors=$(dirname "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    printf 'FAILED: %s\n' "$*"
    failures=$((failures + 1))
}

# expect STATUS TEXT ARGUMENT...
expect() {
    want=$1 text=$2
    shift 2
    output=$("$bench" "$@" 2>&1 </dev/null)
    status=$?
    if [ "$status" -ne "$want" ] || ! printf '%s\n' "$output" | grep -qE -- "$text"; then
        fail "bench $*: ended with $status (want $want) and said (want \"$text\"):
$output"
    else
        printf 'ok: bench %s\n' "$*"
    fi
}

# trace NAME LINES: a trace in a file, its path
trace() {
    printf '%b' "$2" | gzip -c >"$work/$1.trace.gz"
    echo "$work/$1.trace.gz"
}

# figure FILE MEDIAN CASE METRIC: the results have this row, with this median
figure() {
    grep -F "\"case\": \"$3\", \"metric\": \"$4\"," "$1" | grep -qE "\"median\": $2," ||
        fail "$1: no row '$3', '$4' with $2: $(grep -F "\"metric\": \"$4\"," "$1" | head -n 3)"
}

# 6,000 bytes at most, then 5,000 that fit only behind those that went
good=$(trace good 'a 0 1000 0\na 1 3000 1\na 2 2000 0\nf 0 0\nf 1 1\na 3 4000 2\nf 2 0\n')
expect 0 '^strict +fit +good +least capacity +1\.0000' "$adaptors/strict.so" --quick --json "$work/strict.jsonl" "$good"
figure "$work/strict.jsonl" 1 good 'reserved / live'
figure "$work/strict.jsonl" 3 good 'driver calls 1'
figure "$work/strict.jsonl" 0 good 'driver calls 5'
figure "$work/strict.jsonl" 1 good 'least, 3 replays'
figure "$work/strict.jsonl" '[0-9.e+]*' good 'tenth replay'
figure "$work/strict.jsonl" 0 good 'driver calls 10'
figure "$work/strict.jsonl" 0 '8 GiB kept 90 % full' 'failed'
figure "$work/strict.jsonl" 1 'pipeline, 4 streams' 'reserved / live'
for row in '16, own streams' '16, one stream' '8, one stream' '8, two streams'; do
    figure "$work/strict.jsonl" '[0-9.]*[1-9][0-9.e+]*' "$row" rate
done
grep -q '"metric": "failed", "unit": "%", "median": [1-9]' "$work/strict.jsonl" && fail "requests failed"
"$cmake" "-DRESULTS=$work/strict.jsonl" -DROWS=82 -P "$here/check_results.cmake" || fail "the results cannot be read"

expect 0 '^weir-host +churn +same size 4 KiB +time' "$adaptors/weir-host.so" --quick --only same-size,batch,fit "$good"
expect 0 '^mine +churn +same size 1 MiB +time' "$adaptors/malloc.so" --quick --only same-size,pressure,fit --label mine "$good"
export BENCH_STREAMS=names
expect 0 '^weir-host +producer-consumer +8, two streams' "$adaptors/weir-host.so" --quick --only pairs --json "$work/names.jsonl"
unset BENCH_STREAMS
export BENCH_WAITS=untold WEIR_DECLARED_STREAMS=1
expect 0 '^weir-host +rounds +powers, 4 streams +last round with a page call' "$adaptors/weir-host.so" --quick --only rounds --json "$work/untold.jsonl"
grep -q 'waits are not told.*BENCH_WAITS=untold' "$work/untold.jsonl" || fail "the waits were told"
unset BENCH_WAITS WEIR_DECLARED_STREAMS
figure "$work/untold.jsonl" 0 'powers, 1 stream' 'driver calls, last round'
grep -q 'streams are names.*"environment": "BENCH_STREAMS=names' "$work/names.jsonl" || fail "the streams were no names"

expect 0 '^usage:' --help
expect 2 'no adaptor given'
expect 2 "no scenario is called 'speed'" "$adaptors/null.so" --only same-size,speed
expect 2 'unknown option --fast' "$adaptors/null.so" --fast 1
expect 2 '--rounds needs a value' "$adaptors/null.so" --rounds
expect 2 '--rounds 0: expected' "$adaptors/null.so" --rounds 0
expect 2 '--seconds 2h: expected' "$adaptors/null.so" --seconds 2h
expect 2 'none.so: cannot open' "$work/none.so"
expect 2 'No such file' "$adaptors/null.so" --only same-size --json "$work/none/results.jsonl"
expect 2 'none.trace.gz:0: no trace' "$adaptors/null.so" --only trace "$work/none.trace.gz"
expect 2 'twice.trace.gz:3: the block is not live' "$adaptors/null.so" --only trace "$(trace twice 'a 0 1 0\nf 0 0\nf 0 0\n')"
expect 2 'gap.trace.gz:2: not the next id' "$adaptors/null.so" --only trace "$(trace gap 'a 0 1 0\na 2 1 0\n')"
expect 2 'word.trace.gz:1: expected' "$adaptors/null.so" --only trace "$(trace word 'x 0 1 0\n')"

[ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
echo "all passed"
