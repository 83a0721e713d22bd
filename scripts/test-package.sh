#!/usr/bin/env bash
# test-package.sh BUILD: tests what gets installed. BUILD is a finished build of weir.
#
# Both ways of installing give the same files; a prefix works after it was moved, by CMake and by
# pkg-config, in C and C++, shared and static; weir works as a subdirectory; versions are Cargo.toml's.
set -euo pipefail
if [ $# != 1 ] || [ ! -e "$1/CMakeCache.txt" ]; then
    printf 'usage: scripts/test-package.sh BUILD, a folder that cmake --build has built weir in\n' >&2
    exit 2
fi
build=$(realpath "$1")
cd "$(dirname "$0")/.."
source=$PWD
work=$build/test-package
rm -rf "$work"
mkdir -p "$work"

step() { printf '== %s\n' "$*"; }
fail() { printf 'test-package: %s\n' "$*" >&2; exit 1; }
# example NAME WRAPPER [CMAKE_ARGUMENT...]: examples/NAME, copied out of the sources, builds with the moved prefix and passes its
# tests, then again with each of its programs under WRAPPER, a list as CMake has them, unless that is empty.
example() {
    local name=$1 wrapper=$2 build=$work/$1/build
    shift 2
    step "examples/$name, copied out of the sources"
    cp -r "examples/$name" "$work/$name"
    if ! { cmake -S "$work/$name" -B "$build" -DCMAKE_PREFIX_PATH="$prefix" "$@" && cmake --build "$build"; } >"$work/$name.log" 2>&1; then
        cat "$work/$name.log"
        fail "the build failed"
    fi
    ctest --test-dir "$build" --output-on-failure
    [ -n "$wrapper" ] || return 0
    # what CMake calls an emulator goes before the program in each test
    cmake -DCMAKE_CROSSCOMPILING_EMULATOR="$wrapper" "$build" >>"$work/$name.log"
    grep -qF "${wrapper%%;*}" "$build/CTestTestfile.cmake" || fail "the tests of examples/$name do not run under ${wrapper%%;*}"
    ctest --test-dir "$build" --output-on-failure
}
tree() { (cd "$1" && find . \( -type f -o -type l \) -printf '%P %m %l\n' | sort); }

step "make install and cmake --install give the same files"
make --no-print-directory install BUILD="$build" PREFIX="$work/by-make" DESTDIR= >"$work/make.log"
cmake -B "$build" >"$work/cmake.log"
cmake --build "$build" >>"$work/cmake.log" 2>&1
DESTDIR='' cmake --install "$build" --prefix "$work/by-cmake" >>"$work/cmake.log"
diff -r "$work/by-make" "$work/by-cmake"
diff <(tree "$work/by-make") <(tree "$work/by-cmake")
tree "$work/by-make"

step "DESTDIR is honoured"
make --no-print-directory install BUILD="$build" PREFIX=/opt/weir DESTDIR="$work/stage" >>"$work/make.log"
diff -r "$work/by-make" "$work/stage/opt/weir"

step "the prefix names no path of the machine that built it"
text=("$work"/by-make/lib/cmake/weir/* "$work"/by-make/lib/pkgconfig/* "$work"/by-make/include/*)
if grep -rnF -e "$source" -e "$work" -e "$HOME/" "${text[@]}"; then fail "these lines do"; fi

step "moved"
prefix="$work/moved to/another place"
mkdir -p "$work/moved to"
mv "$work/by-make" "$prefix"
rm -rf "$work/by-cmake" "$work/stage"

step "the version is Cargo.toml's"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
[ "$(pkg-config --modversion weir)" = "$version" ] || fail "weir.pc has another version"
IFS=. read -r major minor patch <<<"$version"
for part in MAJOR:"$major" MINOR:"$minor" PATCH:"$patch"; do
    grep -qE "^#define WEIR_VERSION_${part%%:*} ${part##*:}\$" "$prefix/include/weir.h" \
        || fail "weir.h: WEIR_VERSION_${part%%:*} is not ${part##*:}"
done
[ "$(readlink "$prefix/lib/libweir.so")" = "libweir.so.$major" ] || fail "libweir.so is not a link to libweir.so.$major"
[ "$(readlink "$prefix/lib/libweir.so.$major")" = "libweir.so.$version" ] || fail "libweir.so.$major is not a link to libweir.so.$version"

step "a consumer by CMake"
cmake -S c_tests/consumer -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" | grep 'weir '
grep -q "^weir_DIR:PATH=$prefix/" "$work/by-cmake/CMakeCache.txt" || fail "another weir was found"
cmake --build "$work/by-cmake" >>"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "the build failed"; }
ctest --test-dir "$work/by-cmake" --output-on-failure
readelf -d "$work/by-cmake/c_shared" | grep -qF "[libweir.so.$major]" || fail "c_shared does not need libweir.so.$major"
if readelf -d "$work/by-cmake/c_static" | grep -F libweir; then fail "c_static needs the shared library"; fi

headers=$source/build/cccl/current/nvidia/cu13/include
[ -e "$headers/cccl/cuda/memory_resource" ] || fail "$headers lacks NVIDIA's C++ headers; run scripts/setup.sh"
valgrind=$(command -v valgrind) || fail "valgrind is missing; run scripts/setup.sh"
strict="$valgrind;-q;--leak-check=full;--show-leak-kinds=all;--errors-for-leak-kinds=all;--error-exitcode=9"
example clients "$strict" -DCLIENTS_CCCL="$headers/cccl" -DCLIENTS_CUDA="$headers"
example copy_pipeline "$strict"
example kokkos "$strict"
# not under valgrind: it starts itself by /proc/self/exe, which is valgrind then (c_tests/share does without)
example share_two_processes ""

step "nothing here needs CUDA"
for file in "$prefix/lib/libweir.so" "$work/by-cmake/c_shared" "$work/by-cmake/c_static"; do
    if readelf -d "$file" | grep -F libcuda; then fail "$file needs the driver's library"; fi
done
if nm "$prefix/lib/libweir.a" 2>/dev/null | grep -E ' U cu[A-Z]'; then fail "libweir.a names functions of the driver"; fi

step "versions that do not match are refused"
for wanted in $((major + 1)).0 "$major.$((minor + 1))"; do
    printf 'cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES C)\nfind_package(weir %s CONFIG REQUIRED)\n' "$wanted" >"$work/CMakeLists.txt"
    if cmake -S "$work" -B "$work/refused" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1; then
        fail "find_package(weir $wanted) accepted $version"
    fi
done

step "components that do not exist are refused"
printf 'cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES C)\nfind_package(weir CONFIG REQUIRED ${KIND} nothing)\n' >"$work/CMakeLists.txt"
if cmake -S "$work" -B "$work/required" -DKIND=COMPONENTS -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1; then
    fail "find_package(weir COMPONENTS nothing) was satisfied"
fi
cmake -S "$work" -B "$work/optional" -DKIND=OPTIONAL_COMPONENTS -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
printf 'cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES C)\nfind_package(weir CONFIG QUIET COMPONENTS nothing)\nif(TARGET weir::weir)\n  message(FATAL_ERROR "made")\nendif()\n' >"$work/CMakeLists.txt"
cmake -S "$work" -B "$work/refusing" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null || fail "a package that was refused has targets"

step "a consumer by pkg-config"
cp c_tests/consumer/consumer.c "$work/consumer.c"
cp c_tests/consumer/consumer.c "$work/consumer.cpp"
# pkg-config escapes the blanks in the prefix for a shell to read, so a shell reads them.
for language in c cpp; do
    compiler="cc -std=c11"
    [ $language = cpp ] && compiler="c++ -std=c++17"
    eval "$compiler -Wall -Wextra -Werror $(pkg-config --cflags weir) \"\$work/consumer.$language\" $(pkg-config --libs weir) -o \"\$work/$language-shared\""
    eval "$compiler -Wall -Wextra -Werror $(pkg-config --cflags weir) \"\$work/consumer.$language\" $(pkg-config --static --libs weir | sed 's/-lweir/-l:libweir.a/') -o \"\$work/$language-static\""
    LD_LIBRARY_PATH=$prefix/lib "$work/$language-shared"
    env -u LD_LIBRARY_PATH "$work/$language-static"
done

step "weir as a subdirectory, built elsewhere"
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
cmake -S c_tests/consumer -B "$elsewhere" -DWEIR_SOURCE="$source" -DWEIR_CARGO_PROFILE=dev \
    "-DWEIR_CARGO_FLAGS=--config profile.dev.opt-level=0" >"$work/subdirectory.log"
cmake --build "$elsewhere" >>"$work/subdirectory.log" 2>&1 || { cat "$work/subdirectory.log"; fail "the build failed"; }
ctest --test-dir "$elsewhere" --output-on-failure
cmake --install "$elsewhere" --prefix "$work/nothing" >/dev/null
if [ -e "$work/nothing" ]; then fail "weir was installed with a project that only uses it"; fi
# .cargo/config.toml holds there as well, unless the environment has other flags: functions begin where it says
if [ -z "${RUSTFLAGS-}${CARGO_ENCODED_RUSTFLAGS-}" ]; then
    found=$(find "$elsewhere" -name "libweir.so.$version")
    nm -D --defined-only "$found" | awk '$2 == "T" && $1 !~ /[048c]0$/ {odd = 1; print} END {exit NR == 0 || odd}' \
        || fail "these functions of $found are not aligned"
fi

step "the static library defines nothing that could meet a C program's own names"
# Rust's own names are mangled (_R, _ZN) or begin like the compiler's, with two underscores or rust_; LLVM's for constants
# without a name have dots, which no C name has. (An nm with LLVM's plugin does not list these.)
odd=$(nm -g --defined-only "$prefix/lib/libweir.a" 2>/dev/null \
    | awk 'NF == 3 && $2 ~ /[TDBR]/ {print $3}' | sort -u \
    | grep -vE '^(weir_|_R|_ZN|__|rust_|DW\.ref\.|anon\.[0-9a-f]{32}\.[0-9]+\.llvm\.[0-9]+$)' || true)
[ -z "$odd" ] || fail "these names are global in libweir.a: $(head -n 20 <<<"$odd")"

echo "test-package: all passed"
rm -rf "$work"
