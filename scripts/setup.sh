#!/usr/bin/env bash
# setup.sh [demo|bench]: installs what a bare Debian with Rust lacks for building and testing weir, or for its demo or
# its benches alone. Does nothing if all is there. For the tests it also puts NVIDIA's C++ headers, which are Python packages
# of a few megabytes, into build/cccl: those of today and those of CUDA 13.0.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

what=${1:-test}
[[ $# -le 1 && $what =~ ^(test|demo|bench)$ ]] || die "unknown argument: $*; expected demo, bench, or nothing for the tests"
command -v cargo >/dev/null || die "cargo is missing; install Rust (https://rustup.rs) first"
[ "$what" != test ] || cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing; run: rustup component add rustfmt"
[ "$what" != test ] || cargo clippy --version >/dev/null 2>&1 || die "clippy is missing; run: rustup component add clippy"

missing=()
need_command() { command -v "$1" >/dev/null || missing+=("$2"); }
need_file() { compgen -G "$1" >/dev/null || missing+=("$2"); }

need_command cmake cmake
need_command pkg-config pkg-config
need_command gcc gcc
need_command g++ g++
need_command make make
need_file '/usr/include/zlib.h' zlib1g-dev
if [ "$what" = bench ]; then
    need_command python3 python3
    need_file '/usr/lib/*/libmimalloc.so.2' libmimalloc-dev
    need_file '/usr/lib/*/libjemalloc.so.2' libjemalloc-dev
fi
if [ "$what" = test ]; then
    need_command nm binutils
    need_command python3 python3
    need_command valgrind valgrind
    need_file '/usr/include/trilinos/Kokkos_Core.hpp' libtrilinos-kokkos-dev
    need_file '/usr/lib/debug/.build-id/*' libc6-dbg
    need_file '/usr/include/thrust/version.h' libthrust-dev
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
fi

headers=$(dirname "$(realpath "$0")")/../build/cccl
# headers_of FOLDER PACKAGE...: these Python packages alone, unless they are there.
headers_of() {
    local folder=$headers/$1 packages
    shift
    packages=$*
    [ "$(cat "$folder/packages" 2>/dev/null)" != "$packages" ] || return 0
    say "getting $packages"
    rm -rf "$folder"
    # shellcheck disable=SC2086
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: --target "$folder" $packages </dev/null \
        || die "pip could not get $packages. Where there is no network, unpack these wheels by hand: they are ZIP files, and \
$folder/nvidia/cu13/include/cccl is then a folder; then write their names, as above, into $folder/packages"
    printf '%s\n' "$packages" >"$folder/packages"
}
get_headers() {
    local cuda="nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88"
    # shellcheck disable=SC2086
    headers_of current nvidia-cuda-cccl==13.3.5.0.6 $cuda
    # shellcheck disable=SC2086
    headers_of cuda-13.0 nvidia-cuda-cccl==13.0.85 $cuda
}

if [ ${#missing[@]} -eq 0 ]; then
    [ "$what" != test ] || get_headers
    say "nothing more to install"
    exit 0
fi

command -v apt-get >/dev/null || die "missing: ${missing[*]} (Debian's names), and there is no apt-get to install them"
if [ "$(id -u)" -eq 0 ]; then
    as_root=()
elif command -v sudo >/dev/null; then
    as_root=(sudo -n)
else
    die "missing: ${missing[*]}; run as root: apt-get install ${missing[*]}"
fi

say "installing ${missing[*]}"
"${as_root[@]}" apt-get update -q </dev/null || die "apt-get update failed"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" </dev/null \
    || die "could not install ${missing[*]}"
[ "$what" != test ] || get_headers
