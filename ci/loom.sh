#!/usr/bin/env bash
# Explores the interleavings of everything lock-free (loom-tests/), and requires that weakening any one labelled
# ordering makes a model fail. About 15 seconds after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
# Its own target folder: the flag below would rebuild everything else.
RUSTFLAGS="--cfg scatter_ring_loom" CARGO_TARGET_DIR=target/loom cargo test --locked -p loom-tests --release "$@"
