//! The command over simulated links: all keys, reproducible, and never to be taken for a measurement.

mod benched;

use benched::figures;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROFILES: [&str; 7] = ["reference", "roce-25g", "roce-100g", "ib-400g", "efa-100g", "tcp-loopback", "soft-roce"];

fn output(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scatter-ring")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// What a successful command prints.
fn stdout(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn bench(args: &[&str]) -> Vec<Value> {
    let text = stdout(&[&["bench", "--json", "--iterations", "3"], args].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(record: &Value, key: &str) -> f64 {
    record[key].as_f64().unwrap_or_else(|| panic!("{key} in {record}"))
}

fn refused(args: &[&str], why: &str) {
    let output = output(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(why), "{error}");
}

#[test]
fn every_profile_gives_every_figure_and_says_that_it_is_simulated() {
    for profile in PROFILES {
        let link = format!("sim:{profile}");
        let record = &bench(&["W5", "--link", &link])[0];
        figures().iter().for_each(|key| assert!(number(record, key) >= 0.0, "{key} in {record}"));
        assert_eq!(record["link"], *link);
        assert_eq!((&record["simulated"], &record["verified"]), (&Value::Bool(true), &Value::Bool(false)));
        assert_eq!((number(record, "fragments"), number(record, "bytes")), (1024.0, 1024.0 * 264.0));
        // The window is a part of the whole.
        assert!(number(record, "window_us") < number(record, "p50_us"), "{record}");
        assert!(number(record, "best_us") <= number(record, "p50_us"), "{record}");
    }
}

#[test]
fn a_seed_gives_the_same_figures_again_and_another_seed_others() {
    let seeded = |seed| bench(&["W5", "--link", "sim:roce-100g", "--seed", seed]);
    assert_eq!(seeded("7"), seeded("7"));
    // Also one that differs in its upper half only: 7 + 2^32.
    assert_ne!(seeded("7")[0]["p50_us"], seeded("8")[0]["p50_us"]);
    assert_ne!(seeded("7")[0]["p50_us"], seeded("4294967303")[0]["p50_us"]);
}

#[test]
fn routes_are_forced_and_the_chosen_one_is_the_faster() {
    let routed = |route| bench(&["W1", "--link", "sim:reference", "--route", route])[0].clone();
    let [auto, direct, gather] = ["auto", "direct", "gather"].map(routed);
    assert_eq!((auto["chosen"].as_str(), direct["chosen"].as_str()), (Some("gather"), Some("direct")));
    assert_eq!(number(&auto, "p50_us"), number(&gather, "p50_us"));
    assert!(number(&auto, "p50_us") < number(&direct, "p50_us"));
    assert_eq!(number(&direct, "operations"), 98_304.0);
}

#[test]
fn one_descriptor_a_row_costs_more_and_travels_the_same() {
    let submitted = |submit| bench(&["W2", "--link", "sim:reference", "--submit", submit])[0].clone();
    let [index, rows] = ["index", "rows"].map(submitted);
    assert_eq!(index["operations"], rows["operations"]);
    assert!(number(&index, "plan_us") < number(&rows, "plan_us"));
}

#[test]
fn tables_and_pictures_for_people_say_that_they_are_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (timeline, map, table) = (file("timeline.svg"), file("map.svg"), file("table.csv"));
    let text = stdout(&["bench", "W1", "--link", "sim:reference", "--iterations", "1", "--timeline", &timeline]);
    assert!(text.starts_with("Simulated") && text.lines().any(|line| line.ends_with("simulated")), "{text}");
    let text = stdout(&["regret", "--one-in", "97", "--map", &map, "--table", &table]);
    assert!(text.contains("Simulated") && PROFILES.iter().all(|profile| text.contains(profile)), "{text}");
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap();
    for picture in [&timeline, &map] {
        assert!(read(picture).contains("(simulated)"), "{picture}");
    }
    for stage in ["requester: plan", "owner: pack", "wire, from owner"] {
        assert!(read(&timeline).contains(stage), "{stage}");
    }
    let rows = read(&table);
    let width = rows.lines().next().unwrap().split(',').count();
    assert!(rows.lines().all(|row| row.split(',').count() == width));
    // Cells 0, 97, 194 and 291.
    assert_eq!(rows.lines().count(), 1 + 4 * PROFILES.len());
}

#[test]
fn what_makes_no_sense_with_a_simulated_link_is_refused() {
    refused(&["bench", "W1", "--timeline", "x.svg"], "--timeline is for --link sim:PROFILE");
    refused(&["bench", "--link", "sim:reference", "--timeline", "x.svg"], "of one workload");
    refused(&["bench", "--link", "sim:reference", "--owner-memory", "private"], "no owner process");
    refused(&["regret", "pigeon"], "the simulator's profiles are reference,");
    refused(&["regret", "--noise", "100"], "100");
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_anything_is_simulated() {
    let bench = ["bench", "W5", "--link", "sim:reference", "--timeline"];
    for args in [&bench[..], &["regret", "--table"], &["regret", "--map"]] {
        let output = output(&[args, &["/nowhere/at/all"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("/nowhere/at/all") && error.lines().count() == 1, "{error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
