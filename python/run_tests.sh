#!/usr/bin/env bash
# Installs the package as a user does (pip, in a virtual environment of its own), and runs its tests, its type checks and the
# examples. Needs Python 3.11 or later with venv, a Rust toolchain, and the Python package index.
#
# SCATTER_RING_BIN: the daemon's command; built if it is not given. PYTHON: the interpreter. What cannot run here is said by
# the tests as NOT RUN; with SCATTER_RING_NEEDS_ALL=1 it is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
if [ -z "${SCATTER_RING_BIN:-}" ]; then
    cargo build --locked
    SCATTER_RING_BIN=$target/debug/scatter-ring
fi
export SCATTER_RING_BIN PYTHONDONTWRITEBYTECODE=1

"${PYTHON:-python3}" -m venv "$target/python-venv"
venv=$target/python-venv/bin
"$venv/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps ./python
"$venv/python" -m pip install --quiet --disable-pip-version-check './python[test]'

# Outside of the sources, so that what was installed is what is tested.
sources=$PWD
cd "$target/python-venv"
"$venv/python" -m pytest -c "$sources/python/pyproject.toml" -p no:cacheprovider "$sources/python/tests" "$@"
"$venv/python" -m mypy --config-file "$sources/python/pyproject.toml" -p scatter_ring
"$venv/python" -m mypy --config-file "$sources/python/pyproject.toml" "$sources"/examples/python/*.py \
    "$sources"/benches/producers/*.py
MYPYPATH=$sources/python/tests "$venv/python" -m mypy --config-file "$sources/python/pyproject.toml" \
    "$sources"/python/tests/*.py
"$venv/python" -m mypy.stubtest scatter_ring --allowlist "$sources/python/tests/stubtest_allowlist.txt"
