//! Other programs find the library with CMake and with pkg-config, installed and as a part of their own build.

mod support;

use rust::engine::{Config, Engine};
use std::path::Path;
use std::process::Command;
use support::{compiler, has, root, succeeded};

/// What `examples/c/embed.c` ends with.
const SAID: &str = "2 rows, 528 bytes, verified\n";

/// Where cargo has built for this test, so that CMake does not build everything anew; and the same profile.
fn as_built() -> Vec<String> {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap();
    let build_type = if built.ends_with("release") { "Release" } else { "Debug" };
    let target = built.parent().unwrap().display();
    vec![format!("-DCMAKE_BUILD_TYPE={build_type}"), format!("-DSCATTER_RING_CARGO_TARGET_DIR={target}")]
}

fn cmake(arguments: &[&str]) -> Command {
    let mut command = Command::new("cmake");
    command.args(arguments);
    command
}

/// Configures and builds `source` in `build`.
fn built(source: &Path, build: &Path, more: &[String]) {
    let source_and_build = ["-S", source.to_str().unwrap(), "-B", build.to_str().unwrap()];
    succeeded(cmake(&source_and_build).args(as_built()).args(more));
    succeeded(&mut cmake(&["--build", build.to_str().unwrap()]));
}

/// Builds the program of somebody else, and runs all of it.
fn consumed(build: &Path, how: String) {
    let example = |variable: &str, path: &str| format!("-D{variable}={}", root().join("examples").join(path).display());
    let sources = [example("EMBED", "c/embed.c"), example("PRODUCER", "cpp/read_rows.cpp"), how];
    built(&root().join("capi/tests/consumer"), build, &sources);
    for program in ["shared", "archive"] {
        let said = succeeded(&mut Command::new(build.join(program)));
        assert!(said.ends_with(SAID), "{program}: {said}");
    }
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("engine/socket");
    let engine = Engine::new(&Config::default()).unwrap().start().unwrap();
    engine.listen(&socket).unwrap();
    let said = succeeded(Command::new(build.join("producer")).arg(&socket));
    assert_eq!(said, "4 rows, 1056 bytes, verified\n");
}

#[test]
fn an_installed_library_is_found_by_cmake_and_by_pkg_config() {
    if !has("cmake") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (build, prefix) = (place.path().join("build"), place.path().join("prefix"));
    let to = format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display());
    built(&root().join("capi"), &build, &[to, "-DCMAKE_INSTALL_LIBDIR=lib".into()]);
    succeeded(&mut cmake(&["--install", build.to_str().unwrap()]));
    for header in ["scatter_ring.h", "scatter_ring_abi.h", "scatter_ring.hpp"] {
        assert!(prefix.join("include").join(header).exists(), "{header} is not installed");
    }
    consumed(&place.path().join("consumer"), format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));

    if !has("pkg-config") {
        return;
    }
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "scatter_ring"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = succeeded(&mut flags);
    let (Some(mut cc), program) = (compiler("CC", "cc"), place.path().join("by-pkg-config")) else { return };
    cc.arg("-o").arg(&program).arg(root().join("examples/c/embed.c")).args(flags.split_whitespace());
    succeeded(&mut cc);
    let said = succeeded(Command::new(program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(said.ends_with(SAID), "{said}");
}

#[test]
fn the_library_is_built_as_a_part_of_another_program() {
    if !has("cmake") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    consumed(&place.path().join("build"), format!("-DSCATTER_RING_SOURCE={}", root().join("capi").display()));
}
