#!/usr/bin/env bash
# Measures an installed weir beside other allocators, each in processes of their own, and prints a table last. Neither
# Rust nor a network nor root is needed. A step that takes too long is stopped and keeps what it has measured.
set -uo pipefail
usage() {
    cat <<'END'
usage: scripts/bench.sh [options]
  --memory host|device  host: beside malloc, mimalloc, jemalloc. device: a GPU, beside cudaMallocAsync, PyTorch, RMM,
                        Thrust and CuPy, as far as they are there (default: host)
  --prefix DIR          where weir is installed (default: $PREFIX, or build/prefix)
  --traces DIR          the traces to replay (default: traces/)
  --out DIR             build folder, logs and results, *.jsonl (default: build/bench)
  --wheels DIR          wheels of librmm and rapids_logger, for RMM (device)
  --allocators A,B,...  these alone (--list names them)
  --only A,B,...        these scenarios alone (bench --help names them)
  --quick               three rounds of a tenth of the work, and the shortest trace alone
  --rounds N            rounds of each scenario (default: 7)
  --seconds S           no further round of a scenario after so long (default: 2)
  --passes N            so often calls, traces and threads are measured, all allocators in turn, each in a new process: where
                        some cores are slower than others, or at times, each allocator is seen on several (default: 1)
  --budget SECONDS      for everything together (default: 450); what has no time left is not run
  --pack FILE           packs results and logs into this .tar.gz at the end
  --list                names the allocators
END
}

# A path that is given is seen from where the script was called, a default from the project.
given() { [[ $1 = /* ]] && echo "$1" || echo "$called/$1"; }
called=$PWD
cd "$(dirname "$0")/.." || exit 2
memory=host prefix=${PREFIX:-build/prefix} traces=traces out=build/bench wheels='' allocators='' only='' pack=''
list=0 budget=450 quick=() rounds=() seconds=2 passes=1
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=(--quick); shift; continue ;;
    --list) list=1; shift; continue ;;
    --help) usage; exit 0 ;;
    --memory | --prefix | --traces | --out | --wheels | --allocators | --only | --rounds | --seconds | --passes | --budget | --pack) ;;
    *) echo "bench: unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "bench: $1 needs a value" >&2; exit 2; }
    case $1 in
    --memory) memory=$2 ;;
    --prefix) prefix=$(given "$2") ;;
    --traces) traces=$(given "$2") ;;
    --out) out=$(given "$2") ;;
    --wheels) wheels=$(given "$2") ;;
    --allocators) allocators=,$2, ;;
    --only) only=,$2, ;;
    --rounds) rounds=(--rounds "$2") ;;
    --seconds) seconds=$2 ;;
    --passes) passes=$2 ;;
    --budget) budget=$2 ;;
    --pack) pack=$(given "$2") ;;
    esac
    shift 2
done

number() { [[ $2 =~ ^[1-9][0-9]*$ ]] || { echo "bench: $1 $2: expected a number from 1 on" >&2; exit 2; }; }
number --passes "$passes"
number --budget "$budget"
case $memory in
host) all=(weir-host null malloc mimalloc jemalloc) ;;
device) all=(weir weir-declared weir-untold null cudaMallocAsync torch torch-expandable rmm-pool rmm-arena thrust-pool cupy-pool) ;;
*) echo "bench: --memory $memory: expected host or device" >&2; exit 2 ;;
esac
# Scenarios that share a process, and the seconds that it may take. What matters most comes first.
groups=(calls trace turns threads crowd pressure fit rounds busy)
declare -A scenarios=([calls]="same-size,reuse,varying,transformer,batch" [trace]=trace [turns]=turns [threads]="threads,large-threads,pairs"
    [pressure]=pressure [fit]=fit [rounds]=rounds [busy]=busy [crowd]=crowd)
declare -A limits=([calls]=40 [trace]=45 [turns]=20 [threads]=30 [pressure]=20 [fit]=40 [rounds]=25 [busy]=35 [crowd]=20)
[ $list = 0 ] || { printf '%s\n' "${all[@]}"; exit 0; }
for name in ${allocators//,/ }; do
    [[ " ${all[*]} " == *" $name "* ]] || { echo "bench: no allocator is called $name" >&2; exit 2; }
done
known=,$(IFS=,; echo "${scenarios[*]}"),
for name in ${only//,/ }; do
    [[ $known == *",$name,"* ]] || { echo "bench: no scenario is called $name" >&2; exit 2; }
done
[ -e "$prefix/lib/libweir.so" ] || { echo "bench: --prefix $prefix: no weir is installed there; make install PREFIX=..." >&2; exit 2; }
prefix=$(realpath "$prefix")
traces=$(realpath -e "$traces") || exit 2
[ -z "$wheels" ] || wheels=$(realpath -e "$wheels") || exit 2
files=("$traces"/*.trace.gz)
[ -e "${files[0]}" ] || { echo "bench: no *.trace.gz in $traces" >&2; exit 2; }
[ ${#quick[@]} = 0 ] || files=("$(stat -c '%s %n' "${files[@]}" | sort -n | sed -n '1s/^[0-9]* //p')")
mkdir -p "$out"
out=$(realpath "$out")
built=$out/build site=$out/site
rm -f "$out"/*.jsonl "$out"/*.log
export built LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PATH=$PATH:/usr/local/cuda/bin
jobs=$(($(nproc) < 16 ? $(nproc) : 16))

# An adaptor that does not compile keeps nobody from running the others.
build() {
    local options=(-DCMAKE_PREFIX_PATH="$prefix" -DBENCH_CUDA=OFF -DBENCH_RMM=) torch
    if [ "$memory" = device ]; then
        # the folder alone: importing torch takes long
        torch=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")')
        options+=(-DBENCH_CUDA=ON -DBENCH_TORCH="$torch")
        if [ -n "$wheels" ]; then
            rm -rf "$site"
            python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" \
                "$wheels"/librmm*.whl "$wheels"/rapids_logger*.whl && options+=(-DBENCH_RMM="$site")
        fi
    fi
    cmake -S bench -B "$built" -G 'Unix Makefiles' "${options[@]}" || return 1
    cmake --build "$built" --parallel "$jobs" -- --keep-going
    [ -x "$built/bench" ]
}

# run_bench ALLOCATOR ARGUMENT...: the bench with its adaptor
# shellcheck disable=SC2317 # it is called by name, under timeout
run_bench() {
    local name=$1 adaptor=$1 variables=()
    shift
    case $name in
    weir-declared)
        adaptor=weir variables=(WEIR_DECLARED_STREAMS=1)
        set -- --label weir-declared "$@"
        ;;
    weir-untold)
        adaptor=weir variables=(BENCH_WAITS=untold)
        set -- --label weir-untold "$@"
        ;;
    cudaMallocAsync) adaptor=cuda_async ;;
    torch) variables=(PYTORCH_CUDA_ALLOC_CONF=) ;;
    torch-expandable) adaptor=torch variables=(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) ;;
    rmm-*) adaptor=${name/-/_} ;;
    thrust-pool) adaptor=thrust ;;
    # its thread-local data is more than the C library keeps room for in libraries that are opened late
    jemalloc) variables=(GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384) ;;
    cupy-pool) exec python3 bench/cupy_pool.py "$@" ;;
    esac
    [ -e "$built/$adaptor.so" ] || { echo "bench: $name: skipped: $adaptor.so was not built"; exit 77; }
    exec env "${variables[@]}" "$built/bench" "$built/$adaptor.so" "$@"
}

# asks ALLOCATOR GROUP: leaves in $asked the scenarios of the group to run.
asks() {
    local name=$1 group=$2 scenario
    asked=''
    [ -z "$allocators" ] || [[ $allocators == *",$name,"* ]] || return 1
    case $name:$group in
    null:trace | null:turns | null:pressure | null:fit | null:rounds | null:busy | null:crowd | *malloc:pressure | *malloc:fit) return 1 ;;
    cupy-pool:turns | cupy-pool:threads | cupy-pool:rounds | cupy-pool:busy | cupy-pool:crowd) return 1 ;;
    # the host's streams have no work
    weir-host:busy | *malloc:busy) return 1 ;;
    # where nobody waits it is weir
    weir-untold:rounds | weir-untold:busy) ;;
    weir-untold:*) return 1 ;;
    esac
    for scenario in ${scenarios[$group]//,/ }; do
        if [ -z "$only" ] || [[ $only == *",$scenario,"* ]]; then
            asked+=${asked:+,}$scenario
        fi
    done
    [ -n "$asked" ]
}

notes=() failed=0
note() {
    notes+=("$*")
    printf -- '-- %s\n' "$*"
}

measure() {
    local name=$1 group=$2 left=$((budget - SECONDS)) start=$SECONDS status results=$out/$1.$2.$3.jsonl log=$out/$1.$2.$3.log
    asks "$name" "$group" || return 0
    if [ $left -lt 3 ]; then
        note "$name, $group: not run, the budget of $budget s is used up"
        failed=1
        return
    fi
    timeout --kill-after=5 $((limits[$group] < left ? limits[$group] : left)) bash -c 'run_bench "$@"' run_bench "$name" \
        --only "$asked" --seconds "$seconds" "${quick[@]}" "${rounds[@]}" --json "$results" \
        "${files[@]}" >"$log" 2>&1 </dev/null
    status=$?
    case $status in
    0) printf -- '-- %s, %s: %s s\n' "$name" "$group" $((SECONDS - start)) ;;
    77) note "$name: $(grep -m 1 -o 'skipped.*' "$log")" ;;
    124 | 137) note "$name, $group: stopped after $((SECONDS - start)) s" ;;
    *)
        note "$name, $group: failed with status $status: $(tail -n 1 "$log")"
        failed=1
        ;;
    esac
}

build >"$out/build.log" 2>&1 </dev/null || {
    tail -n 40 "$out/build.log"
    echo "bench: there is nothing built, see $out/build.log"
    exit 1
}
grep -E '(error|Error)' "$out/build.log" | head -n 20
export -f run_bench
for ((pass = 1; pass <= passes; pass++)); do
    for group in "${groups[@]}"; do
        # the others take long, or measure what does not differ from time to time
        [[ $pass = 1 || $group =~ ^(calls|trace|threads)$ ]] || continue
        for name in "${all[@]}"; do
            measure "$name" "$group" "$pass"
        done
    done
done

echo
python3 scripts/plot-bench.py --table "$out" | tee "$out/table.txt" || failed=1
[ ${#notes[@]} = 0 ] || printf '%s\n' "${notes[@]}" | sort -u
echo "all of it in $SECONDS s; results and logs in $out"
[ -z "$pack" ] || (cd "$out" && tar -czf - ./*.jsonl ./*.log ./table.txt) >"$pack"
exit $failed
