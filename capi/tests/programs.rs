//! Programs in C that use all of the library: against the shared one, against the archive, and with sanitizers, which
//! also see what the library allocates and nobody frees.

mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{Link, compiled, has, root, succeeded};

const PROGRAMS: &[&str] = &["embed", "memory", "shapes", "events", "misuse", "peers"];

fn source(name: &str) -> PathBuf {
    root().join("capi/tests/c").join(name)
}

/// Compiles and runs programs.
fn run_all(names: &[&str], link: Link, more: &[&str]) {
    for name in names {
        let place = tempfile::tempdir().unwrap();
        let Some(program) = compiled(&source(&format!("{name}.c")), "c11", link, more, place.path()) else { return };
        let said = succeeded(Command::new(program).arg(place.path()));
        assert!(said.ends_with("ok\n"), "{name}: {said}");
    }
}

#[test]
fn programs_that_are_linked_with_the_shared_library_do_what_they_say() {
    run_all(PROGRAMS, Link::Shared, &[]);
}

#[test]
fn programs_that_are_linked_with_the_archive_do_what_they_say() {
    // Linking takes a second each: the archive of a debug build is large.
    run_all(&["embed", "peers"], Link::Static, &[]);
}

#[test]
fn no_program_leaks_or_touches_memory_that_is_not_its_own() {
    run_all(PROGRAMS, Link::Shared, &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
}

#[test]
fn a_program_that_embeds_the_engine_runs_under_valgrind() {
    if !has("valgrind") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&source("embed.c"), "c11", Link::Shared, &[], place.path()) else { return };
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9"]).arg(program).arg(place.path());
    let said = succeeded(&mut valgrind);
    assert!(said.ends_with("ok\n"), "{said}");
}

/// Not with sanitizers, which make calls of their own.
#[test]
fn a_client_makes_no_system_call_while_the_engine_is_awake() {
    run_all(&["quiet"], Link::Shared, &[]);
}

#[test]
fn an_engine_of_the_library_serves_the_header_only_producer_in_the_same_program() {
    let place = tempfile::tempdir().unwrap();
    for standard in ["c++17", "c++20"] {
        let Some(program) = compiled(&source("header.cpp"), standard, Link::Shared, &[], place.path()) else { return };
        assert_eq!(succeeded(&mut Command::new(program)), "ok\n");
    }
}
