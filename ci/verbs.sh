#!/usr/bin/env bash
# Runs the tests that need RDMA devices in a guest that has them (ci/guest/run.sh), and benches whose command verifies
# every byte. What they say of speed means nothing. The guest is prepared by the first run, which takes a minute; its own
# tests come first.
# Where no guest can be prepared it says NOT RUN and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

# A file of tests/, how many of its ignored tests there are at least, and how many seconds they may take.
suites=(
    "verbs_device 1 300"
    "link_verbs 42 900"
    "verbs_connect 4 300"
    "verbs_engine 1 600"
    "verbs_kills 8 600"
    "peers_verbs 4 300"
)
# Arguments of `scatter-ring bench --link verbs`, for each pair of devices.
benches=(
    "W5 --iterations 3"
    "W1 W3 --divide 16 --iterations 2"
    "W1 W3 --divide 16 --iterations 2 --op write"
)
pairs=("rxe0,rxe1" "siw0,siw1")
bench_s=120

main() {
    local status=0 work seconds
    ci/guest/test.sh || status=$?
    [ $status = 0 ] || exit $status
    [ ${#suites[@]} -gt 0 ] || { echo "verbs: there is no suite" >&2; exit 1; }

    work=$(mktemp -d)
    # Expanded now.
    # shellcheck disable=SC2064
    trap "rm -rf $(printf %q "$work")" EXIT
    build > "$work/binaries"
    seconds=$(printf '%s\n' "${suites[@]}" | awk -v sum=$((bench_s * (${#benches[@]} + 1) * ${#pairs[@]})) '{ sum += $3 } END { print sum }')
    # One guest for all: each start takes seconds.
    SCATTER_RING_FEW=1 SCATTER_RING_KILLS=1 GUEST_TIMEOUT_S=$seconds GUEST_MEMORY_MIB=4096 ci/guest/run.sh ci/verbs.sh --in-guest "$work/binaries"
}

# Builds the suites as ci/test.sh does, so that as a rule nothing is built, and prints their names and binaries. A suite
# that does not exist fails.
build() {
    local arguments=() suite
    for suite in "${suites[@]}"; do arguments+=(--test "${suite%% *}"); done
    cargo test --release --no-run "${arguments[@]}" 2>&1 |
        tee /dev/stderr | sed -n 's/^ *Executable tests\/\(.*\)\.rs (\(.*\))$/\1 \2/p'
}

# In the guest: runs everything even if something fails, and says at the end what was run.
in_guest() {
    local binaries=$1 said=() failed=0 entry
    for entry in "${suites[@]}"; do
        # Its words.
        # shellcheck disable=SC2086
        run_suite $entry
    done
    local devices
    for devices in "${pairs[@]}"; do
        for entry in "${benches[@]}"; do run_bench "$devices" "$entry"; done
        compare_routes "$devices"
    done
    printf 'verbs: %s\n' "${said[@]}"
    exit $failed
}

# run_suite NAME LEAST SECONDS
run_suite() {
    local path log passed status=0
    path=$(sed -n "s/^$1 //p" "$binaries")
    [ -x "$path" ] || { fails "$1: no binary"; return; }
    echo "-- verbs: $1"
    log=$(mktemp)
    # One after the other: they share two emulated processors.
    timeout -k 5 "$3" "$path" --ignored --test-threads=1 2>&1 | tee "$log" || status=$?
    passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log")
    if [ $status = 124 ]; then
        fails "$1: longer than $3 s"
    elif [ $status != 0 ] || [ -z "$passed" ]; then
        fails "$1: status $status"
    elif [ "$passed" -lt "$2" ]; then
        fails "$1: $passed tests, and not at least $2"
    else
        said+=("$1: $passed tests passed")
    fi
}

bench() {
    timeout -k 5 $bench_s "${CARGO_TARGET_DIR:-target}/release/scatter-ring" bench --link verbs --table-mib 64 "$@"
}

# run_bench DEVICES ARGUMENTS
run_bench() {
    local status=0
    echo "-- verbs: bench $2 on $1"
    # Words.
    # shellcheck disable=SC2086
    bench --devices "$1" $2 || status=$?
    if [ $status = 0 ]; then said+=("bench $2 on $1: every byte verified"); else fails "bench $2 on $1: status $status"; fi
}

# compare_routes DEVICES: what is chosen, over one request a row. Said, and not judged: it is a time.
compare_routes() {
    local route times=()
    for route in auto direct; do
        times+=("$(bench --devices "$1" W1 --divide 16 --iterations 5 --route $route --json |
            sed -n 's/.*"p50_us":\([0-9]*\).*/\1/p')") || { fails "W1/16 $route on $1"; return; }
    done
    said+=("W1/16 on $1, software RDMA under emulation: the chosen route takes ${times[0]} us, direct ${times[1]} us")
}

fails() {
    said+=("$1: FAILED")
    failed=1
}

if [ "${1:-}" = --in-guest ]; then in_guest "$2"; else main; fi
