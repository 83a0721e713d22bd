#!/bin/sh
# symbols.sh LIBRARY HEADER PROGRAM...
# The shared library exports exactly the functions that the header declares, all named weir_*; it has its
# SONAME and stays loaded; its thread-local storage is small enough for the static block where it is loaded late
# (src/backend/own.rs); and the programs (the C tests) call every one of them.
set -eu
export LC_ALL=C
library=$1 header=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nm -D --defined-only "$library" | awk '{print $NF}' | sort -u >"$work/exported"
grep -oE '\bweir_[a-z0-9_]+\(' "$header" | tr -d '(' | sort -u >"$work/declared"
nm -u "$@" | awk '$1 == "U" {print $2}' | grep '^weir_' | sort -u >"$work/called"

echo "exported: $(wc -l <"$work/exported") functions"
cat "$work/exported"
fail() {
    echo "symbols.sh: $1" >&2
    exit 1
}
[ -s "$work/exported" ] || fail "nothing is exported"
if grep -v '^weir_' "$work/exported"; then fail "these exports are not weir_*"; fi
if ! diff "$work/declared" "$work/exported"; then fail "the header (<) and the library (>) differ"; fi
if ! diff "$work/called" "$work/exported"; then fail "called by the C tests (<) and exported (>) differ"; fi

readelf -d "$library" >"$work/dynamic"
grep 'SONAME' "$work/dynamic" | grep -qF '[libweir.so.0]' || fail "the SONAME is not libweir.so.0"
grep 'FLAGS_1' "$work/dynamic" | grep -q 'NODELETE' || fail "the library is not linked with -z nodelete"
if grep -E 'RPATH|RUNPATH' "$work/dynamic"; then fail "the library has a run path"; fi
tls=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
[ $((tls)) -le 256 ] || fail "it has $((tls)) bytes of thread-local storage"
