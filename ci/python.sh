#!/usr/bin/env bash
# The Python package, installed as a user installs it: its tests, its types, its examples. Then producers in Rust, C, C++ and
# Python at one engine, at once: 10 million descriptors. Four minutes, most of them building.
#
# Needs Python 3.11 or later with venv, and the Python package index. Where it cannot run it says NOT RUN and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

not_run() {
    echo "python: NOT RUN: $1" >&2
    exit 3
}

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || not_run "no Python 3.11 or later ($python)"
"$python" -c 'import ensurepip, venv' 2> /dev/null || not_run "$python has no venv (python3-venv)"

target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --locked --release --bin scatter-ring
SCATTER_RING_BIN=$target/release/scatter-ring SCATTER_RING_NEEDS_ALL=1 python/run_tests.sh

export SCATTER_RING_PYTHON=$target/python-venv/bin/python SCATTER_RING_NEEDS_COMPILERS=1
cargo test --locked --release --test languages -- --nocapture
