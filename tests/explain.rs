//! `scatter-ring explain`, as people and scripts use it.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn output(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
    command.arg("explain").args(args).stdin(Stdio::null()).output().unwrap()
}

/// What a successful command prints.
fn stdout(args: &[&str]) -> String {
    let output = output(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    let text = stdout(&[&["--json"], args].concat());
    assert_eq!(text.lines().count(), 1);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_chosen_plan_is_the_one_that_the_figures_say() {
    for (workload, link, route) in
        [("W1", "sim:reference", "gather"), ("W4", "sim:reference", "direct"), ("W3", "sim:roce-100g", "hybrid")]
    {
        let record = json(&[workload, "--link", link]);
        assert_eq!(record["chosen"]["route"], route, "{workload} {link}");
        assert_eq!((&record["predicted"], &record["simulated"]), (&Value::Bool(true), &Value::Bool(true)));
        assert_eq!(record["calibration_us"], Value::Null);
        let candidates = record["candidates"].as_array().unwrap();
        let chosen: Vec<_> = candidates.iter().filter(|c| c["verdict"] == "chosen").collect();
        assert_eq!(chosen, [&record["chosen"]]);
        let best = |route: &str| {
            let of_route =
                candidates.iter().filter(|c| c["route"] == route && !c["verdict"].as_str().unwrap().contains("no_"));
            of_route.map(|c| c["total_us"].as_f64().unwrap()).reduce(f64::min)
        };
        for route in ["direct", "gather", "hybrid"] {
            assert_eq!(record[&*format!("{route}_us")].as_f64(), best(route), "{route}");
        }
    }
}

#[test]
fn the_work_is_what_the_workload_has() {
    let record = json(&["W3", "--link", "sim:reference"]);
    let classes = record["classes"].as_array().unwrap();
    let of = |key: &str| classes.iter().map(|class| class[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("from_bytes"), [256, 512 << 10]);
    assert_eq!(of("fragments"), [32_768, 64]);
    assert_eq!(of("bytes"), [32_768 * 264, 64 * (512 << 10)]);
    assert_eq!(of("dst_pieces"), [1, 1]);
    // The other way round, the pieces of the table are the destination.
    let record = json(&["W4", "--link", "sim:reference", "--op", "write"]);
    let class = &record["classes"][0];
    assert_eq!((class["src_pieces"].as_u64(), class["op"].as_u64()), (Some(1), None));
    assert!(class["dst_pieces"].as_u64() > Some(60));
}

#[test]
fn people_read_that_all_of_it_is_predicted() {
    let text = stdout(&["W1", "--link", "sim:reference", "--route", "direct"]);
    let first = text.lines().next().unwrap();
    assert!(first.contains("W1") && first.contains("sim:reference") && first.contains("predicted"), "{first}");
    assert!(text.contains("not measured here"));
    for part in
        ["Work", "Situation", "Candidates", "98,304", "24.8 MiB", "Chosen: gather", "Forced: direct, 98,304 operations"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let (few, all) = (stdout(&["W1", "--link", "sim:reference"]), stdout(&["W1", "--link", "sim:reference", "--all"]));
    assert!(few.contains("--all") && !all.contains("--all") && all.lines().count() > few.lines().count());
}

#[test]
fn this_machine_is_measured_first() {
    for link in ["shm", "local"] {
        let text = stdout(&["W5", "--link", link]);
        assert!(text.contains("This machine's copies were measured in"), "{text}");
        println!("{}", text.lines().nth(1).unwrap_or_default());
        let record = json(&["W5", "--link", link]);
        assert_eq!(record["simulated"], Value::Bool(false));
        assert!(record["calibration_us"].as_f64().unwrap() > 0.0);
        // One copy is less work than two, and then a third.
        assert_eq!(record["chosen"]["route"], "direct");
    }
}

#[test]
fn a_cell_of_the_matrix_has_its_name() {
    let record = json(&["1024x64-fragmented", "--link", "sim:ib-400g"]);
    assert_eq!(record["classes"][0]["fragments"], 1024);
}

#[test]
fn what_there_is_not_is_refused_with_what_there_is() {
    for (args, why) in [
        (["W9", "--link", "sim:reference"], "W1 to W5"),
        (["W1", "--link", "sim:nothing"], "reference"),
        (["W1", "--link", "verbs"], "sim:roce-25g is like it"),
    ] {
        let output = output(&args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(why), "{error}");
        assert!(output.stdout.is_empty());
    }
}
