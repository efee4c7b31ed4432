#!/usr/bin/env bash
# Tests run.sh: what a command gets and gives, several guests at once, and every way to end. Half a minute.
# Where no guest can be prepared it exits with 3, as run.sh does.
#
# Functions called by their names, numbers, and what the guest expands:
# shellcheck disable=SC2317,SC2086,SC2016
set -euo pipefail
here=$(dirname "$(realpath "$0")")
guest=$here/run.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

expect() {
    if [ "$2" != "$3" ]; then
        echo "guest: $1: '$3' instead of '$2'" >&2
        failed=1
    fi
}

# Where a guest is missing it is prepared here.
status=0
"$guest" true || status=$?
[ $status = 0 ] || exit $status

# Each starts a guest or more, and runs beside the others.
gives_what_it_gets() {
    local directory="$work/a directory" status=0
    mkdir "$directory"
    cd "$directory"
    VALUE=$'two\nlines' "$guest" bash -c '
        printf "%s\n" "$PWD" "$VALUE" "$@"
        echo wrong >&2
        [ "$(id -u)" = 0 ] || echo "not root"
        [ "$(ulimit -l)" = unlimited ] || echo "little locked memory"
        [ "$(cat)" = "" ] || echo "input"
        touch written; [ -e written ] || echo "cannot write"
        exit 7' bash "one word's" '' '"$HOME" *' > "$work/out" 2> "$work/err" < /etc/passwd || status=$?
    expect status 7 $status
    expect stdout "$(printf '%s\n' "$directory" $'two\nlines' "one word's" '' '"$HOME" *')" "$(< "$work/out")"
    expect stderr wrong "$(< "$work/err")"
    expect "a write stays in the guest" "" "$(ls)"
}

has_devices() {
    local output
    output=$("$guest" bash -c '
        rdma link show | sed "s/ physical_state [A-Z_]*//; s/ *$//" | sort
        tail -q -c 10 /sys/class/infiniband/rxe?/ports/1/gids/1
        # The wire, which can be a bad one.
        ip route get 10.78.0.2 from 10.78.0.1 | grep -o " dev [^ ]*"
        tc qdisc add dev siw0-net root netem loss 1%
        tc qdisc show dev siw0-net | cut -d " " -f 2')
    expect devices "$(printf 'link %s/1 state ACTIVE netdev %s-net\n' rxe0 rxe0 rxe1 rxe1 siw0 siw0 siw1 siw1
        printf '%s\n' 0a4d:0001 0a4d:0002 " dev siw0-net" netem)" "$output"
}

ends_in_time() {
    local status=0 start=$SECONDS
    GUEST_TIMEOUT_S=1 "$guest" sleep 100 || status=$?
    expect "status at the limit" 124 $status
    [ $((SECONDS - start)) -lt 60 ] || expect "time limit" 1 $((SECONDS - start))
}

says_that_the_guest_died() {
    local status=0
    "$guest" bash -c 'echo c > /proc/sysrq-trigger' 2> "$work/panic" || status=$?
    expect "status after a panic" 125 $status
    expect "the console's last words" 1 "$(grep -c 'Kernel panic' "$work/panic")"
}

# Of a signal and the status that it gives.
ends_with_its_script() {
    local signal=$1 status=0 script
    export TMPDIR=$work/$signal
    mkdir "$TMPDIR"
    "$guest" bash -c 'echo started; sleep 100' > "$work/$signal.out" 2> "$work/$signal.err" &
    script=$!
    until [ -s "$work/$signal.out" ]; do sleep 0.1; done
    expect "emulators before SIG$signal" 1 "$(emulators)"
    kill -s "$signal" $script
    wait $script || status=$?
    expect "status after SIG$signal" "$2" $status
    # The kernel kills in its own time.
    sleep 1
    expect "emulators after SIG$signal" 0 "$(emulators)"
    if [ "$signal" = TERM ]; then expect "files after SIG$signal" "" "$(ls "$TMPDIR")"; fi
}

# How many run whose files are in $TMPDIR.
emulators() {
    pgrep -c -f "^[^ ]*/qemu-system-x86_64 .*$TMPDIR/" || :
}

says_what_is_missing() {
    local status=0
    cp -rs /usr/bin "$work/bin"
    rm "$work"/bin/apt*
    GUEST_CACHE=$work/none PATH=$work/bin "$guest" true > "$work/none.out" 2>&1 || status=$?
    expect "status without apt" 3 $status
    expect "what is said without apt" "guest: NOT RUN: there is no apt here" "$(< "$work/none.out")"
}

tests=(gives_what_it_gets has_devices ends_in_time says_that_the_guest_died "ends_with_its_script TERM 143"
    "ends_with_its_script KILL 137" says_what_is_missing)
running=()
for test in "${tests[@]}"; do
    # Of a word or several.
    # shellcheck disable=SC2086
    (set -e; $test; exit $failed) &
    running+=($!)
done
for index in "${!tests[@]}"; do
    if wait "${running[$index]}"; then
        echo "guest: ${tests[$index]}: ok"
    else
        echo "guest: ${tests[$index]}: FAILED" >&2
        failed=1
    fi
done
exit $failed
