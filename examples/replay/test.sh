#!/bin/sh
# test.sh REPLAY: what the program says to good and bad traces and arguments.
set -u
replay=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect STATUS TEXT ARGUMENT...
expect() {
    want=$1 text=$2
    shift 2
    output=$("$replay" "$@" 2>&1 </dev/null)
    status=$?
    if [ "$status" -ne "$want" ] || ! printf '%s\n' "$output" | grep -qF -- "$text"; then
        printf 'FAILED: replay %s\n  ended with %s (want %s) and said (want "%s"):\n%s\n' "$*" "$status" "$want" "$text" "$output"
        failures=$((failures + 1))
    else
        printf 'ok: replay %s\n' "$*"
    fi
}
trace() { printf '%b' "$1" >"$work/$2.trace"; }

trace 'a 0 1000 0\na 1 3000000 1\nf 0 0\na 2 0 2\na 3 5 0\nf 1 1\n' good
gzip -c "$work/good.trace" >"$work/packed.trace.gz"
expect 0 'good ' --memory host "$work/good.trace"
expect 0 'packed ' --memory host --streams names --replays 3 "$work/packed.trace.gz"
expect 0 'warm2' --memory host --no-check --replays 3 "$work/good.trace"
expect 0 'limit 8388608 bytes' --memory host --capacity 8M "$work/good.trace"
expect 0 'usage:' --help

trace 'a 0 1000 0\nx 1\n' kind;                expect 2 'kind.trace:2: expected' "$work/kind.trace"
trace 'a 0 1000 0\na 2 10 0\n' gap;            expect 2 'gap.trace:2: the next id is 1, not 2' "$work/gap.trace"
trace 'a 0 1000 0\nf 0 0\nf 0 0\n' twice;      expect 2 'twice.trace:3: block 0 is freed but not live' "$work/twice.trace"
trace 'f 7 0\n' never;                         expect 2 'never.trace:1: block 7' "$work/never.trace"
trace 'a 0 many 0\n' bytes;                    expect 2 'bytes.trace:1: the number of bytes' "$work/bytes.trace"
trace 'a 0 99999999999999999999 0\n' huge;     expect 2 'huge.trace:1: the number of bytes' "$work/huge.trace"
trace 'a 0 10 -1\n' stream;                    expect 2 'stream.trace:1: the stream' "$work/stream.trace"
trace 'a 0 10 0 0\n' more;                     expect 2 'more.trace:1: something follows' "$work/more.trace"
trace '' empty;                                expect 2 'empty.trace:1: no events' "$work/empty.trace"
head -c 40 "$work/packed.trace.gz" >"$work/cut.trace.gz"
expect 2 'cut.trace.gz:' "$work/cut.trace.gz"
awk 'BEGIN { for (i = 0; i < 20000; i++) print "a", i, int(1e6 * rand()), 0 }' | gzip -c >"$work/long.trace.gz"
for bytes in 1000 20000 50000; do
    head -c $bytes "$work/long.trace.gz" >"$work/short.trace.gz"
    expect 2 ': cannot be read on: ' "$work/short.trace.gz"
done
expect 2 'No such file' "$work/none.trace"

expect 2 'no trace given'
expect 2 'unknown option --fast' --fast "$work/good.trace"
expect 2 '--replays needs a value' --replays
expect 2 '--replays 0: expected' --replays 0 "$work/good.trace"
expect 2 '--capacity lots: expected' --capacity lots "$work/good.trace"
expect 2 '--capacity 1.5y: expected' --capacity 1.5y "$work/good.trace"
expect 2 '--memory tape: expected' --memory tape "$work/good.trace"
expect 2 '--streams many: expected' --streams many "$work/good.trace"

# Too little memory: a clear failure, and no success reported.
expect 1 'tight, event 2 (a 1 9000000 0)' --memory host --capacity 0.9x --no-check "$(trace 'a 0 1000 0\na 1 9000000 0\nf 1 0\n' tight; echo "$work/tight.trace")"
expect 1 'tight, event 2 (a 1 9000000 0)' --memory host --capacity 0.9x "$work/tight.trace"

[ "$failures" -eq 0 ] || { echo "$failures failed"; exit 1; }
echo "all passed"
