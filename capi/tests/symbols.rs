//! What the shared library shows to others.

mod support;

use std::collections::BTreeSet;
use std::process::Command;
use support::{has, library, root, succeeded};

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("capi/include/scatter_ring.h")).unwrap();
    let before_parenthesis = |line: &str| Some(line.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned());
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#']));
    code.filter_map(before_parenthesis).filter(|name| name.starts_with("scatter_ring_")).collect()
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    if !has("nm") {
        return;
    }
    let listed = succeeded(Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("libscatter_ring.so")));
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect();
    assert!(exported.len() > 60, "{exported:?}");
    assert_eq!(exported, declared());
}

#[test]
fn the_shared_library_is_found_by_its_major_version_and_needs_nothing_but_the_c_library() {
    if !has("readelf") {
        return;
    }
    let listed = succeeded(Command::new("readelf").arg("-d").arg(library().join("libscatter_ring.so")));
    let named = |kind: &str| {
        let lines = listed.lines().filter(|line| line.contains(kind)).collect::<Vec<_>>();
        let name = |line: &&str| line.split_once('[').unwrap().1.trim_end_matches(']').to_owned();
        lines.iter().map(name).collect::<Vec<String>>()
    };
    assert_eq!(named("(SONAME)"), [format!("libscatter_ring.so.{}", env!("CARGO_PKG_VERSION_MAJOR"))]);
    let of_the_system = ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux"];
    for needed in named("(NEEDED)") {
        assert!(of_the_system.iter().any(|name| needed.starts_with(name)), "{needed}");
    }
}

/// Each comment says what a caller has to know.
#[test]
fn every_function_says_who_may_call_it_and_what_comes_back() {
    let header = std::fs::read_to_string(root().join("capi/include/scatter_ring.h")).unwrap();
    let mut comment = String::new();
    let mut seen = 0;
    for line in header.lines() {
        if line.starts_with("/**") {
            comment.clear();
        }
        comment += line;
        let is_declaration = line.contains("scatter_ring_")
            && line.contains('(')
            && !line.starts_with([' ', '#', '/'])
            && !line.starts_with("typedef");
        if !is_declaration {
            continue;
        }
        seen += 1;
        assert!(comment.contains("hread"), "{line}: nothing about threads");
        assert!(comment.to_lowercase().contains("fork"), "{line}: nothing about a forked child");
        if line.starts_with("int") {
            assert!(comment.contains("@return"), "{line}: nothing about what is returned");
        }
        if line.starts_with("void s") {
            assert!(
                comment.contains("gone afterwards") && comment.contains("NULL"),
                "{line}: nothing about the handle"
            );
        }
    }
    assert_eq!(seen, declared().len());
}
