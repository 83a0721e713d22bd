#!/usr/bin/env bash
# Tests an installed weir on this machine's GPUs. Needs nvcc, CMake, compute-sanitizer and a C compiler; neither Rust
# nor a network nor root. Prints a table last and ends with a status other than 0 if anything failed or was not run;
# what needs something that this machine lacks is called absent, and fails nothing.
set -uo pipefail
usage() {
    cat <<'END'
usage: scripts/gpu-test.sh [options]
  --prefix DIR     where weir is installed (default: $PREFIX, or build/prefix)
  --traces DIR     the traces to replay (default: traces/)
  --wheels DIR     wheels of librmm and rapids_logger, for the steps of RMM
  --replay FILE    examples/replay, built before; for a machine without zlib's header (default: it is built)
  --kokkos DIR     an installed Kokkos with CUDA, for the step of that name
  --out DIR        build folder and full logs (default: build/gpu-test)
  --only A,B,...   these steps alone, and the building they need
  --skip A,B,...   all but these
  --quick          fewer blocks
  --budget SECONDS for everything together (default: 540); a step with no time left fails
  --pack FILE      packs the logs into this .tar.gz at the end
  --list           names the steps
Steps:
  build            C tests, programs with kernels, replay
  device           the C tests on device memory
  teardown         programs that end badly, on device memory
  no_wait          every call beside a kernel of two seconds
  share            blocks and events shared by two processes, also under compute-sanitizer
  stress           a million blocks, many threads and streams, patterns written and checked by kernels
  rounds           steps that are the same, known by heart, beside a stream that copies and a thread that takes memory back
  passing          streams that pass blocks on and wait for each other on the device, by heart
  oom              another allocator holds nearly all of the card
  illegal          an illegal address, and what comes back
  capture          a graph with kernels, captured in every mode and replayed a hundred times
  replay           every trace without a limit: held / live at most 1.03
  replay_tight     every trace, once, with 1.02 times its peak
  memcheck         the C tests under compute-sanitizer memcheck with its leak check
  stress_memcheck  the stress and the captures under the same
  racecheck        the stress under racecheck
  initcheck        the stress under initcheck
  copies           direct and staged copies, small ones, and what a pinned pool holds: the goals of docs/copies.md
  hazard           a hundred thousand copies whose source goes at once; some of them under memcheck
  examples         copy_pipeline and share_two_processes, as a user builds them; also under memcheck
  nvtx             planted mistakes that the NVTX mode must make visible
  ring             two to four GPUs write to each other's blocks while all pools grow, move pages and are trimmed
  nccl             all-reduce of registered and of ordinary blocks, on two or more GPUs; WEIR_NCCL_LIBRARY names NCCL
  thrust           Thrust's vectors and policies, and cuda::mr with the toolkit's CCCL
  growing_sorts    sorts of a growing vector up to nine tenths of the card, with Thrust's own caching allocator and with weir
  rmm              RMM's containers, adaptors and current resource with weir; needs --wheels
  cccl_memcheck    the programs of thrust and rmm under memcheck with its leak check
  examples_memcheck  the examples of Thrust and RMM under the same
  clients          PyTorch and CuPy with weir (scripts/gpu-clients.py); needs both, skip it where they are not
  kokkos           the Kokkos tests and example, also under memcheck, with the Kokkos of --kokkos; absent without one
END
}

# A path that is given is seen from where the script was called, a default from the project.
given() { [[ $1 = /* ]] && echo "$1" || echo "$called/$1"; }
called=$PWD
cd "$(dirname "$0")/.." || exit 2
steps=(build device teardown no_wait share stress rounds passing oom illegal capture replay replay_tight memcheck stress_memcheck racecheck initcheck copies hazard examples nvtx ring nccl thrust growing_sorts rmm cccl_memcheck examples_memcheck clients kokkos)
prefix=${PREFIX:-build/prefix} traces=traces replay='' wheels='' kokkos='' out=build/gpu-test only='' skip='' pack='' quick=0 budget=540
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1; shift; continue ;;
    --list) printf '%s\n' "${steps[@]}"; exit 0 ;;
    --help) usage; exit 0 ;;
    --prefix | --traces | --replay | --wheels | --kokkos | --out | --only | --skip | --pack | --budget) ;;
    *) echo "gpu-test: unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "gpu-test: $1 needs a value" >&2; exit 2; }
    case $1 in
    --prefix) prefix=$(given "$2") ;;
    --traces) traces=$(given "$2") ;;
    --replay) replay=$(given "$2") ;;
    --kokkos) kokkos=$(given "$2") ;;
    --wheels) wheels=$(given "$2") ;;
    --out) out=$(given "$2") ;;
    --only) only=,$2, ;;
    --skip) skip=,$2, ;;
    --pack) pack=$(given "$2") ;;
    --budget) budget=$2 ;;
    esac
    shift 2
done
for name in ${only//,/ } ${skip//,/ }; do
    [[ " ${steps[*]} " == *" $name "* ]] || { echo "gpu-test: no step is called $name" >&2; exit 2; }
done
[[ $budget =~ ^[1-9][0-9]*$ ]] || { echo "gpu-test: --budget $budget: expected seconds, a number from 1 on" >&2; exit 2; }
[ -e "$prefix/lib/libweir.so" ] || { echo "gpu-test: --prefix $prefix: no weir is installed there; make install PREFIX=..." >&2; exit 2; }
prefix=$(realpath "$prefix")
traces=$(realpath -e "$traces") || exit 2
[ -z "$replay" ] || replay=$(realpath -e "$replay") || exit 2
[ -z "$kokkos" ] || kokkos=$(realpath -e "$kokkos") || exit 2
[ -z "$wheels" ] || wheels=$(realpath -e "$wheels") || exit 2
mkdir -p "$out"
out=$(realpath "$out")
tests=$out/c_tests gpu=$out/c_tests/gpu examples=$out/clients rmm=$out/rmm
: "${replay:=$out/replay/replay}"
jobs=$(($(nproc) < 16 ? $(nproc) : 16))
export LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "gpu-test: nvcc is missing, which builds the programs with kernels; put CUDA's bin folder into PATH" >&2; exit 2; }

names=() results=() seconds=() notes=() failed=0

# What a step's log tells in one line.
note_of() {
    local log=$1
    if grep -q 'tests failed out of' "$log"; then
        grep 'tests passed' "$log" | tail -n 1
        sed -n '/The following tests FAILED/,$p' "$log" | grep -oE '[0-9]+ - [^ ]+ \([A-Za-z]+' | sed 's/.* - //; s/ (/:/' | head -n 4 | tr '\n' ' '
    elif grep -q '^note: ' "$log"; then
        grep '^note: ' "$log" | tail -n 1 | cut -c7-
    elif grep -qE '\.(c|cpp|cu|cuh|h):[0-9]+: ' "$log"; then # the check that failed
        grep -m 1 -oE '[^/ ]+\.(c|cpp|cu|cuh|h):[0-9]+: .*' "$log"
    else
        tail -n 1 "$log"
    fi | tr '\n' ' ' | cut -c1-110
}

finish() {
    names+=("$1") results+=("$2") seconds+=("$3") notes+=("$4")
    [ "$2" = ok ] || [ "$2" = absent ] || failed=1
    printf -- '-- %s: %s after %s s: %s\n' "$1" "$2" "$3" "$4"
}

# step NAME SECONDS COMMAND...: runs it within its time and what is left of the budget.
step() {
    local name=$1 limit=$2 left=$((budget - SECONDS)) start=$SECONDS status result=ok log=$out/$1.log
    shift 2
    if [ "$name" != build ]; then
        [ -z "$only" ] || [[ $only == *",$name,"* ]] || return 0
    fi
    [[ $skip != *",$name,"* ]] || return 0
    if [ "$name" != build ] && [ ! -e "$tests/CTestTestfile.cmake" ]; then
        finish "$name" 'not run' 0 'there is nothing built'
        return
    fi
    if [ "$left" -lt 5 ]; then
        finish "$name" 'not run' 0 "the budget of $budget s is used up"
        return
    fi
    export -f "$1" 2>/dev/null
    timeout --kill-after=5 $((limit < left ? limit : left)) bash -o pipefail -c '"$@"' "$name" "$@" >"$log" 2>&1 </dev/null
    status=$?
    [ $status -eq 0 ] || result=FAILED
    [ $status -ne 77 ] || result=absent
    [ $status -ne 124 ] && [ $status -ne 137 ] || result=TIMEOUT
    [ "$result" = ok ] || [ "$result" = absent ] || { echo "== the end of $log"; tail -n 40 "$log"; }
    finish "$name" "$result" $((SECONDS - start)) "$(note_of "$log")"
}

# One program that does not compile keeps nobody from running the others.
build() {
    local failed=0
    command -v nvcc && command -v compute-sanitizer || return 1
    local c_tests=(-DWEIR_TEST_GPU=ON) clients=() programs=(stress rounds passing no_wait oom illegal capture planted ring nccl thrust memory_resource)
    if [ -n "$wheels" ]; then
        rm -rf "$rmm"
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$rmm" \
            "$wheels"/librmm*.whl "$wheels"/rapids_logger*.whl || return 1
        c_tests+=(-DWEIR_TEST_RMM="$rmm") clients+=(-DCLIENTS_RMM="$rmm") programs+=(rmm)
    fi
    cmake -S c_tests -B "$tests" -G 'Unix Makefiles' -DCMAKE_PREFIX_PATH="$prefix" "${c_tests[@]}" || return 1
    cmake --build "$tests" --parallel "$jobs" -- --keep-going || failed=1
    ls "${programs[@]/#/$gpu/gpu.}" || failed=1
    cmake -S examples/clients -B "$examples" -G 'Unix Makefiles' -DCMAKE_PREFIX_PATH="$prefix" "${clients[@]}" &&
        cmake --build "$examples" --parallel "$jobs" -- --keep-going || failed=1
    if [ ! -x "$replay" ]; then
        cmake -S examples/replay -B "$out/replay" -DCMAKE_PREFIX_PATH="$prefix" &&
            cmake --build "$out/replay" --parallel "$jobs" || failed=1
    fi
    [ $failed = 0 ] || return 1
    echo "note: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1); $(nvcc --version | grep -oE 'release [0-9.]+')"
}

c_tests() { ctest --test-dir "$tests" --parallel "$jobs" --output-on-failure --no-tests=error "$@"; }

device() { c_tests -R '\.device\.' -E '^teardown|^share|^hazard\.|^copy_rates|sanitizer$'; }
share() { c_tests -R '^share\.'; }
teardown() { c_tests -R '^teardown.*\.device' -E 'sanitizer$'; }
memcheck() { c_tests -R 'device\.shared\.sanitizer$' -E '^share'; } # the static library is the same code

# The last line but one of the programs says what they did.
program() { "$gpu/gpu.$1" "${@:2}" | tee "$out/$1.said" && echo "note: $(tail -n 2 "$out/$1.said" | head -n 1)"; }
stress() { program stress $((quick ? 200000 : 1000000)); }
rounds() { program rounds $((quick ? 200 : 2000)) && echo "note: $(grep 'not declared' "$out/rounds.said")"; }
passing() { program passing && echo "note: $(grep 'not declared' "$out/passing.said")"; }
no_wait() { program no_wait && echo "note: $(grep slowest "$out/no_wait.said")"; }
oom() { program oom; }
illegal() { program illegal; }
capture() { program capture; }

sanitized() { compute-sanitizer --error-exitcode 9 "$@"; }
stress_memcheck() {
    set -e
    sanitized --tool memcheck --leak-check full "$gpu/gpu.stress" $((quick ? 5000 : 20000)) 4
    sanitized --tool memcheck --leak-check full --report-api-errors no "$gpu/gpu.capture" 10
}
# With more launches than these the tools lose track of some ("failure to track a kernel launch") and then hang.
racecheck() { sanitized --tool racecheck "$gpu/gpu.stress" 2000 4; }
initcheck() { sanitized --tool initcheck "$gpu/gpu.stress" 2000 4; }

# replayed NAME MOST OPTION...: every trace; held / live at most MOST.
replayed() {
    local said=$out/$1.said all=$out/$1.all most=$2 trace
    shift 2
    for trace in "$traces"/*.trace.gz; do
        "$replay" --memory device --no-check "$@" "$trace" >"$said" 2>&1 || echo "note: $(basename "$trace" .trace.gz) failed"
        cat "$said"
    done | tee "$all"
    # A column that is called ratio (units in the heading are words of their own), and at least one row.
    awk -v most="$most" '
        $1 == "trace" { fields = 0; for (i = 1; i <= NF; i++) if ($i !~ /^(MiB|ms)$/) { fields++; if ($i == "ratio") column = fields } next }
        column && NF == fields && $column ~ /^[0-9.]+$/ { rows++; if ($column > worst) { worst = $column; name = $1 } }
        /^note: .* failed$/ { bad++; print }
        END { printf "note: %d rows, %d traces failed, worst held / live %.3f (%s)\n", rows, bad, worst, name; exit !(rows && !bad && worst <= most) }' "$all"
}
replay() { replayed replay 1.03; }
replay_tight() {
    replayed replay_again 1.03 --capacity 1.02x --replays 2 # for the note alone
    local again=$?
    replayed replay_tight 1.03 --capacity 1.02x --replays 1 || return 1
    echo "note: $(grep '^note: [0-9]* rows' "$out/replay_tight.log" | tail -n 1 | cut -c7-); twice over: $([ $again = 0 ] && echo all || grep -h '^note: .* failed$' "$out/replay_again.all" | cut -c7- | tr '\n' ' ')"
}

# planted NVTX MISTAKE TEXT...: compute-sanitizer must fail the program and say every TEXT.
planted() {
    local nvtx=$1 mistake=$2 said=$out/planted.$2.said status=0 text
    shift 2
    WEIR_NVTX=$nvtx compute-sanitizer --tool memcheck --leak-check full --error-exitcode 9 "$gpu/gpu.planted" "$mistake" >"$said" 2>&1 || status=$?
    cat "$said"
    [ $status -ne 0 ] || { echo "note: $mistake was not reported"; return 1; }
    for text in "$@"; do
        grep -qE -- "$text" "$said" || { echo "note: $mistake: nothing said $text"; return 1; }
    done
}
nvtx() {
    set -e
    WEIR_NVTX=1 sanitized --tool memcheck --leak-check full "$gpu/gpu.planted" none
    planted 1 overflow 'Invalid __global__ write of size 4 bytes'
    planted 1 between 'Invalid __global__ write of size 4 bytes'
    planted 1 leak 'Leaked 12,?345 bytes'
    planted 1 destroyed 'Leaked 12,?345 bytes'
    planted 1 pool 'Leaked .* bytes'
    planted 0 pool 'Leaked .* bytes'
    echo "note: overflow, late write, leaked block and pool reported, and nothing else"
}

copies() {
    WEIR_TEST_MEMORY=device COPY_RATES_GOALS=1 "$tests/copy_rates" | tee "$out/copies.said"
    local status=$?
    local torch='no PyTorch'
    if python3 -c 'import torch' 2>/dev/null; then
        torch=$(python3 scripts/gpu-pinned.py) || status=1
    fi
    echo "note: $(grep '^staged' "$out/copies.said"); $torch"
    return $status
}
hazard() {
    export WEIR_TEST_MEMORY=device
    sanitized --tool memcheck --leak-check full "$tests/hazard.shared" 960 || return 1
    "$tests/hazard.shared" 100000 | tee "$out/hazard.said" &&
        echo "note: $(grep corrupted "$out/hazard.said")"
}

examples() {
    local name check=(sanitized --tool memcheck --leak-check full)
    for name in copy_pipeline share_two_processes; do
        cmake -S examples/$name -B "$out/$name" -G 'Unix Makefiles' -DCMAKE_PREFIX_PATH="$prefix" &&
            cmake --build "$out/$name" || return 1
    done
    "${check[@]}" "$out/copy_pipeline/copy_pipeline" --memory device --bytes 256M || return 1
    "${check[@]}" --target-processes all "$out/share_two_processes/share_two_processes" --memory device --frames 40 --mib 4 || return 1
    "$out/share_two_processes/share_two_processes" --memory device || return 1
    "$out/copy_pipeline/copy_pipeline" --memory device --bytes 16G | tee "$out/copy_pipeline.said" || return 1
    echo "note: $(grep '^the pipeline' "$out/copy_pipeline.said" | tr -s ' ')"
}

# The ring also under memcheck, with few rounds.
ring() {
    program ring $((quick ? 1000 : 4000)) || return
    sanitized --tool memcheck --leak-check full --report-api-errors no "$gpu/gpu.ring" 100
}
nccl() { program nccl; }

thrust() { program memory_resource && program thrust; }
growing_sorts() {
    "$examples/growing_sorts" both | tee "$out/growing_sorts.said" || return 1
    echo "note: $(grep -E '^Thrust.s' "$out/growing_sorts.said" | cut -c1-60); $(grep '^weir: [0-9]' "$out/growing_sorts.said")"
}
have_rmm() { [ -x "$gpu/gpu.rmm" ] || { echo "note: there is no RMM; name its wheels with --wheels"; return 77; }; }
rmm() {
    have_rmm || return
    "$examples/rmm_buffers" && program rmm
}
cccl_memcheck() {
    # Some requests are meant to fail, and the driver's calls with them.
    local check=(sanitized --tool memcheck --leak-check full --report-api-errors no)
    "${check[@]}" "$gpu/gpu.memory_resource" 200 || return 1
    # without its kernels that others run beside, which they might not do here
    "${check[@]}" "$gpu/gpu.thrust" 2 0 || return 1
    have_rmm || { echo "note: nothing found in cuda::mr and Thrust with weir; no RMM (--wheels)"; return; }
    "${check[@]}" "$gpu/gpu.rmm" || return 1
    echo "note: nothing found in cuda::mr, Thrust and RMM with weir"
}
# Those of examples/clients that use a GPU; the others run under valgrind where there is none (scripts/test-package.sh).
examples_memcheck() {
    local check=(sanitized --tool memcheck --leak-check full --report-api-errors no)
    "${check[@]}" "$examples/growing_sorts" weir 0.25 || return 1
    have_rmm || { echo "note: nothing found in growing_sorts; no RMM (--wheels)"; return; }
    "${check[@]}" "$examples/rmm_buffers" || return 1
    echo "note: nothing found in growing_sorts and rmm_buffers"
}

clients() {
    python3 -B scripts/gpu-clients.py --prefix "$prefix" --steps $((quick ? 30 : 100)) || return 1
    echo "note: losses of PyTorch equal its own allocator's, also in graphs; CuPy's results equal NumPy's"
}

# They are built by Kokkos' own compiler script, in a project of their own; then the example, as a user builds it.
kokkos() {
    [ -n "$kokkos" ] || { echo 'note: no Kokkos was given (--kokkos)'; return 77; }
    local flags=(-G 'Unix Makefiles' -DCMAKE_PREFIX_PATH="$prefix" -DKokkos_ROOT="$kokkos" -DCMAKE_CXX_COMPILER="$kokkos/bin/nvcc_wrapper")
    cmake -S c_tests/kokkos -B "$out/kokkos" -DWEIR_TEST_GPU=ON "${flags[@]}" &&
        cmake -S examples/kokkos -B "$out/kokkos/example" "${flags[@]}" || return 1
    grep -q '^#define KOKKOS_ENABLE_CUDA$' "$kokkos/include/KokkosCore_config.h" || { echo "note: this Kokkos has no CUDA"; return 1; }
    cmake --build "$out/kokkos" --parallel "$jobs" && cmake --build "$out/kokkos/example" || return 1
    ctest --test-dir "$out/kokkos" --output-on-failure --no-tests=error &&
        ctest --test-dir "$out/kokkos/example" --output-on-failure --no-tests=error &&
        sanitized --tool memcheck --leak-check full "$out/kokkos/example/heat" || return 1
    echo "note: Kokkos $(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$kokkos"/lib*/cmake/Kokkos/KokkosConfigVersion.cmake): $(ctest --test-dir "$out/kokkos" -N | tail -n 1 | tr -dc 0-9) tests, the memory checker's with them, and the example, alone and under it"
}

export -f c_tests program sanitized replayed planted have_rmm
export prefix traces replay wheels kokkos out tests gpu examples rmm jobs quick PATH
step build 200 build
step device 120 device
step teardown 120 teardown
step no_wait 60 no_wait
step share 120 share
step stress 150 stress
step rounds 60 rounds
step passing 60 passing
step oom 90 oom
step illegal 60 illegal
step capture 60 capture
step replay 150 replay
step replay_tight 150 replay_tight
step memcheck 150 memcheck
step stress_memcheck 90 stress_memcheck
step racecheck 60 racecheck
step initcheck 60 initcheck
step copies 120 copies
step hazard 60 hazard
step examples 60 examples
step nvtx 60 nvtx
step ring 120 ring
step nccl 60 nccl
step thrust 90 thrust
step growing_sorts 120 growing_sorts
step rmm 90 rmm
step cccl_memcheck 180 cccl_memcheck
step examples_memcheck 120 examples_memcheck
step clients 300 clients
step kokkos 300 kokkos

printf '\n%-16s %-8s %7s  %s\n' step result seconds note
for i in "${!names[@]}"; do
    printf '%-16s %-8s %7s  %s\n' "${names[i]}" "${results[i]}" "${seconds[i]}" "${notes[i]}"
done
printf '%-16s %-8s %7s  %s\n' all "$([ $failed = 0 ] && echo ok || echo FAILED)" "$SECONDS" "logs in $out"
[ -z "$pack" ] || (cd "$out" && tar -czf - ./*.log ./*.said ./*.all 2>/dev/null) >"$pack"
exit $failed
