#!/usr/bin/env bash
# Runs the demo and tests as a program of a container often runs: not as root, with 8 MiB of locked memory, a /dev/shm of
# 64 MiB, and little memory. Rings and regions need neither locked memory nor /dev/shm.
#
# Needs root (to become somebody else), and a kernel that lets it mount. Where it cannot it says NOT RUN and exits with 3.
# Memory is limited by a cgroup, v2 or v1, or else, which is said, by address space: that counts mappings and not pages.
set -euo pipefail
cd "$(dirname "$0")/.."

memlock_bytes=$((8 << 20))
memory_bytes=$((512 << 20))
address_space_bytes=$((3 << 30))
nobody=65534
# Not hostile_process, which takes gigabytes to see an engine run out of them.
tests=(client client_batches engine_model engine_rows fairness hostile_memory hostile_owner hostile_regions hostile_ring
    hostile_socket limits owner)

not_run() {
    echo "confined: NOT RUN: $1" >&2
    exit 3
}

[ "$(id -u)" = 0 ] || not_run "only root can become another user"
for program in unshare setpriv prlimit; do
    command -v $program > /dev/null || not_run "$program is missing (util-linux)"
done
unshare --mount sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm' 2> /dev/null || not_run "mounting is not permitted"

cargo build --locked
work=$(mktemp -d)
cgroup=
tidy() {
    rm -rf "$work"
    # Its processes have ended.
    [ -z "$cgroup" ] || rmdir "$cgroup"
}
trap tidy EXIT

# That user cannot read the directory where cargo builds.
cp "${CARGO_TARGET_DIR:-target}/debug/scatter-ring" "$work/"
cargo test --locked --no-run "${tests[@]/#/--test=}" 2>&1 |
    sed -n 's/.*Executable tests\/\(.*\)\.rs (\(.*\))/\1 \2/p' |
    while read -r name path; do cp "$path" "$work/$name"; done
chmod 755 "$work" "$work"/*
mkdir -m 777 "$work/tmp"

# A new group with a limit on memory: prints its directory.
memory_cgroup() {
    local limit directory
    for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
        directory=$(dirname "$limit")/scatter-ring-confined-$$
        mkdir "$directory" 2> /dev/null || continue
        # The kernel makes the file where there is a limit.
        if [ -e "$directory/$(basename "$limit")" ] && echo $memory_bytes > "$directory/$(basename "$limit")"; then
            echo "$directory"
            return
        fi
        rmdir "$directory"
    done
}

cgroup=$(memory_cgroup)
if [ -n "$cgroup" ]; then
    limit=(env)
    echo "confined: $((memory_bytes >> 20)) MiB of memory, by $cgroup"
else
    limit=(prlimit --as=$address_space_bytes)
    echo "confined: no memory cgroup can be made here: $((address_space_bytes >> 20)) MiB of address space instead"
fi

# confined PROGRAM ARGUMENT...: runs a program of $work.
confined() {
    echo "-- confined: $*"
    # Expanded by the shell inside.
    # shellcheck disable=SC2016
    CGROUP=$cgroup WORK=$work timeout 300 unshare --mount sh -ec '
        [ -z "$CGROUP" ] || echo 0 > "$CGROUP/cgroup.procs"
        mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
        cd "$WORK/tmp"
        exec "$@"' sh "${limit[@]}" prlimit --memlock=$memlock_bytes \
        setpriv --reuid=$nobody --regid=$nobody --clear-groups --no-new-privs \
        env -u XDG_RUNTIME_DIR HOME="$work/tmp" TMPDIR="$work/tmp" "$work/$1" "${@:2}"
}

confined scatter-ring demo --table-mib 16 --iterations 2 --rows 8192
for test in "${tests[@]}"; do
    confined "$test" --test-threads=2 --quiet
done
