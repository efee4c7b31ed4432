//! The machine's compilers, where it has some.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a user's build may be as strict as.
pub const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"];

/// `cc` or `c++` with this standard and the header's folder; `None`, and said so, where there is none.
pub fn compiler(command: &str, standard: &str) -> Option<Command> {
    if !Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success()) {
        let text = format!("NOT RUN: no {command} here to compile the header as {standard}");
        let is_needed = std::env::var_os("SCATTER_RING_NEEDS_COMPILERS").is_some_and(|value| value == "1");
        assert!(!is_needed, "{text}");
        // Past the test harness, which shows what a passing test prints to nobody.
        let _ = writeln!(std::io::stderr(), "{text}");
        return None;
    }
    let mut compiler = Command::new(command);
    compiler.arg(format!("-std={standard}")).args(STRICT).arg("-I").arg(include());
    Some(compiler)
}

pub fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
