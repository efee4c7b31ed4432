#!/usr/bin/env bash
# Miri over the ring on the heap: undefined behaviour and data races that the models do not see. About two minutes.
# Needs a nightly toolchain with the miri component. Where there is none it says NOT RUN and exits with 3.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri: NOT RUN: no nightly toolchain with miri here (rustup +nightly component add miri)" >&2
    exit 3
fi
MIRIFLAGS="-Zmiri-disable-isolation" cargo +nightly miri test --test ring --no-default-features
