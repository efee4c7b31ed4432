//! The library as a C programmer has it, and programs that are compiled with it.

// Each test file that shares this module uses another part of it.
#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// What every program is compiled with.
const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];

/// What a static library of Rust needs of the system.
pub const SYSTEM_LIBRARIES: &[&str] = &["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lutil", "-lrt", "-lc"];

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Shared,
    Static,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Where cargo builds: this test lies in `deps` below it.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).expect("a directory above deps").to_owned()
}

/// Cargo builds no shared library and no archive for tests.
fn build() {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root()).args(["build", "--quiet", "--locked", "-p", "scatter-ring-c"]);
    cargo.arg("--target-dir").arg(built().parent().expect("the target directory"));
    if built().ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
}

/// A directory with the library as it is installed: `libscatter_ring.so`, the name that programs look for, and the
/// archive.
pub fn library() -> &'static Path {
    static PLACE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        build();
        let place = tempfile::tempdir().unwrap();
        let major = env!("CARGO_PKG_VERSION_MAJOR");
        for (name, to) in [
            ("libscatter_ring.so".to_owned(), "libscatter_ring.so"),
            (format!("libscatter_ring.so.{major}"), "libscatter_ring.so"),
            ("libscatter_ring.a".to_owned(), "libscatter_ring.a"),
        ] {
            std::os::unix::fs::symlink(built().join(to), place.path().join(name)).unwrap();
        }
        place
    });
    place.path()
}

/// A compiler of a language, by its usual variable or its usual name. `None`: there is none, which was said.
pub fn compiler(variable: &str, name: &str) -> Option<Command> {
    let name = std::env::var(variable).unwrap_or(name.to_owned());
    has(&name).then(|| Command::new(name))
}

/// Compiles a program of C or C++ and links it. `None`: no compiler, which was said.
pub fn compiled(source: &Path, standard: &str, link: Link, more: &[&str], to: &Path) -> Option<PathBuf> {
    let is_cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let mut command = if is_cpp { compiler("CXX", "c++")? } else { compiler("CC", "cc")? };
    let program = to.join(format!("{}-{standard}-{link:?}", source.file_stem().unwrap().to_str().unwrap()));
    command.arg(format!("-std={standard}")).args(WARNINGS).args(more).arg("-D_GNU_SOURCE");
    command.arg(format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    command.arg("-I").arg(root().join("capi/include")).arg("-I").arg(root().join("ring-abi/include"));
    command.arg(source).arg("-o").arg(&program);
    match link {
        Link::Shared => {
            command.arg("-L").arg(library()).arg("-lscatter_ring");
            command.arg(format!("-Wl,-rpath,{}", library().display()));
        }
        Link::Static => {
            command.arg(library().join("libscatter_ring.a")).args(SYSTEM_LIBRARIES);
        }
    }
    succeeded(&mut command);
    Some(program)
}

/// Runs a command that must succeed, and gives what it has printed.
pub fn succeeded(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, all(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn all(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether a program can be run. If not, that is said; where `SCATTER_RING_NEEDS_COMPILERS` is 1, it is a failure.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        not_run(&format!("{program} is missing"));
    }
    found
}

pub fn not_run(why: &str) {
    let is_needed = std::env::var_os("SCATTER_RING_NEEDS_COMPILERS").is_some_and(|value| value == "1");
    assert!(!is_needed, "NOT RUN: {why}");
    // Past the test harness, which shows what a passing test prints to nobody.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {why}");
}
