//! The `scatter-ring` command as people and scripts use it.

mod benched;

use benched::KEYS;
use serde_json::Value;
use std::fs::{DirBuilder, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scatter-ring"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The JSON lines of a successful bench over a small table.
fn bench(args: &[&str]) -> Vec<Value> {
    let output = output(&[&["bench", "--json", "--table-mib", "64", "--iterations", "2"], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that a command is refused with status 2 and a text that contains this.
fn refused(args: &[&str], why: &str) {
    let output = output(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(why), "{error}");
    assert!(output.stdout.is_empty());
}

fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is killed at the end of a test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap().success());
    }

    fn ended(&mut self) -> ExitStatus {
        wait_until("the process does not end", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bench_prints_every_key_and_has_verified_every_byte_on_both_links() {
    for link in ["local", "shm"] {
        let records = bench(&["W5", "--link", link]);
        let [record] = records.as_slice() else { panic!("{records:?}") };
        let keys: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
        // A smaller table than usual is said in a key more.
        assert!(KEYS.iter().all(|key| keys.contains(key)) && keys.len() == KEYS.len() + 1, "{keys:?}");
        assert_eq!((record["workload"].as_str(), record["link"].as_str()), (Some("W5"), Some(link)));
        assert_eq!((record["fragments"].as_u64(), record["bytes"].as_u64()), (Some(1024), Some(1024 * 264)));
        assert_eq!((record["chosen"].as_str(), record["verified"].as_bool()), (Some("direct"), Some(true)));
        assert_eq!((record["operations"].as_u64(), record["signalled"].as_u64()), (Some(1), Some(1)));
        assert!(record["best_us"].as_f64().unwrap() > 0.0);
        assert!(record["p50_us"].as_f64() >= record["best_us"].as_f64(), "{record}");
        // What the engine maps is copied directly, and what was not measured or predicted is no number.
        assert!(record["predicted_direct_us"].as_f64().unwrap() > 0.0);
        assert!(record["plan_us"].is_null() && record["predicted_gather_us"].is_null());
    }
}

#[test]
fn a_private_table_is_packed_by_its_owner() {
    for op in ["read", "write"] {
        for record in bench(&["W3", "W5", "--owner-memory", "private", "--op", op]) {
            assert_eq!((record["chosen"].as_str(), record["verified"].as_bool()), (Some("gather"), Some(true)));
            assert!(record["predicted_gather_us"].as_f64().unwrap() > 0.0 && record["predicted_direct_us"].is_null());
        }
    }
    refused(&["bench", "W5", "--link", "local", "--owner-memory", "private"], "no owner process");
}

#[test]
fn rows_are_submitted_one_by_one_and_written_as_well_as_read() {
    for (args, operations) in [
        (["--submit", "rows", "--op", "read"], 1024),
        (["--submit", "rows", "--op", "write"], 1024),
        (["--submit", "index", "--op", "write"], 1),
    ] {
        let record = &bench(&[&["W5", "--link", "local", "--seed", "7"], args.as_slice()].concat())[0];
        assert_eq!((record["op"].as_str(), record["submit"].as_str()), (Some(args[3]), Some(args[1])));
        assert_eq!((record["operations"].as_u64(), record["verified"].as_bool()), (Some(operations), Some(true)));
        assert_eq!(record["seed"].as_u64(), Some(7));
    }
}

#[test]
fn rows_and_large_pieces_are_one_batch_of_two_descriptors() {
    let record = &bench(&["W3", "--link", "local", "--route", "direct"])[0];
    assert_eq!((record["operations"].as_u64(), record["signalled"].as_u64()), (Some(2), Some(1)));
    assert_eq!(record["fragments"].as_u64(), Some(32_768 + 64));
}

#[test]
fn what_there_is_not_is_refused_with_status_2() {
    refused(&["bench", "W9"], "W1, W2, W3, W4, W5 and matrix");
    refused(&["bench", "--link", "pigeon"], "shm, tcp, local, verbs and sim:PROFILE");
    refused(&["bench", "--link", "sim:nothing"], "the simulator's profiles are reference,");
    refused(&["explain", "--link", "tcp"], "sim:tcp-loopback");
    refused(&["bench", "--route", "detour"], "detour");
    refused(&["bench", "W5", "--link", "local", "--table-mib", "16", "--route", "gather"], "nothing to pack");
    refused(&["fly"], "fly");
}

#[test]
fn what_is_for_another_link_is_refused_with_status_2() {
    let tcp = ["bench", "W5", "--link", "tcp"];
    refused(&[&tcp[..], &["--owner-memory", "private"]].concat(), "for clients of the owner's engine only");
    refused(&[&tcp[..], &["--congestion", "pigeon"]].concat(), "congestion control \"pigeon\"");
    refused(&[&tcp[..], &["--timeline", "w5.svg"]].concat(), "--timeline is for --link sim:PROFILE");
    for link in ["shm", "local", "sim:reference"] {
        let refused = |options: &[&str], why: &str| refused(&[&["bench", "W5", "--link", link], options].concat(), why);
        refused(&["--congestion", "cubic"], "are for --link tcp");
        refused(&["--peer-config", "peers.toml"], "are for --link tcp");
    }
    refused(&["bench", "W5", "--requesters", "2"], "--requesters is for --link tcp");
}

#[test]
fn several_clients_are_asked_for_in_a_way_that_can_be_done() {
    let clients = ["bench", "W5", "--clients", "2"];
    refused(&[&clients[..], &["--iterations", "3"]].concat(), "cannot be used with");
    refused(&[&clients[..], &["--link", "sim:reference"]].concat(), "not for --link sim:PROFILE");
    refused(&[&clients[..], &["--seconds", "0"]].concat(), "must be from 0.01 to 3600");
    refused(&["bench", "matrix", "--clients", "2"], "name workloads, and not the matrix");
    refused(&["bench", "W5", "--clients", "65"], "65 is not in 1..=64");
    refused(&["bench", "W5", "--link", "tcp", "--clients", "33", "--requesters", "2"], "66 clients of all requesters");
}

/// The JSON line of several clients over a small table.
fn share(args: &[&str]) -> Value {
    let output = output(&[&["bench", "W5", "--json", "--table-mib", "16", "--seconds", "0.1"], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn several_clients_are_told_what_each_of_them_got() {
    for (args, clients) in [
        (&["--clients", "3", "--op", "read"][..], 3),
        (&["--clients", "2", "--op", "write", "--submit", "rows"], 2),
        (&["--link", "local"], 1),
    ] {
        let record = share(args);
        let bytes: Vec<u64> = record["client_bytes"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        assert_eq!((bytes.len(), record["clients"].as_u64()), (clients, Some(clients as u64)), "{record}");
        assert!(bytes.iter().all(|bytes| bytes.is_multiple_of(1024 * 264)), "whole batches: {record}");
        let ratio = *bytes.iter().min().unwrap() as f64 / *bytes.iter().max().unwrap() as f64;
        // Reading a number as text may miss its last bit; where nobody had anything there is none.
        let said = record["least_over_most"].as_f64();
        let is_right = said.map_or(!ratio.is_finite(), |said| (said - ratio).abs() < 1e-9);
        assert!(is_right, "{ratio} {record}");
        let all = bytes.iter().sum::<u64>() as f64;
        assert!((record["useful_gbps"].as_f64().unwrap() - all * 8.0 / 0.1e9).abs() < 1e-6, "{record}");
        assert_eq!((record["verified"].as_bool(), record["seconds"].as_f64()), (Some(true), Some(0.1)));
        assert_eq!(record["table_bytes"].as_u64(), Some(16 << 20));
    }
}

#[test]
fn as_many_clients_as_there_may_be_find_room_beside_the_owner() {
    assert_eq!(share(&["--clients", "64"])["clients"].as_u64(), Some(64));
}

#[test]
fn without_a_subcommand_it_explains_itself() {
    let help = output(&[]);
    assert!(help.status.success());
    let help = text(&help.stdout);
    assert!(help.contains("serve") && help.contains("demo") && help.contains("bench") && help.contains("Examples:"));
    assert!(!help.contains("owner"), "{help}");
    for subcommand in ["serve", "read", "demo", "bench", "regret", "devices"] {
        assert!(text(&output(&[subcommand, "--help"]).stdout).contains("Examples:"));
    }
    assert_eq!(text(&output(&["--version"]).stdout), format!("scatter-ring {}\n", env!("CARGO_PKG_VERSION")));
}

/// With RDMA or without it: rows, or one line that says what is lacking.
#[test]
fn devices_are_shown_and_none_is_no_failure() {
    let (people, programs) = (output(&["devices"]), output(&["devices", "--json"]));
    assert!(people.status.success() && programs.status.success(), "{}", text(&programs.stderr));
    let shown = text(&people.stdout);
    if shown.starts_with("no RDMA: ") {
        assert_eq!((shown.lines().count(), programs.stdout.len()), (1, 0));
        assert_eq!(text(&programs.stderr), format!("scatter-ring: {shown}"));
        return;
    }
    let ports: Vec<Value> = text(&programs.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!ports.is_empty());
    for port in ports {
        assert!(shown.contains(port["device"].as_str().unwrap()), "{shown}");
        assert!(port["max_requests"].as_u64().unwrap() > 0 && port["gids"].is_array());
    }
}

/// A demo whose temporary files go to a directory of the test.
fn demo(directory: &Path, iterations: &str) -> Command {
    let mut command = command(&["demo", "--table-mib", "16", "--rows", "2048", "--iterations", iterations]);
    command.env("TMPDIR", directory);
    command
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let names = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse().ok());
    pids.filter(|candidate: &u32| {
        let parent = stat(*candidate).and_then(|s| s.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok());
        parent == Some(pid)
    })
    .collect()
}

fn is_alive(pid: u32) -> bool {
    // A dead process may stay as a zombie until whoever is its parent now looks.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

#[test]
fn the_demo_reports_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let output = demo(directory.path(), "3").output().unwrap();
    let (report, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{error}");
    for part in ["owner", "engine", "client", "plain memcpy", "2,048 descriptors", "All correct."] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(is_empty(directory.path()));
}

#[test]
fn a_killed_demo_leaves_no_process_and_no_socket() {
    for (signal, helpers) in [("KILL", 3), ("TERM", 3), ("KILL", 1)] {
        let directory = tempfile::tempdir().unwrap();
        let mut demo = Running::start(&mut demo(directory.path(), "1000"));
        wait_until("the helpers do not start", || children(demo.0.id()).len() >= helpers);
        let helpers = children(demo.0.id());
        demo.signal(signal);
        demo.ended();
        for helper in helpers {
            wait_until("a helper outlives the demo", || !is_alive(helper));
        }
        assert!(is_empty(directory.path()), "after {signal}");
    }
}

#[test]
fn a_demo_whose_engine_dies_fails_and_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut demo = Running::start(&mut demo(directory.path(), "1000"));
    wait_until("the helpers do not start", || children(demo.0.id()).len() == 3);
    let helpers = children(demo.0.id());
    let engine = helpers.iter().find(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.windows(5).any(|word| word == b"serve"))
    });
    assert!(Command::new("sh").args(["-c", &format!("kill -9 {}", engine.unwrap())]).status().unwrap().success());
    assert_eq!(demo.ended().code(), Some(1));
    assert!(helpers.into_iter().all(|helper| !is_alive(helper)));
    assert!(is_empty(directory.path()));
}

fn serve(socket: &Path) -> Command {
    let mut serve = command(&["serve", "--socket"]);
    serve.arg(socket);
    serve
}

fn private_directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    let socket = directory.path().join("socket");
    (directory, socket)
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[test]
fn serve_says_where_and_stops_cleanly() {
    for signal in ["TERM", "INT"] {
        let (_directory, socket) = private_directory();
        let mut engine = Running::start(&mut serve(&socket));
        assert!(engine.first_line().contains(&format!("serving at {}", socket.display())));
        assert!(is_socket(&socket));
        engine.signal(signal);
        assert!(engine.ended().success());
        assert!(!socket.exists());
    }
}

#[test]
fn serve_starts_again_after_it_was_killed() {
    let (_directory, socket) = private_directory();
    let mut first = Running::start(&mut serve(&socket));
    first.first_line();
    first.signal("KILL");
    first.ended();
    assert!(is_socket(&socket), "left behind");
    let mut second = Running::start(&mut serve(&socket));
    assert!(second.first_line().contains("serving"));
    scatter_ring::client::Client::attach(&socket).unwrap();
}

#[test]
fn serve_refuses_a_place_that_is_not_its_own() {
    let (directory, socket) = private_directory();
    let mut first = Running::start(&mut serve(&socket));
    first.first_line();
    let second = serve(&socket).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another engine serves there"), "{}", text(&second.stderr));

    let open = directory.path().join("open");
    DirBuilder::new().mode(0o700).create(&open).unwrap();
    std::fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    let refused = serve(&open.join("socket")).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("is open to other users"), "{}", text(&refused.stderr));
}

#[test]
fn serve_has_a_default_place_for_its_socket() {
    let directory = tempfile::tempdir().unwrap();
    let mut serve = command(&["serve"]);
    serve.env("XDG_RUNTIME_DIR", directory.path());
    let mut engine = Running::start(&mut serve);
    engine.first_line();
    assert!(is_socket(&directory.path().join("scatter-ring/socket")));
}
