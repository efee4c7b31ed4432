#!/usr/bin/env bash
# Installs what the tests need beyond a Rust toolchain and a C compiler (valgrind, the headers of libibverbs and
# librdmacm), then runs every check.
# What cannot be run on this machine is listed at the end, and is not counted as passed.
set -euo pipefail
cd "$(dirname "$0")/.."

has_all() {
    command -v valgrind && [ -e /usr/include/infiniband/verbs.h ] && [ -e /usr/include/rdma/rdma_cma.h ]
}
if ! has_all >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -q && apt-get install -q -y --no-install-recommends valgrind libibverbs-dev librdmacm-dev
fi

not_run=()
for check in lint test confined loom miri instructions read; do
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
