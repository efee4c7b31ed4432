#!/usr/bin/env bash
# Installs what the tests need beyond a Rust toolchain and a C compiler, if this is Debian, then runs every check.
# What cannot be run on this machine is listed at the end, and is not counted as passed.
set -euo pipefail
cd "$(dirname "$0")/.."

# To count instructions; for producers in C and C++; to compare the binding of verbs with their headers; for the guest
# with RDMA devices.
packages=(valgrind g++ cmake pkg-config python3 python3-venv strace libibverbs-dev librdmacm-dev ibverbs-providers iproute2 make procps)
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] &&
    dpkg-query -W -f '${Status}\n' "${packages[@]}" 2>&1 | grep -qvx 'install ok installed'; then
    apt-get update -q && apt-get install -q -y --no-install-recommends "${packages[@]}"
fi

not_run=()
for check in lint test python confined loom miri instructions read verbs; do
    echo "== $check"
    start=$SECONDS
    status=0
    "ci/$check.sh" || status=$?
    case $status in
    0) echo "== $check passed in $((SECONDS - start)) s" ;;
    3) not_run+=("$check") ;;
    *)
        echo "== $check FAILED with status $status" >&2
        exit 1
        ;;
    esac
done
for check in "${not_run[@]}"; do
    echo "== NOT RUN on this machine: $check (see above)"
done
echo "== every check that can run here passed"
