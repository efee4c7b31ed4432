//! The `scatter-ring` command over connections between engines.

mod benched;
mod tables;

use benched::KEYS;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use tables::{Place, all_formats, expected, text};

fn scatter_ring(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
    command.args(args).stdin(Stdio::null());
    command
}

/// The JSON lines of a successful bench over TCP and a small table.
fn bench(args: &[&str]) -> Vec<Value> {
    let always = ["bench", "--link", "tcp", "--json", "--table-mib", "32"];
    let output = scatter_ring(&[&always, args].concat()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn bench_prints_every_key_and_has_verified_every_byte_of_every_way() {
    for op in ["read", "write"] {
        for route in ["auto", "direct", "gather"] {
            for submit in ["index", "rows"] {
                let args = ["W5", "--iterations", "2", "--op", op, "--route", route, "--submit", submit];
                let [record] = &bench(&args)[..] else { panic!("{args:?}: one record") };
                let keys: BTreeSet<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!(keys, KEYS.into_iter().chain(["table_bytes"]).collect(), "{args:?}");
                let word = |key: &str| record[key].as_str().unwrap();
                assert_eq!([word("link"), word("op"), word("route"), word("submit")], ["tcp", op, route, submit]);
                let is_chosen = if route == "auto" { word("chosen") != "none" } else { word("chosen") == route };
                assert!(is_chosen && record["verified"] == true && record["simulated"] == false, "{record}");
                assert!(record["window_us"].as_f64() > Some(0.0) && record["window_gbps"].as_f64() > Some(0.0));
                // What only the engines know, or nobody has measured, is no number.
                assert!(record["owner_queue_us"].is_null() && record["predicted_gather_us"].is_null(), "{record}");
            }
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "moves much: in release")]
fn rows_and_large_pieces_travel_together_in_both_directions() {
    // What was written is read again.
    let record = &bench(&["W3", "--iterations", "1", "--op", "write"])[0];
    assert_eq!(record["verified"], true, "{record}");
}

/// A bench with settings for its engines: its exit status, and what it says on standard error.
fn bench_with(settings: &str, args: &[&str]) -> (Option<i32>, String) {
    let place = Place::new();
    place.put("peers.toml", settings);
    let file = place.path("peers.toml");
    let always = ["bench", "W5", "--link", "tcp", "--table-mib", "16", "--peer-config", file.to_str().unwrap()];
    let output = scatter_ring(&[&always, args].concat()).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn both_engines_have_the_settings_of_a_file_and_the_congestion_control_that_is_asked_for() {
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let settings = "[peers]\nlanes = 1\nslot_bytes = \"64 KiB\"\nslots = 2\nowner_slots = 1\ncongestion = \"none\"\n";
    let args = ["--iterations", "1", "--route", "gather"];
    let (code, said) = bench_with(settings, &[&args[..], &["--congestion", congestion.trim()]].concat());
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = bench_with(settings, &args);
    assert!(code == Some(1) && said.contains("\"none\"") && said.contains("ended too early"), "{said}");
}

#[test]
fn each_requester_has_a_connection_and_its_clients_share_it() {
    let settings = "[peers]\nconnections = 1\n";
    let (code, said) = bench_with(settings, &["--seconds", "0.1", "--clients", "2"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = bench_with(settings, &["--seconds", "0.1", "--requesters", "2"]);
    assert!(code == Some(1) && said.contains("too many connections"), "{said}");
}

#[test]
fn clients_of_one_engine_and_of_several_are_told_what_each_of_them_got() {
    for (args, requesters, clients) in [
        (&["--clients", "3"][..], 1, 3),
        (&["--requesters", "2"], 2, 2),
        (&["--requesters", "2", "--clients", "2"], 2, 4),
    ] {
        let record = &bench(&[&["W5", "--seconds", "0.2"], args].concat())[0];
        let bytes = record["client_bytes"].as_array().unwrap();
        assert_eq!((record["requesters"].as_u64(), record["clients"].as_u64()), (Some(requesters), Some(clients)));
        assert_eq!((bytes.len() as u64, &record["verified"]), (clients, &Value::Bool(true)), "{record}");
    }
}

#[test]
fn a_bench_over_tcp_leaves_nothing_behind() {
    let place = Place::new();
    let mut bench = scatter_ring(&["bench", "W5", "--link", "tcp", "--table-mib", "16", "--iterations", "1"]);
    assert!(bench.env("TMPDIR", place.0.path()).stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 0);
}

/// `scatter-ring serve` at a socket of a place, killed at the end of a test.
struct Engine {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Engine {
    fn start(place: &Place, socket: &str, args: &str) -> Engine {
        std::fs::set_permissions(place.0.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut serve = scatter_ring(&["serve", "--socket"]);
        serve.arg(place.path(socket)).args(args.split_whitespace()).current_dir(place.0.path());
        let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut engine = Engine { child, stdout };
        assert!(engine.line().contains("serving at"));
        engine
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn endpoint(&mut self) -> String {
        let line = self.line();
        line.trim_end().strip_prefix("scatter-ring: peers connect to ").unwrap().to_owned()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rows_of_a_table_that_another_engine_serves_are_read_by_its_endpoint() {
    let place = all_formats();
    let key = place.path("key");
    assert!(scatter_ring(&["key", key.to_str().unwrap()]).stdout(Stdio::null()).status().unwrap().success());
    let args = "--peer-keys key --peer-listen 127.0.0.1:0 --table rows=with-header.bin";
    let mut owner = Engine::start(&place, "owner", args);
    let endpoint = owner.endpoint();
    let _requester = Engine::start(&place, "socket", "--peer-keys key");
    let read = |export: &str| {
        let layout = "--row-bytes 24 --offset 7 --rows rows.npy --out out.bin --window-bytes 100";
        format!("--attach socket --peer {endpoint} --export {export} {layout}")
    };
    place.fails(&read("others"), 1, &["NAME_UNKNOWN"]);
    let output = place.read(&format!("{} --json", read("rows"))).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((record["link"].as_str(), record["table_rows"].as_u64()), (Some("tcp"), Some(1000)));
    assert_eq!(place.bytes("out.bin"), expected());

    std::fs::remove_file(place.path("out.bin")).unwrap();
    drop(owner);
    // The first one may find the connection that nobody has seen the end of yet.
    let is_seen = |args: &str| {
        let output = place.read(args).output().unwrap();
        output.status.code() != Some(1) || !text(&output.stderr).contains("REGION_GONE")
    };
    assert!((0..100).any(|_| is_seen(&read("rows"))), "nobody sees that the owner is gone");
    place.fails(&read("rows"), 1, &["PEER_UNREACHABLE"]);
}

#[test]
fn an_engine_with_another_key_is_not_met() {
    let place = all_formats();
    for name in ["key", "other"] {
        let file = place.path(name);
        assert!(scatter_ring(&["key", file.to_str().unwrap()]).stdout(Stdio::null()).status().unwrap().success());
    }
    let mut owner = Engine::start(&place, "owner", "--peer-keys key --peer-listen 127.0.0.1:0 --table rows=table.bin");
    let endpoint = owner.endpoint();
    let _requester = Engine::start(&place, "socket", "--peer-keys other");
    let args = "--export rows --row-bytes 24 --rows rows.npy --out out.bin";
    place.fails(&format!("--attach socket --peer {endpoint} {args}"), 1, &["PEER_UNREACHABLE", "key"]);
}
