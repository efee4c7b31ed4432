#!/usr/bin/env bash
# ci/guest/run.sh COMMAND [ARGUMENT...]: runs a command as root in a small virtual machine with RDMA devices in software.
#
# The guest sees this machine's file system; what it writes there is lost. The command starts in the current directory
# with the current environment and no input; its output and its exit status become this script's. The devices:
#
#   rxe0 10.77.0.1, rxe1 10.77.0.2   soft-RoCE v2 on rxe0-net and rxe1-net, a veth pair; GID index 1 is the IPv4 address
#   siw0 10.78.0.1, siw1 10.78.0.2   soft-iWARP on siw0-net and siw1-net, another pair; connected by rdma_cm only
#
# Exit status, where it is not the command's:
#   3    no guest can be prepared on this machine, and why
#   124  the command took longer than GUEST_TIMEOUT_S
#   125  the guest could not be prepared although it should, did not start, or ended before the command
#
# Settings, from the environment:
#   GUEST_TIMEOUT_S   how long the command may take (120)
#   GUEST_MEMORY_MIB  (2048), for what is written to files as well
#   GUEST_CPUS        (2)
#   GUEST_HUGE_PAGES  reserved pages of 2 MiB (64)
#   GUEST_CACHE       where the prepared guest is kept, 150 MB ($XDG_CACHE_HOME/scatter-ring-guest)
#   GUEST_VERBOSE     1: the guest's kernel log follows the output, on stderr
set -euo pipefail
here=$(dirname "$(realpath "$0")")
timeout_s=${GUEST_TIMEOUT_S:-120}
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/scatter-ring-guest}
# On top of the command's time. Some 6 s when nothing else runs here, most of them without KVM.
start_and_end_s=120

fail() {
    echo "guest: $1" >&2
    exit 125
}

[ $# -gt 0 ] || fail "usage: ci/guest/run.sh COMMAND [ARGUMENT...]"

# Prints the directory of a guest that these scripts made from the newest kernel package known here, or fails.
prepared() {
    local sum kernel directory
    sum=$(cat "$here/prepare.sh" "$here/init" | cksum)
    sum=${sum%% *}
    kernel=$("$here/prepare.sh" --kernel)
    if [ -n "$kernel" ]; then
        directory=$cache/$sum-$kernel
    else
        # Apt has no lists, as in many containers.
        directory=$(find "$cache" -maxdepth 1 -name "$sum-*" | sort -V | tail -n 1)
    fi
    # What has been in place is complete: it was moved there.
    if [ "${1:-}" = anew ] || [ -d "$directory" ]; then echo "$directory"; else return 1; fi
}

mkdir -p "$cache"
if ! guest=$(prepared); then
    exec {lock}> "$cache/lock"
    flock $lock
    if ! guest=$(prepared); then
        # Another checkout's may be among the rest, and running.
        find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +30 -exec rm -rf {} +
        rm -rf "$cache/new"
        "$here/prepare.sh" "$cache/new" >&2
        guest=$(prepared anew)
        mv "$cache/new" "$guest"
    fi
    exec {lock}>&-
fi
touch "$guest"

# What the two sides tell each other: a directory that the guest may write to.
io=$(mktemp -d)
# The guest and the two that read its output.
children=()
# Expanded when it ends.
# shellcheck disable=SC2154
trap 'kill "${children[@]}" 2> /dev/null || :; wait; rm -rf "$io"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cp "$here/stage2.sh" "$io/"
printf '%s\0' "$@" > "$io/words"
env -0 > "$io/environment"
printf '%s\0' "$PWD" "$timeout_s" "${GUEST_HUGE_PAGES:-64}" > "$io/settings"
touch "$io/stdout" "$io/stderr" "$io/console"

# Without KVM a CPU is a thread that translates. Not all that have /dev/kvm can run any kernel: some hosts of containers
# run only kernels that know of them, and their CPUs show no virtualization.
accelerator=tcg,thread=multi,tb-size=512
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accelerator=kvm; fi
# Commas within words.
# shellcheck disable=SC2054
qemu=(
    "$guest/qemu/usr/bin/qemu-system-x86_64" -L "$guest/qemu/usr/share/qemu" -L "$guest/qemu/usr/share/seabios"
    -nodefaults -no-user-config -no-reboot -display none -M q35
    -accel "$accelerator" -cpu max -smp "${GUEST_CPUS:-2}" -m "${GUEST_MEMORY_MIB:-2048}"
    -kernel "$guest/kernel" -initrd "$guest/initrd" -serial "file:${io//,/,,}/console"
    -append "console=ttyS0 quiet panic=-1 oops=panic mitigations=off"
    # Directories below / can be file systems of their own, whose inode numbers collide.
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap
    -device virtio-9p-pci,fsdev=root,mount_tag=root
    -fsdev "local,id=io,path=${io//,/,,},security_model=none"
    -device virtio-9p-pci,fsdev=io,mount_tag=io
)
libraries=$guest/qemu/usr/lib/x86_64-linux-gnu:$guest/qemu/lib/x86_64-linux-gnu
# Ended with this script, however that is killed.
with_parent=(setpriv --pdeathsig KILL)
LD_LIBRARY_PATH=$libraries "${with_parent[@]}" timeout -k 5 $((timeout_s + start_and_end_s)) \
    "${with_parent[@]}" "${qemu[@]}" < /dev/null > "$io/qemu" 2>&1 &
children=($!)
tail -s 0.1 -c +1 -f --pid="${children[0]}" "$io/stdout" &
children+=($!)
tail -s 0.1 -c +1 -f --pid="${children[0]}" "$io/stderr" >&2 &
children+=($!)
# The readers end when the guest has ended and they have read everything.
wait
children=()

[ "${GUEST_VERBOSE:-0}" = 0 ] || cat "$io/kernel-log" >&2 || :
if [ ! -s "$io/status" ]; then
    cat "$io/qemu" "$io/console" >&2
    fail "the guest ended before the command"
fi
exit "$(< "$io/status")"
