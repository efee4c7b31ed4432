//! The examples do what they say, against one engine in a process of its own.

mod storm;

use std::process::Command;
use storm::{Running, cargo_build, private_directory};

/// The examples of every language, and what each of them prints.
const SAID: &[(&str, &str)] = &[
    ("read_rows", "4 rows, 1056 bytes, verified"),
    ("write_tiles", "64 pieces, 8192 bytes, verified"),
    ("event_loop", "100 batches, 3200 rows, heartbeat went on"),
];

#[test]
fn every_example_in_rust_verifies_what_it_has_moved() {
    let place = private_directory();
    let socket = place.path().join("socket");
    let _engine = Running::engine(&socket, &[]);
    let examples = cargo_build(&["--examples"]).join("examples");
    for (name, expected) in SAID {
        let output = Command::new(examples.join(name)).arg(&socket).output().unwrap();
        let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {complaint}");
        assert_eq!(said.trim_end(), *expected, "{name}");
    }
}

#[test]
fn an_example_without_an_engine_says_so() {
    let place = private_directory();
    let socket = place.path().join("socket");
    let examples = cargo_build(&["--examples"]).join("examples");
    for (name, _) in SAID {
        let output = Command::new(examples.join(name)).arg(&socket).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && complaint.contains("NoSocket"), "{name}: {complaint}");
    }
}
