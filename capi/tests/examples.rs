//! The examples in C do what they say: three with an engine in another process, and one with an engine of its own.

mod support;

use rust::engine::{Config, Engine};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Link, all, compiled, root, succeeded};

/// What each of them prints, the same in every language.
const SAID: &[(&str, &str)] = &[
    ("read_rows", "4 rows, 1056 bytes, verified\n"),
    ("write_tiles", "64 pieces, 8192 bytes, verified\n"),
    ("event_loop", "100 batches, 3200 rows, heartbeat went on\n"),
];

fn example(name: &str, to: &Path) -> Option<PathBuf> {
    // An example is also an example of code without anything that a sanitizer finds.
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    compiled(&root().join("examples/c").join(format!("{name}.c")), "c11", Link::Shared, &sanitized, to)
}

#[test]
fn every_example_in_c_verifies_what_it_has_moved() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("engine/socket");
    // To the examples this is an engine in another process.
    let engine = Engine::new(&Config::default()).unwrap().start().unwrap();
    engine.listen(&socket).unwrap();
    for (name, expected) in SAID {
        let Some(program) = example(name, place.path()) else { return };
        assert_eq!(succeeded(Command::new(program).arg(&socket)), *expected, "{name}");
    }
}

#[test]
fn an_example_without_an_engine_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    for (name, _) in SAID {
        let Some(program) = example(name, place.path()) else { return };
        let output = Command::new(program).arg(place.path().join("socket")).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(all(&output).contains("is `scatter-ring serve` running"), "{name}: {}", all(&output));
    }
}

#[test]
fn the_example_of_embedding_needs_no_engine() {
    let place = tempfile::tempdir().unwrap();
    let Some(program) = example("embed", place.path()) else { return };
    let said = succeeded(Command::new(program).arg(place.path().join("engine/socket")));
    assert!(said.starts_with("row 1000: OUT_OF_RANGE: descriptor 0 of the batch, fragment 0, src_offset:"), "{said}");
    assert!(said.ends_with("2 rows, 528 bytes, verified\n"), "{said}");
}
