#!/usr/bin/env bash
# Counts the instructions of the ways that rows take, and fails if one has become longer: see the limits below. Takes ten
# seconds after the build. One build gives the same counts each time, whatever else the machine does.
#
# The counts are of user-mode instructions on one thread, everything inlined and called included:
#   push  from filling a descriptor to publishing it;
#   take  the engine's turns, from looking at the ring to publishing the span, idle turns included. It copies 264 B a row
#         with AVX2: of a single row's instructions some 55 copy, and as many queue and prefetch it;
#   reap  taking the span;
#   plan  from index words, or a single range, to chunks with their lists, and decode from a list to checked offsets;
#   choose  from the counts of a batch's work to a decision.
# Not included are the set-up, the kernel, and whatever the processor waits for.
# Where it cannot count it says NOT RUN and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

not_run() {
    echo "instructions: NOT RUN: $1" >&2
    exit 3
}

command -v valgrind > /dev/null && command -v callgrind_annotate > /dev/null || not_run "valgrind is missing"

# Incremental builds inline less.
CARGO_INCREMENTAL=0 cargo build --locked --release --example count_rows --example count_plan --example count_cost
examples=${CARGO_TARGET_DIR:-target}/release/examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# count PROGRAM KIND: runs it under callgrind.
count() {
    program=$1
    shift
    # Callgrind's processor has no AVX-512; the library must see that and not the machine's.
    timeout 300 valgrind --tool=callgrind --callgrind-out-file="$work/$1" "$examples/$program" "$1" > "$work/$1.said" 2> "$work/$1.log" ||
        { cat "$work/$1.log" >&2; echo "$1 failed under valgrind" >&2; exit 1; }
    isa=$(sed -n 's/^isa //p' "$work/$1.said")
    case $isa in
        Avx2) ;;
        Avx512) echo "the library uses AVX-512, which this processor does not have" >&2; exit 1 ;;
        *) not_run "the limits are for AVX2, and rows are copied with $isa here" ;;
    esac
    callgrind_annotate --inclusive=yes --threshold=100 "$work/$1" > "$work/$1.counts" 2> "$work/$1.log" ||
        { cat "$work/$1.log" >&2; echo "no counts of $1" >&2; exit 1; }
}

# check KIND FUNCTION PER LIMIT: inclusive instructions of a function per row or batch, rounded down to tenths.
check() {
    local sum per tenths
    # Lines of what was inlined into the function name the same function; its own has the largest count.
    sum=$(awk -v name=":$program::$2( |\$)" '
        $0 ~ name { gsub(",", "", $1); if ($1 + 0 > most) most = $1 + 0 }
        END { printf "%d", most }' "$work/$1.counts")
    per=$(sed -n "s/^$3 //p" "$work/$1.said")
    [ "$sum" -gt 0 ] || { echo "no count of $2 in $1" >&2; exit 1; }
    tenths=$((10 * sum / per))
    printf '%-7s %-12s %4d.%d instructions in 1 of %s (at most %d)\n' \
        "$1" "$2" $((tenths / 10)) $((tenths % 10)) "$3" "$4"
    if [ "$tenths" -gt $((10 * $4)) ]; then
        echo "that is too many" >&2
        failed=1
    fi
}

# Measured plus 5 %. A change that makes one lower lowers its limit.
for kind in raw batch index; do count count_rows $kind; done
check raw raw_push rows 55
check raw engine_take rows 178
check raw client_reap batches 257
check batch batch_push rows 61
check batch engine_take rows 178
check batch client_reap batches 575
check index index_push batches 806
check index engine_take rows 65
check index client_reap batches 587
# Of planning and of decoding, a fragment.
for kind in rows pairs singles decode; do count count_plan $kind; done
check rows plan_windows rows 12
check pairs plan_windows rows 22
check singles plan_singles rows 168
check decode decode_list rows 8
# Of decisions: rows of one length, of five lengths, and one that is kept.
for kind in uniform mixed kept; do count count_cost $kind; done
check uniform choose_afresh decisions 11142
check mixed choose_afresh decisions 59088
check kept choose_kept decisions 3646
exit $failed
