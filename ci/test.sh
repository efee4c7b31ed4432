#!/usr/bin/env bash
# All tests in debug (overflow checks on), then those of the engine in release, where the copy loops are the real ones
# and the counts are higher. About fifteen minutes on two cores, most of them in release.
set -euo pipefail
cd "$(dirname "$0")/.."

# Without the headers of libibverbs and librdmacm nobody compares the binding with them: that is a failure here.
export SCATTER_RING_NEEDS_RDMA_HEADERS=1
# Without compilers for C and C++ nobody compares the C header with Rust, or runs a producer in C; without CMake,
# pkg-config and Python nobody sees whether they find the C library.
export SCATTER_RING_NEEDS_COMPILERS=1

cargo test --workspace
# Producers of all languages at one engine are ci/python.sh's in release: there Python is one of them.
cargo test --release --tests -- --skip producers_of_every_language --skip a_producer_of_any_language
# Benches must compile and run; their figures mean nothing here.
cargo bench --benches -- --test
