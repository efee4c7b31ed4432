//! The library from Python, without another package.

mod support;

use std::process::Command;
use support::{has, library, root, succeeded};

#[test]
fn a_program_in_python_embeds_an_engine_by_ctypes() {
    if !has("python3") {
        return;
    }
    let mut python = Command::new("python3");
    python.arg(root().join("capi/tests/c/rows.py")).arg(library().join("libscatter_ring.so"));
    assert_eq!(succeeded(&mut python), "4 rows, 1056 bytes, verified\n");
}
