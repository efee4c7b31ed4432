#!/usr/bin/env bash
# Formatting, clippy with warnings denied (also with loom on), documentation without warnings. About a minute.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
# A library user gets no command and none of its dependencies.
cargo clippy -p scatter-ring --lib --no-default-features -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
