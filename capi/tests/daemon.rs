//! Programs in C beside an engine in another process: many descriptors, and a program that is killed.

mod support;

use ring_abi::Status;
use rust::client::{Client, Setup};
use rust::engine::{Config, Counters, Engine, RunningEngine};
use rust::region::Rights;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Link, compiled, root, succeeded};

/// To programs in C this is an engine in another process.
fn engine_at(socket: &Path) -> RunningEngine {
    let engine = Engine::new(&Config::default()).unwrap().start().unwrap();
    engine.listen(socket).unwrap();
    engine
}

fn many(to: &Path) -> Option<PathBuf> {
    compiled(&root().join("capi/tests/c/many.c"), "c11", Link::Shared, &["-O1"], to)
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "not so after 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_one_of_many_descriptors_is_accounted_for() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("engine/socket");
    let Some(program) = many(place.path()) else { return };
    let engine = engine_at(&socket);
    let count = if cfg!(debug_assertions) { 200_000 } else { 2_000_000 };
    let said = succeeded(Command::new(program).arg(&socket).arg(count.to_string()));
    assert_eq!(said, format!("{count} descriptors\n"));
    let counters = engine.stop_within(Duration::from_secs(1));
    assert_eq!((counters.descriptors, counters.bytes), (count, 64 * count));
    assert_eq!(counters.batches, [(Status::OK, count / 32)]);
}

#[test]
fn a_program_that_is_killed_leaves_the_engine_and_others_as_they_were() {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("engine/socket");
    let Some(program) = many(place.path()) else { return };
    let engine = engine_at(&socket);
    let mut other = Client::over(engine.connect().unwrap(), &Setup::default()).unwrap();
    for killed in 1..=5 {
        let mut child = Command::new(&program).arg(&socket).arg("0").stdout(Stdio::null()).spawn().unwrap();
        let before = engine.counters().descriptors;
        eventually("it moves bytes", || engine.counters().descriptors > before + 1000 * killed);
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = |counters: Counters| counters.sessions_ended.iter().map(|(_, count)| count).sum::<u64>();
        eventually("its session has ended", || ended(engine.counters()) == killed);
        // What it has exported is gone, its name is free, and the other client goes on.
        let opened = || other.open("many", Rights::READ).map_err(|error| error.status());
        eventually("its export is gone", || opened().is_err_and(|status| status == Status::NAME_UNKNOWN));
        let (from, to) = (other.allocate(4096).unwrap(), other.allocate(4096).unwrap());
        other.export(&from, "many", Rights::READ).unwrap();
        assert_eq!(other.read(&from, 0, &to, 0, 4096).unwrap().bytes, 4096);
        other.close(&from).unwrap();
    }
}
